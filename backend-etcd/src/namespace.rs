//! The namespace: which one it is, where its tokens begin, and whether the store is still the one that it was made in.

use std::time::SystemTime;

use etcd_client::{Compare, CompareOp, KvClient, Txn, TxnOp};
use lockcore::backend::Incarnation;
use lockcore::{Error, ErrorKind, FencingToken, Operation};

use crate::error::{Phase, found, from_etcd, odd_answer};

/// What the namespace's own key begins with: the version of the stored shape.
const VERSION: &str = "lockkeeper 4 ";
/// What that of an older one begins with.
const OLDER: [&[u8]; 3] = [b"lockkeeper 1 ", b"lockkeeper 2 ", b"lockkeeper 3 "];
const IS_OLDER: &str = "the namespace is of an older version: use another namespace, or have a program of that version \
                        remove it when nobody uses it any more";
const IS_ANOTHER: &str =
    "the namespace is of another version: use another namespace, or a newer lockkeeper";
/// The base of the tokens is a time in milliseconds, shifted by so many bits.
const BASE_SHIFT: u32 = 10;
/// How often the namespace is looked for again, where others make or remove it meanwhile.
pub(crate) const LOOKS: usize = 5;
pub(crate) const NEVER_THERE: &str = "the namespace is made and removed again and again";

/// Where the tokens of a namespace begin: at a time, with the revision of the key that says so; and in which cluster. One that
/// is restored from a snapshot has another name, or its revisions have gone back: whoever notices begins the tokens anew,
/// so that all others notice it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) revision: i64,
    pub(crate) cluster: u64,
    created_ms: u64,
}

impl Base {
    /// `None` for what no namespace of this version says.
    fn read(value: &[u8], revision: i64) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let (created_ms, cluster) = text.strip_prefix(VERSION)?.split_once(' ')?;
        let created_ms: u64 = created_ms.parse().ok()?;
        // Below that the tokens of any number of revisions fit.
        (created_ms < 1 << 50).then_some(Self {
            revision,
            cluster: u64::from_str_radix(cluster, 16).ok()?,
            created_ms,
        })
    }

    /// What a namespace says whose tokens begin then, in that cluster.
    fn value(created_ms: u64, cluster: u64) -> String {
        format!("{VERSION}{created_ms} {cluster:x}")
    }

    /// What is begun anew is another one.
    pub(crate) fn incarnation(self) -> Incarnation {
        Incarnation::new(u128::from(self.created_ms) << 64 | u128::from(self.cluster))
    }

    /// The token of what was written with that revision.
    pub(crate) fn token(self, revision: i64) -> Option<FencingToken> {
        let since = u64::try_from(revision.checked_sub(self.revision)?).ok()?;
        (self.created_ms << BASE_SHIFT)
            .checked_add(since)
            .and_then(FencingToken::new)
    }
}

/// How far a store was, as somebody has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) base: Base,
    pub(crate) revision: i64,
}

impl Heard {
    /// The last token that may have been given out.
    pub(crate) fn reach(self) -> u64 {
        self.base.token(self.revision).map_or(0, FencingToken::get)
    }

    /// Of what was begun anew meanwhile nothing is known.
    pub(crate) fn is_older_than(self, other: Self) -> bool {
        self.base == other.base && self.revision < other.revision
    }

    /// A time behind that of every token up to there.
    fn after(self) -> u64 {
        (self.reach() >> BASE_SHIFT) + 1
    }
}

/// The namespace, after it was made if need be; in a store that is another one, or has gone back behind what was heard of
/// before, after it was begun anew.
pub(crate) async fn found_or_made(
    operation: Operation,
    kv: &mut KvClient,
    meta: Vec<u8>,
    before: Option<Heard>,
) -> Result<Base, Error> {
    let failed = |error| from_etcd(operation, Phase::Connecting, error);
    for _ in 0..LOOKS {
        let mut got = kv.get(meta.clone(), None).await.map_err(failed)?;
        let header = got.header().ok_or_else(|| odd_answer(operation))?;
        let (cluster, revision) = (header.cluster_id(), header.revision());
        let mut created_ms = unix_ms().max(before.map_or(0, Heard::after));
        let mut seen = 0;
        if let Some(meta) = got.take_kvs().first() {
            let base = Base::read(meta.value(), meta.mod_revision()).ok_or_else(|| {
                let is_older = OLDER.iter().any(|begins| meta.value().starts_with(begins));
                let what = if is_older { IS_OLDER } else { IS_ANOTHER };
                found(ErrorKind::Config, operation, what)
            })?;
            let here = Heard { base, revision };
            let goes_on = before.is_none_or(|before| before.reach() <= here.reach());
            if goes_on && base.cluster == cluster {
                return Ok(base);
            }
            (seen, created_ms) = (base.revision, created_ms.max(here.after()));
        }
        let unchanged = Compare::mod_revision(meta.clone(), CompareOp::Equal, seen);
        let put = TxnOp::put(meta.clone(), Base::value(created_ms, cluster), None);
        let txn = Txn::new().when([unchanged]).and_then([put]);
        kv.txn(txn).await.map_err(failed)?;
    }
    Err(found(ErrorKind::Unavailable, operation, NEVER_THERE))
}

/// The wall clock, for people, and for the base of tokens.
pub(crate) fn unix_ms() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "people read it; and tokens begin above those of a namespace of that name that is gone"
    )]
    let now = SystemTime::now();
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greater_base_is_above_every_older_token() {
        let base = Base {
            revision: 100,
            cluster: 7,
            created_ms: 5,
        };
        assert_eq!(base.token(99), None);
        let tokens = [100, 101, 5_000_000].map(|revision| base.token(revision).unwrap());
        assert!(tokens.is_sorted());
        let revision = 5_000_000;
        let newer = Base {
            revision: 3,
            cluster: 7,
            created_ms: Heard { base, revision }.after(),
        };
        assert!(newer.token(3).unwrap() > tokens[2]);
        // It is another incarnation, and so is the same one of another cluster.
        let elsewhere = Base { cluster: 8, ..base };
        let names = [base, newer, elsewhere].map(Base::incarnation);
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
    }

    #[test]
    fn a_namespace_is_read_as_it_was_written() {
        let value = Base::value(5, u64::MAX);
        let base = Base {
            revision: 9,
            cluster: u64::MAX,
            created_ms: 5,
        };
        assert_eq!(Base::read(value.as_bytes(), 9), Some(base));
        for other in [
            "",
            "lockkeeper 4 5",
            "lockkeeper 1 5 a",
            "lockkeeper 3 5 a",
            "lockkeeper 5 5 a",
            "lockkeeper 4 x a",
            "lockkeeper 4 5 x",
        ] {
            assert_eq!(Base::read(other.as_bytes(), 9), None, "{other:?}");
        }
    }
}
