//! `Wakeups`: this store tells nobody anything, so the writer thread looks, while somebody waits.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockcore::{Changed, Claim, Grant, LockKey, Operation, Result, Wakeups};
use rusqlite::params;
use tokio::sync::oneshot;

use crate::SqliteBackend;
use crate::error::Outcome;
use crate::file::File;
use crate::obstacles::Look;
use crate::record::{Entry, Place};
use crate::sql;
use crate::transaction::{Met, Standing, Transaction};

/// Time from one look to the next, and what is added at random so that processes do not look in step.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(2);
const LOOK_JITTER_US: u64 = 1_000;
/// So many obstacles of one watch are followed; of more, every change is taken for a hint.
const FOLLOWED: usize = 64;

#[async_trait]
impl Wakeups for SqliteBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        let claims = claims.to_vec();
        let woken = self
            .call(Operation::Watch, move |worker| {
                let watch = worker
                    .file
                    .read(|transaction| obstacles(transaction, &claims))?;
                Ok(worker.watchers.add(watch))
            })
            .await?;
        // The thread has ended if it drops its end: then a look may be worth it, too.
        Ok(Box::pin(async move {
            let _ = woken.await;
        }))
    }
}

/// What a watch saw when it began to stand.
struct Seen {
    places: Vec<Place>,
    /// There were more in the way.
    more: bool,
}

struct Watcher {
    seen: Seen,
    wake: oneshot::Sender<()>,
}

/// Those who wait in this process.
#[derive(Default)]
pub(crate) struct Watchers {
    waiting: Vec<Watcher>,
    next_look: Option<Instant>,
    /// The state of the file at the last look.
    version: i64,
    /// When the first session in the way is due, in milliseconds since boot.
    due_ms: Option<i64>,
}

impl Watchers {
    /// When the next look is due; `None` if nobody waits.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    fn add(&mut self, seen: Seen) -> oneshot::Receiver<()> {
        let (wake, woken) = oneshot::channel();
        if seen.places.is_empty() {
            // Nobody is in the way by now.
            let _ = wake.send(());
        } else {
            self.waiting.push(Watcher { seen, wake });
            // The first look is a full one: when the next session is due is not known yet.
            self.due_ms = Some(i64::MIN);
            self.next_look.get_or_insert_with(soon);
        }
        woken
    }

    /// Wakes those in whose way the grant was on these keys, which were released here.
    pub(crate) fn released(&mut self, grant: Grant, keys: &[LockKey]) {
        let session = grant.session.get().to_be_bytes();
        let n = grant.n.cast_signed();
        self.wake(|seen| {
            seen.places.iter().any(|place| {
                place.n == n
                    && place.session == session
                    && keys.iter().any(|key| key.as_str() == place.key)
            })
        });
    }

    /// Looks whether something has changed, if it is time for it or something was freed here.
    pub(crate) fn look(&mut self, file: &mut File) {
        let freed = file.take_freed();
        self.waiting.retain(|watcher| !watcher.wake.is_closed());
        let Some(at) = self.next_look else { return };
        if self.waiting.is_empty() {
            self.next_look = None;
            return;
        }
        if !freed && Instant::now() < at {
            return;
        }
        self.next_look = Some(soon());
        // A file that cannot be read is news as well: whoever waits will see the error.
        if self.look_now(file, freed).is_err() {
            self.wake(|_| true);
        }
    }

    fn look_now(&mut self, file: &mut File, freed: bool) -> Outcome<()> {
        let due = self.due_ms.is_some_and(|due_ms| due_ms <= file.now_ms());
        let changed = file.changed(&mut self.version)?;
        if !(changed || freed || due) {
            return Ok(());
        }
        let mut due_ms = None;
        let mut woken = Vec::with_capacity(self.waiting.len());
        file.read(|transaction| {
            for watcher in &self.waiting {
                let more = watcher.seen.more && (changed || freed);
                woken.push(more || has_moved(transaction, &watcher.seen, &mut due_ms)?);
            }
            Ok(())
        })?;
        self.due_ms = due_ms;
        let mut woken = woken.into_iter();
        self.wake(|_| woken.next() == Some(true));
        Ok(())
    }

    fn wake(&mut self, mut which: impl FnMut(&Seen) -> bool) {
        let woken = self.waiting.extract_if(.., |watcher| which(&watcher.seen));
        for watcher in woken {
            let _ = watcher.wake.send(());
        }
    }
}

fn soon() -> Instant {
    Instant::now() + LOOK_EVERY + Duration::from_micros(rand::random_range(0..LOOK_JITTER_US))
}

fn obstacles(transaction: &Transaction<'_>, claims: &[Claim]) -> Outcome<Seen> {
    let mut seen = Seen {
        places: Vec::new(),
        more: false,
    };
    let mut look = Look::by_nobody(transaction, FOLLOWED);
    for claim in claims {
        if seen.places.len() >= FOLLOWED {
            seen.more = true;
            break;
        }
        let found = look.at(claim)?;
        seen.more |= found.more;
        let places = found.obstacles.into_iter();
        seen.places
            .extend(places.map(|obstacle| obstacle.entry.place));
    }
    Ok(seen)
}

/// Whether one of those in the way is gone, does not count any more, or may be made dead.
fn has_moved(
    transaction: &Transaction<'_>,
    seen: &Seen,
    due_ms: &mut Option<i64>,
) -> Outcome<bool> {
    for place in &seen.places {
        let values = params![place.key, place.session, place.n];
        let Some(entry) = transaction.first(sql::HOLDER_ROW, values, Entry::read)? else {
            return Ok(true);
        };
        if transaction.standing(&entry)? == Standing::Gone {
            return Ok(true);
        }
        let Some(known) = entry.known else { continue };
        if let Met::Session(session) = &*transaction.meet(known.grant.session)? {
            if transaction.is_due(session) {
                return Ok(true);
            }
            if session.life == lockcore::Life::Living {
                let first = due_ms.unwrap_or(i64::MAX);
                *due_ms = Some(first.min(session.expires_ms));
            }
        }
    }
    Ok(false)
}
