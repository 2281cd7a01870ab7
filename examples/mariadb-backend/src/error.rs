//! What the driver's errors mean: the only place where they become ours.

use lockcore::backend::rows::Corrupt;
use lockcore::{Error, ErrorKind, Operation};
use sqlx::mysql::MySqlDatabaseError;

use crate::NAME;

/// What an operation on rows came to.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// Why a transaction was undone.
#[derive(Debug)]
pub(crate) enum Failure {
    Driver(sqlx::Error),
    Corrupt(Corrupt),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<Corrupt> for Failure {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

impl Failure {
    /// The error of an operation that had no effect.
    pub(crate) fn error(self, operation: Operation) -> Error {
        let error = match self {
            Self::Corrupt(corrupt) => return corrupt.error(NAME, operation),
            Self::Driver(error) => error,
        };
        let (kind, what) = match (&error, number(&error)) {
            (_, Some(number)) => of_number(number),
            (sqlx::Error::Configuration(_), _) => {
                (ErrorKind::Config, "the URL is not one of a MariaDB")
            }
            (
                sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::ColumnNotFound(_),
                _,
            ) => (
                ErrorKind::Corrupt,
                "a table has another shape: it is of another version, or of something else",
            ),
            _ => (ErrorKind::Unavailable, "the server does not answer"),
        };
        Error::new(kind, NAME, operation, what).with_source(error)
    }
}

/// The server's error number.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    let error = error.try_downcast_ref::<MySqlDatabaseError>();
    error.map(MySqlDatabaseError::number)
}

/// By the server's error numbers.
fn of_number(number: u16) -> (ErrorKind, &'static str) {
    match number {
        1044 | 1045 | 1142 | 1143 | 1227 => (
            ErrorKind::Unauthorized,
            "the account may not do this: correct the password, or grant it the database",
        ),
        1049 => (
            ErrorKind::Config,
            "there is no such database: create it, or correct the URL",
        ),
        1054 | 1146 => (
            ErrorKind::Config,
            "the tables are not there, or of another version",
        ),
        1205 | 1213 => (
            ErrorKind::Unavailable,
            "another transaction was in the way for too long",
        ),
        _ => (ErrorKind::Unavailable, "the server refuses"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_kind() {
        let kind = |error: sqlx::Error| Failure::from(error).error(Operation::Acquire).kind();
        let io = std::io::Error::other("reset");
        assert_eq!(kind(sqlx::Error::Io(io)), ErrorKind::Unavailable);
        assert_eq!(kind(sqlx::Error::PoolTimedOut), ErrorKind::Unavailable);
        let strange = sqlx::Error::ColumnNotFound("due".into());
        assert_eq!(kind(strange), ErrorKind::Corrupt);
        let url = sqlx::Error::Configuration("no".into());
        assert_eq!(kind(url), ErrorKind::Config);
        let corrupt = Failure::from(Corrupt("so")).error(Operation::Acquire);
        assert_eq!(corrupt.kind(), ErrorKind::Corrupt);
        for (number, kind) in [
            (1045, ErrorKind::Unauthorized),
            (1142, ErrorKind::Unauthorized),
            (1049, ErrorKind::Config),
            (1146, ErrorKind::Config),
            (1205, ErrorKind::Unavailable),
            (1213, ErrorKind::Unavailable),
            (1290, ErrorKind::Unavailable),
        ] {
            assert_eq!(of_number(number).0, kind, "{number}");
        }
    }
}
