//! The only place that maps SQLite's errors to those of the library.

use std::borrow::Cow;
use std::io;

use lockcore::backend::rows::Corrupt;
use lockcore::{Error, ErrorKind, Operation};
use rusqlite::ErrorCode;

/// The backend's name.
pub(crate) const NAME: &str = "sqlite";

/// A failure on the writer thread.
#[derive(Debug)]
pub(crate) enum Failure {
    /// SQLite failed.
    Sqlite(Phase, rusqlite::Error),
    /// A condition that this backend detected, and what to do about it.
    Found(ErrorKind, Cow<'static, str>),
    /// The file system failed, before anything was written.
    File(Cow<'static, str>, std::io::Error),
}

/// How far the request was. Before the commit nothing can have taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Opening the file.
    Open,
    /// Inside a transaction, its beginning included.
    Statement,
    /// Committing it.
    Commit,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sqlite(Phase::Statement, error)
    }
}

impl From<Corrupt> for Failure {
    fn from(Corrupt(what): Corrupt) -> Self {
        Failure::Found(ErrorKind::Corrupt, what.into())
    }
}

impl Failure {
    /// The configuration cannot work.
    pub(crate) fn config(what: impl Into<Cow<'static, str>>) -> Self {
        Failure::Found(ErrorKind::Config, what.into())
    }

    /// The same failure, while opening the file.
    pub(crate) fn while_opening(self) -> Self {
        match self {
            Failure::Sqlite(_, error) => Failure::Sqlite(Phase::Open, error),
            other => other,
        }
    }

    /// A copy of the failure, for another caller.
    pub(crate) fn copy(&self) -> Self {
        match self {
            Failure::Sqlite(phase, rusqlite::Error::SqliteFailure(code, text)) => {
                let error = rusqlite::Error::SqliteFailure(*code, text.clone());
                Failure::Sqlite(*phase, error)
            }
            Failure::Sqlite(phase, error) => {
                let (kind, what) = judge(*phase, error);
                Failure::Found(kind, what.into())
            }
            Failure::Found(kind, what) => Failure::Found(*kind, what.clone()),
            Failure::File(what, error) => {
                let error = std::io::Error::new(error.kind(), error.to_string());
                Failure::File(what.clone(), error)
            }
        }
    }

    /// Whether certainly nothing took effect.
    pub(crate) fn is_without_effect(&self) -> bool {
        match self {
            Failure::Sqlite(phase, error) => judge(*phase, error).0 != ErrorKind::Indeterminate,
            Failure::Found(kind, _) => *kind != ErrorKind::Indeterminate,
            Failure::File(..) => true,
        }
    }

    pub(crate) fn into_error(self, operation: Operation) -> Error {
        match self {
            Failure::Sqlite(phase, error) => {
                let (kind, what) = judge(phase, &error);
                Error::new(kind, NAME, operation, what).with_source(error)
            }
            Failure::Found(kind, what) => Error::new(kind, NAME, operation, what),
            Failure::File(what, error) => {
                Error::new(lasts(&error), NAME, operation, what).with_source(error)
            }
        }
    }
}

/// What a system's refusal of a file comes to: people have to mend it, or it may pass, as a full disk and descriptors that are
/// used up do.
fn lasts(error: &io::Error) -> ErrorKind {
    use io::ErrorKind::{
        InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
        Unsupported,
    };
    match error.kind() {
        InvalidInput | IsADirectory | NotADirectory | NotFound | PermissionDenied
        | ReadOnlyFilesystem | Unsupported => ErrorKind::Config,
        _ => ErrorKind::Unavailable,
    }
}

/// The table.
fn judge(phase: Phase, error: &rusqlite::Error) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Corrupt, Indeterminate, Limit, Unauthorized, Unavailable};
    let rusqlite::Error::SqliteFailure(failure, _) = error else {
        return match (phase, error) {
            (Phase::Open, rusqlite::Error::InvalidPath(_) | rusqlite::Error::NulError(_)) => {
                (Config, "the path cannot be handed to SQLite")
            }
            (Phase::Commit, _) => (Indeterminate, "the commit failed"),
            _ => (Corrupt, "the file has a value that cannot be there"),
        };
    };
    match (failure.code, phase) {
        (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => (
            Unavailable,
            "other processes kept the file locked for too long",
        ),
        (_, Phase::Commit) => (Indeterminate, "the commit failed"),
        (ErrorCode::CannotOpen, Phase::Open) => (
            Config,
            "the file cannot be opened: check that its directory exists and may be written",
        ),
        (ErrorCode::ReadOnly | ErrorCode::PermissionDenied, Phase::Open) => (
            Config,
            "the file or its directory may not be written: give the rights, or use another file",
        ),
        (ErrorCode::NotADatabase, Phase::Open) => (
            Config,
            "the file is not an SQLite database: name another file, or remove it",
        ),
        (
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
            _,
        ) => (Unauthorized, "the file may not be written any more"),
        (ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt, _) => {
            (Corrupt, "the file is damaged: stop its users and remove it")
        }
        (ErrorCode::DiskFull, _) => (Unavailable, "the disk is full"),
        (ErrorCode::SystemIoFailure, _) => (Unavailable, "the disk failed before the commit"),
        (ErrorCode::CannotOpen, _) => (Unavailable, "the file cannot be opened now"),
        (ErrorCode::OutOfMemory, _) => (Unavailable, "no memory is left"),
        (ErrorCode::FileLockingProtocolFailed, _) => {
            (Unavailable, "the file's lock could not be taken now")
        }
        (ErrorCode::TooBig, _) => (Limit, "a value is too large for SQLite"),
        (_, Phase::Open | Phase::Statement) => {
            (Indeterminate, "SQLite failed in a way that is not expected")
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn failure(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    macro_rules! rows {
        ($($name:ident: $code:expr => $open:ident, $statement:ident, $commit:ident;)*) => {
            $(
                #[test]
                fn $name() {
                    for (phase, kind) in [
                        (Phase::Open, ErrorKind::$open),
                        (Phase::Statement, ErrorKind::$statement),
                        (Phase::Commit, ErrorKind::$commit),
                    ] {
                        let error = Failure::Sqlite(phase, failure($code)).into_error(Operation::Acquire);
                        assert_eq!(error.kind(), kind, "{phase:?}: {error}");
                        assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
                    }
                }
            )*
        };
    }

    rows! {
        busy: ffi::SQLITE_BUSY => Unavailable, Unavailable, Unavailable;
        busy_recovery: ffi::SQLITE_BUSY_RECOVERY => Unavailable, Unavailable, Unavailable;
        locked: ffi::SQLITE_LOCKED => Unavailable, Unavailable, Unavailable;
        cannot_open: ffi::SQLITE_CANTOPEN => Config, Unavailable, Indeterminate;
        read_only: ffi::SQLITE_READONLY => Config, Unauthorized, Indeterminate;
        permission: ffi::SQLITE_PERM => Config, Unauthorized, Indeterminate;
        authorization: ffi::SQLITE_AUTH => Unauthorized, Unauthorized, Indeterminate;
        not_a_database: ffi::SQLITE_NOTADB => Config, Corrupt, Indeterminate;
        damaged: ffi::SQLITE_CORRUPT => Corrupt, Corrupt, Indeterminate;
        disk_full: ffi::SQLITE_FULL => Unavailable, Unavailable, Indeterminate;
        disk_failed: ffi::SQLITE_IOERR => Unavailable, Unavailable, Indeterminate;
        no_memory: ffi::SQLITE_NOMEM => Unavailable, Unavailable, Indeterminate;
        lock_protocol: ffi::SQLITE_PROTOCOL => Unavailable, Unavailable, Indeterminate;
        too_big: ffi::SQLITE_TOOBIG => Limit, Limit, Indeterminate;
        anything_else: ffi::SQLITE_MISUSE => Indeterminate, Indeterminate, Indeterminate;
    }

    #[test]
    fn a_copy_tells_the_same() {
        let io = std::io::Error::other("y");
        let failures = [
            Failure::Sqlite(Phase::Commit, failure(ffi::SQLITE_FULL)),
            Failure::Sqlite(Phase::Statement, failure(ffi::SQLITE_FULL)),
            Failure::Sqlite(Phase::Statement, rusqlite::Error::QueryReturnedNoRows),
            Failure::Found(ErrorKind::Limit, "x".into()),
            Failure::File("x".into(), io),
        ];
        let without_effect = failures.each_ref().map(Failure::is_without_effect);
        assert_eq!(without_effect, [false, true, true, true, true]);
        for failure in failures {
            let copy = failure.copy().into_error(Operation::Acquire);
            let failure = failure.into_error(Operation::Acquire);
            assert_eq!(copy.to_string(), failure.to_string());
            assert_eq!(copy.kind(), failure.kind());
        }
    }

    #[test]
    fn values_of_another_type() {
        for (phase, kind) in [
            (Phase::Open, ErrorKind::Corrupt),
            (Phase::Statement, ErrorKind::Corrupt),
            (Phase::Commit, ErrorKind::Indeterminate),
        ] {
            let error = Failure::Sqlite(phase, rusqlite::Error::QueryReturnedNoRows);
            assert_eq!(error.into_error(Operation::Renew).kind(), kind, "{phase:?}");
        }
    }

    #[test]
    fn a_path_that_is_none() {
        let error = rusqlite::Error::InvalidPath("x".into());
        let error = Failure::Sqlite(Phase::Open, error).into_error(Operation::Connect);
        assert_eq!(error.kind(), ErrorKind::Config);
    }

    #[test]
    fn our_own_findings_keep_their_kind_and_text() {
        let error = Failure::config("use another file").into_error(Operation::Connect);
        assert_eq!(
            error.to_string(),
            "sqlite: connect: cannot be used as configured: use another file"
        );
        assert_eq!(
            Failure::from(Corrupt("x"))
                .into_error(Operation::Renew)
                .kind(),
            ErrorKind::Corrupt
        );
        for (io, kind) in [
            (io::ErrorKind::NotFound.into(), ErrorKind::Config),
            (io::ErrorKind::PermissionDenied.into(), ErrorKind::Config),
            (io::ErrorKind::StorageFull.into(), ErrorKind::Unavailable),
            (io::Error::from_raw_os_error(24), ErrorKind::Unavailable), // too many open files
        ] {
            let error = Failure::File("no directory".into(), io).into_error(Operation::Connect);
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
