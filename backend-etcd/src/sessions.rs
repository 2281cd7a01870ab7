//! `SessionStore`: what ends with a lease, and what is left of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, DeleteOptions, KeyValue, PutOptions, TxnOp};
use lockcore::backend::{
    Adopt, Adopted, Adoption, End, Incarnation, IntentChange, Opened, Ranges, Renewal, Renewed,
    SessionStore, Settled,
};
use lockcore::{ErrorKind, Label, Life, Note, Notes, Operation, Result, SessionId, SessionState};

use crate::EtcdBackend;
use crate::line::{QUITS, quits};
use crate::record::{NOBODY, Session, digits, intent, last, news, number, read_intent, read_ttl};
use crate::states::SESSIONS_PER_REQUEST;
use crate::txn::{Here, Moved, absent, get, keys, nobody, present};

/// How often what others have changed meanwhile is looked at again.
const ATTEMPTS: usize = 16;
/// A session that has, or had, a longer TTL than this revokes the lease that a renewal has replaced. A shorter one ends by
/// itself before many others have come.
const ENDS_SOON: Duration = Duration::from_secs(60);

#[async_trait]
impl SessionStore for EtcdBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let way = self.way(Operation::Open);
        let lease = way.grant(ttl).await?;
        let names = &self.link.names;
        let on_lease = PutOptions::new().with_lease(lease);
        let then = vec![
            TxnOp::put(names.label(session), label.as_str(), None),
            TxnOp::put(names.ttl(session), ttl.as_millis().to_string(), None),
            TxnOp::put(names.live(session), digits(0), Some(on_lease)),
            TxnOp::put(names.over_last(session), last(), None),
        ];
        let unused = || vec![nobody(&names.session(session))];
        let (any, nothing) = (Incarnation::UNKNOWN, || Some(Vec::new()));
        let opened = way.under(any, unused, || then.clone(), nothing);
        if let Ok(answer) = opened.await?
            && answer.succeeded
        {
            return Ok(Opened::Opened(answer.incarnation()));
        }
        way.revoke(lease).await;
        Ok(Opened::Used)
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let names = &self.link.names;
        let looks = || {
            let batches = (!renewal.granted.is_empty()).then(|| names.batches(Some(session)));
            let batches = batches.map(|batches| keys(&batches, 0));
            let ttl = TxnOp::get(names.ttl(session), None);
            // Who waits under a number that is over makes room.
            let waits = get(&names.waiting_batches(session), 0);
            let own = [get(&names.session(session), 0), ttl, waits];
            own.into_iter().chain(batches).collect()
        };
        let (any, nothing) = (Incarnation::UNKNOWN, || Some(Vec::new()));
        let way = self.way(Operation::Renew);
        let found = way.under(any, Vec::new, looks, nothing);
        let mut found = match found.await? {
            Ok(found) => found,
            Err(Moved(incarnation)) => return Ok(Renewed::Moved(incarnation)),
        };
        let stored = found.found()?.pairs;
        let Some(read) = Session::read(names, session, &stored) else {
            return Ok(Renewed::Dead);
        };
        let ttl = found.found()?.pairs;
        let ttl = ttl.first().and_then(|pair| read_ttl(pair.value()));
        let waits = found.found()?.pairs;
        let (Some(seq), Some(ttl)) = (read.live, ttl) else {
            return Ok(Renewed::Dead);
        };
        let here = found.incarnation();
        if renewal.incarnation.is_known() && renewal.incarnation != here {
            return Ok(Renewed::Moved(here));
        }
        if !renewal.granted.is_empty() {
            let batches = found.found()?.pairs;
            let batches = batches
                .iter()
                .filter_map(|batch| names.read_batch(batch.key()));
            let taken = batches.filter(|batch| !batch.waits);
            let there: BTreeSet<u64> = taken.map(|batch| batch.grant.n).collect();
            if !has_all(&there, &renewal.granted) {
                return Ok(Renewed::Forgotten);
            }
        }
        if seq < renewal.acknowledged {
            return Ok(Renewed::Forgotten);
        }
        if seq >= renewal.seq {
            return Ok(Renewed::Overtaken);
        }
        // A new lease, and not the same one kept alive: only the leader knows when a lease was, and one that was stopped
        // and has been followed by another would end it, too early.
        let (before, ttl) = (ttl, renewal.ttl.unwrap_or(ttl));
        let lease = way.grant(ttl).await?;
        let mut changes = self.over_changes(session, &read.retired, &renewal.retired);
        for pair in &waits {
            let batch = names.read_batch(pair.key());
            let retired = batch.filter(|batch| renewal.retired.contains(batch.grant.n));
            changes.extend(
                retired
                    .into_iter()
                    .flat_map(|batch| quits(names, batch.grant, pair)),
            );
        }
        // A part of them does no harm: what is over stays so.
        let most = self.keys_per_batch() - QUITS;
        while changes.len() > most {
            let some = changes.drain(..most).collect();
            if let Some(renewed) = self.write(session, renewal, some).await? {
                return Ok(renewed);
            }
        }
        let on_lease = PutOptions::new().with_lease(lease);
        let seq = digits(renewal.seq);
        let lives = TxnOp::put(names.live(session), seq, Some(on_lease));
        changes.push(lives);
        if let Some(ttl) = renewal.ttl {
            let ttl_ms = ttl.as_millis().to_string();
            changes.push(TxnOp::put(names.ttl(session), ttl_ms, None));
        }
        match &renewal.intent {
            IntentChange::Keep => {}
            IntentChange::Put(registered) => {
                let token = registered.token.to_string();
                changes.push(TxnOp::put(names.intent(session), token, None));
                changes.push(TxnOp::put(names.payload(session), intent(registered), None));
            }
            IntentChange::Drop => {
                changes.push(TxnOp::delete(names.intent(session), None));
                changes.push(TxnOp::delete(names.payload(session), None));
            }
        }
        if let Some(refused) = self.write(session, renewal, changes).await? {
            return Ok(refused);
        }
        let live = names.live(session);
        let replaced = stored.iter().find(|pair| pair.key() == live);
        if let Some(replaced) = replaced.filter(|_| before.max(ttl) > ENDS_SOON) {
            // Nothing is on it any more.
            way.revoke(replaced.lease()).await;
        }
        Ok(Renewed::living(&read.state.notes))
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let mut states = Vec::with_capacity(sessions.len());
        for some in sessions.chunks(SESSIONS_PER_REQUEST) {
            let ended = match how {
                End::IfDue => self.way(Operation::End).look_at(some).await?,
                End::Close => self.end_some(some, None).await?,
                End::Revoke => self.end_some(some, Some(self.news_of(some))).await?,
                End::Discard => {
                    let mut ended = self.way(Operation::End).look_at(some).await?;
                    for state in ended
                        .iter_mut()
                        .filter(|state| state.life == Life::Abandoned)
                    {
                        *state = self.discard(state.clone()).await?;
                    }
                    ended
                }
            };
            states.extend(ended);
        }
        Ok(states)
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let Some(next) = seen.checked_add(1) else {
            return Ok(Adopted::NotAdopted);
        };
        let done = match how {
            Adopt::Take => self.take(session, (seen, next), adopter, within).await?,
            Adopt::GiveUp => {
                let given_up = self.give_up(session, (seen, next), adopter, within);
                given_up.await?.map(|()| Adopted::NotAdopted)
            }
        };
        Ok(done.unwrap_or(Adopted::Moved))
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let names = &self.link.names;
        let (adoption, adopter) = (adoption.to_string(), adopter.to_string());
        let adopted = || {
            let adoption = (names.adoption(session), adoption.as_str());
            let adopter = (names.adopter(session), adopter.as_str());
            let is = |(key, value)| Compare::value(key, CompareOp::Equal, value);
            vec![absent(names.live(session)), is(adoption), is(adopter)]
        };
        let then = || {
            vec![
                TxnOp::delete(names.intent(session), None),
                TxnOp::delete(names.payload(session), None),
            ]
        };
        let way = self.way(Operation::Settle);
        let settled = way.under(within, adopted, then, || Some(Vec::new()));
        Ok(match settled.await? {
            Ok(settled) => Settled::of(settled.succeeded),
            Err(Moved(_)) => Settled::Moved,
        })
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        let names = &self.link.names;
        let range = names.session(session);
        let way = self.way(Operation::Note);
        let (mut found, _) = way.get(&range, 0).await?;
        for _ in 0..ATTEMPTS {
            let Some(read) = Session::read(names, session, &found.pairs) else {
                return Ok(false);
            };
            if read.buried {
                // It goes with its lease, which a note would outlive.
                return Ok(false);
            }
            let as_seen = vec![
                present(names.label(session)),
                Compare::lease(names.label(session), CompareOp::Equal, 0),
                self.notes_are(session, &read.state.notes),
            ];
            let mut notes = read.state.notes;
            notes.add(note);
            let then = vec![
                TxnOp::put(names.notes(session), notes.as_str(), None),
                self.news_of(&[session]),
            ];
            let or_else = vec![get(&range, 0)];
            let mut answer = way.txn(as_seen, then, or_else).await?;
            if answer.succeeded {
                return Ok(true);
            }
            found = answer.found()?;
        }
        Err(way.never_still())
    }
}

impl EtcdBackend {
    /// What turns the ranges that stand into those that are wanted: first what is new, then what is old.
    fn over_changes(
        &self,
        session: SessionId,
        stand: &[(u64, u64)],
        wanted: &Ranges,
    ) -> Vec<TxnOp> {
        let names = &self.link.names;
        let stand: BTreeMap<u64, u64> = stand.iter().map(|(from, to)| (*to, *from)).collect();
        let wanted: BTreeMap<u64, u64> = wanted
            .as_slice()
            .iter()
            .map(|(from, to)| (*to, *from))
            .collect();
        let new = wanted
            .iter()
            .filter(|(to, from)| stand.get(to) != Some(from));
        let old = stand.keys().filter(|to| !wanted.contains_key(to));
        let puts =
            new.map(|(to, from)| TxnOp::put(names.retired(session, *to), digits(*from), None));
        puts.chain(old.map(|to| TxnOp::delete(names.retired(session, *to), None)))
            .collect()
    }

    /// Writes a part of a renewal, if the session lives and no later one has been written. Says what it is if not.
    async fn write(
        &self,
        session: SessionId,
        renewal: &Renewal,
        changes: Vec<TxnOp>,
    ) -> Result<Option<Renewed>> {
        let live = self.link.names.live(session);
        let next = || {
            let earlier = Compare::value(live.clone(), CompareOp::Less, digits(renewal.seq));
            let known = renewal
                .acknowledged
                .checked_sub(1)
                .map(|before| Compare::value(live.clone(), CompareOp::Greater, digits(before)));
            [earlier].into_iter().chain(known).collect()
        };
        let way = self.way(Operation::Renew);
        let written = way.under(
            renewal.incarnation,
            next,
            || changes.clone(),
            || Some(vec![TxnOp::get(live.clone(), None)]),
        );
        let mut answer = match written.await? {
            Ok(answer) => answer,
            Err(Moved(incarnation)) => return Ok(Some(Renewed::Moved(incarnation))),
        };
        if answer.succeeded {
            return Ok(None);
        }
        let found = answer.found()?.pairs;
        Ok(Some(match found.first() {
            None => Renewed::Dead,
            Some(pair) if number(pair.value()).is_some_and(|seq| seq < renewal.acknowledged) => {
                Renewed::Forgotten
            }
            Some(_) => Renewed::Overtaken,
        }))
    }

    /// What tells the owners of these sessions that there is something to hear.
    fn news_of(&self, sessions: &[SessionId]) -> TxnOp {
        TxnOp::put(self.link.names.news(), news(sessions), None)
    }

    /// Ends sessions that live, and tells that.
    async fn end_some(
        &self,
        sessions: &[SessionId],
        tells: Option<TxnOp>,
    ) -> Result<Vec<SessionState>> {
        let names = &self.link.names;
        let ends = sessions.iter().flat_map(|session| {
            let options = DeleteOptions::new().with_prev_key();
            let death = TxnOp::delete(names.live(*session), Some(options));
            [death, get(&names.session(*session), 0)]
        });
        let way = self.way(Operation::End);
        let mut answer = way.all(ends.chain(tells).collect()).await?;
        let mut states = Vec::with_capacity(sessions.len());
        let mut leases = Vec::new();
        for session in sessions {
            leases.extend(answer.removed()?.iter().map(KeyValue::lease));
            let pairs = answer.found()?.pairs;
            states.push(way.state(*session, &pairs).await?);
        }
        for lease in leases {
            way.revoke(lease).await;
        }
        Ok(states)
    }

    /// Throws the intent of an abandoned session away, and its adoption number.
    async fn discard(&self, mut state: SessionState) -> Result<SessionState> {
        let names = &self.link.names;
        let session = state.session;
        let way = self.way(Operation::End);
        for _ in 0..ATTEMPTS {
            if state.life != Life::Abandoned {
                return Ok(state);
            }
            let range = names.session(session);
            let as_seen = vec![
                absent(names.live(session)),
                present(names.intent(session)),
                self.adoption_is(session, state.adoption),
            ];
            let used_up = state.adoption.saturating_add(1).to_string();
            let then = vec![
                TxnOp::delete(names.intent(session), None),
                TxnOp::delete(names.payload(session), None),
                TxnOp::put(names.adoption(session), used_up, None),
                TxnOp::put(names.adopter(session), NOBODY, None),
                get(&range, 0),
            ];
            let or_else = vec![get(&range, 0)];
            let mut answer = way.txn(as_seen, then, or_else).await?;
            if answer.succeeded {
                (0..4).for_each(|_| answer.skip());
            }
            let pairs = answer.found()?.pairs;
            state = way.state(session, &pairs).await?;
        }
        Err(way.never_still())
    }

    async fn take(
        &self,
        session: SessionId,
        (seen, next): (u64, u64),
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Here<Adopted>> {
        let names = &self.link.names;
        let range = names.session(session);
        let (next_text, adopter_text) = (next.to_string(), adopter.to_string());
        // If it is there to be taken; else, if this is sent again, it is taken already.
        for again in [false, true] {
            let compares = || {
                let number = if again {
                    vec![
                        self.adoption_is(session, next),
                        Compare::value(
                            names.adopter(session),
                            CompareOp::Equal,
                            adopter_text.as_str(),
                        ),
                    ]
                } else {
                    vec![self.adoption_is(session, seen)]
                };
                let abandoned = [absent(names.live(session)), present(names.intent(session))];
                number.into_iter().chain(abandoned).collect()
            };
            let then = || {
                vec![
                    TxnOp::get(names.payload(session), None),
                    TxnOp::put(names.adoption(session), next_text.as_str(), None),
                    TxnOp::put(names.adopter(session), adopter_text.as_str(), None),
                ]
            };
            let or_else = || Some(vec![get(&range, 0)]);
            let way = self.way(Operation::Adopt);
            let taken = way.under(within, compares, then, or_else);
            let mut answer = match taken.await? {
                Ok(answer) => answer,
                Err(moved) => return Ok(Err(moved)),
            };
            let pairs = answer.found()?.pairs;
            if answer.succeeded {
                let payload = pairs.first().map(KeyValue::value).unwrap_or_default();
                let left = read_intent(payload).ok_or_else(|| {
                    let what = "the intent of the abandoned session cannot be understood";
                    way.error(ErrorKind::Corrupt, what)
                })?;
                return Ok(Ok(Adopted::Adopted(Adoption {
                    number: next,
                    token: answer.token()?,
                    left,
                })));
            }
            let state = Session::read(names, session, &pairs).map(|read| read.state);
            let ours =
                state.is_some_and(|state| state.adoption == next && state.adopter == Some(adopter));
            if !ours {
                break;
            }
        }
        Ok(Ok(Adopted::NotAdopted))
    }

    /// Uses up the number that is seen, or the next one, if the adopter has it.
    async fn give_up(
        &self,
        session: SessionId,
        (seen, next): (u64, u64),
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Here<()>> {
        let names = &self.link.names;
        let range = names.session(session);
        let mut number = seen;
        let way = self.way(Operation::Adopt);
        for _ in 0..ATTEMPTS {
            let as_seen = || {
                let ours = (number == next).then(|| {
                    let adopter = adopter.to_string();
                    Compare::value(names.adopter(session), CompareOp::Equal, adopter)
                });
                let known = [
                    present(names.label(session)),
                    // What is buried goes with its lease, which this would outlive.
                    Compare::lease(names.label(session), CompareOp::Equal, 0),
                    self.adoption_is(session, number),
                ];
                known.into_iter().chain(ours).collect()
            };
            let used_up = number.saturating_add(1).to_string();
            let then = || {
                vec![
                    TxnOp::put(names.adoption(session), used_up.as_str(), None),
                    TxnOp::put(names.adopter(session), NOBODY, None),
                ]
            };
            let or_else = || Some(vec![get(&range, 0)]);
            let given_up = way.under(within, as_seen, then, or_else);
            let mut answer = match given_up.await? {
                Ok(answer) => answer,
                Err(moved) => return Ok(Err(moved)),
            };
            if answer.succeeded {
                return Ok(Ok(()));
            }
            let read = Session::read(names, session, &answer.found()?.pairs);
            let Some(state) = read.filter(|read| !read.buried).map(|read| read.state) else {
                // It was never opened, or has ended: there is nothing to adopt.
                return Ok(Ok(()));
            };
            let ours = state.adoption == next && state.adopter == Some(adopter);
            if !ours && state.adoption != seen {
                return Ok(Ok(()));
            }
            number = state.adoption;
        }
        Err(way.never_still())
    }

    /// That the last adoption number that was used is this one.
    fn adoption_is(&self, session: SessionId, number: u64) -> Compare {
        let adoption = self.link.names.adoption(session);
        if number == 0 {
            absent(adoption)
        } else {
            Compare::value(adoption, CompareOp::Equal, number.to_string())
        }
    }

    /// That these are the notes of a session.
    pub(crate) fn notes_are(&self, session: SessionId, notes: &Notes) -> Compare {
        let key = self.link.names.notes(session);
        match notes.is_empty() {
            true => absent(key),
            false => Compare::value(key, CompareOp::Equal, notes.as_str()),
        }
    }
}

/// Whether all of these numbers are there.
fn has_all(there: &BTreeSet<u64>, numbers: &Ranges) -> bool {
    numbers.as_slice().iter().all(|(from, to)| {
        let found = there.range(from..=to).count();
        u64::try_from(found).is_ok_and(|found| found.checked_sub(1) == Some(to - from))
    })
}
