//! The line between processes at one key: a writer that waits beside readers who come and go.
//!
//! The readers are of one session, and one of them asks once more while it holds what it has. The writer may stand still for
//! a while, and its process with it. Time passes in steps; nobody sleeps through an answer that it could have.
//!
//! The rules:
//!
//! - *Pending*: a refusal leaves something behind with a place, which rises. Who has a later place is refused by it, as by a
//!   holder, also in its own session.
//! - *Passed in the end*: whose session holds the key passes the pending when that alone has refused it for longer than a hold
//!   is. Else who asks once more waits for who waits for it. It cannot be at once: readers of a session that overlap would keep
//!   a writer out for ever. Neither can it be at once for those alone whose session holds since before the writer: one that has
//!   passed has a later place, and who asks once more beside that waits for ever.
//!   Of several keys, who waits for one that waits for the session is passed, too; the seeded simulation shows why.
//! - *One after the other*: the first in line passes first, and each pass has everybody wait anew. Else many readers, each of
//!   whom is patient, keep the writer out.
//!   Who is first in line among those of a session is not stored: the client's own queue keeps them in order.
//! - *Removed*: what could be granted, and was not for some time by the clock of who is refused by it, is removed by that one,
//!   and waits anew, at the end.

use stateright::{Model, Property};

/// So many readers there are; the last one asks once more.
const READERS: usize = 3;
const ASKS_ONCE_MORE: usize = READERS - 1;
/// A hold is so long at most.
const HOLD: u8 = 2;
/// What could go and does not, is removed after so long.
const STANDS_STILL: u8 = 3;
/// Who is refused by a pending alone passes it after so long, if its session holds the key.
const PATIENCE: u8 = HOLD + 1;
/// So long a writer waits at most: for a hold that was there; for all who pass, one after the other; for the last of them.
const WRITER_WAITS: u8 = HOLD + 3 * PATIENCE + HOLD;
/// So long a reader waits at most: for a writer that waits, stands still, and holds.
const READER_WAITS: u8 = WRITER_WAITS + STANDS_STILL + HOLD;

/// A rule that a model lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// Who waits leaves nothing behind.
    Pending,
    /// Nobody passes.
    Passing,
    /// Whoever passes does so at once.
    Patience,
    /// The patience is as short as a hold.
    Longer,
    /// Who has been patient passes, whoever else has done so.
    Anew,
    /// Who is not the first in line passes, too.
    First,
    /// Whose session holds since before the writer passes at once, and nobody else.
    AnyHolder,
    /// Who stands still is not removed.
    Removal,
}

const WRITER: &str = "a writer waits for a bounded time";
const READER: &str = "a reader waits for a bounded time";

/// Every rule, and what is broken without it.
pub const MUTANTS: &[(Without, &str)] = &[
    (Without::Pending, WRITER),
    (Without::Passing, READER),
    (Without::Patience, WRITER),
    (Without::Longer, WRITER),
    (Without::AnyHolder, READER),
    (Without::Anew, WRITER),
    (Without::First, READER),
    (Without::Removal, READER),
];

/// The model, with all rules or without one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Line {
    /// What is missing.
    pub without: Option<Without>,
}

/// What a reader is at. A place is early if it is before the writer's; times are in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each field says what the variant says")]
pub enum Reader {
    /// It wants nothing.
    Idle,
    /// It waits, since then.
    Waits { early: bool, since: u8 },
    /// It holds a share, or two, since then.
    Has { early: bool, since: u8, twice: bool },
    /// It holds one, and waits for another one since then.
    WaitsAgain { early: bool, since: u8 },
}

/// What the writer is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each field says what the variant says")]
pub enum Writer {
    /// It wants nothing.
    Idle,
    /// It waits, since then.
    Waits { since: u8 },
    /// It stands still in the line; so long the others have seen that it could go.
    StandsStill { seen: u8 },
    /// It was removed, and stands still.
    Removed,
    /// It holds the key, since then.
    Has { since: u8 },
}

/// All that is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    readers: [Reader; READERS],
    writer: Writer,
    /// The readers who wait, in their order.
    line: Vec<usize>,
    /// So long ago somebody passed.
    passed: u8,
    /// The writer has stood still.
    stood: bool,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A reader wants a share.
    Want(usize),
    /// A reader asks, and has it.
    Read(usize),
    /// A reader asks once more.
    Again(usize),
    /// A reader gives back all that it has.
    Leave(usize),
    /// The writer wants the key.
    WantToWrite,
    /// The writer asks, and has it.
    Write,
    /// The writer gives it back.
    Written,
    /// The writer stands still.
    Pause,
    /// It goes on.
    Resume,
    /// Who is refused by it removes it.
    Remove,
    /// Time passes.
    Tick,
}

impl Line {
    fn lacks(self, rule: Without) -> bool {
        self.without == Some(rule)
    }

    /// Whether the session holds something, and who has waited for so long passes the writer by that.
    fn passes(self, state: &State, at: usize, since: u8) -> bool {
        let patience = match self.without {
            Some(Without::Passing) => return false,
            Some(Without::Patience | Without::AnyHolder) => 0,
            Some(Without::Longer) => HOLD - 1,
            _ => PATIENCE,
        };
        let lets_pass = |reader: &Reader| match *reader {
            Reader::Has { early, .. } | Reader::WaitsAgain { early, .. } => {
                early || !self.lacks(Without::AnyHolder)
            }
            _ => false,
        };
        let at_once = patience == 0;
        since >= patience
            && (at_once || self.lacks(Without::Anew) || state.passed >= patience)
            && (at_once || self.lacks(Without::First) || state.line.first() == Some(&at))
            && state.readers.iter().any(lets_pass)
    }

    /// Whether a request for a share with that place is granted to who has waited for so long.
    fn may_read(self, state: &State, at: usize) -> bool {
        let (early, since) = match state.readers[at] {
            Reader::Waits { early, since } => (early, since),
            // It wants one more share, for which it has the last place.
            Reader::WaitsAgain { since, .. } => (false, since),
            Reader::Idle | Reader::Has { .. } => return false,
        };
        let in_line = matches!(
            state.writer,
            Writer::Waits { .. } | Writer::StandsStill { .. }
        );
        let refuses = in_line && !early && !self.lacks(Without::Pending);
        !matches!(state.writer, Writer::Has { .. }) && (!refuses || self.passes(state, at, since))
    }

    /// Whether a request of the writer is granted.
    fn may_write(self, state: &State) -> bool {
        state.readers.iter().all(|reader| match reader {
            Reader::Idle => true,
            Reader::Waits { early, .. } => !early || self.lacks(Without::Pending),
            Reader::Has { .. } | Reader::WaitsAgain { .. } => false,
        })
    }

    /// Whether somebody who does not stand still has an answer that it did not ask for yet, or has to give back now.
    fn is_urgent(self, state: &State) -> bool {
        let reader = |at| match state.readers[at] {
            Reader::Has { since, .. } => since >= HOLD,
            _ => self.may_read(state, at),
        };
        let writer = match state.writer {
            Writer::Waits { .. } => self.may_write(state),
            Writer::Has { since } => since >= HOLD,
            Writer::StandsStill { seen } => seen >= STANDS_STILL && !self.lacks(Without::Removal),
            Writer::Idle | Writer::Removed => false,
        };
        writer || (0..READERS).any(reader)
    }
}

impl State {
    /// Whether a grant now has an earlier place than the writer.
    fn is_early(&self) -> bool {
        !matches!(
            self.writer,
            Writer::Waits { .. } | Writer::StandsStill { .. }
        )
    }
}

impl Model for Line {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            readers: [Reader::Idle; READERS],
            writer: Writer::Idle,
            line: Vec::new(),
            passed: PATIENCE,
            stood: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for at in 0..READERS {
            match state.readers[at] {
                Reader::Idle => steps.push(Step::Want(at)),
                Reader::Has { twice, .. } => {
                    steps.push(Step::Leave(at));
                    if at == ASKS_ONCE_MORE && !twice {
                        steps.push(Step::Again(at));
                    }
                }
                _ if self.may_read(state, at) => steps.push(Step::Read(at)),
                Reader::Waits { .. } | Reader::WaitsAgain { .. } => {}
            }
        }
        match state.writer {
            Writer::Idle => steps.push(Step::WantToWrite),
            Writer::Waits { .. } => {
                if self.may_write(state) {
                    steps.push(Step::Write);
                }
                if !state.stood {
                    steps.push(Step::Pause);
                }
            }
            Writer::StandsStill { seen } => {
                steps.push(Step::Resume);
                if seen >= STANDS_STILL && !self.lacks(Without::Removal) {
                    steps.push(Step::Remove);
                }
            }
            Writer::Removed => steps.push(Step::Resume),
            Writer::Has { .. } => steps.push(Step::Written),
        }
        if !self.is_urgent(state) {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Want(at) => {
                let early = state.is_early();
                state.readers[at] = Reader::Waits { early, since: 0 };
                state.line.push(at);
            }
            Step::Read(at) => {
                // A holder keeps the place that it had when it began to wait.
                let early = match state.readers[at] {
                    Reader::Waits { early, .. } | Reader::WaitsAgain { early, .. } => early,
                    _ => return None,
                };
                let twice = matches!(state.readers[at], Reader::WaitsAgain { .. });
                if (twice || !early) && !state.is_early() {
                    state.passed = 0;
                }
                let since = 0;
                state.readers[at] = Reader::Has {
                    early,
                    since,
                    twice,
                };
                state.line.retain(|other| *other != at);
            }
            Step::Again(at) => {
                let Reader::Has { early, .. } = state.readers[at] else {
                    return None;
                };
                state.readers[at] = Reader::WaitsAgain { early, since: 0 };
                state.line.push(at);
            }
            Step::Leave(at) => state.readers[at] = Reader::Idle,
            Step::WantToWrite => {
                state.all_are_early();
                state.writer = Writer::Waits { since: 0 };
            }
            Step::Write => state.writer = Writer::Has { since: 0 },
            Step::Written => state.writer = Writer::Idle,
            Step::Pause => {
                state.stood = true;
                state.writer = Writer::StandsStill { seen: 0 };
            }
            Step::Resume => {
                if state.writer == Writer::Removed {
                    state.all_are_early();
                }
                state.writer = Writer::Waits { since: 0 };
            }
            Step::Remove => {
                state.all_are_early();
                state.writer = Writer::Removed;
            }
            Step::Tick => {
                for reader in &mut state.readers {
                    match reader {
                        Reader::Waits { since, .. }
                        | Reader::Has { since, .. }
                        | Reader::WaitsAgain { since, .. } => *since += 1,
                        Reader::Idle => {}
                    }
                }
                state.passed = (state.passed + 1).min(PATIENCE);
                let could_go = self.may_write(before);
                match &mut state.writer {
                    Writer::Waits { since } | Writer::Has { since } => *since += 1,
                    Writer::StandsStill { seen } if could_go => {
                        *seen = (*seen + 1).min(STANDS_STILL);
                    }
                    Writer::StandsStill { seen } => *seen = 0,
                    Writer::Idle | Writer::Removed => {}
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody reads while it is written", |_, state: &State| {
                let reads =
                    |it: &Reader| matches!(it, Reader::Has { .. } | Reader::WaitsAgain { .. });
                !matches!(state.writer, Writer::Has { .. }) || !state.readers.iter().any(reads)
            }),
            Property::always(
                "a writer waits for a bounded time",
                |_, state: &State| !matches!(state.writer, Writer::Waits { since } if since > WRITER_WAITS),
            ),
            Property::always("a reader waits for a bounded time", |_, state: &State| {
                let too_long = |it: &Reader| match it {
                    Reader::Waits { since, .. } | Reader::WaitsAgain { since, .. } => {
                        *since > READER_WAITS
                    }
                    _ => false,
                };
                !state.readers.iter().any(too_long)
            }),
            Property::sometimes("it is written", |_, state: &State| {
                matches!(state.writer, Writer::Has { .. })
            }),
            Property::sometimes("somebody passes the writer", |_, state: &State| {
                let passed = |it: &Reader| matches!(it, Reader::Has { early: false, .. });
                matches!(state.writer, Writer::Waits { .. }) && state.readers.iter().any(passed)
            }),
            Property::sometimes("who stands still is removed", |_, state: &State| {
                state.writer == Writer::Removed
            }),
        ]
    }

    fn within_boundary(&self, state: &State) -> bool {
        let waits = |it: &Reader| match it {
            Reader::Waits { since, .. } | Reader::WaitsAgain { since, .. } => *since,
            _ => 0,
        };
        let writer = match state.writer {
            Writer::Waits { since } => since,
            _ => 0,
        };
        let longest = state.readers.iter().map(waits).max().unwrap_or(0);
        longest <= READER_WAITS + 1 && writer <= WRITER_WAITS + 1
    }
}

impl State {
    /// Every place is before that of a writer who begins to wait now, or later.
    fn all_are_early(&mut self) {
        for reader in &mut self.readers {
            if let Reader::Waits { early, .. }
            | Reader::Has { early, .. }
            | Reader::WaitsAgain { early, .. } = reader
            {
                *early = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stateright::{Checker, Model};

    use super::{Line, MUTANTS, Without};

    fn checked(without: Option<Without>) -> impl Checker<Line> {
        Line { without }.checker().spawn_bfs().join()
    }

    #[test]
    fn the_rules_keep_every_promise() {
        let checker = checked(None);
        println!("{} states", checker.unique_state_count());
        checker.assert_properties();
    }

    #[test]
    fn without_a_rule_a_promise_is_broken() {
        for (without, broken) in MUTANTS {
            let checker = checked(Some(*without));
            let found = checker.discovery(broken);
            assert!(found.is_some(), "{without:?}: {broken}");
            println!("{without:?}: {} steps", found.unwrap().into_actions().len());
        }
    }
}
