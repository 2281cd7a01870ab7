//! The way to the store: who may write, how a state is replaced, and what its errors mean.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind as Io};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lockcore::limits::MAX_STORE_TOKEN;
use lockcore::{Error, ErrorKind, Operation, Result};

use crate::NAME;
use crate::state::{FORMAT, State};

/// How long one operation waits for other processes before it fails without effect.
const TIMEOUT: Duration = Duration::from_secs(5);
const TRY_EVERY: Duration = Duration::from_millis(1);

/// A directory with `lock`, whose file lock says who may write, and `state.json`.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let failed = |error| failure(Operation::Connect, error);
        fs::create_dir_all(&path).map_err(failed)?;
        let directory = Self(path);
        directory.lock(Operation::Connect)?;
        directory.read(Operation::Connect)?;
        Ok(directory)
    }

    /// One action: nobody else acts until it is done, and all of it is written or nothing.
    pub(crate) fn update<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        // The system gives the lock back when the file is closed, however this process ends.
        let _lock = self.lock(operation)?;
        let mut state = self.read(operation)?;
        let before = bytes(&state);
        let answer = act(&mut state)?;
        let after = bytes(&state);
        if before != after {
            let new = self.0.join("state.json.new");
            fs::write(&new, after).map_err(|error| failure(operation, error))?;
            fs::rename(&new, self.0.join("state.json")).map_err(|error| {
                let what = "the state could not be put in place";
                Error::new(ErrorKind::Indeterminate, NAME, operation, what).with_source(error)
            })?;
        }
        Ok(answer)
    }

    /// The state as the last action left it. A rename replaces it at once, so no lock is needed.
    pub(crate) fn read(&self, operation: Operation) -> Result<State> {
        let bytes = match fs::read(self.0.join("state.json")) {
            Ok(bytes) => bytes,
            // Nobody has done anything here yet.
            Err(error) if error.kind() == Io::NotFound => {
                return Ok(State {
                    now: now(),
                    ..State::default()
                });
            }
            Err(error) => return Err(failure(operation, error)),
        };
        let corrupt = |what| Error::new(ErrorKind::Corrupt, NAME, operation, what);
        let mut state: State = serde_json::from_slice(&bytes).map_err(|error| {
            corrupt("state.json cannot be understood: stop its users and remove it")
                .with_source(error)
        })?;
        if state.format < FORMAT {
            return Err(corrupt(
                "state.json is of an older version, whose programs have smaller tokens: use another directory, or remove it \
                 when nobody uses it any more",
            ));
        }
        if state.format > FORMAT {
            return Err(corrupt(
                "state.json is of a newer version: update the program",
            ));
        }
        if state.token > MAX_STORE_TOKEN {
            return Err(corrupt("the last token cannot be"));
        }
        state.now = now();
        Ok(state)
    }

    fn lock(&self, operation: Operation) -> Result<File> {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.0.join("lock"))
            .map_err(|error| failure(operation, error))?;
        let until = Instant::now() + TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    thread::sleep(TRY_EVERY);
                }
                Err(TryLockError::WouldBlock) => {
                    let what = "another process has kept the lock file for too long";
                    return Err(Error::new(ErrorKind::Unavailable, NAME, operation, what));
                }
                Err(TryLockError::Error(error)) => return Err(failure(operation, error)),
            }
        }
    }
}

fn bytes(state: &State) -> Vec<u8> {
    serde_json::to_vec(state).expect("a state is plain data with texts as keys")
}

/// What goes wrong before the new state is in place had no effect.
fn failure(operation: Operation, error: io::Error) -> Error {
    let (kind, what) = match error.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => (
            ErrorKind::Unauthorized,
            "the directory may not be read or written",
        ),
        Io::NotADirectory | Io::AlreadyExists => (ErrorKind::Config, "the path is no directory"),
        Io::NotFound => (ErrorKind::Unavailable, "the directory is not there"),
        _ => (ErrorKind::Unavailable, "the files cannot be used now"),
    };
    Error::new(kind, NAME, operation, what).with_source(error)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock that all processes share; the crate's page says what that costs"
)]
fn now() -> Duration {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_1970.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_of_a_file_has_its_kind() {
        for (io, kind) in [
            (Io::PermissionDenied, ErrorKind::Unauthorized),
            (Io::ReadOnlyFilesystem, ErrorKind::Unauthorized),
            (Io::NotADirectory, ErrorKind::Config),
            (Io::AlreadyExists, ErrorKind::Config),
            (Io::NotFound, ErrorKind::Unavailable),
            (Io::StorageFull, ErrorKind::Unavailable),
        ] {
            assert_eq!(failure(Operation::Renew, io.into()).kind(), kind, "{io:?}");
        }
    }

    #[test]
    fn what_is_no_state_is_an_error_and_stays() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::open(temporary.path().to_owned()).unwrap();
        let file = temporary.path().join("state.json");
        for strange in [
            "",
            "{}",
            "[]",
            r#"{"format":3,"token":0,"sessions":{},"records":{}}"#,
            r#"{"format":5,"token":0,"sessions":{},"records":{}}"#,
            r#"{"format":4,"token":144115188075855872,"sessions":{},"records":{}}"#,
            r#"{"format":4,"token":0,"sessions":{},"records":{"/a/":[]}}"#,
            r#"{"format":4,"token":0,"sessions":{"x":{}},"records":{}}"#,
        ] {
            fs::write(&file, strange).unwrap();
            let error = directory
                .update(Operation::Acquire, |_| Ok(()))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{strange:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), strange);
        }
    }

    #[test]
    fn an_action_that_changes_nothing_writes_nothing() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::open(temporary.path().to_owned()).unwrap();
        let file = temporary.path().join("state.json");
        directory.update(Operation::Acquire, |_| Ok(())).unwrap();
        assert!(!file.exists());
        directory
            .update(Operation::Acquire, |state| {
                state.token = 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(directory.read(Operation::Acquire).unwrap().token, 1);
    }
}
