//! SQLite: a file on a disk of its own, which the programs of a run open.

use lockcore_trial::faults::ServerFault;
use tempfile::TempDir;

use super::disk::Disk;
use super::victim::{Victim, unknown};

const DISK_MIB: u64 = 128;

/// The file. Its disk goes before its folder.
pub(super) struct Sqlite {
    disk: Disk,
    folder: TempDir,
}

impl Sqlite {
    pub(super) fn start() -> Result<Self, String> {
        let folder = crate::folder()?;
        Ok(Self {
            disk: Disk::at(folder.path(), DISK_MIB)?,
            folder,
        })
    }
}

impl Victim for Sqlite {
    fn url(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("locks.db").display())
    }

    fn begin(&mut self, fault: ServerFault) -> Result<(), String> {
        match fault {
            ServerFault::DiskFull => self.disk.fill(),
            _ => unknown(fault),
        }
    }

    fn end(&mut self, fault: ServerFault) -> Result<(), String> {
        match fault {
            ServerFault::DiskFull => self.disk.empty(),
            _ => unknown(fault),
        }
    }
}
