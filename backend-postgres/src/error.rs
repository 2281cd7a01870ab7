//! The only place that maps errors of the server, of the driver and of the connection to those of the library.

use std::borrow::Cow;
use std::{fmt, io};

use lockcore::{Error, ErrorKind, Operation};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// The backend's name.
pub(crate) const NAME: &str = "postgres";
/// The most characters of a server's message that are kept.
const MESSAGE_CHARS: usize = 300;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There is no connection: nothing was sent.
    Connecting(sqlx::Error),
    /// No connection in time: nothing was sent.
    NoConnection,
    /// The request was sent, and failed.
    Sent(sqlx::Error),
    /// The request was sent, and no answer came in time.
    Late,
    /// Several servers say that they are the primary: nothing was sent.
    TwoPrimaries,
    /// The answer is none of the operation's.
    Answer(Cow<'static, str>),
    /// A condition that this backend detected, and what to do about it.
    Found(ErrorKind, Cow<'static, str>),
}

pub(crate) type Outcome<T> = Result<T, Failure>;

/// What the server said. Its details may quote stored data, so nothing of them is kept.
#[derive(Debug)]
struct Said {
    fatal: bool,
    code: String,
    message: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for Said {}

impl Failure {
    /// The configuration cannot work.
    pub(crate) fn config(what: impl Into<Cow<'static, str>>) -> Self {
        Failure::Found(ErrorKind::Config, what.into())
    }

    /// Turns a failure into an error of that operation.
    pub(crate) fn of(operation: Operation) -> impl FnOnce(Failure) -> Error {
        move |failure| failure.into_error(operation)
    }

    pub(crate) fn into_error(self, operation: Operation) -> Error {
        let (sent, error) = match self {
            Failure::Connecting(error) => (false, error),
            Failure::Sent(error) => (true, error),
            Failure::NoConnection => {
                let what = "no connection within the timeout";
                return Error::new(ErrorKind::Unavailable, NAME, operation, what);
            }
            Failure::Late => {
                let what = "no answer within the timeout";
                return Error::new(ErrorKind::Indeterminate, NAME, operation, what);
            }
            // Nobody connects so. Who is connected waits for an end: a failover passes through it.
            Failure::TwoPrimaries => {
                let kind = match operation {
                    Operation::Connect => ErrorKind::Config,
                    _ => ErrorKind::Unavailable,
                };
                let what = "two of the servers say that they are the primary: stop the one that was replaced, or make it a \
                            standby";
                return Error::new(kind, NAME, operation, what);
            }
            Failure::Answer(what) => {
                return Error::new(ErrorKind::Indeterminate, NAME, operation, what);
            }
            Failure::Found(kind, what) => return Error::new(kind, NAME, operation, what),
        };
        let said = said(&error);
        let (kind, what) = match (&said, sent) {
            (Some(said), true) if said.fatal => {
                (ErrorKind::Indeterminate, "the server ended the connection")
            }
            (Some(said), true) => refused(&said.code),
            (Some(said), false) => not_let_in(&said.code),
            (None, true) => (
                ErrorKind::Indeterminate,
                "the connection broke, or the answer cannot be read",
            ),
            (None, false) => unreachable(&error),
        };
        let ours = Error::new(kind, NAME, operation, what);
        match (said, error) {
            (Some(said), _) => ours.with_source(said),
            // Its text may quote what was configured.
            (None, sqlx::Error::Configuration(_)) => ours,
            (None, error) => ours.with_source(error),
        }
    }
}

/// Whether the connection has ended with it.
pub(crate) fn ends_connection(error: &sqlx::Error) -> bool {
    said(error).is_none_or(|said| said.fatal)
}

fn said(error: &sqlx::Error) -> Option<Said> {
    let error = error.as_database_error()?;
    let fatal = error
        .try_downcast_ref::<PgDatabaseError>()
        .is_none_or(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic));
    Some(Said {
        fatal,
        code: error.code().unwrap_or_default().into_owned(),
        message: error.message().chars().take(MESSAGE_CHARS).collect(),
    })
}

/// The table of the server's answers to a call. A failed call was rolled back, whatever it was; an unknown code may
/// mean something else.
fn refused(code: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Corrupt, Indeterminate, Limit, Unauthorized, Unavailable};
    match code {
        "LK001" => (
            Config,
            "the transaction is not READ COMMITTED: set default_transaction_isolation, or begin it so",
        ),
        "LK002" => (Corrupt, "the intent of an abandoned session is gone"),
        "25006" => (
            Unavailable,
            "the server is a standby, or the transaction is read-only: connect to the primary",
        ),
        "26000" | "42P05" => (
            Config,
            "prepared statements are lost: behind a pooler in transaction mode add pooler=transaction to the URL",
        ),
        // A pooler whose server is gone says that, too.
        "08P01" => (
            Indeterminate,
            "the protocol is broken: behind a pooler in transaction mode add pooler=transaction to the URL",
        ),
        "40001" => (
            Unavailable,
            "the server could not serialize the transaction",
        ),
        "40P01" => (Unavailable, "the server ended a deadlock"),
        "42501" => (
            Unauthorized,
            "a right is missing: grant the role what a namespace needs",
        ),
        "3F000" | "42883" | "42P01" => (
            Config,
            "the namespace is gone, or of another version: connect again",
        ),
        "42P13" => (
            Config,
            "the namespace is of a program that this one cannot follow: end all who use it, and remove it",
        ),
        "0A000" => (Unavailable, "the namespace was changed: try again"),
        "55000" => (
            Unavailable,
            "the server cannot do this as it is now: connect to a primary that is let to grant",
        ),
        "55P03" => (Unavailable, "others kept a latch or a row for too long"),
        "57014" => (Unavailable, "the statement was cancelled"),
        "53100" => (Unavailable, "the disk is full"),
        "53200" => (
            Unavailable,
            "the server has no memory left for this, perhaps none for latches: raise max_locks_per_transaction",
        ),
        "53300" => (Unavailable, "the server has no connection left"),
        _ if code.starts_with("53") => (Unavailable, "the server has too little of something"),
        _ if code.starts_with("54") => (Limit, "the request is over a limit of the server"),
        _ => (
            Indeterminate,
            "the server failed in a way that is not expected",
        ),
    }
}

/// The table of the server's answers to a new connection, on which nothing was sent.
fn not_let_in(code: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Unauthorized, Unavailable};
    match code {
        "28000" | "28P01" => (Unauthorized, "the server does not let the user in"),
        "42501" => (Unauthorized, "the user may not connect to the database"),
        "3D000" => (Config, "the database does not exist: name another one"),
        "53300" => (Unavailable, "the server has no connection left"),
        "57P03" => (Unavailable, "the server starts or stops"),
        "08P01" => (
            Config,
            "the server or pooler refuses how we connect: behind a pooler in transaction mode add pooler=transaction \
             to the URL",
        ),
        _ => (Unavailable, "the server does not take the connection"),
    }
}

fn unreachable(error: &sqlx::Error) -> (ErrorKind, &'static str) {
    let by_tls = (
        ErrorKind::Config,
        "no connection by TLS can be made: check sslmode and sslrootcert",
    );
    match error {
        sqlx::Error::Tls(_) => by_tls,
        // Of a certificate that is not believed, the driver says it so.
        sqlx::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => by_tls,
        sqlx::Error::Configuration(_) => (ErrorKind::Config, "the configuration cannot work"),
        _ => (ErrorKind::Unavailable, "the server cannot be reached"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! rows {
        ($table:ident: $($name:ident: $code:literal => $kind:ident;)*) => {
            $(
                #[test]
                fn $name() {
                    assert_eq!($table($code).0, ErrorKind::$kind);
                }
            )*
        };
    }

    mod calls {
        use super::*;

        rows! { refused:
            isolation: "LK001" => Config;
            lost_intent: "LK002" => Corrupt;
            read_only: "25006" => Unavailable;
            lost_statement: "26000" => Config;
            statement_of_another: "42P05" => Config;
            protocol: "08P01" => Indeterminate;
            serialization: "40001" => Unavailable;
            deadlock: "40P01" => Unavailable;
            rights: "42501" => Unauthorized;
            no_schema: "3F000" => Config;
            no_function: "42883" => Config;
            no_table: "42P01" => Config;
            another_function: "42P13" => Config;
            changed_plan: "0A000" => Unavailable;
            state: "55000" => Unavailable;
            latch: "55P03" => Unavailable;
            cancelled: "57014" => Unavailable;
            disk: "53100" => Unavailable;
            memory: "53200" => Unavailable;
            connections: "53300" => Unavailable;
            other_resource: "53400" => Unavailable;
            limit: "54000" => Limit;
            anything_else: "XX000" => Indeterminate;
            nothing: "" => Indeterminate;
        }
    }

    mod connections {
        use super::*;

        rows! { not_let_in:
            password: "28P01" => Unauthorized;
            host: "28000" => Unauthorized;
            rights: "42501" => Unauthorized;
            database: "3D000" => Config;
            too_many: "53300" => Unavailable;
            starting: "57P03" => Unavailable;
            pooler: "08P01" => Config;
            anything_else: "XX000" => Unavailable;
        }
    }

    fn io() -> sqlx::Error {
        sqlx::Error::Io(std::io::Error::other("x"))
    }

    #[test]
    fn what_was_not_sent_had_no_effect() {
        for (failure, kind) in [
            (Failure::Connecting(io()), ErrorKind::Unavailable),
            (
                Failure::Connecting(sqlx::Error::PoolTimedOut),
                ErrorKind::Unavailable,
            ),
            (
                Failure::Connecting(sqlx::Error::PoolClosed),
                ErrorKind::Unavailable,
            ),
            (
                Failure::Connecting(sqlx::Error::Tls("x".into())),
                ErrorKind::Config,
            ),
            (
                Failure::Connecting(sqlx::Error::Io(io::ErrorKind::InvalidData.into())),
                ErrorKind::Config,
            ),
            (
                Failure::Connecting(sqlx::Error::Configuration("x".into())),
                ErrorKind::Config,
            ),
            (Failure::NoConnection, ErrorKind::Unavailable),
        ] {
            assert_eq!(failure.into_error(Operation::Acquire).kind(), kind);
        }
    }

    #[test]
    fn what_was_sent_and_not_answered_is_unknown() {
        for failure in [
            Failure::Sent(io()),
            Failure::Sent(sqlx::Error::Protocol("x".into())),
            Failure::Sent(sqlx::Error::RowNotFound),
            Failure::Late,
            Failure::Answer("x".into()),
        ] {
            let error = failure.into_error(Operation::Renew);
            assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        }
    }

    #[test]
    fn our_own_findings_keep_their_kind_and_text() {
        let error = Failure::config("use another one").into_error(Operation::Connect);
        assert_eq!(
            error.to_string(),
            "postgres: connect: cannot be used as configured: use another one"
        );
    }
}
