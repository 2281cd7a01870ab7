//! Builds what measures, with the library of the working tree and with that of another commit.
//!
//! What measures (`benches/against/`, `workloads/`) is the same on both sides: it is laid over the other commit's files.
//! So a commit from before this command can be measured, as long as its library has what the measuring code uses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::builds::{cargo_command, root};
use crate::stores::Store;

/// The package that measures, and what it is made of.
pub(super) const MEASURES: &str = "benches/against";
const LAID_OVER: [&str; 2] = [MEASURES, "workloads"];
/// Cargo's own release profile, whatever a commit's manifest says: the library is measured, not its settings.
const PROFILE: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_RELEASE_LTO", "false"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_PANIC", "unwind"),
];

/// A program that measures one of the two libraries.
#[derive(Clone)]
pub(super) struct Built {
    /// The commit; of the working tree with `-dirty`, if it has changes.
    pub(super) name: String,
    /// Where its sources are.
    pub(super) source: PathBuf,
    /// Where what belongs to it is kept.
    pub(super) folder: PathBuf,
    pub(super) program: PathBuf,
}

impl Built {
    /// The same with a copy of the program.
    pub(super) fn copy(&self, name: &str) -> Result<Self, String> {
        let program = self.program.with_extension(name);
        copy(&self.program, &program)?;
        Ok(Self {
            program,
            ..self.clone()
        })
    }
}

/// Copies a file to a new one, in the place of an old one.
fn copy(file: &Path, to: &Path) -> Result<(), String> {
    let new = to.with_extension("new");
    fs::copy(file, &new)
        .and_then(|_| fs::rename(&new, to))
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// The program of the working tree, and that of a commit.
pub(super) fn both(commit: &str, stores: &[&Store]) -> Result<(Built, Built), String> {
    let here = root();
    let all = here.join("target/against");
    let ours = git(
        here,
        &[
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
            "--exclude=*",
        ],
    )?;
    let commit = resolved(here, commit)?;
    let folder = all.join(&commit);
    let tree = folder.join("tree");
    unpack(here, &commit, &tree)?;
    let laid_over = lay_over(here, &tree)?;
    make_a_member(&tree, &commit)?;
    let ours = build(ours, here.to_owned(), all.join("ours"), &all, stores)?;
    let theirs = once(commit, tree, folder, &all, stores, &laid_over)?;
    Ok((ours, theirs))
}

/// The program of a commit, which is built only if there is none of the same measuring code.
fn once(
    commit: String,
    source: PathBuf,
    folder: PathBuf,
    all: &Path,
    stores: &[&Store],
    laid_over: &[u8],
) -> Result<Built, String> {
    let made_of = folder.join("made-of");
    let is_made_of = [features(stores).as_bytes(), laid_over].concat();
    let program = folder.join("against");
    if program.is_file() && fs::read(&made_of).is_ok_and(|there| there == is_made_of) {
        return Ok(Built {
            name: commit,
            source,
            folder,
            program,
        });
    }
    let _ = fs::remove_file(&made_of);
    let built = build(commit.clone(), source, folder, all, stores).map_err(|error| {
        format!(
            "{error}: what measures cannot be built with the library of {commit}; see {MEASURES}/src for what it uses"
        )
    })?;
    write(&made_of, &is_made_of)?;
    Ok(built)
}

/// The features that the stores need.
fn features(stores: &[&Store]) -> String {
    let servers = stores.iter().filter(|store| store.servers.is_some());
    let servers: Vec<&str> = servers.map(|store| store.name).collect();
    format!("--features={}", servers.join(","))
}

/// The short name of a commit.
pub(crate) fn resolved(here: &Path, commit: &str) -> Result<String, String> {
    let commit = format!("{commit}^{{commit}}");
    git(here, &["rev-parse", "--verify", "--short=12", &commit])
}

/// Unpacks a commit, once.
pub(crate) fn unpack(here: &Path, commit: &str, tree: &Path) -> Result<(), String> {
    if tree.is_dir() {
        return Ok(());
    }
    let unfinished = tree.with_extension("unfinished");
    let archive = tree.with_extension("tar");
    let _ = fs::remove_dir_all(&unfinished);
    make_folder(&unfinished)?;
    let archived = archive.display().to_string();
    git(here, &["archive", "--output", &archived, commit])?;
    let into = unfinished.display().to_string();
    output("tar", here, &["-xf", &archived, "-C", &into])?;
    fs::remove_file(&archive)
        .and_then(|()| fs::rename(&unfinished, tree))
        .map_err(|error| format!("{}: {error}", tree.display()))
}

/// Lays what measures over another tree, and returns all of it. What is there already is left as it is.
fn lay_over(here: &Path, tree: &Path) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    let listed = [
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
    ];
    for file in git(here, &[&listed[..], &LAID_OVER].concat())?.lines() {
        let text = fs::read(here.join(file)).map_err(|error| format!("{file}: {error}"))?;
        write(&tree.join(file), &text)?;
        all.extend(text);
    }
    Ok(all)
}

/// Makes what measures a member of another tree's workspace.
fn make_a_member(tree: &Path, commit: &str) -> Result<(), String> {
    let manifest = tree.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|error| format!("Cargo.toml: {error}"))?;
    let text = with_member(&text);
    let text = text.ok_or_else(|| format!("{commit}: its Cargo.toml has no members"))?;
    write(&manifest, text.as_bytes())
}

fn with_member(manifest: &str) -> Option<String> {
    let (member, members) = (format!("\"{MEASURES}\""), "members = [");
    if manifest.contains(&member) {
        return Some(manifest.to_owned());
    }
    manifest.find(members)?;
    Some(manifest.replacen(members, &format!("{members}{member}, "), 1))
}

/// Builds a tree's program. Both are built in one folder, where they share what comes from elsewhere. Cargo gives the
/// packages of both the same names there. So it has to forget those of the other tree first; and the same source becomes
/// the same code: with names of their own two builds of one commit are some per cent apart.
fn build(
    name: String,
    source: PathBuf,
    folder: PathBuf,
    all: &Path,
    stores: &[&Store],
) -> Result<Built, String> {
    let manifest = format!("--manifest-path={}", source.join("Cargo.toml").display());
    let target = all.join("build");
    let into = format!("--target-dir={}", target.display());
    let features = features(stores);
    let package = "--package=lockkeeper-against";
    let packages = packages(&source)?;
    let forget = ["clean", "--quiet", "--release", &manifest, &into];
    let forget = forget
        .into_iter()
        .chain(packages.iter().map(String::as_str));
    cargo_command(&forget.collect::<Vec<_>>(), &[])?;
    cargo_command(
        &["build", "--release", &manifest, &into, package, &features],
        &PROFILE.map(|(name, value)| (name, value.to_owned())),
    )?;
    make_folder(&folder)?;
    let program = folder.join("against");
    let built = target.join("release/against");
    copy(&built, &program)?;
    Ok(Built {
        name,
        source,
        folder,
        program,
    })
}

/// The packages of a tree, as cargo is told them.
fn packages(tree: &Path) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
    }
    let metadata = ["metadata", "--no-deps", "--format-version=1"];
    let metadata = output("cargo", tree, &metadata)?;
    let metadata: Metadata =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata.packages.into_iter();
    Ok(packages
        .map(|package| format!("--package={}", package.name))
        .collect())
}

fn make_folder(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Writes a file, unless it says the same already.
fn write(file: &Path, text: &[u8]) -> Result<(), String> {
    if fs::read(file).is_ok_and(|there| there == text) {
        return Ok(());
    }
    file.parent().map_or(Ok(()), make_folder)?;
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

fn git(here: &Path, args: &[&str]) -> Result<String, String> {
    output("git", here, args)
}

/// What a program prints, if it does what it should.
fn output(program: &str, here: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(here)
        .output()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program} {}: {}", args.join(" "), said.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_measures_becomes_a_member() {
        let manifest = "[workspace]\nmembers = [\"lockcore\"]\n";
        let expected = "[workspace]\nmembers = [\"benches/against\", \"lockcore\"]\n";
        assert_eq!(with_member(manifest).unwrap(), expected);
        assert_eq!(with_member(expected).unwrap(), expected);
        assert!(with_member("[package]").is_none());
    }

    #[test]
    fn cargo_forgets_every_package_of_ours() {
        let packages = packages(root()).unwrap();
        for package in [
            "lockcore",
            "lockcore-redis",
            "lockkeeper",
            "lockkeeper-against",
        ] {
            assert!(
                packages.contains(&format!("--package={package}")),
                "{packages:?}"
            );
        }
    }
}
