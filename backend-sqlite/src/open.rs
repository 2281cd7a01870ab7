//! Opening the file: whether it is one of ours is found out before anything is written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lockcore::ErrorKind;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{Failure, Outcome};
use crate::file::Deadline;
use crate::record::{APPLICATION, VERSION};
use crate::sql;

/// All statements stay prepared.
const STATEMENTS_KEPT: usize = 64;
/// The log is written into the database when it has so many pages (2 MiB), and cut back to that if a large transaction
/// made it longer. Whoever commits then waits until all of it is on the disk.
const LOG_PAGES: i64 = 500;
const LOG_KEPT_BYTES: i64 = LOG_PAGES * 4_096;

/// A file, whatever it is called: its device or volume, and its number there.
type Inode = (u64, u64);

/// Which files are open under the path.
pub(crate) struct Identity {
    database: Inode,
    /// With their paths, which are beside what a symbolic link leads to.
    companions: Vec<(PathBuf, Option<Inode>)>,
}

impl Identity {
    /// Of a database that was opened after it had this number.
    fn new(path: &Path, database: Inode) -> Self {
        let companions = companions(path)
            .into_iter()
            .map(|companion| (companion.clone(), inode(&companion)))
            .collect();
        Self {
            database,
            companions,
        }
    }

    /// How long its log is.
    pub(crate) fn log_bytes(&self) -> u64 {
        let [(log, _), ..] = &self.companions[..] else {
            return 0;
        };
        fs::metadata(log).map_or(0, |meta| meta.len())
    }

    /// Whether the path still names this database, with this log: whoever knew of another database may have taken the log
    /// for that one's, and removed it. While the file is open SQLite removes and replaces neither.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let stands =
            |(path, then): &(PathBuf, Option<Inode>)| then.is_none() || inode(path) == *then;
        self.names(path) && self.companions.iter().all(stands)
    }

    /// Whether the path still names this database.
    fn names(&self, path: &Path) -> bool {
        inode(path) == Some(self.database)
    }
}

#[cfg(unix)]
fn inode(path: &Path) -> Option<Inode> {
    use std::os::unix::fs::MetadataExt;

    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(windows)]
fn inode(path: &Path) -> Option<Inode> {
    let file = winapi_util::Handle::from_path_any(path).ok()?;
    let about = winapi_util::file::information(&file).ok()?;
    Some((about.volume_serial_number(), about.file_index()))
}

/// The log and its index, which SQLite keeps beside the database.
fn companions(path: &Path) -> [PathBuf; 2] {
    ["-wal", "-shm"].map(|suffix| beside(path, suffix))
}

/// What the path leads to, also if that is gone and links are left.
fn led_to(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // As many as systems follow.
    for _ in 0..40 {
        match (fs::canonicalize(&path), fs::read_link(&path)) {
            (Ok(found), _) => return found,
            (Err(_), Ok(next)) => path = path.parent().unwrap_or(Path::new("")).join(next),
            (Err(_), Err(_)) => break,
        }
    }
    path
}

/// A file beside the one that the path leads to.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = led_to(path).into_os_string();
    name.push(suffix);
    name.into()
}

/// Opens the file, making it where there is none; `left` is what this process had open under the path before.
pub(crate) fn open(
    path: &Path,
    left: Option<&Identity>,
    deadline: &Deadline,
) -> Outcome<(Connection, Identity)> {
    let directory = check_directory(path)?;
    // One process at a time: nobody sees a file half made, or removes a log that another has just begun.
    let _turn = take_turn(path, &directory, deadline)?;
    make_file(path, left)?;
    // Who replaces the file takes no turn. What is opened from here on is this one, or the path names another by then.
    let database = inode(path).ok_or_else(|| {
        Failure::Found(
            ErrorKind::Unavailable,
            "the file was removed while it was opened".into(),
        )
    })?;
    let mut conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    let waiting = deadline.clone();
    conn.busy_handler(Some(move |_| waiting.pause()))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    // Else a statement with a bound limit or range is planned anew for every value, which takes longer than running it.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let new = is_new(&conn, path)?;
    if conn.is_readonly("main")? {
        return Err(Failure::config(
            "the file may only be read: give the right to write it, or use another file",
        ));
    }
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Failure::config(
            "the file's system has no shared memory for a write-ahead log: use a local disk",
        ));
    }
    conn.pragma_update(None, "synchronous", "FULL")?;
    // Where the system's sync does not wait for the disk; elsewhere they change nothing.
    conn.pragma_update(None, "fullfsync", true)?;
    conn.pragma_update(None, "checkpoint_fullfsync", true)?;
    conn.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    conn.pragma_update(None, "journal_size_limit", LOG_KEPT_BYTES)?;
    if new {
        let transaction = conn.transaction()?;
        transaction.execute_batch(sql::SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
    }
    Ok((conn, Identity::new(path, database)))
}

/// The directory of the file, if a file of locks can be in it.
fn check_directory(path: &Path) -> Outcome<PathBuf> {
    if path.is_dir() {
        return Err(Failure::config(
            "the path is a directory: name a file in it",
        ));
    }
    let at = led_to(path);
    let directory = at.parent().unwrap_or(Path::new("/")).to_owned();
    match fs::metadata(&directory) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => {
            return Err(Failure::config(
                "what should be the file's directory is a file: mend the path",
            ));
        }
        Err(error) => {
            return Err(Failure::File(
                "the file's directory is not there or may not be entered: make it first".into(),
                error,
            ));
        }
    }
    if let Some(name) = network(&directory) {
        return Err(Failure::config(format!(
            "the file is on a network file system ({name}), where its locks do not hold: use a local disk"
        )));
    }
    Ok(directory)
}

/// Held until it is dropped; other processes and other backends of this process wait.
fn take_turn(path: &Path, directory: &Path, deadline: &Deadline) -> Outcome<fs::File> {
    let turn = turn(path, directory)
        .map_err(|error| Failure::File("the file's directory may not be read".into(), error))?;
    loop {
        match turn.try_lock() {
            Ok(()) => return Ok(turn),
            Err(fs::TryLockError::WouldBlock) if deadline.pause() => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(Failure::Found(
                    ErrorKind::Unavailable,
                    "other processes kept the file's directory locked for too long".into(),
                ));
            }
            Err(fs::TryLockError::Error(error)) => {
                return Err(Failure::File(
                    "the file's directory cannot be locked: use a local disk".into(),
                    error,
                ));
            }
        }
    }
}

/// What is locked while the file is opened: its directory.
#[cfg(unix)]
fn turn(_: &Path, directory: &Path) -> io::Result<fs::File> {
    fs::File::open(directory)
}

/// What is locked while the file is opened: an empty file beside it, which stays. Windows locks no directories.
#[cfg(windows)]
fn turn(path: &Path, _: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(false);
    options.open(beside(path, "-turn"))
}

/// Makes the file if there is none, for its user alone; the log and its index take its mode over. A log that belongs
/// to a database that is gone is removed, because SQLite would take it for the new one's.
///
/// The file is never opened here once it exists: closing it would drop the locks of another connection of this process.
fn make_file(path: &Path, left: Option<&Identity>) -> Outcome<()> {
    let failed = |error| Failure::File("the file cannot be made".into(), error);
    match fs::metadata(path) {
        Ok(meta) => {
            if meta.len() == 0 {
                for_its_user(path).map_err(failed)?;
            }
            for (companion, then) in left.iter().flat_map(|left| &left.companions) {
                let stale = left.is_some_and(|left| !left.names(path));
                if stale && then.is_some() && inode(companion) == *then {
                    remove(companion)?;
                }
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            for companion in companions(path) {
                remove(&companion)?;
            }
            // A new file is none that a link leads to.
            new_file(&led_to(path)).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(unix)]
fn for_its_user(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;

    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}

#[cfg(unix)]
fn new_file(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;

    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map(drop)
}

/// It has the rights that its directory gives.
#[cfg(windows)]
fn for_its_user(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(windows)]
fn new_file(path: &Path) -> io::Result<()> {
    fs::File::create_new(path).map(drop)
}

fn remove(stale: &Path) -> Outcome<()> {
    remove_file(stale, "the log of a file that is gone cannot be removed")
}

fn remove_file(path: &Path, refusal: &'static str) -> Outcome<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::File(refusal.into(), error))
        }
        _ => Ok(()),
    }
}

/// Removes the file if it is one of ours, then its log and the index of that: what is left of it if this is interrupted
/// is removed by doing it again, or by who makes the file anew.
pub(crate) fn remove_all(path: &Path, deadline: &Deadline) -> Outcome<()> {
    let directory = check_directory(path)?;
    let _turn = take_turn(path, &directory, deadline)?;
    let companions = companions(path);
    // What a link leads to, and the link last: as long as it stands, the rest is found by doing this again.
    let file = led_to(path);
    if file.exists() {
        let mut conn = Connection::open_with_flags(
            &file,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        let waiting = deadline.clone();
        conn.busy_handler(Some(move |_| waiting.pause()))?;
        is_new(&conn, path)?;
        // Windows removes no file that is open.
        let _open = (!cfg!(windows)).then_some(conn);
        remove_file(&file, "the file cannot be removed")?;
    }
    companions
        .iter()
        .try_for_each(|companion| remove(companion))?;
    match path.is_symlink() {
        true => remove_file(path, "the link to the file cannot be removed"),
        false => Ok(()),
    }
}

/// Whether the file is empty; an error if it is neither empty nor ours.
fn is_new(conn: &Connection, path: &Path) -> Outcome<bool> {
    let file = path.display();
    let number = |pragma| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let mut tables = conn.prepare("SELECT EXISTS (SELECT 1 FROM sqlite_schema)")?;
    let empty = !tables.query_row([], |row| row.get::<_, bool>(0))?;
    match (application, version) {
        (APPLICATION, VERSION) => Ok(false),
        (0, 0) if empty => Ok(true),
        (APPLICATION, newer) if newer > VERSION => Err(Failure::config(format!(
            "the file {file} has version {newer} of the stored shape and this program knows {VERSION}: update the program"
        ))),
        (APPLICATION, other) => Err(Failure::config(format!(
            "the file {file} has version {other} of the stored shape, whose programs have smaller tokens than this one, which \
             knows {VERSION}: use another file, or remove this one when nobody uses it any more"
        ))),
        _ => Err(Failure::config(format!(
            "the file {file} is a database of something else: name another file"
        ))),
    }
}

/// The network file system that the directory is on, as far as its type tells. FUSE does not tell.
#[cfg(target_os = "linux")]
fn network(directory: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(directory).ok()?.f_type;
    // The type is a signed word on some machines; the numbers have 32 bits.
    network_type(u32::try_from(kind & 0xffff_ffff).ok()?)
}

#[cfg(windows)]
fn network(directory: &Path) -> Option<&'static str> {
    use std::path::{Component, Prefix};

    let at = fs::canonicalize(directory).ok()?;
    let Some(Component::Prefix(prefix)) = at.components().next() else {
        return None;
    };
    let kind = prefix.kind();
    matches!(kind, Prefix::UNC(..) | Prefix::VerbatimUNC(..)).then_some("a share")
}

#[cfg(not(any(target_os = "linux", windows)))]
fn network(_: &Path) -> Option<&'static str> {
    None
}

#[cfg(any(target_os = "linux", test))]
fn network_type(kind: u32) -> Option<&'static str> {
    Some(match kind {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x0102_1997 => "9P",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x7375_7245 => "Coda",
        0x564c => "NCP",
        0x7461_636f => "OCFS2",
        0x0116_1970 => "GFS2",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "OrangeFS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_and_local_ones_are_not() {
        for (kind, name) in [
            (0x6969, "NFS"),
            (0xff53_4d42, "CIFS"),
            (0xfe53_4d42, "SMB2"),
            (0x0102_1997, "9P"),
        ] {
            assert_eq!(network_type(kind), Some(name));
        }
        // ext, XFS, Btrfs, tmpfs, overlay, ZFS, FUSE
        for kind in [
            0xef53,
            0x5846_5342,
            0x9123_683e,
            0x0102_1994,
            0x794c_7630,
            0x2fc1_2fc1,
            0x6573_5546,
        ] {
            assert_eq!(network_type(kind), None, "{kind:#x}");
        }
        assert_eq!(network(Path::new("/proc")), None);
    }
}
