//! [`News`]: the watch over a session. It says when the owner renews early, because somebody else has ended the session
//! or written a note.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout};

use crate::client::clock::{now, sleep_until};
use crate::client::core::Core;
use crate::{Changed, SessionId};

/// How old a session is before it is watched. A session for a single acquisition has mostly ended by then.
const AFTER: Duration = Duration::from_millis(100);
/// The longest time for setting up the watch; after that the session is renewed all the same.
const WITHIN: Duration = Duration::from_secs(1);
/// The pause between a wake-up and the next watch: none after the first one, then this one, and each further one twice
/// as long, up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After this long without a wake-up, the next one counts as the first again.
const FORGIVEN: Duration = Duration::from_secs(10);

/// A hint. Renewals go on in any case.
pub(crate) struct News {
    core: Arc<Core>,
    session: SessionId,
    state: State,
    /// When it was woken last, and how often in a row.
    woken: Option<Instant>,
    in_a_row: u32,
}

enum State {
    /// The watch is set up then; `renews` says whether the session is renewed once it stands.
    Due {
        at: Instant,
        renews: bool,
    },
    SetUp {
        stands: BoxFuture<'static, Option<Changed>>,
        renews: bool,
    },
    Stands(Changed),
    /// Until the next renewal.
    Failed,
    /// Nobody wants the news any more, or the store does not push.
    Over,
}

impl News {
    pub(crate) fn new(core: &Arc<Core>, session: SessionId) -> Self {
        let state = match core.info.poll {
            None => State::Due {
                at: now() + AFTER,
                renews: false,
            },
            Some(_) => State::Over,
        };
        Self {
            core: Arc::clone(core),
            session,
            state,
            woken: None,
            in_a_row: 0,
        }
    }

    /// Resolves when the session should be renewed.
    ///
    /// # Cancel safety
    ///
    /// The state reached so far is kept.
    pub(crate) async fn arrive(&mut self) {
        loop {
            match &mut self.state {
                State::Due { at, renews } => {
                    sleep_until(*at).await;
                    self.state = State::SetUp {
                        renews: *renews,
                        stands: self.set_up(),
                    };
                }
                State::SetUp { stands, renews } => {
                    let (watch, renews) = (stands.await, *renews);
                    self.state = watch.map_or(State::Failed, State::Stands);
                    if renews {
                        // What has happened before the watch stood is found by this renewal, and by no wake-up.
                        return;
                    }
                }
                State::Stands(changed) => {
                    changed.await;
                    self.state = State::Due {
                        at: now() + self.pause(),
                        renews: true,
                    };
                }
                State::Failed | State::Over => std::future::pending().await,
            }
        }
    }

    /// The session is being renewed: a watch that could not be set up is tried again.
    pub(crate) fn renewing(&mut self) {
        if matches!(self.state, State::Failed) {
            self.state = State::Due {
                at: now(),
                renews: false,
            };
        }
    }

    /// The session is lost, or closed.
    pub(crate) fn end(&mut self) {
        self.state = State::Over;
    }

    fn set_up(&self) -> BoxFuture<'static, Option<Changed>> {
        let (core, session) = (Arc::clone(&self.core), self.session);
        Box::pin(async move {
            let stands = timeout(WITHIN, core.backend.watch_session(session)).await;
            stands.ok().and_then(Result::ok)
        })
    }

    /// The pause without a watch: a watch that wakes again and again for nothing costs at most one renewal a second.
    fn pause(&mut self) -> Duration {
        let now = now();
        let before = self.woken.replace(now);
        if before.is_none_or(|before| now.saturating_duration_since(before) > FORGIVEN) {
            self.in_a_row = 0;
        }
        let times = self.in_a_row;
        self.in_a_row = times.saturating_add(1);
        match times {
            0 => Duration::ZERO,
            times => (PAUSE * 2_u32.saturating_pow(times - 1)).min(LONGEST_PAUSE),
        }
    }
}
