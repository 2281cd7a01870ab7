//! Which mutants there are.

use std::fs;
use std::path::Path;

use super::explained::Change;
use super::operators::{self, Language, Mutation, code_lines, mutations};
use super::state::hash;
use super::subjects::Subject;

/// A mutant that is to be tried.
#[derive(Debug)]
pub(super) struct Mutant {
    /// The file's number.
    pub(super) file: usize,
    pub(super) mutation: Mutation,
    /// The whole file, changed.
    pub(super) text: String,
    pub(super) id: u64,
    pub(super) change: Change,
}

/// A file of the server's.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) code: Vec<usize>,
    /// The function that each line is in; the file itself, where it is in none.
    pub(super) parts: Vec<String>,
    /// What could be changed, but not in a text of the same length.
    pub(super) unfit: usize,
}

impl Mutant {
    /// The part of its file that it changes.
    pub(super) fn part<'a>(&self, sources: &'a [Source]) -> &'a str {
        &sources[self.file].parts[self.mutation.line]
    }

    /// What is changed, for people.
    pub(super) fn shown(&self) -> String {
        let Change { line, by, .. } = &self.change;
        if by.is_empty() {
            format!("without {line}")
        } else {
            format!("{line}  ->  {by}")
        }
    }
}

/// All files and mutants of a server's code, in the order in which they are tried.
pub(super) fn plan(subject: &Subject, folder: &Path) -> Result<(Vec<Source>, Vec<Mutant>), String> {
    let (mut sources, mut mutants) = (Vec::new(), Vec::new());
    for (name, text) in files(subject, folder)? {
        let parts = parts(subject.language, &name, &text);
        let code = code_lines(subject.language, &text);
        let unfit = of_file(subject, sources.len(), &name, &text, &parts, &mut mutants);
        sources.push(Source {
            name,
            text,
            code,
            parts,
            unfit,
        });
    }
    let turn = |mutant: &Mutant| {
        let part = mutant.part(&sources);
        let mut first = subject.first.iter();
        first.position(|first| *first == part).unwrap_or(usize::MAX)
    };
    mutants.sort_by_key(turn);
    Ok((sources, mutants))
}

/// The mutants of a file; says how many changes have no room.
fn of_file(
    subject: &Subject,
    file: usize,
    name: &str,
    text: &str,
    parts: &[String],
    mutants: &mut Vec<Mutant>,
) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let mut unfit = 0;
    for mutation in mutations(subject.language, text) {
        let Some(mutant) = operators::apply(subject.language, text, &mutation) else {
            unfit += 1;
            continue;
        };
        let line = lines[mutation.line].trim();
        let before = lines[..mutation.line].iter();
        let change = Change {
            file: name.to_owned(),
            place: before.filter(|other| other.trim() == line).count() + 1,
            line: line.to_owned(),
            by: mutation.by.trim().to_owned(),
        };
        mutants.push(Mutant {
            file,
            id: of_part(&parts[mutation.line], parts, &mutant),
            mutation,
            text: mutant,
            change,
        });
    }
    unfit
}

/// The name of a mutant: what is known of it stays true while other functions of its file change.
fn of_part(part: &str, parts: &[String], mutant: &str) -> u64 {
    let lines = mutant.lines().zip(parts);
    let lines = lines.filter_map(|(line, of)| (of == part).then_some(line.as_bytes()));
    let all: Vec<&[u8]> = [part.as_bytes()].into_iter().chain(lines).collect();
    hash(&all)
}

fn files(subject: &Subject, folder: &Path) -> Result<Vec<(String, String)>, String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if let (Some(name), Some(ending)) = (path.file_name(), path.extension())
            && ending == subject.ending
        {
            let name = name.to_string_lossy().into_owned();
            if !subject.left_out.contains(&name.as_str()) {
                let text = fs::read_to_string(&path).map_err(unreadable)?;
                files.push((name, text));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Of each line the function, or else the file, by its name without an ending.
fn parts(language: Language, name: &str, text: &str) -> Vec<String> {
    let file = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let mut inside: Option<&str> = None;
    let mut parts = Vec::new();
    for line in text.lines() {
        if language == Language::Sql
            && let Some(head) = line.strip_prefix("CREATE OR REPLACE FUNCTION {ns}.")
        {
            inside = head.split('(').next();
        }
        parts.push(inside.unwrap_or(file).to_owned());
        if line.ends_with("$$;") {
            inside = None;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_belongs_to_its_function() {
        let text = "a;\nCREATE OR REPLACE FUNCTION {ns}.f(a b)\nAS $$\nb;\n$$;\nc;\n";
        assert_eq!(
            parts(Language::Sql, "x.sql", text),
            ["x", "f", "f", "f", "f", "x"]
        );
        assert_eq!(parts(Language::Lua, "x.lua", "a\nb\n"), ["x", "x"]);
    }

    #[test]
    fn a_mutant_keeps_its_name_while_other_functions_change() {
        let id = |text: &str| of_part("f", &parts(Language::Sql, "x.sql", text), text);
        let f = "CREATE OR REPLACE FUNCTION {ns}.f(a b)\nAS $$\nb;\n$$;\n";
        assert_eq!(id(f), id(&format!("a;\n{f}c;\n")));
        assert_ne!(id(f), id(&f.replace("b;", "c;")));
    }
}
