//! One step: a request under a grant of its own, sent until its outcome is known.
//!
//! Where a store takes a step of several records record by record, a request of unknown outcome is not sent again: it is
//! given back, and the next one has another number.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::client::clock::{now, timer};
use crate::client::guard::Released;
use crate::client::keeper::{Order, Release};
use crate::client::locks::Core;
use crate::client::retry::{may_pass, pause};
use crate::client::session::Handle;
use crate::client::sim::{Rule, broken, spent};
use crate::{
    Acquire, Acquired, Busy, Claim, Error, ErrorKind, FencingToken, Operation, OwnerId, Result,
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
    /// Asks for a range of the claims. `go_on` says whether a request of unknown outcome is still worth sending again.
    pub(crate) async fn ask(
        &self,
        range: Range<usize>,
        joined: bool,
        go_on: impl Fn() -> bool,
    ) -> Step {
        let mut request = Acquire {
            grant: self.handle.session.grant(),
            owner: self.owner,
            claims: self.claims[range.clone()].to_vec(),
            joined,
        };
        let torn = !self.core.info.atomic && is_of_several_records(&request.claims);
        // The token must be greater than what was acknowledged before the first copy was sent.
        let floor = self.core.floor();
        let mut patience: Option<Instant> = None;
        let mut in_doubt = false;
        let mut failures = 0;
        loop {
            let grant = request.grant;
            match self.core.backend.acquire(&request).await {
                Ok(Acquired::Acquired(token)) if self.core.rose(token, floor) => {
                    return Step::Granted {
                        n: grant.n,
                        token,
                        in_doubt,
                    };
                }
                Ok(Acquired::Acquired(token)) => {
                    self.give_back(grant.n, range, true);
                    return Step::Failed(went_back(self.core, token, floor));
                }
                // The number is over: a copy that is granted later holds nothing.
                Ok(Acquired::Busy(busy)) => {
                    if !broken(Rule::BusySettlesNothing) {
                        self.end(grant.n, range, in_doubt);
                    }
                    spent(Rule::GrantOverAfterRefusal, &self.handle.session, grant.n);
                    return Step::Busy(busy);
                }
                Ok(Acquired::Void) => {
                    self.end(grant.n, range, in_doubt);
                    return Step::Void;
                }
                Err(error) => {
                    in_doubt |= !error.is_certainly_without_effect();
                    let again = may_pass(&error) && (in_doubt || self.waits);
                    let patience = *patience.get_or_insert_with(|| self.core.patience());
                    if !again || now() >= patience || !go_on() || !self.handle.is_usable() {
                        if !broken(Rule::UnknownIsOver) {
                            self.end(grant.n, range, in_doubt);
                        }
                        return Step::Failed(error);
                    }
                    if torn && in_doubt {
                        if !self.is_given_back(grant.n, range.clone(), patience).await || !go_on() {
                            return Step::Failed(error);
                        }
                        request.grant = self.handle.session.grant();
                        in_doubt = false;
                    }
                    failures += 1;
                    pause(self.core, failures).await;
                }
            }
        }
    }

    /// A request that was not granted is over.
    fn end(&self, n: u64, range: Range<usize>, in_doubt: bool) {
        if in_doubt {
            self.give_back(n, range, true);
        } else {
            self.handle.session.numbers().end(n);
        }
    }

    fn give_back(&self, n: u64, range: Range<usize>, in_doubt: bool) {
        self.order_release(n, range, in_doubt, None);
    }

    /// A request of unknown outcome is over, and that is acknowledged in time.
    async fn is_given_back(&self, n: u64, range: Range<usize>, until: Instant) -> bool {
        let (done, given_back) = oneshot::channel();
        self.order_release(n, range, true, Some(done));
        let given_back = timeout_at(timer(until), given_back).await;
        matches!(given_back, Ok(Ok(Ok(Released::Released))))
    }

    fn order_release(
        &self,
        n: u64,
        range: Range<usize>,
        in_doubt: bool,
        done: Option<oneshot::Sender<Result<Released>>>,
    ) {
        self.handle.order(Order::Release(Release {
            claims: Arc::clone(self.claims),
            grants: vec![(n, range)],
            with_intent: false,
            in_doubt,
            by_close: false,
            done,
        }));
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

/// A token that did not rise.
pub(crate) fn went_back(core: &Core, token: FencingToken, floor: u64) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        core.info.name,
        Operation::Acquire,
        format!(
            "token {token} is not greater than {floor}, which was granted before: the store was set back (restored from \
             a backup?); initialise the namespace again before you go on"
        ),
    )
}
