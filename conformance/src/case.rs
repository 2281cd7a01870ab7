//! [`Case`], and the [`Failure`] that it ends in.

use std::borrow::Cow;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use crate::journal::Journal;
use crate::law::Law;
use crate::scene::Scene;
use crate::verdict::{Verdict, Wrong};
use crate::world::Space;

/// What a case goes through.
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

/// One thing that every store keeps, and how to see that it does.
#[derive(Clone)]
pub struct Case {
    layer: Layer,
    group: &'static str,
    law: Law,
    name: Cow<'static, str>,
    run: Arc<Run>,
}

/// Longest time a case may take by tokio's clock, beside the TTLs that it waits for.
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

    /// What the case goes through.
    #[must_use]
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// The subject that it belongs to.
    #[must_use]
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// The law that it checks.
    #[must_use]
    pub fn law(&self) -> Law {
        self.law
    }

    /// Its name in its group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the case in a fresh space; what it chooses by chance follows from the seed.
    ///
    /// It ends within a minute and a few of the store's shortest TTLs by tokio's clock; a backend that blocks its
    /// thread can be stopped from outside only, as [`check`](crate::check) does. The future stays on its thread: it is run by
    /// `block_on`.
    ///
    /// # Errors
    ///
    /// The store does not keep the law, or something failed, or the time is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the case; the space is not to be used again.
    pub async fn run(&self, space: Arc<dyn Space>, seed: u64) -> Result<(), Failure> {
        self.run_noting(space, seed, Journal::default()).await
    }

    /// As [`run`](Self::run), with a journal that the caller can read meanwhile.
    pub(crate) async fn run_noting(
        &self,
        space: Arc<dyn Space>,
        seed: u64,
        journal: Journal,
    ) -> Result<(), Failure> {
        let scene = Scene::new(space, seed, journal.clone());
        let limit = LIMIT + scene.longest_wait().await;
        let case = AssertUnwindSafe((self.run)(scene)).catch_unwind();
        let what = match tokio::time::timeout(limit, case).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(Wrong(what)))) => what,
            Ok(Err(panic)) => format!("panicked: {}", panic_text(&*panic)),
            Err(_) => format!("not done within {limit:?}"),
        };
        Err(self.failure(what, seed, journal.shown()))
    }

    pub(crate) fn failure(&self, what: String, seed: u64, events: Vec<String>) -> Failure {
        Failure {
            case: self.to_string(),
            law: self.law,
            what,
            seed,
            events,
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

/// A case that a store did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Group and name of the case.
    pub case: String,
    /// The law that it checks.
    pub law: Law,
    /// What was seen, and what should have been.
    pub what: String,
    /// By which the case made its choices.
    pub seed: u64,
    /// Every request and every answer, in order; of very many, the last.
    pub events: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.case, self.law)?;
        writeln!(f, "{}", self.what)?;
        writeln!(f, "seed {} ({}={})", self.seed, crate::run::SEED, self.seed)?;
        writeln!(f, "events:")?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
