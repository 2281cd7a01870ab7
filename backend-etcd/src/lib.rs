//! Locks in etcd (3.4 and later): the backend of lockkeeper for applications that reach a cluster of it.
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. Every grant, death, adoption and settlement is one transaction. A majority of the
//! members writes it to disk before it is answered. So acknowledged grants survive the end of any member, a loss of
//! power and failover, as long as a majority has its disks. Without a majority nothing is granted, renewed or released.
//! etcd's own lock service is not used.
//!
//! A batch that meets nobody takes one round trip at any depth: nothing is written for the ancestors of a path. A batch
//! that meets somebody takes a second one to read who it is, a third to learn whether their sessions live, and a fourth
//! if none of them is in the way after all. The server notifies a waiter of a release. Acquisitions and releases of one
//! flat key each that come while others are under way share a transaction, up to 16, each with an answer of its own.
//!
//! A request that is refused and waits stands in line, at the cost of one more transaction: a key says so where its holder
//! will stand. It comes before every later request, and its place is the revision that first wrote that key. What was read
//! of waiters is compared like what was read of holders: if a waiter has come meanwhile, all is read again. A line costs
//! nothing while nobody waits; a waiter whose turn has come takes two round trips.
//!
//! Only the liveness of a session is on a lease. Holders are plain keys. They are live as long as their session lives
//! or has left an intent, and are removed when they are met, or by a sweep. So a lease that ends takes no intent's
//! locks with it, and a million locks need one lease.
//!
//! # Tokens
//!
//! A token is the revision of the transaction that granted it, above a base that is stored under the namespace.
//! Requests that share a transaction, for different keys, get the same token. Revisions go back when a cluster is
//! restored from a snapshot. The base names the cluster in which it was made. A program that connects to a cluster of
//! another id, or to one that has gone back behind the revisions that it has seen, creates a new and greater base.
//! Answers on connections that were made before that count as unknown.
//!
//! Each base is another [incarnation](lockcore::backend::Incarnation), which requests name: a session moves to a new
//! one only with all its grants. So restore with another `--initial-cluster-token`, as etcd's manual says. A cluster
//! that keeps its name has the same id: only a program that has seen later revisions notices it, and with
//! `--bump-revision` nobody does. If perhaps nobody has seen later revisions, remove the key `NAMESPACE/meta` after the
//! restore; the next program that connects recreates it. Sessions that lived when the snapshot was taken are back for
//! one lease. The guards of later sessions are notified at the next renewal.
//!
//! # Its clock
//!
//! The monotonic clock of the leader. A lease lasts whole seconds and at least two (with the server's default election
//! time-out), and ends up to a second late. A new leader begins every lease anew: after a failover the locks of a dead
//! holder are free up to a TTL later than otherwise, never earlier. Every renewal puts the session on a new lease. The
//! reason: only the leader knows when a lease was last kept alive, so a leader that is stopped for longer than a lease,
//! and continues while another one leads, would end leases that are alive.
//!
//! # What is under the namespace
//!
//! | key | value |
//! |---|---|
//! | `meta` | the version, the base of the tokens, and its cluster |
//! | `lock/KEY\0x` | the exclusive holder: grant, mode, owner, time. In `KEY` each `/` is the byte 1, so that the store's order is path order. |
//! | `lock/KEY\0xGRANT` | the same: a second holder of its owner, or a holder that has waited. A waiter has a `.` behind the grant, and how often it was passed |
//! | `lock/KEY\0\0GRANT` | a holder that shares the key or reads it, or a waiter for that |
//! | `session/ID/live` | the number of the last renewal, on the lease: the session lives as long as this exists |
//! | `session/ID/over/LAST` | the first number of a range of retired numbers; one key stands after all others, so that one comparison says whether a number is retired |
//! | `session/ID/label`, `intent`, `adoption`, `adopter` | the remains of the session after its death |
//! | `intent/ID` | the payload of its intent |
//! | `ttl/ID` | how long it lives without a renewal, in milliseconds; removed when the session's remains expire by themselves: the sweep reads only these |
//! | `batch/ID/N` | the keys that a request has taken, for the sweep |
//! | `batch/ID/~N` | the key that a request waits for, for the sweep and for the renewal that retires the number |
//! | `news` | the sessions that were last revoked or given a note |
//!
//! A key in a holder's place that cannot be understood is held, and never changed. A session that cannot be understood
//! lives.
//!
//! # Rights
//!
//! On a server with users a program needs to read and write below its namespace, and nothing else. The commands for the
//! namespace `lockkeeper`:
//!
//! ```sh
#![doc = include_str!("../server/least.sh")]
//! ```
//!
//! Any user with these rights can break any lock of the namespace. Servers before 3.5.28 and 3.6.9 check less than they
//! should.
//!
//! # Its limits
//!
//! - A batch has at most as many claims and ancestors as the server's `--max-txn-ops` (128, unless [set
//!   otherwise](EtcdConfig::operations)) less three, and as fit into a request of 1.5 MiB: some hundreds of the longest
//!   keys, or two thousand short ones. A server with a smaller `--max-request-bytes` refuses longer batches.
//! - All writes have one order and use one disk: some thousands of locks a second for all namespaces together.
//! - The server keeps every change until it compacts: set `--auto-compaction-retention`. Until then a writer also
//!   passes over every former reader of its key, and the taker of a path over every key that was held below it. When
//!   the server's space is used up, releases (but for those of guards with an
//!   intent) go on, and nothing is granted or renewed until an operator compacts,
//!   defragments and disarms the alarm.
//! - Shares with a limit on one key disturb each other: the quicker ones go first.
//! - Reading a path beside other readers, or sharing a key with a limit beside others, takes three round trips.
//! - Debian's 3.4.23 answers a read with past state after it was stopped and continued. No read here gives a lock away.
//!
//! # Building
//!
//! The driver's build script runs `protoc`, which must be installed with the files that it includes (on Debian
//! `protobuf-compiler` and `libprotobuf-dev`).
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
//! use lockcore_etcd::{EtcdBackend, EtcdConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = EtcdConfig::parse("etcds://me:secret@a,b,c/?namespace=example&ca=/etc/ca.pem")?;
//! let backend = EtcdBackend::connect(config).await?;
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
mod fenced;
mod inspect;
mod judging;
mod line;
mod link;
mod namespace;
mod pages;
mod record;
mod sessions;
mod states;
mod sweep;
mod together;
mod txn;
mod wakeups;

pub use backend::EtcdBackend;
pub use config::EtcdConfig;
/// The version whose types [`EtcdConfig::with_client`] takes.
pub use etcd_client;
pub use fenced::fenced;

/// The commands that create a user and a role with the least rights of a program that uses the namespace `lockkeeper`.
/// The user's password has to be set.
pub const LEAST_ROLE: &str = include_str!("../server/least.sh");
