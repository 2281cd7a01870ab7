//! What the client does to claims before any store sees them, so that every store sees and grants the same.

use std::collections::HashSet;

use crate::limits::{MAX_KEYS, MAX_KEYS_BYTES};
use crate::{Claim, Info, Want};

/// Merges claims to the strongest one for each key. A path that is read, and has a path to write at or below it, is
/// written (S with IX is X). The result is in path order, the one global order of all acquirers.
///
/// # Errors
///
/// There is no claim, or there are more claims or bytes than one acquisition takes.
///
/// # Examples
///
/// ```
/// use lockcore::backend::prepare;
/// use lockcore::{Claim, LockPath, Want};
///
/// let read = Claim::read(LockPath::parse("/a").unwrap());
/// let write = Claim::write(LockPath::parse("/a/b").unwrap());
/// let claims = prepare(vec![write, read.clone(), read])?;
/// assert_eq!(claims.len(), 2);
/// assert_eq!((claims[0].key().as_str(), claims[0].want()), ("/a", Want::Write));
/// # Ok::<(), lockcore::PrepareError>(())
/// ```
pub fn prepare(mut claims: Vec<Claim>) -> Result<Vec<Claim>, PrepareError> {
    if claims.is_empty() {
        return Err(PrepareError::Nothing);
    }
    if claims.len() > MAX_KEYS {
        return Err(PrepareError::TooMany {
            claims: claims.len(),
        });
    }
    let bytes = claims.iter().map(|claim| claim.key().as_str().len()).sum();
    if bytes > MAX_KEYS_BYTES {
        return Err(PrepareError::TooLarge { bytes });
    }
    if claims.len() == 1 {
        return Ok(claims);
    }
    // The strongest claim on a key stands first among its equals, so that dedup keeps it.
    claims.sort_unstable_by(|left, right| {
        left.key()
            .cmp(right.key())
            .then_with(|| strength(right.want()).cmp(&strength(left.want())))
    });
    claims.dedup_by(|later, first| later.key() == first.key());
    // Everything below a path stands directly behind it: from the back, a path has a write at or below it exactly if
    // the nearest write behind it is below it.
    let mut write_behind: Option<crate::LockKey> = None;
    for claim in claims.iter_mut().rev() {
        let written_below = write_behind
            .as_ref()
            .is_some_and(|write| claim.key().is_above(write));
        if claim.want() == Want::Read
            && written_below
            && let Some(path) = claim.key().as_path()
        {
            *claim = Claim::write(path);
        }
        if claim.want() == Want::Write {
            write_behind = Some(claim.key().clone());
        }
    }
    Ok(claims)
}

/// Of two claims on one key, the stronger one covers the other.
fn strength(want: Want) -> (u8, u32) {
    match want {
        Want::Read => (0, 0),
        // Of two limits the smaller asks for more.
        Want::Share { limit } => (1, limit.map_or(0, |limit| u32::MAX - limit.get() + 1)),
        Want::Upsert => (2, 0),
        Want::Create => (3, 0),
        Want::Write => (4, 0),
    }
}

/// The number of claims in the next batch: as many as fit into the limits of keys (ancestors included) and of their
/// bytes, and at least one.
pub(crate) fn batch_len(claims: &[Claim], info: &Info) -> usize {
    let (most, most_bytes) = (info.keys_per_batch, info.bytes_per_batch);
    let mut bytes = 0;
    if claims.len() <= 1 || !claims[0].want().is_path() {
        let claims = &claims[..claims.len().min(most.max(1))];
        let too_large = claims.iter().position(|claim| {
            bytes += claim.key().as_str().len();
            bytes > most_bytes
        });
        return too_large.map_or(claims.len(), |at| at.max(1));
    }
    let mut keys: HashSet<&str> = HashSet::new();
    for (at, claim) in claims.iter().enumerate() {
        for key in claim.key().ancestors().chain([claim.key().as_str()]) {
            bytes += if keys.insert(key) { key.len() } else { 0 };
        }
        if (keys.len() > most || bytes > most_bytes) && at > 0 {
            return at;
        }
    }
    claims.len()
}

/// Why claims are no acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// There is no claim.
    #[error("an acquisition has at least one key: name what to lock")]
    Nothing,
    /// More than 1,000,000 claims.
    #[error(
        "an acquisition has at most {MAX_KEYS} keys, this one has {claims}: lock a path above them, or lock in parts"
    )]
    TooMany {
        /// Claims given; counting may have stopped there.
        claims: usize,
    },
    /// More than 64 MiB of keys.
    #[error(
        "the keys of an acquisition have at most {MAX_KEYS_BYTES} bytes, these have {bytes}: lock in parts"
    )]
    TooLarge {
        /// Bytes of all keys given.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::{LockKey, LockPath};

    fn path(want: Want, text: &str) -> Claim {
        Claim::new(LockPath::parse(text).unwrap().into(), want).unwrap()
    }

    fn flat(want: Want, text: &str) -> Claim {
        Claim::new(LockKey::flat(text).unwrap(), want).unwrap()
    }

    fn shown(claims: &[Claim]) -> Vec<String> {
        claims
            .iter()
            .map(|claim| format!("{:?} {}", claim.want(), claim.key()))
            .collect()
    }

    #[test]
    fn reads_above_a_write_are_written_and_others_are_not() {
        let claims = prepare(vec![
            path(Want::Read, "/a"),
            path(Want::Read, "/a!"),
            path(Want::Read, "/a/b"),
            path(Want::Write, "/a/b/c/d"),
            path(Want::Read, "/a/b/x"),
            path(Want::Read, "/a/c"),
            path(Want::Read, "/z"),
            path(Want::Write, "/z"),
        ]);
        assert_eq!(
            shown(&claims.unwrap()),
            [
                "Write /a",
                "Write /a/b",
                "Write /a/b/c/d",
                "Read /a/b/x",
                "Read /a/c",
                "Read /a!",
                "Write /z"
            ]
        );
    }

    #[test]
    fn the_strongest_claim_on_a_key_stays() {
        let limit = |n| Want::Share {
            limit: NonZeroU32::new(n),
        };
        let claims = prepare(vec![
            flat(limit(0), "s"),
            flat(limit(5), "s"),
            flat(limit(3), "s"),
            flat(Want::Upsert, "d"),
        ]);
        assert_eq!(
            claims.unwrap(),
            [flat(Want::Upsert, "d"), flat(limit(3), "s")]
        );
        for (weaker, stronger) in [(0, u32::MAX), (u32::MAX, u32::MAX - 1), (2, 1)] {
            let mut claims = vec![flat(limit(weaker), "s"), flat(limit(stronger), "s")];
            for _ in 0..2 {
                claims.reverse();
                let prepared = prepare(claims.clone()).unwrap();
                assert_eq!(prepared, [flat(limit(stronger), "s")], "and not {weaker}");
            }
        }
    }

    #[test]
    fn bounds_on_both_sides() {
        assert_eq!(prepare(Vec::new()), Err(PrepareError::Nothing));
        let claim = flat(Want::Upsert, "same");
        assert_eq!(prepare(vec![claim.clone(); MAX_KEYS]).unwrap().len(), 1);
        assert_eq!(
            prepare(vec![claim; MAX_KEYS + 1]),
            Err(PrepareError::TooMany {
                claims: MAX_KEYS + 1
            })
        );
        let large = flat(Want::Upsert, &"x".repeat(1024));
        assert_eq!(prepare(vec![large.clone(); 64 * 1024]).unwrap().len(), 1);
        let bytes = 64 * 1024 * 1024 + 1024;
        assert_eq!(
            prepare(vec![large; 64 * 1024 + 1]),
            Err(PrepareError::TooLarge { bytes })
        );
    }

    #[test]
    fn a_batch_counts_claims_and_their_distinct_ancestors() {
        let claims: Vec<Claim> = ["/a/b/1", "/a/b/2", "/a/c"]
            .iter()
            .map(|text| path(Want::Write, text))
            .collect();
        let of = |keys, bytes| {
            let mut info = Info::new("test", "no clock");
            (info.keys_per_batch, info.bytes_per_batch) = (keys, bytes);
            info
        };
        let max = usize::MAX;
        for (keys, len) in [(1, 1), (3, 1), (4, 2), (5, 3), (100, 3)] {
            assert_eq!(batch_len(&claims, &of(keys, max)), len, "{keys} keys");
        }
        // With "/a" and "/a/b", which are counted once.
        for (bytes, len) in [(0, 1), (17, 1), (18, 2), (21, 2), (22, 3)] {
            assert_eq!(batch_len(&claims, &of(100, bytes)), len, "{bytes} bytes");
        }
        let flats: Vec<Claim> = (0..5).map(|n| flat(Want::Upsert, &n.to_string())).collect();
        for (keys, bytes, len) in [(2, max, 2), (9, max, 5), (0, max, 1), (9, 3, 3), (9, 0, 1)] {
            assert_eq!(batch_len(&flats, &of(keys, bytes)), len, "{keys}, {bytes}");
        }
    }
}
