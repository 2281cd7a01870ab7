//! [`Case`], and its [`Failure`].

use std::borrow::Cow;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use crate::fixture::{Feature, Space};
use crate::journal::Journal;
use crate::lateness::Lateness;
use crate::law::Law;
use crate::scene::Scene;
use crate::verdict::{Judged, Verdict, Wrong, within};

/// The layer that a case tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// The traits themselves.
    Backend,
    /// The client, [`lockcore::Locks`], on top of them.
    Client,
    /// The client, in several processes.
    Processes,
}

type Run = dyn Fn(Scene) -> LocalBoxFuture<'static, Verdict> + Send + Sync;

/// A promise of every store, and a test of it.
#[derive(Clone)]
pub struct Case {
    layer: Layer,
    group: &'static str,
    law: Law,
    name: Cow<'static, str>,
    run: Arc<Run>,
}

/// A store that takes this long for one request keeps no session of the shortest TTL alive.
const SLOW: Duration = Duration::from_millis(500);

/// The longest time that a case may take by tokio's clock, besides the TTLs that it waits for.
const LIMIT: Duration = Duration::from_secs(60);

impl Case {
    pub(crate) fn new(
        layer: Layer,
        group: &'static str,
        law: Law,
        name: impl Into<Cow<'static, str>>,
        run: impl Fn(Scene) -> LocalBoxFuture<'static, Verdict> + Send + Sync + 'static,
    ) -> Self {
        Self {
            layer,
            group,
            law,
            name: name.into(),
            run: Arc::new(run),
        }
    }

    /// The layer that the case tests.
    #[must_use]
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// The subject of the case.
    #[must_use]
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// The law that the case checks; the first one, if it checks several.
    #[must_use]
    pub fn law(&self) -> Law {
        self.law
    }

    /// What the case needs that a store or a fixture may lack.
    #[must_use]
    pub fn needs(&self) -> Option<Feature> {
        Feature::needed(self.layer, self.group, &self.name)
    }

    /// The name of the case in its group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the case in a fresh space. Its random choices follow from the seed.
    ///
    /// It ends within a minute and a few of the store's shortest TTLs by tokio's clock. A backend that blocks its
    /// thread can be stopped only from outside, as [`check`](crate::check) does. The future stays on its thread: run it
    /// with `block_on`.
    ///
    /// # Errors
    ///
    /// The store breaks the law, does not answer, or the run was inconclusive: see [`FailureKind`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the case. Do not use the space again.
    pub async fn run(&self, space: Arc<dyn Space>, seed: u64) -> Result<(), Failure> {
        let notes = Notes {
            journal: Journal::default(),
            lateness: Lateness::measured(),
            paused: false,
            begun: Instant::now(),
        };
        self.run_noting(space, seed, &notes).await
    }

    /// As [`run`](Self::run), with notes that the caller can read meanwhile.
    pub(crate) async fn run_noting(
        &self,
        space: Arc<dyn Space>,
        seed: u64,
        notes: &Notes,
    ) -> Result<(), Failure> {
        let lateness = notes.excuses();
        let scene = Scene::new(space, seed, notes.journal.clone());
        let limit = LIMIT + scene.longest_wait().await;
        let case = AssertUnwindSafe((self.run)(scene)).catch_unwind();
        let unpassed = match within(limit, "the case", case).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(unpassed))) | Err(unpassed) => unpassed,
            Ok(Err(panic)) => Wrong(format!("panicked: {}", panic_text(&*panic))),
        };
        Err(self.failure(unpassed.judged(&lateness), seed, notes))
    }

    pub(crate) fn failure(&self, judged: Judged, seed: u64, notes: &Notes) -> Failure {
        let slowest = notes.journal.slowest();
        let (kind, law, what) = match judged {
            Judged::Broken(law, what)
                if !notes.paused
                    && slowest >= SLOW
                    && matches!(law.unwrap_or(self.law), Law::Guard | Law::Waiting) =>
            {
                let what = format!("{what}; the store took {slowest:?} for a request");
                (FailureKind::Inconclusive, None, what)
            }
            Judged::Broken(law, what) => (FailureKind::Broken, law, what),
            Judged::Late(law, what) => (FailureKind::Late, law, what),
            Judged::Lacking => {
                let need = self.needs();
                let what = format!(
                    "the store or the fixture lacks {need:?}: let `Fixture::lacks` name it"
                );
                (FailureKind::Lacking, None, what)
            }
            Judged::Inconclusive(what) => (FailureKind::Inconclusive, None, what),
        };
        Failure {
            case: self.to_string(),
            kind,
            law: law.unwrap_or(self.law),
            what,
            late: (!notes.paused).then(|| notes.lateness.since(notes.begun)),
            seed,
            events: notes.journal.shown(),
        }
    }
}

/// Notes that are made while a case runs.
#[derive(Clone)]
pub(crate) struct Notes {
    pub(crate) journal: Journal,
    pub(crate) lateness: Lateness,
    pub(crate) paused: bool,
    pub(crate) begun: Instant,
}

impl Notes {
    /// What may excuse a case for being late by its own clock; nothing if that is paused.
    fn excuses(&self) -> Lateness {
        if self.paused {
            Lateness::default()
        } else {
            self.lateness.clone()
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "no text"
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.group, self.name)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("layer", &self.layer)
            .field("group", &self.group)
            .field("law", &self.law)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What a case has shown about a store that did not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The store breaks a law.
    Broken,
    /// Something came later than its time limit, and the machine was late by less. This may be chance on a busy server,
    /// or behind a pooler that serves others first. [`main`](crate::main) runs the case again, and fails if each of
    /// three runs ends this way.
    Late,
    /// Nothing. A request failed with an error of kind [`Unavailable`](lockcore::ErrorKind::Unavailable),
    /// [`Indeterminate`](lockcore::ErrorKind::Indeterminate), [`Unauthorized`](lockcore::ErrorKind::Unauthorized) or
    /// [`Config`](lockcore::ErrorKind::Config); or the fixture failed; or a time limit was missed by no more than the
    /// machine was late; or a guard ended, or a waiter waited too long, while the store took half a second for a
    /// request. [`main`](crate::main) runs the case again, and fails if three runs are inconclusive.
    Inconclusive,
    /// Nothing: the store or the fixture lacks what the case [needs](Case::needs), and [`Fixture::lacks`] does not name it.
    ///
    /// [`Fixture::lacks`]: crate::Fixture::lacks
    Lacking,
}

impl FailureKind {
    /// Whether another run may end otherwise.
    pub(crate) fn may_be_chance(self) -> bool {
        matches!(self, Self::Late | Self::Inconclusive)
    }
}

/// The failure of a store in a case.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Group and name of the case.
    pub case: String,
    /// Whether a law is broken.
    pub kind: FailureKind,
    /// The broken law; for an inconclusive case, the law that it checks.
    pub law: Law,
    /// What was seen, and what should have been.
    pub what: String,
    /// How late the machine was during the case, in total: how much too late a thread woke that sleeps for a few
    /// milliseconds again and again. `None` with paused time, when nobody is late.
    pub late: Option<Duration>,
    /// The seed of the case's random choices.
    pub seed: u64,
    /// Every request and every answer, in order; if there are very many, the last ones.
    pub events: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FailureKind::Broken => writeln!(f, "{}: broken: {}", self.case, self.law)?,
            FailureKind::Late => writeln!(f, "{}: late: {}", self.case, self.law)?,
            FailureKind::Lacking => writeln!(f, "{}: lacking: {}", self.case, self.law)?,
            FailureKind::Inconclusive => writeln!(
                f,
                "{}: inconclusive: no law is seen broken, nor kept ({})",
                self.case, self.law
            )?,
        }
        writeln!(f, "{}", self.what)?;
        if let Some(late) = self.late.filter(|late| !late.is_zero()) {
            writeln!(f, "the machine was {late:?} late, in all")?;
        }
        if self.kind == FailureKind::Inconclusive {
            writeln!(
                f,
                "see whether the store can be reached, and run it again on a quieter machine"
            )?;
        }
        let repeats = match self.late {
            Some(_) => {
                "what the case chose by chance, and neither the order in which tasks ran nor the store's timing"
            }
            None => "the whole run: time is paused",
        };
        writeln!(
            f,
            "seed {}: {}={} repeats {repeats}",
            self.seed,
            crate::run::SEED,
            self.seed
        )?;
        writeln!(f, "events:")?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_stands_still_breaks_no_law_of_time() {
        let told = |law, slow, paused| {
            let notes = Notes {
                journal: Journal::default(),
                lateness: Lateness::default(),
                paused,
                begun: Instant::now(),
            };
            let under_way = notes.journal.request("renew".to_owned());
            if slow {
                std::thread::sleep(SLOW);
            }
            let judged = Judged::Broken(Some(law), "too early".to_owned());
            let failure = crate::cases()[0].failure(judged, 1, &notes);
            drop(under_way);
            failure.kind
        };
        assert_eq!(told(Law::Guard, true, false), FailureKind::Inconclusive);
        assert_eq!(told(Law::Guard, false, false), FailureKind::Broken);
        assert_eq!(told(Law::Guard, true, true), FailureKind::Broken);
        let exclusion = told(Law::AtMostOneHolder, true, false);
        assert_eq!(exclusion, FailureKind::Broken);
    }
}
