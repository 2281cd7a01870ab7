//! [`Ranges`]: the retired numbers of a session.

use std::fmt;
use std::str::FromStr;

use crate::session::decimal;

/// A set of numbers, as rising ranges that neither touch nor overlap: the *retired* numbers of a session. They hold
/// nothing, whatever a lock record says.
///
/// # Examples
///
/// ```
/// use lockcore::backend::Ranges;
///
/// let over: Ranges = "1-4,7-7".parse()?;
/// assert!(over.contains(3) && !over.contains(5) && over.contains(7));
/// assert_eq!(over.to_string(), "1-4,7-7");
/// assert!("1-4,5-7".parse::<Ranges>().is_err(), "one set has one spelling");
/// # Ok::<(), lockcore::backend::RangesError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// The empty set.
    pub const EMPTY: Ranges = Ranges(Vec::new());

    /// The set of these ranges, both ends included.
    ///
    /// # Errors
    ///
    /// The ranges do not rise, touch or overlap, or one of them ends before it begins.
    pub fn new(ranges: Vec<(u64, u64)>) -> Result<Self, RangesError> {
        let rising = ranges.iter().all(|(from, to)| from <= to);
        let apart = ranges
            .windows(2)
            .all(|pair| pair[0].1 < u64::MAX && pair[0].1 + 1 < pair[1].0);
        if rising && apart {
            Ok(Self(ranges))
        } else {
            Err(RangesError)
        }
    }

    /// The numbers from 1 up to `next`, the end excluded, that are not among the `live` ones. These must rise.
    #[must_use]
    pub fn except(live: impl IntoIterator<Item = u64>, next: u64) -> Self {
        let mut ranges = Vec::new();
        let mut from = 1;
        for number in live {
            debug_assert!(
                number >= from && number < next,
                "live numbers rise and were given out"
            );
            if number > from {
                ranges.push((from, number - 1));
            }
            from = number + 1;
        }
        if next > from {
            ranges.push((from, next - 1));
        }
        Self(ranges)
    }

    /// The set of these numbers. They must rise.
    #[must_use]
    pub fn of(numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some((_, to)) if number.checked_sub(1) == Some(*to) => *to = number,
                last => {
                    debug_assert!(last.is_none_or(|(_, to)| *to < number), "numbers rise");
                    ranges.push((number, number));
                }
            }
        }
        Self(ranges)
    }

    /// Whether the set contains the number.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= number);
        after > 0 && self.0[after - 1].1 >= number
    }

    /// The ranges, rising, both ends included.
    #[must_use]
    pub fn as_slice(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (from, to)) in self.0.iter().enumerate() {
            write!(f, "{}{from}-{to}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Ranges {
    type Err = RangesError;

    fn from_str(text: &str) -> Result<Self, RangesError> {
        if text.is_empty() {
            return Ok(Self::EMPTY);
        }
        let range = |part: &str| {
            let (from, to) = part.split_once('-')?;
            Some((decimal(from)?, decimal(to)?))
        };
        Self::new(
            text.split(',')
                .map(range)
                .collect::<Option<_>>()
                .ok_or(RangesError)?,
        )
    }
}

/// The ranges do not rise, touch or overlap, or the text is no list of ranges such as `1-4,7-7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a list of rising, separate ranges such as 1-4,7-7")]
pub struct RangesError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_numbers_has_the_fewest_ranges() {
        for (numbers, text) in [
            (vec![], ""),
            (vec![3], "3-3"),
            (vec![1, 2, 4, 5, 6, 9], "1-2,4-6,9-9"),
            (
                vec![0, u64::MAX],
                "0-0,18446744073709551615-18446744073709551615",
            ),
        ] {
            let ranges = Ranges::of(numbers);
            assert_eq!(ranges.to_string(), text);
            assert_eq!(text.parse::<Ranges>().unwrap(), ranges);
        }
    }

    #[test]
    fn except_is_the_complement_of_the_live_numbers() {
        for (live, next, text) in [
            (vec![], 1, ""),
            (vec![], 5, "1-4"),
            (vec![1], 2, ""),
            (vec![1], 3, "2-2"),
            (vec![2, 3, 7], 9, "1-1,4-6,8-8"),
            (vec![1, 2, 3], 4, ""),
        ] {
            let ranges = Ranges::except(live.iter().copied(), next);
            assert_eq!(ranges.to_string(), text);
            assert_eq!(text.parse::<Ranges>().unwrap(), ranges);
            for number in 0..next + 2 {
                let retired = number >= 1 && number < next && !live.contains(&number);
                assert_eq!(ranges.contains(number), retired, "{number} in {text:?}");
            }
        }
    }

    #[test]
    fn only_the_empty_set_is_empty() {
        assert!(Ranges::EMPTY.is_empty());
        assert!(!Ranges::new(vec![(1, 1)]).unwrap().is_empty());
    }

    #[test]
    fn one_set_has_one_spelling() {
        for text in [
            "1-2,3-4", "3-1", "1-4,2-9", "5-6,1-2", "1-", "-1", "1-2,", ",", "01-2", "+1-2",
            "1 - 2",
        ] {
            assert_eq!(text.parse::<Ranges>(), Err(RangesError), "{text:?}");
        }
    }
}
