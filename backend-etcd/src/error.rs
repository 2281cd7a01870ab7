//! The only place that maps errors of the driver and the server to those of the library.

use std::borrow::Cow;

use lockcore::{Error, ErrorKind, Operation};
use tonic::Code;

/// The backend's name.
pub(crate) const NAME: &str = "etcd";

/// How far a request was when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There was no connection yet.
    Connecting,
    /// The request was handed to a connection.
    Sent,
}

const NO_SPACE: &str = "the server's space is used up: compact, defragment and disarm its alarm";

/// Maps an error of the driver.
pub(crate) fn from_etcd(operation: Operation, phase: Phase, error: etcd_client::Error) -> Error {
    let (kind, what) = match (judge(phase, &error), operation) {
        // The request that uses up the space is executed, and answered so all the same: what it granted has to be released,
        // and what it adopted to be given up, and an operator to be told so. What else is written is sent again anyway.
        (
            (_, NO_SPACE),
            Operation::Acquire | Operation::Adopt | Operation::End | Operation::Note,
        ) if phase == Phase::Sent => (ErrorKind::Indeterminate, NO_SPACE),
        (judged, _) => judged,
    };
    Error::new(kind, NAME, operation, what).with_source(error)
}

/// A condition that this backend detected.
pub(crate) fn found(
    kind: ErrorKind,
    operation: Operation,
    what: impl Into<Cow<'static, str>>,
) -> Error {
    Error::new(kind, NAME, operation, what)
}

/// An answer that is none of the operation's.
pub(crate) fn odd_answer(operation: Operation) -> Error {
    found(
        ErrorKind::Indeterminate,
        operation,
        "the answer cannot be understood",
    )
}

/// Whether another member may succeed: this one, or the way to it, does not take requests.
pub(crate) fn is_of_the_member(error: &etcd_client::Error) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => true,
            Code::Internal => true,
            _ => said(status) == "corrupt cluster",
        },
        _ => true,
    }
}

/// Whether the credentials must be sent again before the server looks at a request. A token that it issued is no longer
/// valid, as after every change of its users if it signs tokens (`--auth-token jwt`).
pub(crate) fn is_of_the_login(error: &etcd_client::Error) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => {
            status.code() == Code::Unauthenticated || is_old_login(status)
        }
        // A watch that is refused does not say why, before etcd 3.5.
        etcd_client::Error::WatchError(_) => true,
        _ => false,
    }
}

/// Etcd 3.4 has no code for it.
fn is_old_login(status: &tonic::Status) -> bool {
    matches!(
        (status.code(), said(status)),
        (Code::InvalidArgument, "revision of auth store is old")
            | (Code::Unknown, "auth: revision in header is old")
    )
}

/// The server's message, without its name in front.
fn said(status: &tonic::Status) -> &str {
    let message = status.message();
    message.strip_prefix("etcdserver: ").unwrap_or(message)
}

/// The table.
fn judge(phase: Phase, error: &etcd_client::Error) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Indeterminate, Limit, Unauthorized, Unavailable};
    use etcd_client::Error as Driver;
    let status = match error {
        Driver::GRpcStatus(status) => status,
        Driver::InvalidArgs(_) | Driver::InvalidUri(_) | Driver::InvalidMetadataValue(_) => {
            return (Config, "the server cannot be reached as configured");
        }
        _ if phase == Phase::Connecting => return (Unavailable, "no connection"),
        _ => return (Indeterminate, "the connection or the request failed"),
    };
    match (status.code(), said(status)) {
        (Code::InvalidArgument, "authentication failed, invalid user ID or password") => {
            (Unauthorized, "the user or the password is refused")
        }
        (Code::InvalidArgument, "user name is empty" | "user name not found") => {
            (Unauthorized, "the server wants to know who we are")
        }
        _ if is_old_login(status) => (
            Unavailable,
            "the rights on the server have just been changed",
        ),
        (Code::Unauthenticated, _) => (Unauthorized, "the server does not know us any more"),
        (Code::PermissionDenied, _) => (Unauthorized, "the user may not do that"),
        (Code::FailedPrecondition, "authentication is not enabled") => (
            Config,
            "the server has no users: leave USER:PASSWORD@ out of the URL",
        ),
        (Code::InvalidArgument, "request is too large") => {
            (Limit, "the request is too large for the server")
        }
        (Code::ResourceExhausted, what) if what.starts_with("grpc: received message larger") => {
            (Limit, "the request is too large for the server")
        }
        (Code::InvalidArgument, "too many operations in txn request") => (
            Config,
            "the server takes fewer operations in a transaction: say how many by the option txn_ops",
        ),
        (Code::ResourceExhausted, "mvcc: database space exceeded") => (Unavailable, NO_SPACE),
        (Code::ResourceExhausted, "too many requests") => {
            (Unavailable, "the server has too many requests")
        }
        (Code::NotFound, "requested lease not found") => {
            (Unavailable, "the lease has ended before it was used")
        }
        (Code::OutOfRange, "too large lease TTL") => {
            (Limit, "the lease is too long for the server")
        }
        (Code::Unavailable, "no leader") => (Unavailable, "the cluster has no leader"),
        (Code::Unavailable, "server is not ready for request") => {
            (Unavailable, "the server is starting")
        }
        (Code::DataLoss, "corrupt cluster") => (Unavailable, "the member's data is corrupt"),
        (Code::Unimplemented, _) => (Config, "the server lacks a request: it is no etcd 3.4"),
        _ if phase == Phase::Connecting => (Unavailable, "no connection"),
        _ => (Indeterminate, "the connection or the request failed"),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    macro_rules! rows {
        ($($name:ident: $code:ident $line:expr => $connecting:ident, $sent:ident;)*) => {
            $(
                #[test]
                fn $name() {
                    for (phase, kind) in [
                        (Phase::Connecting, ErrorKind::$connecting),
                        (Phase::Sent, ErrorKind::$sent),
                    ] {
                        let status = Status::new(Code::$code, $line);
                        let error = from_etcd(Operation::Acquire, phase, status.into());
                        assert_eq!(error.kind(), kind, "{phase:?}: {error}");
                        assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
                    }
                }
            )*
        };
    }

    rows! {
        another_password: InvalidArgument "etcdserver: authentication failed, invalid user ID or password" => Unauthorized, Unauthorized;
        nobody: InvalidArgument "etcdserver: user name is empty" => Unauthorized, Unauthorized;
        somebody_who_was_removed: InvalidArgument "etcdserver: user name not found" => Unauthorized, Unauthorized;
        changed_rights: InvalidArgument "etcdserver: revision of auth store is old" => Unavailable, Unavailable;
        changed_rights_of_3_4: Unknown "auth: revision in header is old" => Unavailable, Unavailable;
        an_old_token: Unauthenticated "etcdserver: invalid auth token" => Unauthorized, Unauthorized;
        no_right: PermissionDenied "etcdserver: permission denied" => Unauthorized, Unauthorized;
        no_users: FailedPrecondition "etcdserver: authentication is not enabled" => Config, Config;
        too_large: InvalidArgument "etcdserver: request is too large" => Limit, Limit;
        far_too_large: ResourceExhausted "grpc: received message larger than max (623729 vs. 589824)" => Limit, Limit;
        too_many_operations: InvalidArgument "etcdserver: too many operations in txn request" => Config, Config;
        no_space: ResourceExhausted "etcdserver: mvcc: database space exceeded" => Unavailable, Indeterminate;
        too_many_requests: ResourceExhausted "etcdserver: too many requests" => Unavailable, Unavailable;
        no_lease: NotFound "etcdserver: requested lease not found" => Unavailable, Unavailable;
        too_long_a_lease: OutOfRange "etcdserver: too large lease TTL" => Limit, Limit;
        no_leader: Unavailable "etcdserver: no leader" => Unavailable, Unavailable;
        not_ready: Unavailable "etcdserver: server is not ready for request" => Unavailable, Unavailable;
        a_corrupt_member: DataLoss "etcdserver: corrupt cluster" => Unavailable, Unavailable;
        no_such_request: Unimplemented "unknown service etcdserverpb.KV" => Config, Config;
        a_time_out: Unavailable "etcdserver: request timed out" => Unavailable, Indeterminate;
        a_leader_that_failed: Unavailable "etcdserver: request timed out, possibly due to previous leader failure" => Unavailable, Indeterminate;
        a_server_that_stops: Unavailable "etcdserver: server stopped" => Unavailable, Indeterminate;
        a_leader_that_changes: Unavailable "etcdserver: leader changed" => Unavailable, Indeterminate;
        a_broken_connection: Unavailable "error reading a body from connection" => Unavailable, Indeterminate;
        a_cancelled_request: Cancelled "context canceled" => Unavailable, Indeterminate;
        too_large_an_answer: OutOfRange "decoded message length too large" => Unavailable, Indeterminate;
        anything_else: Unknown "something" => Unavailable, Indeterminate;
    }

    #[test]
    fn what_has_no_space_may_have_been_executed() {
        use Operation::{Acquire, Adopt, Confirm, End, Note, Open, Release, Settle, Sweep};
        for (operation, kind) in [
            (Acquire, ErrorKind::Indeterminate),
            (Adopt, ErrorKind::Indeterminate),
            (End, ErrorKind::Indeterminate),
            (Note, ErrorKind::Indeterminate),
            (Open, ErrorKind::Unavailable),
            (Settle, ErrorKind::Unavailable),
            (Release, ErrorKind::Unavailable),
            (Confirm, ErrorKind::Unavailable),
            (Sweep, ErrorKind::Unavailable),
        ] {
            let what = "etcdserver: mvcc: database space exceeded";
            let status = Status::new(Code::ResourceExhausted, what);
            let error = from_etcd(operation, Phase::Sent, status.into());
            assert_eq!(error.kind(), kind, "{operation:?}: {error}");
        }
    }

    #[test]
    fn what_the_driver_finds_by_itself() {
        use etcd_client::Error as Driver;
        for (error, connecting, sent) in [
            (
                Driver::InvalidArgs("x".into()),
                ErrorKind::Config,
                ErrorKind::Config,
            ),
            (
                Driver::IoError(std::io::ErrorKind::BrokenPipe.into()),
                ErrorKind::Unavailable,
                ErrorKind::Indeterminate,
            ),
            (
                Driver::WatchError("x".into()),
                ErrorKind::Unavailable,
                ErrorKind::Indeterminate,
            ),
        ] {
            assert_eq!(judge(Phase::Connecting, &error).0, connecting, "{error}");
            assert_eq!(judge(Phase::Sent, &error).0, sent, "{error}");
        }
    }

    #[test]
    fn who_we_are_is_said_again_where_the_server_has_forgotten_it() {
        let status = |code, line: &str| etcd_client::Error::from(Status::new(code, line));
        for (code, line, again) in [
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
                true,
            ),
            (Code::Unknown, "auth: revision in header is old", true),
            (
                Code::Unauthenticated,
                "etcdserver: invalid auth token",
                true,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                false,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                false,
            ),
            (Code::Unknown, "something", false),
        ] {
            assert_eq!(is_of_the_login(&status(code, line)), again, "{line}");
        }
    }

    #[test]
    fn another_member_is_asked_where_this_one_fails() {
        let status = |code, line: &str| etcd_client::Error::from(Status::new(code, line));
        assert!(is_of_the_member(&status(
            Code::Unavailable,
            "etcdserver: no leader"
        )));
        assert!(is_of_the_member(&status(
            Code::DataLoss,
            "etcdserver: corrupt cluster"
        )));
        assert!(!is_of_the_member(&status(
            Code::NotFound,
            "etcdserver: requested lease not found"
        )));
        assert_eq!(
            odd_answer(Operation::Renew).kind(),
            ErrorKind::Indeterminate
        );
    }
}
