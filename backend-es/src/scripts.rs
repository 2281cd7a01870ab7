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
    LOOK: "look";
    BEGIN: "begin";
}

/// The text without comments, line breaks and indentation.
fn sent(source: &str) -> String {
    let lines = source.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    lines.join(" ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_line_breaks_stay_here() {
        assert_eq!(sent("// a\nif (b) {\n  c;\n}\n"), "if (b) { c; }");
        for script in [&ACQUIRE, &RELEASE, &ALIVE, &END] {
            assert!(
                !script.contains(['\n', '#']) && !script.contains("//"),
                "{}",
                **script
            );
        }
    }
}
