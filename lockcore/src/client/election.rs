//! [`Election`]: one of several processes leads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use futures_util::stream;
use tokio::time::sleep;

use crate::client::acquisition::Acquisition;
use crate::client::error::AcquireError;
use crate::client::guard::{Guard, Held};
use crate::client::locks::Locks;
use crate::client::order::Released;
use crate::client::retry::until_answered;
use crate::{
    Claim, End, FencingToken, Filter, Grant, InputError, Label, Life, LockKey, Note, NoteKind,
    Result, SessionId, SessionState, Want,
};

/// How often an observer polls for a leader.
const POLL: Duration = Duration::from_millis(500);

/// An election: of the processes that campaign for a name, one leads. [`Locks::election`] creates it.
///
/// A leadership is a lock with a session of its own. If its process dies, it ends with its lease (the TTL), and the next
/// candidate leads. A leader that is paused does not know that it no longer leads: give the [token](Held::token) to
/// every resource that it changes.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockcore::{Locks, MemoryBackend, Released};
///
/// let locks = Locks::builder(MemoryBackend::new()).build()?;
/// let election = locks.election("scheduler")?;
/// assert!(election.leader().await?.is_none());
/// let leadership = election.campaign().await?;
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.token, leadership.token());
/// assert_eq!(leadership.resign().await?, Released::Released);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nobody leads until `campaign`"]
pub struct Election {
    locks: Locks,
    name: LockKey,
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The label of its client.
    pub label: Label,
    /// The fencing token of the leadership. A later leader has a greater one.
    pub token: FencingToken,
    /// The session that holds the leadership.
    pub session: SessionId,
}

/// This process leads. Dropping it resigns in the background. It derefs to [`Held`]: `token()`, `is_valid()`, `lost()`.
#[must_use = "dropping it resigns at once"]
#[derive(Debug)]
pub struct Leadership {
    guard: Guard,
}

impl Locks {
    /// An election with this name. It shares the key space of [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// The name is no key, or a path.
    pub fn election(&self, name: impl AsRef<str>) -> std::result::Result<Election, InputError> {
        let name = name.as_ref();
        let name = LockKey::flat(name).map_err(|source| InputError::Key {
            text: name.chars().take(80).collect(),
            source,
        })?;
        Ok(Election {
            locks: self.clone(),
            name,
        })
    }
}

impl Election {
    /// Waits until this process leads.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Acquisition::acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the candidacy.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn campaign(&self) -> std::result::Result<Leadership, AcquireError> {
        loop {
            let guard = self.candidacy().acquire().await?;
            if let Some(leadership) = self.lead(guard).await? {
                return Ok(leadership);
            }
        }
    }

    /// Leads if nobody else does; does not wait. `None` if somebody leads, or is about to. Who leads is written down before it is
    /// told: while the store fails then, the call bears that for as long as an [`acquire`](Acquisition::acquire) does.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Acquisition::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future resigns.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn try_campaign(&self) -> std::result::Result<Option<Leadership>, AcquireError> {
        match self.candidacy().try_acquire().await?.acquired() {
            Some(guard) => self.lead(guard).await,
            None => Ok(None),
        }
    }

    fn candidacy(&self) -> Acquisition {
        self.locks.lock(self.name.as_str()).own_session()
    }

    /// Tells observers of the leadership before it begins. `None` if it was lost meanwhile.
    async fn lead(&self, guard: Guard) -> std::result::Result<Option<Leadership>, AcquireError> {
        let core = &*self.locks.core;
        let grant = guard.numbers().next();
        let Some(n) = grant else { return Ok(None) };
        let token = Label::parse(guard.token().to_string()).expect("a number is a label");
        #[expect(clippy::disallowed_methods, reason = "for people")]
        let now = std::time::SystemTime::now();
        let note = Note::new(NoteKind::Lead, core.config.label.clone(), token, now).about(n);
        let session = guard.session();
        let is_told = until_answered(
            core,
            || guard.is_valid(),
            || core.backend.note(session, &note),
        )
        .await?;
        // Without a record the session is gone.
        Ok((is_told && guard.is_valid()).then_some(Leadership { guard }))
    }

    /// Who leads, if anybody does. The answer is of the moment in which the store gave it.
    ///
    /// # Errors
    ///
    /// The store failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let backend = &self.locks.core.backend;
        let filter = Filter::Key(self.name.clone());
        let mut next = None;
        loop {
            let page = backend.records(&filter, next.as_deref(), 100).await?;
            let holders = page.items.iter().flat_map(|record| &record.holders);
            let holds =
                |holder: &&crate::Holder| holder.waiting.is_none() && holder.life == Life::Living;
            for grant in holders.filter(holds).filter_map(|holder| holder.grant) {
                // Whoever is due does not lead any more.
                let states = backend.end(&[grant.session], End::IfDue).await?;
                if let Some(leader) = states.iter().find_map(|state| leads(state, grant)) {
                    return Ok(Some(leader));
                }
            }
            next = page.next;
            if next.is_none() {
                return Ok(None);
            }
        }
    }

    /// Reports the leaders, each once, in the order of their tokens: every one that leads for longer than a second, and
    /// the one that leads now. After an error it goes on when it is polled again.
    ///
    /// # Panics
    ///
    /// Its items panic outside a Tokio runtime.
    pub fn observe(&self) -> impl Stream<Item = Result<Leader>> + Send + use<> {
        let observer = Observer {
            election: self.clone(),
            last: None,
            looked: false,
        };
        stream::unfold(observer, |mut observer| async move {
            let leader = observer.next().await;
            Some((leader, observer))
        })
    }
}

/// The leadership in this session by that grant.
fn leads(state: &SessionState, grant: Grant) -> Option<Leader> {
    let of_grant = |note: &Note| note.kind == NoteKind::Lead && note.grant == Some(grant.n);
    let note = state.notes.iter().rev().find(of_grant);
    let note = note.filter(|_| state.life == Life::Living && state.session == grant.session)?;
    Some(Leader {
        label: state.label.clone(),
        token: FencingToken::new(note.reason.as_str().parse().ok()?)?,
        session: grant.session,
    })
}

struct Observer {
    election: Election,
    last: Option<FencingToken>,
    looked: bool,
}

impl Observer {
    /// The next leader.
    async fn next(&mut self) -> Result<Leader> {
        loop {
            if std::mem::replace(&mut self.looked, true) {
                self.change().await;
            }
            let leader = self.election.leader().await?;
            if let Some(leader) = leader.filter(|leader| Some(leader.token) > self.last) {
                self.last = Some(leader.token);
                return Ok(leader);
            }
        }
    }

    /// Resolves when it is time to look: soon after a leadership has ended, where the store pushes that.
    async fn change(&self) {
        let claim = Claim::new(self.election.name.clone(), Want::Create)
            .expect("a flat claim of a flat key");
        let watches = async {
            // Without a watch, time passes.
            match self.election.locks.core.backend.watch(&[claim]).await {
                Ok(changed) => changed.await,
                Err(_) => std::future::pending().await,
            }
            // The next one leads a moment later.
            sleep(POLL / 10).await;
        };
        tokio::select! {
            () = watches => {}
            () = sleep(POLL) => {}
        }
    }
}

impl Leadership {
    /// What is held, to share with the work of the leader.
    #[must_use]
    pub fn held(&self) -> Arc<Held> {
        self.guard.held()
    }

    /// Gives the leadership up.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// The leadership is given up all the same.
    pub async fn resign(self) -> Result<Released> {
        self.guard.release().await
    }
}

impl std::ops::Deref for Leadership {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.guard
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
