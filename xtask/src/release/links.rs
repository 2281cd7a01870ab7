//! The links of the pages lead somewhere: to a file, and to a heading in it. Nothing is asked of the network.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::Findings;

/// Where pages are. Others have none, or are made.
const SKIPPED: &[&str] = &["target", ".git", "node_modules", "mutants.out"];
const BOOK: &str = "docs/book/src";
const PROGRAMS: &str = "docs/book/programs/src/lib.rs";

pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<(), String> {
    let mut pages = BTreeMap::new();
    collect(root, root, &mut pages)?;
    for (page, text) in &pages {
        for link in links(text) {
            if let Some(problem) = problem(root, &pages, page, &link) {
                findings.problem(format!("{}: {problem}", page.display()));
            }
        }
    }
    let summary = pages.get(&Path::new(BOOK).join("SUMMARY.md"));
    if let Some(summary) = summary {
        let listed: BTreeSet<PathBuf> = links(summary)
            .iter()
            .map(|it| Path::new(BOOK).join(it))
            .collect();
        let chapters = pages
            .keys()
            .filter(|it| it.starts_with(BOOK) && !it.ends_with("SUMMARY.md"));
        for missing in chapters.filter(|it| !listed.contains(*it)) {
            findings.problem(format!(
                "{} is not in the book's SUMMARY.md",
                missing.display()
            ));
        }
        // Its programs are tested where it is named.
        let tested = fs::read_to_string(root.join(PROGRAMS)).unwrap_or_default();
        let has_program =
            |(page, text): &(&PathBuf, &String)| page.starts_with(BOOK) && text.contains("```rust");
        for (page, _) in pages.iter().filter(has_program) {
            let name = page.strip_prefix(BOOK).unwrap_or(page);
            if !tested.contains(&format!("src/{}\"", name.display())) {
                findings.problem(format!("{PROGRAMS} does not name {}", page.display()));
            }
        }
    }
    Ok(())
}

/// Every page below a folder, by its path from the root.
fn collect(
    root: &Path,
    folder: &Path,
    pages: &mut BTreeMap<PathBuf, String>,
) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && !path.is_symlink() && !SKIPPED.contains(&name.as_str()) {
            collect(root, &path, pages)?;
        } else if name.ends_with(".md") {
            let text = fs::read_to_string(&path).map_err(failed)?;
            let page = path.strip_prefix(root).unwrap_or(&path);
            pages.insert(page.to_owned(), included(&path, &text).unwrap_or(text));
        }
    }
    Ok(())
}

/// A chapter that is another page of the repository, as `{{#include file}}`: the text of that page.
fn included(path: &Path, text: &str) -> Option<String> {
    let file = text
        .trim()
        .strip_prefix("{{#include ")?
        .strip_suffix("}}")?;
    fs::read_to_string(path.with_file_name(file)).ok()
}

/// What is wrong with a link of a page.
fn problem(
    root: &Path,
    pages: &BTreeMap<PathBuf, String>,
    page: &Path,
    link: &str,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => normal(&page.with_file_name("").join(file)),
    };
    if !root.join(&target).exists() {
        return Some(format!("{link} leads to no file"));
    }
    if anchor.is_empty() {
        return None;
    }
    let text = pages.get(&target)?;
    (!anchors(text).contains(anchor)).then(|| format!("{link} leads to no heading"))
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Lines that are text: not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// A line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Where the links of a page lead, as in `[text](link)`. A link may begin on one line and end on the next, but not within
/// its target.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let line = without_code(line);
        let mut rest = line.as_str();
        while let Some((_, behind)) = rest.split_once("](") {
            let (link, next) = behind.split_once(')').unwrap_or((behind, ""));
            let link = link.split_whitespace().next().unwrap_or_default();
            // A name of Rust's documentation is no path.
            if !link.contains("::") || link.contains("://") {
                found.push(link.to_owned());
            }
            rest = next;
        }
    }
    found
}

/// What a link can name in a page: its headings, as GitHub and mdBook call them, and its own marks.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text) {
        if line.starts_with('#') {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let letters = heading.chars().filter_map(|it| match it {
                ' ' => Some('-'),
                it if it.is_alphanumeric() || it == '-' || it == '_' => Some(it),
                _ => None,
            });
            anchors.insert(letters.collect());
        }
        for mark in line.split("id=\"").skip(1) {
            anchors.insert(mark.split('"').next().unwrap_or_default().to_owned());
        }
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](x.md) and [b](y.md#part \"title\"), `[c](no.md)`\n```text\n[d](no.md)\n```\n\
                    ![e](z.svg)[f](#here) [g](lockcore::Guard) [h](https://docs.rs/x::y)";
        let expected = [
            "x.md",
            "y.md#part",
            "z.svg",
            "#here",
            "https://docs.rs/x::y",
        ];
        assert_eq!(links(text), expected);
    }

    #[test]
    fn headings_are_named_as_readers_of_markdown_name_them() {
        let text = "# What a lock promises, and what it cannot\n## `run` in 2 steps\n<a id=\"tokens\"></a>\n```sh\n# no\n```\n";
        let expected = [
            "run-in-2-steps",
            "tokens",
            "what-a-lock-promises-and-what-it-cannot",
        ];
        let found: Vec<String> = anchors(text).into_iter().collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join(BOOK)).unwrap();
        let write = |file: &str, text: &str| fs::write(root.join(file), text).unwrap();
        write("a.md", "# One\n[x](docs/book/src/b.md#two) [y](#one)\n");
        write("docs/book/src/b.md", "# Two\n[x](../../../a.md#one)\n");
        write("docs/book/src/SUMMARY.md", "- [Two](b.md)\n");
        let problems = || {
            let mut findings = Findings::default();
            check(root, &mut findings).unwrap();
            findings.problems
        };
        assert_eq!(problems(), Vec::<String>::new());
        for (file, text, expected) in [
            (
                "a.md",
                "# One\n[x](docs/book/src/b.md#three)\n",
                "no heading",
            ),
            ("a.md", "[x](c.md)\n", "no file"),
            ("docs/book/src/c.md", "# Three\n", "not in the book"),
            (
                "docs/book/src/b.md",
                "# Two\n```rust\n```\n",
                "does not name",
            ),
        ] {
            let path = root.join(file);
            let before = fs::read_to_string(&path).ok();
            write(file, text);
            let found = problems();
            assert!(
                found.iter().any(|it| it.contains(expected)),
                "{expected}: {found:?}"
            );
            match before {
                Some(before) => write(file, &before),
                None => fs::remove_file(path).unwrap(),
            }
        }
        assert_eq!(problems(), Vec::<String>::new());
    }
}
