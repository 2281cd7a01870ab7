//! What can be changed in a text that a server runs, line by line.

/// In what a text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Lua,
    Sql,
    Painless,
}

/// One change of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mutation {
    /// Where it begins; the first line is 0.
    pub(super) line: usize,
    /// So many lines are replaced.
    pub(super) lines: usize,
    /// By this.
    pub(super) by: String,
}

/// What stands for what, outside of texts and comments. A space at an end is a part of it.
type Table = &'static [(&'static str, &'static [&'static str])];

const LUA: Table = &[
    (" == ", &[" ~= "]),
    (" ~= ", &[" == "]),
    (" < ", &[" <= ", " >= "]),
    (" <= ", &[" < ", " > "]),
    (" > ", &[" >= ", " <= "]),
    (" >= ", &[" > ", " < "]),
    (" and ", &[" or "]),
    ("and ", &["or "]),
    (" or ", &[" and "]),
    ("or ", &["and "]),
    ("not ", &[""]),
    ("true", &["false"]),
    ("false", &["true"]),
    (" + ", &[" - "]),
    (" - ", &[" + "]),
    ("math.min", &["math.max"]),
    ("math.max", &["math.min"]),
    ("math.floor", &["math.ceil"]),
    ("math.ceil", &["math.floor"]),
];

const SQL: Table = &[
    (" = ", &[" <> "]),
    (" <> ", &[" = "]),
    (" < ", &[" <= ", " >= "]),
    (" <= ", &[" < ", " > "]),
    (" > ", &[" >= ", " <= "]),
    (" >= ", &[" > ", " < "]),
    (" AND ", &[" OR "]),
    ("AND ", &["OR "]),
    (" OR ", &[" AND "]),
    ("OR ", &["AND "]),
    ("NOT ", &[""]),
    ("true", &["false"]),
    ("false", &["true"]),
    (" + ", &[" - "]),
    (" - ", &[" + "]),
    ("least", &["greatest"]),
    ("greatest", &["least"]),
    (" IS NULL", &[" IS NOT NULL"]),
    (" IS DISTINCT", &[" IS NOT DISTINCT"]),
    (" IN (", &[" NOT IN ("]),
    (" EXISTS (", &[" NOT EXISTS ("]),
    (" FOR UPDATE", &[""]),
    (" FOR KEY SHARE", &[""]),
    (" SKIP LOCKED", &[""]),
    ("DISTINCT ", &[""]),
    (" ON CONFLICT DO NOTHING", &[""]),
    ("_shared", &[""]),
    (" DESC", &[""]),
];

const PAINLESS: Table = &[
    (" == ", &[" != "]),
    (" != ", &[" == "]),
    (" < ", &[" <= ", " >= "]),
    (" <= ", &[" < ", " > "]),
    (" > ", &[" >= ", " <= "]),
    (" >= ", &[" > ", " < "]),
    (" && ", &[" || "]),
    ("&& ", &["|| "]),
    (" || ", &[" && "]),
    ("|| ", &["&& "]),
    ("!", &[""]),
    ("true", &["false"]),
    ("false", &["true"]),
    (" + ", &[" - "]),
    (" - ", &[" + "]),
    ("Math.min", &["Math.max"]),
    ("Math.max", &["Math.min"]),
];

/// Texts that decide, in quotes.
const WORDS: &[(&str, &str)] = &[
    ("'living'", "'dead'"),
    ("'dead'", "'living'"),
    ("'abandoned'", "'dead'"),
    ("'write'", "'read'"),
    ("'share'", "'read'"),
    ("'due'", "'dead'"),
    ("'discard'", "'revoke'"),
    ("'drop'", "'keep'"),
];

impl Language {
    fn table(self) -> Table {
        match self {
            Language::Lua => LUA,
            Language::Sql => SQL,
            Language::Painless => PAINLESS,
        }
    }

    fn comment(self) -> &'static str {
        match self {
            Language::Painless => "//",
            Language::Lua | Language::Sql => "--",
        }
    }

    /// What a condition stands between.
    fn conditions(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Language::Lua => &[("if ", " then"), ("elseif ", " then"), ("while ", " do")],
            Language::Sql => &[
                ("IF ", " THEN"),
                ("ELSIF ", " THEN"),
                ("WHILE ", " LOOP"),
                ("EXIT WHEN ", ";"),
                ("CONTINUE WHEN ", ";"),
            ],
            Language::Painless => &[("if (", ") {"), ("} else if (", ") {"), ("while (", ") {")],
        }
    }

    fn not(self, condition: &str) -> String {
        match self {
            Language::Lua => format!("not ({condition})"),
            Language::Sql => format!("NOT ({condition})"),
            Language::Painless => format!("!({condition})"),
        }
    }

    /// What joins two conditions.
    fn joins(self) -> [&'static str; 2] {
        match self {
            Language::Lua => ["and ", "or "],
            Language::Sql => ["AND ", "OR "],
            Language::Painless => ["&& ", "|| "],
        }
    }

    /// What ends a condition without a bracket.
    fn ends(self) -> &'static [&'static str] {
        match self {
            Language::Lua => &[" then", " do", ","],
            Language::Sql => &[" THEN", " LOOP", ";", ",", " FOR ", " LIMIT ", " ORDER "],
            Language::Painless => &[";", ",", " ?", " :"],
        }
    }
}

/// Which lines are code.
pub(super) fn code_lines(language: Language, text: &str) -> Vec<usize> {
    let lines = text.lines().enumerate();
    let code = lines.filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with(language.comment())
    });
    code.map(|(number, _)| number).collect()
}

/// All changes of a text, in order.
pub(super) fn mutations(language: Language, text: &str) -> Vec<Mutation> {
    let lines: Vec<&str> = text.lines().collect();
    let code = code_lines(language, text);
    let mut all: Vec<Mutation> = Vec::new();
    let mut in_head = false;
    for &line in &code {
        if language == Language::Sql {
            // What a function takes and returns is compared with its callers' calls by the server.
            in_head |= lines[line].starts_with("CREATE OR REPLACE FUNCTION");
            if in_head {
                in_head = !lines[line].contains("AS $$");
                continue;
            }
        }
        let mut by = changes(language, lines[line]);
        by.retain(|by| by.trim() != lines[line].trim());
        let one = by.into_iter().map(|by| Mutation { line, lines: 1, by });
        let begin = all.len();
        all.extend(removal(language, &lines, &code, line));
        all.extend(one);
        let mut seen: Vec<Mutation> = Vec::new();
        for mutation in all.drain(begin..) {
            if !seen
                .iter()
                .any(|other| other.by.trim() == mutation.by.trim())
            {
                seen.push(mutation);
            }
        }
        all.extend(seen);
    }
    all
}

/// The line with one thing changed.
fn changes(language: Language, line: &str) -> Vec<String> {
    let code = outside(language, line);
    let mut all = Vec::new();
    let mut put = |from: usize, to: usize, by: &str| {
        all.push(format!("{}{by}{}", &line[..from], &line[to..]));
    };
    for (what, replacements) in language.table() {
        for (at, _) in line.match_indices(what) {
            if stands_alone(line, at, what) && (at..at + what.len()).all(|at| code[at]) {
                // At the beginning of a line, without the space before it, only.
                let first = line[..at].trim().is_empty();
                if what.ends_with(' ')
                    && what.len() <= 4
                    && !what.starts_with(' ')
                    && !first
                    && !matches!(*what, "not " | "NOT ")
                {
                    continue;
                }
                for by in *replacements {
                    put(at, at + what.len(), by);
                }
            }
        }
    }
    for (what, by) in WORDS {
        for (at, _) in line.match_indices(what) {
            put(at, at + what.len(), by);
        }
    }
    for (from, to) in numbers(line, &code) {
        match line[from..to].parse::<u32>() {
            Ok(0) => put(from, to, "1"),
            Ok(1) => put(from, to, "0"),
            Ok(number) if number < 100 => put(from, to, &(number + 1).to_string()),
            // How much is done at a time mostly, which changes no answer.
            _ => {}
        }
    }
    for (from, to) in operands(language, line, &code) {
        put(from, to, "");
    }
    let trimmed = line.trim_start();
    let indent = line.len() - trimmed.len();
    for (before, behind) in language.conditions() {
        let Some(rest) = trimmed.strip_prefix(before) else {
            continue;
        };
        let from = indent + before.len();
        if let Some(length) = rest.find(behind) {
            let condition = &rest[..length];
            let compound = language.joins().iter().any(|join| condition.contains(join));
            let compared = condition.contains([' ', '!']) && !condition.contains('(');
            if compound || !compared {
                put(from, from + length, &language.not(condition));
            }
        }
    }
    all
}

/// Without the statement that begins on the line, or without the line.
fn removal(language: Language, lines: &[&str], code: &[usize], line: usize) -> Option<Mutation> {
    let text = lines[line].trim();
    let control: &[&str] = match language {
        Language::Lua => &[
            "end",
            "if ",
            "elseif ",
            "for ",
            "while ",
            "local function",
            "function",
        ],
        Language::Sql => &[
            "IF ",
            "ELSIF ",
            "END",
            "BEGIN",
            "LOOP",
            "WHILE ",
            "FOR ",
            "DECLARE",
            "$$",
            "EXCEPTION",
            "CREATE TABLE",
        ],
        Language::Painless => &["}"],
    };
    if control.iter().any(|word| text.starts_with(word)) {
        return None;
    }
    let before = code.iter().rev().find(|&&other| other < line);
    let before = before.map_or("", |&before| lines[before].trim());
    let begins = match language {
        Language::Sql => {
            let ends = [";", "THEN", "ELSE", "BEGIN", "LOOP", "DECLARE", "$$"];
            before.is_empty() || ends.iter().any(|end| before.ends_with(end))
        }
        Language::Lua | Language::Painless => true,
    };
    let (mut open, mut closers) = (0_i32, String::new());
    let mut last = line;
    for (number, whole) in lines.iter().enumerate().skip(line) {
        let inside = outside(language, whole);
        for (at, sign) in whole.char_indices().filter(|(at, _)| inside[*at]) {
            match sign {
                '(' | '{' | '[' => open += 1,
                ')' | '}' | ']' if open > 0 => open -= 1,
                // It closes what was opened before; who goes on would remove another statement's end.
                ')' | '}' | ']' if number == line => closers.push(sign),
                ')' | '}' | ']' => return None,
                _ => {}
            }
            let _ = at;
        }
        last = number;
        let done = match language {
            Language::Sql if begins => whole.trim_end().ends_with(';'),
            _ => true,
        };
        if open == 0 && done {
            break;
        }
    }
    if open != 0 {
        return None;
    }
    let mut by = closers;
    if last == line {
        let kept: &[&str] = match language {
            Language::Lua => &[" then", " do", ","],
            Language::Sql if begins => &[],
            Language::Sql => &[" THEN", " LOOP", ";", ","],
            Language::Painless => &[],
        };
        let end = kept.iter().find(|end| text.ends_with(*end));
        by += end.unwrap_or(&"");
    }
    // Of a line that only closes something, all is kept.
    let changes = by != text;
    let lines = last - line + 1;
    changes.then_some(Mutation { line, lines, by })
}

/// Which bytes of a line are neither in a text, nor in a comment, nor a name that is put in later.
fn outside(language: Language, line: &str) -> Vec<bool> {
    let mut code = vec![true; line.len()];
    let bytes = line.as_bytes();
    let mut quote = None;
    let mut at = 0;
    while at < bytes.len() {
        match quote {
            Some(end) => {
                code[at] = false;
                if bytes[at] == b'\\' && language != Language::Sql {
                    at += 1;
                    if at < bytes.len() {
                        code[at] = false;
                    }
                } else if bytes[at] == end {
                    quote = None;
                }
            }
            None if bytes[at..].starts_with(language.comment().as_bytes()) => {
                code[at..].fill(false);
                break;
            }
            None if bytes[at] == b'\'' || bytes[at] == b'"' => {
                code[at] = false;
                quote = Some(bytes[at]);
            }
            None if bytes[at] == b'{' && language == Language::Sql => {
                code[at] = false;
                quote = Some(b'}');
            }
            None => {}
        }
        at += 1;
    }
    code
}

fn is_name(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// Whether it is not a part of a longer name.
fn stands_alone(line: &str, at: usize, what: &str) -> bool {
    let bytes = line.as_bytes();
    let starts = is_name(what.as_bytes().first()) && !what.starts_with('_');
    let before = at.checked_sub(1).and_then(|at| bytes.get(at));
    let ends = is_name(what.as_bytes().last());
    let negation = what == "!" && bytes.get(at + 1) == Some(&b'=');
    !(starts && is_name(before) || ends && is_name(bytes.get(at + what.len())) || negation)
}

/// Where the whole numbers stand.
fn numbers(line: &str, code: &[bool]) -> Vec<(usize, usize)> {
    let bytes = line.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !is_name(bytes.get(at)) {
            at += 1;
            continue;
        }
        let from = at;
        while is_name(bytes.get(at)) || bytes.get(at) == Some(&b'.') {
            at += 1;
        }
        let digits = bytes[from..at].iter().all(u8::is_ascii_digit);
        let parameter = from > 0 && bytes[from - 1] == b'?';
        if digits && code[from] && !parameter {
            found.push((from, at));
        }
    }
    found
}

/// Where the second conditions of two that are joined stand, with what joins them.
fn operands(language: Language, line: &str, code: &[bool]) -> Vec<(usize, usize)> {
    let bytes = line.as_bytes();
    let mut found = Vec::new();
    for join in language.joins() {
        for (from, _) in line.match_indices(join) {
            let begins = from == 0 || bytes[from - 1] == b' ';
            if !begins || !code[from] {
                continue;
            }
            let mut open = 0;
            let mut at = from + join.len();
            while at < bytes.len() {
                if code[at] {
                    let rest = &line[at..];
                    let next = bytes[at - 1] == b' '
                        && language.joins().iter().any(|join| rest.starts_with(join));
                    match bytes[at] {
                        b'(' | b'[' | b'{' => open += 1,
                        b')' | b']' | b'}' if open == 0 => break,
                        b')' | b']' | b'}' => open -= 1,
                        _ if open > 0 => {}
                        _ if next => break,
                        _ if language.ends().iter().any(|end| rest.starts_with(end)) => break,
                        _ => {}
                    }
                }
                at += 1;
            }
            if open == 0 {
                found.push((from, at));
            }
        }
    }
    found
}

/// The text with the change, of the same length; `None` where it does not fit.
pub(super) fn apply(language: Language, text: &str, mutation: &Mutation) -> Option<String> {
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let before: usize = lines.iter().map(String::len).sum();
    let (first, rest) = lines[mutation.line..mutation.line + mutation.lines].split_first_mut()?;
    *first = mutation.by.clone();
    for line in rest {
        line.clear();
    }
    let after: usize = lines.iter().map(String::len).sum();
    if after <= before {
        lines[mutation.line] += &" ".repeat(before - after);
        return Some(lines.join("\n"));
    }
    // Comments are shortened, then what a line is indented by.
    let mut retired = after - before;
    let comment = language.comment();
    for (number, line) in lines.iter_mut().enumerate() {
        if number != mutation.line && line.trim_start().starts_with(comment) && line.is_ascii() {
            let cut = retired.min(line.trim_start().len() - comment.len());
            line.truncate(line.len() - cut);
            retired -= cut;
        }
    }
    for line in &mut lines {
        let cut = retired.min(line.len() - line.trim_start().len());
        line.drain(..cut);
        retired -= cut;
    }
    (retired == 0).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(language: Language, text: &str) -> Vec<String> {
        let mutations = mutations(language, text);
        mutations.iter().map(|it| it.by.trim().to_owned()).collect()
    }

    #[test]
    fn a_condition_is_turned_round_joined_otherwise_and_shortened() {
        assert_eq!(
            of(Language::Lua, "if a == 1 and b < c then"),
            [
                "if a ~= 1 and b < c then",
                "if a == 1 and b <= c then",
                "if a == 1 and b >= c then",
                "if a == 1 or b < c then",
                "if a == 0 and b < c then",
                "if a == 1  then",
                "if not (a == 1 and b < c) then",
            ]
        );
        assert_eq!(
            of(Language::Sql, "  AND (a = 2 OR NOT b);"),
            [
                "",
                "AND (a <> 2 OR NOT b);",
                "OR (a = 2 OR NOT b);",
                "AND (a = 2 AND NOT b);",
                "AND (a = 2 OR b);",
                "AND (a = 3 OR NOT b);",
                ";",
                "AND (a = 2 );",
            ]
        );
        assert_eq!(of(Language::Painless, "if (!a) {"), ["if (a) {"]);
    }

    #[test]
    fn texts_and_comments_are_left_alone_but_for_words_that_decide() {
        assert_eq!(
            of(Language::Lua, "f('a == 1', 'living') -- a == 1"),
            ["", "f('a == 1', 'dead') -- a == 1"]
        );
        assert!(of(Language::Sql, "-- a = 1\n").is_empty());
    }

    #[test]
    fn a_statement_goes_with_all_its_lines() {
        let text = "BEGIN\n    UPDATE t SET a = 1\n    WHERE b;\n    c := 1;\nEND";
        let found = mutations(Language::Sql, text);
        let removed = found.iter().find(|it| it.line == 1 && it.by.is_empty());
        assert_eq!(removed.unwrap().lines, 2);
        let text = "local x = f(a, function()\n    return 1\nend)\n";
        let removed = &mutations(Language::Lua, text)[0];
        assert_eq!((removed.line, removed.lines), (0, 3));
    }

    #[test]
    fn a_mutant_is_as_long_as_the_text() {
        let text = "-- why it is so\nif a then\n    b()\nend\n";
        for mutation in mutations(Language::Lua, text) {
            let mutant = apply(Language::Lua, text, &mutation).unwrap();
            assert_eq!(mutant.len(), text.len(), "{mutant}");
            assert_ne!(mutant, text);
        }
        let whole = "a == b\n";
        let longer = Mutation {
            line: 0,
            lines: 1,
            by: "a >= b + 1".to_owned(),
        };
        assert_eq!(apply(Language::Lua, whole, &longer), None);
    }
}
