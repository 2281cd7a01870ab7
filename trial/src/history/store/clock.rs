//! The store's clock, as far as a history knows it.

/// The store's clock: that of the history, and its steps.
#[derive(Default)]
pub(super) struct Clock {
    offset: i128,
    /// For each step, when it was, and the offset before and after it.
    steps: Vec<(u64, i128, i128)>,
}

impl Clock {
    pub(super) fn step(&mut self, at: u64, by: i64) {
        let after = self.offset + i128::from(by);
        self.steps.push((at, self.offset, after));
        self.offset = after;
    }

    pub(super) fn now(&self, at: u64) -> i128 {
        i128::from(at) + self.offset
    }

    /// The latest and the earliest that it showed between two instants.
    pub(super) fn between(&self, from: u64, to: u64) -> (i128, i128) {
        let first = self.steps.partition_point(|(at, ..)| *at < from);
        let steps = &self.steps[first..];
        let begin = steps.first().map_or(self.offset, |(_, before, _)| *before);
        let mut range = (self.now(to), i128::from(from) + begin);
        for (at, before, after) in steps {
            for offset in [before, after] {
                let shown = i128::from(*at) + offset;
                range = (range.0.max(shown), range.1.min(shown));
            }
        }
        (range.0, range.1.min(self.now(to)))
    }
}
