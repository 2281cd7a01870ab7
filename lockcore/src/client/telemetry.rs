//! What the client tells `tracing` and `metrics`. Without these features of the crate it tells nothing, and none of it is
//! built in.
//!
//! The names are in the book, page "Seen from outside". They are an interface: a test compares the page with the code.

use std::time::Duration;

#[cfg(feature = "metrics")]
use tokio::time::Instant;

#[cfg(feature = "metrics")]
use crate::client::clock::now;
use crate::client::error::AcquireError;
use crate::client::lost::LostReason;
use crate::client::order::Released;
use crate::{Error, Result, SessionId, Want};

/// Whether anything is built in.
pub(crate) const IS_ON: bool = cfg!(any(feature = "tracing", feature = "metrics"));

/// When something began, if anybody may want to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Since(#[cfg(feature = "metrics")] Option<Instant>);

impl Since {
    #[cfg(feature = "metrics")]
    fn seconds(self) -> f64 {
        let since = self.0.map(|since| now().saturating_duration_since(since));
        since.unwrap_or_default().as_secs_f64()
    }
}

/// An event for `tracing`.
macro_rules! tell {
    ($level:ident, $($event:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::event!(target: "lockkeeper", tracing::Level::$level, $($event)+);
    };
}

/// Tells what one client does.
#[cfg_attr(
    not(any(feature = "tracing", feature = "metrics")),
    allow(unused_variables, clippy::unused_self, reason = "it tells nothing")
)]
pub(crate) struct Telemetry {
    #[cfg(feature = "tracing")]
    store: &'static str,
    #[cfg(feature = "metrics")]
    meters: Option<Box<meters::Meters>>,
}

#[cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(
        unused_variables,
        clippy::unused_self,
        clippy::trivially_copy_pass_by_ref,
        reason = "a part of it tells nothing"
    )
)]
impl Telemetry {
    pub(crate) fn new(store: &'static str) -> Self {
        Self {
            #[cfg(feature = "tracing")]
            store,
            #[cfg(feature = "metrics")]
            meters: is_recorded().then(|| Box::new(meters::Meters::new(store))),
        }
    }

    /// Now, if anybody wants to know how long something takes.
    pub(crate) fn since(&self) -> Since {
        Since(
            #[cfg(feature = "metrics")]
            self.meters.is_some().then(now),
        )
    }

    /// An acquisition begins.
    pub(crate) fn asks(&self, want: Option<Want>, keys: usize, waits: bool) -> Asked<'_> {
        #[cfg(feature = "metrics")]
        if let Some(meters) = self.meters.as_ref().filter(|_| waits) {
            meters.waiters.increment(1.0);
        }
        Asked {
            telemetry: self,
            scheme: scheme(want),
            keys,
            waits,
            since: self.since(),
            is_told: false,
        }
    }

    /// The store has refused it, and it waits.
    pub(crate) fn waits(&self, busy: &crate::Busy) {
        tell!(
            DEBUG,
            store = self.store,
            key = busy.first().claim.key().as_str(),
            holders = busy.first().holders.len(),
            holder = busy
                .first()
                .holders
                .first()
                .map(|holder| holder.label.as_str()),
            "waiting"
        );
    }

    /// A guard begins: of a grant of the store, or of one that another task of the process had.
    pub(crate) fn guard(&self, is_local: bool) {
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.guards.increment(1.0);
            meters.handovers[usize::from(is_local)].increment(1);
        }
    }

    /// A guard ends.
    pub(crate) fn guard_ends(&self, since: Since) {
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.guards.decrement(1.0);
            meters.hold.record(since.seconds());
        }
    }

    /// What became of a release.
    pub(crate) fn released(&self, session: SessionId, released: &Result<Released>) {
        match released {
            Ok(released) => {
                tell!(DEBUG, store = self.store, %session, outcome = ?released, "released");
            }
            Err(error) => {
                tell!(WARN, store = self.store, %session, %error, "release failed");
            }
        }
    }

    /// A session begins to be renewed.
    pub(crate) fn session(&self, session: SessionId) {
        tell!(DEBUG, store = self.store, %session, "session opened");
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.sessions.increment(1.0);
        }
    }

    /// It is renewed no more.
    pub(crate) fn session_ends(&self, session: SessionId) {
        tell!(DEBUG, store = self.store, %session, "session ended");
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.sessions.decrement(1.0);
        }
    }

    /// A renewal is sent so much later than it was due.
    pub(crate) fn renews(&self, session: SessionId, late: Duration, ttl: Duration) {
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.late.record(late.as_secs_f64());
        }
        if late > ttl / 6 {
            tell!(
                WARN,
                store = self.store,
                %session,
                late_ms = milliseconds(late),
                "renewal sent late: the runtime or the machine is busy, or was suspended"
            );
        }
    }

    /// A renewal was acknowledged, when so much of the lease was left.
    pub(crate) fn renewed(
        &self,
        session: SessionId,
        took: Duration,
        left: Duration,
        ttl: Duration,
    ) {
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.renewal.record(took.as_secs_f64());
            meters.margin.record(left.as_secs_f64());
        }
        if left < ttl / 4 {
            tell!(
                WARN,
                store = self.store,
                %session,
                left_ms = milliseconds(left),
                took_ms = milliseconds(took),
                "near miss: the lease was nearly over when it was renewed"
            );
        }
    }

    /// A renewal was not acknowledged, for the so manyth time in a row.
    pub(crate) fn not_renewed(&self, session: SessionId, failures: u32, error: Option<&Error>) {
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.renewal_failures.increment(1);
        }
        #[cfg(feature = "tracing")]
        let error = error.map(tracing::field::display);
        tell!(WARN, store = self.store, %session, failures, error, "renewal failed");
    }

    /// Locks are lost: all of a session, or one grant of it.
    pub(crate) fn lost(&self, session: SessionId, grant: Option<u64>, why: &LostReason) {
        let (cause, note) = match why {
            LostReason::Dead => ("dead", None),
            LostReason::Revoked(note) => ("revoked", Some(note)),
            LostReason::Evicted(note) => ("broken", Some(note)),
            LostReason::Deadline => ("deadline", None),
            LostReason::TooLong => ("too_long", None),
            LostReason::Forgotten => ("forgotten", None),
        };
        #[cfg(feature = "tracing")]
        let (by, reason) = note
            .map(|note| {
                (
                    tracing::field::display(&note.by),
                    tracing::field::display(&note.reason),
                )
            })
            .unzip();
        tell!(WARN, store = self.store, %session, grant, cause, by, reason, "lost");
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.lost(cause);
        }
    }

    /// What became of an adopted change.
    pub(crate) fn recovered(&self, session: SessionId, outcome: &'static str) {
        tell!(INFO, store = self.store, %session, outcome, "recovery");
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            meters.recovery(outcome);
        }
    }

    /// So many requests are of unknown outcome.
    pub(crate) fn in_doubt(&self, requests: usize) {
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.meters {
            #[expect(clippy::cast_precision_loss, reason = "they are limited to thousands")]
            meters.in_doubt.set(requests as f64);
        }
    }
}

#[cfg(feature = "tracing")]
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a recorder is installed that does something: the one that does nothing is the only one without a size.
#[cfg(feature = "metrics")]
pub(crate) fn is_recorded() -> bool {
    metrics::with_recorder(|recorder| std::mem::size_of_val(recorder) > 0)
}

/// The kind of lock, by what the first claim asks for.
fn scheme(want: Option<Want>) -> &'static str {
    match want {
        Some(Want::Create) => "lock",
        Some(Want::Share { .. }) => "share",
        Some(Want::Upsert) => "document",
        Some(Want::Write | Want::Read) => "tree",
        None => "none",
    }
}

/// An acquisition under way. Dropped without an answer it was cancelled.
pub(crate) struct Asked<'a> {
    telemetry: &'a Telemetry,
    scheme: &'static str,
    keys: usize,
    waits: bool,
    since: Since,
    is_told: bool,
}

impl Asked<'_> {
    pub(crate) fn ends<T>(mut self, result: &std::result::Result<T, AcquireError>) {
        self.tell(match result {
            Ok(_) => "granted",
            Err(AcquireError::Busy(_)) => "busy",
            Err(AcquireError::Abandoned(_)) => "abandoned",
            Err(AcquireError::WouldDeadlock(_)) => "would_deadlock",
            Err(AcquireError::Lost) => "lost",
            Err(AcquireError::Input(_)) => "input",
            Err(AcquireError::Store(_)) => "store",
        });
    }

    fn tell(&mut self, outcome: &'static str) {
        self.is_told = true;
        let _ = (
            self.telemetry,
            self.scheme,
            self.keys,
            self.waits,
            self.since,
            outcome,
        );
        tell!(
            DEBUG,
            store = self.telemetry.store,
            scheme = self.scheme,
            keys = self.keys,
            outcome,
            "acquisition"
        );
        #[cfg(feature = "metrics")]
        if let Some(meters) = &self.telemetry.meters {
            meters.acquired(self.scheme, outcome, self.since.seconds());
            if self.waits {
                meters.waiters.decrement(1.0);
            }
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_told {
            self.tell("cancelled");
        }
    }
}

/// The instruments of one client. They are registered when it is built, so that nothing is looked up later; a recorder
/// that is installed afterwards sees nothing of it.
#[cfg(feature = "metrics")]
mod meters {
    use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

    const SCHEMES: [&str; 5] = ["lock", "share", "document", "tree", "none"];
    const OUTCOMES: [&str; 8] = [
        "granted",
        "busy",
        "abandoned",
        "would_deadlock",
        "lost",
        "input",
        "store",
        "cancelled",
    ];
    const CAUSES: [&str; 6] = [
        "dead",
        "revoked",
        "broken",
        "deadline",
        "too_long",
        "forgotten",
    ];
    const RECOVERIES: [&str; 3] = ["settled", "not_settled", "given_up"];

    pub(super) struct Meters {
        acquisitions: [[Counter; OUTCOMES.len()]; SCHEMES.len()],
        wait: Histogram,
        pub(super) hold: Histogram,
        pub(super) guards: Gauge,
        pub(super) waiters: Gauge,
        pub(super) sessions: Gauge,
        pub(super) renewal: Histogram,
        pub(super) renewal_failures: Counter,
        pub(super) margin: Histogram,
        pub(super) late: Histogram,
        lost: [Counter; CAUSES.len()],
        recoveries: [Counter; RECOVERIES.len()],
        pub(super) in_doubt: Gauge,
        /// By the store, by another task of the process.
        pub(super) handovers: [Counter; 2],
    }

    impl Meters {
        pub(super) fn new(store: &'static str) -> Self {
            let acquisitions = SCHEMES.map(|scheme| {
                OUTCOMES.map(|outcome| {
                    counter!("lockkeeper.acquisitions", "store" => store, "scheme" => scheme, "outcome" => outcome)
                })
            });
            Self {
                acquisitions,
                wait: histogram!("lockkeeper.wait.seconds", "store" => store),
                hold: histogram!("lockkeeper.hold.seconds", "store" => store),
                guards: gauge!("lockkeeper.guards", "store" => store),
                waiters: gauge!("lockkeeper.waiters", "store" => store),
                sessions: gauge!("lockkeeper.sessions", "store" => store),
                renewal: histogram!("lockkeeper.renewal.seconds", "store" => store),
                renewal_failures: counter!("lockkeeper.renewal.failures", "store" => store),
                margin: histogram!("lockkeeper.renewal.margin.seconds", "store" => store),
                late: histogram!("lockkeeper.renewal.late.seconds", "store" => store),
                lost: CAUSES
                    .map(|cause| counter!("lockkeeper.lost", "store" => store, "cause" => cause)),
                recoveries: RECOVERIES.map(|outcome| {
                    counter!("lockkeeper.recoveries", "store" => store, "outcome" => outcome)
                }),
                in_doubt: gauge!("lockkeeper.in_doubt", "store" => store),
                handovers: ["store", "local"]
                    .map(|by| counter!("lockkeeper.handovers", "store" => store, "by" => by)),
            }
        }

        pub(super) fn acquired(&self, scheme: &str, outcome: &str, seconds: f64) {
            let scheme = SCHEMES.iter().position(|it| *it == scheme);
            let outcome = OUTCOMES.iter().position(|it| *it == outcome);
            if let (Some(scheme), Some(outcome)) = (scheme, outcome) {
                self.acquisitions[scheme][outcome].increment(1);
            }
            self.wait.record(seconds);
        }

        pub(super) fn lost(&self, cause: &str) {
            if let Some(at) = CAUSES.iter().position(|it| *it == cause) {
                self.lost[at].increment(1);
            }
        }

        pub(super) fn recovery(&self, outcome: &str) {
            if let Some(at) = RECOVERIES.iter().position(|it| *it == outcome) {
                self.recoveries[at].increment(1);
            }
        }
    }
}
