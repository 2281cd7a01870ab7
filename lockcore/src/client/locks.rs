//! [`Locks`]: the client of one namespace.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::core::{Alive, Core};
use crate::client::error::AcquireError;
use crate::client::pool::Pool;
use crate::client::recovery::{Recover, Recovery, adopt};
use crate::client::retry::until_answered;
use crate::client::task;
use crate::{
    End, Filter, Grant, Holder, Info, Label, Life, LockBackend, LockKey, Note, NoteKind, Notes,
    Result, SessionId, SessionState,
};

/// The locks of one namespace, as one process uses them. Cloning is cheap; all clones are one client with one shared
/// session.
///
/// Requests run on Tokio tasks of their own. A caller that goes away loses nothing but the answer, and what its
/// acquisition wins is given back. The session is closed when the last clone and the last guard are gone.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockcore::{Attempt, Locks, MemoryBackend};
///
/// let locks = Locks::builder(MemoryBackend::new()).build()?;
/// let guard = locks.lock("reindex").acquire().await?;
/// match locks.lock("reindex").try_acquire().await? {
///     Attempt::Acquired(_) => unreachable!("one holder at a time"),
///     Attempt::Busy(busy) => assert_eq!(busy.first().claim.key().as_str(), "reindex"),
/// }
/// let first = guard.token();
/// guard.release().await?;
/// assert!(locks.lock("reindex").acquire().await?.token() > first);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) core: Arc<Core>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) recovery: Option<Arc<dyn Recover>>,
}

impl Locks {
    pub(crate) fn new(core: Core, recovery: Option<Arc<dyn Recover>>) -> Self {
        Self {
            core: Arc::new(core),
            pool: Arc::default(),
            recovery,
        }
    }

    /// The properties of the store.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.core.info
    }

    /// The store itself, for inspection and for operators.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn LockBackend> {
        &self.core.backend
    }

    /// Every abandoned session of the namespace: dead, with a change that somebody has to finish or undo. Sessions that
    /// are due and that nobody has ended yet are ended first, so the store is asked twice for each thousand sessions.
    ///
    /// # Errors
    ///
    /// The store failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the sessions that are due as they were, or ended.
    pub async fn abandoned(&self) -> Result<Vec<SessionState>> {
        let mut abandoned = Vec::new();
        let mut after = None;
        loop {
            let page = self.core.backend.sessions(after.as_deref(), 1_000).await?;
            let (recorded, others): (Vec<_>, Vec<_>) =
                (page.items.into_iter()).partition(|state| state.life == Life::Living);
            let recorded: Vec<SessionId> = recorded.iter().map(|state| state.session).collect();
            let ended = match recorded.is_empty() {
                true => Vec::new(),
                false => self.core.backend.end(&recorded, End::IfDue).await?,
            };
            let states = others.into_iter().chain(ended);
            abandoned.extend(states.filter(|state| state.life == Life::Abandoned));
            after = page.next;
            if after.is_none() {
                return Ok(abandoned);
            }
        }
    }

    /// Adopts an abandoned session: this process now has to finish or undo its change. `None` if the session is not
    /// abandoned (any more), if a living session has adopted it, or if the store has failed over meanwhile.
    ///
    /// # Errors
    ///
    /// The store failed, the client was shut down, or its session was lost meanwhile.
    ///
    /// # Cancel safety
    ///
    /// An adoption that succeeds after the future was dropped is given up again.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn adopt(
        &self,
        session: SessionId,
    ) -> std::result::Result<Option<Recovery>, AcquireError> {
        self.core.check_open()?;
        let (locks, alive) = (self.clone(), Alive::new(&self.core));
        // It may have been shut down before this was counted.
        self.core.check_open()?;
        let (answer, answered) = tokio::sync::oneshot::channel();
        task::spawn(async move {
            let _alive = alive;
            let result = async {
                let handle = locks.pool.shared(&locks.core).await?;
                adopt(&locks.core, &handle, session, false).await
            };
            // A recovery that nobody waits for is dropped here, and so given up.
            drop(answer.send(result.await));
        });
        answered.await.unwrap_or(Err(AcquireError::Lost))
    }

    /// Asks the holders of a key to give it up soon, with a reason: [`asked`](crate::Held::asked) of their guards
    /// resolves. Of a path, whoever holds something below it is asked as well. Returns how many grants were asked for.
    /// Nobody is made to obey. A program that may not go on at all is better waited for by
    /// [`acquire`](crate::Acquisition::acquire), which keeps its place in line meanwhile. Of more than 16 holders of one key,
    /// those that a listing names are asked.
    ///
    /// # Errors
    ///
    /// The store failed; some of the holders may have been asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves some of the holders asked, all, or none.
    pub async fn ask(&self, key: &LockKey, reason: Label) -> Result<usize> {
        let core = &*self.core;
        #[expect(clippy::disallowed_methods, reason = "for people")]
        let now = std::time::SystemTime::now();
        let note = Note::new(NoteKind::Ask, core.config.label.clone(), reason, now);
        let filter = Filter::Key(key.clone());
        let mut asked = BTreeSet::new();
        let mut next = None;
        loop {
            let page = core.backend.records(&filter, next.as_deref(), 100).await?;
            let holders = page.items.iter().flat_map(|record| &record.holders);
            let holds = |holder: &&Holder| holder.waiting.is_none() && holder.life == Life::Living;
            for grant in holders.filter(holds).filter_map(|holder| holder.grant) {
                if !asked.insert(grant) {
                    continue;
                }
                let note = note.clone().about(grant.n);
                if pushes_out(&*core.backend, grant, &note).await? {
                    continue;
                }
                let send = || core.backend.note(grant.session, &note);
                if !until_answered(core, || true, send).await? {
                    asked.remove(&grant);
                }
            }
            next = page.next;
            if next.is_none() {
                return Ok(asked.len());
            }
        }
    }

    /// Shuts the client down: accepts no more acquisitions, ends those that wait
    /// ([`ShutDown`](crate::InputError::ShutDown)), waits for at most `limit` until every guard and every
    /// [`Owner`](crate::Owner) that has acquired something is gone and every release is acknowledged, and closes the
    /// sessions. Returns whether all of that was done in time; if not, it goes
    /// on in the background.
    ///
    /// # Cancel safety
    ///
    /// The client stays shut down; releases go on.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub async fn shutdown(&self, limit: Duration) -> bool {
        self.core.shut_down();
        self.pool.let_go();
        let all_gone = self.core.none_alive();
        tokio::time::timeout(limit, all_gone).await.is_ok()
    }
}

/// Whether the holder has been asked so often that one more note would push out the one that it leads. It is asked enough.
async fn pushes_out(backend: &dyn LockBackend, grant: Grant, note: &Note) -> Result<bool> {
    let leads = |notes: &Notes| {
        let mut notes = notes.iter();
        notes.any(|note| note.kind == NoteKind::Lead && note.grant == Some(grant.n))
    };
    let states = backend.end(&[grant.session], End::IfDue).await?;
    Ok(states.into_iter().any(|state| {
        let mut notes = state.notes;
        leads(&notes) && {
            notes.add(note);
            !leads(&notes)
        }
    }))
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("backend", &self.core.info.name)
            .field("label", &self.core.config.label)
            .field("ttl", &self.core.config.ttl)
            .finish_non_exhaustive()
    }
}
