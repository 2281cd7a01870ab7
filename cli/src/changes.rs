//! What has changed between two looks at the records of a store, for `lockkeeper watch` and `top`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use lockkeeper::backend::{Filter, Record};
use lockkeeper::{Grant, Holder, Life, LockBackend, LockKey, NoteKind, SessionId, SessionState};

use crate::describe;
use crate::failure::Failure;
use crate::list::records;

/// So many sessions are asked about at a time.
const PAGE: usize = 500;

/// The entries of a look.
struct Entries {
    /// By key, and by grant or, for a foreign holder, none.
    holders: BTreeMap<(LockKey, Option<Grant>), Holder>,
    /// Keys that have more waiters than a look shows.
    waiters_cut: BTreeSet<LockKey>,
    /// Keys that may have more holders than a look shows.
    holders_cut: BTreeSet<LockKey>,
}

/// Looks at the same records again and again.
pub(crate) struct Looks<'a> {
    backend: &'a dyn LockBackend,
    filter: Filter,
    last: Option<Entries>,
}

/// One look.
pub(crate) struct Look {
    pub(crate) at: SystemTime,
    #[cfg_attr(not(feature = "top"), expect(dead_code, reason = "for the screen"))]
    pub(crate) records: Vec<Record>,
    /// What has changed since the look before; in the first look everything that is there.
    pub(crate) changes: Vec<Change>,
}

/// Something that happened to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    pub(crate) holder: Holder,
    /// By whom and why, if somebody took it away.
    pub(crate) note: Option<(String, String)>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It was there when the watch began.
    Held,
    Waiting,
    Granted,
    /// Its process has died and left a change to finish.
    Abandoned,
    Released,
    /// A waiter has gone.
    GaveUp,
    /// An operator has broken the lock.
    Broken,
    /// An operator has revoked the session, or discarded its change.
    Revoked,
    /// The session has ended: it was closed, or its process has died.
    Ended,
    /// A foreign record is gone.
    Gone,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Granted => "granted",
            Self::Abandoned => "abandoned",
            Self::Released => "released",
            Self::GaveUp => "gave up",
            Self::Broken => "broken",
            Self::Revoked => "revoked",
            Self::Ended => "ended",
            Self::Gone => "gone",
        }
    }
}

impl<'a> Looks<'a> {
    pub(crate) fn new(backend: &'a dyn LockBackend, filter: Filter) -> Self {
        Self {
            backend,
            filter,
            last: None,
        }
    }

    /// Looks again. After an error nothing is missed: the next look is compared with the last that succeeded.
    pub(crate) async fn again(&mut self) -> Result<Look, Failure> {
        let records = records(self.backend, &self.filter).await?;
        #[expect(clippy::disallowed_methods, reason = "for people")]
        let at = SystemTime::now();
        let now = entries(&records);
        let left: BTreeSet<SessionId> = match &self.last {
            Some(last) => gone(last, &now)
                .filter_map(|it| Some(it.grant?.session))
                .collect(),
            None => BTreeSet::new(),
        };
        let sessions = self.sessions(&left).await?;
        let changes = changes(self.last.as_ref(), &now, &sessions);
        self.last = Some(now);
        Ok(Look {
            at,
            records,
            changes,
        })
    }

    /// Those sessions, as far as the store remembers them.
    async fn sessions(
        &self,
        wanted: &BTreeSet<SessionId>,
    ) -> Result<BTreeMap<SessionId, SessionState>, Failure> {
        let wanted: Vec<SessionId> = wanted.iter().copied().collect();
        let mut found = BTreeMap::new();
        for some in wanted.chunks(PAGE) {
            let states = self.backend.session_states(some).await?;
            let states = states.into_iter().flatten();
            found.extend(states.map(|state| (state.session, state)));
        }
        Ok(found)
    }
}

fn entries(records: &[Record]) -> Entries {
    let all = records.iter().flat_map(|record| &record.holders);
    let keys = |cut: fn(&Record) -> bool| {
        let those = records.iter().filter(|record| cut(record));
        those.map(|record| record.key.clone()).collect()
    };
    Entries {
        holders: all
            .map(|holder| ((holder.key.clone(), holder.grant), holder.clone()))
            .collect(),
        waiters_cut: keys(|record| record.more),
        holders_cut: keys(Record::may_hide_holders),
    }
}

impl Entries {
    /// Whether that one may be there, and not be shown.
    fn may_hide(&self, holder: &Holder) -> bool {
        let cut = match holder.waiting {
            Some(_) => &self.waiters_cut,
            None => &self.holders_cut,
        };
        cut.contains(&holder.key)
    }
}

/// What was there before and is no longer to be seen.
fn gone<'a>(last: &'a Entries, now: &'a Entries) -> impl Iterator<Item = &'a Holder> {
    let all = last.holders.iter();
    all.filter(|(name, _)| !now.holders.contains_key(*name))
        .map(|(_, holder)| holder)
}

/// Ends first: what is granted was free before.
fn changes(
    last: Option<&Entries>,
    now: &Entries,
    sessions: &BTreeMap<SessionId, SessionState>,
) -> Vec<Change> {
    let plain = |kind, holder: &Holder| Change {
        kind,
        holder: holder.clone(),
        note: None,
    };
    let Some(last) = last else {
        let kind = |holder: &Holder| match (holder.waiting, holder.life) {
            (Some(_), _) => Kind::Waiting,
            (None, Life::Abandoned) => Kind::Abandoned,
            (None, _) => Kind::Held,
        };
        let all = now.holders.values();
        return all.map(|holder| plain(kind(holder), holder)).collect();
    };
    // Of a list that is cut, who came has pushed somebody out, and who left has let somebody in.
    let pushed_out = |change: &Change| {
        let plain = matches!(change.kind, Kind::Released | Kind::GaveUp | Kind::Gone);
        plain && now.may_hide(&change.holder)
    };
    let mut found: Vec<Change> = gone(last, now)
        .map(|holder| end(holder, sessions))
        .filter(|change| !pushed_out(change))
        .collect();
    for (name, holder) in &now.holders {
        let before = last.holders.get(name);
        let waited = before.map(|it| it.waiting.is_some());
        match (waited, holder.waiting) {
            (None, _) if last.may_hide(holder) => {}
            (None | Some(true), None) => found.push(plain(Kind::Granted, holder)),
            (None, Some(_)) => found.push(plain(Kind::Waiting, holder)),
            _ => {}
        }
        let abandoned = |holder: &Holder| holder.life == Life::Abandoned;
        if abandoned(holder) && before.is_some_and(|before| !abandoned(before)) {
            found.push(plain(Kind::Abandoned, holder));
        }
    }
    found
}

/// How a holder or waiter that is gone has ended, as far as its session's record tells.
fn end(holder: &Holder, sessions: &BTreeMap<SessionId, SessionState>) -> Change {
    let state = holder.grant.and_then(|grant| sessions.get(&grant.session));
    // What was done last has ended it.
    let done = state.and_then(|state| {
        let has_ended_it = |note: &lockkeeper::Note| match note.kind {
            NoteKind::Evict => {
                holder.waiting.is_none() && note.grant == holder.grant.map(|grant| grant.n)
            }
            NoteKind::Revoke | NoteKind::Discard => state.life == Life::Dead,
            _ => false,
        };
        describe::notes(state).rev().find(has_ended_it)
    });
    let (kind, note) = match done {
        Some(note) if note.kind == NoteKind::Evict => (Kind::Broken, Some(note)),
        Some(note) => (Kind::Revoked, Some(note)),
        _ if holder.grant.is_none() => (Kind::Gone, None),
        // A session that is not remembered was closed.
        _ if state.is_none_or(|state| state.life != Life::Living) => (Kind::Ended, None),
        _ if holder.waiting.is_some() => (Kind::GaveUp, None),
        _ => (Kind::Released, None),
    };
    Change {
        kind,
        holder: holder.clone(),
        note: note.map(|note| (note.by.to_string(), note.reason.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Label, Mode, Note, Notes, Waiting};

    use super::*;

    fn holder(session: u128, waits: bool) -> Holder {
        Holder {
            key: LockKey::parse("k").unwrap(),
            grant: Some(Grant {
                session: SessionId::new(session),
                n: 5,
            }),
            owner: None,
            mode: Mode::X,
            label: String::new(),
            since: None,
            life: Life::Living,
            waiting: waits.then_some(Waiting {
                place: 1,
                passed: 0,
                may_go: false,
            }),
        }
    }

    fn note(kind: NoteKind, grant: Option<u64>) -> Note {
        let label = |text: &str| Label::parse(text).unwrap();
        let note = Note::new(kind, label("ops"), label("why"), SystemTime::UNIX_EPOCH);
        match grant {
            Some(n) => note.about(n),
            None => note,
        }
    }

    /// How a holder of a session with this life and these notes has ended.
    fn ended(waits: bool, life: Option<Life>, of: &[Note]) -> (Kind, bool) {
        let holder = holder(1, waits);
        let session = SessionId::new(1);
        let mut notes = Notes::default();
        of.iter().for_each(|note| notes.add(note));
        let state = life.map(|life| {
            let mut state = SessionState::new(session, life);
            state.notes = notes;
            (session, state)
        });
        let change = end(&holder, &state.into_iter().collect());
        (change.kind, change.note.is_some())
    }

    #[test]
    fn the_end_of_a_holder_is_told_with_its_cause() {
        let living = Some(Life::Living);
        let dead = Some(Life::Dead);
        let broken = note(NoteKind::Evict, Some(5));
        let of_another = note(NoteKind::Evict, Some(4));
        let revoked = note(NoteKind::Revoke, None);
        let discarded = note(NoteKind::Discard, None);
        assert_eq!(ended(false, living, &[]), (Kind::Released, false));
        assert_eq!(ended(true, living, &[]), (Kind::GaveUp, false));
        assert_eq!(ended(false, living, &[of_another]), (Kind::Released, false));
        assert_eq!(
            ended(false, living, std::slice::from_ref(&broken)),
            (Kind::Broken, true)
        );
        assert_eq!(
            ended(false, dead, std::slice::from_ref(&broken)),
            (Kind::Broken, true)
        );
        // It did not obey.
        assert_eq!(
            ended(false, dead, &[broken, revoked.clone()]),
            (Kind::Revoked, true)
        );
        assert_eq!(ended(false, dead, &[revoked]), (Kind::Revoked, true));
        assert_eq!(ended(false, dead, &[discarded]), (Kind::Revoked, true));
        assert_eq!(ended(false, dead, &[]), (Kind::Ended, false));
        assert_eq!(ended(true, None, &[]), (Kind::Ended, false));
    }

    fn record(holders: &[Holder], more: bool) -> Record {
        Record {
            key: LockKey::parse("k").unwrap(),
            holders: holders.to_vec(),
            more,
            version: String::new(),
        }
    }

    #[test]
    fn who_is_pushed_out_of_a_list_or_let_in_has_neither_left_nor_come() {
        let look = |session, more| entries(&[record(&[holder(session, false)], more)]);
        let living = |session| SessionState::new(SessionId::new(session), Life::Living);
        let sessions = [1, 2].map(|session| (SessionId::new(session), living(session)));
        let sessions = sessions.into_iter().collect();
        let told = |last, now| -> Vec<(Kind, u128)> {
            let all = changes(Some(&last), &now, &sessions).into_iter();
            all.map(|it| (it.kind, it.holder.grant.unwrap().session.get()))
                .collect()
        };
        let (left, came) = ((Kind::Released, 2), (Kind::Granted, 1));
        assert_eq!(told(look(2, false), look(1, false)), [left, came]);
        assert_eq!(told(look(2, false), look(1, true)), [came]);
        assert_eq!(told(look(2, true), look(1, false)), [left]);
        assert_eq!(told(look(2, true), look(1, true)), []);
        // Holders are shown before those who wait.
        let line = |holds, waits: u128| {
            let all: Vec<Holder> = std::iter::once(holder(holds, false))
                .chain((waits..waits + 15).map(|session| holder(session, true)))
                .collect();
            entries(&[record(&all, true)])
        };
        assert_eq!(told(line(2, 10), line(1, 10)), [left, came]);
    }

    #[test]
    fn looks_are_compared_and_ends_come_first() {
        let now = |holders: &[Holder]| entries(&[record(holders, false)]);
        let none = BTreeMap::new();
        let told = |last: Option<&Entries>, now: &Entries| -> Vec<(Kind, u128)> {
            let all = changes(last, now, &none).into_iter();
            all.map(|it| (it.kind, it.holder.grant.unwrap().session.get()))
                .collect()
        };
        let first = now(&[holder(2, false), holder(1, true)]);
        assert_eq!(told(None, &first), [(Kind::Waiting, 1), (Kind::Held, 2)]);
        assert_eq!(told(Some(&first), &first), []);
        let second = now(&[holder(1, false), holder(3, true)]);
        let expected = [(Kind::Ended, 2), (Kind::Granted, 1), (Kind::Waiting, 3)];
        assert_eq!(told(Some(&first), &second), expected);
        let mut left = holder(1, false);
        left.life = Life::Abandoned;
        let third = now(&[left, holder(3, true)]);
        assert_eq!(told(Some(&second), &third), [(Kind::Abandoned, 1)]);
    }
}
