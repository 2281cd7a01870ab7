//! The only place where an error of the driver or the server becomes ours.

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
    /// It was handed over to one.
    Sent,
}

/// An error of the driver as one of ours.
pub(crate) fn from_etcd(operation: Operation, phase: Phase, error: etcd_client::Error) -> Error {
    let (kind, what) = judge(phase, &error);
    Error::new(kind, NAME, operation, what).with_source(error)
}

/// Our own finding.
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

/// Whether the server says that the lease is gone.
pub(crate) fn lease_is_gone(error: &etcd_client::Error) -> bool {
    match error {
        // What the driver says where a lease is kept alive that has no time left.
        etcd_client::Error::LeaseKeepAliveError(what) => what == "lease not found",
        etcd_client::Error::GRpcStatus(status) => said(status) == "requested lease not found",
        _ => false,
    }
}

/// Whether another member may do better: this one, or the way to it, does not take requests.
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

/// What a server says, without its name before it.
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
        (Code::InvalidArgument, "revision of auth store is old") => (
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
        (Code::InvalidArgument, "too many operations in txn request") => (
            Config,
            "the server takes fewer operations in a transaction: say how many by the option txn_ops",
        ),
        (Code::ResourceExhausted, "mvcc: database space exceeded") => (
            Unavailable,
            "the server's space is used up: compact, defragment and disarm its alarm",
        ),
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
