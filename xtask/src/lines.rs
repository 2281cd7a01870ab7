//! `cargo xtask lines`: how much code there is, without docs, comments, blank lines and tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a backend's file is for, by its name; every other file of a backend is the protocol.
const ROOMS: &[(&str, &[&str])] = &[
    ("URL, configuration", &["config"]),
    (
        "connections, pool, file",
        &[
            "connections",
            "file",
            "http",
            "link",
            "open",
            "thread",
            "directory",
        ],
    ),
    ("namespace, info", &["backend", "namespace", "server"]),
    ("judging", &["obstacles"]),
    ("watching", &["wakeups"]),
    ("inspection, paging", &["inspect", "pages"]),
    ("sweep", &["sweep"]),
    ("errors", &["error"]),
];
const PROTOCOL: &str = "protocol, stored shape";
const SERVER: &str = "server scripts";

/// What is run by a server, with what begins a comment of it.
const SCRIPTS: &[(&str, &str)] = &[
    ("lua", "--"),
    ("sql", "--"),
    ("painless", "//"),
    ("json", "//"),
];

/// Lines by purpose.
type Purposes = BTreeMap<String, usize>;

/// Counts the workspace in `root`.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let mut backends = BTreeMap::new();
    let mut others = BTreeMap::new();
    for package in packages(root)? {
        let name = package.strip_prefix(root).unwrap_or(&package);
        let name = match name.to_string_lossy().as_ref() {
            "" => "facade".to_owned(),
            name => name.to_owned(),
        };
        let is_backend = name.contains("backend");
        let counted = count(&package, is_backend)?;
        let group = if is_backend {
            &mut backends
        } else {
            &mut others
        };
        group.insert(name, counted);
    }
    print!("{}\n{}", columns(&backends), rows(&others));
    let library = |(name, counted): (&String, &Purposes)| {
        let ours = name == "lockcore" || !name.contains('/');
        if ours { code(counted) } else { 0 }
    };
    let all: usize = backends.iter().map(library).sum();
    let core = others.get("lockcore").map_or(0, code);
    println!(
        "\nlockcore and its backends: {} (without server scripts)",
        core + all
    );
    Ok(())
}

/// The folders of packages, examples of backends included.
fn packages(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        if folder.join("Cargo.toml").is_file() {
            found.push(folder.clone());
        }
        for entry in entries(&folder)? {
            let name = name_of(&entry);
            if depth < 2 && entry.is_dir() && !name.starts_with('.') && name != "target" {
                open.push((entry, depth + 1));
            }
        }
    }
    Ok(found)
}

/// Lines of a package, by purpose.
fn count(package: &Path, is_backend: bool) -> Result<Purposes, String> {
    let mut purposes = Purposes::new();
    let source = package.join("src");
    let mut open = vec![source.clone(), package.join("server")];
    while let Some(folder) = open.pop() {
        for entry in entries(&folder)? {
            let name = name_of(&entry);
            if entry.is_dir() {
                if name != "tests" {
                    open.push(entry);
                }
                continue;
            }
            let extension = entry.extension().unwrap_or_default().to_string_lossy();
            let read = || fs::read_to_string(&entry).map_err(|it| format!("{name}: {it}"));
            let script = SCRIPTS.iter().find(|(of, _)| *of == extension);
            let (purpose, lines) = if let Some((_, comment)) = script {
                (SERVER.to_owned(), lines_of_script(&read()?, comment))
            } else if extension == "rs" && name != "tests.rs" {
                let within = entry.strip_prefix(&source).unwrap_or(&entry);
                (purpose(within, is_backend), lines_of_rust(&read()?))
            } else {
                continue;
            };
            *purposes.entry(purpose).or_default() += lines;
        }
    }
    Ok(purposes)
}

/// What a file is for: a backend's room, else the folder that it is in.
fn purpose(file: &Path, is_backend: bool) -> String {
    let first = file.iter().next().unwrap_or_default().to_string_lossy();
    let stem = first.trim_end_matches(".rs");
    if is_backend {
        let room = ROOMS.iter().find(|(_, files)| files.contains(&stem));
        return room.map_or(PROTOCOL, |(room, _)| room).to_owned();
    }
    if file.iter().count() > 1 {
        stem.to_owned()
    } else {
        "(root)".to_owned()
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let Ok(read) = fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let entries = read.map(|entry| entry.map(|entry| entry.path()));
    let mut entries: Vec<PathBuf> = entries
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    entries.sort();
    Ok(entries)
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn code(counted: &Purposes) -> usize {
    let all = counted.iter().filter(|(purpose, _)| *purpose != SERVER);
    all.map(|(_, lines)| lines).sum()
}

/// Backends: a column for each, a row for each room.
fn columns(backends: &BTreeMap<String, Purposes>) -> String {
    let short = |name: &str| {
        name.trim_start_matches("examples/")
            .replace("backend-", "")
            .replace("-backend", "")
    };
    let mut text = format!("{:<26}", "");
    for name in backends.keys() {
        text += &format!("{:>10}", short(name));
    }
    let mut row = |title: &str, of: &dyn Fn(&Purposes) -> usize| {
        text += &format!("\n{title:<26}");
        for counted in backends.values() {
            text += &format!("{:>10}", of(counted));
        }
    };
    for room in ROOMS.iter().map(|(room, _)| *room).chain([PROTOCOL]) {
        row(room, &|counted| {
            counted.get(room).copied().unwrap_or_default()
        });
    }
    row("all", &code);
    row(SERVER, &|counted| {
        counted.get(SERVER).copied().unwrap_or_default()
    });
    text + "\n"
}

/// Other packages: a row for each, with its folders.
fn rows(packages: &BTreeMap<String, Purposes>) -> String {
    let mut text = String::new();
    for (name, counted) in packages {
        let folders: Vec<String> = counted
            .iter()
            .map(|(folder, lines)| format!("{folder} {lines}"))
            .collect();
        text += &format!("{name:<26}{:>10}  {}\n", code(counted), folders.join(", "));
    }
    text
}

fn lines_of_script(text: &str, comment: &str) -> usize {
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with(comment);
    text.lines().map(str::trim).filter(is_code).count()
}

/// Lines with code on them, outside items for tests.
fn lines_of_rust(text: &str) -> usize {
    let bare = without_comments(text);
    let mut lines = 0;
    let mut skipped: Option<Item> = None;
    for line in bare.lines().map(str::trim) {
        if let Some(item) = &mut skipped {
            if item.ends_with(line) {
                skipped = None;
            }
        } else if line.starts_with("#[cfg(test)]") {
            skipped = Some(Item::default());
        } else if !line.is_empty() {
            lines += 1;
        }
    }
    lines
}

/// An item that is being skipped.
#[derive(Default)]
struct Item {
    open: usize,
}

impl Item {
    /// Whether this line of it, in which texts are blank, is the last one.
    fn ends_with(&mut self, line: &str) -> bool {
        for byte in line.bytes() {
            match byte {
                b'{' | b'(' | b'[' => self.open += 1,
                b'}' | b')' | b']' => {
                    self.open = self.open.saturating_sub(1);
                    if self.open == 0 && byte == b'}' {
                        return true;
                    }
                }
                b';' | b',' if self.open == 0 => return true,
                _ => {}
            }
        }
        false
    }
}

/// The same lines without comments, and with texts whose inside is one `"`.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let (kept, taken) = if rest.starts_with("//") {
            ("", rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            ("", block_comment(rest))
        } else if let Some(len) = quoted(rest) {
            ("\"", len)
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
            // What ends in r or b is a name here, and no prefix of a text.
            if next.is_alphanumeric() || next == '_' {
                let name = |c: char| !(c.is_alphanumeric() || c == '_');
                let end = rest.find(name).unwrap_or(rest.len());
                out += &rest[..end];
                rest = &rest[end..];
            }
            continue;
        };
        out += kept;
        // A text of several lines is code on each of them; a comment is none.
        let inside = &rest[..taken];
        let fill = if kept.is_empty() { "\n" } else { "\n\"" };
        out += &fill.repeat(inside.matches('\n').count());
        rest = &rest[taken..];
    }
    out
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// How long the text or character is that begins here, if one does.
fn quoted(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let prefix = ["br", "cr", "r", "b", "c", ""]
        .into_iter()
        .find(|prefix| text.starts_with(prefix))
        .unwrap_or_default();
    let from = prefix.len();
    if prefix.ends_with('r') {
        let hashes = text[from..].bytes().take_while(|it| *it == b'#').count();
        if bytes.get(from + hashes) != Some(&b'"') {
            return None;
        }
        let close = format!("\"{}", "#".repeat(hashes));
        let inside = from + hashes + 1;
        let len = text[inside..].find(&close)?;
        return Some(inside + len + close.len());
    }
    match bytes.get(from)? {
        b'"' => {
            let mut at = from + 1;
            while at < bytes.len() && bytes[at] != b'"' {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            Some((at + 1).min(bytes.len()))
        }
        // A lifetime has no second quote.
        b'\'' => {
            let inside = &text[from + 1..];
            let first = inside.chars().next()?;
            let len = if first == '\\' {
                1 + inside[1..].chars().next()?.len_utf8() + inside[2..].find('\'')?
            } else {
                first.len_utf8()
            };
            inside[len..]
                .starts_with('\'')
                .then_some(from + 1 + len + 1)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_left() {
        for (text, lines) in [
            ("", 0),
            ("// a\n\n//! b\n/// c\n", 0),
            ("fn a() {\n    // why\n    b(); // here\n}\n", 3),
            ("/* a\n b /* c */\n d */ fn e() {}\n", 1),
            ("let a = \"// no comment\";\nlet b = '\"'; // one\n", 2),
            ("let a = \"two\n  // lines\";\n", 2),
            ("let a = r#\"a\n\"b\"\n// c\"#;\n", 3),
            ("let a = '\\''; let b = '\\u{41}'; // c\n/* d */\n", 1),
            ("fn a<'b>(c: &'b str) {} // 'd\n", 1),
            (
                "#[cfg(test)]\nmod tests {\n    fn a() {}\n}\nfn b() {}\n",
                1,
            ),
            ("#[cfg(test)]\nmod tests;\nfn b() {}\n", 1),
            (
                "#[cfg(test)]\n#[allow(dead_code)]\nfn a(b: [u8; 2]) -> char {\n '}'\n}\nfn c() {}\n",
                1,
            ),
            ("#[cfg(any(linux, test))]\nfn a() {}\n", 2),
            (
                "struct A {\n    #[cfg(test)]\n    b: u8,\n    c: u8,\n}\n",
                3,
            ),
        ] {
            assert_eq!(lines_of_rust(text), lines, "{text}");
        }
    }

    #[test]
    fn scripts_have_comments_of_their_own() {
        assert_eq!(lines_of_script("-- a\nSELECT 1\n\n  -- b\n", "--"), 1);
    }

    #[test]
    fn a_file_has_one_purpose() {
        assert_eq!(purpose(Path::new("config.rs"), true), "URL, configuration");
        assert_eq!(purpose(Path::new("claims.rs"), true), PROTOCOL);
        assert_eq!(purpose(Path::new("client/wait.rs"), false), "client");
        assert_eq!(purpose(Path::new("key.rs"), false), "(root)");
    }
}
