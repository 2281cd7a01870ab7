//! A share without a limit that several tasks of one process have on one grant of the store.
//!
//! The process has three tasks and at most two grants. Beside it another process wants the key for itself, an operator evicts
//! a grant, somebody removes one behind everybody's back, the lease ends, an answer comes late, and whoever asks, has or gives
//! back may go away.
//!
//! The rules, as `lockcore` has them (`client/chain.rs`):
//!
//! - *Counted*: who has the share is counted in one atomic step, with the number of those who have joined.
//! - *Closed*: who is the last one closes the grant in the step in which it leaves, before the first byte of its release;
//!   nobody joins it from then on.
//! - *Stands*: what makes one of them lose it is lost to all: the deadline, an eviction, a confirmation's "no". Who is handed
//!   a share looks at that last.
//! - *Once*: each one leaves once, whoever makes it leave: its program, a longest hold, its going away.
//! - *No owner*: the grant's owner re-enters nothing, since others have the grant, too.

use stateright::{Model, Property};

const TASKS: usize = 3;
const GRANTS: usize = 2;
const TTL: u8 = 2;

/// A rule that a model lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// The first one who gives it back releases it in the store.
    Counted,
    /// The count is read in one step and written in another one.
    Atomic,
    /// The grant is closed when its release is answered.
    Closed,
    /// Who is handed a share does not look whether it is lost.
    Look,
    /// A "no" is told to the one who asked.
    ToldToAll,
    /// Who was made to leave by a longest hold leaves again when its program comes back.
    Once,
    /// Who goes away between joining and having is not counted off.
    CountedOff,
    /// The grant's owner re-enters.
    NoOwner,
    /// The number of those who have joined is drawn in a step of its own.
    NumberInOneStep,
}

const BELIEVES: &str = "who believes has it in the store";
const LEFT: &str = "nothing is left behind";

/// Every rule, and what is broken without it.
pub const MUTANTS: &[(Without, &str)] = &[
    (Without::Counted, BELIEVES),
    (Without::Atomic, LEFT),
    (Without::Closed, BELIEVES),
    (Without::Look, "nothing is handed out that is lost"),
    (
        Without::ToldToAll,
        "nobody believes what another one was told",
    ),
    (Without::Once, BELIEVES),
    (Without::CountedOff, LEFT),
    (Without::NoOwner, "nobody believes beside an exclusive lock"),
    (Without::NumberInOneStep, "no token is given out twice"),
];

/// The model, with all rules or without one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shares {
    /// What is missing.
    pub without: Option<Without>,
}

/// What a task is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// It wants nothing yet.
    Idle,
    /// It has asked the store.
    Asks(usize),
    /// It has joined the grant with that number, and its program does not have it yet.
    Joins(usize, u8),
    /// Its program has it, as the so many-th.
    Has(usize, u8),
    /// The same, and a longest hold has given it back.
    WasMadeToLeave(usize),
    /// It has read how many have it (only without the rule).
    Leaves(usize, u8),
    /// It is the last one, and its release is under way.
    GivesBack(usize),
    /// It has gone.
    Gone,
}

/// A grant as the process knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Grant {
    /// It was asked for.
    begun: bool,
    have: u8,
    joined: u8,
    /// Everybody knows that it is lost.
    fell: bool,
}

/// A request to the store that may be executed at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// For a share.
    Acquire(usize),
    /// To give it back.
    Release(usize),
}

/// All that is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    tasks: [Task; TASKS],
    grants: [Grant; GRANTS],
    requests: Vec<Request>,
    /// Answers under way: to a request for a share, and a confirmation's "no", each to whom.
    granted: [bool; GRANTS],
    no: [Option<usize>; GRANTS],
    /// Only without a rule: who alone knows that it lost it, that a token was given out twice, or what was lost already.
    knows: [bool; TASKS],
    handed_out: [u8; GRANTS],
    twice: bool,
    lost: bool,
    /// What the store has of the process, and whether it is evicted there.
    stored: [bool; GRANTS],
    evicted: [bool; GRANTS],
    /// Somebody has removed it there.
    removed: [bool; GRANTS],
    /// The lease: what is left by the store and by the process, and whether the session is dead in the store.
    left: u8,
    valid: u8,
    dead: bool,
    /// The other process has the key for itself.
    rival: bool,
    /// A task of the process has re-entered for itself.
    upgraded: Option<usize>,
    faults: u8,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A task asks the store.
    Ask(usize),
    /// A task joins what its process has.
    Join(usize),
    /// It draws its number (only without a rule).
    Draw(usize),
    /// Its program has the share.
    Deliver(usize),
    /// Its program has gone meanwhile.
    GoAway(usize),
    /// Its program gives it back.
    Leave(usize),
    /// It writes how many are left (only without a rule).
    Write(usize),
    /// Its longest hold is over.
    Bound(usize),
    /// The store executes a request.
    Execute(Request),
    /// The answer arrives.
    Answer(usize),
    /// The store answers "no" to a confirmation.
    Confirm(usize),
    /// That arrives.
    Answered(usize),
    /// An operator evicts the grant; its process has heard of it.
    Evict(usize),
    /// Somebody removes it, and nobody knows.
    Remove(usize),
    /// Time passes.
    Tick,
    /// The lease ends in the store.
    End,
    /// The other process has it for itself.
    Rival,
    /// The other process gives it back.
    RivalLeaves,
    /// A task re-enters for itself, with the owner of what it has.
    Upgrade(usize),
}

impl Shares {
    fn lacks(self, rule: Without) -> bool {
        self.without == Some(rule)
    }

    /// Whether somebody may join.
    fn is_open(self, state: &State, n: usize) -> bool {
        state.grants[n].have > 0 && state.stands(n)
    }

    /// The task leaves the grant.
    fn leave(self, state: &mut State, task: usize, n: usize) {
        let is_last = if self.lacks(Without::Counted) {
            state.grants[n].have = 0;
            true
        } else {
            let have = state.grants[n].have;
            state.grants[n].have = match have {
                1 if self.lacks(Without::Closed) => 1,
                have => have.saturating_sub(1),
            };
            have == 1
        };
        self.left(state, task, n, is_last);
    }

    fn left(self, state: &mut State, task: usize, n: usize, is_last: bool) {
        state.tasks[task] = match is_last {
            true => Task::GivesBack(n),
            false => Task::Gone,
        };
        if is_last {
            state.send(Request::Release(n));
        }
    }
}

impl State {
    fn send(&mut self, request: Request) {
        self.requests.push(request);
        self.requests.sort_unstable();
    }

    /// Whether the process believes in the grant.
    fn stands(&self, n: usize) -> bool {
        self.valid > 0 && !self.grants[n].fell
    }

    /// Whether the store counts it.
    fn is_live(&self, n: usize) -> bool {
        self.stored[n] && !self.dead && !self.evicted[n]
    }

    /// The grant of a program that says that it holds.
    fn believes(&self, task: usize) -> Option<usize> {
        match self.tasks[task] {
            Task::Has(n, _) => (self.stands(n) && !self.knows[task]).then_some(n),
            _ => None,
        }
    }
}

impl Model for Shares {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            tasks: [Task::Idle; TASKS],
            grants: [Grant::default(); GRANTS],
            requests: Vec::new(),
            granted: [false; GRANTS],
            no: [None; GRANTS],
            knows: [false; TASKS],
            handed_out: [0; GRANTS],
            twice: false,
            lost: false,
            stored: [false; GRANTS],
            evicted: [false; GRANTS],
            removed: [false; GRANTS],
            left: TTL,
            valid: TTL,
            dead: false,
            rival: false,
            upgraded: None,
            faults: 0,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for task in 0..TASKS {
            match state.tasks[task] {
                Task::Idle => {
                    let free = (0..GRANTS).find(|n| !state.grants[*n].begun);
                    if state.valid > 0 && free.is_some() {
                        steps.push(Step::Ask(task));
                    }
                    if (0..GRANTS).any(|n| self.is_open(state, n)) {
                        steps.push(Step::Join(task));
                    }
                }
                Task::Joins(_, 0) => steps.push(Step::Draw(task)),
                Task::Joins(..) => steps.extend([Step::Deliver(task), Step::GoAway(task)]),
                Task::Has(n, _) => {
                    steps.extend([Step::Leave(task), Step::Bound(task)]);
                    if state.no[n].is_none() && !state.grants[n].fell {
                        steps.push(Step::Confirm(task));
                    }
                    if state.upgraded.is_none() && state.believes(task).is_some() {
                        steps.push(Step::Upgrade(task));
                    }
                }
                Task::WasMadeToLeave(_) => steps.push(Step::Leave(task)),
                Task::Leaves(..) => steps.push(Step::Write(task)),
                Task::Asks(_) | Task::GivesBack(_) | Task::Gone => {}
            }
        }
        steps.extend(state.requests.iter().copied().map(Step::Execute));
        for n in 0..GRANTS {
            if state.granted[n] {
                steps.push(Step::Answer(n));
            }
            if state.no[n].is_some() {
                steps.push(Step::Answered(n));
            }
            if state.stored[n] && state.faults == 0 {
                steps.extend([Step::Evict(n), Step::Remove(n)]);
            }
        }
        if state.left > 0 {
            steps.push(Step::Tick);
        } else if !state.dead {
            steps.push(Step::End);
        }
        match state.rival {
            false => steps.push(Step::Rival),
            true => steps.push(Step::RivalLeaves),
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Ask(task) => {
                let n = (0..GRANTS).find(|n| !state.grants[*n].begun)?;
                state.grants[n].begun = true;
                state.tasks[task] = Task::Asks(n);
                state.send(Request::Acquire(n));
            }
            Step::Join(task) => {
                let n = (0..GRANTS).find(|n| self.is_open(&state, *n))?;
                let grant = &mut state.grants[n];
                grant.have += 1;
                let number = match self.lacks(Without::NumberInOneStep) {
                    true => 0,
                    false => {
                        grant.joined += 1;
                        grant.joined
                    }
                };
                state.tasks[task] = Task::Joins(n, number);
            }
            Step::Draw(task) => {
                let Task::Joins(n, _) = state.tasks[task] else {
                    return None;
                };
                // As many as have joined by now.
                let joining = |it: &&Task| matches!(it, Task::Joins(of, _) if *of == n);
                let joined = before.tasks.iter().filter(joining).count();
                state.tasks[task] = Task::Joins(n, u8::try_from(joined).ok()?);
            }
            Step::Deliver(task) => {
                let Task::Joins(n, number) = state.tasks[task] else {
                    return None;
                };
                if !state.stands(n) && !self.lacks(Without::Look) {
                    self.leave(&mut state, task, n);
                    return Some(state);
                }
                let bit = 1 << number;
                state.lost |= !state.stands(n);
                state.twice |= state.handed_out[n] & bit > 0;
                state.handed_out[n] |= bit;
                state.tasks[task] = Task::Has(n, number);
            }
            Step::GoAway(task) => {
                let Task::Joins(n, _) = state.tasks[task] else {
                    return None;
                };
                match self.lacks(Without::CountedOff) {
                    true => state.tasks[task] = Task::Gone,
                    false => self.leave(&mut state, task, n),
                }
            }
            Step::Leave(task) => match state.tasks[task] {
                Task::Has(n, _) if self.lacks(Without::Atomic) => {
                    state.tasks[task] = Task::Leaves(n, state.grants[n].have);
                }
                Task::Has(n, _) => self.leave(&mut state, task, n),
                Task::WasMadeToLeave(n) if self.lacks(Without::Once) => {
                    self.leave(&mut state, task, n);
                }
                _ => state.tasks[task] = Task::Gone,
            },
            Step::Write(task) => {
                let Task::Leaves(n, have) = state.tasks[task] else {
                    return None;
                };
                state.grants[n].have = have.saturating_sub(1);
                self.left(&mut state, task, n, have == 1);
            }
            Step::Bound(task) => {
                let Task::Has(n, _) = state.tasks[task] else {
                    return None;
                };
                self.leave(&mut state, task, n);
                state.tasks[task] = Task::WasMadeToLeave(n);
            }
            Step::Execute(request) => {
                let at = state.requests.iter().position(|it| *it == request)?;
                state.requests.remove(at);
                match request {
                    Request::Acquire(n) => {
                        // Asked again until it is granted, or the session is over.
                        if state.rival || state.upgraded.is_some() {
                            return None;
                        }
                        if !state.dead {
                            state.stored[n] = true;
                            state.granted[n] = true;
                        }
                    }
                    Request::Release(n) => state.stored[n] = false,
                }
            }
            Step::Answer(n) => {
                state.granted[n] = false;
                let asker = state.tasks.iter().position(|it| *it == Task::Asks(n))?;
                state.grants[n].have = 1;
                if state.stands(n) {
                    state.handed_out[n] |= 1;
                    state.tasks[asker] = Task::Has(n, 0);
                } else {
                    self.leave(&mut state, asker, n);
                }
            }
            Step::Confirm(task) => {
                let Task::Has(n, _) = state.tasks[task] else {
                    return None;
                };
                // Who is answered "yes" learns nothing.
                if state.is_live(n) {
                    return None;
                }
                state.no[n] = Some(task);
            }
            Step::Answered(n) => {
                let asker = state.no[n].take()?;
                match self.lacks(Without::ToldToAll) {
                    true => state.knows[asker] = true,
                    false => state.grants[n].fell = true,
                }
            }
            Step::Evict(n) => {
                // It counts until its process has heard of it.
                state.faults += 1;
                state.grants[n].fell = true;
                state.evicted[n] = true;
            }
            Step::Remove(n) => {
                state.faults += 1;
                state.removed[n] = true;
                state.stored[n] = false;
            }
            Step::Tick => {
                state.left -= 1;
                state.valid = state.valid.saturating_sub(1);
            }
            Step::End => state.dead = true,
            Step::Rival => {
                if (0..GRANTS).any(|n| state.is_live(n)) || state.upgraded.is_some() {
                    return None;
                }
                state.rival = true;
            }
            Step::RivalLeaves => state.rival = false,
            Step::Upgrade(task) => {
                // The store passes over the holders of the same owner.
                let Task::Has(n, number) = state.tasks[task] else {
                    return None;
                };
                let mine = |it: usize| self.lacks(Without::NoOwner) && it == n && number == 0;
                if (0..GRANTS).any(|it| state.is_live(it) && !mine(it)) {
                    return None;
                }
                state.upgraded = Some(task);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("who believes has it in the store", |_, state: &State| {
                (0..TASKS)
                    .filter_map(|task| state.believes(task))
                    .all(|n| state.is_live(n) || state.removed[n])
            }),
            Property::always(
                "nobody believes beside an exclusive lock",
                |_, state: &State| {
                    let believes =
                        |task: &usize| state.believes(*task).is_some_and(|n| !state.removed[n]);
                    let others = |of: Option<usize>| {
                        let others = (0..TASKS).filter(|task| Some(*task) != of);
                        others.filter(believes).count()
                    };
                    (!state.rival || others(None) == 0)
                        && (state.upgraded.is_none() || others(state.upgraded) == 0)
                },
            ),
            Property::always("no token is given out twice", |_, state: &State| {
                !state.twice
            }),
            Property::always("nothing is handed out that is lost", |_, state: &State| {
                !state.lost
            }),
            Property::always(
                "nobody believes what another one was told",
                |_, state: &State| {
                    let has = |n| move |task: &usize| matches!(state.tasks[*task], Task::Has(of, _) if of == n);
                    let told = |n| (0..TASKS).filter(has(n)).any(|task| state.knows[task]);
                    !(0..TASKS).any(|task| state.believes(task).is_some_and(told))
                },
            ),
            Property::always("nothing is left behind", |_, state: &State| {
                let at_rest =
                    |it: &Task| matches!(it, Task::Idle | Task::GivesBack(_) | Task::Gone);
                let rests = state.tasks.iter().all(at_rest) && state.requests.is_empty();
                !rests || state.granted.contains(&true) || !state.stored.contains(&true)
            }),
            Property::sometimes("three have it at once", |_, state: &State| {
                (0..TASKS).all(|task| state.believes(task).is_some()) && state.grants[0].have == 3
            }),
            Property::sometimes(
                "one has it whom the first one has left",
                |_, state: &State| {
                    let first_is_gone = state.handed_out[0] & 1 > 0
                        && !state.tasks.iter().any(|it| matches!(it, Task::Has(0, 0)));
                    first_is_gone && (0..TASKS).any(|task| state.believes(task) == Some(0))
                },
            ),
            Property::sometimes("two grants stand", |_, state: &State| {
                state.is_live(0) && state.is_live(1)
            }),
            Property::sometimes("the other process has it afterwards", |_, state: &State| {
                state.rival && state.tasks.contains(&Task::GivesBack(0))
            }),
            Property::sometimes("what is evicted is lost to two", |_, state: &State| {
                let has = |it: &&Task| matches!(it, Task::Has(0, _));
                state.evicted[0] && state.tasks.iter().filter(has).count() > 1
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use stateright::{Checker, Model};

    use super::{MUTANTS, Shares, Without};

    fn checked(without: Option<Without>) -> impl Checker<Shares> {
        Shares { without }.checker().spawn_bfs().join()
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
