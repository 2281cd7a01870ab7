//! Session ids, grants, owners, tokens, ranges, labels and names of modes.
//!
//! - a text that is read is written again as it was, so a value has one spelling, and different texts are different
//!   values;
//! - a value that is written is read as it was;
//! - ranges are taken exactly if they rise and stand apart, and contain what they say.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use lockcore::backend::Ranges;
use lockcore::{FencingToken, Grant, Label, Mode, OwnerId, SessionId};

pub(crate) fn hold(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        for line in text.split('\n') {
            spelling::<SessionId>(line);
            spelling::<Grant>(line);
            spelling::<OwnerId>(line);
            spelling::<FencingToken>(line);
            spelling::<Ranges>(line);
            if let Ok(label) = Label::parse(line) {
                assert_eq!(label.as_str(), line);
            }
            if let Some(mode) = Mode::from_name(line) {
                assert_eq!(mode.as_str(), line);
            }
        }
    }
    let numbers: Vec<u64> = data
        .chunks_exact(8)
        .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes")))
        .collect();
    for numbers in numbers.windows(3) {
        let session = SessionId::new(u128::from(numbers[0]) << 64 | u128::from(numbers[1]));
        let (n, m) = (numbers[2], numbers[2]);
        round_trip(&session);
        round_trip(&Grant { session, n });
        round_trip(&OwnerId { session, m });
    }
    for number in &numbers {
        let token = FencingToken::new(*number);
        assert_eq!(token.is_some(), *number < 1 << 63);
        token.iter().for_each(round_trip);
    }
    ranges(&numbers);
    // Small numbers touch and overlap more often than large ones.
    ranges(&data.iter().copied().map(u64::from).collect::<Vec<_>>());
}

fn spelling<T: FromStr + Display>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string(), text);
    }
}

fn round_trip<T: FromStr<Err: Debug> + Display + Debug + PartialEq>(value: &T) {
    let text = value.to_string();
    assert_eq!(text.parse::<T>().as_ref().ok(), Some(value), "{text}");
}

fn ranges(numbers: &[u64]) {
    let (pairs, _) = numbers.as_chunks::<2>();
    let pairs: Vec<(u64, u64)> = pairs.iter().map(|[from, to]| (*from, *to)).collect();
    let rising = pairs.iter().all(|(from, to)| from <= to);
    let apart = pairs
        .iter()
        .zip(pairs.iter().skip(1))
        .all(|((_, end), (from, _))| from.checked_sub(*end).is_some_and(|gap| gap > 1));
    let taken = Ranges::new(pairs.clone());
    assert_eq!(taken.is_ok(), rising && apart, "{pairs:?}");
    let Ok(ranges) = taken else {
        return;
    };
    round_trip(&ranges);
    assert_eq!(ranges.as_slice(), pairs);
    for end in numbers {
        for number in [end.wrapping_sub(1), *end, end.wrapping_add(1)] {
            let inside = pairs
                .iter()
                .any(|(from, to)| (from..=to).contains(&&number));
            assert_eq!(ranges.contains(number), inside, "{number} in {ranges}");
        }
    }
}
