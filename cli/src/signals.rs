//! The signals that are passed on to the command.

use std::future::poll_fn;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal as Number};
pub(crate) use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::failure::{Failure, status};
use crate::terminal;

/// What is passed on, and what tells that the command has changed.
const LISTENED: [Signal; 10] = [
    Signal::CHILD,
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];

/// The signals that this process gets, one after the other.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    ended_by: Option<Signal>,
}

impl Signals {
    /// Listens from now on. What was ignored when this process began stays ignored, as `nohup` wants it.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let ignored = ignored();
        unblock();
        let listen = |number: Signal| {
            let stream = signal(SignalKind::from_raw(number.as_raw()))?;
            Ok((number, stream))
        };
        let wanted = LISTENED.into_iter().filter(|number| {
            *number == Signal::CHILD || ignored & (1 << (number.as_raw() - 1)) == 0
        });
        let streams: Result<_, std::io::Error> = wanted.map(listen).collect();
        let streams = streams.map_err(|error| {
            Failure::new(
                status::UNAVAILABLE,
                format!("cannot listen to signals: {error}"),
            )
        })?;
        Ok(Self {
            streams,
            ended_by: None,
        })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        let next = poll_fn(|context| {
            for (number, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        });
        let next = next.await;
        if matches!(
            next,
            Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM
        ) {
            self.ended_by = Some(next);
        }
        next
    }

    /// The last signal so far that was to end this process, or a command to which it was passed on.
    pub(crate) fn ended_by(&self) -> Option<Signal> {
        self.ended_by
    }

    /// The next signal that ends a process which does nothing about it.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::CHILD | Signal::WINCH | Signal::CONT => {}
                Signal::TSTP => {
                    // While nothing runs yet there is only this process to stop.
                    terminal::stand_still(|| ());
                }
                number => return number,
            }
        }
    }
}

/// Whoever has started this process may have blocked some of them, which outlives `exec`: they would never arrive. TTOU is
/// blocked: a message must not stop who renews the lock of a command in the foreground. A command starts with none blocked.
fn unblock() {
    let _ = SigSet::from(Number::SIGTTOU).thread_block();
    let listened = LISTENED.map(|number| Number::try_from(number.as_raw()));
    let listened: SigSet = listened.into_iter().flatten().collect();
    // No set of known signals is refused.
    let _ = listened.thread_unblock();
}

/// The mask of ignored signals.
#[cfg(target_os = "linux")]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Elsewhere there is no safe way to ask.
#[cfg(not(target_os = "linux"))]
fn ignored() -> u64 {
    0
}
