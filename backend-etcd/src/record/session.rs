//! A session, of all its keys, and its intent.

use std::time::Duration;

use etcd_client::KeyValue;
use lockcore::backend::{Ranges, Registered};
use lockcore::{Intent, Label, Life, Notes, SessionId, SessionState};

use super::names::{LAST, Names, number};

/// Nobody, where a session is named; before every session's name.
pub(crate) const NOBODY: &str = "-";

/// A session, as its keys tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) state: SessionState,
    /// The number of its last renewal; of one that lives.
    pub(crate) live: Option<u64>,
    /// Its ranges of numbers that are over, as they stand.
    pub(crate) retired: Vec<(u64, u64)>,
    /// It is dead, and what is left of it goes by itself.
    pub(crate) buried: bool,
}

/// The value that names the sessions that have news.
pub(crate) fn news(sessions: &[SessionId]) -> String {
    let names = sessions.iter().map(SessionId::to_string);
    names.collect::<Vec<_>>().join(" ")
}

/// The sessions that it names.
pub(crate) fn read_news(value: &[u8]) -> impl Iterator<Item = SessionId> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.split(' ').filter_map(|name| name.parse().ok())
}

impl Session {
    /// Reads a session's keys; `None` if there are none. One that cannot be understood lives, and nobody can renew it.
    pub(crate) fn read(names: &Names, session: SessionId, found: &[KeyValue]) -> Option<Self> {
        if found.is_empty() {
            return None;
        }
        Some(
            Self::try_read(names, session, found).unwrap_or_else(|| Self {
                state: SessionState::unreadable(session),
                live: None,
                retired: Vec::new(),
                buried: false,
            }),
        )
    }

    fn try_read(names: &Names, session: SessionId, found: &[KeyValue]) -> Option<Self> {
        let (mut label, mut live, mut buried, mut intent) = (None, None, false, false);
        let (mut adoption, mut adopter, mut retired) = (0, None, Vec::new());
        let mut notes = Notes::default();
        for pair in found {
            let (_, part) = names.read_session(pair.key())?;
            let text = std::str::from_utf8(pair.value()).ok()?;
            match part {
                "label" => {
                    label = Some(Label::parse(text).ok()?);
                    buried = pair.lease() != 0;
                }
                "live" => live = Some(number(pair.value())?),
                "intent" => intent = true,
                "adoption" => adoption = text.parse().ok()?,
                "adopter" if text == NOBODY => {}
                "adopter" => adopter = Some(text.parse().ok()?),
                "notes" => notes = Notes::stored(text),
                _ => {
                    let to = part.strip_prefix("over/")?;
                    if to != LAST {
                        retired.push((number(pair.value())?, number(to.as_bytes())?));
                    }
                }
            }
        }
        let life = match (live, intent) {
            (Some(_), _) => Life::Living,
            (None, true) => Life::Abandoned,
            (None, false) => Life::Dead,
        };
        let mut state = SessionState::new(session, life);
        state.label = label?;
        state.retired = merged(&retired);
        (state.adoption, state.adopter, state.notes) = (adoption, adopter, notes);
        Some(Self {
            state,
            live,
            retired,
            buried,
        })
    }
}

/// The numbers in ranges that may overlap: a renewal that was not finished has left some of the older ones.
fn merged(ranges: &[(u64, u64)]) -> Ranges {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    let mut apart: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (from, to) in ranges.into_iter().filter(|(from, to)| from <= to) {
        match apart.last_mut() {
            Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
            _ => apart.push((from, to)),
        }
    }
    Ranges::new(apart).expect("they rise and are apart")
}

/// How long a session lives without a renewal.
pub(crate) fn read_ttl(stored: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(stored).ok()?;
    Some(Duration::from_millis(text.parse().ok()?))
}

/// The stored form of an intent.
pub(crate) fn intent(registered: &Registered) -> Vec<u8> {
    let mut stored = format!("{}\n", registered.token).into_bytes();
    stored.extend_from_slice(registered.intent.as_bytes());
    stored
}

pub(crate) fn read_intent(stored: &[u8]) -> Option<Registered> {
    let end = stored.iter().position(|byte| *byte == b'\n')?;
    Some(Registered {
        token: std::str::from_utf8(&stored[..end]).ok()?.parse().ok()?,
        intent: Intent::new(&stored[end + 1..]).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use lockcore::FencingToken;

    use super::*;

    #[test]
    fn ranges_of_an_unfinished_renewal_are_one_set() {
        for (ranges, set) in [
            (vec![], ""),
            (vec![(4, 5), (1, 9)], "1-9"),
            (vec![(1, 2), (3, 4)], "1-4"),
            (vec![(7, 7), (1, 2)], "1-2,7-7"),
            (vec![(5, 4)], ""),
            (vec![(1, u64::MAX), (2, u64::MAX)], "1-18446744073709551615"),
        ] {
            assert_eq!(merged(&ranges).to_string(), set, "{ranges:?}");
        }
    }

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
}
