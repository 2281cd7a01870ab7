//! `SessionStore`: one script for each operation.

use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Adopt, Adopted, Adoption, End, Incarnation, IntentChange, Opened, Renewal, Renewed,
    SessionStore, Settled, Standing,
};
use lockcore::{ErrorKind, Label, Note, Notes, Operation, Result, SessionId, SessionState};
use redis::Value;

use crate::RedisBackend;
use crate::error::{found, odd_answer};
use crate::record::{Answer, intent, name, named, read_intent, state};
use crate::scripts;

/// What a renewal is answered, before the notes.
const LIVING: &str = "living";

#[async_trait]
impl SessionStore for RedisBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let (session, ttl_ms) = (session.to_string(), ttl.as_millis().to_string());
        let arguments = [
            session.as_bytes(),
            ttl_ms.as_bytes(),
            label.as_str().as_bytes(),
        ];
        let opens = |answer: &Value| *answer != Value::BulkString(b"used".to_vec());
        let operation = Operation::Open;
        let answer = self
            .link
            .call_durably(operation, &scripts::OPEN, &arguments, opens)
            .await?;
        match answer.text()?.as_str() {
            "used" => Ok(Opened::Used),
            name => Ok(Opened::Opened(named(operation, name)?)),
        }
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.asking.iter().for_each(Standing::stands);
        let (session, seq) = (session.to_string(), renewal.seq.to_string());
        let acknowledged = renewal.acknowledged.to_string();
        let (retired, granted) = (renewal.retired.to_string(), renewal.granted.to_string());
        let incarnation = name(renewal.incarnation);
        let ttl_ms = renewal.ttl.map(|ttl| ttl.as_millis().to_string());
        let ttl_ms = ttl_ms.unwrap_or_default();
        let (change, payload) = match &renewal.intent {
            IntentChange::Keep => ("keep", Vec::new()),
            IntentChange::Drop => ("drop", Vec::new()),
            IntentChange::Put(registered) => ("put", intent(registered)),
        };
        let arguments = [
            session.as_bytes(),
            seq.as_bytes(),
            acknowledged.as_bytes(),
            retired.as_bytes(),
            incarnation.as_bytes(),
            granted.as_bytes(),
            ttl_ms.as_bytes(),
            change.as_bytes(),
            &payload,
        ];
        let renews = |answer: &Value| matches!(answer, Value::BulkString(it) if it.starts_with(LIVING.as_bytes()));
        let operation = Operation::Renew;
        let answer = self
            .link
            .call_durably(operation, &scripts::RENEW, &arguments, renews)
            .await?;
        match answer.text()?.as_str() {
            "overtaken" => Ok(Renewed::Overtaken),
            "forgotten" => Ok(Renewed::Forgotten),
            "dead" => Ok(Renewed::Dead),
            answer => match answer.strip_prefix(LIVING) {
                Some(notes) => Ok(Renewed::living(&Notes::stored(notes))),
                None => Ok(Renewed::Moved(named(operation, answer)?)),
            },
        }
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let how = match how {
            End::IfDue => "due",
            End::Close => "close",
            End::Revoke => "revoke",
            End::Discard => "discard",
        };
        let ids: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
        let mut arguments = vec![how.as_bytes()];
        arguments.extend(ids.iter().map(|id| id.as_bytes()));
        let operation = Operation::End;
        let answer = self
            .link
            .call_durably(operation, &scripts::END, &arguments, |_| true)
            .await?;
        let parts = answer.parts()?;
        let stored = parts.map(Answer::bytes).collect::<Result<Vec<_>>>()?;
        if stored.len() != sessions.len() {
            return Err(odd_answer(operation));
        }
        let states = sessions.iter().zip(&stored);
        Ok(states.map(|(id, stored)| state(*id, stored)).collect())
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let how = match how {
            Adopt::Take => "take",
            Adopt::GiveUp => "give up",
        };
        let number = seen.saturating_add(1);
        let (session, adopter) = (session.to_string(), adopter.to_string());
        let (seen, next) = (seen.to_string(), number.to_string());
        let within = name(within);
        let arguments = [how, session.as_str(), &seen, &next, &adopter, &within].map(str::as_bytes);
        let operation = Operation::Adopt;
        let answer = self
            .link
            .call_durably(operation, &scripts::ADOPT, &arguments, |_| true)
            .await?;
        if answer.is_moved() {
            return Ok(Adopted::Moved);
        }
        let mut parts = answer.parts()?;
        let Some(token) = parts.next() else {
            return Ok(Adopted::NotAdopted);
        };
        let token = token.token()?;
        let left = read_intent(&parts.part()?.bytes()?).ok_or_else(|| {
            let what = "the intent of an abandoned session cannot be understood";
            found(ErrorKind::Corrupt, operation, what)
        })?;
        Ok(Adopted::Adopted(Adoption {
            number,
            token,
            left,
        }))
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let (session, adoption) = (session.to_string(), adoption.to_string());
        let (adopter, within) = (adopter.to_string(), name(within));
        let arguments = [&session, &adoption, &adopter, &within].map(|text| text.as_bytes());
        let settles = |answer: &Value| *answer == Value::Int(1);
        let operation = Operation::Settle;
        let answer = self
            .link
            .call_durably(operation, &scripts::SETTLE, &arguments, settles)
            .await?;
        match answer.is_moved() {
            true => Ok(Settled::Moved),
            false => answer.yes().map(Settled::of),
        }
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        let (session, note) = (session.to_string(), note.to_string());
        let arguments = [session.as_bytes(), note.as_bytes()];
        let operation = Operation::Note;
        let answer = self
            .link
            .call_durably(operation, &scripts::NOTE, &arguments, |_| true)
            .await?;
        answer.yes()
    }
}
