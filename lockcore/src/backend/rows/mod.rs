//! The rules of sessions and claims, once, for stores whose transactions run in our process.
//!
//! Such a store supplies [`Rows`], which reads and writes inside one serialisable transaction, and [`RowStore`], which
//! runs an [`Act`] in one; then it is a [`LockBackend`](crate::LockBackend). Who may acquire what, who is in the way,
//! when a session dies and what becomes of its intent is decided here.
//!
//! A store on a network waits for its rows. One that never does, because it runs on a thread of its own or in memory,
//! writes the same `async fn` without an `await` in it and runs an act with [`ready`].
//!
//! To take a path, the rows below it are read. A step below whose paths its owner already holds more than
//! [`MAX_OWN_BELOW`](crate::limits::MAX_OWN_BELOW) others is refused as over a [limit](ErrorKind::Limit), so that a
//! transaction ends soon; of somebody else's rows the first that is in the way is enough.
//!
//! What cannot be understood is never changed and never free. A session's record that cannot be read is
//! [`Stored::Unreadable`]; a holder's is [`HolderRow::held`] with an error.

pub(crate) mod claims;
pub(crate) mod inspect;
mod judging;
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
    Operation, OwnerId, Registered, Result, SessionId,
};

/// What is stored under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored<T> {
    /// Nothing.
    Absent,
    /// This.
    Row(T),
    /// Something that cannot be understood.
    Unreadable,
}

/// A holder, as it is stored.
#[derive(Debug, Clone)]
pub struct HolderRow<I> {
    /// Which row it is.
    pub id: I,
    /// The session that it names, understood or not.
    pub session: Option<SessionId>,
    /// The number that it names, understood or not.
    pub n: u64,
    /// What it means.
    pub held: std::result::Result<Held, Strange>,
    /// Since when, for people.
    pub since: Option<SystemTime>,
}

/// A holder's row with its key, which may be none that can be asked for.
pub type Keyed<I> = (String, HolderRow<I>);

/// What a holder's row means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Who holds.
    pub grant: Grant,
    /// Who may re-enter.
    pub owner: OwnerId,
    /// How the row's own key is held.
    pub mode: Mode,
}

/// A holder that cannot be understood: it holds its key in mode X until it is evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strange {
    /// What can be said of it, for people.
    pub what: String,
    /// All that it says, so that another one is told from it.
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
}

/// Rows of the holders at one place.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The key.
    pub key: &'a LockKey,
    /// Those on the key, or all below it. Never those above: they are on keys of their own.
    pub place: Place,
    /// Rows in this mode are certainly not in the way: they may be left out.
    pub but: Option<Mode>,
}

/// What stopped counting.
#[derive(Debug, Clone, Copy)]
pub enum Freed<'a> {
    /// Something on the keys of these claims.
    Claims(&'a [Claim]),
    /// Something on this key.
    Key(&'a LockKey),
    /// A session, or some of its numbers.
    Any,
}

/// What an act does to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It changes nothing, and need not be kept apart from others.
    Read,
    /// It changes what it likes.
    Write,
    /// The same, and it is about an intent, which survives more than a lock has to.
    Durable,
}

/// A rule found something that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

impl Corrupt {
    /// The error that says so.
    #[must_use]
    pub fn error(self, backend: &'static str, operation: Operation) -> Error {
        Error::new(ErrorKind::Corrupt, backend, operation, self.0)
    }
}

/// The rows of a store, inside one serialisable transaction. Each method is one statement or a few.
pub trait Rows: Send {
    /// Which row of the holders, whatever it means.
    type Id: Clone + Send + Sync + 'static;
    /// Why the store failed; what had been done in the transaction is undone.
    type Failure: From<Corrupt> + Send;

    /// The time of the transaction.
    fn now(&self) -> Now;

    /// The name of a grant's row on a key.
    fn id(key: &LockKey, grant: Grant) -> Self::Id;

    /// Says that something stopped counting, for who waits. Believe it when the transaction is committed.
    fn frees(&mut self, freed: Freed<'_>);

    /// A token greater than every one before, and at most [`MAX_STORE_TOKEN`](crate::limits::MAX_STORE_TOKEN).
    fn next_token(&mut self) -> impl Future<Output = Done<FencingToken, Self>> + Send;

    /// A session's record.
    fn session(
        &mut self,
        id: SessionId,
    ) -> impl Future<Output = Done<Stored<SessionRow>, Self>> + Send;

    /// Whether the grant's session lives, and its number is not over.
    fn lives(&mut self, grant: Grant) -> impl Future<Output = Done<Stored<bool>, Self>> + Send {
        async move {
            Ok(match self.session(grant.session).await? {
                Stored::Row(row) => Stored::Row(row.life == Life::Living && row.counts(grant.n)),
                Stored::Absent => Stored::Absent,
                Stored::Unreadable => Stored::Unreadable,
            })
        }
    }

    /// Creates the record, unless there is one, or an intent or a holder of that session. Says whether it did.
    fn create_session(
        &mut self,
        id: SessionId,
        row: &SessionRow,
    ) -> impl Future<Output = Done<bool, Self>> + Send;

    /// Writes a record, whether there is one or not.
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

    /// Some sessions after that one, in the order of their ids.
    fn sessions(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<(SessionId, Stored<SessionRow>)>, Self>> + Send;

    /// The sessions that live and are due.
    fn due(&mut self) -> impl Future<Output = Done<Vec<SessionId>, Self>> + Send;

    /// Removes the records of some sessions that are dead since before then and have neither an intent nor holders.
    /// Says how many it removed.
    fn forget(
        &mut self,
        before: Duration,
        most: usize,
    ) -> impl Future<Output = Done<usize, Self>> + Send;

    /// Some holders at a place after that one, in an order of the store.
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

    /// Writes a row for each claim of the request; one that is there is written again.
    fn hold(&mut self, request: &Acquire) -> impl Future<Output = Done<(), Self>> + Send;

    /// Removes the grant's rows on the claims' keys, if they can be understood. Says how many there were.
    fn release(
        &mut self,
        grant: Grant,
        claims: &[Claim],
    ) -> impl Future<Output = Done<usize, Self>> + Send;

    /// Removes holders.
    fn remove(&mut self, ids: &[Self::Id]) -> impl Future<Output = Done<(), Self>> + Send;

    /// Some rows that name the session and a number from the first to the second, after that number and key, in an
    /// order of the store. With their keys, of which some may be none.
    fn of_session(
        &mut self,
        id: SessionId,
        numbers: (u64, u64),
        after: Option<(u64, &str)>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<Keyed<Self::Id>>, Self>> + Send;

    /// Some sessions after that one that have holders, in the order of their ids.
    fn holding(
        &mut self,
        after: Option<SessionId>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<SessionId>, Self>> + Send;

    /// Some keys after that one that begin so and have holders, in an order of the store.
    fn keys(
        &mut self,
        prefix: &str,
        after: Option<&LockKey>,
        most: usize,
    ) -> impl Future<Output = Done<Vec<LockKey>, Self>> + Send;
}

/// What an operation on rows came to.
pub type Done<T, R> = std::result::Result<T, <R as Rows>::Failure>;

/// One operation of the traits: what is done in one transaction.
pub trait Act: Send + Sync + 'static {
    /// What comes of it.
    type Answer: Send + 'static;
    /// What it is called in an error.
    const OPERATION: Operation;

    /// What it does to the store.
    fn access(&self) -> Access;

    /// Does it. A store that had to undo a transaction may run it again in another one.
    fn run<R: Rows>(&self, rows: &mut R) -> impl Future<Output = Done<Self::Answer, R>> + Send;
}

/// A store of [`Rows`]. Whoever implements this has a [`LockBackend`](crate::LockBackend).
pub trait RowStore: Send + Sync + 'static {
    /// What the client and the operator have to know about the store.
    fn info(&self) -> Info;

    /// Runs the act in one serialisable transaction. An error before the commit had no effect.
    fn transact<A: Act>(&self, act: A) -> impl Future<Output = Result<A::Answer>> + Send;

    /// As [`Wakeups::watch`](crate::Wakeups::watch).
    fn watch(&self, claims: &[Claim]) -> impl Future<Output = Result<Changed>> + Send;
}

/// Runs what never waits.
///
/// # Panics
///
/// Panics if it waits after all.
#[inline]
pub fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("rows of this store never wait"),
    }
}
