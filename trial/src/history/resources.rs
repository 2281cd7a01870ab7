//! Resources that are read and written under a lock, in the order in which they answered.

use std::collections::BTreeMap;

use lockcore::LockKey;

use super::check::{Findings, Violation};
use super::event::What;
use super::guards::Guards;
use super::index::Pos;
use super::{History, Law};

/// What was taken last, and by whom.
#[derive(Default)]
struct Resource {
    value: u64,
    /// The greatest token that it has seen, and from whom.
    greatest: u64,
    seen_from: Option<u64>,
    /// Who wrote when.
    last: Option<(u64, Pos)>,
}

/// Stale writes refused by resources that check tokens, and writes lost by those that check nothing.
pub(super) fn check(history: &History, guards: &Guards, findings: &mut Findings) -> (usize, usize) {
    let mut resources: BTreeMap<(bool, &LockKey), Resource> = BTreeMap::new();
    let (mut stale, mut losses) = (0, 0);
    for (number, event) in history.events.iter().enumerate() {
        let at = Pos {
            at: event.at,
            number: number + 1,
        };
        // Whether its guard said that it is valid at that instant.
        let believed = |attempt: u64, at: Pos| {
            guards
                .of_attempt(attempt)
                .is_some_and(|guard| guard.start <= at && at < guard.end)
        };
        if let What::Read {
            resource,
            fenced: true,
            attempt,
            value: Some(_),
        }
        | What::Wrote {
            resource,
            fenced: true,
            attempt,
            taken: true,
            ..
        } = &event.what
            && let Some(guard) = guards.of_attempt(*attempt)
        {
            let state = resources.entry((true, resource)).or_default();
            if guard.token < state.greatest {
                let greatest = state.greatest;
                findings.add(Violation::new(
                    Law::FencedLosesNothing,
                    at,
                    format!(
                        "{resource} had seen token {greatest}, and took {} of attempt {attempt}",
                        guard.token
                    ),
                ));
            }
            if guard.token > state.greatest {
                (state.greatest, state.seen_from) = (guard.token, Some(*attempt));
            }
        }
        match &event.what {
            What::Read { fenced: true, .. } | What::Wrote { fenced: true, .. } => {
                findings.judged(Law::FencedLosesNothing, 1);
                findings.judged(Law::FencedTakesValid, 1);
            }
            What::Wrote { .. } => findings.judged(Law::LossIsExplained, 1),
            _ => {}
        }
        match &event.what {
            What::Read {
                resource,
                attempt,
                value: None,
                ..
            }
            | What::Wrote {
                resource,
                attempt,
                fenced: true,
                taken: false,
                ..
            } => {
                stale += 1;
                // Who has lost one of its grants, and was not told, may have a greater token by the other.
                let state = resources.get(&(true, resource));
                let from = state.and_then(|state| guards.of_attempt(state.seen_from?));
                let misled = from.is_some_and(|it| {
                    let failovers = &guards.failovers;
                    failovers.has_lost_untold(it.session, at)
                });
                if believed(*attempt, at) && !misled {
                    findings.add(Violation::new(
                        Law::FencedTakesValid,
                        at,
                        format!(
                            "{resource} refused the guard of attempt {attempt}, which is valid"
                        ),
                    ));
                }
            }
            What::Wrote {
                resource,
                fenced,
                attempt,
                read,
                taken: true,
            } => {
                let state = resources.entry((*fenced, resource)).or_default();
                let lost = *read != state.value;
                if lost && *fenced {
                    findings.add(Violation::new(
                        Law::FencedLosesNothing,
                        at,
                        format!(
                            "{resource} had {}, and attempt {attempt}, which had read {read}, wrote over it",
                            state.value
                        ),
                    ));
                } else if lost {
                    losses += 1;
                    let other = state.last.is_none_or(|(last, when)| believed(last, when));
                    if other && believed(*attempt, at) {
                        findings.add(Violation::new(
                            Law::LossIsExplained,
                            at,
                            format!("{resource} lost a write between two valid guards, the later of attempt {attempt}"),
                        ));
                    }
                }
                state.value = read + 1;
                state.last = Some((*attempt, at));
            }
            _ => {}
        }
    }
    (stale, losses)
}
