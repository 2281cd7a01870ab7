//! `ClaimStore`: who is in the way, and one step at a time.
//!
//! A path is kept where it was claimed. The shares that it casts on its ancestors are not written: who claims an
//! ancestor finds everything below it directly behind it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lockcore::limits::MAX_LISTED;
use lockcore::{
    Acquire, Acquired, Busy, Claim, ClaimStore, FencingToken, Grant, Holder, Life, LockKey, Mode,
    Operation, Refused, Result, Sweep, Swept,
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
        let mut refused = Vec::new();
        for claim in &request.claims {
            let Some(refusal) = self.refusal(request, claim, now) else {
                continue;
            };
            if refused.len() == MAX_LISTED {
                return Acquired::Busy(Busy::new(refused, true));
            }
            refused.push(refusal);
        }
        if !refused.is_empty() {
            return Acquired::Busy(Busy::new(refused, false));
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
        let mut listed = Listed::default();
        let mut look = |at: &LockKey, entries: &[Entry], place: Place| {
            for entry in entries {
                let granted = |entry: &Entry| {
                    let same = entry
                        .held()
                        .is_some_and(|held| held.owner.0 == request.owner);
                    match place {
                        Place::Above => claim.beside_above(entry.mode(), same),
                        Place::Key => claim.beside(entry.mode(), same),
                        Place::Below => claim.beside(cast(entry.mode()), same),
                    }
                };
                if !granted(entry) && counts(sessions, entry, now) {
                    listed.add(sessions, at, entry, place);
                }
            }
        };
        for above in key.ancestors() {
            let above = Text(LockKey::parse(above).expect("what is above a path is a path"));
            if let Some(entries) = records.get(&above) {
                look(&above.0, entries, Place::Above);
            }
        }
        let here = records
            .get(&Text(key.clone()))
            .map_or(&[][..], Vec::as_slice);
        look(key, here, Place::Key);
        for entries in below(records, key) {
            look(key, entries, Place::Below);
        }
        if let Some(limit) = claim.want().limit() {
            let mut shares = here.to_vec();
            shares.retain(|entry| entry.mode() == Mode::IS && counts(sessions, entry, now));
            if shares.len() >= usize::try_from(limit.get()).unwrap_or(usize::MAX) {
                for share in &shares {
                    listed.add(sessions, key, share, Place::Key);
                }
            }
        }
        (!listed.holders.is_empty()).then(|| Refused {
            claim: claim.clone(),
            holders: listed.holders,
            more: listed.more,
        })
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

/// Where a claim meets an entry: on its own key, on an ancestor, or below, whence it casts a share on the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Key,
    Above,
    Below,
}

/// How who holds something in this mode holds every path above it.
fn cast(mode: Mode) -> Mode {
    match mode {
        Mode::X | Mode::IX => Mode::IX,
        Mode::S | Mode::IS => Mode::IS,
    }
}

/// Some of the holders of a claim's key and its ancestors, one for each grant and key.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) holders: Vec<Holder>,
    pub(crate) more: bool,
}

impl Listed {
    /// Adds an entry that is met at `place`, as a holder of `key`.
    pub(crate) fn add(&mut self, sessions: &Sessions, key: &LockKey, entry: &Entry, place: Place) {
        let mode = match place {
            Place::Below => cast(entry.mode()),
            Place::Key | Place::Above => entry.mode(),
        };
        let grant = entry.grant();
        let same =
            |holder: &&mut Holder| grant.is_some() && holder.grant == grant && holder.key == *key;
        if let Some(holder) = self.holders.iter_mut().find(same) {
            holder.mode = holder.mode.max(mode);
            return;
        }
        if self.holders.len() == MAX_LISTED {
            self.more = true;
            return;
        }
        let (label, life) = match grant {
            Some(grant) => sessions.shown(grant.session),
            None => ("not a holder of this version".to_owned(), Life::Living),
        };
        self.holders.push(Holder {
            key: key.clone(),
            grant,
            owner: entry.held().map(|held| held.owner.0),
            mode,
            label,
            since: entry.held().and_then(|held| {
                SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(held.since_us))
            }),
            life,
        });
    }
}
