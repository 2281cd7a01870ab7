//! Locks in PostgreSQL, 14 and later: the backend of lockkeeper for applications that already use it.
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. The locks are rows in a schema of their own, and every operation is one call of a
//! function there: one transaction, one round trip (two more if a session in the way is due). A batch of any number of
//! claims is taken whole or not at all. Acquisitions and releases of one flat key each that come while others are under
//! way share a call, up to 16, each with an answer of its own. The function decides about a key under a latch, a lock
//! of the server that its transaction gives back at its end. No connection holds a lock, so poolers, restarts and lost
//! connections do not matter.
//!
//! A waiter has a row beside those of the holders, with a place, which is a token. The call that refuses writes it, under
//! the same latch as a holder's row; it does not wait for the disk. Of the acquisitions that share a call, one whose key
//! has a line is asked for by itself.
//!
//! A grant waits for the disk, whatever `synchronous_commit` says, and for the standbys if the server is configured so;
//! a release does not. A grant survives a crash of the server. It survives a loss of power unless the server runs with
//! `fsync = off`, and the promotion of a standby if that is a synchronous one. [`Info::durability`] says what was found
//! when connecting.
//!
//! Tokens only rise, over promotions, `pg_upgrade`, restores from a dump, from a copy of the disk and to a point in
//! time. They are raised above the server's clock before the first one is drawn after a start of the server, on another
//! timeline, or from rows that a dump has brought. Two cases are not covered: a clock that is behind the tokens drawn
//! before, and a copy of a whole machine with its memory. Then give the namespace greater tokens (`SELECT
//! setval('token', …)` in its schema, below 2^57; the token of a guard is 64 times as much).
//!
//! # Its clock
//!
//! The server's wall clock. Setting it forward ends sessions early.
//!
//! # Its limits
//!
//! - The server is the primary: a standby is refused. Of several servers in one URL the primary is used; two primaries
//!   are refused.
//! - The database is in UTF-8, and transactions are `READ COMMITTED`, the usual default; the backend's own connections
//!   set it.
//! - Every key of a batch, and every ancestor of a path, is a latch in a table that the whole server shares. A batch
//!   has at most an eighth of what `max_locks_per_transaction` and `max_connections` provide, and at most 1,000 keys.
//! - To read a path, every holder below it is read, one after the other.
//! - Besides some connections for operations, one connection listens for wake-ups and for what operators do to
//!   sessions: a notification on the channel `lockkeeper:NAMESPACE`, to all of its processes. Behind a pooler in
//!   transaction mode (`pooler=transaction`) there is no such connection, nothing is prepared, and a waiter polls every
//!   15 to 25 ms.
//! - The schema rejects some records that could not be understood. A row whose `want` is unknown is of a newer version:
//!   it is held and never changed, and [`evict`](lockcore::backend::Inspect::evict) removes it. A row whose key is not
//!   valid is in nobody's way and is not listed.
//!
//! # Rights
//!
//! The owner of the schema creates it, by [`PostgresBackend::init`] or by connecting. Other users need only the right
//! to call its functions, which `init` grants, and none to its tables. When the owner connects, it replaces the
//! functions of an older program in one transaction, while others use them. Other users keep using the old functions,
//! unless they need one that is missing.
//!
//! # With the application's own data
//!
//! If the data that a lock protects is in the same database, a transaction can refuse a stale holder by the guard's
//! token, or confirm the lock itself: [`PostgresBackend::confirm_in`].
//!
//! [`Info::durability`]: lockcore::Info::durability

mod backend;
mod claims;
mod config;
mod connections;
mod error;
mod hosts;
mod inspect;
mod namespace;
mod record;
mod sessions;
mod sql;
mod wakeups;

pub use backend::PostgresBackend;
pub use config::PostgresConfig;
