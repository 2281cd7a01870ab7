//! Mistakes in waking who waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Changed, End, Incarnation, Record, Settled, Stood, never,
};
use lockcore::{Claim, Grant, LockBackend, Note, Result, SessionId, SessionState, async_trait};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::support::Store;

pub(crate) fn all() -> Vec<Broken> {
    let restless = |name, after| {
        Broken::new(name, Law::Waiting, move |store| Restless {
            store,
            after: Some(after),
            of_session: None,
            beside: None,
        })
    };
    let mut all = vec![
        // With less the client would ask for ever at one moment of paused time.
        restless("watch that always wakes", Duration::from_millis(1)),
        restless(
            "watch that wakes every now and then",
            Duration::from_millis(100),
        ),
        Broken::new(
            "watch that wakes when anything is asked",
            Law::Waiting,
            Nosy::new,
        ),
        Broken::new(
            "watch that goes on when it is dropped",
            Law::Waiting,
            Lingers,
        ),
        Broken::new("watch that hears of no eviction", Law::Waiting, |store| {
            Hears::new(store, Event::Eviction, None)
        }),
        Broken::new("watch over a session that never wakes", Law::Waiting, Deaf),
        Broken::new(
            "watch over a session that always wakes",
            Law::Waiting,
            |store| Restless {
                store,
                after: None,
                of_session: Some(Duration::from_millis(1)),
                beside: None,
            },
        ),
        Broken::new(
            "watch that always wakes beside one over a session",
            Law::Waiting,
            |store| Restless {
                store,
                after: None,
                of_session: None,
                beside: Some(AtomicUsize::new(0)),
            },
        ),
        Broken::new(
            "watch over a session that hears of others",
            Law::Waiting,
            |store| Overhears(store, Arc::default()),
        ),
    ];
    let late = [
        ("release", Event::Release),
        ("expiry", Event::Expiry),
        ("close", Event::Close),
        ("revocation", Event::Revocation),
        ("eviction", Event::Eviction),
        ("settlement", Event::Settlement),
        ("discard", Event::Discard),
    ];
    for (what, event) in late {
        let name = format!("wake-up a second after the {what}");
        all.push(Broken::new(name, Law::Waiting, move |store| {
            Hears::new(store, event, Some(Duration::from_secs(1)))
        }));
    }
    all
}

/// Wakes though nothing has happened.
struct Restless {
    store: Store,
    after: Option<Duration>,
    of_session: Option<Duration>,
    /// How many watches over sessions there were.
    beside: Option<AtomicUsize>,
}

fn restless(changed: Changed, after: Option<Duration>) -> Changed {
    let Some(after) = after else {
        return changed;
    };
    Box::pin(async move {
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(after) => {}
        }
    })
}

#[async_trait]
impl Decorator for Restless {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let is_beside = |beside: &AtomicUsize| beside.load(Ordering::Relaxed) > 0;
        let beside = self.beside.as_ref().is_some_and(is_beside);
        let after = beside.then_some(Duration::from_millis(1)).or(self.after);
        Ok(restless(self.store.watch(claims).await?, after))
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        if let Some(beside) = &self.beside {
            beside.fetch_add(1, Ordering::Relaxed);
        }
        let changed = self.store.watch_session(session).await?;
        Ok(restless(changed, self.of_session))
    }
}

/// Nobody hears of what others do to its session.
struct Deaf(Store);

#[async_trait]
impl Decorator for Deaf {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn watch_session(&self, _: SessionId) -> Result<Changed> {
        Ok(never())
    }
}

/// Whoever watches a session hears of every note.
struct Overhears(Store, Arc<tokio::sync::Notify>);

#[async_trait]
impl Decorator for Overhears {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        let noted = self.0.note(session, note).await;
        self.1.notify_waiters();
        noted
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        let (changed, any) = (self.0.watch_session(session).await?, Arc::clone(&self.1));
        Ok(Box::pin(async move {
            tokio::select! {
                biased;
                () = changed => {}
                () = any.notified() => {}
            }
        }))
    }
}

/// Wakes everybody at each request, more than once.
struct Nosy {
    store: Store,
    asked: Arc<AtomicUsize>,
}

impl Nosy {
    fn new(store: Store) -> Self {
        let asked = Arc::default();
        Self { store, asked }
    }
}

#[async_trait]
impl Decorator for Nosy {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.asked.fetch_add(8, Ordering::SeqCst);
        self.store.acquire(request).await
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let (changed, asked) = (self.store.watch(claims).await?, Arc::clone(&self.asked));
        let told = async move {
            let less = |asked: usize| asked.checked_sub(1);
            let is_told = || asked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if is_told().is_ok() {
                    return;
                }
            }
        };
        Ok(Box::pin(async move {
            tokio::select! {
                () = changed => {}
                () = told => {}
            }
        }))
    }
}

/// Looks in a task of its own, which nobody ends.
struct Lingers(Store);

#[async_trait]
impl Decorator for Lingers {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let changed = self.0.watch(claims).await?;
        let (tell, told) = tokio::sync::oneshot::channel();
        #[expect(
            clippy::disallowed_methods,
            reason = "the task that stays is the mistake"
        )]
        tokio::spawn(async move {
            changed.await;
            let _ = tell.send(());
        });
        Ok(Box::pin(async move {
            let _ = told.await;
        }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Release = 1,
    Expiry,
    Close,
    Revocation,
    Eviction,
    Settlement,
    Discard,
}

/// Hears late of one kind of event, or never.
struct Hears {
    store: Store,
    event: Event,
    late: Option<Duration>,
    last: Arc<AtomicUsize>,
}

impl Hears {
    fn new(store: Store, event: Event, late: Option<Duration>) -> Self {
        Self {
            store,
            event,
            late,
            last: Arc::default(),
        }
    }

    fn note(&self, event: Event) {
        self.last.store(event as usize, Ordering::SeqCst);
    }
}

#[async_trait]
impl Decorator for Hears {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.note(Event::Release);
        self.store.release(grant, claims).await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.note(match how {
            End::IfDue => Event::Expiry,
            End::Close => Event::Close,
            End::Revoke => Event::Revocation,
            End::Discard => Event::Discard,
        });
        self.store.end(sessions, how).await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        self.note(Event::Settlement);
        self.store.settle(session, adoption, adopter, within).await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.note(Event::Eviction);
        self.store.evict(seen).await
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let changed = self.store.watch(claims).await?;
        let (last, event, late) = (Arc::clone(&self.last), self.event, self.late);
        Ok(Box::pin(async move {
            changed.await;
            if last.load(Ordering::SeqCst) == event as usize {
                match late {
                    Some(late) => tokio::time::sleep(late).await,
                    None => std::future::pending().await,
                }
            }
        }))
    }
}
