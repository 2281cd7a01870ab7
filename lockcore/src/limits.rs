//! Every limit of the library, in one place. Each is tested on both sides.

use std::time::Duration;

/// The longest [`LockKey`](crate::LockKey), in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 1_024;
/// The most components of a [`LockPath`](crate::LockPath).
pub const MAX_PATH_COMPONENTS: usize = 64;
/// The most claims of one acquisition, counted before duplicates are merged.
pub const MAX_KEYS: usize = 1_000_000;
/// The most bytes of keys of one acquisition, counted before duplicates are merged.
pub const MAX_KEYS_BYTES: usize = 64 * 1024 * 1024;
/// The longest name of a [`Namespace`](crate::backend::Namespace), in bytes.
pub const MAX_NAMESPACE_BYTES: usize = 48;
/// The largest payload of an [`Intent`](crate::Intent), in bytes.
pub const MAX_INTENT_BYTES: usize = 64 * 1024;
/// The longest [`Label`](crate::Label), in bytes of UTF-8.
pub const MAX_LABEL_BYTES: usize = 256;
/// The most bytes of [`Notes`](crate::Notes) in a session's record, as stored. Beyond that the oldest notes are
/// dropped.
pub const MAX_NOTES_BYTES: usize = 4 * 1024;
/// The greatest token that a store gives out. 64 times as much, the [token](crate::FencingToken) of a guard, still
/// fits. A client accepts no greater one.
pub const MAX_STORE_TOKEN: u64 = (1 << 57) - 1;
/// The longest time between two renewals of a session, whatever its TTL. So the owner learns of a note at most this
/// much later.
pub const MAX_RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest time to live of a session; a store may need more.
pub const MIN_TTL: Duration = Duration::from_secs(1);
/// The longest time to live of a session.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The time to live of a session unless the program chooses another.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The least time between a guard's deadline and the end of its lease by the store's time.
pub const MIN_MARGIN: Duration = Duration::from_millis(250);
/// The most refused claims that a [`Busy`](crate::Busy) names, and the most holders that it names for each.
pub const MAX_LISTED: usize = 16;
/// The most waiters of one key that have a place in the line. Further waiters poll without a place until one is free.
pub const MAX_WAITERS: usize = 1_000;
/// The most paths that an owner may hold below those of one batch, on stores that read each of them.
pub const MAX_OWN_BELOW: usize = 50_000;
/// The most ranges of [retired](crate::Ranges) numbers in a session. Beyond that, new attempts go to a fresh session.
pub const MAX_OVER_RANGES: usize = 1_000;
/// The least time for which the record of a dead session without an intent is kept, so that a late `open` of its id is
/// refused. A [sweep of everything](crate::Sweep::All) removes it after that.
pub const TOMBSTONE_KEPT: Duration = MAX_TTL;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_those_of_the_documents() {
        assert_eq!(MAX_KEYS_BYTES, 67_108_864);
        assert_eq!(MAX_INTENT_BYTES, 65_536);
        assert_eq!(MAX_NOTES_BYTES, 4_096);
        assert_eq!(MAX_STORE_TOKEN, 144_115_188_075_855_871);
        assert_eq!(MAX_OWN_BELOW, 50_000);
        assert_eq!(MAX_TTL.as_secs(), 86_400);
    }
}
