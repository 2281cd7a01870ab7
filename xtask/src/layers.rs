//! The client's files import each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::builds::root;

/// What is named behind `crate::client::` in a text, beside its comments and its own tests.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code = code.lines().filter(|line| !line.trim().starts_with("//"));
    let code = code.collect::<Vec<_>>().join(" ");
    let behind = code.split("crate::client::").skip(1);
    let word = |text: &str| -> String {
        let letters = text.chars();
        let letters = letters.take_while(|letter| letter.is_alphanumeric() || *letter == '_');
        letters.collect()
    };
    let names = behind.flat_map(|text| match text.strip_prefix('{') {
        Some(list) => {
            let list = list.split('}').next().unwrap_or_default().split(',');
            list.map(|name| word(name.trim())).collect()
        }
        None => vec![word(text)],
    });
    names.collect()
}

#[test]
fn the_client_has_no_circle() {
    let folder = root().join("lockcore/src/client");
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("the client") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = name.into_owned();
        if path.is_dir() && name != "tests" {
            // Its files are one.
            let parts = fs::read_dir(&path).expect("a module");
            let parts = parts.map(|part| part.expect("an entry").path());
            let text = parts.map(|part| fs::read_to_string(part).expect("a source"));
            let imports = text.flat_map(|text| imports(&text));
            files.insert(name.clone(), imports.filter(|it| *it != name).collect());
        } else if path.extension().is_some_and(|it| it == "rs") && name != "mod" {
            let text = fs::read_to_string(&path).expect("a source");
            files.insert(name, imports(&text));
        }
    }
    assert!(files.len() > 20, "{:?}", files.keys());
    let known: BTreeSet<String> = files.keys().cloned().collect();
    for (name, imports) in &files {
        // What the root re-exports from the client is imported from its file, so that it is seen here.
        let strange: Vec<_> = imports.difference(&known).collect();
        assert!(strange.is_empty(), "{name} imports {strange:?}");
    }
    while !files.is_empty() {
        let left: BTreeSet<String> = files.keys().cloned().collect();
        files.retain(|_, imports| !imports.is_disjoint(&left));
        assert!(files.len() < left.len(), "these form circles: {files:?}");
    }
}

#[test]
fn imports_are_found() {
    let text = "use crate::client::core::{Alive, Core};\nuse crate::client::{deadline::Deadline, task};\n\
                // crate::client::comment\nfn f() { crate::client::pool::open() }\n#[cfg(test)]\nuse crate::client::tests;";
    let found: Vec<String> = imports(text).into_iter().collect();
    assert_eq!(found, ["core", "deadline", "pool", "task"]);
}
