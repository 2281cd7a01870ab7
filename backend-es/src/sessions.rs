//! `SessionStore`: the only records that know time, and the payloads of intents beside them.

use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lockcore::backend::{
    Adopt, Adopted, Adoption, End, Incarnation, IntentChange, Opened, Registered, Renewal, Renewed,
    SessionStore, Settled,
};
use lockcore::{
    ErrorKind, FencingToken, Intent, Label, Life, Note, Notes, Operation, Result, SessionId,
    SessionState,
};
use serde_json::{Value, json};

use crate::EsBackend;
use crate::bulk::{Bulk, Item, Reply, expect, one};
use crate::error::{Failure, Outcome};
use crate::http::Lane;
use crate::primary::another;
use crate::record::{Named, Session, intent_id, session_id};
use crate::scripts::{ADOPT, ASK, END, GIVE_UP, NOTE, OPEN, RENEW, SETTLE};

/// So many sessions are asked about in one request.
const SESSIONS_PER_REQUEST: usize = 1_000;
/// So often a record is asked for again at most that others have written meanwhile.
const ATTEMPTS: u32 = 20;

#[async_trait]
impl SessionStore for EsBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.open_session(session, label, ttl)
            .await
            .map_err(|failure| failure.into_error(Operation::Open))
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.in_lane(Lane::Renewals)
            .renew_session(session, renewal)
            .await
            .map_err(|failure| failure.into_error(Operation::Renew))
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.end_sessions(sessions, how)
            .await
            .map_err(|failure| failure.into_error(Operation::End))
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        // Above that there are no numbers in the store.
        let Some(next) = seen
            .checked_add(1)
            .filter(|next| i64::try_from(*next).is_ok())
        else {
            return Ok(Adopted::NotAdopted);
        };
        let params = json!({"seen": seen, "next": next, "adopter": adopter.to_string()});
        let adopted = async {
            match how {
                Adopt::Take => self.take(session, next, adopter, params, within).await,
                Adopt::GiveUp => self.give_up(session, params, within).await,
            }
        };
        adopted
            .await
            .map_err(|failure| failure.into_error(Operation::Adopt))
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        self.settle_session(session, adoption, adopter, within)
            .await
            .map_err(|failure| failure.into_error(Operation::Settle))
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        let noted = async {
            let mut bulk = Bulk::default();
            let params = json!({"note": note.to_string()});
            bulk.run(&session_id(session), &NOTE, params);
            let known = [Reply::Written, Reply::Refused, Reply::Absent];
            match one(expect(self.bulk(bulk).await?, &known)?).reply() {
                Reply::Refused => {
                    let what = "the session's record cannot be understood";
                    Err(Failure::Found(ErrorKind::Corrupt, what.into()))
                }
                reply => Ok(reply == Reply::Written),
            }
        };
        noted
            .await
            .map_err(|failure| failure.into_error(Operation::Note))
    }
}

impl EsBackend {
    async fn open_session(
        &self,
        session: SessionId,
        label: &Label,
        ttl: Duration,
    ) -> Outcome<Opened> {
        let mut bulk = Bulk::by_whom();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let record = json!({
            "session": session.to_string(), "label": label.as_str(), "ttl": ttl_ms,
            "state": Life::Living.as_str(), "seq": 0, "retired": [], "adoption": 0,
        });
        let params = json!({"allowance": self.allowance_ms()});
        bulk.upsert(&session_id(session), &OPEN, params, record);
        // A dead session leaves a tombstone longer than its intent; an intent alone is not ours to explain.
        let known = [Reply::Written, Reply::Refused, Reply::Unreadable];
        let item = one(expect(self.bulk(bulk).await?, &known)?);
        Ok(match item.reply() {
            Reply::Written => Opened::Opened(item.incarnation()),
            _ => Opened::Used,
        })
    }

    /// How much longer than its lease a session lives, in milliseconds.
    fn allowance_ms(&self) -> u64 {
        u64::try_from(self.allowance.as_millis()).unwrap_or(u64::MAX)
    }

    async fn renew_session(&self, session: SessionId, renewal: &Renewal) -> Outcome<Renewed> {
        let here = self.elsewhere(renewal.incarnation);
        if here.is_some() || !renewal.granted.is_empty() {
            if !self.lives(session).await? {
                return Ok(Renewed::Dead);
            }
            if let Some(here) = here {
                return Ok(Renewed::Moved(here));
            }
            if !self.has_granted(session, renewal).await? {
                return Ok(Renewed::Forgotten);
            }
        }
        let mut bulk = Bulk::by_whom();
        let (intent, token) = match &renewal.intent {
            IntentChange::Keep => ("keep", None),
            IntentChange::Drop => ("drop", None),
            IntentChange::Put(registered) => ("put", Some(registered.token.to_string())),
        };
        // The payload is there before the session names it. Each has a document of its own, so that what a dead
        // session still sends changes nothing of what it has left.
        if let IntentChange::Put(registered) = &renewal.intent {
            let payload = json!({
                "session": session.to_string(), "token": token,
                "payload": STANDARD.encode(registered.intent.as_bytes()),
            });
            bulk.put(&intent_id(session, renewal.seq), &payload);
        }
        let params = json!({
            "seq": renewal.seq, "acknowledged": renewal.acknowledged, "retired": renewal.retired.as_slice(),
            "intent": intent, "token": token, "allowance": self.allowance_ms(),
            "ttl": renewal.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        });
        bulk.run_and_read(&session_id(session), &RENEW, params);
        let known = [Reply::Written, Reply::Refused, Reply::Absent];
        let items = expect(self.bulk(bulk).await?, &known)?;
        let item = items.last().expect("as many are answered as were sent");
        let written = item.reply() == Reply::Written;
        if written && renewal.incarnation.is_known() && item.incarnation() != renewal.incarnation {
            // It is written there, and who asks does not believe it: the next one is told where that is.
            return Err(another());
        }
        Ok(match (item.reply(), item.document()) {
            (Reply::Written, document) => {
                let notes = document.and_then(|it| it["notes"].as_str());
                Renewed::living(&Notes::stored(notes.unwrap_or_default()))
            }
            // Others can make it dead, but only its owner, who asks, can make it anything else.
            (Reply::Refused, Some(document)) if document["state"] == Life::Living.as_str() => {
                match document["seq"].as_u64() {
                    Some(seq) if seq < renewal.acknowledged => Renewed::Forgotten,
                    _ => Renewed::Overtaken,
                }
            }
            _ => Renewed::Dead,
        })
    }

    /// Ends sessions, and says what each is now.
    pub(crate) async fn end_sessions(
        &self,
        sessions: &[SessionId],
        how: End,
    ) -> Outcome<Vec<SessionState>> {
        let name = match how {
            End::IfDue => "if_due",
            End::Close => "close",
            End::Revoke => "revoke",
            End::Discard => "discard",
        };
        let params = json!({"how": name});
        let mut states = Vec::with_capacity(sessions.len());
        for some in sessions.chunks(SESSIONS_PER_REQUEST) {
            let mut bulk = Bulk::default();
            for session in some {
                // A session without a record is dead, and stays so.
                let tombstone = json!({
                    "session": session.to_string(), "label": "", "ttl": 0,
                    "state": Life::Dead.as_str(), "seq": 0, "retired": [], "adoption": 0,
                });
                bulk.upsert(&session_id(*session), &END, &params, tombstone);
            }
            let known = [Reply::Written, Reply::Refused, Reply::Unreadable];
            let items = expect(self.bulk(bulk).await?, &known)?;
            if how == End::Close {
                self.drop_payloads_of(some, &items).await;
            }
            states.extend(
                some.iter()
                    .zip(&items)
                    .map(|(session, item)| state(*session, item)),
            );
        }
        Ok(states)
    }

    /// Removes the payloads that closed sessions have left. What stays is removed by a sweep.
    async fn drop_payloads_of(&self, sessions: &[SessionId], items: &[Item]) {
        let mut bulk = Bulk::default();
        for (session, item) in sessions.iter().zip(items) {
            let record = item
                .document()
                .filter(|record| record["state"] == Life::Dead.as_str());
            if let Some(seq) = record.and_then(|record| record["payload"].as_u64()) {
                bulk.delete(&intent_id(*session, seq));
            }
        }
        if !bulk.is_empty() {
            let _ = self.bulk(bulk).await;
        }
    }

    /// Runs a script on a session's record in the incarnation that is meant, which is not known where the script runs. So the
    /// record is written by that one first, and the script runs on what was written then, and on nothing else: whoever has
    /// forgotten that write has another record. `None` if the incarnation is another one.
    async fn run_within(
        &self,
        session: SessionId,
        (script, params): (&str, &Value),
        bulk: fn() -> Bulk,
        within: Incarnation,
    ) -> Outcome<Option<Item>> {
        let id = session_id(session);
        let known = [
            Reply::Written,
            Reply::Refused,
            Reply::Absent,
            Reply::Conflict,
        ];
        if !within.is_known() {
            let mut bulk = bulk();
            bulk.run_and_read(&id, script, params);
            let item = one(expect(self.bulk(bulk).await?, &known[..3])?);
            return Ok(Some(item));
        }
        // A copy of one that met a conflict may have been executed.
        let after = |attempt: u32, failure: Failure| match attempt {
            0 => failure,
            _ => failure.in_part(),
        };
        for attempt in 0..ATTEMPTS {
            if self.elsewhere(within).is_some() {
                return Ok(None);
            }
            let mut ask = Bulk::by_whom();
            ask.run(&id, &ASK, json!({}));
            let answered = [Reply::Written, Reply::Absent];
            let asked = self.bulk(ask).await;
            let asked = asked.map_err(|failure| after(attempt, failure))?;
            let asked = one(expect(asked, &answered)?);
            let Some(seen) = asked.seen().filter(|_| asked.reply() == Reply::Written) else {
                return Ok(Some(asked));
            };
            if asked.incarnation() != within {
                return Ok(None);
            }
            let mut bulk = bulk();
            bulk.run_seen(&id, seen, script, params);
            let item = self.bulk(bulk).await;
            let item = item.map_err(|failure| after(attempt, failure))?;
            let item = one(expect(item, &known)?);
            if item.reply() != Reply::Conflict {
                return Ok(Some(item));
            }
        }
        let what = "others were quicker, again and again";
        Err(Failure::Found(ErrorKind::Unavailable, what.into()).in_part())
    }

    async fn take(
        &self,
        session: SessionId,
        number: u64,
        adopter: SessionId,
        params: Value,
        within: Incarnation,
    ) -> Outcome<Adopted> {
        let adopted = self
            .run_within(session, (&ADOPT, &params), Bulk::by_whom, within)
            .await?;
        let Some(adopted) = adopted else {
            return Ok(Adopted::Moved);
        };
        if adopted.reply() != Reply::Written {
            return Ok(Adopted::NotAdopted);
        }
        if within.is_known() && adopted.incarnation() != within {
            // It is written there, and who asks does not believe it.
            return Err(another().in_part());
        }
        let token = adopted.token().map_err(after_adoption)?;
        let record = adopted
            .document()
            .and_then(|document| Session::read(session, document));
        // The adoption is written: whoever is told of a failure has to give it up.
        let left = match record.and_then(|record| record.intent) {
            Some(named) => self.left(session, named).await.map_err(after_adoption)?,
            None => None,
        };
        match left {
            Some(left) => Ok(Adopted::Adopted(Adoption {
                number,
                token,
                left,
            })),
            None => {
                // A registration of which the payload failed was not acknowledged: the change never began.
                let settled = self.settle_session(session, number, adopter, within).await;
                Ok(match settled.map_err(after_adoption)? {
                    Settled::Moved => Adopted::Moved,
                    Settled::Settled | Settled::NotSettled => Adopted::NotAdopted,
                })
            }
        }
    }

    /// The intent that a session names; nothing, if its payload was never written. What cannot be read is somebody's change
    /// all the same.
    async fn left(&self, session: SessionId, named: Named) -> Outcome<Option<Registered>> {
        let mut bulk = Bulk::default();
        // By the primary, which has it if anybody has.
        bulk.look(&intent_id(session, named.seq));
        let item = one(expect(
            self.bulk(bulk).await?,
            &[Reply::Refused, Reply::Absent],
        )?);
        let Some(payload) = item.document() else {
            return Ok(None);
        };
        let registered = registered(payload, named).ok_or_else(|| {
            let what = format!(
                "the intent of {session} cannot be read (the document {}): finish its change by hand, then discard it",
                intent_id(session, named.seq)
            );
            Failure::Found(ErrorKind::Corrupt, what.into())
        });
        registered.map(Some)
    }

    async fn give_up(
        &self,
        session: SessionId,
        params: Value,
        within: Incarnation,
    ) -> Outcome<Adopted> {
        let given_up = self.run_within(session, (&GIVE_UP, &params), Bulk::default, within);
        let given_up = given_up.await?;
        Ok(given_up.map_or(Adopted::Moved, |_| Adopted::NotAdopted))
    }

    async fn settle_session(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Outcome<Settled> {
        if i64::try_from(adoption).is_err() {
            return Ok(Settled::NotSettled);
        }
        let params = json!({"adoption": adoption, "adopter": adopter.to_string()});
        let item = self.run_within(session, (&SETTLE, &params), Bulk::default, within);
        let item = item.await?;
        Ok(item.map_or(Settled::Moved, |item| {
            Settled::of(item.reply() == Reply::Written)
        }))
    }
}

/// An adoption was written before that. What is corrupt is told as such, and is in doubt as well.
fn after_adoption(failure: Failure) -> Failure {
    match failure {
        Failure::Found(ErrorKind::Corrupt, _) => failure,
        failure => failure.in_part(),
    }
}

/// The state that an answer shows. What cannot be read lives.
fn state(session: SessionId, item: &Item) -> SessionState {
    let document = item
        .document()
        .filter(|_| item.reply() != Reply::Unreadable);
    let read = document.and_then(|document| Session::read(session, document));
    read.map_or_else(|| SessionState::unreadable(session), |read| read.state)
}

/// The payload, if it is the one that the session names.
fn registered(payload: &Value, named: Named) -> Option<Registered> {
    let token: FencingToken = payload["token"].as_str()?.parse().ok()?;
    let bytes = STANDARD.decode(payload["payload"].as_str()?).ok()?;
    let intent = Intent::new(bytes).ok()?;
    (named.token == token).then_some(Registered { token, intent })
}
