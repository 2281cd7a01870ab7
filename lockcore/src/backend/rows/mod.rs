//! The rules of sessions and claims, written once, for stores whose transactions run in this process.
//!
//! Such a store implements [`Rows`], which reads and writes inside one serialisable transaction, and [`RowStore`],
//! which runs an [`Act`] in one. That makes it a [`LockBackend`](crate::LockBackend). This module decides who may
//! acquire what, who is in the way, when a session dies, and what becomes of its intent.
//!
//! A store on a network waits for its rows. A store that never waits, because it runs on a thread of its own or in
//! memory, writes the same `async fn` without an `await` in it, and runs an act with [`ready`].
//!
//! To take a path, the rules read the rows below it. A batch is refused as over a [limit](ErrorKind::Limit) if its
//! owner already holds more than [`MAX_OWN_BELOW`](crate::limits::MAX_OWN_BELOW) other paths below those of the batch,
//! so that a transaction ends soon. Among other owners' rows, the first one in the way suffices.
//!
//! A waiter has a row, too, which [says so](Held::waits). It holds nothing, and refuses later requests that conflict with
//! it. [`ClaimStore`](crate::ClaimStore) has the law.
//!
//! A record that cannot be understood is never changed and never free. A session's record that cannot be read is
//! [`Stored::Unreadable`]; a holder's is [`HolderRow::held`] with an error.

pub(crate) mod claims;
pub(crate) mod inspect;
mod judging;
mod line;
mod over;
mod session;
pub(crate) mod sessions;
mod watch;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

pub use session::{Now, SessionRow};
pub use watch::{Looking, Moved, Moving, Seen, polled};

use crate::backend::judge::{Entry, Place};
use crate::{
    Acquire, Changed, Claim, Error, ErrorKind, FencingToken, Grant, Info, Life, LockKey, Mode,
    Operation, OwnerId, Registered, Result, SessionId, Waiting,
};

/// What is stored under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored<T> {
    /// Nothing.
    Absent,
    /// This row.
    Row(T),
    /// Something that cannot be understood.
    Unreadable,
}

/// A stored holder.
#[derive(Debug, Clone)]
pub struct HolderRow<I> {
    /// The row's id.
    pub id: I,
    /// The session that the row names, whether the row can be understood or not.
    pub session: Option<SessionId>,
    /// The number that the row names, whether the row can be understood or not.
    pub n: u64,
    /// Its meaning.
    pub held: std::result::Result<Held, Strange>,
    /// The time of the grant, for people.
    pub since: Option<SystemTime>,
}

/// A holder's row and its key. The key may be a text that is no valid key.
pub type Keyed<I> = (String, HolderRow<I>);

/// The meaning of a holder's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The holding grant.
    pub grant: Grant,
    /// The owner, which may re-enter.
    pub owner: OwnerId,
    /// The mode in which the row's own key is held.
    pub mode: Mode,
    /// It holds nothing: it waits, in that mode.
    pub waits: Option<Waits>,
}

/// How a row stands in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Its place. It rises.
    pub place: u64,
    /// How often it was passed.
    pub passed: u32,
}

impl From<Waiting> for Waits {
    fn from(Waiting { place, passed, .. }: Waiting) -> Self {
        Self { place, passed }
    }
}

impl Waits {
    /// A waiter of which nobody has examined whether it may go.
    #[must_use]
    pub const fn waiting(self) -> Waiting {
        Waiting {
            place: self.place,
            passed: self.passed,
            may_go: false,
        }
    }
}

/// A holder that cannot be understood. It holds its key in mode X until it is evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strange {
    /// A description for people.
    pub what: String,
    /// The whole content, which distinguishes it from others.
    pub version: String,
}

impl<I> Entry for HolderRow<I> {
    fn grant(&self) -> Option<Grant> {
        self.held.as_ref().ok().map(|held| held.grant)
    }

    fn owner(&self) -> Option<OwnerId> {
        self.held.as_ref().ok().map(|held| held.owner)
    }

    fn mode(&self) -> Mode {
        self.held.as_ref().map_or(Mode::X, |held| held.mode)
    }

    fn waits(&self) -> Option<Waits> {
        self.held.as_ref().ok()?.waits
    }
}

/// Rows of the holders at one place.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The key.
    pub key: &'a LockKey,
    /// The rows on the key, or all rows below it. Never the rows above: they are on keys of their own.
    pub place: Place,
    /// Rows in this mode are certainly not in the way. They may be left out.
    pub but: Option<Mode>,
}

/// What ceased to be live.
#[derive(Debug, Clone, Copy)]
pub enum Freed<'a> {
    /// Something on the keys of these claims.
    Claims(&'a [Claim]),
    /// Something on this key.
    Key(&'a LockKey),
    /// A session, or some of its numbers.
    Any,
}

/// How an act uses the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It changes nothing, and needs no isolation from others.
    Read,
    /// It may change anything.
    Write,
    /// Like `Write`, and it concerns an intent, which needs more durability than a lock.
    Durable,
}

/// A rule found an impossible state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

impl Corrupt {
    /// The error that reports it.
    #[must_use]
    pub fn error(self, backend: &'static str, operation: Operation) -> Error {
        Error::new(ErrorKind::Corrupt, backend, operation, self.0)
    }
}

/// The rows of a store, inside one serialisable transaction. Each method is one statement or a few.
pub trait Rows: Send {
    /// The id of a holder's row, whatever the row means.
    type Id: Clone + Send + Sync + 'static;
    /// A failure of the store. It undoes all that was done in the transaction.
    type Failure: From<Corrupt> + Send;

    /// The time of the transaction.
    fn now(&self) -> Now;

    /// The id of a grant's row on a key.
    fn id(key: &LockKey, grant: Grant) -> Self::Id;

    /// The key of a row; `None` if it is no valid key.
    fn key(id: &Self::Id) -> Option<LockKey>;

    /// Reports that something ceased to be live, to notify waiters. It becomes true when the transaction is committed.
    fn frees(&mut self, freed: Freed<'_>);

    /// A token greater than every one before, and at most [`MAX_STORE_TOKEN`](crate::limits::MAX_STORE_TOKEN).
    fn next_token(&mut self) -> impl Future<Output = Done<FencingToken, Self>> + Send;

    /// A session's record.
    fn session(
        &mut self,
        id: SessionId,
    ) -> impl Future<Output = Done<Stored<SessionRow>, Self>> + Send;

    /// Whether the grant's session lives and its number is not retired.
    fn lives(&mut self, grant: Grant) -> impl Future<Output = Done<Stored<bool>, Self>> + Send {
        async move {
            Ok(match self.session(grant.session).await? {
                Stored::Row(row) => Stored::Row(row.life == Life::Living && row.is_live(grant.n)),
                Stored::Absent => Stored::Absent,
                Stored::Unreadable => Stored::Unreadable,
            })
        }
    }

    /// Creates the record, unless the session has a record, an intent or a holder. Returns whether it was created.
    fn create_session(
        &mut self,
        id: SessionId,
        row: &SessionRow,
    ) -> impl Future<Output = Done<bool, Self>> + Send;

    /// Writes a record, whether one exists or not.
    fn put_session(
        &mut self,
        id: SessionId,
        row: &SessionRow,
    ) -> impl Future<Output = Done<(), Self>> + Send;

    /// A session's intent.
    fn intent(
        &mut self,
        id: SessionId,
    ) -> impl Future<Output = Done<Stored<Registered>, Self>> + Send;

    /// Writes or removes a session's intent.
    fn put_intent(
        &mut self,
        id: SessionId,
        intent: Option<&Registered>,
    ) -> impl Future<Output = Done<(), Self>> + Send;

    /// At most `most` sessions after that one, in the order of their ids.
    fn sessions(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<(SessionId, Stored<SessionRow>)>, Self>> + Send;

    /// The sessions that live and are due.
    fn due(&mut self) -> impl Future<Output = Done<Vec<SessionId>, Self>> + Send;

    /// Removes the records of at most `most` sessions that died before that time and have neither an intent nor
    /// holders. Returns how many were removed.
    fn forget(
        &mut self,
        before: Duration,
        most: usize,
    ) -> impl Future<Output = Done<usize, Self>> + Send;

    /// At most `most` holders at a place after that one, in an order of the store.
    fn holders(
        &mut self,
        at: At<'_>,
        after: Option<&Self::Id>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<HolderRow<Self::Id>>, Self>> + Send;

    /// One holder.
    fn holder(
        &mut self,
        id: &Self::Id,
    ) -> impl Future<Output = Done<Option<HolderRow<Self::Id>>, Self>> + Send;

    /// Writes a row for each claim of the request, as a holder or as a waiter. A row that exists is written again.
    fn hold(
        &mut self,
        request: &Acquire,
        waits: Option<Waits>,
    ) -> impl Future<Output = Done<(), Self>> + Send;

    /// Removes the grant's rows on the claims' keys, if they can be understood. Returns how many of them were holders.
    fn release(
        &mut self,
        grant: Grant,
        claims: &[Claim],
    ) -> impl Future<Output = Done<usize, Self>> + Send;

    /// Removes holders.
    fn remove(&mut self, ids: &[Self::Id]) -> impl Future<Output = Done<(), Self>> + Send;

    /// At most `most` rows that name the session and a number in the range `numbers`, both ends included, after that
    /// number and key, in an order of the store. Each comes with its key, which may be no valid one.
    fn of_session(
        &mut self,
        id: SessionId,
        numbers: (u64, u64),
        after: Option<(u64, &str)>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<Keyed<Self::Id>>, Self>> + Send;

    /// At most `most` sessions after that one that have holders, in the order of their ids.
    fn holding(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<SessionId>, Self>> + Send;

    /// At most `most` keys after that one that begin with `prefix` and have holders, in an order of the store.
    fn keys(
        &mut self,
        prefix: &str,
        after: Option<&LockKey>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<LockKey>, Self>> + Send;
}

/// The result of an operation on rows.
pub type Done<T, R> = std::result::Result<T, <R as Rows>::Failure>;

/// One operation of the traits: the content of one transaction.
pub trait Act: Send + Sync + 'static {
    /// Its answer.
    type Answer: Send + 'static;
    /// Its name in an error.
    const OPERATION: Operation;

    /// How it uses the store.
    fn access(&self) -> Access;

    /// Runs it. A store that had to undo a transaction may run it again in another one.
    fn run<R: Rows>(&self, rows: &mut R) -> impl Future<Output = Done<Self::Answer, R>> + Send;
}

/// A store of [`Rows`]. Every implementation is a [`LockBackend`](crate::LockBackend).
pub trait RowStore: Send + Sync + 'static {
    /// The properties of the store that the client and the operator have to know.
    fn info(&self) -> Info;

    /// Runs the act in one serialisable transaction. An error before the commit had no effect.
    fn transact<A: Act>(&self, act: A) -> impl Future<Output = Result<A::Answer>> + Send;

    /// As [`Wakeups::watch`](crate::Wakeups::watch).
    fn watch(&self, claims: &[Claim]) -> impl Future<Output = Result<Changed>> + Send;
}

/// Runs a future that never waits.
///
/// # Panics
///
/// Panics if the future waits.
#[inline]
pub fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("rows of this store never wait"),
    }
}
