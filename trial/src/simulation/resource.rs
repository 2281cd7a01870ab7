//! Resources that locks protect: a counter for each key that checks tokens, and one that does not.

use std::collections::BTreeMap;

use lockcore::{FencingToken, LockKey};

#[derive(Debug, Default)]
pub(super) struct Resources {
    counters: BTreeMap<(LockKey, bool), Counter>,
}

#[derive(Debug, Default)]
struct Counter {
    value: u64,
    greatest: u64,
}

impl Resources {
    fn counter(
        &mut self,
        key: &LockKey,
        fenced: bool,
        token: FencingToken,
    ) -> Option<&mut Counter> {
        let counter = self.counters.entry((key.clone(), fenced)).or_default();
        if fenced && token.get() < counter.greatest {
            return None;
        }
        counter.greatest = counter.greatest.max(token.get());
        Some(counter)
    }

    /// The value; `None` if the token is stale. Where tokens are checked, a read counts like a write: whoever reads
    /// shuts out those before him.
    pub(super) fn read(&mut self, key: &LockKey, fenced: bool, token: FencingToken) -> Option<u64> {
        self.counter(key, fenced, token)
            .map(|counter| counter.value)
    }

    /// Writes a value. Whether it was taken.
    pub(super) fn write(
        &mut self,
        key: &LockKey,
        fenced: bool,
        token: FencingToken,
        value: u64,
    ) -> bool {
        let counter = self.counter(key, fenced, token);
        let taken = counter.map(|counter| counter.value = value);
        taken.is_some()
    }
}
