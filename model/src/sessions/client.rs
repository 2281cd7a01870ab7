//! What a client does.

use super::{
    Adoption, Attempt, Belief, Client, Grant, Life, Message, NOBODY, Sessions, Stage, State, Step,
    Store, TTL, Without, bit, part,
};

impl Sessions {
    /// The steps of a client that was not killed.
    pub(super) fn client_steps(&self, state: &State, client: u8, steps: &mut Vec<Step>) {
        let it = state.client(client);
        let budget = &state.budget;
        if it.belief == Belief::Unopened {
            steps.push(Step::Open(client));
        }
        if it.belief == Belief::Open {
            let wanted = it.dirty || self.is_unretired(it) || budget.renewals > 0;
            if !it.in_flight && wanted && (it.dirty || it.left > 0) {
                steps.push(Step::Renew(client));
            }
            if it.in_flight && budget.resends > 0 {
                steps.push(Step::RenewAgain(client));
            }
            if !self.timed && budget.pauses > 0 && it.left > 0 {
                steps.push(Step::Pause(client));
            }
            if it.left == 0 {
                steps.push(Step::Notice(client));
            }
        }
        if budget.kills > 0 {
            steps.push(Step::Kill(client));
        }
        for attempt in self.attempts(client) {
            self.attempt_steps(state, client, attempt, steps);
        }
        match it.adoption {
            Adoption::Nothing if self.program(client).adopts && state.believes(client) => {
                let of = self.clients().filter(|of| self.is_adoptable(state, *of));
                steps.extend(of.map(|of| Step::Adopt(client, of)));
            }
            Adoption::Asks { .. } if budget.give_ups > 0 => steps.push(Step::AdoptNoMore(client)),
            Adoption::Works { intents, sent, .. } => {
                let unsent = (0..8).filter(|at| intents & !sent & bit(*at) != 0);
                steps.extend(unsent.map(|at| Step::Settle(client, at)));
            }
            _ => {}
        }
    }

    fn attempt_steps(&self, state: &State, client: u8, attempt: u8, steps: &mut Vec<Step>) {
        let it = state.attempt(client, attempt);
        match it.stage {
            Stage::Idle => {
                let opening = state.client(client).belief == Belief::Opening;
                let is_open = state.believes(client) || opening && self.lacks(Without::OpenFirst);
                let is_next = self.program(client).at_once
                    || attempt == 0
                    || state.attempt(client, attempt - 1).stage == Stage::Done;
                if is_open && is_next {
                    steps.push(Step::Begin(client, attempt));
                }
            }
            Stage::Acquires if self.unanswered(state, client, attempt) != 0 => {
                if state.budget.resends > 0 && it.tries < 3 {
                    steps.push(Step::Resend(client, attempt));
                }
                if state.budget.give_ups > 0 {
                    steps.push(Step::GiveUp(client, attempt));
                }
            }
            Stage::Registers | Stage::RegistersFirst if state.budget.give_ups > 0 => {
                steps.push(Step::GiveUp(client, attempt));
            }
            Stage::Holds => steps.push(Step::Release(client, attempt)),
            _ => {}
        }
    }

    fn is_adoptable(&self, state: &State, of: u8) -> bool {
        let record = state.record(of);
        // Their number is bounded so that the model is.
        let is_left = record.life == Life::Dead && record.intents != 0 && record.adoption < 7;
        is_left && self.may_follow(state, of)
    }

    /// Whether the last adopter has gone.
    pub(super) fn may_follow(&self, state: &State, of: u8) -> bool {
        let adopter = state.record(of).adopter;
        adopter == NOBODY
            || self.lacks(Without::AfterTheAdopter)
            || state.record(adopter).life != Life::Living
    }

    /// Whether a renewal has something to say that the last one has not.
    pub(super) fn is_unretired(&self, client: &Client) -> bool {
        client.retired != client.sent.1
    }

    /// The parts of an attempt that nobody has answered.
    fn unanswered(&self, state: &State, client: u8, attempt: u8) -> u8 {
        let it = state.attempt(client, attempt);
        self.parts(client) & !(it.granted | it.refused)
    }

    pub(super) fn client_step(&self, state: &mut State, step: Step) {
        match step {
            Step::Open(of) => {
                state.client_mut(of).belief = Belief::Opening;
                state.send(Message::Open { of, age: 0 });
            }
            Step::Begin(client, attempt) => {
                let first = self.lacks(Without::IntentLast) && self.program(client).intent;
                if first && self.store == Store::Records {
                    state.attempt_mut(client, attempt).stage = Stage::RegistersFirst;
                    register(state, (client, attempt));
                } else {
                    self.begin(state, client, attempt);
                }
            }
            Step::Resend(client, attempt) => {
                state.budget.resends -= 1;
                let parts = self.unanswered(state, client, attempt);
                state.attempt_mut(client, attempt).in_doubt = true;
                self.acquire(state, (client, attempt), parts);
            }
            Step::GiveUp(client, attempt) => {
                state.budget.give_ups -= 1;
                match state.attempt(client, attempt).stage {
                    Stage::RegistersFirst => {
                        state.attempt_mut(client, attempt).stage = Stage::Withdraws;
                        unregister(state, (client, attempt));
                        return;
                    }
                    Stage::Acquires => state.attempt_mut(client, attempt).in_doubt = true,
                    _ => {}
                }
                self.withdraw(state, (client, attempt));
            }
            Step::Release(client, attempt) => {
                state.open &= !self.grant_bit((client, attempt));
                self.withdraw(state, (client, attempt));
            }
            Step::Renew(of) => {
                let asked = state.client(of).dirty || self.is_unretired(state.client(of));
                if !asked {
                    state.budget.renewals -= 1;
                }
                let client = state.client_mut(of);
                (client.dirty, client.in_flight) = (false, true);
                client.seq += 1;
                client.sent = (client.intents, client.retired);
                let (seq, intents, retired) = (client.seq, client.intents, client.retired);
                state.send(Message::Renew {
                    of,
                    age: 0,
                    seq,
                    intents,
                    retired,
                });
            }
            Step::RenewAgain(client) => {
                state.budget.resends -= 1;
                let client = state.client_mut(client);
                (client.dirty, client.in_flight) = (true, false);
            }
            Step::Kill(client) => {
                state.budget.kills -= 1;
                self.lose(state, client);
                state.alive &= !bit(client);
                state.messages.retain(|it| answers(it) != Some(client));
            }
            Step::Pause(client) => {
                state.budget.pauses -= 1;
                state.client_mut(client).left = 0;
            }
            Step::Notice(client) => self.lose(state, client),
            Step::Adopt(by, of) => {
                let seen = state.record(of).adoption;
                state.client_mut(by).adoption = Adoption::Asks { of, seen };
                state.send(Message::Adopt { by, of, seen });
            }
            Step::AdoptNoMore(by) => {
                state.budget.give_ups -= 1;
                let Adoption::Asks { of, seen } = state.client(by).adoption else {
                    return;
                };
                if self.lacks(Without::GivenUpInTheStore) {
                    state.client_mut(by).adoption = Adoption::Nothing;
                } else {
                    state.client_mut(by).adoption = Adoption::GivesUp { of, seen };
                    state.send(Message::GiveUp { by, of, seen });
                }
            }
            Step::Settle(by, attempt) => {
                if let Adoption::Works {
                    of, adoption, sent, ..
                } = &mut state.client_mut(by).adoption
                {
                    *sent |= bit(attempt);
                    let (of, adoption) = (*of, *adoption);
                    state.send(Message::Settle {
                        by,
                        of,
                        attempt,
                        adoption,
                    });
                }
            }
            _ => {}
        }
    }

    fn begin(&self, state: &mut State, client: u8, attempt: u8) {
        let it = state.attempt_mut(client, attempt);
        it.stage = Stage::Acquires;
        it.tries += 1;
        self.acquire(state, (client, attempt), self.parts(client));
    }

    /// Asks for these parts.
    fn acquire(&self, state: &mut State, (of, attempt): Grant, parts: u8) {
        if self.store == Store::Atomic {
            return state.send(Message::Acquire {
                of,
                attempt,
                key: None,
                free: 0,
            });
        }
        // It knows of the sessions that it has met, and of those whose death is on record.
        let mut free = 0;
        for session in self.clients() {
            let holds = |holders: &Vec<Grant>| holders.iter().any(|it| it.0 == session);
            let is_met = state.record(session).life != Life::None || state.locks.iter().any(holds);
            for number in self.attempts(session) {
                let other = (session, number);
                let is_other = other != (of, attempt) && is_met;
                let own = session == of && !state.is_retired(other);
                if is_other && !own && !self.is_live(state, other) {
                    free |= self.grant_bit(other);
                }
            }
        }
        for key in super::keys_in(parts, self.keys) {
            state.send(Message::Acquire {
                of,
                attempt,
                key: Some(key),
                free,
            });
        }
    }

    /// Gives an attempt back: first its intent goes and its number is retired, then its claims go.
    fn withdraw(&self, state: &mut State, grant: Grant) {
        let (client, attempt) = grant;
        let mut waits = false;
        if self.store == Store::Records {
            let registered = state.client(client).intents & bit(attempt) != 0;
            if registered && !self.lacks(Without::RemovedFirst) {
                unregister(state, grant);
                waits = true;
            }
            if state.attempt(client, attempt).in_doubt && !self.lacks(Without::Retired) {
                let it = state.client_mut(client);
                it.retired |= bit(attempt);
                it.dirty = true;
                waits = true;
            }
        }
        if waits {
            state.attempt_mut(client, attempt).stage = Stage::Withdraws;
        }
        if !waits || self.lacks(Without::RemovalAcknowledged) {
            self.give_back(state, grant);
        }
    }

    fn give_back(&self, state: &mut State, (of, attempt): Grant) {
        let in_doubt = state.attempt(of, attempt).in_doubt;
        let mut whole = false;
        if self.lacks(Without::HolderByGrant) && !in_doubt {
            let holds =
                |other: u8| other != attempt && state.attempt(of, other).stage == Stage::Holds;
            if self.attempts(of).any(holds) {
                return self.finish(state, of, attempt);
            }
            // The last one gives back what the owner has, whoever took it.
            whole = true;
        }
        let retires = in_doubt && !self.lacks(Without::Retired);
        let keys = match self.store {
            Store::Atomic => 1,
            Store::Records if in_doubt => self.program(of).keys,
            Store::Records => state.attempt(of, attempt).granted,
        };
        let it = state.attempt_mut(of, attempt);
        (it.stage, it.unreleased) = (Stage::GivesBack, keys);
        if keys == 0 {
            return self.finish(state, of, attempt);
        }
        let release = |key| Message::Release {
            of,
            attempt,
            key,
            retires,
            whole,
        };
        match self.store {
            Store::Atomic => state.send(release(None)),
            Store::Records => {
                for key in super::keys_in(keys, self.keys) {
                    state.send(release(Some(key)));
                }
            }
        }
    }

    fn finish(&self, state: &mut State, client: u8, attempt: u8) {
        let has_intent = self.program(client).intent;
        let registered = state.client(client).intents & bit(attempt) != 0;
        if registered && self.store == Store::Records && self.lacks(Without::RemovedFirst) {
            state.attempt_mut(client, attempt).stage = Stage::RemovesLast;
            return unregister(state, (client, attempt));
        }
        let it = state.attempt_mut(client, attempt);
        let (stage, again) = (Stage::Done, it.again && it.tries < 2);
        let stage = if again { Stage::Idle } else { stage };
        *it = Attempt {
            stage,
            tries: it.tries,
            ..Attempt::default()
        };
        if again {
            return;
        }
        if has_intent {
            state.finished |= self.grant_bit((client, attempt));
        }
        if !self.lacks(Without::RetiredOnRenewal) && !self.lacks(Without::Retired) {
            state.client_mut(client).retired |= bit(attempt);
        }
    }

    fn hand_out(&self, state: &mut State, client: u8, attempt: u8) {
        if !state.believes(client) && !self.lacks(Without::LookLast) {
            state.attempt_mut(client, attempt).stage = Stage::Done;
            return;
        }
        let it = state.attempt_mut(client, attempt);
        it.stage = Stage::Holds;
        let token = it.token;
        if self.program(client).intent {
            state.open |= self.grant_bit((client, attempt));
        }
        if self.tokens {
            for key in self.keys_of(client) {
                let highest = &mut state.handed_out[usize::from(key)];
                state.token_fell |= token <= *highest;
                *highest = token.max(*highest);
            }
        }
    }

    /// Whether all parts of an attempt are answered, and what follows.
    fn answered(&self, state: &mut State, client: u8, attempt: u8) {
        if self.unanswered(state, client, attempt) != 0 {
            return;
        }
        let intent = self.program(client).intent && self.store == Store::Records;
        let it = state.attempt_mut(client, attempt);
        if it.refused != 0 {
            it.again |= self.lacks(Without::NewNumber);
            self.withdraw(state, (client, attempt));
        } else if intent && !self.lacks(Without::IntentLast) {
            it.stage = Stage::Registers;
            register(state, (client, attempt));
        } else {
            self.hand_out(state, client, attempt);
        }
    }

    /// A session is over for its client: what it did is somebody else's now.
    fn lose(&self, state: &mut State, client: u8) {
        let it = state.client_mut(client);
        let over = |attempt: &Attempt| Attempt {
            stage: Stage::Done,
            tries: attempt.tries,
            ..Attempt::default()
        };
        *it = Client {
            belief: Belief::Lost,
            attempts: it.attempts.iter().map(over).collect(),
            ..Client::default()
        };
    }

    /// A client takes an answer.
    pub(super) fn take(&self, state: &mut State, answer: Message) {
        let whole = if self.lacks(Without::Margin) {
            TTL + 1
        } else {
            TTL
        };
        match answer {
            Message::Opened { of, age } => {
                let client = state.client_mut(of);
                if client.belief == Belief::Opening {
                    client.left = whole.saturating_sub(age);
                    client.belief = match client.left {
                        0 => Belief::Lost,
                        _ => Belief::Open,
                    };
                }
            }
            Message::Renewed { of, age, seq } => {
                let client = state.client_mut(of);
                if client.in_flight && client.seq == seq {
                    client.in_flight = false;
                    if client.left > 0 || self.lacks(Without::Latch) {
                        client.left = client.left.max(whole.saturating_sub(age));
                    }
                    self.acknowledged(state, of);
                }
            }
            Message::Dead { of } => self.lose(state, of),
            Message::Acquired {
                of,
                attempt,
                key,
                token,
            } => {
                let it = state.attempt_mut(of, attempt);
                if it.stage == Stage::Acquires {
                    it.granted |= part(key);
                    it.token = it.token.max(token);
                    self.answered(state, of, attempt);
                }
            }
            Message::Busy { of, attempt, key } => {
                let it = state.attempt_mut(of, attempt);
                if it.stage == Stage::Acquires {
                    it.refused |= part(key);
                    self.answered(state, of, attempt);
                }
            }
            Message::Released { of, attempt, key } => {
                let it = state.attempt_mut(of, attempt);
                if it.stage == Stage::GivesBack {
                    it.unreleased &= !part(key);
                    if it.unreleased == 0 {
                        self.finish(state, of, attempt);
                    }
                }
            }
            Message::Adopted {
                by,
                of,
                adoption,
                intents,
            } => {
                let believes = state.believes(by);
                let client = state.client_mut(by);
                if let Adoption::Asks { of: asked, seen } = client.adoption
                    && asked == of
                    && (seen + 1 == adoption || self.lacks(Without::AdoptionByNumber))
                {
                    client.adoption = match believes {
                        true => Adoption::Works {
                            of,
                            adoption,
                            intents,
                            sent: 0,
                        },
                        false => Adoption::Nothing,
                    };
                }
            }
            Message::NotAdopted { by, of, seen } => {
                let client = state.client_mut(by);
                let is_it = match client.adoption {
                    Adoption::Nothing => false,
                    Adoption::Asks {
                        of: it,
                        seen: number,
                    }
                    | Adoption::GivesUp {
                        of: it,
                        seen: number,
                    }
                    | Adoption::Works {
                        of: it,
                        adoption: number,
                        ..
                    } => it == of && number == seen,
                };
                if is_it {
                    client.adoption = Adoption::Nothing;
                }
            }
            Message::Settled { by, of, attempt } => {
                let client = state.client_mut(by);
                if let Adoption::Works {
                    of: works, intents, ..
                } = &mut client.adoption
                    && *works == of
                {
                    *intents &= !bit(attempt);
                    if *intents == 0 {
                        client.adoption = Adoption::Nothing;
                    }
                }
            }
            _ => {}
        }
    }

    /// The record says what was sent, which is not always what is wanted by now.
    fn acknowledged(&self, state: &mut State, client: u8) {
        for attempt in self.attempts(client) {
            let it = state.client(client);
            let mask = bit(attempt);
            let is_registered = it.sent.0 & mask != 0;
            let is_as_wanted =
                it.intents & mask == it.sent.0 & mask && it.retired & mask == it.sent.1 & mask;
            match state.attempt(client, attempt).stage {
                Stage::Registers if is_registered => self.hand_out(state, client, attempt),
                Stage::RegistersFirst if is_registered => self.begin(state, client, attempt),
                Stage::Withdraws if is_as_wanted => self.give_back(state, (client, attempt)),
                Stage::RemovesLast if is_as_wanted => {
                    let it = state.attempt_mut(client, attempt);
                    (it.stage, it.granted, it.token) = (Stage::Done, 0, 0);
                }
                _ => {}
            }
        }
    }
}

fn register(state: &mut State, (client, attempt): Grant) {
    let it = state.client_mut(client);
    it.intents |= bit(attempt);
    it.dirty = true;
}

fn unregister(state: &mut State, (client, attempt): Grant) {
    let it = state.client_mut(client);
    it.intents &= !bit(attempt);
    it.dirty = true;
}

/// Whom an answer is for.
fn answers(message: &Message) -> Option<u8> {
    match message {
        Message::Opened { of, .. }
        | Message::Renewed { of, .. }
        | Message::Dead { of }
        | Message::Acquired { of, .. }
        | Message::Busy { of, .. }
        | Message::Released { of, .. } => Some(*of),
        Message::Adopted { by, .. }
        | Message::NotAdopted { by, .. }
        | Message::Settled { by, .. } => Some(*by),
        _ => None,
    }
}
