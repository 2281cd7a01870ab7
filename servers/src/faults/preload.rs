//! [`Preload`]: a library before a program, which sets its clock and slows its disk.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::run;

/// The library, and the file that tells it what to do while the program runs.
#[derive(Debug)]
pub(super) struct Preload {
    library: PathBuf,
    path: PathBuf,
    file: File,
    _folder: TempDir,
}

impl Preload {
    pub(super) fn new() -> Result<Self, String> {
        let folder =
            tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        // A server may run as another user.
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), open).map_err(|error| error.to_string())?;
        let source = include_str!("../../sources/faults/preload.c");
        let library = compiled("preload.so", &["-shared", "-fPIC"], source, folder.path())?;
        let path = folder.path().join("faults");
        let file = File::create(&path).and_then(|file| file.set_len(16).map(|()| file));
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self {
            library,
            path,
            file,
            _folder: folder,
        })
    }

    /// One for a kind of fault that takes it.
    pub(super) fn for_kind(kind: &str) -> Result<Option<Self>, String> {
        let takes = kind.starts_with("clock-") || kind == "disk-slow";
        takes.then(Self::new).transpose()
    }

    /// The environment of a program that is under it.
    fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAULTS", self.path.display().to_string()),
        ]
    }

    /// The wall clock is that much ahead of the system's, or behind it.
    pub(super) fn set_clock(&self, nanos: i64) -> Result<(), String> {
        self.write(0, nanos)
    }

    /// Each sync takes so much longer.
    pub(super) fn slow_syncs(&self, by: Duration) -> Result<(), String> {
        self.write(8, i64::try_from(by.as_nanos()).unwrap_or(i64::MAX))
    }

    fn write(&self, at: u64, value: i64) -> Result<(), String> {
        let written = self.file.write_all_at(&value.to_ne_bytes(), at);
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// The environment of a program that is under a library, if there is one.
pub(super) fn environment(preload: Option<&Preload>) -> Vec<(&'static str, String)> {
    preload.map_or(Vec::new(), |preload| preload.environment().into())
}

/// Compiles a file of C into a folder.
pub(super) fn compiled(
    name: &str,
    options: &[&str],
    source: &str,
    folder: &Path,
) -> Result<PathBuf, String> {
    let text = folder.join(name).with_extension("c");
    fs::write(&text, source).map_err(|error| format!("{}: {error}", text.display()))?;
    let program = folder.join(name);
    run(Command::new("cc")
        .args(["-O2", "-Wall", "-Werror"])
        .args(options)
        .arg("-o")
        .args([&program, &text]))?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(preload: &Preload, script: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", script]).envs(preload.environment());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn a_program_sees_another_time_and_waits_for_its_disk() {
        let preload = Preload::new().unwrap();
        let year = "date -u +%Y";
        let now: i32 = says(&preload, year).trim().parse().unwrap();
        preload.set_clock(-10 * 366 * 86_400_000_000_000).unwrap();
        let then: i32 = says(&preload, year).trim().parse().unwrap();
        assert!((9..=11).contains(&(now - then)), "{now} {then}");
        let folder = tempfile::tempdir().unwrap();
        let sync = format!(
            "dd if=/dev/zero of={}/file count=1 conv=fsync",
            folder.path().display()
        );
        preload.slow_syncs(Duration::from_millis(300)).unwrap();
        let begun = std::time::Instant::now();
        says(&preload, &sync);
        assert!(begun.elapsed() >= Duration::from_millis(300));
    }
}
