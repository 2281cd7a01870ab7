//! Elasticsearch 9, from the archive that its makers test with: the real server, with security, but without most of its
//! modules. One of ours stands in for those that the tests need.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::{quiet, run};

/// The user who owns nothing, by number.
const NOBODY: &str = "65534";
/// The oldest Java that the server runs on.
const RELEASE: &str = "21";

/// Whether the files of a folder are those whose digest is written down: the SHA-256 of the names and digests of all.
pub(super) fn check(folder: &Path, written_down: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let found = fs::read_dir(folder).map_err(failed)?;
    let found: Result<Vec<PathBuf>, _> = found.map(|entry| entry.map(|it| it.path())).collect();
    let mut found = found.map_err(failed)?;
    found.sort();
    let mut all = Sha256::new();
    for path in &found {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let digest = Sha256::digest(fs::read(path).map_err(failed)?);
        all.update(format!("{name} {digest:x}\n"));
    }
    let digest = format!("{:x}", all.finalize());
    let expected = fs::read_to_string(written_down);
    let expected = expected.map_err(|error| format!("{}: {error}", written_down.display()))?;
    match expected.trim() == digest {
        true => Ok(()),
        false => Err(format!(
            "{}: other files than were written down in {}, or damaged ones: their digest is {digest}; where the versions \
             were changed on purpose, write that down",
            folder.display(),
            written_down.display()
        )),
    }
}

/// Adds the module to the server in `home`. Its language and its delete by query are OpenSearch's: `Relocate.java` renames
/// what they call in the server, and fails if anything of that is not there.
pub(super) fn add_module(
    sources: &Path,
    lib: &Path,
    home: &Path,
    classes: &Path,
    jdk: &Path,
) -> Result<(), String> {
    let java = sources.join("java");
    let relocated = classes.with_file_name("relocated.jar");
    let server = home.join("lib");
    let ours = |folder: &str| -> Result<Vec<PathBuf>, String> {
        let files = files(&java.join(folder))?;
        Ok(files.into_iter().map(|(path, _)| path).collect())
    };
    let javac = || {
        let mut javac = Command::new(jdk.join("bin/javac"));
        javac.args(["-nowarn", "--release", RELEASE, "-d"]);
        javac.arg(classes);
        javac
    };
    run(javac().args(ours("org")?))?;

    let tools = jars(lib, &["asm", "antlr4-runtime"])?;
    let taken = jars(
        lib,
        &[
            "lang-painless",
            "opensearch-scripting-painless-spi",
            "reindex-client",
        ],
    )?;
    let there = tools.iter().cloned();
    let there = there.chain([server.clone(), classes.to_owned()]);
    run(Command::new(jdk.join("bin/java"))
        .arg("-cp")
        .arg(joined(tools.iter().cloned()))
        .arg(sources.join("Relocate.java"))
        .arg(sources.join("opensearch.rules"))
        .arg(&relocated)
        .arg(joined(there))
        .args(taken))?;
    run(javac()
        .arg("-cp")
        .arg(joined([server.join("*"), relocated.clone()].into_iter()))
        .args(ours("standin")?))?;
    run(Command::new("cp")
        .arg("-r")
        .arg(sources.join("resources/."))
        .arg(classes))?;

    // Among the modules: a plugin may not make class loaders.
    let module = home.join("modules/stand-in");
    fs::create_dir_all(&module).map_err(|error| format!("{}: {error}", module.display()))?;
    run(Command::new(jdk.join("bin/jar"))
        .arg("cf")
        .arg(module.join("modules.jar"))
        .arg("-C")
        .arg(classes)
        .arg("."))?;
    let about = ["plugin-descriptor.properties", "entitlement-policy.yaml"];
    let about = about.map(|name| sources.join(name));
    run(Command::new("cp")
        .args(about.iter().chain(&tools).chain([&relocated]))
        .arg(module))
}

/// What starts the server in `home` on these ports, with these settings besides, as a user who may not do everything on
/// this machine; all is in `folder`. For [`Process::launched`](super::process::Process::launched).
pub(super) fn command(
    folder: &Path,
    home: &Path,
    [http, transport]: [u16; 2],
    java: &[String],
    settings: &[(String, String)],
) -> Result<Command, String> {
    let failed = |path: &Path, error| format!("{}: {error}", path.display());
    let temporary = folder.join("tmp");
    fs::create_dir(&temporary).map_err(|error| failed(&temporary, error))?;
    let options = home.join("config/jvm.options.d/ours.options");
    fs::write(&options, java.join("\n")).map_err(|error| failed(&options, error))?;
    let mut command = Command::new("bash");
    if quiet("id", &["-u"]).as_deref() == Some("0") {
        run(Command::new("chown").args(["-R", NOBODY]).arg(folder))?;
        command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
        command.arg("bash");
    }
    command
        .arg(home.join("bin/elasticsearch"))
        .arg(format!("-Ehttp.port={http}"))
        .arg(format!("-Etransport.port={transport}"))
        .arg(format!("-Epath.repo={}", home.join("snapshots").display()));
    command.args(
        settings
            .iter()
            .map(|(name, value)| format!("-E{name}={value}")),
    );
    command.current_dir(home).env("ES_TMPDIR", temporary);
    Ok(command)
}

/// Every file below a folder, in order, with what is in it.
pub(super) fn files(folder: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let failed = |path: &Path, error| format!("{}: {error}", path.display());
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, error))?;
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            let text = fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
            found.push((path, text));
        }
    }
    Ok(found)
}

/// The jars of these names, of any version; there is at least one of each.
fn jars(lib: &Path, names: &[&str]) -> Result<Vec<PathBuf>, String> {
    let found = fs::read_dir(lib).map_err(|error| format!("{}: {error}", lib.display()))?;
    let mut found: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
    found.sort();
    let is_of = |path: &Path, name: &str| {
        let file = path.file_name().and_then(|file| file.to_str());
        file.is_some_and(|file| file.starts_with(name) && file.ends_with(".jar"))
    };
    if let Some(name) = names
        .iter()
        .find(|name| !found.iter().any(|path| is_of(path, name)))
    {
        return Err(format!("there is no {name} in {}", lib.display()));
    }
    found.retain(|path| names.iter().any(|name| is_of(path, name)));
    Ok(found)
}

/// A class path.
fn joined(paths: impl Iterator<Item = PathBuf>) -> OsString {
    let mut all = OsString::new();
    for path in paths {
        if !all.is_empty() {
            all.push(":");
        }
        all.push(path);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_what_was_written_down() {
        let folder = tempfile::tempdir().unwrap();
        let (lib, written_down) = (folder.path().join("lib"), folder.path().join("digest"));
        fs::create_dir(&lib).unwrap();
        fs::write(lib.join("a"), "1").unwrap();
        fs::write(lib.join("b"), "2").unwrap();
        fs::write(&written_down, "0\n").unwrap();
        let error = check(&lib, &written_down).unwrap_err();
        let digest = error.split("digest is ").nth(1).unwrap();
        fs::write(&written_down, &digest[..64]).unwrap();
        check(&lib, &written_down).unwrap();
        fs::write(lib.join("b"), "3").unwrap();
        check(&lib, &written_down).unwrap_err();
        fs::remove_file(lib.join("b")).unwrap();
        check(&lib, &written_down).unwrap_err();
        fs::write(lib.join("c"), "2").unwrap();
        check(&lib, &written_down).unwrap_err();
    }
}
