//! Waiting: a waiter asks the store again after a watch, after a release of this process, and after a bounded poll
//! interval.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::client::core::Core;
use crate::client::queue::{InTheWay, Offer, Place};
use crate::{Busy, Changed, Claim, Grant, OwnerId};

/// The fallback poll's first and longest pause.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The longest pause of one in the store's line with more before it than a refusal names: it cannot be its turn soon, and
/// many such waiters would keep the store busy.
const FAR: Duration = Duration::from_secs(4);

/// One acquisition waiting for one claim.
pub(crate) struct Waiting {
    place: Place,
    polls: Polls,
}

/// How a waiter polls the store.
#[derive(Default)]
struct Polls {
    watch: Option<Changed>,
    /// The store was asked since the watch stands, or need not be.
    asked: bool,
    /// The watch is one for the waiter's turn.
    is_for_its_turn: bool,
    count: u32,
}

impl Waiting {
    /// Waits after a refusal. Only a waiter that holds nothing queues behind others: otherwise one in the queue might
    /// wait for what one behind it holds. `wants` is given by a waiter that takes what another task of this process may
    /// hand on, `owner` by one that may enter locks of its own again.
    pub(crate) fn refused(
        core: &Arc<Core>,
        claim: &Claim,
        in_line: bool,
        wants: Option<&Arc<[Claim]>>,
        owner: Option<OwnerId>,
        busy: Busy,
    ) -> Self {
        let place = Place::take(&core.queues, claim, in_line, wants, owner);
        place.is_refused(busy);
        Self::at(place)
    }

    /// Queues without having asked, if other tasks of this process wait for the key already or are asking for it. A
    /// waiter that `begins` a queue and waits for ever lets later ones queue behind it while it asks, so that a crowd
    /// does not ask at once. Any other waiter is told who is in the way, and asks by itself if nobody knows.
    pub(crate) fn in_line(
        core: &Arc<Core>,
        claim: &Claim,
        for_ever: bool,
        begins: bool,
        wants: Option<&Arc<[Claim]>>,
    ) -> Option<Self> {
        let place = Place::in_line(&core.queues, claim, for_ever, begins, wants)?;
        Some(Self::at(place))
    }

    fn at(place: Place) -> Self {
        Self {
            place,
            polls: Polls::default(),
        }
    }

    /// The waiter asked and was refused.
    pub(crate) fn is_refused(&self, busy: Busy) {
        self.place.is_refused(busy);
    }

    /// Whether it has waited: it was refused, or others came first.
    pub(crate) fn has_begun(&self) -> bool {
        self.place.has_begun()
    }

    /// Who is in the way, as far as known.
    pub(crate) fn in_the_way(&self) -> InTheWay {
        self.place.in_the_way()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// A lock that another task of this process hands on; `None` when it is time to ask the store (again). A waiter that is
    /// `in_line` in the store asks even if it is not its turn in this process: others wait for it there.
    pub(crate) async fn until_offered_or_worth_asking(
        &mut self,
        core: &Core,
        in_line: Option<(Grant, OwnerId)>,
    ) -> Option<Offer> {
        tokio::select! {
            biased;
            () = self.place.is_offered() => self.place.offer(),
            () = self.polls.until_worth_asking(core, &self.place, in_line) => None,
        }
    }
}

impl Polls {
    /// Returns when it is time to ask the store (again). The watch stands by then, so a release after the request is
    /// not missed.
    async fn until_worth_asking(
        &mut self,
        core: &Core,
        place: &Place,
        in_line: Option<(Grant, OwnerId)>,
    ) {
        let is_in_line = in_line.is_some();
        place.until_it_polls(POLL, is_in_line).await;
        if !self.asked
            && let Some((grant, owner)) = in_line
        {
            let turn = core.backend.watch_turn(grant, owner, place.claim()).await;
            self.watch = turn.ok().flatten();
            self.is_for_its_turn = self.watch.is_some();
            self.asked = self.is_for_its_turn;
        }
        if self.asked {
            self.count += 1;
            let is_far = is_in_line && place.is_behind_many();
            let longest = if is_far { FAR } else { POLL.1 };
            let poll = match self.is_for_its_turn {
                true => core.backoff(u32::MAX, longest, longest),
                false => core.backoff(self.count, POLL.0, longest),
            };
            tokio::select! {
                biased;
                () = place.woken() => self.count = 0,
                // It says that something has changed, perhaps in another place: if nothing has here, the polls stay as they are.
                () = changed(&mut self.watch) => self.watch = None,
                () = tokio::time::sleep(poll) => {
                    // A watch that polls by itself also sees by itself when it cannot.
                    if self.watch.is_some() && core.info.poll.is_some() {
                        return;
                    }
                }
            }
            place.until_it_polls(POLL, is_in_line).await;
        }
        // The former one is not polled meanwhile. Without a watch the poll remains.
        self.watch = None;
        if std::mem::take(&mut self.is_for_its_turn) {
            // If it is refused all the same, it polls for its turn again.
            self.asked = false;
            return;
        }
        let claims = std::slice::from_ref(place.claim());
        let watch = timeout(POLL.1, core.backend.watch(claims)).await;
        // One that takes so long was the pause.
        self.asked = watch.is_ok();
        self.watch = watch.ok().and_then(Result::ok);
    }
}

async fn changed(watch: &mut Option<Changed>) {
    match watch {
        Some(changed) => changed.await,
        None => std::future::pending().await,
    }
}
