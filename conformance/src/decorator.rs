//! [`Decorator`]: a backend in front of another one.

use std::ops::Deref;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Changed, ClaimStore, End, Filter, Incarnation, Inspect,
    Opened, Page, Record, Renewal, Renewed, SessionStore, Settled, Stood, Sweep, Swept, Wakeups,
};
use lockcore::{
    Claim, Grant, Info, Label, LockBackend, Note, OwnerId, Result, SessionId, SessionState,
};

use crate::request::{Answer, Request};

/// A [`Decorator`] as a backend.
#[derive(Debug)]
pub struct Decorated<D>(pub D);

impl<D> Deref for Decorated<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.0
    }
}

impl<D: Decorator> LockBackend for Decorated<D> {
    fn info(&self) -> Info {
        self.0.info()
    }
}

/// The methods of the store's traits, each with its request: those of [`Decorator`], and of [`Decorated`].
macro_rules! methods {
    ($($store:ident { $(
        $name:ident($($argument:ident: $type:ty),+) -> $answer:ty = $kind:ident $request:tt;
    )+ })+) => {
        /// Changes some calls of a backend, and passes on the others. [`Decorated`] makes it a backend.
        ///
        /// What concerns one operation is in its method. What concerns many is in [`call`](Self::call), which receives
        /// every operation as a [`Request`].
        ///
        /// ```
        /// use std::sync::Arc;
        ///
        /// use lockcore::backend::Stood;
        /// use lockcore::{Claim, Grant, LockBackend, MemoryBackend, async_trait};
        /// use lockcore_conformance::{Decorated, Decorator};
        ///
        /// /// Forgets what it is asked to release.
        /// struct Forgetful(Arc<MemoryBackend>);
        ///
        /// #[async_trait]
        /// impl Decorator for Forgetful {
        ///     fn inner(&self) -> &dyn LockBackend { &*self.0 }
        ///     async fn release(&self, _: Grant, _: &[Claim]) -> lockcore::Result<Stood> { Ok(Stood::Held) }
        /// }
        ///
        /// let backend: Arc<dyn LockBackend> = Arc::new(Decorated(Forgetful(MemoryBackend::new())));
        /// assert_eq!(backend.info().name, "memory");
        /// ```
        #[async_trait]
        #[expect(missing_docs, reason = "the methods are those of the store's traits")]
        pub trait Decorator: Send + Sync {
            /// The backend that receives the calls.
            fn inner(&self) -> &dyn LockBackend;

            /// Receives the calls of all methods that are not implemented. By default passes them on.
            ///
            /// # Errors
            ///
            /// The call's.
            ///
            /// # Panics
            ///
            /// The method panics if the answer is of another kind than the request.
            async fn call(&self, request: Request) -> Result<Answer> {
                request.send(self.inner()).await
            }

            fn info(&self) -> Info {
                self.inner().info()
            }

            $($(async fn $name(&self, $($argument: $type),+) -> Result<$answer> {
                match self.call(Request::$kind $request).await? {
                    Answer::$kind(answer) => Ok(answer),
                    other => panic!("a decorator answers {} with {other:?}", stringify!($name)),
                }
            })+)+
        }

        $(#[async_trait]
        impl<D: Decorator> $store for Decorated<D> {
            $(async fn $name(&self, $($argument: $type),+) -> Result<$answer> {
                self.0.$name($($argument),+).await
            })+
        })+
    };
}

methods! {
    SessionStore {
        open(session: SessionId, label: &Label, ttl: Duration) -> Opened
            = Open { session, label: label.clone(), ttl };
        renew(session: SessionId, renewal: &Renewal) -> Renewed
            = Renew { session, renewal: renewal.clone() };
        end(sessions: &[SessionId], how: End) -> Vec<SessionState>
            = End { sessions: sessions.to_vec(), how };
        adopt(session: SessionId, seen: u64, adopter: SessionId, how: Adopt, within: Incarnation) -> Adopted
            = Adopt { session, seen, adopter, how, within };
        settle(session: SessionId, adoption: u64, adopter: SessionId, within: Incarnation) -> Settled
            = Settle { session, adoption, adopter, within };
        note(session: SessionId, note: &Note) -> bool
            = Note { session, note: note.clone() };
    }
    ClaimStore {
        acquire(request: &Acquire) -> Acquired
            = Acquire(request.clone());
        release(grant: Grant, claims: &[Claim]) -> Stood
            = Release { grant, claims: claims.to_vec() };
        confirm(grant: Grant, claims: &[Claim]) -> bool
            = Confirm { grant, claims: claims.to_vec() };
        sweep(which: Sweep, limit: usize) -> Swept
            = Sweep { which, limit };
    }
    Wakeups {
        watch(claims: &[Claim]) -> Changed
            = Watch { claims: claims.to_vec() };
        watch_turn(grant: Grant, owner: OwnerId, claim: &Claim) -> Option<Changed>
            = WatchTurn { grant, owner, claim: claim.clone() };
        watch_session(session: SessionId) -> Changed
            = WatchSession { session };
    }
    Inspect {
        records(filter: &Filter, after: Option<&str>, limit: usize) -> Page<Record>
            = Records { filter: filter.clone(), after: after.map(str::to_owned), limit };
        sessions(after: Option<&str>, limit: usize) -> Page<SessionState>
            = Sessions { after: after.map(str::to_owned), limit };
        session_states(sessions: &[SessionId]) -> Vec<Option<SessionState>>
            = SessionStates { sessions: sessions.to_vec() };
        lease_left(sessions: &[SessionId]) -> Vec<Option<Duration>>
            = LeaseLeft { sessions: sessions.to_vec() };
        evict(seen: &Record) -> bool
            = Evict { seen: seen.clone() };
    }
}
