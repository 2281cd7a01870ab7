//! A command under a lease: it gets our signals, and is ended before the lease can end.

use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use lockkeeper::{Held, LostReason, Recovery};
use rustix::process::Signal;

use crate::failure::{Failure, say};
use crate::job::{Change, Job};
use crate::signals::Signals;
use crate::terminal;

/// What a command needs to go on: a guard, or adoptions.
pub(crate) trait Lease {
    /// The time until it is lost unless it is renewed, where that can be told.
    fn remaining(&self) -> Option<Duration>;
    /// Resolves when it is lost.
    async fn lost(&self) -> LostReason;
}

impl Lease for Held {
    fn remaining(&self) -> Option<Duration> {
        Some(Held::remaining(self))
    }

    async fn lost(&self) -> LostReason {
        Held::lost(self).await
    }
}

impl Lease for Vec<Recovery> {
    fn remaining(&self) -> Option<Duration> {
        self.iter().map(Recovery::remaining).min()
    }

    async fn lost(&self) -> LostReason {
        let each = self.iter().map(|recovery| Box::pin(recovery.lost()));
        futures_util::future::select_all(each).await.0
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// It was ended because the lease was lost, or about to be.
    pub(crate) lost: bool,
}

/// Waits for the command's end, and brings it about: TERM when a quarter of the TTL is left, KILL when the lease is
/// lost.
pub(crate) async fn supervise(
    job: Job,
    signals: &mut Signals,
    lease: &impl Lease,
    ttl: Duration,
) -> Result<Ended, Failure> {
    let quarter = ttl / 4;
    let mut lost = pin!(lease.lost());
    let (mut warned, mut killed) = (false, false);
    // A command that was told to stop takes this process with it, terminal or not.
    let mut stop = job.has_terminal();
    loop {
        let warning = warning(lease, quarter);
        tokio::select! {
            biased;
            reason = &mut lost, if !killed => {
                job.signal(Signal::TERM);
                job.signal(Signal::KILL);
                killed = true;
                say(&format!("the lock is lost, {reason}: the command is killed"));
            }
            () = warning, if !warned && !killed => {
                job.signal(Signal::TERM);
                job.signal(Signal::CONT);
                warned = true;
                say("the lock is about to be lost, no renewal gets through: ending the command");
            }
            signal = signals.next() => match signal {
                Signal::CHILD => match job.look()? {
                    Change::None => {}
                    Change::Ended => break,
                    Change::Stopped if stop => {
                        job.take_terminal();
                        // Nothing is renewed from here until somebody continues both.
                        if !terminal::stand_still() {
                            job.go_on();
                        }
                    }
                    Change::Stopped => {}
                },
                Signal::CONT => job.go_on(),
                signal => {
                    stop |= signal == Signal::TSTP;
                    job.signal(signal);
                }
            },
        }
    }
    let lost = warned || killed;
    if lost {
        // What the command has started may have outlived it.
        job.signal(Signal::KILL);
    }
    let status = job.reap()?;
    Ok(Ended { status, lost })
}

/// Resolves when no more than a quarter of the TTL is left; renewals move that on.
async fn warning(lease: &impl Lease, quarter: Duration) {
    loop {
        match lease.remaining() {
            None => std::future::pending().await,
            Some(left) if left <= quarter => return,
            Some(left) => tokio::time::sleep(left - quarter).await,
        }
    }
}
