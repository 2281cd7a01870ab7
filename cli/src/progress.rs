//! What a person sees of an acquisition that takes long, on standard error.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockkeeper::Progress;

use crate::describe;
use crate::failure::say;

/// What takes less than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(300);

/// A bar, on a terminal only, and one line that says who is waited for.
#[derive(Debug)]
pub(crate) struct Display {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bar: Option<ProgressBar>,
    said: bool,
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
                } else if self.started.elapsed() >= PATIENCE {
                    let bar = state.bar.get_or_insert_with(|| bar(*of));
                    bar.set_position(u64::try_from(*claims).unwrap_or(u64::MAX));
                }
            }
            Progress::Waiting(busy) if !state.said => {
                state.said = true;
                let line = format!("waiting: {}", describe::busy(busy));
                match &state.bar {
                    Some(bar) => bar.suspend(|| say(&line)),
                    None => say(&line),
                }
            }
            _ => {}
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
