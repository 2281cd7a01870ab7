//! The names of keys, in the order of which everything is found.

use lockcore::backend::Namespace;
use lockcore::{Grant, LockKey, SessionId};

/// Behind every number.
pub(super) const LAST: &str = "~";
/// What holders' names begin with, behind the namespace.
const LOCK: &str = "lock/";
/// So much stands behind a key in the name of a holder, mostly.
const BEHIND: usize = 40;

/// Keys from one on, up to another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    pub(crate) from: Vec<u8>,
    /// Excluded.
    pub(crate) to: Vec<u8>,
}

/// The names of the keys of a namespace.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        Self {
            prefix: format!("{namespace}/"),
        }
    }

    /// The one key that says that this is a namespace of ours, and where its tokens begin.
    pub(crate) fn meta(&self) -> Vec<u8> {
        format!("{}meta", self.prefix).into_bytes()
    }

    /// Everything.
    pub(crate) fn all(&self) -> Range {
        let mut to = self.prefix.clone().into_bytes();
        // The slash in the end, which is not the greatest byte.
        if let Some(last) = to.last_mut() {
            *last += 1;
        }
        Range {
            from: self.prefix.clone().into_bytes(),
            to,
        }
    }

    /// Everything that frees somebody's way when it is removed: holders, sessions and intents.
    pub(crate) fn watched(&self) -> Range {
        Range {
            from: self.locks(),
            to: format!("{}session0", self.prefix).into_bytes(),
        }
    }

    /// The key whose value are the sessions that have news for their owners.
    pub(crate) fn news(&self) -> Vec<u8> {
        format!("{}news", self.prefix).into_bytes()
    }

    /// What all holders' names begin with.
    fn locks(&self) -> Vec<u8> {
        format!("{}{LOCK}", self.prefix).into_bytes()
    }

    /// What a key is called: its `/` come before everything else that may be in a key, so that the store's order is path
    /// order.
    fn of(&self, key: &str) -> Vec<u8> {
        let start = self.prefix.len() + LOCK.len();
        let mut name = Vec::with_capacity(start + key.len() + BEHIND);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(LOCK.as_bytes());
        name.extend_from_slice(key.as_bytes());
        for byte in &mut name[start..] {
            if *byte == b'/' {
                *byte = 1;
            }
        }
        name
    }

    /// Holders of keys that begin with this text.
    pub(crate) fn prefixed(&self, text: &str) -> Range {
        let from = self.of(text);
        let to = if text.is_empty() {
            format!("{}lock0", self.prefix).into_bytes()
        } else {
            let mut to = from.clone();
            // No byte of UTF-8 is the greatest.
            if let Some(last) = to.last_mut() {
                *last += 1;
            }
            to
        };
        Range { from, to }
    }

    /// Who holds a key, in these classes, and whoever holds something below it.
    pub(crate) fn holders(&self, key: &LockKey, classes: Classes, below: bool) -> Range {
        let [mut from, mut to] = [(); 2].map(|()| self.of(key.as_str()));
        from.push(0);
        if classes == Classes::Exclusive {
            from.push(SHARED + 1);
        }
        to.push(if below { 2 } else { 1 });
        Range { from, to }
    }

    /// Where the holder of a claim stands. Who holds a key exclusively stands where everybody does who does so: what was
    /// removed stays in the server's index until it compacts, and is passed over by whoever looks at the key.
    pub(crate) fn holder(&self, grant: Grant, class: u8, key: &str) -> Vec<u8> {
        if class == SHARED {
            self.holder_beside(grant, class, key)
        } else {
            self.class(class, key)
        }
    }

    /// Where it stands beside others of its class.
    pub(crate) fn holder_beside(&self, grant: Grant, class: u8, key: &str) -> Vec<u8> {
        let mut name = self.class(class, key);
        name.extend(grant.to_string().bytes());
        name
    }

    fn class(&self, class: u8, key: &str) -> Vec<u8> {
        let mut name = self.of(key);
        name.extend([0, class]);
        name
    }

    /// What is held by the holder of that name, its class, and what stands behind it; `None` for a name of nobody.
    pub(crate) fn read_holder<'a>(&self, name: &'a [u8]) -> Option<(LockKey, u8, &'a [u8])> {
        let rest = name.strip_prefix(self.locks().as_slice())?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let plain = |byte: &u8| if *byte == 1 { b'/' } else { *byte };
        let key = String::from_utf8(rest[..end].iter().map(plain).collect()).ok()?;
        let key = LockKey::parse(key).ok()?;
        let (class, rest) = rest[end + 1..].split_first().unwrap_or((&EXCLUSIVE, b"?"));
        Some((key, *class, rest))
    }

    /// Everything of every session.
    pub(crate) fn sessions(&self) -> Range {
        Range {
            from: format!("{}session/", self.prefix).into_bytes(),
            to: format!("{}session0", self.prefix).into_bytes(),
        }
    }

    /// Everything of one session but its intent's payload.
    pub(crate) fn session(&self, session: SessionId) -> Range {
        Range {
            from: format!("{}session/{session}/", self.prefix).into_bytes(),
            to: format!("{}session/{session}0", self.prefix).into_bytes(),
        }
    }

    fn part(&self, session: SessionId, part: &str) -> Vec<u8> {
        format!("{}session/{session}/{part}", self.prefix).into_bytes()
    }

    /// Of which session a key is, and which part.
    pub(crate) fn read_session<'a>(&self, name: &'a [u8]) -> Option<(SessionId, &'a str)> {
        let name = std::str::from_utf8(name).ok()?;
        let rest = name
            .strip_prefix(self.prefix.as_str())?
            .strip_prefix("session/")?;
        let (session, part) = rest.split_once('/')?;
        Some((session.parse().ok()?, part))
    }

    /// The key that ends with the lease; its value is the number of the last renewal.
    pub(crate) fn live(&self, session: SessionId) -> Vec<u8> {
        self.part(session, "live")
    }

    pub(crate) fn label(&self, session: SessionId) -> Vec<u8> {
        self.part(session, "label")
    }

    /// What says that there is an intent; its value is the token.
    pub(crate) fn intent(&self, session: SessionId) -> Vec<u8> {
        self.part(session, "intent")
    }

    /// The last adoption number that was used.
    pub(crate) fn adoption(&self, session: SessionId) -> Vec<u8> {
        self.part(session, "adoption")
    }

    /// Who has that adoption.
    pub(crate) fn adopter(&self, session: SessionId) -> Vec<u8> {
        self.part(session, "adopter")
    }

    /// What was noted for its owner.
    pub(crate) fn notes(&self, session: SessionId) -> Vec<u8> {
        self.part(session, "notes")
    }

    /// A range of numbers that are over, by its last one; its value is the first one.
    pub(crate) fn retired(&self, session: SessionId, to: u64) -> Vec<u8> {
        self.part(session, &format!("over/{}", digits(to)))
    }

    /// What stands behind all of those, so that there is always one.
    pub(crate) fn over_last(&self, session: SessionId) -> Vec<u8> {
        self.part(session, &format!("over/{LAST}"))
    }

    /// The ranges that end at a number or behind it: if the values of all of them are greater than it, and there is at
    /// least one, it is not over.
    pub(crate) fn over_from(&self, session: SessionId, n: u64) -> Range {
        Range {
            from: self.retired(session, n),
            to: self.part(session, "over0"),
        }
    }

    /// How long a session lives without a renewal, in milliseconds. It is there until what is left of the session goes by
    /// itself.
    pub(crate) fn ttl(&self, session: SessionId) -> Vec<u8> {
        format!("{}ttl/{session}", self.prefix).into_bytes()
    }

    /// That of all of them.
    pub(crate) fn ttls(&self) -> Range {
        Range {
            from: format!("{}ttl/", self.prefix).into_bytes(),
            to: format!("{}ttl0", self.prefix).into_bytes(),
        }
    }

    /// Of which session that is.
    pub(crate) fn read_ttl(&self, name: &[u8]) -> Option<SessionId> {
        let name = std::str::from_utf8(name).ok()?;
        let rest = name.strip_prefix(self.prefix.as_str())?;
        rest.strip_prefix("ttl/")?.parse().ok()
    }

    /// The payload of an intent.
    pub(crate) fn payload(&self, session: SessionId) -> Vec<u8> {
        format!("{}intent/{session}", self.prefix).into_bytes()
    }

    /// What a batch has taken.
    pub(crate) fn batch(&self, grant: Grant) -> Vec<u8> {
        let Grant { session, n } = grant;
        format!("{}batch/{session}/{}", self.prefix, digits(n)).into_bytes()
    }

    /// What a batch waits for. Those of a session stand behind all that it has taken: who waits has nothing that a store could
    /// forget.
    pub(crate) fn waiting_batch(&self, grant: Grant) -> Vec<u8> {
        let Grant { session, n } = grant;
        format!("{}batch/{session}/{LAST}{}", self.prefix, digits(n)).into_bytes()
    }

    /// All that a session waits for.
    pub(crate) fn waiting_batches(&self, session: SessionId) -> Range {
        Range {
            from: format!("{}batch/{session}/{LAST}", self.prefix).into_bytes(),
            ..self.batches(Some(session))
        }
    }

    /// The batches of a session, or of all, with those that wait.
    pub(crate) fn batches(&self, session: Option<SessionId>) -> Range {
        let prefix = &self.prefix;
        let (from, to) = match session {
            Some(session) => (
                format!("{prefix}batch/{session}/"),
                format!("{prefix}batch/{session}0"),
            ),
            None => (format!("{prefix}batch/"), format!("{prefix}batch0")),
        };
        Range {
            from: from.into_bytes(),
            to: to.into_bytes(),
        }
    }

    pub(crate) fn read_batch(&self, name: &[u8]) -> Option<Batch> {
        let name = std::str::from_utf8(name).ok()?;
        let rest = name
            .strip_prefix(self.prefix.as_str())?
            .strip_prefix("batch/")?;
        let (session, rest) = rest.split_once('/')?;
        let n = rest.strip_prefix(LAST);
        Some(Batch {
            grant: Grant {
                session: session.parse().ok()?,
                n: number(n.unwrap_or(rest).as_bytes())?,
            },
            waits: n.is_some(),
        })
    }
}

/// Whose batch it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) grant: Grant,
    /// It has taken nothing: it waits.
    pub(crate) waits: bool,
}

/// A number whose text sorts as it does.
pub(crate) fn digits(number: u64) -> String {
    format!("{number:020}")
}

/// A number that was written so.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: u64 = text.parse().ok()?;
    (digits(number) == text).then_some(number)
}

/// The value of what stands behind all ranges.
pub(crate) fn last() -> &'static str {
    LAST
}

/// Which holders of a key are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Classes {
    /// All but those that share it.
    Exclusive,
    All,
}

/// The class of those who share a flat key, or read a path.
pub(crate) const SHARED: u8 = 0;
/// The class of those who hold a key exclusively. What has another one is nobody's, and holds it so, too.
pub(super) const EXCLUSIVE: u8 = b'x';

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0000000000000000000000000000000a";

    fn names() -> Names {
        Names::new(&Namespace::parse("fs").unwrap())
    }

    fn key(text: &str) -> LockKey {
        LockKey::parse(text).unwrap()
    }

    fn session() -> SessionId {
        ID.parse().unwrap()
    }

    #[test]
    fn the_stores_order_is_path_order() {
        let names = names();
        let mut keys = [
            "/a", "/a!", "/a/b", "/a/b/c", "/a/b!", "/a-", "/b", "a", "a/b", "a b", "é",
        ]
        .map(key);
        keys.sort();
        let grant = Grant {
            session: session(),
            n: 1,
        };
        let stored = keys
            .each_ref()
            .map(|key| names.holder(grant, EXCLUSIVE, key.as_str()));
        assert!(stored.is_sorted(), "{stored:?}");
    }

    #[test]
    fn a_range_has_who_is_asked_about_and_nobody_else() {
        let names = names();
        let grant = Grant {
            session: session(),
            n: 1,
        };
        let has = |range: &Range, class, key: &str| {
            let stands = [
                names.holder(grant, class, key),
                names.holder_beside(grant, class, key),
            ];
            let has = stands.map(|name| range.from <= name && name < range.to);
            assert_eq!(has[0], has[1], "{key}");
            has[0]
        };
        for below in [false, true] {
            let all = names.holders(&key("/a"), Classes::All, below);
            let exclusive = names.holders(&key("/a"), Classes::Exclusive, below);
            for other in ["/", "/a!", "/ab", "/a b", "/A", "/b"] {
                assert!(
                    !has(&all, SHARED, other) && !has(&all, EXCLUSIVE, other),
                    "{other}"
                );
            }
            assert!(has(&all, SHARED, "/a") && has(&all, EXCLUSIVE, "/a"));
            assert!(!has(&exclusive, SHARED, "/a") && has(&exclusive, EXCLUSIVE, "/a"));
            assert!(
                has(&exclusive, b'z', "/a") && has(&exclusive, 1, "/a"),
                "what nobody knows"
            );
            for under in ["/a/b", "/a/!", "/a/b/c"] {
                assert_eq!(has(&all, SHARED, under), below, "{under}");
                assert_eq!(has(&exclusive, EXCLUSIVE, under), below, "{under}");
            }
        }
    }

    #[test]
    fn a_prefix_has_what_begins_with_it() {
        let names = names();
        let grant = Grant {
            session: session(),
            n: 1,
        };
        for (prefix, key, begins) in [
            ("", "a", true),
            ("/a", "/a", true),
            ("/a", "/a!", true),
            ("/a/", "/a/b", true),
            ("/a/", "/a", false),
            ("/a/", "/a!", false),
            ("é", "éa", true),
            ("é", "e", false),
        ] {
            let range = names.prefixed(prefix);
            let name = names.holder(grant, SHARED, key);
            assert_eq!(
                range.from <= name && name < range.to,
                begins,
                "{prefix:?} {key}"
            );
        }
    }

    #[test]
    fn names_are_read_as_they_were_written() {
        let names = names();
        let grant = Grant {
            session: session(),
            n: u64::MAX,
        };
        let text = grant.to_string();
        for (name, class, rest) in [
            (names.holder(grant, SHARED, "/a/b"), SHARED, text.as_str()),
            (names.holder(grant, EXCLUSIVE, "/a/b"), EXCLUSIVE, ""),
            (
                names.holder_beside(grant, EXCLUSIVE, "/a/b"),
                EXCLUSIVE,
                &text,
            ),
        ] {
            let read = Some((key("/a/b"), class, rest.as_bytes()));
            assert_eq!(names.read_holder(&name), read);
        }
        for (name, class, rest) in [
            (&b"fs/lock/a\0xodd"[..], EXCLUSIVE, &b"odd"[..]),
            (b"fs/lock/a\0", EXCLUSIVE, b"?"),
            (b"fs/lock/a\0\0", SHARED, b""),
        ] {
            let read = Some((key("a"), class, rest));
            assert_eq!(names.read_holder(name), read, "{name:?}");
        }
        for name in [
            &b"fs/lock/a"[..],
            b"fs/lock/\0x",
            b"fs/lock/\xff\0x",
            b"fs/meta",
            b"other/lock/a\0x",
        ] {
            assert_eq!(names.read_holder(name), None, "{name:?}");
        }
        assert_eq!(
            names.read_session(&names.live(session())),
            Some((session(), "live"))
        );
        assert_eq!(names.read_session(b"fs/session/x/live"), None);
        let (batch, waits) = (names.batch(grant), names.waiting_batch(grant));
        for (name, waits) in [(&batch, false), (&waits, true)] {
            assert_eq!(names.read_batch(name), Some(Batch { grant, waits }));
        }
        let waiting = names.waiting_batches(grant.session);
        assert!(batch < waiting.from && waiting.from <= waits && waits < waiting.to);
        let all = names.batches(Some(grant.session));
        assert!(all.from <= batch && waits < all.to);
        for odd in ["fs/batch/x", "fs/batch/~"] {
            assert_eq!(names.read_batch(odd.as_bytes()), None);
        }
    }

    #[test]
    fn numbers_that_are_over_are_found_behind_them() {
        let names = names();
        let range = names.over_from(session(), 7);
        let has = |name: &[u8]| range.from.as_slice() <= name && name < range.to.as_slice();
        assert!(has(&names.retired(session(), 7)) && has(&names.retired(session(), u64::MAX)));
        assert!(has(&names.over_last(session())) && !has(&names.retired(session(), 6)));
        assert!(digits(u64::MAX).as_str() < last() && digits(9) < digits(10));
        assert_eq!(number(b"00000000000000000007"), Some(7));
        for odd in [
            &b"7"[..],
            b"+0000000000000000007",
            b"99999999999999999999",
            b"\xff",
        ] {
            assert_eq!(number(odd), None, "{odd:?}");
        }
    }
}
