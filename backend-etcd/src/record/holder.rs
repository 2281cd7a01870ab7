//! Who holds a key, and what a step has taken.

use std::time::{Duration, SystemTime};

use etcd_client::KeyValue;
use lockcore::backend::judge::Entry;
use lockcore::{Claim, Grant, Holder, Life, LockKey, Mode, OwnerId, SessionState, Want};

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
}
