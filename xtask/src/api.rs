//! `cargo xtask api`: what the published crates offer, as it stands in `docs/api`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use public_api::Builder;
use serde::Deserialize;

use crate::builds::root;

/// Where the listings are.
const FOLDER: &str = "docs/api";
/// In this variable is the real rustdoc, for ourselves in its place.
const RUSTDOC: &str = "LOCKKEEPER_RUSTDOC";

/// Compares what the crates offer with the listings, or writes these.
pub(crate) fn run(save: bool) -> Result<(), String> {
    let folder = &root().join(FOLDER);
    let (found, listed) = (found()?, listed(folder)?);
    if found == listed {
        return Ok(());
    }
    if save {
        let failed = |error| format!("{FOLDER} cannot be written: {error}");
        fs::create_dir_all(folder).map_err(failed)?;
        for name in listed.keys().filter(|name| !found.contains_key(*name)) {
            fs::remove_file(file(folder, name)).map_err(failed)?;
        }
        for (name, api) in &found {
            fs::write(file(folder, name), api).map_err(failed)?;
        }
        return Ok(());
    }
    let none = String::new();
    let names: BTreeSet<&String> = found.keys().chain(listed.keys()).collect();
    for name in names {
        let lines = |apis: &BTreeMap<String, String>| {
            let api = apis.get(name).unwrap_or(&none).lines();
            api.map(str::to_owned).collect::<BTreeSet<String>>()
        };
        let (now, before) = (lines(&found), lines(&listed));
        for gone in before.difference(&now) {
            println!("-{gone}");
        }
        for new in now.difference(&before) {
            println!("+{new}");
        }
    }
    Err(format!(
        "the public API is not what {FOLDER} says: if it is meant, `cargo xtask api --save` writes it there"
    ))
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.txt"))
}

/// The listings as they are kept, by crate.
fn listed(folder: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut listed = BTreeMap::new();
    let Ok(files) = fs::read_dir(folder) else {
        return Ok(listed);
    };
    for file in files {
        let path = file.map_err(|error| error.to_string())?.path();
        let api = fs::read_to_string(&path);
        let api = api.map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        listed.insert(name.into_owned(), api);
    }
    Ok(listed)
}

/// Documents everything, with warnings denied. What each published crate offers now.
fn found() -> Result<BTreeMap<String, String>, String> {
    let metadata = metadata()?;
    let libraries = metadata.packages.iter().filter_map(Package::library);
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut doc = Command::new("cargo");
    doc.current_dir(root());
    // Of all, so that what they are built with is what the tests have.
    doc.args([
        "doc",
        "--quiet",
        "--workspace",
        "--no-deps",
        "--all-features",
    ]);
    // In our place the real one writes the pages, and its JSON besides: by flags of their own each would write all of them
    // anew after the other. Whoever calls it by hand has other flags, so that the JSON is never an older one.
    let rustdoc = std::env::var("RUSTDOC").unwrap_or_else(|_| "rustdoc".to_owned());
    doc.env("RUSTDOC", own).env(RUSTDOC, rustdoc);
    doc.env("RUSTDOCFLAGS", "-D warnings --cfg xtask_api");
    let status = doc.status();
    let status = status.map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !status.success() {
        return Err(format!("cargo doc failed: {status}"));
    }
    let api = |name: String| {
        let json = metadata.target_directory.join("doc");
        let json = json.join(format!("{name}.json"));
        let api = Builder::from_rustdoc_json(json)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(true)
            .build();
        let api = api.map_err(|error| format!("the API of {name} cannot be read: {error}"))?;
        let lines = api.items().map(|item| format!("{item}\n"));
        Ok((name, lines.collect()))
    };
    libraries.map(api).collect()
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    /// The registries that it may be published to; none is none.
    publish: Option<Vec<String>>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Package {
    /// Its library, if it is published and has one.
    fn library(&self) -> Option<String> {
        let is_published = self.publish.as_ref().is_none_or(|to| !to.is_empty());
        let is_library = |target: &&Target| target.kind.iter().any(|kind| kind == "lib");
        let library = self.targets.iter().find(is_library)?;
        is_published.then(|| library.name.replace('-', "_"))
    }
}

fn metadata() -> Result<Metadata, String> {
    let mut command = Command::new("cargo");
    command.current_dir(root());
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let answer = command.output();
    let answer = answer.map_err(|error| format!("cargo cannot be run: {error}"))?;
    serde_json::from_slice(&answer.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// The flags of its JSON, which is not stable: whoever asks for it says so. Only rustdoc hears of it: a build script that did
/// would have everything built again.
const JSON: [&str; 4] = ["-Z", "unstable-options", "--output-format", "json"];

/// Has the real rustdoc write the pages and the JSON, if cargo has started us in its place.
pub(crate) fn as_rustdoc() -> Option<ExitCode> {
    let rustdoc = std::env::var_os(RUSTDOC)?;
    let runs = |json: bool| {
        let mut command = Command::new(&rustdoc);
        command.args(std::env::args_os().skip(1));
        command.env_remove(RUSTDOC);
        if json {
            command.args(JSON).env("RUSTC_BOOTSTRAP", "1");
        }
        command.status().is_ok_and(|status| status.success())
    };
    Some(if runs(false) && runs(true) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
