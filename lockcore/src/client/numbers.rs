//! The numbers of a session: those issued, and those of them that are retired.

use std::collections::BTreeSet;

use crate::{Incarnation, Ranges};

/// Numbers are issued from 1, rising. A number that was issued and is no longer live is retired. The retired numbers
/// are derived from the live ones, so none can be forgotten.
#[derive(Debug)]
pub(crate) struct Numbers {
    next: u64,
    live: BTreeSet<u64>,
    /// The live numbers that the store has granted, and whose release nobody has begun.
    granted: BTreeSet<u64>,
    /// The incarnation of the store, which has all of these grants.
    incarnation: Incarnation,
    /// How many ranges the retired numbers form.
    ranges: usize,
}

impl Numbers {
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        Self {
            next: 1,
            live: BTreeSet::new(),
            granted: BTreeSet::new(),
            incarnation,
            ranges: 0,
        }
    }

    /// Issues a new number, which is live.
    pub(crate) fn begin(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.live.insert(number);
        number
    }

    /// Retires the number for good. Returns whether it was live.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        if !self.live.remove(&number) {
            return false;
        }
        self.granted.remove(&number);
        let retired =
            |number: u64| number >= 1 && number < self.next && !self.live.contains(&number);
        self.ranges =
            self.ranges + 1 - usize::from(retired(number - 1)) - usize::from(retired(number + 1));
        true
    }

    /// The number that follows all that were issued.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The incarnation that requests are meant for.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The store has granted the number to a request that was meant for this incarnation. Returns whether that is still
    /// the store's: the grant of another one may be forgotten.
    pub(crate) fn grant(&mut self, number: u64, incarnation: Incarnation) -> bool {
        let stands = incarnation == self.incarnation;
        if stands {
            self.granted.insert(number);
        }
        stands
    }

    /// Its release begins.
    pub(crate) fn let_go(&mut self, number: u64) {
        self.granted.remove(&number);
    }

    /// Whether the store has granted the number, and nobody has begun to release it.
    pub(crate) fn is_granted(&self, number: u64) -> bool {
        self.granted.contains(&number)
    }

    /// All granted numbers.
    pub(crate) fn granted(&self) -> Ranges {
        Ranges::of(self.granted.iter().copied())
    }

    /// Whether the release of one of these numbers, all of which were granted, has begun.
    pub(crate) fn gave_back(&self, granted: &Ranges) -> bool {
        let mut ranges = granted.as_slice().iter();
        ranges.any(|(from, to)| self.granted.range(from..=to).count() as u64 != to - from + 1)
    }

    /// The store of this incarnation has all of these grants. If there are no others, it becomes the session's. Returns
    /// whether it did.
    pub(crate) fn moves(&mut self, incarnation: Incarnation, granted: &Ranges) -> bool {
        let all = self.granted.iter().all(|number| granted.contains(*number));
        if all {
            self.incarnation = incarnation;
        }
        all
    }

    /// How many ranges are over: at most one more than numbers live.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges
    }

    /// Whether every live number is one of these.
    pub(crate) fn are_all_of(&self, numbers: &BTreeSet<u64>) -> bool {
        self.live.is_subset(numbers)
    }

    /// All retired numbers.
    pub(crate) fn retired(&self) -> Ranges {
        Ranges::except(self.live.iter().copied(), self.next)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn the_count_of_ranges_is_the_ranges_counted() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut numbers = Numbers::new(Incarnation::UNKNOWN);
        for _ in 0..2_000 {
            if rng.random_range(0..3) > 0 {
                numbers.begin();
            } else {
                let number = rng.random_range(0..numbers.next + 1);
                let lived = numbers.live.contains(&number);
                assert_eq!(numbers.end(number), lived);
                assert!(!numbers.live.contains(&number));
            }
            assert_eq!(numbers.ranges(), numbers.retired().as_slice().len());
            assert!(numbers.ranges() <= numbers.live.len() + 1);
        }
    }

    #[test]
    fn a_session_moves_with_all_that_was_granted_or_not_at_all() {
        let [one, two] = [1, 2].map(Incarnation::new);
        let mut numbers = Numbers::new(one);
        let [kept, given_back, late, asked] = std::array::from_fn(|_| numbers.begin());
        assert!(numbers.grant(kept, one) && numbers.grant(given_back, one));
        numbers.let_go(given_back);
        let granted = numbers.granted();
        assert_eq!(
            granted.to_string(),
            "1-1",
            "what is being released may be gone"
        );
        assert!(numbers.grant(late, one));
        assert!(
            !numbers.moves(two, &granted),
            "one more was granted meanwhile"
        );
        assert_eq!(numbers.incarnation(), one);
        numbers.end(late);
        assert!(numbers.moves(two, &granted));
        assert_eq!(numbers.incarnation(), two);
        assert!(!numbers.grant(asked, one), "it was meant for the other");
        assert_eq!(numbers.granted(), granted);
    }
}
