//! Locks in Redis (7 and later, or Valkey): the backend of lockkeeper for whoever reaches one server, a primary with its
//! replicas, or a cluster.
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. Every operation is one script, which the server runs alone, so that a step of any
//! number of claims is taken whole or not at all, and there is one order of all grants. Requests for one flat key each
//! that come while others are under way share a script, up to 64, each with an answer of its own. A path costs as much at any
//! depth: its ancestors are read, and not written. Nothing has a time to live in the server's sense, and nothing is
//! ever thrown away by it: a server that evicts is refused.
//!
//! What a grant survives depends on the server's settings, which [`Info::survives`](lockcore::Info::survives) tells as
//! they were when the last connection was made, as far as the user may read them; what is not known is not promised:
//!
//! - the server's end (`crash`): with `appendonly yes` and `appendfsync always` or `no`. With `everysec` the server may
//!   keep what was acknowledged to itself for up to two seconds.
//! - a loss of power: with `appendfsync always` and `no-appendfsync-on-rewrite no`.
//! - the promotion of a replica: where there is none, or where [`replicas`](RedisConfig::replicas) are waited for and
//!   that are all of them. Replicas that are added later, or that come back empty, are the operator's business.
//!
//! Where it does not survive, the locks of the lost moments are gone, and their holders are told at the next renewal: the
//! server has another `master_replid` then, and is asked for all that they hold. Tokens rise all the same: they are
//! microseconds since 1970 by the server's clock, or one more than the last one, whichever is greater, and a server with
//! another `master_replid` begins an hour ahead of the clock. So they are greater than what an old primary that was cut off
//! grants for an hour, and go back only if a server takes over whose clock is behind by more than an hour, or than the old
//! one was up if that is less; then the client refuses to go on.
//!
//! # Which server it is
//!
//! - One host: that one.
//! - Several hosts: all are asked at every connection, and the primary is taken. Two that both say that they are it are
//!   refused, for each may have grants that the other one lacks: make one of them a replica.
//! - Several hosts of a cluster: whichever has the namespace.
//! - Sentinels, as in `redis+sentinel://a,b,c/mymaster`: where the one with the latest failover says. They are asked anew
//!   whenever a connection was lost.
//!
//! # Its clock
//!
//! The wall clock of the server. Who sets it forward, or promotes a replica whose clock is ahead, ends sessions early by
//! that much.
//!
//! # Its limits
//!
//! - The namespace lies in one slot, that is on one primary of a cluster: more namespaces, more primaries. While the
//!   slot is being moved, requests fail as [`Unavailable`](lockcore::ErrorKind::Unavailable).
//! - While a step of 1,000 keys is taken nobody else is served, for about two milliseconds.
//! - The holders of one key are in one record: a share that thousands hold costs each of them as much.
//! - To write a path, everybody who holds something below it is looked at; to read it, every writer below.
//! - The user needs the rights in `server/least.acl` of this package, and may lack those to `CONFIG GET` and `CLUSTER SLOTS`,
//!   and to `INFO`: without that, a failover is noticed only if it lost a renewal, and does not raise tokens. The same goes
//!   for a managed service that does not have those commands.
//! - To write or read a path below which its owner holds more than 50,000 others is refused as over a limit.
//! - Wake-ups go through one subscription for each process, on a connection of its own, and through a timer for the end of a
//!   lease; besides, whoever waits looks once a second at the latest. A process that holds something is told of what operators
//!   do to its sessions. Only one that has waited is told of releases, and its connection is probed every 5 s.
//! - With [`replicas`](RedisConfig::replicas) every write waits for them; too few in time make its outcome unknown.
//! - A record that cannot be understood is held and never changed. A key that is no key cannot be listed; a session
//!   whose record is unreadable lives, and what it holds goes by [`evict`](lockcore::backend::Inspect::evict).
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

/// A script for values of the program's own in a Redis: it writes one, unless a later holder of the lock has written it
/// before. A lease can end while its holder is paused before a write; this refuses that write.
///
/// Its keys are the value's and a second one, beside it, which keeps the greatest token that has written it; in a
/// cluster both have to be in one slot. Its arguments are the token of the writer's guard and the value. It answers 1 if
/// the value was written, and 0 if it was refused. Whoever else writes the value has to use it, too. It compares tokens as
/// texts: as numbers of Lua they would be rounded.
///
/// The program runs it through a client of its own, as a user with the right to `EVALSHA`, `SCRIPT LOAD`, `GET` and
/// `MSET` there.
///
/// # Examples
///
/// Compiled and not run, because it needs a server; the example `fenced-redis` runs it.
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
