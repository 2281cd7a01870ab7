//! The stored shape, as `server/common.lua` describes it, and the answers that carry it.

use std::time::{Duration, SystemTime};

use lockcore::backend::{Incarnation, Record, Registered};
use lockcore::{
    Error, FencingToken, Grant, Holder, Intent, Label, Life, LockKey, Mode, Notes, Operation,
    OwnerId, SessionId, SessionState, Waiting, Want,
};
use redis::Value;

use crate::error::odd_answer;

/// An answer that is read part by part; what is not there is an answer that cannot be understood.
#[derive(Debug)]
pub(crate) struct Answer {
    operation: Operation,
    value: Value,
}

impl Answer {
    pub(crate) fn new(operation: Operation, value: Value) -> Self {
        Self { operation, value }
    }

    pub(crate) fn odd(&self) -> Error {
        odd_answer(self.operation)
    }

    /// Whether it is one text, and not a list or a number.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.value, Value::BulkString(_))
    }

    /// Whether it is no answer at all.
    pub(crate) fn is_nothing(&self) -> bool {
        self.value == Value::Nil
    }

    /// Whether the store is of another incarnation than the request was meant for.
    pub(crate) fn is_moved(&self) -> bool {
        matches!(&self.value, Value::BulkString(said) if said == b"moved")
    }

    pub(crate) fn parts(self) -> Result<Parts, Error> {
        match self.value {
            Value::Array(values) => Ok(Parts {
                operation: self.operation,
                values: values.into_iter(),
            }),
            _ => Err(self.odd()),
        }
    }

    pub(crate) fn bytes(self) -> Result<Vec<u8>, Error> {
        match self.value {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.into_bytes()),
            Value::Okay => Ok(b"OK".to_vec()),
            _ => Err(self.odd()),
        }
    }

    /// What may be somebody else's bytes, for people.
    pub(crate) fn lossy(self) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    pub(crate) fn text(self) -> Result<String, Error> {
        let odd = odd_answer(self.operation);
        String::from_utf8(self.bytes()?).map_err(|_| odd)
    }

    pub(crate) fn number(self) -> Result<i64, Error> {
        match self.value {
            Value::Int(number) => Ok(number),
            _ => Err(self.odd()),
        }
    }

    pub(crate) fn yes(self) -> Result<bool, Error> {
        match self.value {
            Value::Int(0) => Ok(false),
            Value::Int(1) => Ok(true),
            _ => Err(self.odd()),
        }
    }

    pub(crate) fn token(self) -> Result<FencingToken, Error> {
        let odd = odd_answer(self.operation);
        let token = self.text()?.parse().ok().and_then(FencingToken::new);
        token.ok_or(odd)
    }
}

/// The parts of an answer, in order.
#[derive(Debug)]
pub(crate) struct Parts {
    operation: Operation,
    values: std::vec::IntoIter<Value>,
}

impl Parts {
    /// The next part, which has to be there.
    pub(crate) fn part(&mut self) -> Result<Answer, Error> {
        let value = self
            .values
            .next()
            .ok_or_else(|| odd_answer(self.operation))?;
        Ok(Answer::new(self.operation, value))
    }
}

impl Iterator for Parts {
    type Item = Answer;

    fn next(&mut self) -> Option<Answer> {
        let value = self.values.next()?;
        Some(Answer::new(self.operation, value))
    }
}

/// The stored letter of a want.
pub(crate) fn want_letter(want: Want) -> &'static str {
    match want {
        Want::Create => "c",
        Want::Upsert => "u",
        Want::Share { .. } => "s",
        Want::Write => "w",
        Want::Read => "r",
    }
}

/// The stored form of an intent.
pub(crate) fn intent(registered: &Registered) -> Vec<u8> {
    let mut stored = format!("{}\n", registered.token).into_bytes();
    stored.extend_from_slice(registered.intent.as_bytes());
    stored
}

pub(crate) fn read_intent(stored: &[u8]) -> Option<Registered> {
    let end = stored.iter().position(|byte| *byte == b'\n')?;
    let token = std::str::from_utf8(&stored[..end]).ok()?.parse().ok()?;
    Some(Registered {
        token: FencingToken::new(token)?,
        intent: Intent::new(&stored[end + 1..]).ok()?,
    })
}

/// The name of an incarnation in a script's arguments; none is empty.
pub(crate) fn name(incarnation: Incarnation) -> String {
    match incarnation.is_known() {
        true => format!("{:032x}", incarnation.get()),
        false => String::new(),
    }
}

/// The incarnation of that name.
pub(crate) fn named(operation: Operation, name: &str) -> Result<Incarnation, Error> {
    match name.len() {
        0 => Ok(Incarnation::UNKNOWN),
        32 => u128::from_str_radix(name, 16)
            .map(Incarnation::new)
            .map_err(|_| odd_answer(operation)),
        _ => Err(odd_answer(operation)),
    }
}

/// What the traits say about a session with that record. One that cannot be understood lives, and nobody can end it.
pub(crate) fn state(session: SessionId, stored: &[u8]) -> SessionState {
    read_state(session, stored).unwrap_or_else(|| SessionState::unreadable(session))
}

fn read_state(session: SessionId, stored: &[u8]) -> Option<SessionState> {
    let fields: Vec<&str> = std::str::from_utf8(stored).ok()?.split('\n').collect();
    let [
        life,
        _,
        retired,
        _,
        _,
        adoption,
        adopter,
        _,
        ended,
        label,
        notes,
    ] = fields.try_into().ok()?;
    let mut state = SessionState::new(session, read_life(life)?);
    state.label = Label::parse(label).ok()?;
    state.retired = retired.parse().ok()?;
    state.adoption = adoption.parse().ok()?;
    if !adopter.is_empty() {
        state.adopter = Some(adopter.parse().ok()?);
    }
    state.ended = ended.parse().ok().and_then(since_1970);
    state.notes = Notes::stored(notes);
    Some(state)
}

fn read_life(name: &str) -> Option<Life> {
    [Life::Living, Life::Abandoned, Life::Dead]
        .into_iter()
        .find(|life| life.as_str() == name)
}

fn since_1970(milliseconds: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds))
}

/// A line of a record.
struct Line {
    grant: Grant,
    owner: OwnerId,
    since: Option<SystemTime>,
    /// Its place in line and how often it was passed, if it holds nothing and waits.
    waits: Option<(u64, u32)>,
}

fn read_line(line: &str) -> Option<Line> {
    let mut fields = line.get(1..)?.split('/');
    let session: SessionId = fields.next()?.parse().ok()?;
    let [n, m, since_ms] = [(); 3].map(|()| fields.next()?.parse::<u64>().ok());
    let since = since_1970(since_ms?);
    let (grant, owner) = (Grant { session, n: n? }, OwnerId { session, m: m? });
    let waits = match fields.next() {
        Some(place) => Some((place.parse().ok()?, fields.next()?.parse().ok()?)),
        None => None,
    };
    fields.next().is_none().then_some(Line {
        grant,
        owner,
        since,
        waits,
    })
}

/// Holders, each as key, line, mode, label, life and whether it may go if it waits; of one that is somebody else's the label
/// says what is known of it, and the life is empty.
pub(crate) fn holders(answer: Answer) -> Result<Vec<Holder>, Error> {
    answer.parts()?.map(holder).collect()
}

fn holder(answer: Answer) -> Result<Holder, Error> {
    let odd = answer.odd();
    let mut parts = answer.parts()?;
    let key = LockKey::parse(parts.part()?.text()?).map_err(|_| odd)?;
    let line = parts.part()?.lossy()?;
    let mode = parts.part()?;
    let unknown = mode.odd();
    let mode = match mode.text()?.as_str() {
        "IS" => Mode::IS,
        "IX" => Mode::IX,
        "S" => Mode::S,
        "X" => Mode::X,
        _ => return Err(unknown),
    };
    let label = parts.part()?.lossy()?;
    let life = read_life(&parts.part()?.text()?);
    let may_go = parts.part()?.yes()?;
    let known = life.and_then(|life| Some((life, read_line(&line)?)));
    Ok(match known {
        Some((life, line)) => Holder {
            key,
            grant: Some(line.grant),
            owner: Some(line.owner),
            mode,
            label,
            since: line.since,
            life,
            waiting: line.waits.map(|(place, passed)| Waiting {
                place,
                passed,
                may_go,
            }),
        },
        None => Holder {
            key,
            grant: None,
            owner: None,
            mode,
            label,
            since: None,
            life: Life::Living,
            waiting: None,
        },
    })
}

/// A record, as key, version, more, holders; `None` for a key that is none and cannot be named.
pub(crate) fn record(answer: Answer) -> Result<Option<Record>, Error> {
    let mut parts = answer.parts()?;
    let key = parts.part()?.bytes()?;
    let Some(key) = String::from_utf8(key)
        .ok()
        .and_then(|key| LockKey::parse(key).ok())
    else {
        return Ok(None);
    };
    Ok(Some(Record {
        key,
        version: parts.part()?.text()?,
        more: parts.part()?.yes()?,
        holders: holders(parts.part()?)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0000000000000000000000000000000a";

    #[test]
    fn an_intent_is_read_as_it_was_written() {
        let registered = Registered {
            token: FencingToken::new(7).unwrap(),
            intent: Intent::new([b'a', b'\n', 0, 255]).unwrap(),
        };
        assert_eq!(read_intent(&intent(&registered)), Some(registered));
        for broken in [&b""[..], b"7", b"x\na", b"-1\na", b"9223372036854775808\na"] {
            assert_eq!(read_intent(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn a_session_is_read_or_lives() {
        let session: SessionId = ID.parse().unwrap();
        let stored = format!("abandoned\n1\n1-4,7-7\n2\n3\n4\n{ID}\n\n5\nhost 7 é\nask//1/a/b");
        let read = state(session, stored.as_bytes());
        assert_eq!(
            (read.label.as_str(), read.life, read.adoption, read.adopter),
            ("host 7 é", Life::Abandoned, 4, Some(session))
        );
        assert!(read.retired.contains(3) && !read.retired.contains(5));
        assert_eq!(read.notes.as_str(), "ask//1/a/b");
        assert_eq!(read.ended, since_1970(5));
        for broken in [
            "",
            "{}",
            &stored.replace("abandoned", "Abandoned"),
            &stored.replace("1-4", "4-1"),
            &stored.replace(ID, "0a"),
            &stored.replace("host", "\u{7}"),
            &format!("{stored}\n"),
        ] {
            let read = state(session, broken.as_bytes());
            assert_eq!(read, SessionState::unreadable(session), "{broken:?}");
            assert_eq!(read.life, Life::Living);
        }
    }

    #[test]
    fn a_line_is_a_holder_or_nobody() {
        let session: SessionId = ID.parse().unwrap();
        for (behind, waits) in [
            ("", None),
            ("/1700000000000001/2", Some((1_700_000_000_000_001, 2))),
        ] {
            let line = read_line(&format!("w{ID}/3/4/1500{behind}")).unwrap();
            assert_eq!(line.grant, Grant { session, n: 3 });
            assert_eq!(line.owner, OwnerId { session, m: 4 });
            assert_eq!(
                line.since,
                Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500))
            );
            assert_eq!(line.waits, waits);
        }
        for broken in [
            "",
            "w",
            "é",
            &format!("w{ID}/3/4"),
            &format!("w{ID}/3/4/5/6"),
            &format!("w{ID}/3/4/5/6/"),
            &format!("w{ID}/3/4/5/6/7/8"),
            &format!("w{}/3/4/5", ID.to_uppercase()),
            &format!("w{ID}/3/4/-5"),
        ] {
            assert!(read_line(broken).is_none(), "{broken:?}");
        }
    }

    #[test]
    fn an_answer_that_is_none_is_of_unknown_outcome() {
        let answer = |value| Answer::new(Operation::Acquire, value);
        let errors = [
            answer(Value::Nil).parts().map(drop).unwrap_err(),
            answer(Value::Int(1)).text().unwrap_err(),
            answer(Value::BulkString(vec![255])).text().unwrap_err(),
            answer(Value::Int(2)).yes().unwrap_err(),
            answer(Value::BulkString(b"x".to_vec()))
                .token()
                .unwrap_err(),
            answer(Value::BulkString(b"x".to_vec()))
                .number()
                .unwrap_err(),
            holders(answer(Value::Array(vec![Value::Array(vec![])]))).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), lockcore::ErrorKind::Indeterminate);
        }
    }
}
