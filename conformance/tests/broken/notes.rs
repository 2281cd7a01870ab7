//! Mistakes with what is noted for the owner of a session.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use lockcore::backend::{End, Renewal, Renewed, Sweep, Swept};
use lockcore::{Label, LockBackend, Note, Notes, Result, SessionId, SessionState, async_trait};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::support::{Store, lock};

pub(crate) fn all() -> Vec<Broken> {
    let mistake = |name: &str, mistake| {
        Broken::new(name, Law::NotesArrive, move |store| Errs {
            store,
            mistake,
            told: Mutex::default(),
            swept: AtomicBool::new(false),
        })
    };
    vec![
        mistake("a note that is not written", Mistake::Unwritten),
        mistake("a note that is told once", Mistake::Once),
        mistake("a note that is never told", Mistake::Untold),
        mistake("a note that ends the session", Mistake::Ends),
        mistake("a note that makes a record", Mistake::Makes),
        mistake("a note without its reason", Mistake::Mute),
        mistake("a note that is forgotten at the end", Mistake::Forgets),
        mistake("a note that goes with a sweep", Mistake::Sweeps),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    Unwritten,
    Once,
    Untold,
    Ends,
    Makes,
    Mute,
    Forgets,
    Sweeps,
}

struct Errs {
    store: Store,
    mistake: Mistake,
    told: Mutex<HashSet<(SessionId, String)>>,
    swept: AtomicBool,
}

impl Errs {
    fn forgets(&self) -> bool {
        self.mistake == Mistake::Forgets || self.swept.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Decorator for Errs {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        match self.mistake {
            Mistake::Unwritten => return Ok(true),
            Mistake::Ends => drop(self.store.end(&[session], End::Revoke).await?),
            Mistake::Makes => {
                let (label, ttl) = (note.by.clone(), self.store.info().max_ttl);
                self.store.open(session, &label, ttl).await?;
            }
            Mistake::Mute => {
                let mut note = note.clone();
                note.reason = Label::parse("").expect("it is short");
                return self.store.note(session, &note).await;
            }
            Mistake::Once | Mistake::Untold | Mistake::Forgets | Mistake::Sweeps => {}
        }
        self.store.note(session, note).await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        Ok(
            match (self.store.renew(session, renewal).await?, self.mistake) {
                (Renewed::Noted(_), Mistake::Untold) => Renewed::Living,
                (Renewed::Noted(notes), Mistake::Once) => {
                    match lock(&self.told).insert((session, notes.as_str().to_owned())) {
                        true => Renewed::Noted(notes),
                        false => Renewed::Living,
                    }
                }
                (renewed, _) => renewed,
            },
        )
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let mut states = self.store.end(sessions, how).await?;
        if self.forgets() {
            for state in &mut states {
                state.notes = Notes::default();
            }
        }
        Ok(states)
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let sweeps = self.mistake == Mistake::Sweeps && which == Sweep::All;
        self.swept.fetch_or(sweeps, Ordering::Relaxed);
        self.store.sweep(which, limit).await
    }
}
