//! `SessionStore`: one call of one function for each operation.

use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Adopt, Adopted, Adoption, End, Incarnation, IntentChange, Opened, Registered, Renewal, Renewed,
    SessionStore, Settled,
};
use lockcore::{
    FencingToken, Intent, Label, Note, Notes, Operation, Result, SessionId, SessionState,
};
use tokio::time::Instant;

use crate::PostgresBackend;
use crate::connections::Link;
use crate::error::{Failure, Outcome};
use crate::record::{
    broken, column, id_bytes, loaded, name, named, only, over_text, state, stored,
};
use crate::sql::{Call, Value};

#[async_trait]
impl SessionStore for PostgresBackend {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let values = [
            Value::Bytes(id_bytes(session)),
            Value::Text(Some(label.as_str().to_owned())),
            Value::Int(ttl_ms),
        ];
        let call = Call::new("begin_session", values);
        let (link, deadline) = self.begin();
        let outcome = async {
            let opened: Option<i64> = only(&link.call(deadline, &call).await?, "begin_session")?;
            Ok(opened.map_or(Opened::Used, |name| Opened::Opened(named(name))))
        }
        .await;
        outcome.map_err(Failure::of(Operation::Open))
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let (change, put) = match &renewal.intent {
            IntentChange::Keep => ("keep", None),
            IntentChange::Put(put) => ("put", Some(put)),
            IntentChange::Drop => ("drop", None),
        };
        let ttl_ms = |ttl: Duration| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let mut values = vec![
            Value::Bytes(id_bytes(session)),
            Value::Int(stored(renewal.seq)),
            Value::Int(stored(renewal.acknowledged)),
            Value::Text(Some(over_text(&renewal.retired))),
            Value::Text(Some(change.to_owned())),
            Value::Int(put.map_or(0, |put| put.token.get().cast_signed())),
            Value::Bytes(put.map_or_else(Vec::new, |put| put.intent.as_bytes().to_vec())),
            Value::Int(name(renewal.incarnation)),
            Value::Text(Some(over_text(&renewal.granted))),
        ];
        let function = match renewal.ttl {
            Some(ttl) => {
                values.push(Value::Int(ttl_ms(ttl)));
                "renew_for"
            }
            None => "renew",
        };
        let mut call = Call::new(function, values);
        call.secret = put.is_some();
        let (link, deadline) = self.begin();
        let outcome = async {
            let rows = link.renew(deadline, &call).await?;
            match only::<&str>(&rows, function)? {
                "overtaken" => Ok(Renewed::Overtaken),
                "forgotten" => Ok(Renewed::Forgotten),
                "dead" => Ok(Renewed::Dead),
                answer => {
                    if let Some(notes) = answer.strip_prefix("living") {
                        return Ok(Renewed::living(&Notes::stored(notes)));
                    }
                    let name = answer
                        .strip_prefix("moved ")
                        .and_then(|name| name.parse().ok());
                    let none = || broken("a renewal has an answer that is none");
                    Ok(Renewed::Moved(named(name.ok_or_else(none)?)))
                }
            }
        }
        .await;
        outcome.map_err(Failure::of(Operation::Renew))
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let (link, deadline) = self.begin();
        let outcome = async { end(link, deadline, sessions, how).await }.await;
        outcome.map_err(Failure::of(Operation::End))
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        let values = [
            Value::Bytes(id_bytes(session)),
            Value::Int(stored(seen)),
            Value::Bytes(id_bytes(adopter)),
            Value::Int(name(within)),
        ];
        let function = match how {
            Adopt::Take => "adopt_within",
            Adopt::GiveUp => "give_up_within",
        };
        let call = Call::new(function, values);
        let (link, deadline) = self.begin();
        let outcome = async {
            let rows = link.call(deadline, &call).await?;
            if how == Adopt::GiveUp {
                let given_up: Option<bool> = only(&rows, function)?;
                return Ok(given_up.map_or(Adopted::Moved, |_| Adopted::NotAdopted));
            }
            let Some(row) = rows.first() else {
                return Ok(Adopted::NotAdopted);
            };
            let Some(number) = column(row, "r_number")? else {
                return Ok(Adopted::Moved);
            };
            let payload: Vec<u8> = column(row, "r_payload")?;
            Ok(Adopted::Adopted(Adoption {
                number: loaded(number),
                token: token(column(row, "r_token")?)?,
                left: Registered {
                    token: token(column(row, "r_left_token")?)?,
                    intent: Intent::new(payload).map_err(|_| broken("an intent is too large"))?,
                },
            }))
        }
        .await;
        outcome.map_err(Failure::of(Operation::Adopt))
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let values = [
            Value::Bytes(id_bytes(session)),
            Value::Int(stored(adoption)),
            Value::Bytes(id_bytes(adopter)),
            Value::Int(name(within)),
        ];
        let function = "settle_within";
        let call = Call::new(function, values);
        let (link, deadline) = self.begin();
        let outcome = async {
            let settled: Option<bool> = only(&link.call(deadline, &call).await?, function)?;
            Ok(settled.map_or(Settled::Moved, Settled::of))
        }
        .await;
        outcome.map_err(Failure::of(Operation::Settle))
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        let values = [
            Value::Bytes(id_bytes(session)),
            Value::Text(Some(note.to_string())),
        ];
        let call = Call::new("note", values);
        let (link, deadline) = self.begin();
        let outcome = async { only(&link.call(deadline, &call).await?, "note") }.await;
        outcome.map_err(Failure::of(Operation::Note))
    }
}

/// Ends sessions, and says of each what it is now.
pub(crate) async fn end(
    link: &Link,
    deadline: Instant,
    sessions: &[SessionId],
    how: End,
) -> Outcome<Vec<SessionState>> {
    let how = match how {
        End::IfDue => "due",
        End::Close => "close",
        End::Revoke => "revoke",
        End::Discard => "discard",
    };
    let ids = sessions.iter().copied().map(id_bytes).collect();
    let values = [Value::ManyBytes(ids), Value::Text(Some(how.to_owned()))];
    let rows = link
        .call(deadline, &Call::new("end_sessions", values))
        .await?;
    let states: Vec<SessionState> = rows.iter().map(state).collect::<Outcome<_>>()?;
    if states.iter().map(|state| &state.session).eq(sessions) {
        Ok(states)
    } else {
        Err(broken("not every session was answered"))
    }
}

pub(crate) fn token(number: i64) -> Outcome<FencingToken> {
    let token = u64::try_from(number).ok().and_then(FencingToken::new);
    token.ok_or_else(|| broken("a token is none"))
}
