//! The numbers of a session: which are given out, and which of those are over.

use std::collections::BTreeSet;

use crate::Ranges;

/// Numbers are given out from 1, rising; one that is given out and not live any more is over. What is over is derived
/// from what lives, so it cannot be forgotten.
#[derive(Debug)]
pub(crate) struct Numbers {
    next: u64,
    live: BTreeSet<u64>,
    /// How many ranges the numbers that are over form.
    ranges: usize,
}

impl Numbers {
    pub(crate) fn new() -> Self {
        Self {
            next: 1,
            live: BTreeSet::new(),
            ranges: 0,
        }
    }

    /// A new number, which lives.
    pub(crate) fn begin(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.live.insert(number);
        number
    }

    /// The number is over, for good. Whether it lived.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        if !self.live.remove(&number) {
            return false;
        }
        let over = |number: u64| number >= 1 && number < self.next && !self.live.contains(&number);
        self.ranges =
            self.ranges + 1 - usize::from(over(number - 1)) - usize::from(over(number + 1));
        true
    }

    /// How many ranges are over: at most one more than numbers live.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges
    }

    /// How many numbers live.
    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }

    /// All numbers that are over.
    pub(crate) fn over(&self) -> Ranges {
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
        let mut numbers = Numbers::new();
        for _ in 0..2_000 {
            if rng.random_range(0..3) > 0 {
                numbers.begin();
            } else {
                let number = rng.random_range(0..numbers.next + 1);
                let lived = numbers.live.contains(&number);
                assert_eq!(numbers.end(number), lived);
                assert!(!numbers.live.contains(&number));
            }
            assert_eq!(numbers.ranges(), numbers.over().as_slice().len());
            assert!(numbers.ranges() <= numbers.live.len() + 1);
        }
    }
}
