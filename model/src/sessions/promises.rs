//! What holds in every state, and what is reached.

use stateright::Property;

use super::{Adoption, Belief, Life, Sessions, Stage, State, bit};

pub(super) const EXCLUSION: &str = "at most one believes that it has a key";
pub(super) const TRUTH: &str = "who believes has it in the store";
pub(super) const NOTHING_LEFT: &str = "nothing is held that nobody has, when all is quiet";
pub(super) const DEAD: &str = "a dead session stays dead";
pub(super) const TOKENS: &str = "tokens rise from guard to guard";
pub(super) const INTENT: &str = "an intent stays until it is released or settled";
pub(super) const ITS_LOCKS: &str = "an intent has its locks";
pub(super) const ONE_ADOPTER: &str = "one adopter at a time";
pub(super) const UNDER_LOCKS: &str = "an adopter works under the locks of the intent";
pub(super) const NOT_FINISHED: &str = "nothing is recovered that its maker has finished";
pub(super) const OTHERS: &str = "a release frees nobody else";
pub(super) const ADOPTABLE: &str = "what is adopted is known to its adopter, when all is quiet";

pub(super) fn all() -> Vec<Property<Sessions>> {
    vec![
        Property::always(EXCLUSION, excludes),
        Property::always(TRUTH, |model: &Sessions, state: &State| {
            model.guards(state).all(|(client, attempt)| {
                let mut keys = model.keys_of(client);
                keys.all(|key| model.holds(state, (client, attempt), key))
            })
        }),
        Property::always(NOTHING_LEFT, |model: &Sessions, state: &State| {
            !model.is_quiet(state) || model.leaks(state).next().is_none()
        }),
        Property::always(DEAD, |_, state: &State| !state.was_revived),
        Property::always(TOKENS, |_, state: &State| !state.token_fell),
        Property::always(INTENT, |model: &Sessions, state: &State| {
            model.open(state).all(|(session, attempt)| {
                let record = state.record(session);
                let is_there = matches!(record.life, Life::Living | Life::Dead);
                is_there && record.intents & bit(attempt) != 0
            })
        }),
        Property::always(ITS_LOCKS, |model: &Sessions, state: &State| {
            model.open(state).all(|grant| {
                let mut keys = model.keys_of(grant.0);
                keys.all(|key| model.holds(state, grant, key))
            })
        }),
        Property::always(ONE_ADOPTER, |model: &Sessions, state: &State| {
            model.clients().all(|session| {
                let works = |by: &u8| {
                    let it = state.client(*by).adoption;
                    matches!(it, Adoption::Works { of, .. } if of == session) && state.believes(*by)
                };
                model.clients().filter(works).count() <= 1
            })
        }),
        Property::always(UNDER_LOCKS, |model: &Sessions, state: &State| {
            model.recoveries(state).all(|(_, adoption, grant)| {
                let record = state.record(grant.0);
                let mut keys = model.keys_of(grant.0);
                record.adoption != adoption
                    || record.intents & bit(grant.1) != 0
                        && keys.all(|key| model.holds(state, grant, key))
            })
        }),
        Property::always(NOT_FINISHED, |model: &Sessions, state: &State| {
            let is_finished = |grant| state.finished & model.grant_bit(grant) != 0;
            !model
                .recoveries(state)
                .any(|(_, _, grant)| is_finished(grant))
        }),
        Property::always(OTHERS, |_, state: &State| !state.other_was_freed),
        Property::always(ADOPTABLE, |model: &Sessions, state: &State| {
            !state.messages.is_empty() || !model.clients().any(|of| model.is_stuck(state, of))
        }),
        Property::sometimes("a guard", |model: &Sessions, state: &State| {
            model.guards(state).next().is_some()
        }),
    ]
}

fn excludes(model: &Sessions, state: &State) -> bool {
    (0..model.keys).all(|key| {
        let has = |client: u8| model.keys_of(client).any(|it| it == key);
        let guards = model.guards(state).filter(|(client, _)| has(*client));
        let mut guards: Vec<(u8, u8)> = guards
            .map(|(client, attempt)| (client, if model.reenters { 0 } else { attempt }))
            .collect();
        guards.dedup();
        let mut works = model.recoveries(state).filter(|(_, _, grant)| has(grant.0));
        guards.len() <= 1 && (guards.is_empty() || works.next().is_none())
    })
}

impl Sessions {
    /// The guards that say that they are valid.
    fn guards(&self, state: &State) -> impl Iterator<Item = (u8, u8)> {
        let believes = self.clients().filter(|client| state.believes(*client));
        let all = believes.flat_map(|client| self.attempts(client).map(move |at| (client, at)));
        all.filter(|(client, at)| state.attempt(*client, *at).stage == Stage::Holds)
    }

    /// Guards with an intent that nobody has given back or settled.
    fn open(&self, state: &State) -> impl Iterator<Item = (u8, u8)> {
        let all = self
            .clients()
            .flat_map(|it| self.attempts(it).map(move |at| (it, at)));
        all.filter(|grant| state.open & self.grant_bit(*grant) != 0)
    }

    /// Whoever recovers an intent and believes in it: the adopter, its adoption, the grant.
    fn recoveries(&self, state: &State) -> impl Iterator<Item = (u8, u8, (u8, u8))> {
        let believes = self.clients().filter(|client| state.believes(*client));
        believes.flat_map(|by| {
            let (of, adoption, intents) = match state.client(by).adoption {
                Adoption::Works {
                    of,
                    adoption,
                    intents,
                    sent,
                } => (of, adoption, intents & !sent),
                _ => (0, 0, 0),
            };
            let left = (0..8).filter(move |at| intents & bit(*at) != 0);
            left.map(move |at| (by, adoption, (of, at)))
        })
    }

    /// Whether nothing is left to happen but time: no message is under way, every attempt is over, the dead are ended, and
    /// what is abandoned is settled if somebody adopts.
    fn is_quiet(&self, state: &State) -> bool {
        let mut adopters = false;
        for client in self.clients() {
            let it = state.client(client);
            let is_alive = state.is_alive(client);
            if state.believes(client) {
                adopters |= self.program(client).adopts;
                if it.dirty || it.in_flight || self.is_unretired(it) {
                    return false;
                }
            } else if state.record(client).life == Life::Living {
                return false;
            }
            let at_rest = |attempt: &super::Attempt| {
                matches!(attempt.stage, Stage::Idle | Stage::Done | Stage::Holds)
            };
            let rests = it.attempts.iter().all(at_rest) && it.adoption == Adoption::Nothing;
            if is_alive && (it.belief == Belief::Opening || !rests) {
                return false;
            }
        }
        let is_left = |of: u8| state.record(of).life == Life::Dead && state.record(of).intents != 0;
        state.messages.is_empty() && !(adopters && self.clients().any(is_left))
    }

    /// Live holders that nobody has. What is abandoned has nobody who adopts it.
    fn leaks(&self, state: &State) -> impl Iterator<Item = (u8, u8)> {
        let holders = state.locks.iter().flatten().copied();
        holders.filter(|(session, attempt)| {
            let record = state.record(*session);
            let is_left = record.life == Life::Dead && record.intents != 0;
            let is_held =
                state.is_alive(*session) && state.attempt(*session, *attempt).stage == Stage::Holds;
            !is_left && !is_held && self.is_live(state, (*session, *attempt))
        })
    }

    /// Whether the store has an adopter that lives and knows nothing of it, so that nobody else adopts.
    fn is_stuck(&self, state: &State, of: u8) -> bool {
        let record = state.record(of);
        let adopter = record.adopter;
        if record.life != Life::Dead || record.intents == 0 || adopter == super::NOBODY {
            return false;
        }
        state.believes(adopter)
            && state.record(adopter).life == Life::Living
            && state.client(adopter).adoption == Adoption::Nothing
    }
}
