//! One batch: a request under a grant of its own, sent until its outcome is known.
//!
//! If the store keeps a line, a batch of one claim that waits is asked for again under the same grant: that grant stands
//! in line. Giving it back leaves the line.
//!
//! If a store writes a batch of several records record by record, a request of unknown outcome is not sent again: it is
//! given back, and the next request has another number.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::client::clock::{now, timer};
use crate::client::core::Core;
use crate::client::order::{Order, Release, Released};
use crate::client::retry::may_pass;
use crate::client::session::Handle;
use crate::store::Past;
use crate::{
    Acquire, Acquired, Busy, Claim, Error, ErrorKind, FencingToken, Grant, Incarnation, Operation,
    OwnerId, Result,
};

/// How a batch ended. Unless it was granted, it holds nothing, or is being given back.
pub(crate) enum BatchOutcome {
    Granted {
        n: u64,
        token: FencingToken,
        /// A copy of the request was not answered.
        in_doubt: bool,
    },
    Busy(Busy),
    Void,
    /// The store is of another incarnation than the one that was asked; with the error that says so, if a copy of the request
    /// may have had an effect.
    Moved(Option<Error>),
    Failed(Error),
}

/// What all batches of an acquisition share.
pub(crate) struct Asker<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) handle: &'a Handle,
    pub(crate) owner: OwnerId,
    pub(crate) claims: &'a Arc<[Claim]>,
    /// A waiting acquisition bears with an unavailable store.
    pub(crate) waits: bool,
}

/// What stands in line, to be asked for again.
pub(crate) type Kept = Option<Asked>;

impl Asker<'_> {
    /// Asks for a range of the claims, under the grant that was `kept` if that is for the same range. Once the future of
    /// `ends` resolves, no request is sent again. A refusal may return a grant that stands in line, to be kept.
    ///
    /// # Cancel safety
    ///
    /// All that it was granted, or may be, is given back.
    pub(crate) async fn ask<Ends: Future + Unpin>(
        &self,
        range: Range<usize>,
        joined: bool,
        kept: Kept,
        past: Vec<Past>,
        ends: impl Fn() -> Ends,
    ) -> (BatchOutcome, Kept) {
        let kept = kept.filter(|asked| asked.range == range);
        let mut asked = kept.unwrap_or_else(|| Asked::new(self, range.clone()));
        let mut request = Acquire {
            grant: asked.grant,
            owner: self.owner,
            claims: self.claims[range.clone()].to_vec(),
            joined,
            incarnation: asked.incarnation,
            waits: self.waits && range.len() == 1,
            past,
        };
        match self.ask_for(&mut asked, &mut request, &range, ends).await {
            BatchOutcome::Granted { n, token, .. } => {
                let granted =
                    asked
                        .granted()
                        .map(|in_doubt| BatchOutcome::Granted { n, token, in_doubt });
                let moved = || {
                    let what = "the store has failed over, and may have what it has granted before";
                    let (kind, name) = (ErrorKind::Indeterminate, self.core.info.name);
                    let unknown = Error::new(kind, name, Operation::Acquire, what);
                    BatchOutcome::Moved(Some(unknown))
                };
                (granted.unwrap_or_else(moved), None)
            }
            outcome @ BatchOutcome::Busy(_) if request.waits => {
                asked.in_line = true;
                (outcome, Some(asked))
            }
            outcome => (outcome, None),
        }
    }

    async fn ask_for<Ends: Future + Unpin>(
        &self,
        asked: &mut Asked,
        request: &mut Acquire,
        range: &Range<usize>,
        ends: impl Fn() -> Ends,
    ) -> BatchOutcome {
        let torn = !self.core.info.atomic && is_of_several_records(&request.claims);
        if !asked.in_doubt {
            asked.last_token = self.core.last_token();
        }
        let mut patience: Option<Instant> = None;
        let mut failures = 0;
        loop {
            match asked.send(self.core, request).await {
                Ok(Acquired::Acquired(token)) => {
                    if let Err(error) = self.core.take_token(token, asked.last_token) {
                        asked.in_doubt = true;
                        return BatchOutcome::Failed(error);
                    }
                    return BatchOutcome::Granted {
                        n: request.grant.n,
                        token,
                        in_doubt: asked.in_doubt,
                    };
                }
                // Unless it stands in line, the number is over: a copy that is granted later holds nothing.
                Ok(Acquired::Busy(busy)) => return BatchOutcome::Busy(busy),
                Ok(Acquired::Void) => return BatchOutcome::Void,
                Ok(Acquired::Moved) => return BatchOutcome::Moved(asked.unknown.take()),
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
                                *asked = Asked::new(self, range.clone());
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
                        return BatchOutcome::Failed(of_all(asked.unknown.take(), error));
                    }
                    // Unless all that was sent so far is given back.
                    if asked.in_doubt && !error.is_certainly_without_effect() {
                        asked.unknown = Some(error);
                    }
                }
            }
        }
    }
}

/// The error of several requests, of which the last has failed: what became of all is unknown if it is of one.
pub(crate) fn of_all(unknown: Option<Error>, last: Error) -> Error {
    match unknown {
        Some(unknown) if last.is_certainly_without_effect() => unknown,
        _ => last,
    }
}

/// A grant that was asked for. Dropping this retires it, however the attempt ends, and gives it back if a copy of its
/// request may take effect.
pub(crate) struct Asked {
    handle: Handle,
    claims: Arc<[Claim]>,
    grant: Grant,
    /// The incarnation that its request is meant for.
    incarnation: Incarnation,
    range: Range<usize>,
    /// A copy of the request was not answered.
    in_doubt: bool,
    /// The error that says so.
    unknown: Option<Error>,
    /// The last token that was acknowledged before the first such copy was sent: its own must be greater.
    last_token: u64,
    /// It was refused, and stands in line.
    in_line: bool,
    is_open: bool,
}

impl Asked {
    fn new(asker: &Asker<'_>, range: Range<usize>) -> Self {
        let (grant, incarnation) = asker.handle.session.grant();
        Self {
            handle: asker.handle.clone(),
            claims: Arc::clone(asker.claims),
            grant,
            incarnation,
            range,
            in_doubt: false,
            unknown: None,
            last_token: asker.core.last_token(),
            in_line: false,
            is_open: true,
        }
    }

    pub(crate) fn grant(&self) -> Grant {
        self.grant
    }

    /// Sends the request once.
    async fn send(&mut self, core: &Arc<Core>, request: &Acquire) -> Result<Acquired> {
        let in_doubt = std::mem::replace(&mut self.in_doubt, true);
        let answer = core.backend.acquire(request).await;
        core.asking.heard(&**core, &answer);
        let has_none = |error: &Error| !error.is_certainly_without_effect();
        self.in_doubt = in_doubt || answer.as_ref().is_err_and(has_none);
        answer
    }

    /// The attempt has it from now on; returns whether a copy was not answered. `None` if the session has moved
    /// meanwhile: then nobody has it.
    fn granted(mut self) -> Option<bool> {
        let stands = {
            let mut numbers = self.handle.session.numbers();
            numbers.grant(self.grant.n, self.incarnation)
        };
        self.is_open = !stands;
        let in_doubt = std::mem::replace(&mut self.in_doubt, true);
        stands.then_some(in_doubt)
    }

    /// It is retired, and that is acknowledged in time.
    async fn is_given_back(&mut self, until: Instant) -> bool {
        let (done, given_back) = oneshot::channel();
        self.give_back(Some(done));
        let given_back = timeout_at(timer(until), given_back).await;
        matches!(given_back, Ok(Ok(Ok(_))))
    }

    /// It leaves the line, and that is acknowledged, or known to happen by itself.
    pub(crate) async fn leave(mut self) {
        let (done, left) = oneshot::channel();
        self.give_back(Some(done));
        drop(left.await);
    }

    fn give_back(&mut self, done: Option<oneshot::Sender<Result<Released>>>) {
        self.is_open = false;
        self.handle.order(Order::Release(Release {
            claims: Arc::clone(&self.claims),
            grants: vec![(self.grant.n, self.range.clone())],
            with_intent: false,
            in_doubt: self.in_doubt,
            by_close: false,
            done,
        }));
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.is_open && (self.in_doubt || self.in_line) {
            self.give_back(None);
        } else if self.is_open {
            self.handle.session.numbers().end(self.grant.n);
        }
    }
}

/// Whether a store without atomic batches writes more than one record for them. A request that is refused takes back
/// what it wrote, perhaps late: after a copy with the same number was granted, this would take the grant's records.
fn is_of_several_records(claims: &[Claim]) -> bool {
    match claims {
        [one] => one.key().ancestors().next().is_some(),
        _ => true,
    }
}
