//! `ClaimStore`: who is in the way, and one step at a time.
//!
//! A path is kept where it was claimed. The shares that it casts on its ancestors are not written: who claims an
//! ancestor finds everything below it directly behind it.

use std::collections::BTreeMap;
use std::ops::Bound;

use async_trait::async_trait;
use lockcore::judge::{Ask, Entry as _, Listed, Place};
use lockcore::{
    Acquire, Acquired, Busy, Claim, ClaimStore, FencingToken, Grant, LockKey, Operation, Refused,
    Result, Sweep, Swept,
};

use crate::FilesBackend;
use crate::state::{Entry, Held, Sessions, State, Text};

#[async_trait]
impl ClaimStore for FilesBackend {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let request = request.clone();
        self.update(Operation::Acquire, move |state, now| {
            state.acquire(&request, now)
        })
        .await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<()> {
        let claims = claims.to_vec();
        self.update(Operation::Release, move |state, _| {
            for claim in &claims {
                state.remove(claim.key(), |entry| entry.grant() == Some(grant));
            }
        })
        .await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let claims = claims.to_vec();
        self.update(Operation::Confirm, move |state, now| {
            state.sessions.admits(grant, now)
                && claims.iter().all(|claim| state.stands(grant, claim))
        })
        .await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.update(Operation::Sweep, move |state, now| {
            state.sweep(which, limit, now)
        })
        .await
    }
}

impl State {
    fn acquire(&mut self, request: &Acquire, now: u64) -> Acquired {
        if !self.sessions.admits(request.grant, now) {
            return Acquired::Void;
        }
        let refusal = |claim| self.refusal(request, claim, now);
        if let Some(busy) = Busy::of(request.claims.iter().filter_map(refusal)) {
            return Acquired::Busy(busy);
        }
        for claim in &request.claims {
            self.enter(request, claim, now);
        }
        Acquired::Acquired(self.draw_token(now))
    }

    /// Who is in the way of the claim, if anybody is.
    fn refusal(&mut self, request: &Acquire, claim: &Claim, now: u64) -> Option<Refused> {
        if self.stands(request.grant, claim) {
            // Sent again: whoever came since has come beside it.
            return None;
        }
        let State {
            sessions, records, ..
        } = self;
        let key = claim.key();
        let ask = Ask::of(request, claim);
        let mut listed = Listed::default();
        let mut look = |place: Place, at: &LockKey, entries: &[Entry]| {
            let ask = ask.at(place);
            for entry in ask.in_the_way(entries, |grant| sessions.judge(grant, now)) {
                listed.add(entry.holder(sessions, at, place));
            }
        };
        for above in key.ancestor_keys().map(Text) {
            if let Some(entries) = records.get(&above) {
                look(Place::Above, &above.0, entries);
            }
        }
        if let Some(entries) = records.get(&Text(key.clone())) {
            look(Place::Key, key, entries);
        }
        for entries in below(records, key) {
            look(Place::Below, key, entries);
        }
        listed.refusal(claim)
    }

    /// Enters the grant, once nobody was found in the way.
    fn enter(&mut self, request: &Acquire, claim: &Claim, now: u64) {
        let entries = self.records.entry(Text(claim.key().clone())).or_default();
        // One holder of one grant, however often it is sent; what does not count may go.
        entries.retain(|entry| {
            entry.grant() != Some(request.grant) && counts(&mut self.sessions, entry, now)
        });
        entries.push(Entry::Ours(Held {
            grant: Text(request.grant),
            owner: Text(request.owner),
            mode: claim.want().mode(),
            since_us: now,
        }));
    }

    /// Whether the grant holds the key as the claim wants it.
    fn stands(&self, grant: Grant, claim: &Claim) -> bool {
        let entries = self.records.get(&Text(claim.key().clone()));
        entries
            .into_iter()
            .flatten()
            .any(|entry| entry.grant() == Some(grant) && entry.mode() == claim.want().mode())
    }

    /// Removes holders of one key, and the record with the last of them. Says how many there were.
    pub(crate) fn remove(&mut self, key: &LockKey, gone: impl Fn(&Entry) -> bool) -> usize {
        let key = Text(key.clone());
        let Some(entries) = self.records.get_mut(&key) else {
            return 0;
        };
        let before = entries.len();
        entries.retain(|entry| !gone(entry));
        let removed = before - entries.len();
        if entries.is_empty() {
            self.records.remove(&key);
        }
        if removed > 0 {
            self.sessions.freed += 1;
        }
        removed
    }

    fn sweep(&mut self, which: Sweep, limit: usize, now: u64) -> Swept {
        if which == Sweep::All {
            self.sessions.end_due(now);
        }
        let mut left = limit;
        let State {
            sessions, records, ..
        } = self;
        records.retain(|_, entries| {
            entries.retain(|entry| {
                let Some(grant) = entry.grant() else {
                    return true;
                };
                let asked = which == Sweep::All || which == Sweep::Session(grant.session);
                if !asked || left == 0 || sessions.judge(grant, now) {
                    return true;
                }
                left -= 1;
                false
            });
            !entries.is_empty()
        });
        if which == Sweep::All {
            // Only what has no holder left: none of a dead session is, if there was room for all of them.
            left -= sessions.forget(left, now);
        }
        Swept {
            removed: limit - left,
            more: left == 0,
        }
    }

    /// Rises even if the file was lost, as long as the clock does.
    pub(crate) fn draw_token(&mut self, now: u64) -> FencingToken {
        self.token = now.max(self.token + 1);
        FencingToken::new(self.token).expect("both are far below 2^63")
    }
}

/// Whether an entry counts, once its session was ended if it is due.
fn counts(sessions: &mut Sessions, entry: &Entry, now: u64) -> bool {
    entry.grant().is_none_or(|grant| sessions.judge(grant, now))
}

/// What is held below a path; nothing is below a flat key.
pub(crate) fn below<'a>(
    records: &'a BTreeMap<Text<LockKey>, Vec<Entry>>,
    key: &'a LockKey,
) -> impl Iterator<Item = &'a Vec<Entry>> {
    records
        .range((Bound::Excluded(Text(key.clone())), Bound::Unbounded))
        .take_while(|(other, _)| key.is_above(&other.0))
        .map(|(_, entries)| entries)
}
