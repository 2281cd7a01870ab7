//! `ClaimStore`: claims, each written as a record of its own, and each ancestor of a path as one too.
//!
//! No time is looked at in lock records. Holders that were met are judged by ending their sessions, if these are due,
//! and the whole batch is sent once more, to go past those that do not count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use lockcore::backend::judge::{self, Aside, Ask, ByRecord, Tried, needed, stands_in_line};
use lockcore::backend::{Acquire, Acquired, ClaimStore, End, Incarnation, Stood, Sweep, Swept};
use lockcore::{
    Claim, FencingToken, Grant, Holder, LockKey, Mode, Operation, Result, SessionId, SessionState,
    Want,
};
use serde_json::{Value, json};

use crate::EsBackend;
use crate::bulk::{Bulk, Item, Reply, expect, one};
use crate::error::{Failure, Outcome};
use crate::namespace::unix_ms;
use crate::primary::another;
use crate::record::{Held, Names, Session, held, lock_id, place, session_id, stood, unreadable};
use crate::scripts::{ACQUIRE, ALIVE, CONFIRM, RELEASE, WAIT};

/// From so many claims on, exclusive flat keys are first tried as new documents, which is as fast as any.
const CREATE_FIRST: usize = 32;
/// One such key is, too, unless one of the last so many was there already: then that was a request in vain.
const SCRIPTS_AFTER_CONFLICT: u32 = 16;

/// What may come of a removal.
const REMOVED: [Reply; 4] = [
    Reply::Written,
    Reply::Refused,
    Reply::Absent,
    Reply::Unreadable,
];

/// The records that claims need, in path order.
type Needed<'a> = BTreeMap<LockKey, Ask<'a>>;

/// Who is not in the way, by record.
type Asides = BTreeMap<LockKey, Aside>;

/// Of a request that may be asked for again under its grant, each attempt has a number that no earlier one of this process
/// has: a late undo of one does not touch what another has entered.
static ATTEMPTS: AtomicU64 = AtomicU64::new(1);

/// What was written so far.
#[derive(Default)]
struct Written<'a> {
    /// The records, and whether the grant is new there.
    records: Vec<(&'a LockKey, bool)>,
    /// All that are in the records in which somebody was in the way.
    met: judge::Met<Held>,
    /// The place in line that the grant has, or had, in each of its records.
    places: Vec<Option<u64>>,
    /// Of the last item that was written.
    token: Option<Outcome<FencingToken>>,
    /// Which incarnations have written something.
    by: Vec<Incarnation>,
    /// What the session's item said, if there was one.
    alive: Option<bool>,
}

#[async_trait]
impl ClaimStore for EsBackend {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        judge::acquire(&Records::of(self), request)
            .await
            .map_err(|failure| failure.into_error(Operation::Acquire))
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.release_batch(grant, claims)
            .await
            .map_err(|failure| failure.into_error(Operation::Release))
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.confirm_batch(grant, claims)
            .await
            .map_err(|failure| failure.into_error(Operation::Confirm))
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.sweep_some(which, limit)
            .await
            .map_err(|failure| failure.into_error(Operation::Sweep))
    }
}

/// The store, as the judging round sees it.
struct Records<'a> {
    backend: &'a EsBackend,
    /// The request may stand in line by now, so that what fails later is not without effect.
    stands: AtomicBool,
}

impl<'a> Records<'a> {
    fn of(backend: &'a EsBackend) -> Self {
        let stands = AtomicBool::new(false);
        Self { backend, stands }
    }

    fn after<T>(&self, outcome: Outcome<T>) -> Outcome<T> {
        match self.stands.load(Ordering::Relaxed) {
            true => outcome.map_err(Failure::in_part),
            false => outcome,
        }
    }
}

impl ByRecord for Records<'_> {
    type Held = Held;
    type Failure = Failure;

    async fn attempt(
        &self,
        request: &Acquire,
        needed: &Needed<'_>,
        aside: &Asides,
    ) -> Outcome<Tried<Held>> {
        let tried = self.after(self.backend.try_batch(request, needed, aside).await)?;
        if stands_in_line(request) && matches!(tried, Tried::Met(_)) {
            self.stands.store(true, Ordering::Relaxed);
        }
        Ok(tried)
    }

    async fn end_due(&self, sessions: &[SessionId]) -> Outcome<Vec<SessionState>> {
        self.after(self.backend.end_sessions(sessions, End::IfDue).await)
    }

    async fn entries(&self, keys: Vec<LockKey>) -> Outcome<judge::Met<Held>> {
        let ids = keys.iter().map(|key| lock_id(key).into_owned());
        let documents = self.after(self.backend.get(ids.collect()).await)?;
        let records = keys.into_iter().zip(documents);
        let read = records.filter_map(|(key, document)| {
            let held = held(&key, &document?.source);
            Some((key, held))
        });
        Ok(read.collect())
    }

    fn waits_for(key: &LockKey, waiter: &Held) -> LockKey {
        let claim = waiter.waits.as_ref().map(|(_, claim)| claim);
        claim.unwrap_or(key).clone()
    }

    fn holder(key: &LockKey, held: &Held, state: Option<&SessionState>) -> Holder {
        held.holder(key, state)
    }

    fn was_refused(failure: &Failure) -> bool {
        let Failure::InPart(last) = failure else {
            return false;
        };
        let error = last.copy().into_error(Operation::Acquire);
        error.is_certainly_without_effect()
    }
}

impl EsBackend {
    /// Writes every record. If some refuse, or the session is not living, the others are given back.
    async fn try_batch(
        &self,
        request: &Acquire,
        needed: &Needed<'_>,
        aside: &Asides,
    ) -> Outcome<Tried<Held>> {
        if self.elsewhere(request.incarnation).is_some() {
            return Ok(Tried::Moved);
        }
        let exclusive = |claim: &Claim| matches!(claim.want(), Want::Create | Want::Upsert);
        let exclusive = request.claims.iter().all(exclusive);
        let create = exclusive && request.claims.len() >= CREATE_FIRST;
        // Who does not say which store is meant may have opened its session in the one before.
        let moved = self.has_moved() && !request.incarnation.is_known();
        let checked = needed.len() > 1 || request.joined || moved;
        // Who needs one record waits in it at once.
        let in_line = stands_in_line(request) && needed.len() > 1;
        let enters = Enters {
            request,
            of: needed.len(),
            attempt: in_line.then(|| ATTEMPTS.fetch_add(1, Ordering::Relaxed)),
        };
        let mut written = Written::default();
        let mut left: Vec<(&LockKey, Ask<'_>)> =
            needed.iter().map(|(key, ask)| (key, *ask)).collect();
        if create {
            left = self.create(request, left, &mut written).await?;
        } else if exclusive && needed.len() == 1 && !checked && aside.is_empty() && self.creates() {
            left = self.create_one(request, left, &mut written).await?;
        }
        if !left.is_empty() {
            let entered = self.enter(enters, &left, aside, checked, &mut written);
            let after = |failure: Failure| if create { failure.in_part() } else { failure };
            entered.await.map_err(after)?;
        }
        let Written {
            records,
            met,
            places,
            token,
            by,
            alive,
        } = written;
        if !met.is_empty() {
            if let (true, Some(Ok(new)), Some(true)) = (in_line, &token, alive) {
                let same = places.iter().all(|place| *place == places[0]);
                let place = places[0].filter(|_| same).unwrap_or(new.get());
                let waits = self.wait(enters, needed, place).await;
                waits.map_err(Failure::in_part)?;
                return Ok(Tried::Met(met));
            }
            let all = records.iter().map(|(key, _)| *key);
            let given_back = self.give_back(request.grant, all).await;
            given_back.map_err(Failure::in_part)?;
            return Ok(Tried::Met(met));
        }
        let meant = request.incarnation;
        let moved = meant.is_known() && by.iter().any(|by| *by != meant);
        if moved || checked && alive != Some(true) {
            // What stood before stays: the session may be abandoned, and this a late copy of what its intent is about.
            let new = records.iter().filter(|(_, new)| *new);
            let given_back = self.give_back(request.grant, new.map(|(key, _)| *key));
            given_back.await.map_err(Failure::in_part)?;
            return Ok(if moved { Tried::Moved } else { Tried::Void });
        }
        if by.len() > 1 {
            return Err(another());
        }
        let token = token.ok_or_else(|| Failure::Answer("nothing was written".into()))?;
        Ok(Tried::Granted(token?))
    }

    /// Whether one record is tried as a new document first.
    fn creates(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        let left = self
            .scripts
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        left.is_err()
    }

    /// Tries one record as a new document. Says whether it is still to be entered: where it is there already.
    async fn create_one<'a, 'b>(
        &self,
        request: &Acquire,
        records: Vec<(&'a LockKey, Ask<'b>)>,
        written: &mut Written<'a>,
    ) -> Outcome<Vec<(&'a LockKey, Ask<'b>)>> {
        let mut names = Names::new(request, 1, unix_ms());
        let mut bulk = Bulk::by_whom();
        for (key, ask) in &records {
            bulk.create(&lock_id(key), &names.sole(key, ask.mode()));
        }
        let known = [Reply::Written, Reply::Conflict];
        let item = one(expect(self.bulk(bulk).await?, &known)?);
        if !item.is_written() {
            self.scripts
                .store(SCRIPTS_AFTER_CONFLICT, Ordering::Relaxed);
            return Ok(records);
        }
        written
            .records
            .extend(records.into_iter().map(|(key, _)| (key, true)));
        written.takes(&item);
        Ok(Vec::new())
    }

    /// Tries the records as new documents. Says which are still to be entered: those that are there already.
    async fn create<'a, 'b>(
        &self,
        request: &Acquire,
        records: Vec<(&'a LockKey, Ask<'b>)>,
        written: &mut Written<'a>,
    ) -> Outcome<Vec<(&'a LockKey, Ask<'b>)>> {
        let mut names = Names::new(request, records.len(), unix_ms());
        let mut bulk = Bulk::by_whom();
        for (key, ask) in &records {
            bulk.create(&lock_id(key), &names.sole(key, ask.mode()));
        }
        // Not written, because what is between the records in the index makes their removal slower. That they are
        // acknowledged says that the shard which answers is the primary one.
        let session = request.grant.session;
        bulk.look(&session_id(session));
        let mut items = self.bulk_of_new(bulk).await?;
        let looked = items.pop();
        let found = looked
            .as_ref()
            .and_then(Item::document)
            .and_then(|document| Session::read(session, document));
        written.alive = Some(found.is_some_and(|found| found.allows(request.grant.n)));
        let mut left = Vec::new();
        for ((key, ask), item) in records.into_iter().zip(&items) {
            if item.is_written() {
                written.records.push((key, true));
                written.takes(item);
            } else {
                left.push((key, ask));
            }
        }
        Ok(left)
    }

    /// Enters the grant in the records.
    async fn enter<'a>(
        &self,
        enters: Enters<'_>,
        records: &[(&'a LockKey, Ask<'_>)],
        aside: &Asides,
        checked: bool,
        written: &mut Written<'a>,
    ) -> Outcome<()> {
        let request = enters.request;
        let none = Aside::default();
        let aside = |key: &LockKey| aside.get(key).unwrap_or(&none);
        let waits = stands_in_line(request) && enters.of == 1;
        let mut names = enters.names();
        let mut bulk = Bulk::by_whom();
        for (key, ask) in records {
            let want = ask.claim.want();
            let mut params = enters.params(key, *ask);
            params["with"] = with(ask.mode()).into();
            params["reenter"] = want.reenters().into();
            params["limit"] = want.limit().map_or(0, std::num::NonZeroU32::get).into();
            params["waits"] = waits.into();
            let aside = aside(key);
            params["gone"] = aside.gone.iter().map(Grant::to_string).collect();
            params["quit"] = aside.quit.iter().map(Grant::to_string).collect();
            let past = aside.passed.iter().map(|past| {
                let waiting = past.waiting;
                let known = json!({"place": waiting.place, "passed": waiting.passed, "may_go": waiting.may_go});
                (past.grant.to_string(), known)
            });
            params["past"] = Value::Object(past.collect());
            let sole = names.sole(key, ask.mode());
            bulk.create_or_run(&lock_id(key), &sole, &ACQUIRE, params);
        }
        if checked {
            alive(&mut bulk, request.grant);
        }
        let known = [
            Reply::Written,
            Reply::Refused,
            Reply::Unreadable,
            Reply::Absent,
        ];
        let items = expect(self.bulk(bulk).await?, &known)?;
        for ((key, ask), item) in records.iter().zip(&items) {
            let document = item.document();
            let held = held(key, document.unwrap_or(&Value::Null));
            let is_own = |held: &&Held| held.grant() == Some(request.grant);
            let own = held.iter().find(is_own);
            // A refused request has written where it removes somebody.
            let removes = !aside(key).passed.is_empty();
            let refused = own.map_or(removes, |own| own.waits.is_some());
            written
                .places
                .push(document.and_then(|it| place(it, request.grant)));
            match (item.reply(), document) {
                (Reply::Written, Some(document)) if !refused => {
                    written.records.push((key, !stood(document, request.grant)));
                    written.takes(item);
                }
                (Reply::Written, None) => {
                    return Err(Failure::Answer("a record is missing".into()));
                }
                (_, document) => {
                    let mut held = held;
                    let is_left = |held: &Held| aside(key).leaves(held);
                    if ask.in_the_way(&held, is_left).is_empty() {
                        held.push(unreadable(document.unwrap_or(&Value::Null)));
                    }
                    written.met.insert((*key).clone(), held);
                }
            }
        }
        if checked {
            written.checked_by(items.last())?;
        }
        Ok(())
    }

    /// What a refused attempt has entered, and what it has not, becomes a waiter.
    async fn wait(&self, enters: Enters<'_>, needed: &Needed<'_>, place: u64) -> Outcome<()> {
        let claim = enters.request.claims[0].key();
        let mut names = enters.names().waiting(place, claim);
        let mut bulk = Bulk::default();
        for (key, ask) in needed {
            let mut params = enters.params(key, *ask);
            params["waits"] = claim.as_str().into();
            params["place"] = place.into();
            let sole = names.sole(key, ask.mode());
            bulk.put_or_run(&lock_id(key), &sole, &WAIT, params);
        }
        let known = [Reply::Written, Reply::Refused, Reply::Unreadable];
        expect(self.bulk(bulk).await?, &known)?;
        Ok(())
    }

    async fn give_back<'a>(
        &self,
        grant: Grant,
        keys: impl DoubleEndedIterator<Item = &'a LockKey>,
    ) -> Outcome<()> {
        let mut bulk = Bulk::default();
        remove(&mut bulk, grant, keys, false);
        if bulk.is_empty() {
            return Ok(());
        }
        expect(self.bulk(bulk).await?, &REMOVED)?;
        Ok(())
    }

    async fn release_batch(&self, grant: Grant, claims: &[Claim]) -> Outcome<Stood> {
        let needed = needed(claims, None);
        let mut bulk = Bulk::default();
        // The shard answers in order: who dies after this has held until then.
        let session = grant.session;
        bulk.look(&session_id(session));
        remove(&mut bulk, grant, needed.keys(), false);
        let items = expect(self.bulk(bulk).await?, &REMOVED)?;
        let Some((looked, removed)) = items.split_first() else {
            return Err(Failure::Answer("nothing was answered".into()));
        };
        let there = removed.iter().all(|item| item.reply() == Reply::Written);
        let left = needed.keys().rev().zip(removed);
        let left = left.filter(|(_, item)| item.reply() == Reply::Refused);
        let mut leaves = Bulk::default();
        remove(&mut leaves, grant, left.rev().map(|(key, _)| key), true);
        if !leaves.is_empty() {
            expect(self.bulk(leaves).await?, &REMOVED)?;
        }
        let found = looked
            .document()
            .and_then(|document| Session::read(session, document));
        Ok(match found.is_some_and(|found| found.allows(grant.n)) {
            _ if !there => Stood::Absent,
            true => Stood::Held,
            false => Stood::Fallen,
        })
    }

    async fn confirm_batch(&self, grant: Grant, claims: &[Claim]) -> Outcome<bool> {
        let mut bulk = Bulk::default();
        for (key, ask) in needed(claims, None) {
            let params = json!({"grant": grant.to_string(), "mode": ask.mode().as_str()});
            bulk.run(&lock_id(&key), &CONFIRM, params);
        }
        alive(&mut bulk, grant);
        let known = [
            Reply::Written,
            Reply::Refused,
            Reply::Absent,
            Reply::Unreadable,
        ];
        let items = expect(self.bulk(bulk).await?, &known)?;
        Ok(items.iter().all(|item| item.reply() == Reply::Written))
    }
}

impl Written<'_> {
    fn checked_by(&mut self, session: Option<&Item>) -> Outcome<()> {
        let session =
            session.ok_or_else(|| Failure::Answer("the session's item is missing".into()))?;
        let lives = session.reply() == Reply::Written;
        self.alive = Some(lives);
        if lives {
            self.takes(session);
        }
        Ok(())
    }

    /// An item that was written.
    fn takes(&mut self, item: &Item) {
        self.token = Some(item.token());
        let by = item.incarnation();
        if !self.by.contains(&by) {
            self.by.push(by);
        }
    }
}

/// What an attempt at a request enters in its records.
#[derive(Clone, Copy)]
struct Enters<'a> {
    request: &'a Acquire,
    /// In so many records.
    of: usize,
    attempt: Option<u64>,
}

impl Enters<'_> {
    fn names(self) -> Names {
        Names::new(self.request, self.of, unix_ms()).of_attempt(self.attempt)
    }

    fn params(self, key: &LockKey, ask: Ask<'_>) -> Value {
        let Acquire { grant, owner, .. } = self.request;
        json!({
            "key": key.as_str(), "grant": grant.to_string(), "owner": owner.to_string(),
            "session": grant.session.to_string(), "mode": ask.mode().as_str(), "of": self.of, "attempt": self.attempt,
        })
    }
}

/// Removes what the grant holds from records, the lowest first: whatever is held, its ancestors are too. With `waiters`,
/// also what it waits for.
fn remove<'a>(
    bulk: &mut Bulk,
    grant: Grant,
    keys: impl DoubleEndedIterator<Item = &'a LockKey>,
    waiters: bool,
) {
    let params = json!({"grants": [grant.to_string()], "waiters": waiters});
    for key in keys.rev() {
        bulk.run(&lock_id(key), &RELEASE, &params);
    }
}

/// An item on the session's record that is written only if the session lives and the number is not over.
fn alive(bulk: &mut Bulk, grant: Grant) {
    bulk.run(&session_id(grant.session), &ALIVE, json!({"n": grant.n}));
}

/// The modes that may stand beside this one.
fn with(mode: Mode) -> Vec<&'static str> {
    let beside = Mode::ALL.into_iter().filter(|other| mode.beside(*other));
    beside.map(Mode::as_str).collect()
}
