//! The stored shape: rows as values, and what a row is that cannot be understood.

use std::time::{Duration, SystemTime};

use lockcore::backend::judge::Place;
use lockcore::backend::rows::Waits;
use lockcore::backend::{Incarnation, Past, Ranges};
use lockcore::{
    Grant, Holder, Label, Life, LockKey, Mode, Notes, OwnerId, SessionId, SessionState, Waiting,
    Want,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::error::{Failure, Outcome};

/// A number as it is stored: less 2^63, so that the stored ones sort.
pub(crate) fn stored(number: u64) -> i64 {
    (number ^ (1 << 63)).cast_signed()
}

/// A stored number.
pub(crate) fn loaded(number: i64) -> u64 {
    number.cast_unsigned() ^ (1 << 63)
}

pub(crate) fn id_bytes(session: SessionId) -> Vec<u8> {
    session.get().to_be_bytes().to_vec()
}

pub(crate) fn session_id(bytes: &[u8]) -> Option<SessionId> {
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(SessionId::new(u128::from_be_bytes(bytes)))
}

/// An incarnation, by its stored name.
pub(crate) fn named(name: i64) -> Incarnation {
    Incarnation::new(u128::from(name.cast_unsigned()))
}

/// The stored name of an incarnation; 0 is none.
pub(crate) fn name(incarnation: Incarnation) -> i64 {
    // One that cannot be stored is none of this store's, and equals none.
    i64::try_from(incarnation.get()).unwrap_or(i64::MAX)
}

/// Numbers of grants as a multirange, whose ends are excluded where they are a number at all.
pub(crate) fn over_text(retired: &Ranges) -> String {
    let ranges = retired
        .as_slice()
        .iter()
        .map(|(from, to)| match to.checked_add(1) {
            Some(end) => format!("[{},{})", stored(*from), stored(end)),
            None => format!("[{},)", stored(*from)),
        });
    format!("{{{}}}", ranges.collect::<Vec<_>>().join(","))
}

fn over_of(text: &str) -> Option<Ranges> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    if inner.is_empty() {
        return Some(Ranges::EMPTY);
    }
    let inner = inner.strip_prefix(['[', '('])?.strip_suffix(')')?;
    let range = |range: &str| {
        let (from, end) = range.split_once(',')?;
        let from = if from.is_empty() {
            0
        } else {
            loaded(from.parse().ok()?)
        };
        let to = match end {
            "" => u64::MAX,
            end => loaded(end.parse().ok()?).checked_sub(1)?,
        };
        Some((from, to))
    };
    let ranges = inner.split("),[").map(range).collect::<Option<_>>()?;
    Ranges::new(ranges).ok()
}

/// The stored name of a want.
pub(crate) fn want_name(want: Want) -> &'static str {
    match want {
        Want::Create => "create",
        Want::Upsert => "upsert",
        Want::Share { .. } => "share",
        Want::Write => "write",
        Want::Read => "read",
    }
}

/// The mode of a stored want; `None` for one that is not known.
fn mode_of(name: &str) -> Option<Mode> {
    Some(match name {
        "create" | "upsert" | "write" => Mode::X,
        "share" => Mode::IS,
        "read" => Mode::S,
        _ => return None,
    })
}

pub(crate) fn life_of(name: &str) -> Option<Life> {
    [Life::Living, Life::Abandoned, Life::Dead]
        .into_iter()
        .find(|life| life.as_str() == name)
}

/// A column of an answer.
pub(crate) fn column<'r, T>(row: &'r PgRow, name: &'static str) -> Outcome<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(name).map_err(Failure::Sent)
}

/// The first row's column.
pub(crate) fn only<'r, T>(rows: &'r [PgRow], name: &'static str) -> Outcome<T>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    let row = rows.first().ok_or_else(|| broken("an answer has no row"))?;
    column(row, name)
}

pub(crate) fn broken(what: &'static str) -> Failure {
    Failure::Answer(what.into())
}

/// What the traits say about the session in this row.
pub(crate) fn state(row: &PgRow) -> Outcome<SessionState> {
    let adopter: Option<Vec<u8>> = column(row, "r_adopter")?;
    let read = || {
        let session = session_id(&row.try_get::<Vec<u8>, _>("r_id").ok()?)?;
        let mut state = SessionState::new(session, life_of(row.try_get("r_life").ok()?)?);
        state.label = Label::parse(row.try_get::<&str, _>("r_label").ok()?).ok()?;
        state.retired = over_of(row.try_get("r_over").ok()?)?;
        state.adoption = loaded(row.try_get("r_adoption").ok()?);
        if let Some(adopter) = &adopter {
            state.adopter = Some(session_id(adopter)?);
        }
        state.notes = Notes::stored(row.try_get::<&str, _>("r_notes").ok()?);
        let ended: Option<i64> = row.try_get("r_ended_ms").ok()?;
        state.ended = ended.and_then(since_1970);
        Some(state)
    };
    read().ok_or_else(|| broken("a session cannot be understood"))
}

/// The same for a listing, which one row that cannot be understood does not hide.
pub(crate) fn listed(row: &PgRow) -> Outcome<SessionState> {
    let id = session_id(&column::<Vec<u8>>(row, "r_id")?);
    let id = id.ok_or_else(|| broken("a session has no identity"))?;
    Ok(state(row).unwrap_or_else(|_| SessionState::unreadable(id)))
}

fn since_1970(milliseconds: i64) -> Option<SystemTime> {
    let since = Duration::from_millis(u64::try_from(milliseconds).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Somebody who waits, as a refusal has told it, in the server's words.
pub(crate) fn seen(past: &Past) -> String {
    let (grant, waiting) = (past.grant, past.waiting);
    format!(
        "{} {} {} {} {}",
        grant.session,
        stored(grant.n),
        waiting.place,
        waiting.passed,
        waiting.may_go
    )
}

/// A row of holders.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Which of the keys that were asked about, from 1.
    pub(crate) place: usize,
    /// Whose row it is, whatever it means.
    pub(crate) session: Vec<u8>,
    pub(crate) n: i64,
    /// `None` if it cannot be understood: a foreign holder.
    known: Option<(Grant, OwnerId)>,
    /// How it holds the key that was asked about.
    mode: Mode,
    label: String,
    life: Life,
    since: Option<SystemTime>,
    /// Its session may be made dead.
    pub(crate) due: bool,
    waiting: Option<Waiting>,
    /// It waits, and only these sessions keep it, which may be made dead.
    pub(crate) kept_by: Vec<SessionId>,
}

impl Entry {
    pub(crate) fn read(row: &PgRow) -> Outcome<Self> {
        let session: Vec<u8> = column(row, "r_session")?;
        let (n, m): (i64, i64) = (column(row, "r_n")?, column(row, "r_m")?);
        let want: String = column(row, "r_want")?;
        let below: bool = column(row, "r_below")?;
        let label: Option<String> = column(row, "r_label")?;
        let life: Option<String> = column(row, "r_life")?;
        let since_ms: i64 = column(row, "r_since_ms")?;
        let place: i64 = column(row, "r_place")?;
        let (line, passed): (Option<i64>, Option<i64>) =
            (column(row, "r_line")?, column(row, "r_passed")?);
        let kept_by: Option<&str> = column(row, "r_kept_by")?;
        let mode = mode_of(&want);
        let place_of = if below { Place::Below } else { Place::Key };
        let id = session_id(&session).filter(|_| mode.is_some());
        let known = id.map(|session| {
            let (n, m) = (loaded(n), loaded(m));
            (Grant { session, n }, OwnerId { session, m })
        });
        let (label, life) = match known {
            Some(_) => (
                label.unwrap_or_default(),
                life.as_deref().and_then(life_of).unwrap_or(Life::Living),
            ),
            None => (unreadable(&want, n), Life::Living),
        };
        let waiting = line.filter(|_| known.is_some()).map(|line| Waiting {
            place: line.cast_unsigned(),
            passed: u32::try_from(passed.unwrap_or(0)).unwrap_or(u32::MAX),
            may_go: kept_by == Some(""),
        });
        let kept_by = kept_by.unwrap_or_default().split_whitespace();
        let kept_by = kept_by.map(|id| id.parse().map_err(|_| broken("a session is none")));
        Ok(Self {
            place: usize::try_from(place).map_err(|_| broken("a place is none"))?,
            known,
            mode: place_of.seen(mode.unwrap_or(Mode::X)),
            label,
            life,
            since: since_1970(since_ms),
            due: column(row, "r_due")?,
            waiting,
            kept_by: kept_by.collect::<Outcome<_>>()?,
            session,
            n,
        })
    }

    pub(crate) fn holder(&self, key: &LockKey) -> Holder {
        Holder {
            key: key.clone(),
            grant: self.known.map(|(grant, _)| grant),
            owner: self.known.map(|(_, owner)| owner),
            mode: self.mode,
            label: self.label.clone(),
            since: self.since,
            life: self.life,
            waiting: self.waiting,
        }
    }
}

impl lockcore::backend::judge::Entry for Entry {
    fn grant(&self) -> Option<Grant> {
        self.known.map(|(grant, _)| grant)
    }

    fn owner(&self) -> Option<OwnerId> {
        self.known.map(|(_, owner)| owner)
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn waits(&self) -> Option<Waits> {
        self.waiting.map(Waits::from)
    }
}

/// What can be said of a row that cannot be understood.
fn unreadable(want: &str, n: i64) -> String {
    let want: String = want.chars().filter(|c| !c.is_control()).take(32).collect();
    format!("unreadable record: n {}, want {want:?}", loaded(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_as_they_are_stored() {
        let numbers = [0, 1, i64::MAX.cast_unsigned(), 1 << 63, u64::MAX];
        for pair in numbers.windows(2) {
            assert!(stored(pair[0]) < stored(pair[1]), "{pair:?}");
        }
        for number in numbers {
            assert_eq!(loaded(stored(number)), number);
        }
    }

    #[test]
    fn ranges_are_read_as_they_were_written() {
        for text in [
            "",
            "0-0",
            "1-4,7-7",
            "5-18446744073709551615",
            "0-18446744073709551615",
        ] {
            let retired: Ranges = text.parse().unwrap();
            assert_eq!(over_of(&over_text(&retired)), Some(retired), "{text}");
        }
        assert_eq!(
            over_of("{(,)}").unwrap().to_string(),
            "0-18446744073709551615"
        );
        for text in [
            "",
            "{",
            "{[1,2]}",
            "{[2,1)}",
            "{[1,2),[2,3)}",
            "[1,2)",
            "{[a,b)}",
        ] {
            assert_eq!(over_of(text), None, "{text}");
        }
    }

    #[test]
    fn every_want_has_its_mode() {
        for want in [
            Want::Create,
            Want::Upsert,
            Want::Share { limit: None },
            Want::Write,
            Want::Read,
        ] {
            assert_eq!(mode_of(want_name(want)), Some(want.mode()));
        }
        assert_eq!(mode_of("Create"), None);
    }
}
