//! What the ratios say.

use std::fmt::Write as _;

use serde::Serialize;

/// A figure is worse when the median of its ratios exceeds this, twice.
pub(super) const LIMIT: f64 = 1.05;

/// What was found of everything.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) ours: String,
    pub(super) against: String,
    pub(super) rounds: usize,
    /// Whether the rounds are enough to say that something is worse.
    pub(super) decides: bool,
    pub(super) limit: f64,
    pub(super) figures: Vec<Figure>,
}

/// One figure of one store.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    pub(super) store: String,
    pub(super) figure: String,
    verdict: Verdict,
    first: Ratios,
    /// Of a second run, which there is if the first was worse.
    second: Option<Ratios>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Worse,
    Same,
    Better,
}

/// Ours to theirs, round by round.
#[derive(Debug, Serialize)]
struct Ratios {
    median: f64,
    least: f64,
    greatest: f64,
    rounds: Vec<f64>,
}

/// The median; no number, if there is none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted[..] {
        [] => f64::NAN,
        _ if sorted.len() % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

impl Ratios {
    fn of(rounds: Vec<f64>) -> Self {
        Self {
            median: median(&rounds),
            least: rounds.iter().copied().fold(f64::NAN, f64::min),
            greatest: rounds.iter().copied().fold(f64::NAN, f64::max),
            rounds,
        }
    }

    fn verdict(&self) -> Verdict {
        if self.median < 1.0 / LIMIT {
            Verdict::Better
        } else if self.median <= LIMIT {
            Verdict::Same
        } else {
            // Also what is no number.
            Verdict::Worse
        }
    }

    fn text(&self) -> String {
        let Self {
            median,
            least,
            greatest,
            ..
        } = self;
        format!("{median:.3} ({least:.3}–{greatest:.3})")
    }
}

impl Figure {
    pub(super) fn new(store: &str, figure: String, ratios: Vec<f64>) -> Self {
        let first = Ratios::of(ratios);
        Self {
            store: store.to_owned(),
            figure,
            verdict: first.verdict(),
            first,
            second: None,
        }
    }

    /// What a second run says: worse is only what was worse in both.
    pub(super) fn again(&mut self, ratios: Vec<f64>) {
        let second = Ratios::of(ratios);
        if second.verdict() != Verdict::Worse {
            self.verdict = Verdict::Same;
        }
        self.second = Some(second);
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }
}

impl Outcome {
    /// What is worse.
    pub(super) fn worse(&self) -> Vec<String> {
        let worse = self
            .figures
            .iter()
            .filter(|it| it.verdict == Verdict::Worse);
        worse
            .map(|it| format!("{}: {}", it.store, it.figure))
            .collect()
    }

    /// A table in Markdown.
    pub(super) fn table(&self) -> String {
        let mut table = format!(
            "{} to {}: what each takes of time, medians of {} rounds (least–greatest)\n\n\
             | store | figure | ratio | second run | verdict |\n|---|---|---|---|---|\n",
            self.ours, self.against, self.rounds
        );
        for it in &self.figures {
            let verdict = match it.verdict {
                Verdict::Worse => "**worse**",
                Verdict::Same => "same",
                Verdict::Better => "better",
            };
            let second = it.second.as_ref().map(Ratios::text).unwrap_or_default();
            let (store, figure, first) = (&it.store, &it.figure, it.first.text());
            let _ = writeln!(
                table,
                "| {store} | {figure} | {first} | {second} | {verdict} |"
            );
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(ratios: &[f64]) -> Figure {
        Figure::new("redis", "pair".to_owned(), ratios.to_vec())
    }

    fn outcome(figures: Vec<Figure>) -> Outcome {
        Outcome {
            ours: "a".to_owned(),
            against: "b".to_owned(),
            rounds: 7,
            decides: true,
            limit: LIMIT,
            figures,
        }
    }

    #[test]
    fn the_median_decides() {
        for (ratios, verdict) in [
            (&[1.05, 1.05, 9.0][..], Verdict::Same),
            (&[1.051, 1.051, 0.1], Verdict::Worse),
            (&[1.04, 1.07], Verdict::Worse),
            (&[0.953, 0.953, 2.0], Verdict::Same),
            (&[0.952, 0.952, 2.0], Verdict::Better),
            (&[f64::NAN; 3], Verdict::Worse),
            (&[], Verdict::Worse),
        ] {
            assert_eq!(figure(ratios).verdict(), verdict, "{ratios:?}");
        }
    }

    #[test]
    fn worse_is_only_what_is_worse_twice() {
        for (second, verdict) in [
            (&[1.06; 3][..], Verdict::Worse),
            (&[1.04; 3], Verdict::Same),
            (&[0.5; 3], Verdict::Same),
            (&[], Verdict::Worse),
        ] {
            let mut figure = figure(&[1.2; 3]);
            figure.again(second.to_vec());
            assert_eq!(figure.verdict(), verdict, "{second:?}");
        }
    }

    #[test]
    fn the_table_and_the_json_say_what_is_worse() {
        let mut worse = figure(&[1.2, 1.1, 1.3]);
        worse.again(vec![1.25; 3]);
        let outcome = outcome(vec![worse, figure(&[1.0; 3])]);
        assert_eq!(outcome.worse(), ["redis: pair"]);
        let table = outcome.table();
        let row = "| redis | pair | 1.200 (1.100–1.300) | 1.250 (1.250–1.250) | **worse** |";
        assert!(table.contains(row), "{table}");
        let json = serde_json::to_value(&outcome).unwrap();
        assert_eq!(json["figures"][0]["verdict"], "worse");
        assert_eq!(json["figures"][0]["first"]["median"], 1.2);
        assert_eq!(json["figures"][1]["verdict"], "same");
    }
}
