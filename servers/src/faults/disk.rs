//! [`Disk`]: a disk of a server's own, which can be full, and can lose its power.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::preload::compiled;
use super::victim::signal;
use crate::run;

/// How long a file system is busy at most after its server has gone.
const BUSY: Duration = Duration::from_secs(10);
const BALLOON: &str = "balloon";

/// A file system in a file, mounted at a folder. Dropping it removes both.
#[derive(Debug)]
pub(super) struct Disk {
    at: PathBuf,
    image: PathBuf,
    power: PathBuf,
    folder: TempDir,
}

impl Disk {
    /// A file system of so many MiB at this folder, with what was in the folder. The folder's owner stays. Nobody has a
    /// file open there.
    pub(super) fn at(at: &Path, megabytes: u64) -> Result<Self, String> {
        let folder =
            tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let image = folder.path().join("image");
        let file = File::create(&image).map_err(|error| error.to_string())?;
        let sized = file.set_len(megabytes << 20);
        sized.map_err(|error| format!("{}: {error}", image.display()))?;
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0", "-O", "^metadata_csum"])
            .arg(&image))?;
        let power = compiled(
            "power",
            &[],
            include_str!("../../sources/faults/power.c"),
            folder.path(),
        )?;
        let disk = Self {
            at: at.to_owned(),
            image,
            power,
            folder,
        };
        let before = disk.folder.path().join("before");
        run(Command::new("cp").arg("-a").arg(at).arg(&before))?;
        disk.mount()?;
        run(Command::new("cp").arg("-a").arg(before.join(".")).arg(at))?;
        fs::remove_dir_all(&before).map_err(|error| format!("{}: {error}", before.display()))?;
        run(&mut Command::new("sync"))?;
        Ok(disk)
    }

    fn mount(&self) -> Result<(), String> {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&self.image)
            .arg(&self.at))
    }

    /// Nothing more fits on it.
    pub(super) fn fill(&self) -> Result<(), String> {
        let file = File::create(self.at.join(BALLOON));
        let mut file = file.map_err(|error| format!("{}: {error}", self.at.display()))?;
        for size in [1 << 20, 4 << 10] {
            let block = vec![0xff; size];
            loop {
                match file.write_all(&block).and_then(|()| file.sync_data()) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                    Err(error) => return Err(format!("{}: {error}", self.at.display())),
                }
            }
        }
        Ok(())
    }

    /// There is room again.
    pub(super) fn empty(&self) -> Result<(), String> {
        let removed = fs::remove_file(self.at.join(BALLOON));
        removed.map_err(|error| format!("{}: {error}", self.at.display()))
    }

    /// Cuts the power of these processes: they stop, and nothing is written from now on.
    ///
    /// They stop first. An `fsync` that is under way when the file system shuts down may report success for what is lost
    /// (on Linux 6.18: `fdatasync`, in 8 of 500 cuts). With real power nobody is left to be told so.
    pub(super) fn cut_power(&self, servers: &[u32]) -> Result<(), String> {
        signal(servers, Signal::STOP);
        run(Command::new(&self.power).arg(&self.at))
    }

    /// Has power again. Whoever had a file open has gone.
    pub(super) fn restore_power(&self) -> Result<(), String> {
        let since = Instant::now();
        while let Err(error) = run(Command::new("umount").arg(&self.at)) {
            if since.elapsed() > BUSY {
                return Err(error);
            }
            sleep(Duration::from_millis(50));
        }
        self.mount()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A server that is still about to end keeps it until then.
        let _ = run(Command::new("umount").arg("-l").arg(&self.at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "it mounts a file system, which takes root"]
    fn a_disk_is_full_and_loses_what_was_not_synced() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        fs::write(at.join("before"), "there").unwrap();
        let disk = Disk::at(at, 32).unwrap();
        assert_eq!(fs::read(at.join("before")).unwrap(), b"there");
        disk.fill().unwrap();
        let full = fs::write(at.join("more"), [1; 8192]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        disk.empty().unwrap();
        let mut synced = File::create(at.join("synced")).unwrap();
        synced.write_all(b"kept").unwrap();
        synced.sync_all().unwrap();
        fs::write(at.join("not synced"), "lost").unwrap();
        let mut server = Command::new("sleep").arg("60").spawn().unwrap();
        disk.cut_power(&[server.id()]).unwrap();
        let about = fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(about.contains(") T "), "it has not stopped: {about}");
        synced
            .write_all(b"more")
            .and_then(|()| synced.sync_all())
            .unwrap_err();
        drop(synced);
        disk.restore_power().unwrap();
        assert_eq!(fs::read(at.join("synced")).unwrap(), b"kept");
        let lost = fs::read(at.join("not synced")).unwrap_or_default();
        assert_ne!(lost, b"lost");
    }
}
