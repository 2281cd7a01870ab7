//! A command under a lease: it gets our signals, and is ended before the lease can end.

use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use lockkeeper::{Held, LostReason, Note, Recovery};
use tokio::time::Instant;

use crate::failure::{Failure, never_wait, say, tell};
use crate::job::{Change, Job};
use crate::signals::{Signal, Signals};
use crate::terminal;

/// What a command needs to go on: a guard, or adoptions.
pub(crate) trait Lease {
    /// The time until it is lost unless it is renewed, where that can be told.
    fn remaining(&self) -> Option<Duration>;
    /// Resolves when most of the time is over for which it may be held.
    async fn nearly_over(&self);
    /// Resolves when somebody has asked for it, and not only as that note says.
    async fn asked(&self, last: Option<Note>) -> Note;
    /// Resolves when it is lost.
    async fn lost(&self) -> LostReason;
}

impl Lease for Held {
    fn remaining(&self) -> Option<Duration> {
        Some(Held::remaining(self))
    }

    async fn nearly_over(&self) {
        Held::nearly_over(self).await;
    }

    async fn asked(&self, last: Option<Note>) -> Note {
        match last {
            None => Held::asked(self).await,
            Some(last) => self.asked_again(&last).await,
        }
    }

    async fn lost(&self) -> LostReason {
        Held::lost(self).await
    }
}

impl Lease for Vec<Recovery> {
    fn remaining(&self) -> Option<Duration> {
        let valid = self.iter().filter(|recovery| recovery.is_valid());
        Some(valid.map(Recovery::remaining).min().unwrap_or_default())
    }

    async fn nearly_over(&self) {
        std::future::pending().await
    }

    async fn asked(&self, _: Option<Note>) -> Note {
        std::future::pending().await
    }

    async fn lost(&self) -> LostReason {
        // While one of the changes is its own, the command goes on with that.
        let each = self.iter().map(Recovery::lost);
        let why = futures_util::future::join_all(each).await;
        why.into_iter().next().expect("something was adopted")
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Why it was ended, if that was not its own doing.
    pub(crate) by_us: Option<ByUs>,
    /// Whether it could be sent what ends it. One of another user cannot.
    pub(crate) reached: bool,
    /// Whether it was executed at all, as far as that can be told.
    pub(crate) executed: bool,
}

/// How a command is ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    /// TERM comes when so much of the lease is left.
    pub(crate) left: Duration,
    /// KILL comes so long after the TERM of `--max-hold`; without it, at the end.
    pub(crate) kill_after: Option<Duration>,
    /// What it gets when somebody has asked for the lock.
    pub(crate) on_asked: Option<Signal>,
}

/// A command that was stopped while it asked for the terminal goes on after that time. Its processes stop one after the other.
const LENT: Duration = Duration::from_millis(50);
/// One that nobody puts into the foreground tries again after that time.
const AGAIN: Duration = Duration::from_secs(1);

/// Why a command is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByUs {
    /// The lease is lost, or about to be.
    Lost,
    /// It may not be held for longer.
    TooLong,
}

/// Waits for the command's end, and brings it about: TERM when so much of the lease is left, or most of the time for which
/// it may be held is over; KILL when it is lost.
pub(crate) async fn supervise(
    mut job: Job,
    signals: &mut Signals,
    lease: &impl Lease,
    ending: Ending,
) -> Result<Ended, Failure> {
    let Ending {
        left,
        kill_after,
        on_asked,
    } = ending;
    never_wait();
    let (mut lost, mut nearly_over) = (pin!(lease.lost()), pin!(lease.nearly_over()));
    let mut asked = pin!(lease.asked(None));
    let (mut by_us, mut killed, mut reached) = (None, false, true);
    // Once it could not be told, only the end of the lease counts.
    let mut warned = false;
    let (mut kill_at, mut go_on_at) = (None, None);
    // A command that was told to stop takes this process with it, terminal or not.
    let mut stop = job.is_interactive();
    loop {
        let warning = warning(lease, left);
        let warned_of = |what| {
            let reached = job.end(Signal::TERM);
            match reached {
                true => say(&format!("{what}: ending the command")),
                false => say(&format!("{what}: {}", unreached(&job))),
            }
            reached
        };
        tokio::select! {
            biased;
            reason = &mut lost, if !killed => {
                job.signal(Signal::TERM);
                reached = job.signal(Signal::KILL);
                killed = true;
                by_us.get_or_insert(ByUs::Lost);
                let what = match reached {
                    true => "the command is killed".to_owned(),
                    false => unreached(&job),
                };
                say(&format!("the lock is lost, {reason}: {what}"));
            }
            () = &mut nearly_over, if by_us.is_none() => {
                warned_of("the lock has been held for nine tenths of --max-hold");
                by_us = Some(ByUs::TooLong);
                kill_at = kill_after.map(|after| Instant::now() + after);
            }
            () = until(kill_at), if !killed && kill_at.is_some() => {
                kill_at = None;
                if job.signal(Signal::KILL) {
                    say("the command does not end, and its lock is to be kept: the command is killed");
                }
            }
            () = until(go_on_at), if go_on_at.is_some() => {
                go_on_at = None;
                job.go_on();
            }
            note = &mut asked => {
                let sends = on_asked.map_or("", |_| ", and the command is told");
                tell(&format!("{} asks for the lock{sends}: {}", note.by, note.reason));
                if let Some(signal) = on_asked {
                    job.signal(signal);
                }
                asked.set(lease.asked(Some(note)));
            }
            () = warning, if by_us.is_none() && !warned => {
                warned = true;
                // After a stop all of it may be over: what ends the command would continue it first.
                if lease.remaining().is_some_and(|left| left.is_zero()) {
                    by_us = Some(ByUs::Lost);
                    reached = job.signal(Signal::KILL);
                    killed = true;
                    say("the lock is lost, nobody has renewed it: the command is killed");
                } else if warned_of("the lock is about to be lost, no renewal gets through") {
                    by_us = Some(ByUs::Lost);
                }
            }
            signal = signals.next() => match signal {
                Signal::CHILD => match job.look()? {
                    Change::None => {}
                    Change::Ended => break,
                    Change::Stopped if stop => {
                        job.take_terminal();
                        // Nothing is renewed from here until somebody continues both. What the command has started may
                        // not have heard what stopped it.
                        if !terminal::stand_still(|| job.stop()) {
                            job.go_on();
                        }
                    }
                    Change::Stopped => {}
                    Change::WantsTerminal if job.lend_terminal() => {
                        stop = true;
                        go_on_at = Some(Instant::now() + LENT);
                    }
                    // As a shell's job in the background does.
                    Change::WantsTerminal => {
                        if !terminal::stand_still(|| job.stop()) {
                            go_on_at = Some(Instant::now() + AGAIN);
                        }
                    }
                },
                Signal::CONT => job.go_on(),
                signal @ (Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM) => {
                    job.end(signal);
                }
                signal => {
                    stop |= signal == Signal::TSTP;
                    job.signal(signal);
                }
            },
        }
    }
    if by_us.is_some() {
        // What the command has started may have outlived it.
        job.signal(Signal::KILL);
    }
    let goes_on = unreached(&job);
    let reaped = job.reap()?;
    if by_us.is_some() && reached && reaped.unreached {
        // Others of its group were ended.
        reached = false;
        say(&goes_on);
    }
    Ok(Ended {
        status: reaped.status,
        by_us,
        reached,
        executed: reaped.executed,
    })
}

/// What is said of a command that has become another user's.
fn unreached(job: &Job) -> String {
    format!(
        "the command is another user's now and cannot be ended, it goes on: end it as that user or as root, {}",
        job.number()
    )
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Resolves when no more than so much is left; renewals move that on.
async fn warning(lease: &impl Lease, least: Duration) {
    loop {
        match lease.remaining() {
            None => std::future::pending().await,
            Some(left) if left <= least => return,
            Some(left) => tokio::time::sleep(left - least).await,
        }
    }
}
