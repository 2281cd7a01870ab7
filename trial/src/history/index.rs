//! Keys as numbers, claims as what they hold, and positions in a history.

use std::collections::{BTreeMap, HashMap};

use lockcore::{Claim, LockKey, Mode};

/// A point of a history: events have numbers from 1, and what is at a time before every event of that time has 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Pos {
    pub(super) at: u64,
    pub(super) number: usize,
}

impl Pos {
    /// The instant itself: before whatever happens then.
    pub(super) fn instant(at: u64) -> Self {
        Self { at, number: 0 }
    }
}

/// The keys that a history names, and what is above each.
#[derive(Debug, Default)]
pub(super) struct Keys {
    ids: HashMap<LockKey, usize>,
    keys: Vec<LockKey>,
    above: Vec<Vec<usize>>,
}

impl Keys {
    pub(super) fn id(&mut self, key: &LockKey) -> usize {
        if let Some(id) = self.ids.get(key) {
            return *id;
        }
        let above = key
            .ancestors()
            .map(|above| LockKey::parse(above).expect("what is above a path is a path"))
            .collect::<Vec<_>>()
            .iter()
            .map(|above| self.id(above))
            .collect();
        let id = self.keys.len();
        self.ids.insert(key.clone(), id);
        self.keys.push(key.clone());
        self.above.push(above);
        id
    }

    /// The number of a key that the history names.
    pub(super) fn find(&self, key: &LockKey) -> Option<usize> {
        self.ids.get(key).copied()
    }

    pub(super) fn key(&self, id: usize) -> &LockKey {
        &self.keys[id]
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// What claims of one acquisition hold: on each key, and on each key above, one mode.
    pub(super) fn casts(&mut self, claims: &[Claim]) -> Vec<Cast> {
        let mut casts: BTreeMap<usize, Cast> = BTreeMap::new();
        for claim in claims {
            let want = claim.want();
            let id = self.id(claim.key());
            let above = want.above().map(|mode| (self.above[id].as_slice(), mode));
            let (above, mode) = above.unwrap_or((&[], Mode::IS));
            for (key, mode) in above
                .iter()
                .map(|key| (*key, mode))
                .chain([(id, want.mode())])
            {
                let cast = Cast {
                    key,
                    mode,
                    reenters: want.reenters(),
                    share: !want.is_path() && want.mode() == Mode::IS,
                    limit: want.limit().map(std::num::NonZeroU32::get),
                };
                let entry = casts.entry(key).or_insert(cast);
                entry.mode = join(entry.mode, mode);
                entry.limit = entry.limit.into_iter().chain(cast.limit).min();
                // An exclusive claim covers a share, and one that never re-enters covers one that does.
                entry.share &= cast.share;
                entry.reenters &= cast.reenters;
            }
        }
        casts.into_values().collect()
    }
}

/// One key as an acquisition holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cast {
    pub(super) key: usize,
    pub(super) mode: Mode,
    /// Holders of the same owner are no obstacle.
    pub(super) reenters: bool,
    /// It is a share of a flat key, perhaps limited.
    pub(super) share: bool,
    pub(super) limit: Option<u32>,
}

/// The weakest mode that is both.
pub(super) fn join(left: Mode, right: Mode) -> Mode {
    match (left, right) {
        (Mode::S, Mode::IX) | (Mode::IX, Mode::S) => Mode::X,
        _ => left.max(right),
    }
}
