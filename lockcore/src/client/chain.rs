//! A grant of the store, and the tasks of this process that have it. An exclusive lock passes from one to the next
//! without the store, while the next one waits for the same (lock cohorting; Dice, Marathe, Shavit, 2012). A share
//! without a limit belongs to several tasks at once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::{SetOnce, oneshot};
use tokio::time::Instant;

use crate::client::clock::now;
use crate::client::lost::LostReason;
use crate::client::order::{Release, Released};
use crate::client::session::{Handle, WeakHandle};
use crate::{
    Busy, Claim, FencingToken, Grant, Holder, Label, Life, Mode, OwnerId, Refused, Result,
    SessionId, Want,
};

/// The longest time of handing on: a task of another process may wait.
const HANDED_ON: Duration = Duration::from_millis(50);
/// Half of it where waiters poll: they would get the lock a tenth of a second later otherwise.
const IF_POLLED: Duration = Duration::from_millis(25);
/// A grant with more claims than this is not compared with what others want.
pub(crate) const CLAIMS: usize = 16;

/// The grant of the store to one acquisition.
pub(crate) struct Taken {
    pub(crate) owner: OwnerId,
    /// The token of the store.
    pub(crate) token: FencingToken,
    pub(crate) claims: Arc<[Claim]>,
    pub(crate) grants: Vec<(u64, Range<usize>)>,
    /// The session has many grants, and these are all of them.
    pub(crate) by_close: bool,
    /// It has an intent, or was asked for with an owner: no other task of the process may have it.
    pub(crate) alone: bool,
    /// It was asked for with a session of its own.
    pub(crate) own_session: bool,
    /// A copy of one of the requests for it may still be under way.
    pub(crate) in_doubt: bool,
    pub(crate) label: Label,
}

/// A grant, and what the tasks of this process that have it know of each other.
pub(crate) struct Chain {
    pub(crate) session: WeakHandle,
    pub(crate) taken: Taken,
    began: Instant,
    goes_on_for: Duration,
    is_exclusive: bool,
    /// It is exclusive and not too large, or one share: tasks of this process that it excludes do not ask meanwhile.
    pub(crate) is_known: bool,
    /// A share without a limit, which others may have at the same time.
    is_shared: bool,
    /// For such a share: how many have joined the first one; in the low byte, how many have it now.
    users: AtomicU16,
    /// It passes to nobody else any more.
    kept: AtomicBool,
    /// It has passed to another task.
    handed_on: AtomicBool,
    /// A confirmation said that the store no longer has it. That is true for all who have it.
    fell: AtomicBool,
    /// And those who wait for its loss may be notified.
    told: SetOnce<()>,
}

impl Chain {
    /// `poll`: how often others poll the store, if it does not push.
    pub(crate) fn new(
        handle: &Handle,
        taken: Taken,
        began: Instant,
        poll: Option<Duration>,
    ) -> Self {
        let Taken { claims, grants, .. } = &taken;
        let is_exclusive = |claim: &Claim| claim.want().mode() == Mode::X;
        let is_exclusive = claims.len() <= CLAIMS && claims.iter().all(is_exclusive);
        let is_known = is_exclusive || claims.len() == 1;
        let share = match &**claims {
            [claim] => matches!(claim.want(), Want::Share { .. }).then_some(claim.want()),
            _ => None,
        };
        let goes_on = is_exclusive || share.is_some();
        let kept = taken.by_close || taken.alone || grants.len() != 1 || !goes_on;
        Self {
            session: handle.downgrade(),
            taken,
            began,
            goes_on_for: match poll {
                Some(poll) if poll > IF_POLLED => IF_POLLED,
                _ => HANDED_ON,
            },
            is_exclusive,
            is_known,
            is_shared: !kept && share == Some(Want::Share { limit: None }),
            users: AtomicU16::new(1),
            kept: AtomicBool::new(kept),
            handed_on: AtomicBool::new(false),
            fell: AtomicBool::new(false),
            told: SetOnce::new(),
        }
    }

    pub(crate) fn id(&self) -> SessionId {
        self.session.session.id
    }

    /// The token of the task that has it after so many others.
    pub(crate) fn token(&self, pass: u8) -> FencingToken {
        self.taken.token.handed_on(pass)
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Whether it is a share that others may have at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// One more task joins the share, after so many others; `None` once the last one gives it back.
    pub(crate) fn join(&self) -> Option<u8> {
        if !self.is_shared || !self.goes_on(0, now()) {
            return None;
        }
        let one_more = |users: u16| {
            let [joined, have] = users.to_be_bytes();
            let has_room = have > 0 && joined < FencingToken::PASSES;
            has_room.then(|| u16::from_be_bytes([joined + 1, have + 1]))
        };
        let users = (self.users).fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        let [joined, _] = users.ok()?.to_be_bytes();
        self.hand_on();
        Some(joined + 1)
    }

    /// One of the tasks gives it back. Returns whether none has it any more: then, and never before, it goes back to
    /// the store.
    pub(crate) fn leave(&self) -> bool {
        !self.is_shared || {
            let [_, have] = self.users.fetch_sub(1, Ordering::AcqRel).to_be_bytes();
            have == 1
        }
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + Clone {
        self.taken.grants.iter().map(|(n, _)| *n)
    }

    /// Whether all of it is certainly still held.
    pub(crate) fn stands(&self) -> bool {
        self.stands_at(now())
    }

    pub(crate) fn stands_at(&self, now: Instant) -> bool {
        self.stood() && self.session.session.is_valid_at(now)
    }

    /// Whether nobody has seen by now that it is no longer held.
    pub(crate) fn stood(&self) -> bool {
        let session = &self.session.session;
        !self.fell.load(Ordering::Acquire)
            && session.was_valid()
            && session.evicted(self.numbers()).is_none()
    }

    /// The store no longer has it. Those who wait for its [loss](Self::lost) are notified when the answer is dropped;
    /// by then the session may know the reason.
    pub(crate) fn falls(&self) -> Tells<'_> {
        self.fell.store(true, Ordering::Release);
        Tells(self)
    }

    /// Resolves when it is no longer held.
    pub(crate) async fn lost(&self) -> LostReason {
        tokio::select! {
            biased;
            why = self.session.session.lost(self.numbers()) => why,
            _ = self.told.wait() => LostReason::Forgotten,
        }
    }

    /// It passes to nobody else any more.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::SeqCst);
    }

    /// Whether it passes to nobody else.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::SeqCst)
    }

    /// It passes to another task now.
    pub(crate) fn hand_on(&self) {
        self.handed_on.store(true, Ordering::Release);
    }

    /// Whether its time to pass to others ended so long ago that whoever is polled has taken it.
    pub(crate) fn is_old(&self, now: Instant) -> bool {
        now > self.began + Duration::from_secs(1)
    }

    /// Whether it may pass to another task after so many.
    pub(crate) fn goes_on(&self, pass: u8, now: Instant) -> bool {
        !self.is_kept()
            && pass < FencingToken::PASSES
            && now < self.began + self.goes_on_for
            && self.session.session.asked(self.numbers()).is_none()
            && self.stands_at(now)
    }

    /// How it is given back in the store.
    pub(crate) fn release(
        &self,
        with_intent: bool,
        done: Option<oneshot::Sender<Result<Released>>>,
    ) -> Release {
        Release {
            claims: Arc::clone(&self.taken.claims),
            grants: self.taken.grants.clone(),
            with_intent,
            in_doubt: self.taken.in_doubt,
            by_close: self.taken.by_close,
            done,
        }
    }

    /// The refusal of a task that wants one of its keys, or a path above or below.
    #[expect(
        clippy::disallowed_methods,
        reason = "since when it is held is shown to people, in the time of day"
    )]
    pub(crate) fn busy(&self, claim: &Claim) -> Busy {
        let held = self.taken.grants.iter().find_map(|(n, range)| {
            let claims = &self.taken.claims[range.clone()];
            let held = claims.iter().find(|held| held.key().meets(claim.key()))?;
            // As the store has it: who holds a path has a mode on all above it.
            let (key, want) = (claim.key(), held.want());
            let above = want.above().filter(|_| key.is_above(held.key()));
            Some(match above {
                Some(mode) => (*n, key, mode),
                None => (*n, held.key(), want.mode()),
            })
        });
        let holder = held.map(|(n, key, mode)| Holder {
            key: key.clone(),
            grant: Some(Grant {
                session: self.id(),
                n,
            }),
            owner: Some(self.taken.owner),
            mode,
            label: self.taken.label.to_string(),
            since: SystemTime::now().checked_sub(now().saturating_duration_since(self.began)),
            life: Life::Living,
            waiting: None,
        });
        let refused = Refused {
            claim: claim.clone(),
            holders: holder.into_iter().collect(),
            more: false,
        };
        Busy::new(vec![refused], false)
    }
}

/// Dropping this notifies those who wait for its loss.
pub(crate) struct Tells<'a>(&'a Chain);

impl Drop for Tells<'_> {
    fn drop(&mut self) {
        // Another one may have told it.
        let _ = self.0.told.set(());
    }
}

/// A grant, and the number of others that had it before.
pub(crate) struct Pass {
    pub(crate) chain: Arc<Chain>,
    /// Keeps the session open.
    pub(crate) handle: Handle,
    pub(crate) number: u8,
}
