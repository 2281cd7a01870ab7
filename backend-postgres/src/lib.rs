//! Locks in PostgreSQL, 14 and later: the backend of lockkeeper for those who have one already.
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. The locks are rows in a schema of their own, and every operation is one call of a
//! function there: one transaction, one round trip (two more where a session in the way is due). A step of any number of
//! claims is taken whole or not at all. Acquisitions and releases of one flat key each that come while others are under way
//! share a call, up to 16, each with an answer of its own. What the function decides about a key it decides under a latch, a
//! lock of the server's that its transaction gives back at its end; no lock is held by a connection, so that poolers,
//! restarts and lost connections do not matter.
//!
//! What is granted waits for the disk, whatever `synchronous_commit` says, and for the standbys where the server is
//! configured so; a release does not. A grant survives a crash of the server. It survives a loss of power unless the
//! server runs with `fsync = off`, and the promotion of a standby if that is a synchronous one. [`Info::survives`] says
//! what was found when connecting. Tokens only rise, over promotions, `pg_upgrade`, restores from a dump, from a copy of the
//! disk and to a point in time: they are raised above the server's clock before the first one is drawn after a start of the
//! server, on another timeline, or from rows that a dump has brought. A clock that is behind what was drawn before is not
//! covered, nor a copy of a whole machine with its memory; then give the namespace greater tokens
//! (`SELECT setval('token', …)` in its schema, below 2^57; that of a guard is 64 times as much).
//!
//! # Its clock
//!
//! The server's wall clock. Who sets it forward ends sessions early.
//!
//! # Its limits
//!
//! - The server is the primary: a standby is refused. Of several in one URL the primary is used; two of them are refused.
//! - The database is in UTF-8, and transactions are `READ COMMITTED`, as they are unless somebody has changed the
//!   default; connections of our own set it.
//! - Every key of a step, and every ancestor of a path, is a latch in a table that the whole server shares. A step has at
//!   most an eighth of what `max_locks_per_transaction` and `max_connections` provide, and at most 1,000 keys.
//! - To read a path, everybody who holds something below it is looked at, one after the other.
//! - Beside some connections for operations there is one that listens for wake-ups, and for what operators do to sessions: a
//!   notification on the channel `lockkeeper:NAMESPACE`, to all of its processes. Behind a pooler in transaction mode
//!   (`pooler=transaction`) there is none, nothing is prepared, and who waits looks every 15 to 25 ms.
//! - The schema refuses some of what could not be understood. A row whose `want` is not known is of a newer version: it
//!   is held, never changed, and goes by [`evict`](lockcore::backend::Inspect::evict). A row whose key is none is in nobody's way,
//!   and is not listed.
//!
//! # Rights
//!
//! The owner of the schema makes it, by [`PostgresBackend::init`] or by connecting. Others need only the right to call
//! its functions, which `init` gives them, and none to its tables. Functions of an older program are replaced when the
//! owner connects, in one transaction, under all who use them; others go on with them, unless they need one that is missing.
//!
//! # With the application's own data
//!
//! Where the data that a lock protects is in the same database, a transaction can refuse a stale holder by the guard's
//! token, or confirm the lock itself: [`PostgresBackend::confirm_in`].
//!
//! [`Info::survives`]: lockcore::Info::survives

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
