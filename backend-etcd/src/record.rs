//! The stored shape: keys and values, and what a key is that cannot be understood.

use std::time::{Duration, SystemTime};

use etcd_client::KeyValue;
use lockcore::backend::judge::Entry;
use lockcore::backend::{Namespace, Ranges, Registered};
use lockcore::{
    Claim, FencingToken, Grant, Holder, Intent, Label, Life, LockKey, Mode, OwnerId, SessionId,
    SessionState, Want,
};

/// Nobody, where a session is named; before every session's name.
pub(crate) const NOBODY: &str = "-";
/// Behind every number.
const LAST: &str = "~";
/// What holders' names begin with, behind the namespace.
const LOCK: &str = "lock/";
/// So much stands behind a key in the name of a holder, mostly.
const BEHIND: usize = 40;

/// Keys from one on, up to another one.
#[derive(Debug, Clone, PartialEq, Eq)]
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

    /// How long it lives without a renewal, in milliseconds.
    pub(crate) fn ttl(&self, session: SessionId) -> Vec<u8> {
        self.part(session, "ttl")
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

    /// A range of numbers that are over, by its last one; its value is the first one.
    pub(crate) fn over(&self, session: SessionId, to: u64) -> Vec<u8> {
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
            from: self.over(session, n),
            to: self.part(session, "over0"),
        }
    }

    /// The payload of an intent.
    pub(crate) fn payload(&self, session: SessionId) -> Vec<u8> {
        format!("{}intent/{session}", self.prefix).into_bytes()
    }

    /// What a step has taken.
    pub(crate) fn step(&self, grant: Grant) -> Vec<u8> {
        let Grant { session, n } = grant;
        format!("{}step/{session}/{}", self.prefix, digits(n)).into_bytes()
    }

    /// The steps of a session, or of all.
    pub(crate) fn steps(&self, session: Option<SessionId>) -> Range {
        let prefix = &self.prefix;
        let (from, to) = match session {
            Some(session) => (
                format!("{prefix}step/{session}/"),
                format!("{prefix}step/{session}0"),
            ),
            None => (format!("{prefix}step/"), format!("{prefix}step0")),
        };
        Range {
            from: from.into_bytes(),
            to: to.into_bytes(),
        }
    }

    pub(crate) fn read_step(&self, name: &[u8]) -> Option<Grant> {
        let name = std::str::from_utf8(name).ok()?;
        let rest = name
            .strip_prefix(self.prefix.as_str())?
            .strip_prefix("step/")?;
        let (session, n) = rest.split_once('/')?;
        Some(Grant {
            session: session.parse().ok()?,
            n: number(n.as_bytes())?,
        })
    }
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
const EXCLUSIVE: u8 = b'x';

/// The class of a claim's holder.
pub(crate) fn class(want: Want) -> u8 {
    match want {
        Want::Share { .. } | Want::Read => SHARED,
        Want::Create | Want::Upsert | Want::Write => EXCLUSIVE,
    }
}

/// What the value of a holder begins with that shares its key. It is greater than how any other begins, so that one comparison
/// says of a whole range that all who are there share.
const SHARES: &str = "~";

/// What is less than the value of everybody who shares, and greater than any other holder's.
pub(crate) fn shares_from() -> &'static str {
    SHARES
}

/// The value of a claim's holder.
pub(crate) fn holder_value(want: Want, grant: Grant, owner: OwnerId, since_ms: u64) -> String {
    let letter = match want {
        Want::Create => 'c',
        Want::Upsert => 'u',
        Want::Share { .. } => 's',
        Want::Write => 'w',
        Want::Read => 'r',
    };
    let shares = if class(want) == SHARED { SHARES } else { "" };
    format!("{shares}{grant}/{letter}/{}/{since_ms}", owner.m)
}

/// That a holder is a grant's, by its value, which lies between these.
pub(crate) fn values_of(grant: Grant) -> [String; 2] {
    [format!("{grant}/"), format!("{grant}0")]
}

/// Somebody who holds a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    /// The name of the holder's key.
    pub(crate) name: Vec<u8>,
    /// What is held.
    pub(crate) key: LockKey,
    /// `None` for a foreign one, which nobody can judge.
    known: Option<Known>,
    mode: Mode,
}

/// A holder of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    grant: Grant,
    owner: OwnerId,
    since_ms: u64,
}

impl Held {
    /// Reads what stands in a range of holders; what has no name of one holds the key that was asked about.
    pub(crate) fn read(names: &Names, asked: &LockKey, found: &KeyValue) -> Self {
        let (key, class, rest) = names
            .read_holder(found.key())
            .unwrap_or_else(|| (asked.clone(), EXCLUSIVE, b"?"));
        let read = read_value(found.value()).filter(|(want, known)| {
            let beside = rest == known.grant.to_string().as_bytes();
            let stands = beside || (rest.is_empty() && class == EXCLUSIVE);
            stands && self::class(*want) == class && want.is_path() == key.is_path()
        });
        let (known, mode) = match read {
            Some((want, known)) => (Some(known), want.mode()),
            None if class == SHARED && key.is_path() => (None, Mode::S),
            None if class == SHARED => (None, Mode::IS),
            None => (None, Mode::X),
        };
        Self {
            name: found.key().to_vec(),
            key,
            known,
            mode,
        }
    }

    /// Whether it is one of ours that shares its key or reads it.
    pub(crate) fn shares(&self) -> bool {
        self.known.is_some() && self.mode.beside(self.mode)
    }

    /// As the traits say it, holding that key in that mode, with the state of its session.
    pub(crate) fn holder(&self, key: &LockKey, mode: Mode, state: Option<&SessionState>) -> Holder {
        let (label, life) = match (self.known, state) {
            (Some(_), Some(state)) => (state.label.to_string(), state.life),
            (Some(_), None) => (String::new(), Life::Living),
            (None, _) => (
                "a record of another writer, or of a newer version".to_owned(),
                Life::Living,
            ),
        };
        let since = self
            .known
            .map(|known| Duration::from_millis(known.since_ms));
        Holder {
            key: key.clone(),
            grant: self.known.map(|known| known.grant),
            owner: self.known.map(|known| known.owner),
            mode,
            label,
            since: since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)),
            life,
        }
    }
}

impl Entry for Held {
    fn grant(&self) -> Option<Grant> {
        self.known.map(|known| known.grant)
    }

    fn owner(&self) -> Option<OwnerId> {
        self.known.map(|known| known.owner)
    }

    fn mode(&self) -> Mode {
        self.mode
    }
}

fn read_value(value: &[u8]) -> Option<(Want, Known)> {
    let mut fields = std::str::from_utf8(value).ok()?.rsplitn(4, '/');
    let since_ms = fields.next()?.parse().ok()?;
    let m = fields.next()?.parse().ok()?;
    let want = match fields.next()? {
        "c" => Want::Create,
        "u" => Want::Upsert,
        "s" => Want::Share { limit: None },
        "w" => Want::Write,
        "r" => Want::Read,
        _ => return None,
    };
    let grant = fields.next()?;
    let grant: Grant = match class(want) {
        SHARED => grant.strip_prefix(SHARES)?.parse().ok()?,
        _ => grant.parse().ok()?,
    };
    let session = grant.session;
    let known = Known {
        grant,
        owner: OwnerId { session, m },
        since_ms,
    };
    Some((want, known))
}

/// What a step has taken, as text: a line for each claim, with `s` or `x` before its key.
pub(crate) fn step_value(claims: &[Claim]) -> String {
    let lines = claims.iter().map(|claim| {
        let class = if class(claim.want()) == SHARED {
            's'
        } else {
            'x'
        };
        format!("{class}{}", claim.key())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The holders that a step has.
pub(crate) fn read_step(value: &[u8]) -> impl Iterator<Item = (u8, &str)> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.split('\n').filter_map(|line| {
        let key = line.get(1..)?;
        match line.as_bytes()[0] {
            b's' => Some((SHARED, key)),
            b'x' => Some((EXCLUSIVE, key)),
            _ => None,
        }
    })
}

/// A session, as its keys tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) state: SessionState,
    /// The number of its last renewal; of one that lives.
    pub(crate) live: Option<u64>,
    /// How long it lives without one.
    pub(crate) ttl: Duration,
    /// Its ranges of numbers that are over, as they stand.
    pub(crate) over: Vec<(u64, u64)>,
    /// It is dead, and what is left of it goes by itself.
    pub(crate) buried: bool,
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
                ttl: Duration::ZERO,
                over: Vec::new(),
                buried: false,
            }),
        )
    }

    fn try_read(names: &Names, session: SessionId, found: &[KeyValue]) -> Option<Self> {
        let (mut label, mut live, mut buried, mut intent) = (None, None, false, false);
        let mut ttl = Duration::ZERO;
        let (mut adoption, mut adopter, mut over) = (0, None, Vec::new());
        for pair in found {
            let (_, part) = names.read_session(pair.key())?;
            let text = std::str::from_utf8(pair.value()).ok()?;
            match part {
                "label" => {
                    label = Some(Label::parse(text).ok()?);
                    buried = pair.lease() != 0;
                }
                "live" => live = Some(number(pair.value())?),
                "ttl" => ttl = Duration::from_millis(text.parse().ok()?),
                "intent" => intent = true,
                "adoption" => adoption = text.parse().ok()?,
                "adopter" if text == NOBODY => {}
                "adopter" => adopter = Some(text.parse().ok()?),
                _ => {
                    let to = part.strip_prefix("over/")?;
                    if to != LAST {
                        over.push((number(pair.value())?, number(to.as_bytes())?));
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
        state.over = merged(&over);
        (state.adoption, state.adopter) = (adoption, adopter);
        Some(Self {
            state,
            live,
            ttl,
            over,
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
        assert_eq!(names.read_step(&names.step(grant)), Some(grant));
        assert_eq!(names.read_step(b"fs/step/x"), None);
    }

    #[test]
    fn numbers_that_are_over_are_found_behind_them() {
        let names = names();
        let range = names.over_from(session(), 7);
        let has = |name: &[u8]| range.from.as_slice() <= name && name < range.to.as_slice();
        assert!(has(&names.over(session(), 7)) && has(&names.over(session(), u64::MAX)));
        assert!(has(&names.over_last(session())) && !has(&names.over(session(), 6)));
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
    fn a_value_is_a_holder_or_nobody() {
        let grant = Grant {
            session: session(),
            n: 3,
        };
        let owner = OwnerId {
            session: session(),
            m: 4,
        };
        for want in [
            Want::Create,
            Want::Upsert,
            Want::Share { limit: None },
            Want::Write,
            Want::Read,
        ] {
            let value = holder_value(want, grant, owner, 1_500);
            let known = Known {
                grant,
                owner,
                since_ms: 1_500,
            };
            assert_eq!(read_value(value.as_bytes()), Some((want, known)));
        }
        for broken in [
            "", "w", "w/4", "w/4/5", "W/4/5", "w/-4/5", "w/4/x", "w/4/5/6", "{}",
        ] {
            for broken in [broken.to_owned(), format!("{grant}/{broken}")] {
                let odd = broken != format!("{grant}/w/4/5");
                assert_eq!(read_value(broken.as_bytes()).is_none(), odd, "{broken}");
            }
        }
        assert_eq!(read_value(b"\xff"), None);
    }

    #[test]
    fn one_comparison_tells_those_who_share_from_all_others() {
        let session = session();
        let (grant, owner) = (Grant { session, n: 3 }, OwnerId { session, m: 4 });
        for (want, shares) in [
            (Want::Create, false),
            (Want::Upsert, false),
            (Want::Share { limit: None }, true),
            (Want::Write, false),
            (Want::Read, true),
        ] {
            let value = holder_value(want, grant, owner, 5);
            assert_eq!(value.as_str() > shares_from(), shares, "{value}");
            // It says so twice, and alike.
            let other = match value.strip_prefix(SHARES) {
                Some(rest) => rest.to_owned(),
                None => format!("{SHARES}{value}"),
            };
            assert_eq!(read_value(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_value_is_between_those_of_its_grant_and_of_no_other() {
        let grant = |n| Grant {
            session: session(),
            n,
        };
        let owner = OwnerId {
            session: session(),
            m: 4,
        };
        for n in [1, 2, 9, 10, 11, 19, 100, u64::MAX] {
            let value = holder_value(Want::Write, grant(n), owner, 5);
            for other in [1, 2, 9, 10, 11, 19, 100, u64::MAX] {
                let [from, to] = values_of(grant(other));
                assert_eq!(from < value && value < to, n == other, "{n} {other}");
            }
        }
    }

    #[test]
    fn a_step_is_read_as_it_was_written() {
        let claims = [
            Claim::new(key("s"), Want::Share { limit: None }).unwrap(),
            Claim::new(key("c"), Want::Create).unwrap(),
        ];
        let value = step_value(&claims);
        let read: Vec<(u8, &str)> = read_step(value.as_bytes()).collect();
        assert_eq!(read, [(SHARED, "s"), (EXCLUSIVE, "c")]);
        assert_eq!(read_step(b"\nqx\nx").collect::<Vec<_>>(), [(EXCLUSIVE, "")]);
        assert_eq!(read_step("éa".as_bytes()).count(), 0);
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
