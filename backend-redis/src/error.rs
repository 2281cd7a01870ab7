//! The only place that maps errors of the driver and the server to those of the library.

use std::borrow::Cow;

use lockcore::{Error, ErrorKind, Operation};
use redis::RedisError;

/// The backend's name.
pub(crate) const NAME: &str = "redis";

/// How far a request was when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There was no connection yet.
    Connecting,
    /// The request was handed to a connection.
    Sent,
}

/// Maps an error of the driver.
pub(crate) fn from_redis(operation: Operation, phase: Phase, error: RedisError) -> Error {
    let (kind, what) = judge(phase, &error);
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

/// The table.
fn judge(phase: Phase, error: &RedisError) -> (ErrorKind, Cow<'static, str>) {
    use ErrorKind::{Config, Corrupt, Indeterminate, Limit, Unauthorized, Unavailable};
    let detail = error.detail().unwrap_or_default();
    let (kind, what): (_, &'static str) = match error.code() {
        Some("LKCORRUPT") => return (Corrupt, detail.to_owned().into()),
        Some("LKLIMIT") => (
            Limit,
            "too many paths are held below: hold the path above them first, or sweep if their holders are dead",
        ),
        Some("LKVERSION") if matches!(detail, "1" | "2" | "3") => (
            Config,
            "the namespace is of an older version: use another namespace, or have a program of that version remove it when \
             nobody uses it any more",
        ),
        Some("LKVERSION") => (
            Config,
            "the namespace is of a newer version: use another namespace, or a newer lockkeeper",
        ),
        Some("WRONGTYPE") => (
            Corrupt,
            "a key of the namespace is of another type: somebody else writes there",
        ),
        Some("NOAUTH" | "WRONGPASS") => (Unauthorized, "the user or the password is refused"),
        Some("NOPERM") => (Unauthorized, "the user may not do that"),
        Some("READONLY") => (
            Unavailable,
            "the server is a replica, which takes no writes",
        ),
        Some("LOADING") => (Unavailable, "the server is still loading its data"),
        Some("BUSY") => (Unavailable, "the server is busy with somebody's script"),
        Some("OOM") => (Unavailable, "the server's memory is full"),
        Some("MISCONF") => (
            Unavailable,
            "the server takes no writes: it cannot save them",
        ),
        Some("NOREPLICAS") => (
            Unavailable,
            "the server takes no writes: it has not enough replicas",
        ),
        Some("MASTERDOWN") => (Unavailable, "the replica has lost its primary"),
        Some("CLUSTERDOWN") => (Unavailable, "the cluster is down"),
        Some("TRYAGAIN" | "ASK" | "MOVED") => (
            Unavailable,
            "the namespace is being moved to another node of the cluster",
        ),
        Some("NOSCRIPT") => (Unavailable, "the server forgets its scripts"),
        Some("CROSSSLOT" | "NOPROTO") => (Config, "the server takes no such request"),
        Some("ERR") if may_not(detail) => (Unauthorized, "the user may not do that"),
        Some("ERR") if detail.contains("unknown command 'SENTINEL'") => (
            Config,
            "the host is no sentinel: name sentinels, or servers as in redis://HOST",
        ),
        Some("ERR") if detail.contains("unknown command") => (
            Config,
            "the server lacks a command: Redis 7 or later, or Valkey, is needed",
        ),
        Some("ERR") if phase == Phase::Connecting && detail.contains("max number of clients") => {
            (Unavailable, "the server has too many clients")
        }
        Some("ERR") if phase == Phase::Connecting && detail.contains("DB index") => {
            (Config, "the server has no database of that number")
        }
        _ => match (error.kind(), phase) {
            (redis::ErrorKind::AuthenticationFailed, _) => {
                (Unauthorized, "the user or the password is refused")
            }
            (redis::ErrorKind::InvalidClientConfig, Phase::Connecting) => {
                (Config, "the server cannot be reached as configured")
            }
            (_, Phase::Connecting) => (Unavailable, "no connection"),
            (_, Phase::Sent) => (Indeterminate, "the connection or the request failed"),
        },
    };
    (kind, what.into())
}

/// Whether a script was not permitted to use a command or a key.
fn may_not(detail: &str) -> bool {
    detail.contains("user executing the script") || detail.contains("ACL failure in script")
}

/// The error of such an answer.
#[cfg(test)]
pub(crate) fn answered(line: &str) -> RedisError {
    match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
        Ok(redis::Value::ServerError(error)) => error.into(),
        other => panic!("{line}: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! rows {
        ($($name:ident: $line:expr => $connecting:ident, $sent:ident;)*) => {
            $(
                #[test]
                fn $name() {
                    for (phase, kind) in [
                        (Phase::Connecting, ErrorKind::$connecting),
                        (Phase::Sent, ErrorKind::$sent),
                    ] {
                        let error = from_redis(Operation::Acquire, phase, answered($line));
                        assert_eq!(error.kind(), kind, "{phase:?}: {error}");
                        assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
                    }
                }
            )*
        };
    }

    rows! {
        our_own_finding: "LKCORRUPT the counter is broken" => Corrupt, Corrupt;
        too_much_to_look_at: "LKLIMIT more than 50000 paths are held below script: f, on @user_script:1." => Limit, Limit;
        an_older_version: "LKVERSION 1" => Config, Config;
        the_version_before: "LKVERSION 3" => Config, Config;
        a_newer_version: "LKVERSION 5" => Config, Config;
        another_type: "WRONGTYPE Operation against a key holding the wrong kind of value" => Corrupt, Corrupt;
        no_password: "NOAUTH Authentication required." => Unauthorized, Unauthorized;
        another_password: "WRONGPASS invalid username-password pair" => Unauthorized, Unauthorized;
        no_right: "NOPERM this user has no permissions" => Unauthorized, Unauthorized;
        no_right_in_a_script: "ERR The user executing the script can't run this command or subcommand script: f, on @user_script:1." => Unauthorized, Unauthorized;
        no_right_in_a_newer_script: "ERR ACL failure in script: User x has no permissions to run the 'hset' command" => Unauthorized, Unauthorized;
        a_replica: "READONLY You can't write against a read only replica." => Unavailable, Unavailable;
        loading: "LOADING Redis is loading the dataset in memory" => Unavailable, Unavailable;
        busy: "BUSY Redis is busy running a script." => Unavailable, Unavailable;
        no_memory: "OOM command not allowed when used memory > 'maxmemory'." => Unavailable, Unavailable;
        no_disk: "MISCONF Redis is configured to save RDB snapshots" => Unavailable, Unavailable;
        no_replicas: "NOREPLICAS Not enough good replicas to write." => Unavailable, Unavailable;
        no_primary: "MASTERDOWN Link with MASTER is down" => Unavailable, Unavailable;
        no_cluster: "CLUSTERDOWN The cluster is down" => Unavailable, Unavailable;
        moved_too_often: "MOVED 1 127.0.0.1:1" => Unavailable, Unavailable;
        moving: "ASK 1 127.0.0.1:1" => Unavailable, Unavailable;
        half_moved: "TRYAGAIN Multiple keys request during rehashing of slot" => Unavailable, Unavailable;
        no_script: "NOSCRIPT No matching script." => Unavailable, Unavailable;
        another_slot: "CROSSSLOT Keys in request don't hash to the same slot" => Config, Config;
        an_old_protocol: "NOPROTO unsupported protocol version" => Config, Config;
        an_old_server: "ERR unknown command 'SSUBSCRIBE'" => Config, Config;
        no_sentinel: "ERR unknown command 'SENTINEL', with args beginning with: 'MASTER' 'm' " => Config, Config;
        too_many_clients: "ERR max number of clients reached" => Unavailable, Indeterminate;
        no_such_database: "ERR DB index is out of range" => Config, Indeterminate;
        anything_else: "ERR something" => Unavailable, Indeterminate;
        an_unknown_code: "ODD something" => Unavailable, Indeterminate;
    }

    #[test]
    fn what_the_way_to_the_server_does() {
        for (phase, kind) in [
            (Phase::Connecting, ErrorKind::Unavailable),
            (Phase::Sent, ErrorKind::Indeterminate),
        ] {
            let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
            let error = from_redis(Operation::Renew, phase, broken.into());
            assert_eq!(error.kind(), kind);
            let unparsed = redis::parse_redis_value(b"?\r\n").expect_err("no value");
            assert_eq!(from_redis(Operation::Renew, phase, unparsed).kind(), kind);
        }
    }

    #[test]
    fn a_refused_user_and_a_configuration_that_cannot_be() {
        for (kind, ours) in [
            (
                redis::ErrorKind::AuthenticationFailed,
                ErrorKind::Unauthorized,
            ),
            (redis::ErrorKind::InvalidClientConfig, ErrorKind::Config),
        ] {
            let error = RedisError::from((kind, "no"));
            let error = from_redis(Operation::Connect, Phase::Connecting, error);
            assert_eq!(error.kind(), ours);
        }
    }

    #[test]
    fn what_a_script_found_is_said() {
        let error = from_redis(
            Operation::Renew,
            Phase::Sent,
            answered("LKCORRUPT it is broken"),
        );
        assert_eq!(error.to_string(), "redis: renew: corrupt: it is broken");
        assert_eq!(
            odd_answer(Operation::Renew).kind(),
            ErrorKind::Indeterminate
        );
    }
}
