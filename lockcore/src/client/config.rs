//! [`LocksBuilder`]: the options of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::client::core::Late;
use crate::client::core::{Config, Core};
use crate::client::error::InputError;
use crate::client::locks::Locks;
use crate::client::recovery::Recover;
use crate::client::thread::OwnThread;
use crate::limits::{DEFAULT_TTL, MAX_LABEL_BYTES, MAX_TTL, MIN_TTL};
use crate::{Label, LockBackend};

/// Builds [`Locks`].
///
/// | option | default |
/// |---|---|
/// | [`ttl`](Self::ttl) | 30 s |
/// | [`label`](Self::label) | host, process id and program |
/// | [`recovery`](Self::recovery) | none: abandoned work is an outcome of its own |
/// | [`patience`](Self::patience) | 10 s |
/// | [`max_attempts`](Self::max_attempts) | 10,000 |
/// | [`max_waiters`](Self::max_waiters) | 100,000 |
/// | [`max_unsettled`](Self::max_unsettled) | 1,000 |
/// | [`max_hold`](Self::max_hold) | none: as long as the program holds it |
/// | [`own_thread`](Self::own_thread) | none: renewals run on the program's runtime |
/// | [`when_late`](Self::when_late) | nobody is told |
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use lockcore::{InputError, Locks, MemoryBackend};
///
/// let locks = Locks::builder(MemoryBackend::new()).ttl(Duration::from_secs(10)).build()?;
/// assert_eq!(locks.info().name, "memory");
/// let refused = Locks::builder(MemoryBackend::new()).ttl(Duration::from_millis(10)).build();
/// assert!(matches!(refused, Err(InputError::Ttl { .. })));
/// # Ok::<(), InputError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct LocksBuilder {
    backend: Arc<dyn LockBackend>,
    label: Option<Label>,
    config: Config,
    recovery: Option<Arc<dyn Recover>>,
    seed: Option<u64>,
}

impl Locks {
    /// A builder for locks on a backend; see [`LocksBuilder`] for the options.
    pub fn builder(backend: Arc<dyn LockBackend>) -> LocksBuilder {
        LocksBuilder::new(backend)
    }
}

impl LocksBuilder {
    pub(crate) fn new(backend: Arc<dyn LockBackend>) -> Self {
        let config = Config {
            ttl: DEFAULT_TTL,
            label: Label::parse("").expect("an empty label is a label"),
            max_attempts: 10_000,
            max_waiters: 100_000,
            max_unsettled: 1_000,
            patience: Duration::from_secs(10),
            max_hold: None,
            thread: None,
            late: None,
        };
        Self {
            backend,
            label: None,
            config,
            recovery: None,
            seed: None,
        }
    }

    /// The time to live: how long the locks of this process outlive it. From 1 s to 24 h; a store may need more. The
    /// session is renewed after every third of it, and at least every 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// Text that identifies this process to people when it is in their way.
    pub fn label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// The handler that finishes or undoes the change of a dead holder before a guard is handed out.
    pub fn recovery(mut self, handler: impl Recover + 'static) -> Self {
        self.recovery = Some(Arc::new(handler));
        self
    }

    /// How long a request of unknown outcome is sent again before the acquisition fails, and how long a waiting
    /// acquisition bears with an unavailable store.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.config.patience = patience;
        self
    }

    /// The longest time that anything is held, unless an acquisition [sets its own](crate::Acquisition::max_hold).
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.config.max_hold = Some(longest);
        self
    }

    /// Renews and releases on this thread, so that locks outlive a block of the program's runtime: a long computation in
    /// an async function, or a call that waits. Without it, locks are lost if no other thread of the runtime is free for
    /// most of the TTL. The backend has to be connected on that thread. Waiting, [observers](crate::Acquisition::observe) and
    /// [recovery](Self::recovery) stay on the program's runtime.
    pub fn own_thread(mut self, thread: &OwnThread) -> Self {
        self.config.thread = Some(thread.clone());
        self
    }

    /// A function that is called when a session's task ran late: by more than half of the time between two renewals,
    /// which is a sixth of the TTL, and at most 5 s. Somebody blocks the runtime, or the process was stopped. Locks are
    /// lost when this reaches two thirds of the TTL. The function is called after the delay, on the task that renews, and
    /// must not block. The machine's sleep does not count.
    pub fn when_late(mut self, tell: impl Fn(Late) + Send + Sync + 'static) -> Self {
        self.config.late = Some(Arc::new(tell));
        self
    }

    /// The most concurrent calls of `try_acquire`, and of `acquire` with a wait of zero.
    pub fn max_attempts(mut self, limit: usize) -> Self {
        self.config.max_attempts = limit;
        self
    }

    /// The most concurrent calls of `acquire` and `run`.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.config.max_waiters = limit;
        self
    }

    /// The most requests of unknown outcome that are remembered, each until it is settled or a minute old. At this
    /// number nothing is acquired.
    pub fn max_unsettled(mut self, limit: usize) -> Self {
        self.config.max_unsettled = limit;
        self
    }

    /// Seeds the randomness, so that session ids and pauses are the same in every run. For simulations only: two
    /// clients with the same seed and store use each other's session ids.
    #[doc(hidden)]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the client. No I/O: the first acquisition that needs a session opens it.
    ///
    /// # Errors
    ///
    /// The library or the store does not take the TTL, or the `max_hold` is zero.
    pub fn build(mut self) -> Result<Locks, InputError> {
        let info = self.backend.info();
        let (min, max) = (info.min_ttl.max(MIN_TTL), info.max_ttl.min(MAX_TTL));
        let ttl = self.config.ttl;
        if ttl < min || ttl > max {
            return Err(InputError::Ttl { ttl, min, max });
        }
        if self.config.max_hold == Some(Duration::ZERO) {
            return Err(InputError::NoHold);
        }
        self.config.label = self.label.unwrap_or_else(Label::of_this_process);
        #[cfg(any(feature = "tracing", feature = "metrics"))]
        let backend = Arc::new(crate::client::requests::Observed::new(self.backend));
        #[cfg(not(any(feature = "tracing", feature = "metrics")))]
        let backend = self.backend;
        let core = Core::new(backend, self.config, self.seed);
        Ok(Locks::new(core, self.recovery))
    }
}

impl Label {
    /// Host, process id and program, as far as they are known: the default label of a session.
    #[must_use]
    pub fn of_this_process() -> Self {
        let program = std::env::current_exe().ok();
        let program = program
            .as_deref()
            .and_then(|path| path.file_name())
            .unwrap_or_default()
            .to_string_lossy();
        fitting(format!("{}:{} {program}", host(), std::process::id()))
    }
}

/// As much of the text as fits into a label.
fn fitting(mut text: String) -> Label {
    text.retain(|c| !c.is_control());
    while text.len() > MAX_LABEL_BYTES {
        text.pop();
    }
    Label::parse(text).expect("short, and without control characters")
}

#[cfg(target_os = "linux")]
fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(not(target_os = "linux"))]
fn host() -> String {
    let name = ["HOSTNAME", "COMPUTERNAME"];
    let mut names = name.into_iter().filter_map(|name| std::env::var(name).ok());
    names.next().unwrap_or_default()
}

impl fmt::Debug for LocksBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocksBuilder")
            .field("backend", &self.backend.info().name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_made_of_what_fits() {
        assert_eq!(fitting("a\tb\n".to_owned()).as_str(), "ab");
        let longest = "x".repeat(MAX_LABEL_BYTES);
        assert_eq!(fitting(longest.clone()).as_str(), longest);
        assert_eq!(fitting(format!("{longest}y")).as_str(), longest);
        let cut = fitting(format!("{}é", &longest[1..]));
        assert_eq!(cut.as_str(), &longest[1..], "no half of a character");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_label_names_host_process_and_program() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let (label, id) = (Label::of_this_process(), std::process::id());
        let start = format!("{}:{id} lockcore", host.trim_end());
        assert!(label.as_str().starts_with(&start), "{label}");
    }

    #[test]
    fn a_ttl_of_either_bound_is_taken_and_none_outside() {
        let moment = Duration::from_nanos(1);
        for (ttl, taken) in [
            (MIN_TTL, true),
            (MIN_TTL - moment, false),
            (MAX_TTL, true),
            (MAX_TTL + moment, false),
        ] {
            let locks = LocksBuilder::new(crate::MemoryBackend::new()).ttl(ttl);
            assert_eq!(locks.build().is_ok(), taken, "{ttl:?}");
        }
    }

    #[test]
    fn the_deadline_leaves_a_hundredth_or_a_quarter_of_a_second() {
        for (ttl, validity) in [(1_000, 750), (25_000, 24_750), (50_000, 49_500)] {
            let mut config = LocksBuilder::new(crate::MemoryBackend::new()).config;
            config.ttl = Duration::from_millis(ttl);
            assert_eq!(config.validity(), Duration::from_millis(validity));
        }
    }
}
