//! Sessions, their locks, their intents and who adopts these, on two kinds of store.
//!
//! A *store of records* writes one record in a step: a session's, or a key's. An *atomic* store writes all keys of a request,
//! and the session with them, in one step. The clients are the same, but for intents: on an atomic store they come and go in
//! the step of their locks. (Our stores do that in two, as the store of records does.) Requests are late, lost, doubled and
//! overtake each other; clients are killed and pause; anybody ends a session that is due. Time is what is left of each lease,
//! so it has no bound.
//!
//! The rules, as GUARANTEES.md and ARCHITECTURE.md have them, are what [`Without`] takes away one by one.

mod client;
mod promises;
pub mod scenes;
mod store;
#[cfg(test)]
mod tests;

use stateright::{Model, Property};

/// The time to live of a session, in ticks.
const TTL: u8 = 2;
/// Nobody's number.
const NOBODY: u8 = 0xff;

/// How a store writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// One record in a step.
    Records,
    /// Everything of a request in a step.
    Atomic,
}

/// A rule that a model lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// A session's record is written in the order of its numbers.
    Order,
    /// What is dead is written by nobody but its adopter.
    DeadStays,
    /// A death is a write, and not a comparison of times.
    DeathIsWritten,
    /// A request asks whether its own session lives.
    OwnSession,
    /// A release of a dead session does nothing.
    ReleaseOfTheLiving,
    /// A session without a record is dead.
    MissingIsDead,
    /// A session is open before its first request.
    OpenFirst,
    /// A deadline counts from the sending of a renewal.
    FromTheSending,
    /// A deadline is before the end of the lease.
    Margin,
    /// What is over its deadline is not revived.
    Latch,
    /// Who hands a guard out looks at the deadline after the last answer.
    LookLast,
    /// Tokens go on when a record is gone.
    TokensGoOn,
    /// An attempt that was undone has a new number.
    NewNumber,
    /// A release removes its own grant only.
    OwnGrantOnly,
    /// Each grant of an owner is a holder of its own.
    HolderByGrant,
    /// The number of an attempt is retired whose outcome is unknown.
    Retired,
    /// Each renewal carries all retired numbers.
    RetiredOnRenewal,
    /// The release of an intent retires its number.
    ReleaseRetires,
    /// An intent is registered after the last claim.
    IntentLast,
    /// An intent is removed before the first claim is given back.
    RemovedFirst,
    /// The removal is acknowledged before that.
    RemovalAcknowledged,
    /// An adoption names the number of the last one.
    AdoptionByNumber,
    /// An adoption waits for the death of the adopter before.
    AfterTheAdopter,
    /// A settlement names its adoption.
    SettlementByNumber,
    /// Who gives an adoption up whose outcome is unknown has it written.
    GivenUpInTheStore,
    /// What a dead session has an intent for is held.
    AbandonedIsHeld,
}

/// What one client wants.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// The keys of each attempt, a bit each.
    pub keys: u8,
    /// How many attempts.
    pub attempts: u8,
    /// Each has an intent.
    pub intent: bool,
    /// It adopts what is abandoned.
    pub adopts: bool,
    /// Its attempts do not wait for each other.
    pub at_once: bool,
}

/// How often something may happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Renewals that nothing else asks for.
    pub renewals: u8,
    /// Requests that are sent again.
    pub resends: u8,
    /// Requests that are executed twice.
    pub doubles: u8,
    /// Clients that are killed.
    pub kills: u8,
    /// Clients that pause beyond their deadline.
    pub pauses: u8,
    /// Requests that are not waited for any longer.
    pub give_ups: u8,
    /// Records of dead sessions that are swept.
    pub sweeps: u8,
    /// Steps of the store's clock back.
    pub steps_back: u8,
}

/// Requests that may be executed twice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Doubled {
    /// To open a session.
    pub open: bool,
    /// To renew it.
    pub renew: bool,
    /// For a lock.
    pub acquire: bool,
    /// To give it back.
    pub release: bool,
    /// To adopt and to settle.
    pub adopt: bool,
}

/// The model of some clients, with all rules or without one.
#[derive(Debug, Clone)]
pub struct Sessions {
    /// The store.
    pub store: Store,
    /// What each client wants.
    pub programs: Vec<Program>,
    /// How many keys there are.
    pub keys: u8,
    /// Leases end by time. Otherwise a session may be ended as soon as its client does not believe in it.
    pub timed: bool,
    /// All attempts of a client have one owner.
    pub reenters: bool,
    /// Tokens are looked at.
    pub tokens: bool,
    /// How much goes wrong.
    pub budget: Budget,
    /// What may be executed twice.
    pub doubled: Doubled,
    /// What is missing.
    pub without: Option<Without>,
}

/// A request, or an answer. `of` is the client, whose session has the same number.
#[expect(missing_docs, reason = "what a message has is said where it is sent")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// Opens a session; `age` is the time since it was sent.
    Open { of: u8, age: u8 },
    /// Writes its record: its intents, and the numbers that are retired.
    Renew {
        of: u8,
        age: u8,
        seq: u8,
        intents: u8,
        retired: u8,
    },
    /// For a key, or for all keys of an attempt where there is none; `free` are the grants that are known not to be live.
    Acquire {
        of: u8,
        attempt: u8,
        key: Option<u8>,
        free: u32,
    },
    /// Gives it back.
    Release {
        of: u8,
        attempt: u8,
        key: Option<u8>,
        retires: bool,
        whole: bool,
    },
    /// Adopts what that session has left, if the number of its last adoption is that.
    Adopt { by: u8, of: u8, seen: u8 },
    /// Uses that number up.
    GiveUp { by: u8, of: u8, seen: u8 },
    /// Settles an intent.
    Settle {
        by: u8,
        of: u8,
        attempt: u8,
        adoption: u8,
    },
    /// Answers.
    Opened { of: u8, age: u8 },
    /// The record is written.
    Renewed { of: u8, age: u8, seq: u8 },
    /// The session is dead.
    Dead { of: u8 },
    /// A key, or all, with a token.
    Acquired {
        of: u8,
        attempt: u8,
        key: Option<u8>,
        token: u8,
    },
    /// Somebody is in the way.
    Busy {
        of: u8,
        attempt: u8,
        key: Option<u8>,
    },
    /// It is given back.
    Released {
        of: u8,
        attempt: u8,
        key: Option<u8>,
    },
    /// The adoption has that number.
    Adopted {
        by: u8,
        of: u8,
        adoption: u8,
        intents: u8,
    },
    /// Somebody else has adopted it, or nobody can.
    NotAdopted { by: u8, of: u8, seen: u8 },
    /// The intent is settled.
    Settled { by: u8, of: u8, attempt: u8 },
}

/// Where an attempt is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Stage {
    #[default]
    Idle,
    /// Only without a rule: its intent is being registered.
    RegistersFirst,
    Acquires,
    /// Its intent is being registered.
    Registers,
    Holds,
    /// Its intent is being removed, or its number retired.
    Withdraws,
    GivesBack,
    /// Only without a rule: its intent is being removed.
    RemovesLast,
    Done,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Attempt {
    stage: Stage,
    /// A copy of its request may be on its way.
    in_doubt: bool,
    /// The keys that were answered, one way or the other; of an atomic request the first bit.
    granted: u8,
    refused: u8,
    /// The keys whose release is not answered.
    unreleased: u8,
    token: u8,
    tries: u8,
    again: bool,
}

/// What a client believes of its session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Belief {
    #[default]
    Unopened,
    Opening,
    Open,
    Lost,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Adoption {
    #[default]
    Nothing,
    Asks {
        of: u8,
        seen: u8,
    },
    GivesUp {
        of: u8,
        seen: u8,
    },
    Works {
        of: u8,
        adoption: u8,
        intents: u8,
        sent: u8,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Client {
    belief: Belief,
    /// Until its deadline.
    left: u8,
    seq: u8,
    /// What its record is to say.
    intents: u8,
    retired: u8,
    /// A renewal is under way, and what it says.
    in_flight: bool,
    sent: (u8, u8),
    /// The record is to be written.
    dirty: bool,
    attempts: Vec<Attempt>,
    adoption: Adoption,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Life {
    None,
    Living,
    Dead,
    Swept,
}

/// A session's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Record {
    life: Life,
    left: u8,
    seq: u8,
    intents: u8,
    retired: u8,
    adopter: u8,
    adoption: u8,
}

impl Record {
    const NONE: Self = Self {
        life: Life::None,
        left: 0,
        seq: 0,
        intents: 0,
        retired: 0,
        adopter: NOBODY,
        adoption: 0,
    };
}

/// Of a session, the number of an attempt.
type Grant = (u8, u8);

/// All that is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The clients that were not killed, a bit each.
    alive: u8,
    clients: Vec<Client>,
    records: Vec<Record>,
    /// The holders of each key.
    locks: Vec<Vec<Grant>>,
    messages: Vec<Message>,
    token: u8,
    /// The greatest token that was handed out for each key.
    handed_out: Vec<u8>,
    /// Guards with an intent that nobody has given back or settled.
    open: u32,
    /// Attempts with an intent that were finished by who made them.
    finished: u32,
    token_fell: bool,
    other_was_freed: bool,
    was_revived: bool,
    budget: Budget,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A message arrives.
    Arrive(Message),
    /// A request arrives, and a copy of it is still on its way.
    ArriveTwice(Message),
    /// Time passes.
    Tick,
    /// Somebody ends a session that is due.
    End(u8),
    /// A dead session's record is removed.
    Sweep(u8),
    /// The store's clock steps back: a session that was due is not.
    StepBack(u8),
    /// A client opens its session.
    Open(u8),
    /// It begins an attempt.
    Begin(u8, u8),
    /// It sends its request again.
    Resend(u8, u8),
    /// It waits for it no longer.
    GiveUp(u8, u8),
    /// It gives its guard back.
    Release(u8, u8),
    /// It writes its session's record.
    Renew(u8),
    /// It writes it again, without an answer.
    RenewAgain(u8),
    /// It is killed.
    Kill(u8),
    /// It pauses beyond its deadline.
    Pause(u8),
    /// It notices that its deadline is over.
    Notice(u8),
    /// It adopts what a session has left.
    Adopt(u8, u8),
    /// It does not wait for that any longer.
    AdoptNoMore(u8),
    /// It settles an intent.
    Settle(u8, u8),
}

impl Sessions {
    fn lacks(&self, rule: Without) -> bool {
        self.without == Some(rule)
    }

    fn clients(&self) -> std::ops::Range<u8> {
        0..u8::try_from(self.programs.len()).unwrap_or(0)
    }

    fn program(&self, client: u8) -> &Program {
        &self.programs[usize::from(client)]
    }

    fn attempts(&self, client: u8) -> std::ops::Range<u8> {
        0..self.program(client).attempts
    }

    fn keys_of(&self, client: u8) -> impl Iterator<Item = u8> + use<> {
        let mask = self.program(client).keys;
        keys_in(mask, self.keys)
    }

    /// The bits of the answers that an attempt waits for.
    fn parts(&self, client: u8) -> u8 {
        match self.store {
            Store::Atomic => 1,
            Store::Records => self.program(client).keys,
        }
    }

    fn grant_bit(&self, (session, attempt): Grant) -> u32 {
        let most = self
            .programs
            .iter()
            .map(|it| it.attempts)
            .max()
            .unwrap_or(1);
        1 << (session * most.max(1) + attempt)
    }

    /// Whether the session's record, as it is now, is a dead one's.
    fn is_dead(&self, state: &State, session: u8) -> bool {
        match state.record(session).life {
            Life::Dead => true,
            Life::None | Life::Swept => !self.lacks(Without::MissingIsDead),
            Life::Living => self.lacks(Without::DeathIsWritten) && self.is_due(state, session),
        }
    }

    /// The one predicate: a holder is live if its session lives and its number is not retired, or if its intent is not
    /// settled.
    fn is_live(&self, state: &State, (session, attempt): Grant) -> bool {
        let record = state.record(session);
        if self.is_dead(state, session) {
            let has_intent = record.intents & bit(attempt) != 0;
            return has_intent && !self.lacks(Without::AbandonedIsHeld);
        }
        !state.is_retired((session, attempt))
    }

    fn is_due(&self, state: &State, session: u8) -> bool {
        if self.timed {
            return state.record(session).left == 0;
        }
        let client = state.client(session);
        let was_open = matches!(client.belief, Belief::Open | Belief::Lost);
        !state.is_alive(session) || client.left == 0 && was_open
    }

    fn holds(&self, state: &State, grant: Grant, key: u8) -> bool {
        let mut holders = state.locks[usize::from(key)].iter();
        holders.any(|it| *it == grant || self.lacks(Without::HolderByGrant) && it.0 == grant.0)
    }
}

impl State {
    fn client(&self, client: u8) -> &Client {
        &self.clients[usize::from(client)]
    }

    fn client_mut(&mut self, client: u8) -> &mut Client {
        &mut self.clients[usize::from(client)]
    }

    fn attempt(&self, client: u8, attempt: u8) -> &Attempt {
        &self.client(client).attempts[usize::from(attempt)]
    }

    fn attempt_mut(&mut self, client: u8, attempt: u8) -> &mut Attempt {
        &mut self.client_mut(client).attempts[usize::from(attempt)]
    }

    fn record(&self, session: u8) -> &Record {
        &self.records[usize::from(session)]
    }

    fn record_mut(&mut self, session: u8) -> &mut Record {
        &mut self.records[usize::from(session)]
    }

    fn is_alive(&self, client: u8) -> bool {
        self.alive & bit(client) != 0
    }

    /// Whether a client believes in its session.
    fn believes(&self, client: u8) -> bool {
        let it = self.client(client);
        self.is_alive(client) && it.belief == Belief::Open && it.left > 0
    }

    fn is_retired(&self, (session, attempt): Grant) -> bool {
        let record = self.record(session);
        matches!(record.life, Life::Living | Life::Dead) && record.retired & bit(attempt) != 0
    }

    fn send(&mut self, message: Message) {
        self.messages.push(message);
        self.messages.sort_unstable();
    }
}

const fn bit(number: u8) -> u8 {
    1 << number
}

/// The keys of a mask.
fn keys_in(mask: u8, keys: u8) -> impl Iterator<Item = u8> {
    (0..keys).filter(move |key| mask & bit(*key) != 0)
}

/// The bit of an answer.
const fn part(key: Option<u8>) -> u8 {
    match key {
        Some(key) => bit(key),
        None => 1,
    }
}

impl Model for Sessions {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let client = |program: &Program| Client {
            attempts: vec![Attempt::default(); usize::from(program.attempts)],
            ..Client::default()
        };
        vec![State {
            alive: (1 << self.programs.len()) - 1,
            clients: self.programs.iter().map(client).collect(),
            records: vec![Record::NONE; self.programs.len()],
            locks: vec![Vec::new(); usize::from(self.keys)],
            messages: Vec::new(),
            token: 0,
            handed_out: vec![0; usize::from(self.keys)],
            open: 0,
            finished: 0,
            token_fell: false,
            other_was_freed: false,
            was_revived: false,
            budget: self.budget,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let mut last = None;
        for message in &state.messages {
            if last.replace(*message) == Some(*message) {
                continue;
            }
            steps.push(Step::Arrive(*message));
            if state.budget.doubles > 0 && self.may_double(message) {
                steps.push(Step::ArriveTwice(*message));
            }
        }
        for session in self.clients() {
            let record = state.record(session);
            if record.life == Life::Living && self.is_due(state, session) {
                steps.push(Step::End(session));
                if self.timed && state.budget.steps_back > 0 {
                    steps.push(Step::StepBack(session));
                }
            }
            let is_empty = record.life == Life::Dead && record.intents == 0;
            if is_empty && state.budget.sweeps > 0 {
                steps.push(Step::Sweep(session));
            }
            if state.is_alive(session) {
                self.client_steps(state, session, steps);
            }
        }
        let goes_on = state.clients.iter().any(|it| it.left > 0)
            || state
                .records
                .iter()
                .any(|it| it.life == Life::Living && it.left > 0);
        if self.timed && goes_on {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Arrive(message) => {
                let at = state.messages.iter().position(|it| *it == message)?;
                state.messages.remove(at);
                self.arrive(&mut state, message);
            }
            Step::ArriveTwice(message) => {
                state.budget.doubles -= 1;
                self.arrive(&mut state, message);
            }
            Step::Tick => tick(&mut state),
            Step::End(session) => {
                let record = state.record_mut(session);
                (record.life, record.left) = (Life::Dead, 0);
            }
            Step::Sweep(session) => {
                state.budget.sweeps -= 1;
                *state.record_mut(session) = Record {
                    life: Life::Swept,
                    ..Record::NONE
                };
            }
            Step::StepBack(session) => {
                state.budget.steps_back -= 1;
                state.record_mut(session).left = 1;
            }
            step => self.client_step(&mut state, step),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

/// What is left of every lease is less, and every message older.
fn tick(state: &mut State) {
    for client in &mut state.clients {
        client.left = client.left.saturating_sub(1);
    }
    for record in &mut state.records {
        if record.life == Life::Living {
            record.left = record.left.saturating_sub(1);
        }
    }
    for message in &mut state.messages {
        if let Message::Open { age, .. }
        | Message::Renew { age, .. }
        | Message::Opened { age, .. }
        | Message::Renewed { age, .. } = message
        {
            // Older than that is all the same.
            *age = (*age + 1).min(TTL + 1);
        }
    }
    state.messages.sort_unstable();
}
