//! One step: a request under a grant of its own, sent until its outcome is known.
//!
//! Where a store takes a step of several records record by record, a request of unknown outcome is not sent again: it is
//! given back, and the next one has another number.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::client::clock::{now, timer};
use crate::client::core::Core;
use crate::client::order::{Order, Release, Released};
use crate::client::retry::may_pass;
use crate::client::session::Handle;
use crate::{
    Acquire, Acquired, Busy, Claim, Error, FencingToken, Grant, Incarnation, OwnerId, Result,
};

/// How a step ended. What is not granted holds nothing, or is being given back.
pub(crate) enum Step {
    Granted {
        n: u64,
        token: FencingToken,
        /// A copy of the request was not answered.
        in_doubt: bool,
    },
    Busy(Busy),
    Void,
    /// The store is of another incarnation than the one that was asked.
    Moved,
    Failed(Error),
}

/// What all steps of an acquisition share.
pub(crate) struct Asker<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) handle: &'a Handle,
    pub(crate) owner: OwnerId,
    pub(crate) claims: &'a Arc<[Claim]>,
    /// A waiting acquisition bears with a store that is unavailable.
    pub(crate) waits: bool,
}

impl Asker<'_> {
    /// Asks for a range of the claims. When what `ends` makes does, no request is worth sending again.
    ///
    /// # Cancel safety
    ///
    /// What it was granted, or may be, is given back.
    pub(crate) async fn ask<Ends: Future + Unpin>(
        &self,
        range: Range<usize>,
        joined: bool,
        ends: impl Fn() -> Ends,
    ) -> Step {
        let mut asked = Asked::new(self, range.clone());
        let mut request = Acquire {
            grant: asked.grant,
            owner: self.owner,
            claims: self.claims[range.clone()].to_vec(),
            joined,
            incarnation: asked.incarnation,
        };
        let torn = !self.core.info.atomic && is_of_several_records(&request.claims);
        // The token must be one that a guard can have, and greater than what was acknowledged before the first copy was sent.
        let floor = self.core.floor();
        let mut patience: Option<Instant> = None;
        let mut failures = 0;
        loop {
            match asked.send(&request).await {
                Ok(Acquired::Acquired(token)) => {
                    if let Err(error) = self.core.take_token(token, floor) {
                        asked.in_doubt = true;
                        return Step::Failed(error);
                    }
                    return asked
                        .granted()
                        .map_or(Step::Moved, |in_doubt| Step::Granted {
                            n: request.grant.n,
                            token,
                            in_doubt,
                        });
                }
                // The number is over: a copy that is granted later holds nothing.
                Ok(Acquired::Busy(busy)) => return Step::Busy(busy),
                Ok(Acquired::Void) => return Step::Void,
                Ok(Acquired::Moved) => return Step::Moved,
                Err(error) => {
                    let may = may_pass(&error) && (asked.in_doubt || self.waits);
                    let patience = *patience.get_or_insert_with(|| self.core.patience());
                    failures += 1;
                    let again = may && self.handle.is_usable() && now() < patience && {
                        let asks_again = Box::pin(async {
                            if torn && asked.in_doubt {
                                if !asked.is_given_back(patience).await {
                                    return false;
                                }
                                asked = Asked::new(self, range.clone());
                                (request.grant, request.incarnation) =
                                    (asked.grant, asked.incarnation);
                            }
                            let asking = &self.core.asking;
                            asking.again(&**self.core, failures, patience).await
                        });
                        tokio::select! {
                            biased;
                            _ = ends() => false,
                            again = asks_again => again,
                        }
                    };
                    if !again {
                        return Step::Failed(error);
                    }
                }
            }
        }
    }
}

/// A grant that was asked for. It is over when this is dropped, whatever ends the attempt, and given back if a copy of its
/// request may take effect.
struct Asked<'a> {
    asker: &'a Asker<'a>,
    grant: Grant,
    /// What its request is meant for.
    incarnation: Incarnation,
    range: Range<usize>,
    /// A copy of the request was not answered.
    in_doubt: bool,
    is_open: bool,
}

impl<'a> Asked<'a> {
    fn new(asker: &'a Asker<'a>, range: Range<usize>) -> Self {
        let (grant, incarnation) = asker.handle.session.grant();
        Self {
            asker,
            grant,
            incarnation,
            range,
            in_doubt: false,
            is_open: true,
        }
    }

    /// Sends the request once.
    async fn send(&mut self, request: &Acquire) -> Result<Acquired> {
        let in_doubt = std::mem::replace(&mut self.in_doubt, true);
        let core = self.asker.core;
        let answer = core.backend.acquire(request).await;
        core.asking.heard(&**core, &answer);
        let has_none = |error: &Error| !error.is_certainly_without_effect();
        self.in_doubt = in_doubt || answer.as_ref().is_err_and(has_none);
        answer
    }

    /// It is the attempt's from now on, and it is said whether a copy was not answered; or it is nobody's, because the
    /// session has moved meanwhile.
    fn granted(mut self) -> Option<bool> {
        let stands = {
            let mut numbers = self.asker.handle.session.numbers();
            numbers.grant(self.grant.n, self.incarnation)
        };
        self.is_open = !stands;
        let in_doubt = std::mem::replace(&mut self.in_doubt, true);
        stands.then_some(in_doubt)
    }

    /// It is over, and that is acknowledged in time.
    async fn is_given_back(&mut self, until: Instant) -> bool {
        let (done, given_back) = oneshot::channel();
        self.give_back(Some(done));
        let given_back = timeout_at(timer(until), given_back).await;
        matches!(given_back, Ok(Ok(Ok(_))))
    }

    fn give_back(&mut self, done: Option<oneshot::Sender<Result<Released>>>) {
        self.is_open = false;
        self.asker.handle.order(Order::Release(Release {
            claims: Arc::clone(self.asker.claims),
            grants: vec![(self.grant.n, self.range.clone())],
            with_intent: false,
            in_doubt: true,
            by_close: false,
            done,
        }));
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.is_open && self.in_doubt {
            self.give_back(None);
        } else if self.is_open {
            self.asker.handle.session.numbers().end(self.grant.n);
        }
    }
}

/// Whether a store without atomic steps writes more than one record for them. One that is refused takes back what it
/// wrote, perhaps late: after a copy with the same number was granted, it would be that grant's.
fn is_of_several_records(claims: &[Claim]) -> bool {
    match claims {
        [one] => one.key().ancestors().next().is_some(),
        _ => true,
    }
}
