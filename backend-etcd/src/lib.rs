//! Locks in etcd (3.4 and later): the backend of lockkeeper for whoever reaches a cluster of it.
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. Every grant, death, adoption and settlement is one transaction, which a majority of
//! the members has written to disk before it is answered: acknowledged grants survive the end of any member, a loss of
//! power and failover, as long as a majority has its disks. While there is no majority, nothing is granted, renewed or
//! released. etcd's own lock service is not used.
//!
//! A step that meets nobody is one round trip at any depth: nothing is written for the ancestors of a path. One that meets
//! somebody takes a second to read who it is, a third to learn whether their sessions live, and a fourth if none of them is
//! in the way after all. A waiter is told of a release by the server. Acquisitions and releases of one flat key each that
//! come while others are under way share a transaction, up to 16, each with an answer of its own.
//!
//! Only the liveness of a session is on a lease. Holders are plain keys, which count as long as their session lives or has
//! left an intent, and are removed when they are met, or by a sweep: a lease that ends takes no intent's locks with it, and
//! a million locks are one lease.
//!
//! # Tokens
//!
//! A token is the revision of the transaction that granted it, above a base that is under the namespace. Those who
//! share a transaction, for different keys, have the same. Revisions go back when a cluster is restored from a
//! snapshot. The base names the cluster that it was made in. Whoever connects to a cluster of another id, or to one
//! that has gone back behind what it has heard of, makes the base anew, and greater. What is answered on a connection
//! that was made before that is taken for unknown.
//!
//! Each base is another [incarnation](lockcore::backend::Incarnation), which requests name: sessions move to a new one only
//! with all their grants. So restore with another `--initial-cluster-token`, as etcd's manual has it. A cluster that keeps
//! its name has the same id: it is noticed by whoever has heard of later revisions, and with `--bump-revision` by nobody.
//! Where nobody may have, remove the key `NAMESPACE/meta` after the restore, and whoever connects next makes it anew.
//! Sessions that lived when the snapshot was taken are back for one lease; the guards of later ones are told at the next
//! renewal.
//!
//! # Its clock
//!
//! The monotonic clock of the leader. A lease lasts whole seconds and at least two (with the server's own election
//! time-out), and ends up to a second late. Whoever becomes leader begins every lease anew: after a failover the locks of a
//! dead holder are free a TTL later than otherwise, never earlier. Every renewal puts the session on a new lease: when a
//! lease was kept alive is known to the leader alone, and one that is stopped for longer than a lease lasts, and goes on
//! when another one leads, would end leases that live.
//!
//! # What is under the namespace
//!
//! | key | value |
//! |---|---|
//! | `meta` | the version, where the tokens begin, and in which cluster |
//! | `lock/KEY\0x` | who holds it exclusively: the grant, how, for which owner, since when. In `KEY` each `/` is the byte 1, so that the store's order is path order. The same owner's second one has its grant behind the `x` |
//! | `lock/KEY\0\0GRANT` | one of those who share it, or read it |
//! | `session/ID/live` | the number of the last renewal, on the lease: the session lives as long as this is there |
//! | `session/ID/over/LAST` | the first of a range of numbers that are over; one key stands behind all, so that one comparison says whether a number is over |
//! | `session/ID/label`, `intent`, `adoption`, `adopter` | what is left of it when it has died |
//! | `intent/ID` | the payload of its intent |
//! | `ttl/ID` | how long it lives without a renewal, in milliseconds; gone when what is left of it goes by itself: the sweep looks at these alone |
//! | `step/ID/N` | what a request has taken, for the sweep |
//! | `news` | the sessions that were revoked last, or noted for |
//!
//! A key that cannot be understood where a holder would stand is held, and never changed. A session that cannot be
//! understood lives.
//!
//! # Rights
//!
//! On a server with users a program needs to read and write below its namespace, and nothing else. As commands, for the
//! namespace `lockkeeper`:
//!
//! ```sh
#![doc = include_str!("../server/least.sh")]
//! ```
//!
//! Who has these may break every lock of the namespace. Servers before 3.5.28 and 3.6.9 check less than they should.
//!
//! # Its limits
//!
//! - So many claims and ancestors fit into a step: the server's `--max-txn-ops` (128, unless
//!   [said otherwise](EtcdConfig::operations)) less three, and as many as fit into a request of 1.5 MiB: some hundreds of the
//!   longest keys, or two thousand short ones. A server with a smaller `--max-request-bytes` refuses steps that are longer.
//! - One order of all writes, and one disk: some thousands of locks a second for all namespaces together.
//! - Every change is kept until the server compacts: give it `--auto-compaction-retention`. Until then a writer also passes
//!   over every reader of its key who has gone, and whoever takes a path over every key that was held below it. When its space is used up,
//!   releases go on, and nothing is granted or renewed until somebody compacts, defragments and disarms the alarm.
//! - Shares with a limit of one key disturb each other: those who are quicker go first.
//! - To read a path beside other readers, or to share a key with a limit beside others, takes three round trips.
//! - Debian's 3.4.23 answers a read from the past after it was stopped and continued. No lock is given away by a read here.
//!
//! # Building
//!
//! The driver's build script runs `protoc`, which has to be installed with the files that it includes (on Debian
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
pub use fenced::fenced;
