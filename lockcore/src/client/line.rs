//! For how long those who came before have kept somebody waiting.
//!
//! Whoever waits in the store's line is asked for again while it waits, so that one which may go and does not has stopped, or
//! died. And whoever waits for a session that waits for it waits for ever. So who is refused by a waiter for [`LONG`], during
//! which nothing has changed about that, asks to go past it: the store removes one that may go, and lets pass one that
//! waits for the session itself. After each pass all others wait anew, and twice as long: those who hold for long would pass it
//! one after the other for ever. `model/src/line.rs` has the rules, and what each of them prevents.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::clock::now;
use crate::limits::MAX_LISTED;
use crate::store::{Past, Refused, Waiting};
use crate::{Busy, Grant, Mode};

/// Twice the longest time between two requests of a waiter that may go soon. One with many before it asks more seldom, and is
/// notified when they have gone.
pub(crate) const LONG: Duration = Duration::from_secs(2);

/// As often the time is doubled, at most: who waits for several keys may have to pass for each of them.
const DOUBLED: u32 = 2;

/// Whether one that could not go still cannot, however often others have passed it meanwhile.
fn is_kept(was: Waiting, is: Waiting) -> bool {
    was.place == is.place && !was.may_go && !is.may_go
}

/// Whether those who wait have refused it, and no holder: a permit that is held refuses nobody while there are others.
fn is_by_waiters(refused: &Refused) -> bool {
    let mut held = refused.holders.iter().filter(|it| it.waiting.is_none());
    let waits = refused.holders.iter().any(|it| it.waiting.is_some());
    waits
        && match refused.claim.want().limit() {
            Some(limit) => {
                let free = usize::try_from(limit.get()).unwrap_or(usize::MAX) - 1;
                held.clone().all(|it| it.mode == Mode::IS) && held.count() <= free
            }
            None => held.next().is_none(),
        }
}

/// The waiters that have refused it last, each since when.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    seen: Vec<(Grant, Waiting, Instant)>,
    /// Since when only waiters have refused it, more than a refusal names.
    crowded: Option<Instant>,
}

impl Patience {
    /// For how long it waits for such a waiter.
    fn with(waiting: &Waiting) -> Duration {
        match waiting.may_go {
            true => LONG,
            false => LONG * (1 << waiting.passed.min(DOUBLED)),
        }
    }

    /// It was refused (again).
    pub(crate) fn refused(&mut self, busy: &Busy) {
        let first = busy.first();
        // As long as there is a holder, too, nobody waits for nothing.
        let by_waiters = is_by_waiters(first);
        let (alone, crowd) = (by_waiters && !first.more, by_waiters && first.more);
        let now = now();
        self.crowded = crowd.then(|| self.crowded.unwrap_or(now));
        let waiting = first.holders.iter();
        let waiting = waiting.filter_map(|it| Some((it.grant?, it.waiting?)));
        let mut before = std::mem::take(&mut self.seen);
        self.seen = waiting
            .filter(|(_, waiting)| waiting.may_go || alone)
            .map(|(grant, waiting)| {
                let mut same = before.iter();
                let same = same.find(|(seen, was, _)| {
                    *seen == grant && (*was == waiting || is_kept(*was, waiting))
                });
                let since = same.map_or(now, |(_, was, since)| {
                    // Who could have passed it when another did still can; all others wait anew.
                    let could = now >= *since + Self::with(was);
                    match waiting.passed > was.passed && !could {
                        true => now,
                        false => *since,
                    }
                });
                (grant, waiting, since)
            })
            .collect();
        // Those that it asked to go past, and was let past, do not refuse it any more: it has to name them again.
        if alone {
            let is_named = |grant: &Grant| first.holders.iter().any(|it| it.grant == Some(*grant));
            before.retain(|(grant, waiting, since)| {
                !is_named(grant) && now >= *since + Self::with(waiting)
            });
            before.truncate(MAX_LISTED.saturating_sub(self.seen.len()));
            self.seen.append(&mut before);
        }
    }

    /// Whether there are so many that not all of them can be passed, and none of them goes.
    pub(crate) fn is_crowded_out(&self) -> bool {
        self.crowded.is_some_and(|since| now() >= since + LONG)
    }

    /// Those that it has waited for long enough.
    pub(crate) fn past(&self) -> Vec<Past> {
        let now = now();
        let seen = self.seen.iter();
        seen.filter(|(_, waiting, since)| now >= *since + Self::with(waiting))
            .map(|(grant, waiting, _)| Past {
                grant: *grant,
                waiting: *waiting,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claim, Holder, Life, LockKey, Mode, Refused, SessionId, Want};

    fn holder(n: u64, waiting: Option<Waiting>) -> Holder {
        Holder {
            key: LockKey::parse("k").unwrap(),
            grant: Some(Grant {
                session: SessionId::new(1),
                n,
            }),
            owner: None,
            mode: Mode::X,
            label: String::new(),
            since: None,
            life: Life::Living,
            waiting,
        }
    }

    fn by(holders: Vec<Holder>) -> Busy {
        let claim = Claim::new(LockKey::parse("k").unwrap(), Want::Create).unwrap();
        let refused = Refused {
            claim,
            holders,
            more: false,
        };
        Busy::new(vec![refused], false)
    }

    fn waiting(passed: u32, may_go: bool) -> Option<Waiting> {
        Some(Waiting {
            place: 7,
            passed,
            may_go,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_not_changed_for_long_enough_is_passed() {
        let mut patience = Patience::default();
        let stands = || {
            by(vec![
                holder(1, waiting(0, true)),
                holder(2, waiting(0, false)),
            ])
        };
        patience.refused(&stands());
        tokio::time::advance(LONG - Duration::from_millis(1)).await;
        patience.refused(&stands());
        assert_eq!(patience.past(), []);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(patience.past().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_begins_anew() {
        let mut patience = Patience::default();
        for changed in [waiting(0, false), waiting(1, false), waiting(1, true)] {
            patience.refused(&by(vec![holder(1, changed)]));
            tokio::time::advance(LONG - Duration::from_millis(1)).await;
        }
        assert_eq!(patience.past(), []);
        patience.refused(&by(vec![holder(3, None)]));
        patience.refused(&by(vec![holder(1, waiting(1, true))]));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(patience.past(), [], "it was not in the way meanwhile");
    }

    /// Else those who came one after the other would pass it one after the other, each in its own time.
    #[tokio::test(start_paused = true)]
    async fn whoever_was_not_due_when_another_passed_waits_anew() {
        let mut patience = Patience::default();
        let stands = |passed| by(vec![holder(1, waiting(passed, false))]);
        patience.refused(&stands(2));
        let due = LONG * 4;
        tokio::time::advance(due - Duration::from_millis(1)).await;
        patience.refused(&stands(3));
        tokio::time::advance(due - Duration::from_millis(1)).await;
        assert_eq!(patience.past(), [], "another one has passed since");
        tokio::time::advance(Duration::from_millis(1)).await;
        patience.refused(&stands(4));
        assert_eq!(patience.past().len(), 1, "it could have, too");
    }

    #[tokio::test(start_paused = true)]
    async fn beside_a_holder_only_who_may_go_is_passed() {
        let mut patience = Patience::default();
        let holders = |may_go| by(vec![holder(1, waiting(0, may_go)), holder(2, None)]);
        for (may_go, passed) in [(true, 1), (false, 0)] {
            patience.refused(&holders(may_go));
            tokio::time::advance(LONG).await;
            assert_eq!(patience.past().len(), passed, "{may_go}");
        }
    }
}
