//! Which part is next, and how much time it has.

use std::time::Duration;

/// What a part that has not run yet wants.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    /// Less time than this is too little for it.
    pub(super) least: Duration,
    /// More than this is of no use to it.
    pub(super) full: Duration,
    /// When it ran last, in seconds since 1970, on whatever commit.
    pub(super) last: Option<u64>,
}

/// The next part and its share of the time that is left; without a limit that is all it can use. `None` if there is too
/// little time for each of them.
///
/// Those that ran longest ago come first, and as many of them get their least time as it suffices for. What is over is
/// shared by what each could use.
pub(super) fn next(wishes: &[Wish], left: Option<Duration>) -> Option<(usize, Duration)> {
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by_key(|at| wishes[*at].last);
    let Some(left) = left else {
        let first = *order.first()?;
        return Some((first, wishes[first].full));
    };
    let mut retired = left;
    order.retain(|at| match retired.checked_sub(wishes[*at].least) {
        Some(rest) => {
            retired = rest;
            true
        }
        None => false,
    });
    let more = |at: usize| wishes[at].full.saturating_sub(wishes[at].least);
    let first = *order.first()?;
    let wanted: Duration = order.iter().map(|at| more(*at)).sum();
    let part = if wanted > retired {
        retired.as_secs_f64() / wanted.as_secs_f64()
    } else {
        1.0
    };
    Some((first, wishes[first].least + more(first).mul_f64(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn minutes(n: u64) -> Duration {
        Duration::from_secs(n * 60)
    }

    fn wish(least: u64, full: u64, last: Option<u64>) -> Wish {
        Wish {
            least: minutes(least),
            full: minutes(full),
            last,
        }
    }

    #[test]
    fn who_ran_longest_ago_is_first_and_who_never_did_before_that() {
        let mut wishes = vec![
            wish(1, 1, Some(7)),
            wish(1, 1, Some(3)),
            wish(1, 1, None),
            wish(1, 1, Some(5)),
        ];
        let mut order = Vec::new();
        for _ in 0..4 {
            let (at, _) = next(&wishes, Some(minutes(10))).unwrap();
            order.push(wishes.remove(at).last);
        }
        assert_eq!(order, [None, Some(3), Some(5), Some(7)]);
        assert!(next(&wishes, Some(minutes(10))).is_none());
    }

    #[test]
    fn shares_never_exceed_the_time_and_use_it() {
        let mut wishes = vec![wish(2, 30, None), wish(5, 5, None), wish(1, 61, None)];
        let mut left = minutes(52);
        let mut shares = Vec::new();
        while let Some((at, share)) = next(&wishes, Some(left)) {
            left -= share;
            shares.push(share);
            wishes.remove(at);
        }
        // 44 minutes over, of 28 and 60 that are wanted: the half.
        assert_eq!(shares, [minutes(16), minutes(5), minutes(31)]);
        assert_eq!(left, Duration::ZERO);
    }

    #[test]
    fn more_time_than_all_can_use_is_not_used() {
        let wishes = [wish(2, 30, None), wish(1, 60, None)];
        for left in [Some(minutes(90)), Some(minutes(900)), None] {
            assert_eq!(next(&wishes, left), Some((0, minutes(30))));
        }
    }

    #[test]
    fn what_does_not_fit_is_left_and_first_the_next_time() {
        let wishes = [wish(20, 20, Some(1)), wish(5, 5, Some(2))];
        assert_eq!(next(&wishes, Some(minutes(10))), Some((1, minutes(5))));
        assert_eq!(next(&wishes[..1], Some(minutes(5))), None);
        let wishes = [wish(20, 20, Some(1)), wish(5, 5, Some(3))];
        assert_eq!(next(&wishes, Some(minutes(20))), Some((0, minutes(20))));
    }
}
