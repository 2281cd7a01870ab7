//! What a store does with a request.

use super::{
    Adoption, Belief, Grant, Life, Message, NOBODY, Record, Sessions, Stage, State, Store, TTL,
    Without, bit, part,
};

impl Sessions {
    /// Whether a request may be executed twice here.
    pub(super) fn may_double(&self, message: &Message) -> bool {
        let doubled = &self.doubled;
        match message {
            Message::Open { .. } => doubled.open,
            Message::Renew { .. } => doubled.renew,
            Message::Acquire { .. } => doubled.acquire,
            Message::Release { .. } => doubled.release,
            Message::Adopt { .. } | Message::Settle { .. } => doubled.adopt,
            _ => false,
        }
    }

    /// A request is executed, or an answer is taken. Nobody is answered who does not wait for it: a lost answer is one that
    /// never arrives.
    pub(super) fn arrive(&self, state: &mut State, message: Message) {
        let sent = |age: u8| match self.lacks(Without::FromTheSending) {
            true => 0,
            false => age,
        };
        match message {
            Message::Open { of, age } => {
                let record = state.record_mut(of);
                match record.life {
                    Life::None | Life::Swept => {
                        *record = Record {
                            life: Life::Living,
                            left: TTL,
                            ..Record::NONE
                        };
                    }
                    Life::Living | Life::Dead => {}
                }
                if state.client(of).belief == Belief::Opening && state.is_alive(of) {
                    state.send(Message::Opened { of, age: sent(age) });
                }
            }
            Message::Renew {
                of,
                age,
                seq,
                intents,
                retired,
            } => self.renew(state, of, seq, (intents, retired), sent(age)),
            Message::Acquire {
                of,
                attempt,
                key: Some(key),
                free,
            } => self.acquire_key(state, (of, attempt), key, free),
            Message::Acquire {
                of,
                attempt,
                key: None,
                ..
            } => self.acquire_all(state, (of, attempt)),
            Message::Release {
                of,
                attempt,
                key,
                retires,
                whole,
            } => self.release(state, (of, attempt), key, retires, whole),
            Message::Adopt { by, of, seen } => self.adopt(state, by, of, seen),
            Message::GiveUp { by, of, seen } => {
                let record = state.record_mut(of);
                let is_mine = record.adoption == seen + 1 && record.adopter == by;
                if record.life == Life::Dead && (record.adoption == seen || is_mine) {
                    if is_mine {
                        record.adopter = NOBODY;
                    }
                    record.adoption += 1;
                }
                let waits = state.client(by).adoption == Adoption::GivesUp { of, seen };
                if waits && state.is_alive(by) {
                    state.send(Message::NotAdopted { by, of, seen });
                }
            }
            Message::Settle {
                by,
                of,
                attempt,
                adoption,
            } => {
                let record = state.record_mut(of);
                let is_mine = record.adopter == by && record.adoption == adoption;
                let may = is_mine || self.lacks(Without::SettlementByNumber);
                if record.life == Life::Dead && may && record.intents & bit(attempt) != 0 {
                    record.intents &= !bit(attempt);
                    state.open &= !self.grant_bit((of, attempt));
                }
                let works =
                    matches!(state.client(by).adoption, Adoption::Works { of: it, .. } if it == of);
                if works && state.is_alive(by) {
                    let record = state.record(of);
                    let left = record.life == Life::Dead && record.intents & bit(attempt) != 0;
                    state.send(match left {
                        true => Message::NotAdopted {
                            by,
                            of,
                            seen: adoption,
                        },
                        false => Message::Settled { by, of, attempt },
                    });
                }
            }
            answer => self.take(state, answer),
        }
    }

    fn renew(&self, state: &mut State, of: u8, seq: u8, (intents, retired): (u8, u8), age: u8) {
        let client = state.client(of);
        let in_flight = state.is_alive(of) && client.in_flight;
        let waits = in_flight && client.seq == seq;
        let record = state.record_mut(of);
        let was = record.life;
        if was != Life::Living {
            if !self.lacks(Without::DeadStays) {
                if in_flight {
                    state.send(Message::Dead { of });
                }
                return;
            }
            (record.life, record.adopter) = (Life::Living, NOBODY);
        }
        if seq < record.seq && !self.lacks(Without::Order) {
            return;
        }
        record.seq = record.seq.max(seq);
        record.left = TTL;
        record.retired |= retired;
        if self.store == Store::Records {
            record.intents = intents;
        }
        state.was_revived |= was != Life::Living;
        if waits {
            state.send(Message::Renewed { of, age, seq });
        }
    }

    /// Whether a client waits for the answer about this part.
    fn awaits(&self, state: &State, (of, attempt): Grant, key: Option<u8>) -> bool {
        let it = state.attempt(of, attempt);
        let is_open = (it.granted | it.refused) & part(key) == 0;
        state.is_alive(of) && it.stage == Stage::Acquires && is_open
    }

    fn refuse(&self, state: &mut State, (of, attempt): Grant, key: Option<u8>) {
        if self.awaits(state, (of, attempt), key) {
            state.send(Message::Busy { of, attempt, key });
        }
    }

    fn grant(&self, state: &mut State, (of, attempt): Grant, key: Option<u8>) {
        // Without them the order of grants makes no difference, and fewer states.
        state.token += u8::from(self.tokens);
        let token = state.token;
        if self.awaits(state, (of, attempt), key) {
            state.send(Message::Acquired {
                of,
                attempt,
                key,
                token,
            });
        }
    }

    /// All keys of an attempt in one step, with the session.
    fn acquire_all(&self, state: &mut State, grant: Grant) {
        let (of, attempt) = grant;
        let is_living = state.record(of).life == Life::Living;
        let is_retired = state.record(of).retired & bit(attempt) != 0;
        if is_retired || !is_living && !self.lacks(Without::OwnSession) {
            return self.refuse(state, grant, None);
        }
        let in_the_way = |it: &Grant| {
            let own = *it == grant || self.reenters && it.0 == of;
            !own && self.is_live(state, *it)
        };
        let mut holders = self
            .keys_of(of)
            .flat_map(|key| &state.locks[usize::from(key)]);
        if holders.any(in_the_way) {
            return self.refuse(state, grant, None);
        }
        state.was_revived |= !is_living;
        for key in self.keys_of(of) {
            let stays = |it: &Grant| {
                *it != grant && self.reenters && it.0 == of && self.is_live(state, *it)
            };
            let mut holders = state.locks[usize::from(key)].clone();
            holders.retain(stays);
            self.enter(state, grant, key, holders);
        }
        if self.program(of).intent {
            state.record_mut(of).intents |= bit(attempt);
        }
        self.grant(state, grant, None);
    }

    /// One key in one step; the request says who is not live.
    fn acquire_key(&self, state: &mut State, grant: Grant, key: u8, free: u32) {
        let is_free = |it: &Grant| free & self.grant_bit(*it) != 0;
        let mut holders = state.locks[usize::from(key)].clone();
        let in_the_way = |it: &Grant| {
            let own = *it == grant || self.reenters && it.0 == grant.0;
            !own && !is_free(it)
        };
        if holders.iter().any(in_the_way) {
            return self.refuse(state, grant, Some(key));
        }
        holders.retain(|it| *it != grant && !is_free(it));
        self.enter(state, grant, key, holders);
        self.grant(state, grant, Some(key));
    }

    fn enter(&self, state: &mut State, grant: Grant, key: u8, mut holders: Vec<Grant>) {
        let stands = holders.iter().any(|it| it.0 == grant.0);
        if !stands || !self.lacks(Without::HolderByGrant) {
            holders.push(grant);
        }
        holders.sort_unstable();
        state.locks[usize::from(key)] = holders;
    }

    fn release(
        &self,
        state: &mut State,
        grant: Grant,
        key: Option<u8>,
        retires: bool,
        whole: bool,
    ) {
        let (of, attempt) = grant;
        let is_atomic = key.is_none();
        let is_living = state.record(of).life == Life::Living;
        if is_atomic && !is_living && !self.lacks(Without::ReleaseOfTheLiving) {
            if state.is_alive(of) && state.client(of).belief == Belief::Open {
                state.send(Message::Dead { of });
            }
            return;
        }
        let keys = match key {
            Some(key) => bit(key),
            None => self.program(of).keys,
        };
        for key in super::keys_in(keys, self.keys) {
            let holders = &mut state.locks[usize::from(key)];
            if whole {
                holders.retain(|it| it.0 != of);
            } else if self.lacks(Without::OwnGrantOnly) {
                state.other_was_freed |= holders.iter().any(|it| it.0 != of);
                holders.clear();
            } else {
                holders.retain(|it| *it != grant);
            }
            if holders.is_empty() && self.lacks(Without::TokensGoOn) {
                state.token = 0;
            }
        }
        if is_atomic {
            let has_intent = self.program(of).intent && !self.lacks(Without::ReleaseRetires);
            let record = state.record_mut(of);
            record.intents &= !bit(attempt);
            if retires || has_intent {
                record.retired |= bit(attempt);
            }
        }
        let it = state.attempt(of, attempt);
        let waits = it.stage == Stage::GivesBack && it.unreleased & part(key) != 0;
        if waits && state.is_alive(of) {
            state.send(Message::Released { of, attempt, key });
        }
    }

    fn adopt(&self, state: &mut State, by: u8, of: u8, seen: u8) {
        // A store of records looks at the adopter before, and not in the same step.
        let may = self.store == Store::Records
            || state.record(by).life == Life::Living && self.may_follow(state, of);
        let waits = matches!(state.client(by).adoption, Adoption::Asks { of: it, .. } if it == of);
        let waits = waits && state.is_alive(by);
        let record = state.record_mut(of);
        let is_left = record.life == Life::Dead && record.intents != 0;
        let is_next = record.adoption == seen || self.lacks(Without::AdoptionByNumber);
        let is_mine = record.adopter == by && record.adoption == seen + 1;
        if is_left && may && is_next {
            record.adopter = by;
            record.adoption += 1;
        }
        let is_adopted = is_left && (may && is_next || is_mine);
        let (adoption, intents) = (record.adoption, record.intents);
        if waits {
            state.send(match is_adopted {
                true => Message::Adopted {
                    by,
                    of,
                    adoption,
                    intents,
                },
                false => Message::NotAdopted { by, of, seen },
            });
        }
    }
}
