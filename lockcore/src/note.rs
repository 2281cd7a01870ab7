//! [`Note`]: a message of an operator, or of another program, to the owner of a session.

use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::Label;
use crate::limits::MAX_NOTES_BYTES;
use crate::session::decimal;

/// The characters that are percent-encoded in the texts of a note, separators included.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// The subject of a [`Note`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoteKind {
    /// The grant is to be given up. The client does so when it reads this: its guard is lost from then on.
    Evict,
    /// Somebody else would like to have the keys that the grant holds.
    Ask,
    /// The grant is a leadership in an election. Its reason is the token of the guard, and its author is the leader.
    Lead,
    /// The session is revoked.
    Revoke,
    /// The unfinished change of the session is discarded.
    Discard,
}

const KINDS: [(NoteKind, &str); 5] = [
    (NoteKind::Evict, "evict"),
    (NoteKind::Ask, "ask"),
    (NoteKind::Lead, "lead"),
    (NoteKind::Revoke, "revoke"),
    (NoteKind::Discard, "discard"),
];

impl NoteKind {
    /// Its name, as stored and printed.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let found = KINDS.iter().find(|(kind, _)| *kind == self);
        found.map_or("", |(_, name)| name)
    }
}

impl fmt::Display for NoteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A note in a session's record: an order to its owner, or a record of what was done to the session, with author and
/// reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// The subject.
    pub kind: NoteKind,
    /// The number of the grant; `None` if the note is about the whole session.
    pub grant: Option<u64>,
    /// The author, for example host, process id and program.
    pub by: Label,
    /// The reason. May be empty.
    pub reason: Label,
    /// The time by the author's clock, in whole milliseconds. For people.
    pub at: SystemTime,
}

impl Note {
    /// A note about a whole session.
    #[must_use]
    pub fn new(kind: NoteKind, by: Label, reason: Label, at: SystemTime) -> Self {
        Self {
            kind,
            grant: None,
            by,
            reason,
            at: since_1970(milliseconds(at)),
        }
    }

    /// The same note, about the grant with this number.
    #[must_use]
    pub fn about(self, grant: u64) -> Self {
        Self {
            grant: Some(grant),
            ..self
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('/');
        let mut field = || fields.next();
        let (name, grant, at, by, reason) = (field()?, field()?, field()?, field()?, field()?);
        let (kind, _) = KINDS.iter().find(|(_, known)| *known == name)?;
        Some(Self {
            kind: *kind,
            grant: match grant {
                "" => None,
                grant => Some(decimal(grant)?),
            },
            by: decoded(by)?,
            reason: decoded(reason)?,
            at: since_1970(decimal(at)?),
        })
    }
}

/// The stored form: five fields, separated by slashes.
impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let encoded = |label: &Label| utf8_percent_encode(label.as_str(), ENCODED).to_string();
        write!(f, "{}/", self.kind)?;
        if let Some(grant) = self.grant {
            write!(f, "{grant}")?;
        }
        let (at, by, reason) = (
            milliseconds(self.at),
            encoded(&self.by),
            encoded(&self.reason),
        );
        write!(f, "/{at}/{by}/{reason}")
    }
}

fn decoded(text: &str) -> Option<Label> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    Label::parse(&*text).ok()
}

fn milliseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn since_1970(milliseconds: u64) -> SystemTime {
    let since = Duration::from_millis(milliseconds);
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}

/// The notes in a session's record, oldest first, as stored: separated by blanks. Notes that this version does not
/// understand are kept, and skipped.
///
/// ```
/// use std::time::UNIX_EPOCH;
/// use lockcore::{Label, Note, NoteKind, Notes};
///
/// # fn main() -> Result<(), lockcore::LabelError> {
/// let note = Note::new(NoteKind::Evict, Label::parse("ops")?, Label::parse("it hangs")?, UNIX_EPOCH).about(3);
/// let mut notes = Notes::default();
/// notes.add(&note);
/// assert_eq!(notes.as_str(), "evict/3/0/ops/it%20hangs");
/// assert_eq!(notes.iter().collect::<Vec<_>>(), [note]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Notes(String);

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Notes {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::stored(text))
    }
}

impl Notes {
    /// Takes notes as they are stored.
    #[must_use]
    pub fn stored(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The stored form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there are no notes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a note. The oldest notes are dropped if all together would have more than 4 KiB.
    pub fn add(&mut self, note: &Note) {
        let blank = if self.is_empty() { "" } else { " " };
        let _ = write!(self.0, "{blank}{note}");
        while self.0.len() > MAX_NOTES_BYTES
            && let Some((_, rest)) = self.0.split_once(' ')
        {
            self.0 = rest.to_owned();
        }
    }

    /// The notes that this version understands, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Note> {
        self.0.split(' ').filter_map(Note::parse)
    }

    /// The latest note of this kind about the whole session.
    #[must_use]
    pub fn last(&self, kind: NoteKind) -> Option<Note> {
        self.iter()
            .rev()
            .find(|note| note.kind == kind && note.grant.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: NoteKind, by: &str, reason: &str) -> Note {
        let [by, reason] = [by, reason].map(|text| Label::parse(text).unwrap());
        Note::new(kind, by, reason, UNIX_EPOCH + Duration::from_micros(1_500))
    }

    #[test]
    fn what_is_noted_is_read_again() {
        let longest = "€".repeat(85);
        let mut notes = Notes::default();
        assert!(notes.is_empty() && notes.iter().next().is_none());
        let written: Vec<Note> = KINDS
            .iter()
            .flat_map(|(kind, _)| {
                [
                    note(*kind, "", "").about(7),
                    note(*kind, "a/b c%20", "d e/%"),
                ]
            })
            .chain([note(NoteKind::Ask, &longest, &longest).about(u64::MAX)])
            .collect();
        for note in &written {
            notes.add(note);
        }
        assert_eq!(notes.iter().collect::<Vec<_>>(), written);
        assert_eq!(Notes::stored(notes.as_str()), notes);
        assert_eq!(
            notes.last(NoteKind::Revoke),
            Some(note(NoteKind::Revoke, "a/b c%20", "d e/%"))
        );
    }

    #[test]
    fn what_is_not_understood_is_kept_and_passed_over() {
        let mut notes =
            Notes::stored("new/1/2/3/4 evict evict/x/1/a/b evict/1/1/%0a/b evict//1/a/b");
        notes.add(&note(NoteKind::Ask, "a", "b"));
        let kinds: Vec<_> = notes.iter().map(|note| note.kind).collect();
        assert_eq!(kinds, [NoteKind::Evict, NoteKind::Ask]);
        assert!(notes.as_str().starts_with("new/1/2/3/4 "));
    }

    #[test]
    fn the_oldest_go() {
        let mut notes = Notes::default();
        let long = "x".repeat(256);
        for n in 1..=100 {
            notes.add(&note(NoteKind::Ask, "", &long).about(n));
            assert!(notes.as_str().len() <= MAX_NOTES_BYTES);
        }
        let numbers: Vec<_> = notes.iter().filter_map(|note| note.grant).collect();
        let first = 101 - u64::try_from(numbers.len()).unwrap();
        assert_eq!(numbers, (first..=100).collect::<Vec<_>>());
        assert!(numbers.len() >= 10);
        // One that is as long as any can be fits.
        let longest = "€".repeat(85);
        notes.add(&note(NoteKind::Discard, &longest, &longest).about(u64::MAX));
        assert!(notes.iter().any(|note| note.grant == Some(u64::MAX)));
    }
}
