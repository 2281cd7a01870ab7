//! Locks in Redis (7 and later, or Valkey): the backend of lockkeeper for one server, a primary with its replicas, or a
//! cluster.
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. Every operation is one script, which the server runs alone. So a batch of any
//! number of claims is taken whole or not at all, and all grants have one order. Requests for one flat key each that
//! come while others are under way share a script, up to 64, each with an answer of its own. A path costs the same at
//! any depth: its ancestors are read and not written. No key has a time to live on the server, and the server evicts
//! none: one whose `maxmemory-policy` evicts such keys (`allkeys-…`) is refused.
//!
//! The durability of a grant depends on the server's settings. [`Info::durability`](lockcore::Info::durability) tells it as
//! of the last connection, as far as the user may read the settings; what is unknown is not promised:
//!
//! - the server's end (`crash`): with `appendonly yes` and `appendfsync always` or `no`. With `everysec` the server may
//!   keep acknowledged writes in memory for up to two seconds.
//! - a loss of power: with `appendfsync always` and `no-appendfsync-on-rewrite no`.
//! - the promotion of a replica: if there is none, or if writes wait for [`replicas`](RedisConfig::replicas) and those
//!   are all of them. Replicas that are added later, or that come back empty, are the operator's responsibility.
//!
//! If grants do not survive, the locks of the lost moments are gone, and their holders are notified at the next
//! renewal: the server then has another `master_replid`, and each client asks it for everything that it holds. Tokens
//! rise all the same. A token is the server's clock in microseconds since 1970, or one more than the last token,
//! whichever is greater; a server with another `master_replid` begins an hour ahead of its clock. So tokens are greater
//! than those that an old primary, cut off from the others, grants for an hour. They go back only if a server takes
//! over whose clock is behind by more than an hour, or by more than the time since the old server's name last changed or
//! the namespace was made; then the client refuses to go on.
//!
//! # Who waits
//!
//! Who waits for one key and is refused stands in the key's record, behind its holders, and comes in its turn, whichever process
//! it is of. Its place is the token of that moment. Where nobody waits no script reads or writes anything more for it; a key for
//! which somebody waits is taken and given back by the long scripts. Where the memory is full nobody gets a place in line, and
//! whoever asks first is served first. Programs of before have another version of the namespace, and are refused.
//!
//! # Which server is used
//!
//! - One host: that server.
//! - Several hosts: all are asked at every connection, and the primary is used. Two that both claim to be the primary
//!   are refused, because each may have grants that the other lacks: make one of them a replica.
//! - Several hosts of a cluster: the one that has the namespace.
//! - Sentinels, as in `redis+sentinel://a,b,c/mymaster`: the server that the sentinel with the latest failover names.
//!   They are asked again whenever a connection was lost, and every 10 s.
//!
//! # Its clock
//!
//! The wall clock of the server. Setting it forward, or promoting a replica whose clock is ahead, ends sessions early
//! by that much.
//!
//! # Its limits
//!
//! - The namespace lies in one slot, that is, on one primary of a cluster: more namespaces use more primaries. While
//!   the slot is being moved, requests fail as [`Unavailable`](lockcore::ErrorKind::Unavailable).
//! - While a batch of 1,000 keys is taken, the server serves nobody else, for about two milliseconds.
//! - The holders of one key are in one record, so a share that thousands hold costs each of them accordingly.
//! - To write a path, every holder below it is read; to read a path, every writer below it.
//! - The user needs the rights in `server/least.acl` of this package. It may lack those to `CLUSTER SLOTS` and `INFO`, and
//!   needs `+select` besides for another database than 0.
//!   Without `INFO` a failover is noticed only if it lost a renewal, and does not raise tokens. The same is true of a
//!   managed service without it. With `+config|get` besides, [`Info::durability`](lockcore::Info::durability) also tells
//!   what survives a crash and a loss of power; but who has that right can read the server's passwords (`requirepass`,
//!   `masterauth`).
//! - Writing or reading a path below which its owner holds more than 50,000 others is refused as over a limit.
//! - Wake-ups use one subscription for each process, on a connection of its own, and a timer for the end of a lease.
//!   Besides, a waiter polls at least once a second. A process that holds something is notified of what operators do to
//!   its sessions. Only a process that has waited is notified of releases; its connection is probed every 5 s.
//! - With [`replicas`](RedisConfig::replicas) every write waits for them. If too few answer in time, the outcome is
//!   unknown.
//! - A record that cannot be understood is held and never changed. A key that is not valid cannot be listed. A session
//!   whose record is unreadable lives; [`evict`](lockcore::backend::Inspect::evict) frees what it holds.
//!
//! # Examples
//!
//! Compiled and not run, because it needs a server; the conformance suite does the same with one.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use lockcore::backend::{Acquire, Acquired, ClaimStore, SessionStore};
//! use lockcore::{Claim, Grant, Label, LockKey, OwnerId, SessionId, Want};
//! use lockcore_redis::{RedisBackend, RedisConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = RedisConfig::parse("redis://127.0.0.1/?namespace=example")?;
//! let backend = RedisBackend::connect(config).await?;
//! let session = SessionId::new(7);
//! backend.open(session, &Label::parse("example")?, Duration::from_secs(30)).await?;
//! let claims = vec![Claim::new(LockKey::parse("reindex")?, Want::Create).unwrap()];
//! let request = Acquire::new(Grant { session, n: 1 }, OwnerId { session, m: 1 }, claims);
//! assert!(matches!(backend.acquire(&request).await?, Acquired::Acquired(_)));
//! backend.release(request.grant, &request.claims).await?;
//! # Ok(())
//! # }
//! ```

mod backend;
mod claims;
mod config;
mod error;
mod inspect;
mod link;
mod primary;
mod record;
mod scripts;
mod server;
mod sessions;
mod wakeups;

pub use backend::RedisBackend;
pub use config::RedisConfig;
/// The version whose types [`RedisConfig::with_client`] takes.
pub use redis;

/// The least rights of a program that uses the namespace `lockkeeper`, as a line of an ACL file: of a user of that name,
/// whose password has to be set.
pub const LEAST_ACL: &str = include_str!("../server/least.acl");

/// A script for the program's own values in a Redis. It writes a value unless a later holder of the lock has written it
/// before. A lease can end while its holder is paused before a write; this refuses that write.
///
/// Its keys are the key of the value, and a second key beside it for the greatest token that has written the value. In
/// a cluster both must be in one slot. Its arguments are the token of the writer's guard and the value. It answers 1 if
/// the value was written, and 0 if it was refused. Every writer of the value must use the script. It compares tokens as
/// texts: as Lua numbers they would be rounded.
///
/// The program runs the script through a client of its own, as a user with the right to `EVALSHA`, `SCRIPT LOAD`, `GET`
/// and `MSET` there.
///
/// # Examples
///
/// Compiled and not run, because it needs a server; the example `fenced` runs it.
///
/// ```no_run
/// use lockcore::FencingToken;
///
/// async fn set_balance(
///     connection: &mut redis::aio::MultiplexedConnection,
///     balance: i64,
///     token: FencingToken,
/// ) -> redis::RedisResult<bool> {
///     redis::Script::new(lockcore_redis::FENCED_SET)
///         .key("{account/1}:balance")
///         .key("{account/1}:token")
///         .arg(token.get())
///         .arg(balance)
///         .invoke_async(connection)
///         .await
/// }
/// ```
pub const FENCED_SET: &str = include_str!("../server/fenced_set.lua");
