//! `lockkeeper break`: what is held is taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lockkeeper::backend::{End, Filter, Record};
use lockkeeper::limits::DEFAULT_TTL;
use lockkeeper::{
    Grant, Holder, Label, Life, LockBackend, LockKey, Locks, Mode, NoteKind, SessionId,
};
use serde::Serialize;

use crate::args::{BreakArgs, Common};
use crate::failure::{Failure, status, tell};
use crate::list::records;
use crate::operate::{abandoned, end, note, result};
use crate::store;

/// Keys that are named of what a session holds.
const NAMED: usize = 10;

/// How often it is looked whether holders have given up what was broken.
const LOOK: Duration = Duration::from_millis(50);
/// How long it is tried to evict a foreign record that changes.
const EVICTING: Duration = Duration::from_secs(15);

/// `lockkeeper break`: the key's holders are told to give it up, or their sessions are revoked; its foreign records are
/// evicted.
pub(crate) async fn break_lock(common: &Common, args: BreakArgs) -> Result<u8, Failure> {
    let store = store::open(common).await?;
    let locks = store.locks(DEFAULT_TTL, "lockkeeper break")?;
    let breaking = Breaking::new(&*store.backend, locks, store.author(), &args);
    let breaking = breaking.broken().await?;
    let key = args.key.as_str();
    if let Some((session, label)) = breaking.abandoned.first_key_value() {
        return Err(abandoned(key, *session, label));
    }
    let Breaking {
        told,
        revoked,
        evicted,
        ..
    } = &breaking;
    if told.is_empty() && revoked.is_empty() && *evicted == 0 {
        tell(&format!("nobody holds {key:?}"));
    }
    let broken = BrokenJson {
        key,
        given_up: told.keys().map(ToString::to_string).collect(),
        revoked: revoked.iter().map(ToString::to_string).collect(),
        evicted: *evicted,
    };
    result(common, &broken)
}

/// What became of a key's holders, as JSON.
#[derive(Serialize)]
struct BrokenJson<'a> {
    key: &'a str,
    /// Grants.
    given_up: Vec<String>,
    /// Sessions.
    revoked: Vec<String>,
    /// Foreign records.
    evicted: usize,
}

struct Breaking<'a> {
    backend: &'a dyn LockBackend,
    locks: Locks,
    author: Label,
    args: &'a BreakArgs,
    /// Whoever was told to give the key up, and the label.
    told: BTreeMap<Grant, String>,
    /// Those of them who are to be told again.
    again: BTreeSet<Grant>,
    revoked: BTreeSet<SessionId>,
    abandoned: BTreeMap<SessionId, String>,
    /// How many foreign records.
    evicted: usize,
    /// Those who were seen to wait: of them nobody has asked for anything.
    waited: BTreeSet<Grant>,
}

/// What a look at the key came to.
#[derive(Default)]
struct Round {
    /// Somebody was told, revoked or evicted.
    progress: bool,
    /// Those who were told and hold it still.
    left: Vec<Grant>,
    /// There are more holders than are listed.
    more: bool,
    /// A foreign record was another one by the time it was to be evicted.
    changed: bool,
    /// Somebody who waited holds it by now, and keeps it.
    spared: bool,
}

impl<'a> Breaking<'a> {
    fn new(backend: &'a dyn LockBackend, locks: Locks, author: Label, args: &'a BreakArgs) -> Self {
        Self {
            backend,
            locks,
            author,
            args,
            told: BTreeMap::new(),
            again: BTreeSet::new(),
            revoked: BTreeSet::new(),
            abandoned: BTreeMap::new(),
            evicted: 0,
            waited: BTreeSet::new(),
        }
    }

    /// What came of it.
    async fn broken(mut self) -> Result<Self, Failure> {
        if !self.args.session {
            self.until_given_up().await?;
            return Ok(self);
        }
        // Of many holders some are listed at a time, and of those below a path not always whether there are more.
        let mut living = true;
        let until = Instant::now() + EVICTING;
        loop {
            let round = self.round(living).await?;
            living &= round.progress && (round.more || self.args.key.is_path());
            if !living && !round.changed && round.more && round.spared {
                let what = format!(
                    "{:?} has more holders than can be listed, and who waited for it is among them: try again",
                    self.args.key.as_str()
                );
                return Err(Failure::new(status::BUSY, what));
            }
            if !living && !round.changed {
                return Ok(self);
            }
            if round.changed && Instant::now() >= until {
                return Err(self.changes());
            }
            if round.changed {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Who is listed first is told, and so are those whom the list had no room for; not who comes meanwhile.
    async fn until_given_up(&mut self) -> Result<(), Failure> {
        // Without one, if that is further than a clock goes.
        let until = Instant::now().checked_add(self.args.wait);
        let mut tell = true;
        loop {
            let round = self.round(tell).await?;
            tell = round.more;
            if round.left.is_empty() && !tell && !round.changed {
                return Ok(());
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                if round.changed && round.left.is_empty() {
                    return Err(self.changes());
                }
                let left = round.left.first().or(self.told.keys().next());
                let session = left.map_or_else(String::new, |grant| grant.session.to_string());
                let label = left.and_then(|grant| self.told.get(grant)).cloned();
                return Err(Failure::new(
                    status::BUSY,
                    format!(
                        "{:?} is still held by session {session} ({}), which was told: wait for it, or revoke it with --session",
                        self.args.key.as_str(),
                        label.unwrap_or_default(),
                    ),
                ));
            }
            // One that has died holds nothing when it is due, which somebody has to say.
            let sessions: BTreeSet<SessionId> = round.left.iter().map(|it| it.session).collect();
            let sessions: Vec<SessionId> = sessions.into_iter().collect();
            let states = self.backend.end(&sessions, End::IfDue).await?;
            // A session has room for some notes: where others have pushed out those of all that it still holds, it is told
            // again.
            for state in states.iter().filter(|it| it.life == Life::Living) {
                let left = || round.left.iter().filter(|it| it.session == state.session);
                let mut notes = state.notes.iter().filter(|it| it.kind == NoteKind::Evict);
                if !notes.any(|note| left().any(|grant| note.grant == Some(grant.n))) {
                    self.again.extend(left());
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A foreign record was another one each time that it was to be evicted.
    fn changes(&self) -> Failure {
        let what = format!(
            "the record of {:?} changes all the time: try again",
            self.args.key.as_str()
        );
        Failure::new(status::BUSY, what)
    }

    /// Looks at the key once, and breaks what is there; of living holders only if that is asked for.
    async fn round(&mut self, living: bool) -> Result<Round, Failure> {
        let (key, reason) = (self.args.key.as_str(), &self.args.reason);
        let mut round = Round::default();
        let (mut revoked, mut came) = (BTreeSet::new(), BTreeSet::new());
        self.abandoned.clear();
        for record in records(self.backend, &Filter::Key(self.args.key.clone())).await? {
            round.more |= record.may_hide_holders();
            // Who waits holds nothing.
            let holders = record.holders.iter().filter(|it| it.waiting.is_none());
            for holder in holders {
                let Some(grant) = holder.grant else { continue };
                let label = &holder.label;
                if holder.life == Life::Living && self.waited.contains(&grant) {
                    came.insert((grant.session, label.clone()));
                    continue;
                }
                if holder.life == Life::Abandoned {
                    self.abandoned.insert(grant.session, label.clone());
                } else if self.again.remove(&grant) {
                    self.note(grant.session, NoteKind::Evict, Some(grant.n))
                        .await?;
                    round.left.push(grant);
                } else if self.told.contains_key(&grant) {
                    round.left.push(grant);
                } else if living && !self.args.session {
                    self.note(grant.session, NoteKind::Evict, Some(grant.n))
                        .await?;
                    round.progress = true;
                    // After the note, which who keeps the lock later would read. Of a kept lock nobody does, and it is all
                    // that its session holds.
                    if self.locks.is_kept(grant.session).await? {
                        if revoked.insert(grant.session) {
                            self.revoke(grant.session, label).await?;
                        }
                        continue;
                    }
                    tell(&format!(
                        "session {} ({label}), a holder of {key:?}, is told to give it up: {reason}",
                        grant.session
                    ));
                    self.told.insert(grant, label.clone());
                    let by = Some(grant);
                    also_held(self.backend, grant.session, by, label, &self.args.key).await?;
                    round.left.push(grant);
                } else if living && revoked.insert(grant.session) {
                    self.revoke(grant.session, label).await?;
                    round.progress = true;
                }
            }
            let waiting = record.holders.iter().filter(|it| it.waiting.is_some());
            self.waited.extend(waiting.filter_map(|it| it.grant));
            // What is held below a path is evicted there.
            let is_here = |holder: &Holder| !matches!(holder.mode, Mode::IX | Mode::IS);
            let mut foreign = record.holders.iter().filter(|it| it.grant.is_none());
            let foreign = foreign.any(is_here);
            if foreign {
                round.changed = !self.backend.evict(&record).await?;
            }
            if foreign && !round.changed {
                round.progress = true;
                self.evicted += 1;
                tell(&format!("evicted a foreign record of {key:?}: {reason}"));
            }
        }
        round.spared = !came.is_empty();
        if living && !round.more {
            for (session, label) in came {
                tell(&format!(
                    "session {session} ({label}) has come to {key:?} since then, and keeps it"
                ));
            }
        }
        Ok(round)
    }

    async fn revoke(&mut self, session: SessionId, label: &str) -> Result<(), Failure> {
        let (key, reason) = (&self.args.key, &self.args.reason);
        also_held(self.backend, session, None, label, key).await?;
        self.note(session, NoteKind::Revoke, None).await?;
        if end(self.backend, session, End::Revoke).await? == Life::Abandoned {
            self.abandoned.insert(session, label.to_owned());
        }
        self.revoked.insert(session);
        tell(&format!(
            "revoked session {session} ({label}), a holder of {:?}: {reason}",
            key.as_str()
        ));
        Ok(())
    }

    async fn note(
        &self,
        session: SessionId,
        kind: NoteKind,
        grant: Option<u64>,
    ) -> Result<(), Failure> {
        let (author, reason) = (self.author.clone(), &self.args.reason);
        note(self.backend, session, kind, grant, author, reason).await
    }
}

/// Whether the session holds it, by that grant if one is given, and does not only wait for it.
fn holds(record: &Record, session: SessionId, by: Option<Grant>) -> bool {
    let is_own = |grant: Grant| grant.session == session && by.is_none_or(|by| by == grant);
    let mut holders = record.holders.iter().filter(|it| it.waiting.is_none());
    record.may_hide_holders() || holders.any(|holder| holder.grant.is_some_and(is_own))
}

/// Says what else goes with a session, or with one grant of it.
async fn also_held(
    backend: &dyn LockBackend,
    session: SessionId,
    by: Option<Grant>,
    label: &str,
    key: &LockKey,
) -> Result<(), Failure> {
    let page = backend
        .records(&Filter::Session(session), None, NAMED + 2)
        .await?;
    let others: Vec<String> = page
        .items
        .iter()
        .filter(|record| record.key != *key && holds(record, session, by))
        .map(|record| format!("{:?}", record.key.as_str()))
        .collect();
    let may_be_more = by.is_none() && page.next.is_some();
    let more = if others.len() > NAMED || may_be_more {
        " and more"
    } else {
        ""
    };
    if others.is_empty() && may_be_more {
        tell(&format!("session {session} ({label}) may also hold others"));
    }
    if !others.is_empty() {
        let others = others[..others.len().min(NAMED)].join(", ");
        let with_it = by.map_or("", |_| ", acquired together with it");
        tell(&format!(
            "session {session} ({label}) also holds {others}{more}{with_it}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockkeeper::{Mode, Waiting};

    use super::*;

    #[cfg(feature = "verify")]
    fn label(text: &str) -> Label {
        Label::parse(text).unwrap()
    }

    #[test]
    fn who_waits_for_something_does_not_hold_it() {
        let (own, other) = (SessionId::new(1), SessionId::new(2));
        let record = |session: SessionId, waits: bool, more: bool| {
            let key = LockKey::parse("k").unwrap();
            let waiting = Waiting {
                place: 1,
                passed: 0,
                may_go: false,
            };
            let holder = Holder {
                key: key.clone(),
                grant: Some(Grant { session, n: 5 }),
                owner: None,
                mode: Mode::X,
                label: String::new(),
                since: None,
                life: Life::Living,
                waiting: waits.then_some(waiting),
            };
            let version = String::new();
            Record {
                key,
                holders: vec![holder],
                more,
                version,
            }
        };
        assert!(holds(&record(own, false, false), own, None));
        assert!(!holds(&record(own, true, false), own, None));
        assert!(!holds(&record(other, false, false), own, None));
        // It may be among those that are not listed.
        assert!(holds(&record(other, false, true), own, None));
    }
    /// Somebody who waits has the key before it is looked at again.
    #[cfg(feature = "verify")]
    #[tokio::test]
    async fn who_has_the_key_after_a_revocation_keeps_it() {
        use std::sync::Arc;

        use lockcore_conformance::{Decorated, Decorator};
        use lockkeeper::backend::{Inspect as _, SessionStore as _};
        use lockkeeper::{MemoryBackend, SessionState};

        /// Until somebody waits for the key, or holds it.
        async fn until(memory: &MemoryBackend, key: &LockKey, waits: bool) {
            let filter = Filter::Key(key.clone());
            loop {
                let page = memory.records(&filter, None, 1).await.unwrap();
                let mut holders = page.items.iter().flat_map(|record| &record.holders);
                if holders.any(|holder| holder.waiting.is_some() == waits) {
                    return;
                }
                // From one look to the next.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }

        struct HandsOn(Arc<MemoryBackend>, LockKey);

        #[lockkeeper::async_trait]
        impl Decorator for HandsOn {
            fn inner(&self) -> &dyn LockBackend {
                &*self.0
            }

            async fn end(
                &self,
                sessions: &[SessionId],
                how: End,
            ) -> lockkeeper::Result<Vec<SessionState>> {
                let states = self.0.end(sessions, how).await?;
                if how == End::Revoke {
                    until(&self.0, &self.1, false).await;
                }
                Ok(states)
            }
        }

        for key in ["k", "/k"] {
            let memory = MemoryBackend::new();
            let key = LockKey::parse(key).unwrap();
            let take = async |locks: &Locks| {
                let minute = Duration::from_secs(60);
                match key.is_path() {
                    true => {
                        locks
                            .tree()
                            .write(key.as_str())
                            .wait(minute)
                            .acquire()
                            .await
                    }
                    false => locks.lock(key.as_str()).wait(minute).acquire().await,
                }
                .unwrap()
            };
            let [locks, next] = [0, 1].map(|_| Locks::builder(memory.clone()).build().unwrap());
            let held = take(&locks).await;
            let backend = Decorated(HandsOn(memory.clone(), key.clone()));
            let args = BreakArgs {
                key: key.clone(),
                reason: label("why"),
                session: true,
                wait: Duration::ZERO,
            };
            let breaks = async {
                until(&memory, &key, true).await;
                let breaking = Breaking::new(&backend, locks.clone(), label("ops"), &args);
                breaking.broken().await.unwrap().revoked
            };
            let (next, revoked) = tokio::join!(take(&next), breaks);
            assert_eq!(revoked, BTreeSet::from([held.session()]), "{key:?}");
            assert!(next.confirm().await.unwrap());
        }
    }

    /// Somebody writes the record before it is evicted.
    #[cfg(feature = "verify")]
    #[tokio::test]
    async fn a_foreign_record_that_changes_is_looked_at_again() {
        use std::sync::atomic::{AtomicU32, Ordering};

        use lockcore_conformance::{Decorated, Decorator};
        use lockkeeper::MemoryBackend;
        use lockkeeper::backend::Page;

        struct Odd(std::sync::Arc<MemoryBackend>, Mode, AtomicU32);

        #[lockkeeper::async_trait]
        impl Decorator for Odd {
            fn inner(&self) -> &dyn LockBackend {
                &*self.0
            }

            async fn records(
                &self,
                filter: &Filter,
                _after: Option<&str>,
                _limit: usize,
            ) -> lockkeeper::Result<Page<Record>> {
                let Filter::Key(key) = filter else {
                    panic!("{filter:?}");
                };
                let key = key.clone();
                let holder = Holder {
                    key: key.clone(),
                    grant: None,
                    owner: None,
                    mode: self.1,
                    label: "odd".to_owned(),
                    since: None,
                    life: Life::Living,
                    waiting: None,
                };
                let record = Record {
                    key,
                    holders: vec![holder],
                    more: false,
                    version: String::new(),
                };
                let is_there = self.2.load(Ordering::Relaxed) < 2;
                Ok(Page {
                    items: is_there.then_some(record).into_iter().collect(),
                    next: None,
                })
            }

            async fn evict(&self, _seen: &Record) -> lockkeeper::Result<bool> {
                Ok(self.2.fetch_add(1, Ordering::Relaxed) == 1)
            }
        }

        // What is held below a path is evicted there, and never by the path.
        for (key, mode, evicted) in [("k", Mode::X, 1), ("/a", Mode::X, 1), ("/a", Mode::IX, 0)] {
            for session in [false, true] {
                let memory = MemoryBackend::new();
                let locks = Locks::builder(memory.clone()).build().unwrap();
                let backend = Decorated(Odd(memory, mode, AtomicU32::new(0)));
                let args = BreakArgs {
                    key: LockKey::parse(key).unwrap(),
                    reason: label("why"),
                    session,
                    wait: Duration::from_secs(60),
                };
                let broken = Breaking::new(&backend, locks, label("ops"), &args).broken();
                let broken = tokio::time::timeout(Duration::from_secs(5), broken).await;
                let broken = broken.unwrap().unwrap();
                assert_eq!(broken.evicted, evicted, "{key} {mode:?} {session}");
            }
        }
    }
}
