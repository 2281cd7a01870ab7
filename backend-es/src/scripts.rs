//! What the server runs: one constant text for each operation, so that each is compiled once.

use std::sync::LazyLock;

/// A script, as it is sent.
pub(crate) type Script = LazyLock<String>;

macro_rules! scripts {
    ($($name:ident: $($file:literal)*;)*) => {
        $(pub(crate) static $name: Script = LazyLock::new(|| {
            sent(concat!($(include_str!(concat!("../server/", $file, ".painless"))),*))
        });)*
    };
}

scripts! {
    ACQUIRE: "record" "acquire";
    WAIT: "record" "wait";
    RELEASE: "record" "release";
    CONFIRM: "confirm";
    ALIVE: "alive";
    OPEN: "open";
    RENEW: "renew";
    END: "end";
    ASK: "ask";
    ADOPT: "adopt";
    GIVE_UP: "give_up";
    SETTLE: "settle";
    NOTE: "note";
    FORGET: "forget";
    READ: "read";
    BEGIN: "begin";
}

/// The text without comments, line breaks, and spaces that separate no words: it is sent with each item.
fn sent(source: &str) -> String {
    let lines = source.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    let text = lines.join(" ");
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "_'".contains(c));
    let mut sent = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let separates = is_word(sent.chars().next_back()) && is_word(rest.peek().copied());
        if c != ' ' || separates {
            sent.push(c);
        }
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_line_breaks_stay_here() {
        assert_eq!(
            sent("// a\nif (b == 'x') {\n  int c = 1;\n}\n"),
            "if(b=='x'){int c=1;}"
        );
        for script in [&ACQUIRE, &RELEASE, &ALIVE, &END] {
            assert!(
                !script.contains(['\n', '#']) && !script.contains("//"),
                "{}",
                **script
            );
        }
    }
}
