//! Debian's packages: installed where something is missing and that is allowed.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use super::{quiet, run};

pub(super) fn install(package: &str) -> Result<(), String> {
    println!("+ apt-get install {package}");
    apt_get(&["install", "-y", "-qq", "--no-install-recommends", package])
}

/// Unpacks a package into a folder; nothing of it is set up, and nothing of it starts.
pub(super) fn unpack(package: &str, folder: &Path) -> Result<(), String> {
    println!("+ apt-get download {package}");
    update();
    let files = tempfile::tempdir_in(folder).map_err(|error| format!("no folder: {error}"))?;
    run(Command::new("apt-get")
        .args(["download", "-qq", package])
        .current_dir(files.path()))?;
    let found = std::fs::read_dir(files.path()).map_err(|error| error.to_string())?;
    for file in found.flatten() {
        run(Command::new("dpkg-deb")
            .arg("--extract")
            .arg(file.path())
            .arg(folder))?;
    }
    Ok(())
}

/// A new machine has no list of packages yet; without the right to fetch one, what it has must do.
pub(super) fn update() {
    let _ = apt_get(&["update", "-qq"]);
}

fn apt_get(args: &[&str]) -> Result<(), String> {
    let root = quiet("id", &["-u"]).as_deref() == Some("0");
    let mut command = if root {
        Command::new("apt-get")
    } else if quiet("sudo", &["-n", "true"]).is_some() {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "apt-get"]);
        sudo
    } else {
        return Err("packages are installed by root only".to_owned());
    };
    // One of all programs' at a time: dpkg refuses the second. Where there is no such file, it is left to dpkg.
    let turn = File::create(std::env::temp_dir().join("lockkeeper-apt.lock"));
    let _turn = turn.and_then(|file| file.lock().map(|()| file));
    run(command.args(args))
}
