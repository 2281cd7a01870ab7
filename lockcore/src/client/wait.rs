//! Waiting: whoever looks at the store is woken by a watch, by this process's own releases, and by a bounded poll.

use std::sync::Arc;
use std::time::Duration;

use crate::client::core::Core;
use crate::client::queue::{InTheWay, Offer, Place};
use crate::{Busy, Changed, Claim};

/// The fallback poll's first and longest pause.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// One acquisition waiting for one claim.
pub(crate) struct Waiting {
    place: Place,
    looks: Looks,
}

/// What it looks at the store with.
#[derive(Default)]
struct Looks {
    watch: Option<Changed>,
    /// The store was asked since the watch stands.
    looked: bool,
    polls: u32,
}

impl Waiting {
    /// Waits after a refusal. Only who holds nothing stands in line behind others: somebody in it might wait for what
    /// another one behind it holds.
    /// Whoever `wants` nothing but what another one of this process may hand on says so.
    pub(crate) fn refused(
        core: &Arc<Core>,
        claim: &Claim,
        in_line: bool,
        wants: Option<&Arc<[Claim]>>,
        busy: Busy,
    ) -> Self {
        let place = Place::take(&core.queues, claim, in_line, wants);
        place.is_refused(busy);
        Self::at(place)
    }

    /// Stands in line without having asked, if others of this process wait for the key already or are asking for it.
    /// Whoever `begins` a line and waits for ever lets those who come later stand in it while it asks, so that a crowd does
    /// not ask at once. Whoever does not is told who is in the way, and asks by itself where nobody knows.
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
            looks: Looks::default(),
        }
    }

    /// Whoever asked was refused.
    pub(crate) fn is_refused(&self, busy: Busy) {
        self.place.is_refused(busy);
    }

    /// Whether it has waited: it was refused, or others were there before.
    pub(crate) fn has_begun(&self) -> bool {
        self.place.has_begun()
    }

    /// Who is in the way, as far as is known.
    pub(crate) fn in_the_way(&self) -> InTheWay {
        self.place.in_the_way()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// What somebody of this process hands on; nothing, when it is worth asking the store (again).
    pub(crate) async fn until_offered_or_worth_asking(&mut self, core: &Core) -> Option<Offer> {
        tokio::select! {
            biased;
            () = self.place.is_offered() => self.place.offer(),
            () = self.looks.until_worth_asking(core, &self.place) => None,
        }
    }
}

impl Looks {
    /// Returns when it is worth asking the store (again); the watch stands then, so that a release after the question
    /// is not missed.
    async fn until_worth_asking(&mut self, core: &Core, place: &Place) {
        place.until_it_looks(POLL).await;
        if self.looked {
            self.polls += 1;
            let poll = core.backoff(self.polls, POLL.0, POLL.1);
            tokio::select! {
                biased;
                () = place.woken() => self.polls = 0,
                () = changed(&mut self.watch) => self.polls = 0,
                () = tokio::time::sleep(poll) => {
                    // A watch that looks by itself also sees by itself when it cannot.
                    if self.watch.is_some() && core.info.poll.is_some() {
                        return;
                    }
                }
            }
            place.until_it_looks(POLL).await;
        }
        // The former one is not polled meanwhile. Without a watch the poll remains.
        self.watch = None;
        let claims = std::slice::from_ref(place.claim());
        self.watch = core.backend.watch(claims).await.ok();
        self.looked = true;
    }
}

async fn changed(watch: &mut Option<Changed>) {
    match watch {
        Some(changed) => changed.await,
        None => std::future::pending().await,
    }
}
