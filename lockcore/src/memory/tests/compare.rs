//! One random request after another to both forms: same answers, same holders, same sessions.

use std::collections::BTreeSet;

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::{Adopt, Filter, Inspect, Record, Refused, Sweep};

const FLAT: [&str; 3] = ["f", "g", "h"];
const PATHS: [&str; 8] = [
    "/a", "/a/b", "/a/b/c", "/a/b/d", "/a/c", "/a!", "/a!/b", "/d",
];
const SLOTS: usize = 4;

#[tokio::test(start_paused = true)]
async fn both_forms_answer_alike() {
    let mut refused = 0;
    for seed in 0..150 {
        let mut pair = Pair::new(seed).await;
        for step in 0..150 {
            pair.step().await;
            pair.compare(&format!("seed {seed}, step {step}")).await;
        }
        refused += pair.refused;
    }
    assert!(refused > 1_000, "requests met each other");
}

struct Pair {
    rng: Xoshiro256PlusPlus,
    atomic: Arc<MemoryBackend>,
    records: Arc<MemoryBackend>,
    /// Who asks now, and the next number of each.
    sessions: [(u128, u64); SLOTS],
    opened: u128,
    seq: u64,
    held: Vec<Acquire>,
    /// Of those, what is over all the same.
    retired: BTreeSet<Grant>,
    refused: usize,
}

/// The same call to both forms; the answers are equal, and are the value.
macro_rules! alike {
    ($pair:expr, $store:ident => $call:expr) => {{
        let $store = &$pair.atomic;
        let first = $call.await.unwrap();
        let $store = &$pair.records;
        let second = $call.await.unwrap();
        assert_eq!(first, second);
        first
    }};
}

impl Pair {
    async fn new(seed: u64) -> Self {
        let mut pair = Self {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            atomic: MemoryBackend::new(),
            records: MemoryBackend::records(),
            sessions: [(0, 0); SLOTS],
            opened: 0,
            seq: 0,
            held: Vec::new(),
            retired: BTreeSet::new(),
            refused: 0,
        };
        for slot in 0..SLOTS {
            pair.open(slot).await;
        }
        pair
    }

    async fn open(&mut self, slot: usize) {
        self.opened += 1;
        self.sessions[slot] = (self.opened, 1);
        open(&self.atomic, [self.opened]).await;
        open(&self.records, [self.opened]).await;
    }

    async fn step(&mut self) {
        let slot = self.rng.random_range(0..SLOTS);
        let (session, _) = self.sessions[slot];
        match self.rng.random_range(0..16) {
            0..=5 => {
                let request = self.request(slot);
                self.acquire(request).await;
            }
            6 => {
                if let Some(request) = self.held.choose(&mut self.rng).cloned() {
                    self.acquire(request).await;
                }
            }
            7 | 8 if !self.held.is_empty() => {
                let at = self.rng.random_range(0..self.held.len());
                let request = self.held.swap_remove(at);
                release(&self.atomic, &request).await;
                release(&self.records, &request).await;
            }
            9 | 10 => self.renew(slot).await,
            11 => {
                let by = TTL.mul_f64(self.rng.random_range(0.0..0.7));
                self.atomic.advance(by);
                self.records.advance(by);
            }
            12 => {
                let how = [End::IfDue, End::Close, End::Revoke, End::Discard];
                let how = *how.choose(&mut self.rng).unwrap();
                alike!(self, store => store.end(&[id(session)], how));
            }
            13 => self.adopt(session).await,
            14 => {
                let whose = id(self.rng.random_range(1..=self.opened));
                let which = if self.rng.random() {
                    Sweep::All
                } else {
                    Sweep::Session(whose)
                };
                alike!(self, store => store.end(&[whose], End::IfDue));
                self.atomic.sweep(which, 3).await.unwrap();
                self.records.sweep(which, 3).await.unwrap();
            }
            _ => {
                let states = alike!(self, store => store.end(&[id(session)], End::IfDue));
                if states[0].life != Life::Living {
                    self.open(slot).await;
                }
            }
        }
    }

    /// One step of one scheme, by one of two owners of the session.
    fn request(&mut self, slot: usize) -> Acquire {
        let (session, n) = self.sessions[slot];
        self.sessions[slot].1 += 1;
        let wants: &[&str] = match self.rng.random_range(0..5) {
            0 => &["create"],
            1 => &["share", "share:2"],
            2 => &["upsert"],
            _ => &["write", "read"],
        };
        let (keys, most): (&[&str], usize) = match wants[0] {
            "upsert" => (&FLAT, 3),
            "write" => (&PATHS, 3),
            _ => (&FLAT, 1),
        };
        let mut texts = Vec::new();
        for _ in 0..self.rng.random_range(1..=most) {
            let want = wants.choose(&mut self.rng).unwrap();
            texts.push(format!("{want} {}", keys.choose(&mut self.rng).unwrap()));
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut request = request(session, n, &texts);
        request.owner.m = self.rng.random_range(1..=2);
        request.joined = self.rng.random();
        request
    }

    async fn acquire(&mut self, mut request: Acquire) {
        let asks = request.grant;
        let state = &alike!(self, store => store.end(&[asks.session], End::IfDue))[0];
        let may = state.life == Life::Living && !state.retired.contains(asks.n);
        // A late lone claim of an abandoned session would count in the form of records.
        request.joined |= state.life == Life::Abandoned;
        let first = ask(&self.atomic, &request).await;
        let second = ask(&self.records, &request).await;
        match (first, second) {
            (Acquired::Acquired(_), Acquired::Acquired(_)) if may => {
                if !self.held.contains(&request) {
                    self.held.push(request);
                }
            }
            (Acquired::Busy(first), Acquired::Busy(second)) if may => {
                self.refused += 1;
                assert_eq!(first.more, second.more);
                assert_eq!(sorted(first.refused()), sorted(second.refused()));
            }
            // What is written by a lone claim then does not count.
            (Acquired::Void, second) if !may => {
                let checked = request.claims.len() > 1 || request.joined;
                assert!(!checked || !matches!(second, Acquired::Acquired(_)));
            }
            (first, second) => panic!("{request:?}\natomic {first:?}\nrecords {second:?}"),
        }
        // One form may have met somebody of whom the other has nothing left.
        let all: Vec<SessionId> = (1..=self.opened).map(id).collect();
        alike!(self, store => store.end(&all, End::IfDue));
    }

    /// Of the numbers that nobody holds, all are over, and now and then one that is held.
    async fn renew(&mut self, slot: usize) {
        let (session, next) = self.sessions[slot];
        if self.rng.random_ratio(1, 4)
            && let Some(request) = self.held.choose(&mut self.rng)
        {
            self.retired.insert(request.grant);
        }
        let mut live: Vec<u64> = self
            .held
            .iter()
            .map(|request| request.grant)
            .filter(|grant| grant.session == id(session) && !self.retired.contains(grant))
            .map(|grant| grant.n)
            .collect();
        live.sort_unstable();
        self.seq += 1;
        let token = FencingToken::new(self.seq).unwrap();
        let intent = match self.rng.random_range(0..4) {
            0 => intent(token),
            1 => IntentChange::Drop,
            _ => IntentChange::Keep,
        };
        let acknowledged = self.rng.random_range(0..=self.seq);
        let renewal =
            Renewal::new(self.seq, Ranges::except(live, next), intent).after(acknowledged);
        alike!(self, store => store.renew(id(session), &renewal));
    }

    async fn adopt(&mut self, adopter: u128) {
        let session = id(self.rng.random_range(1..=self.opened));
        let state = &alike!(self, store => store.end(&[session], End::IfDue))[0];
        let seen = state.adoption - u64::from(state.adoption > 0 && self.rng.random());
        let how = if self.rng.random_ratio(1, 4) {
            Adopt::GiveUp
        } else {
            Adopt::Take
        };
        let any = Incarnation::UNKNOWN;
        let (atomic, records) = (&self.atomic, &self.records);
        let first = atomic.adopt(session, seen, id(adopter), how, any);
        let second = records.adopt(session, seen, id(adopter), how, any);
        let said = |adopted: crate::Adopted| {
            let adoption = adopted.adoption();
            adoption.map(|adoption| (adoption.number, adoption.left))
        };
        assert_eq!(said(first.await.unwrap()), said(second.await.unwrap()));
        if self.rng.random() {
            alike!(self, store => store.settle(session, seen + 1, id(adopter), any));
        }
    }

    async fn compare(&mut self, when: &str) {
        let states = self.atomic.sessions(None, 999).await.unwrap();
        assert_eq!(
            states,
            self.records.sessions(None, 999).await.unwrap(),
            "{when}"
        );
        for name in FLAT.into_iter().chain(PATHS) {
            let filter = Filter::Key(key(name));
            let first = holders(self.atomic.records(&filter, None, 9).await.unwrap().items);
            let second = holders(self.records.records(&filter, None, 9).await.unwrap().items);
            assert_eq!(first, second, "{when}: {name}");
            for (at, one) in first.iter().enumerate() {
                for other in &first[..at] {
                    assert!(
                        one.owner == other.owner || one.mode.beside(other.mode),
                        "{when}: {one:?} beside {other:?}"
                    );
                }
            }
        }
    }
}

fn holders(mut records: Vec<Record>) -> Vec<Holder> {
    let mut holders = records.pop().map_or(Vec::new(), |record| record.holders);
    holders.sort_by_key(|holder| holder.grant);
    holders
}

fn sorted(refused: &[Refused]) -> Vec<Refused> {
    let mut refused = refused.to_vec();
    for refused in &mut refused {
        refused
            .holders
            .sort_by_key(|holder| (holder.key.clone(), holder.grant));
    }
    refused
}
