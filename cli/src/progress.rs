//! What a person sees of an acquisition that takes long, on standard error.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockkeeper::Progress;
use tokio::time::Instant;

use crate::describe;
use crate::failure::{Voice, tell};

/// What takes less than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// How often it is said who is in the way.
const AGAIN: Duration = Duration::from_secs(30);

/// A bar, on a terminal only, and one line that says who is waited for.
#[derive(Debug)]
pub(crate) struct Display {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bar: Option<ProgressBar>,
    /// Who was in the way last.
    waits_for: Option<String>,
}

impl State {
    fn say(&self, what: &str) {
        let Some(who) = &self.waits_for else { return };
        let line = format!("{what}: {who}");
        match &self.bar {
            Some(bar) => bar.suspend(|| tell(&line)),
            None => tell(&line),
        }
    }
}

impl Display {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            state: Mutex::default(),
        }
    }

    /// For [`observe`](lockkeeper::Acquisition::observe).
    pub(crate) fn show(&self, progress: &Progress<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match progress {
            Progress::Granted { claims, of } => {
                if claims == of {
                    if let Some(bar) = state.bar.take() {
                        bar.finish_and_clear();
                    }
                } else if Voice::get().quiet || Voice::get().json {
                    // No bar.
                } else if self.started.elapsed() >= PATIENCE {
                    let bar = state.bar.get_or_insert_with(|| bar(*of));
                    bar.set_position(u64::try_from(*claims).unwrap_or(u64::MAX));
                }
            }
            Progress::Waiting(busy) => {
                let who = describe::busy(busy);
                let is_first = state.waits_for.replace(who).is_none();
                if is_first {
                    state.say("waiting");
                }
            }
            _ => {}
        }
    }

    /// Says from time to time who is in the way, as it is known by then. Never resolves.
    pub(crate) async fn say_again(&self) {
        loop {
            tokio::time::sleep(AGAIN).await;
            let waits = describe::duration(self.started.elapsed());
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.say(&format!("waiting for {waits}"));
        }
    }

    /// Removes the bar of an acquisition that has ended.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = state.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(of: usize) -> ProgressBar {
    let style =
        ProgressStyle::with_template("locking {bar:30} {human_pos} of {human_len}, {eta} left")
            .expect("the template is well-formed");
    let bar = ProgressBar::with_draw_target(
        Some(u64::try_from(of).unwrap_or(u64::MAX)),
        ProgressDrawTarget::stderr_with_hz(10),
    );
    bar.set_style(style);
    bar
}
