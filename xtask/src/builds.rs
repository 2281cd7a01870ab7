//! One build of all test programs, which are then run without cargo.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// Test programs, by their package's directory and their target.
#[derive(Debug, Default)]
pub(crate) struct Programs(BTreeMap<(String, String), PathBuf>);

/// Of the lines that cargo writes as JSON, those about what it has built.
#[derive(Deserialize)]
struct Line {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Programs {
    /// Builds what `cargo test` builds with these arguments.
    pub(crate) fn build(args: &[&str], environment: &[(&str, String)]) -> Result<Self, String> {
        let mut command = cargo(&[
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ]);
        println!("+ cargo test --no-run {}", args.join(" "));
        let mut child = command
            .args(args)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cargo cannot be run: {error}"))?;
        let mut programs = Self::default();
        let lines = child.stdout.take().map(BufReader::new);
        for line in lines.into_iter().flat_map(BufRead::lines) {
            let line = line.map_err(|error| format!("cargo's messages: {error}"))?;
            programs.note(&line)?;
        }
        match child.wait() {
            Ok(status) if status.success() => Ok(programs),
            Ok(status) => Err(format!("cargo test --no-run: {status}")),
            Err(error) => Err(format!("cargo test --no-run: {error}")),
        }
    }

    fn note(&mut self, line: &str) -> Result<(), String> {
        let line: Line =
            serde_json::from_str(line).map_err(|error| format!("{error}: cargo said {line}"))?;
        let (Some(manifest), Some(target), Some(profile), Some(executable)) = (
            line.manifest_path,
            line.target,
            line.profile,
            line.executable,
        ) else {
            return Ok(());
        };
        if profile.test {
            let key = (directory(&manifest), target.name());
            self.0.insert(key, executable);
        }
        Ok(())
    }

    /// The program of a package and a target.
    pub(crate) fn find(&self, package: &str, target: &str) -> Option<&Path> {
        let key = (package.to_owned(), target.to_owned());
        self.0.get(&key).map(PathBuf::as_path)
    }

    /// All of them, by package and target.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.0.keys();
        names.map(|(package, target)| (package.as_str(), target.as_str()))
    }
}

impl Target {
    fn name(&self) -> String {
        match self.kind.first().map(String::as_str) {
            Some("test") => self.name.clone(),
            Some("bin") => format!("bin {}", self.name),
            Some("example") => format!("example {}", self.name),
            _ => "lib".to_owned(),
        }
    }
}

/// Where this workspace is.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The directory of a manifest, seen from the root of this workspace.
fn directory(manifest: &Path) -> String {
    let directory = manifest.parent().unwrap_or(manifest);
    let directory = directory.strip_prefix(root()).unwrap_or(directory);
    match directory.to_str() {
        Some("") | None => ".".to_owned(),
        Some(directory) => directory.to_owned(),
    }
}

/// Cargo, without what the cargo that runs this program says about it: build scripts that see it run again.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command.args(args);
    command
}

/// Runs cargo, in an environment with these besides.
pub(crate) fn cargo_command(args: &[&str], environment: &[(&str, String)]) -> Result<(), String> {
    println!("+ cargo {}", args.join(" "));
    let status = cargo(args)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .status()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {} failed: {status}", args.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_the_messages() {
        let mut programs = Programs::default();
        let root = root().display();
        for (package, kind, name, test) in [
            ("/backend-es", "test", "conformance", true),
            ("/backend-es", "lib", "lockcore_es", true),
            ("", "lib", "lockkeeper", true),
            ("/cli", "bin", "lockkeeper", false),
            ("/cli", "bin", "lockkeeper", true),
        ] {
            let line = format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"{root}{package}/Cargo.toml",
                "target":{{"name":"{name}","kind":["{kind}"]}},"profile":{{"test":{test}}},
                "executable":"/target{package}/{name}-{test}","fresh":true}}"#
            );
            programs.note(&line).unwrap();
        }
        programs
            .note(r#"{"reason":"build-finished","success":true}"#)
            .unwrap();
        assert!(programs.note("no JSON").is_err());
        let all: Vec<_> = programs.all().collect();
        let expected = [
            (".", "lib"),
            ("backend-es", "conformance"),
            ("backend-es", "lib"),
            ("cli", "bin lockkeeper"),
        ];
        assert_eq!(all, expected);
        let program = programs.find("cli", "bin lockkeeper").unwrap();
        assert_eq!(program, Path::new("/target/cli/lockkeeper-true"));
        assert!(programs.find("cli", "lib").is_none());
    }
}
