//! [`Lateness`]: how late the machine was, so that a limit that was missed by its fault is not told as a broken law.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long the thread that measures sleeps at a time.
const TICK: Duration = Duration::from_millis(5);
/// What a machine that is not busy is late by: not counted.
const USUAL: Duration = Duration::from_millis(2);
/// Spans that are closer to each other than this are one, so that there are at most a few in a second.
const APART: Duration = Duration::from_millis(100);

/// A thread that sleeps for a few milliseconds, again and again, and notes how late it wakes; or nothing, where time
/// is paused and the machine makes nobody late. It ends with its last clone.
#[derive(Clone, Default)]
pub(crate) struct Lateness(Option<Arc<Measured>>);

struct Measured {
    seen: Arc<Mutex<Seen>>,
    /// Nothing is ever sent: the thread ends when this is dropped.
    _end: Sender<()>,
}

struct Seen {
    /// Since when the thread sleeps.
    asleep: Instant,
    spans: Vec<Span>,
}

/// Until then the machine was late, by so much.
struct Span {
    until: Instant,
    late: Duration,
}

impl Lateness {
    /// Begins to measure. Without a thread nothing is measured, and nothing is excused.
    pub(crate) fn measured() -> Self {
        let (end, ended) = mpsc::channel();
        let seen = Arc::new(Mutex::new(Seen {
            asleep: Instant::now(),
            spans: Vec::new(),
        }));
        let measured = Arc::new(Measured {
            seen: Arc::clone(&seen),
            _end: end,
        });
        let measure = move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                locked(&seen).woken(Instant::now());
            }
        };
        let thread = thread::Builder::new().name("lateness".to_owned());
        Self(thread.spawn(measure).is_ok().then_some(measured))
    }

    /// Whether time passes, and somebody looks how late the machine is.
    pub(crate) fn is_measured(&self) -> bool {
        self.0.is_some()
    }

    /// How late the machine has been since then, in all; nothing, where it is not measured.
    pub(crate) fn since(&self, since: Instant) -> Duration {
        let Some(measured) = &self.0 else {
            return Duration::ZERO;
        };
        locked(&measured.seen).late(since, Instant::now())
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    fn woken(&mut self, now: Instant) {
        let late = self.sleeps_late(now);
        self.asleep = now;
        if late.is_zero() {
            return;
        }
        match self.spans.last_mut() {
            Some(last) if now.duration_since(last.until) < APART => {
                last.until = now;
                last.late += late;
            }
            _ => self.spans.push(Span { until: now, late }),
        }
    }

    /// How late the thread is, if it wakes now.
    fn sleeps_late(&self, now: Instant) -> Duration {
        let late = now
            .saturating_duration_since(self.asleep)
            .saturating_sub(TICK);
        if late > USUAL { late } else { Duration::ZERO }
    }

    fn late(&self, since: Instant, now: Instant) -> Duration {
        let spans = self.spans.iter().rev();
        let after = spans.take_while(|span| span.until > since);
        let late: Duration = after
            .map(|span| span.late.min(span.until.duration_since(since)))
            .sum();
        // The whole process may have stood still, and the thread not have been woken yet.
        late + self
            .sleeps_late(now)
            .min(now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_the_machine_was_late_is_counted_once_and_only_since_then() {
        let begin = Instant::now();
        let mut seen = Seen {
            asleep: begin,
            spans: Vec::new(),
        };
        // In time, 95 ms late, in time, 495 ms late.
        for at in [6, 106, 112, 1_000, 1_500] {
            if at == 1_000 {
                seen.asleep = begin + 995 * MS;
            }
            seen.woken(begin + at * MS);
        }
        let late = |since: u32, now: u32| seen.late(begin + since * MS, begin + now * MS);
        assert_eq!(late(0, 1_500), (95 + 495) * MS);
        assert_eq!(late(106, 1_500), 495 * MS, "what was before does not count");
        assert_eq!(late(1_400, 1_500), 100 * MS, "no more than the time itself");
        assert_eq!(late(1_500, 1_505), Duration::ZERO);
        assert_eq!(late(1_500, 1_805), 300 * MS, "it has not woken yet");
    }

    #[test]
    fn a_thread_measures_and_ends_with_the_last_clone() {
        let lateness = Lateness::measured();
        let measured = lateness.0.clone().expect("there is a thread");
        let seen = Arc::downgrade(&measured.seen);
        let begin = Instant::now();
        while locked(&measured.seen).asleep < begin {
            thread::sleep(TICK);
            assert!(begin.elapsed() < Duration::from_secs(10), "it never wakes");
        }
        drop((lateness, measured));
        while seen.upgrade().is_some() {
            thread::sleep(TICK);
            assert!(begin.elapsed() < Duration::from_secs(10), "it never ends");
        }
    }

    #[test]
    fn where_nothing_is_measured_nothing_is_late() {
        let begin = Instant::now();
        thread::sleep(3 * TICK);
        assert_eq!(Lateness::default().since(begin), Duration::ZERO);
    }
}
