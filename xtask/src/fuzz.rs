//! `cargo xtask fuzz`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What cargo-fuzz needs and the build does not.
const TOOLS: [(&[&str], &str); 2] = [
    (&["+nightly", "version"], "rustup toolchain install nightly"),
    (
        &["+nightly", "fuzz", "--version"],
        "cargo install cargo-fuzz",
    ),
];

/// Runs every fuzz target, or one, for so many seconds each, from its seeds and what was found before.
pub(crate) fn run(only: Option<&str>, seconds: u32) -> Result<(), String> {
    if let Some(missing) = missing() {
        return Err(missing);
    }
    let root = root();
    let chosen: Vec<String> = targets()?
        .into_iter()
        .filter(|target| only.is_none_or(|only| only == target))
        .collect();
    if chosen.is_empty() {
        let known = targets()?.join(", ");
        return Err(format!("no fuzz target of that name; known are {known}"));
    }
    for target in &chosen {
        let (corpus, seeds) = (
            format!("fuzz/corpus/{target}"),
            format!("fuzz/seeds/{target}"),
        );
        fs::create_dir_all(root.join(&corpus)).map_err(|error| format!("{corpus}: {error}"))?;
        let time = format!("-max_total_time={seconds}");
        let args = [
            "+nightly", "fuzz", "run", target, &corpus, &seeds, "--", &time,
        ];
        println!("+ cargo {}", args.join(" "));
        let status = cargo(&args)
            .current_dir(&root)
            .status()
            .map_err(|error| format!("cargo cannot be run: {error}"))?;
        if !status.success() {
            return Err(format!(
                "{target} found something, see fuzz/artifacts/{target}: {status}"
            ));
        }
    }
    Ok(())
}

/// The cargo of the path, which takes a toolchain; the one that runs this does not.
fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(args).env_remove("RUSTUP_TOOLCHAIN");
    command
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// What is missing to fuzz here, and how it is installed.
pub(crate) fn missing() -> Option<String> {
    let runs = |args: &[&str]| {
        let mut cargo = cargo(args);
        let status = cargo.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let (args, install) = TOOLS.into_iter().find(|(args, _)| !runs(args))?;
    Some(format!(
        "cargo {} does not run: install it with: {install}",
        args.join(" ")
    ))
}

/// The names of the targets, in order.
pub(crate) fn targets() -> Result<Vec<String>, String> {
    let directory = root().join("fuzz/fuzz_targets");
    let unreadable = |error| format!("{}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_declared_and_has_a_property_and_seeds() {
        let root = root();
        let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert!(targets.contains(&"keys".to_owned()), "{targets:?}");
        for target in targets {
            let declared = format!("[[bin]]\nname = \"{target}\"\n");
            assert!(manifest.contains(&declared), "{target}");
            let property = root.join(format!("fuzz/properties/{target}.rs"));
            assert!(property.is_file(), "{target}");
            let mut seeds = fs::read_dir(root.join("fuzz/seeds").join(&target)).unwrap();
            assert!(seeds.next().is_some(), "{target}");
        }
    }
}
