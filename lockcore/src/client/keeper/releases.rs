//! Releases: of what guards give back, and of requests in doubt.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::ends::close;
use super::{Done, Keeper};
use crate::client::clock::now;
use crate::client::core::Core;
use crate::client::order::{Release, Released};
use crate::client::retry::{in_doubt, until_answered};
use crate::client::session::Session;
use crate::{Claim, End, Error, Grant, Life, Result, SessionState, Stood};

/// The most concurrent releases; further ones wait their turn.
const RELEASES_AT_ONCE: usize = 256;
/// Time between two renewals that are sent for requests in doubt.
const BETWEEN_RENEWALS: Duration = Duration::from_millis(200);

impl Keeper {
    pub(super) fn release(&mut self, release: Release) {
        self.going.extend(release.grants.iter().map(|(n, _)| *n));
        if self.work.len() >= RELEASES_AT_ONCE {
            self.backlog.push_back(release);
        } else {
            self.start(release);
        }
    }

    pub(super) fn start(&mut self, release: Release) {
        let (core, session) = (Arc::clone(&self.core), Arc::clone(&self.session));
        if release.by_close && session.numbers().are_all_of(&self.going) {
            self.unswept = true;
            self.work.push(Box::pin(async move {
                // A close does not say whether the session lived: one of its grants does, and the last says whether a
                // store that was put back has lost any.
                let (n, range) = &release.grants[release.grants.len() - 1];
                session.numbers().let_go(*n);
                let grant = Grant {
                    session: session.id,
                    n: *n,
                };
                let claims = &release.claims[range.clone()];
                let mut stood = core.backend.release(grant, claims).await;
                if stood
                    .as_ref()
                    .is_err_and(Error::is_certainly_without_effect)
                {
                    stood = core.backend.release(grant, claims).await;
                }
                let released = match stood {
                    Ok(stood) => released(&core, &session, stood, true).await,
                    Err(_) => Released::Unknown,
                };
                session.die();
                let closed = close(&core, &session).await;
                Done::Closed(release, closed.map(|()| released))
            }));
        } else {
            self.work.push(Box::pin(async move {
                let released =
                    release_each(&core, &session, &release.claims, &release.grants).await;
                Done::Released(release, released)
            }));
        }
    }

    pub(super) fn given_back(&self, release: &Release) {
        self.core
            .given_back(self.session.id, &release.grants, &release.claims);
    }

    /// Retires the numbers, which were not retired before: a renewal that said so would make the release find nothing
    /// live.
    pub(super) fn retire(&mut self, release: &Release) {
        let mut numbers = self.session.numbers();
        for (n, _) in &release.grants {
            self.going.remove(n);
            numbers.end(*n);
        }
    }

    /// A copy of a request may arrive late. The next renewal, which is requested now, retires its number; then it is
    /// released once more.
    pub(super) fn doubt(&mut self, release: &Release) {
        let now = now();
        self.unswept = true;
        if self.failures == 0 {
            // Not for each of many.
            let soon = self.renewed + BETWEEN_RENEWALS;
            self.next = self.next.min(soon.max(now));
        }
        self.doubts
            .add(&release.claims, &release.grants, now, self.seq);
    }

    /// A renewal is acknowledged, or such a release.
    pub(super) fn release_doubts(&mut self) {
        let most = RELEASES_AT_ONCE.saturating_sub(self.work.len());
        for (claims, n, range) in self.doubts.are_over(self.acknowledged, now(), most) {
            let backend = Arc::clone(&self.core.backend);
            let session = self.session.id;
            self.work.push(Box::pin(async move {
                // The next one goes out after the next renewal.
                let released = backend.release(Grant { session, n }, &claims[range]).await;
                Done::Doubted(n, released.is_ok())
            }));
        }
    }
}

/// Sends the release of every grant, the last first, until each is acknowledged. Returns whether all of them were held.
pub(crate) async fn release_each(
    core: &Core,
    session: &Session,
    claims: &[Claim],
    grants: &[(u64, Range<usize>)],
) -> Result<Released> {
    let mut all = Released::Released;
    for (n, range) in grants.iter().rev() {
        session.numbers().let_go(*n);
        let grant = Grant {
            session: session.id,
            n: *n,
        };
        // An earlier copy may have been executed.
        let doubted = AtomicBool::new(false);
        let send = || {
            let sent = core.backend.release(grant, &claims[range.clone()]);
            in_doubt(sent, &doubted)
        };
        let stood = until_answered(core, || !session.is_dead(), send).await?;
        let once = !doubted.load(Ordering::Relaxed);
        all = all.and(released(core, session, stood, once).await);
    }
    Ok(all)
}

/// The meaning of the answer to the last copy of one grant's release. If the grant is absent, an earlier copy may have released
/// it. Where there was none, but the server may have sent it twice, the grant was lost with the session if that is dead.
async fn released(core: &Core, session: &Session, stood: Stood, once: bool) -> Released {
    match Released::of(stood, once && !core.info.repeats) {
        Released::Unknown if once => {
            let states = core.backend.end(&[session.id], End::IfDue).await;
            let is_dead = |states: Vec<SessionState>| {
                let lives = |state: &SessionState| state.life == Life::Living;
                !states.iter().any(lives)
            };
            match states.is_ok_and(is_dead) {
                true => Released::NotHeld,
                false => Released::Unknown,
            }
        }
        known => known,
    }
}
