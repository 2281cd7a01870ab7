//! Watches: one that stands while its claim becomes free resolves in time.

use std::collections::BTreeMap;

use lockcore::{Grant, Mode, OwnerId, SessionId};

use super::trouble::Trouble;
use super::{Border, NEVER};
use crate::history::check::{Findings, Subject, Violation};
use crate::history::index::{Cast, Keys, Pos};
use crate::history::{Call, Ending, History, Law, Reply, What};

/// What a few requests take, besides what the machine is known to be late by and a request took meanwhile.
const REQUESTS: u64 = 500_000_000;

/// A watch.
#[derive(Debug)]
pub(super) struct Watch {
    process: u32,
    call: u64,
    casts: Vec<Cast>,
    begun: Pos,
    /// When it stood.
    stands: Pos,
    /// When it resolved, or was dropped.
    woken: Option<Pos>,
    ended: Pos,
}

/// The watches that stood, by the time since when they did.
pub(super) fn watches(history: &History, keys: &mut Keys) -> Vec<Watch> {
    let mut watches: Vec<Watch> = Vec::new();
    let mut open: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    for (number, event) in history.events.iter().enumerate() {
        let at = Pos {
            at: event.at,
            number: number + 1,
        };
        match &event.what {
            What::Called {
                call,
                request: Call::Watch { claims },
            } => {
                open.insert((event.process, *call), watches.len());
                watches.push(Watch {
                    process: event.process,
                    call: *call,
                    casts: keys.casts(claims),
                    begun: at,
                    stands: NEVER,
                    woken: None,
                    ended: NEVER,
                });
            }
            What::Answered {
                call,
                reply: Reply::Stands,
            } => {
                if let Some(watch) = open.get(&(event.process, *call)) {
                    watches[*watch].stands = at;
                }
            }
            What::Woken { call } | What::Unwatched { call } => {
                if let Some(watch) = open.remove(&(event.process, *call)) {
                    watches[watch].ended = at;
                    if let What::Woken { .. } = event.what {
                        watches[watch].woken = Some(at);
                    }
                }
            }
            _ => {}
        }
    }
    watches.retain(|watch| watch.stands < NEVER);
    watches.sort_by_key(|watch| watch.stands);
    watches
}

/// A key that was freed: by a call and its answer.
#[derive(Clone, Copy)]
struct Freed {
    /// It certainly held from here.
    held: Pos,
    begun: Pos,
    answered: Pos,
    grant: Grant,
    /// Whose call it was.
    process: u32,
}

pub(super) fn check(border: &Border<'_>, history: &History, keys: &Keys, findings: &mut Findings) {
    if !border.setting.steady || border.watches.is_empty() {
        return;
    }
    let trouble = Trouble::of(history).with_requests(&border.sent);
    let freed = freed(border);
    let wakes = wakes(&border.watches);
    let none = Vec::new();
    let told = |watch: &&Watch| !trouble.was_cut_off(watch.process);
    for watch in border.watches.iter().filter(told) {
        for cast in &watch.casts {
            let freed = freed.get(&cast.key).unwrap_or(&none);
            let first = freed.partition_point(|freed| freed.begun < watch.stands);
            let freed = freed[first..]
                .iter()
                .take_while(|freed| freed.begun < watch.ended)
                .filter(|freed| freed.held < watch.begun);
            // A process tells itself of its own releases.
            let freed = freed.filter(|freed| freed.process != watch.process);
            // The first one that it has to see. Over something free it need not resolve.
            let Some(freed) = freed.min_by_key(|freed| freed.answered) else {
                continue;
            };
            let process = watch.process;
            let from = freed.begun.at;
            let slow = trouble.slow(from, freed.answered.at + REQUESTS);
            let bound = border.setting.poll.unwrap_or(0) + REQUESTS + slow;
            let mut until = freed.answered.at.saturating_add(bound);
            until = until.saturating_add(trouble.late(process, from, until));
            // Of those who wait in one process for one key only some look: a watch may wait for its turn to be looked at.
            let told = wakes.get(&(process, cast.key)).is_some_and(|wakes| {
                let next = wakes.partition_point(|at| *at < from);
                wakes.get(next).is_some_and(|at| *at <= until)
            });
            let in_time = watch.woken.is_some_and(|woken| woken.at <= until) || told;
            if in_time {
                findings.judged(Law::Waiting, 1);
            } else if watch.ended.at > until
                && until < trouble.end
                && !trouble.stopped(process, from, until)
            {
                findings.judged(Law::Waiting, 1);
                let key = keys.key(cast.key);
                let since = |at: Pos| (at.at as f64 - until as f64) / 1e9;
                let what = format!(
                    "{key}: {} was released, and watch {} of process {process} slept for {bound} ns more: it stands since \
                     {:.6} s, event {}, and ended at {:.6} s, event {}",
                    freed.grant,
                    watch.call,
                    since(watch.stands),
                    watch.stands.number,
                    since(watch.ended.min(Pos::instant(trouble.end))),
                    watch.ended.number,
                );
                let about = [Subject::Key(key.clone()), Subject::Process(process)];
                let at = Pos::instant(until);
                let number = history.events.partition_point(|event| event.at <= until);
                let at = Pos { number, ..at };
                findings.add(Violation::new(Law::Waiting, at, what).about(about));
            }
        }
    }
}

/// When a watch over a key was woken in a process.
fn wakes(watches: &[Watch]) -> BTreeMap<(u32, usize), Vec<u64>> {
    let mut wakes: BTreeMap<(u32, usize), Vec<u64>> = BTreeMap::new();
    for watch in watches {
        let Some(woken) = watch.woken else {
            continue;
        };
        for cast in &watch.casts {
            let key = (watch.process, cast.key);
            wakes.entry(key).or_default().push(woken.at);
        }
    }
    for wakes in wakes.values_mut() {
        wakes.sort_unstable();
    }
    wakes
}

/// The exclusive holders that certainly held until a release or the end of their session, by key, by their calls.
fn freed(border: &Border<'_>) -> BTreeMap<usize, Vec<Freed>> {
    let mut freed: BTreeMap<usize, Vec<Freed>> = BTreeMap::new();
    let mut of_session: BTreeMap<SessionId, Vec<Grant>> = BTreeMap::new();
    // How often each owner may have got each key.
    let mut owners: BTreeMap<(OwnerId, usize), usize> = BTreeMap::new();
    for asked in border.asked.values().filter(|asked| !asked.was_refused()) {
        let grants = of_session.entry(asked.grant.session).or_default();
        grants.push(asked.grant);
        for cast in &asked.casts {
            *owners.entry((asked.owner, cast.key)).or_default() += 1;
        }
    }
    for call in &border.sent {
        let Some((answered, reply)) = call.answer else {
            continue;
        };
        let grants: Vec<Grant> = match (call.request, reply) {
            (Call::Release { grant, .. }, Reply::Released(_)) => vec![*grant],
            (
                Call::End {
                    sessions,
                    how: Ending::Close | Ending::Revoke,
                },
                Reply::States(_),
            ) => sessions
                .iter()
                .filter(|session| {
                    border
                        .sessions
                        .get(session)
                        .is_some_and(|life| !life.may_have_intent(NEVER))
                })
                .flat_map(|session| of_session.get(session).cloned().unwrap_or_default())
                .collect(),
            _ => continue,
        };
        for grant in grants {
            let Some(asked) = border.asked.get(&grant) else {
                continue;
            };
            let (from, until) = asked.certain(border);
            // It held until this call, and nobody of its owner holds beside it.
            if from >= call.begun || until < call.begun {
                continue;
            }
            for cast in asked.casts.iter().filter(|cast| cast.mode == Mode::X) {
                if owners.get(&(asked.owner, cast.key)) == Some(&1) {
                    freed.entry(cast.key).or_default().push(Freed {
                        held: from,
                        begun: call.begun,
                        answered,
                        grant,
                        process: call.process,
                    });
                }
            }
        }
    }
    for freed in freed.values_mut() {
        freed.sort_by_key(|freed| freed.begun);
    }
    freed
}
