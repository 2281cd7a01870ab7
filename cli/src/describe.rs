//! Who holds what, in words for people and in JSON for programs.

use std::time::{Duration, SystemTime};

use lockkeeper::backend::Record;
use lockkeeper::{Abandoned, Busy, Holder, Life, LockKey, Mode, Note, NoteKind, SessionState};
use serde::Serialize;

use crate::list::Left;

/// "KEY is held by LABEL (X since …), LABEL …"; of those who wait and came before the same.
pub(crate) fn busy(busy: &Busy) -> String {
    let first = busy.first();
    let holders: Vec<String> = first.holders.iter().take(3).map(holder).collect();
    let more = match first.holders.len().saturating_sub(3) {
        0 if first.more => " and others".to_owned(),
        0 => String::new(),
        n if first.more => format!(" and {n} others or more"),
        n => format!(" and {n} more"),
    };
    let by = if holders.is_empty() {
        "somebody".to_owned()
    } else {
        holders.join(", ")
    };
    let all_wait = first.holders.iter().all(|it| it.waiting.is_some());
    let is_held = match all_wait && !first.holders.is_empty() {
        true => "is waited for by",
        false => "is held by",
    };
    format!("{:?} {is_held} {by}{more}", first.claim.key().as_str())
}

fn holder(holder: &Holder) -> String {
    let state = match (holder.life, holder.waiting) {
        (_, Some(_)) => ", waiting",
        (Life::Abandoned, None) => ", abandoned",
        _ => "",
    };
    let since = holder
        .since
        .map_or_else(String::new, |since| format!(" since {}", time(since)));
    let label = if holder.label.is_empty() {
        "a holder without a label"
    } else {
        &holder.label
    };
    format!("{label} ({}{since}{state})", mode(&holder.key, holder.mode))
}

/// Which work is in the way, and what can be done.
pub(crate) fn abandoned(abandoned: &Abandoned) -> String {
    let sessions: Vec<String> = abandoned.sessions.iter().map(session).collect();
    format!(
        "{:?} is held by unfinished work of {}: finish it by lockkeeper recover or run --recover, or lockkeeper discard it",
        abandoned.busy.first().claim.key().as_str(),
        sessions.join(", "),
    )
}

/// "session ID (LABEL)".
pub(crate) fn session(state: &SessionState) -> String {
    format!("session {} ({})", state.session, state.label)
}

/// A point in time as people and programs read it.
pub(crate) fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// A length of time in its two greatest units, as in "3m 5s".
pub(crate) fn duration(length: Duration) -> String {
    let seconds = length.as_secs();
    let units = [(86_400, 'd'), (3_600, 'h'), (60, 'm'), (1, 's')];
    let first = units.iter().position(|(size, _)| seconds >= *size);
    let Some(first) = first else {
        return "0s".to_owned();
    };
    let mut left = seconds;
    let mut shown = Vec::new();
    for (size, unit) in units.iter().skip(first).take(2) {
        let count = left / size;
        left %= size;
        if count > 0 {
            shown.push(format!("{count}{unit}"));
        }
    }
    shown.join(" ")
}

/// How a key is held, in words: a path read or written, or something below it; a name or a document alone or with others.
pub(crate) fn mode(key: &LockKey, mode: Mode) -> &'static str {
    match (key.as_str().starts_with('/'), mode) {
        (true, Mode::X) => "write",
        (true, Mode::S) => "read",
        (true, Mode::IX) => "write below",
        (true, Mode::IS) => "read below",
        (false, Mode::X) => "exclusive",
        (false, Mode::S | Mode::IX | Mode::IS) => "shared",
    }
}

/// A record as JSON.
#[derive(Serialize)]
pub(crate) struct RecordJson<'a> {
    pub(crate) key: &'a str,
    pub(crate) holders: Vec<HolderJson<'a>>,
    /// There are more holders than are listed.
    pub(crate) more: bool,
}

impl<'a> RecordJson<'a> {
    pub(crate) fn of(record: &'a Record, left: &Left) -> Self {
        let holders = record.holders.iter();
        Self {
            key: record.key.as_str(),
            holders: holders.map(|it| HolderJson::of(it, left)).collect(),
            more: record.more,
        }
    }
}

/// A length of time as JSON: milliseconds.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A holder as JSON; without grant, owner and session for a foreign one.
#[derive(Serialize)]
pub(crate) struct HolderJson<'a> {
    mode: &'static str,
    since: Option<String>,
    /// What is left of the session's lease.
    lease_left_ms: Option<u64>,
    session: Option<String>,
    grant: Option<String>,
    owner: Option<String>,
    state: &'static str,
    label: &'a str,
}

impl<'a> HolderJson<'a> {
    pub(crate) fn of(holder: &'a Holder, left: &Left) -> Self {
        Self {
            mode: mode(&holder.key, holder.mode),
            since: holder.since.map(time),
            lease_left_ms: left.holder(holder).map(ms),
            session: holder.grant.map(|grant| grant.session.to_string()),
            grant: holder.grant.map(|grant| grant.to_string()),
            owner: holder.owner.map(|owner| owner.to_string()),
            state: state(holder),
            label: &holder.label,
        }
    }
}

/// What a holder is at: the state of its session, or that it waits.
pub(crate) fn state(holder: &Holder) -> &'static str {
    match holder.waiting {
        Some(_) => "waiting",
        None => holder.life.as_str(),
    }
}

/// "2026-01-01T00:00:00Z: evict of grant 3 by LABEL: REASON".
/// What was done to a session, oldest first. That its change is discarded is written down before it is: where somebody has
/// settled it meanwhile, or nothing came of it, it was not done.
pub(crate) fn notes(state: &SessionState) -> impl DoubleEndedIterator<Item = Note> {
    let was_discarded = state.life == Life::Dead && state.adopter.is_none();
    let all = state.notes.iter();
    all.filter(move |note| note.kind != NoteKind::Discard || was_discarded)
}

pub(crate) fn note(note: &Note) -> String {
    let (at, kind, by, reason) = (time(note.at), note.kind, &note.by, &note.reason);
    let of = note
        .grant
        .map_or_else(String::new, |grant| format!(" of grant {grant}"));
    format!("{at}: {kind}{of} by {by}: {reason}")
}

/// A session as JSON.
#[derive(Serialize)]
pub(crate) struct SessionJson<'a> {
    session: String,
    state: &'static str,
    lease_left_ms: Option<u64>,
    adopter: Option<String>,
    label: &'a str,
    ended: Option<String>,
    notes: Vec<NoteJson>,
}

/// What was noted for a session, as JSON; without a grant where it is about the whole session.
#[derive(Serialize)]
pub(crate) struct NoteJson {
    at: String,
    kind: &'static str,
    grant: Option<u64>,
    by: String,
    reason: String,
}

impl From<Note> for NoteJson {
    fn from(note: Note) -> Self {
        Self {
            at: time(note.at),
            kind: note.kind.as_str(),
            grant: note.grant,
            by: note.by.to_string(),
            reason: note.reason.to_string(),
        }
    }
}

impl<'a> SessionJson<'a> {
    pub(crate) fn of(state: &'a SessionState, left: Option<Duration>) -> Self {
        Self {
            session: state.session.to_string(),
            state: state.life.as_str(),
            lease_left_ms: left.map(ms),
            adopter: state.adopter.map(|adopter| adopter.to_string()),
            label: state.label.as_str(),
            ended: state.ended.map(time),
            notes: notes(state).map(NoteJson::from).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (seconds, shown) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_725, "1h 2m"),
            (86_400 + 59, "1d"),
            (86_400 * 400 + 7_300, "400d 2h"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), shown);
        }
    }
}
