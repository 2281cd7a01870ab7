//! A grant of the store, and those of this process who have it one after the other: while the next one waits for the same,
//! the lock goes on without the store (lock cohorting; Dice, Marathe, Shavit, 2012).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::clock::now;
use crate::client::order::{Order, Release, Released};
use crate::client::session::{Handle, WeakHandle};
use crate::{
    Busy, Claim, FencingToken, Grant, Holder, Label, Life, Mode, OwnerId, Refused, Result,
    SessionId, Want,
};

/// For so long it is handed on at most: somebody of another process may wait.
const HANDED_ON: Duration = Duration::from_millis(50);
/// More claims than this are not compared with what others want.
pub(crate) const CLAIMS: usize = 16;

/// What the store has granted to one acquisition.
pub(crate) struct Chain {
    pub(crate) session: WeakHandle,
    pub(crate) owner: OwnerId,
    /// The store's.
    token: FencingToken,
    pub(crate) claims: Arc<[Claim]>,
    pub(crate) grants: Vec<(u64, Range<usize>)>,
    pub(crate) by_close: bool,
    label: Label,
    began: Instant,
    is_exclusive: bool,
    /// It is exclusive and not too much, or one share: whom it excludes in this process does not ask for it meanwhile.
    pub(crate) is_known: bool,
    /// It goes to nobody else any more.
    kept: AtomicBool,
    /// It has gone to somebody else.
    handed_on: AtomicBool,
    /// A confirmation said that the store does not have it any more, which is true for all who come.
    fell: AtomicBool,
}

impl Chain {
    pub(crate) fn new(
        handle: &Handle,
        owner: OwnerId,
        token: FencingToken,
        claims: Arc<[Claim]>,
        grants: Vec<(u64, Range<usize>)>,
        by_close: bool,
        label: Label,
    ) -> Self {
        let is_exclusive = |claim: &Claim| claim.want().mode() == Mode::X;
        let is_exclusive = claims.len() <= CLAIMS && claims.iter().all(is_exclusive);
        let is_known = is_exclusive || claims.len() == 1;
        // One of a number of places goes on, too; nobody waits for a share of what is shared without a limit.
        let is_place = |claim: &Claim| matches!(claim.want(), Want::Share { limit: Some(_) });
        let goes_on = is_exclusive || claims.len() == 1 && claims.iter().all(is_place);
        let kept = by_close || grants.len() != 1 || !goes_on;
        Self {
            session: handle.downgrade(),
            owner,
            token,
            claims,
            grants,
            by_close,
            label,
            began: now(),
            is_exclusive,
            is_known,
            kept: AtomicBool::new(kept),
            handed_on: AtomicBool::new(false),
            fell: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> SessionId {
        self.session.session.id
    }

    /// The token of whoever has it after so many others.
    pub(crate) fn token(&self, pass: u8) -> FencingToken {
        self.token.handed_on(pass)
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + Clone {
        self.grants.iter().map(|(n, _)| *n)
    }

    /// Whether all of it is certainly still held.
    pub(crate) fn stands(&self) -> bool {
        let session = &self.session.session;
        !self.fell.load(Ordering::Acquire)
            && session.is_valid()
            && session.evicted(self.numbers()).is_none()
    }

    /// The store does not have it any more.
    pub(crate) fn falls(&self) {
        self.fell.store(true, Ordering::Release);
    }

    /// Resolves when it does not stand any more, unless that is [told](Self::falls) to the queue.
    pub(crate) async fn lost(&self) {
        self.session.session.lost(self.numbers()).await;
    }

    /// It goes to nobody else any more.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }

    /// It goes to somebody else now.
    pub(crate) fn hand_on(&self) {
        self.handed_on.store(true, Ordering::Release);
    }

    /// Whether it has gone to somebody else.
    pub(crate) fn was_handed_on(&self) -> bool {
        self.handed_on.load(Ordering::Acquire)
    }

    /// Whether it may go to somebody else after so many.
    pub(crate) fn goes_on(&self, pass: u8) -> bool {
        !self.kept.load(Ordering::Acquire)
            && pass < FencingToken::PASSES
            && now() < self.began + HANDED_ON
            && self.stands()
    }

    /// The order to give it back in the store.
    pub(crate) fn release(
        &self,
        with_intent: bool,
        in_doubt: bool,
        done: Option<oneshot::Sender<Result<Released>>>,
    ) -> Order {
        Order::Release(Release {
            claims: Arc::clone(&self.claims),
            grants: self.grants.clone(),
            with_intent,
            in_doubt,
            by_close: self.by_close,
            done,
        })
    }

    /// The refusal of somebody who wants one of its keys, or a path above or below.
    #[expect(
        clippy::disallowed_methods,
        reason = "since when it is held is shown to people, in the time of day"
    )]
    pub(crate) fn busy(&self, claim: &Claim) -> Busy {
        let held = self.grants.iter().find_map(|(n, range)| {
            let claims = &self.claims[range.clone()];
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
            owner: Some(self.owner),
            mode,
            label: self.label.to_string(),
            since: SystemTime::now().checked_sub(now().saturating_duration_since(self.began)),
            life: Life::Living,
        });
        let refused = Refused {
            claim: claim.clone(),
            holders: holder.into_iter().collect(),
            more: false,
        };
        Busy::new(vec![refused], false)
    }
}

/// A grant, and after how many others somebody has it.
pub(crate) struct Pass {
    pub(crate) chain: Arc<Chain>,
    /// Keeps the session.
    pub(crate) handle: Handle,
    pub(crate) number: u8,
    pub(crate) in_doubt: bool,
}
