//! Who holds a key, and what a batch has taken.

use std::time::{Duration, SystemTime};

use etcd_client::KeyValue;
use lockcore::backend::judge::Entry;
use lockcore::backend::rows::Waits;
use lockcore::{Claim, Grant, Holder, Life, LockKey, Mode, OwnerId, SessionState, Waiting, Want};

use super::names::{EXCLUSIVE, Names, SHARED};

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

/// What stands behind the grant in the value of one that waits, and how often it was passed behind that. It is less than what
/// stands there in a holder's, so that one comparison tells the two apart.
const WAITS: char = '.';

/// The value of a claim's holder.
pub(crate) fn holder_value(want: Want, grant: Grant, owner: OwnerId, since_ms: u64) -> String {
    value(want, &grant.to_string(), owner, since_ms)
}

/// The value of one that waits to hold a claim, and was passed so often.
pub(crate) fn waiter_value(
    want: Want,
    grant: Grant,
    owner: OwnerId,
    since_ms: u64,
    passed: u32,
) -> String {
    value(want, &format!("{grant}{WAITS}{passed}"), owner, since_ms)
}

fn value(want: Want, grant: &str, owner: OwnerId, since_ms: u64) -> String {
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

/// That somebody holds exclusively under a grant, by the value, which lies between these. That of one that waits does not.
pub(crate) fn values_of(grant: Grant) -> [String; 2] {
    [format!("{grant}/"), format!("{grant}0")]
}

/// That what stands at a name of a grant's own holds, by the value, which is greater than this.
pub(crate) fn holds_from(grant: Grant, class: u8) -> String {
    let shares = if class == SHARED { SHARES } else { "" };
    format!("{shares}{grant}/")
}

/// That it waits, by the value, which is greater than this, and less than that of whoever [holds](holds_from).
pub(crate) fn waits_from(grant: Grant, class: u8) -> String {
    let shares = if class == SHARED { SHARES } else { "" };
    format!("{shares}{grant}{WAITS}")
}

/// Whether what stands at a name of a grant's own waits.
pub(crate) fn is_waiter(value: &[u8]) -> bool {
    read_value(value).is_some_and(|(_, known)| known.passed.is_some())
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
    /// The revision that has written it last.
    pub(crate) seen: i64,
    /// The revision that has written it first: of those who wait, the place in line.
    made: i64,
}

/// A holder of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    grant: Grant,
    owner: OwnerId,
    since_ms: u64,
    want: Want,
    /// It holds nothing: it waits, and was passed so often.
    passed: Option<u32>,
}

impl Held {
    /// Reads what stands in a range of holders; what has no name of one holds the key that was asked about.
    pub(crate) fn read(names: &Names, asked: &LockKey, found: &KeyValue) -> Self {
        let (key, class, rest) = names
            .read_holder(found.key())
            .unwrap_or_else(|| (asked.clone(), EXCLUSIVE, b"?"));
        let read = read_value(found.value()).filter(|(want, known)| {
            let beside = rest == known.grant.to_string().as_bytes();
            let alone = rest.is_empty() && class == EXCLUSIVE && known.passed.is_none();
            let stands = beside || alone;
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
            seen: found.mod_revision(),
            made: found.create_revision(),
        }
    }

    /// How it stands in line, if it does. Whether it may go was not looked at.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        let passed = self.known?.passed?;
        Some(Waiting {
            place: u64::try_from(self.made).unwrap_or(0),
            passed,
            may_go: false,
        })
    }

    /// Its place in line; of a holder, before all of them.
    pub(crate) fn place(&self) -> u64 {
        self.waiting().map_or(0, |waiting| waiting.place)
    }

    /// The value of one that waits, once it was passed once more.
    pub(crate) fn passed_once_more(&self) -> Option<String> {
        let Known {
            grant,
            owner,
            since_ms,
            want,
            passed,
        } = self.known?;
        let passed = passed?.saturating_add(1);
        Some(waiter_value(want, grant, owner, since_ms, passed))
    }

    /// Whether it counts, if its session is that: one that waits does so only as long as that lives.
    pub(crate) fn is_live(&self, state: &SessionState) -> bool {
        self.known.is_none_or(|known| {
            let lives = known.passed.is_none() || state.life == Life::Living;
            lives && state.is_live(known.grant.n)
        })
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
            waiting: self.waiting(),
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

    fn waits(&self) -> Option<Waits> {
        self.waiting().map(Waits::from)
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
    let grant = match class(want) {
        SHARED => grant.strip_prefix(SHARES)?,
        _ => grant,
    };
    let (grant, passed) = match grant.split_once(WAITS) {
        Some((grant, passed)) => (grant, Some(passed.parse().ok()?)),
        None => (grant, None),
    };
    let grant: Grant = grant.parse().ok()?;
    let session = grant.session;
    let known = Known {
        grant,
        owner: OwnerId { session, m },
        since_ms,
        want,
        passed,
    };
    Some((want, known))
}

/// What a batch has taken, as text: a line for each claim, with `s` or `x` before its key.
pub(crate) fn batch_value(claims: &[Claim]) -> String {
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

/// The holders that a batch has.
pub(crate) fn read_batch(value: &[u8]) -> impl Iterator<Item = (u8, &str)> {
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

#[cfg(test)]
mod tests {
    use lockcore::SessionId;

    use super::*;

    const ID: &str = "0000000000000000000000000000000a";

    fn key(text: &str) -> LockKey {
        LockKey::parse(text).unwrap()
    }

    fn session() -> SessionId {
        ID.parse().unwrap()
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
                want,
                passed: None,
            };
            assert_eq!(read_value(value.as_bytes()), Some((want, known)));
            assert!(!is_waiter(value.as_bytes()), "{value}");
            let value = waiter_value(want, grant, owner, 1_500, 7);
            let passed = Some(7);
            let known = Known { passed, ..known };
            assert_eq!(read_value(value.as_bytes()), Some((want, known)));
            assert!(is_waiter(value.as_bytes()), "{value}");
        }
        for broken in [".", ".x", ".-1", ".1.2", ".4294967296"] {
            let broken = format!("{grant}{broken}/w/4/5");
            assert_eq!(read_value(broken.as_bytes()), None, "{broken}");
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
                let waits = waiter_value(Want::Write, grant(n), owner, 5, 6);
                assert!(waits < from || to < waits, "{n} {other}");
            }
        }
    }

    #[test]
    fn one_comparison_tells_who_waits_from_who_holds() {
        let session = session();
        let (grant, owner) = (Grant { session, n: 3 }, OwnerId { session, m: 4 });
        for want in [Want::Create, Want::Share { limit: None }, Want::Read] {
            let class = class(want);
            let (waits, holds) = (waits_from(grant, class), holds_from(grant, class));
            assert!(waits < holds);
            for passed in [0, 9, u32::MAX] {
                let value = waiter_value(want, grant, owner, 5, passed);
                assert!(waits < value && value < holds, "{value}");
            }
            assert!(holds < holder_value(want, grant, owner, 5));
        }
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let claims = [
            Claim::new(key("s"), Want::Share { limit: None }).unwrap(),
            Claim::new(key("c"), Want::Create).unwrap(),
        ];
        let value = batch_value(&claims);
        let read: Vec<(u8, &str)> = read_batch(value.as_bytes()).collect();
        assert_eq!(read, [(SHARED, "s"), (EXCLUSIVE, "c")]);
        assert_eq!(
            read_batch(b"\nqx\nx").collect::<Vec<_>>(),
            [(EXCLUSIVE, "")]
        );
        assert_eq!(read_batch("éa".as_bytes()).count(), 0);
    }
}
