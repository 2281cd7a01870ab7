//! Adoptions of unknown outcome are given up.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::renewals::pause;
use super::{Done, GivenUp, Keeper};
use crate::client::clock::{now, sleep_until};
use crate::client::core::Core;
use crate::client::order::GiveUp;
use crate::client::retry::{may_pass, until_answered};
use crate::client::session::Session;
use crate::{Adopt, Adopted, End, Life, Result, SessionState};

impl Keeper {
    pub(super) fn give_up(&mut self, what: GiveUp, done: Option<GivenUp>) {
        let (core, me) = (Arc::clone(&self.core), Arc::clone(&self.session));
        self.work.push(Box::pin(give_up(core, me, what, done)));
    }
}

/// Uses up the number of an adoption of unknown outcome, acknowledged. While the session lives nobody else can adopt,
/// so this is tried for as long: at once while the error may pass, else after each renewal.
pub(super) async fn give_up(
    core: Arc<Core>,
    me: Arc<Session>,
    what: GiveUp,
    done: Option<GivenUp>,
) -> Done {
    let mut failures = 0;
    let answer = loop {
        let send = || Box::pin(give_up_once(&core, &me, &what)) as BoxFuture<'_, _>;
        match until_answered(&core, || me.is_valid(), send).await {
            Ok(Adopted::Moved) => return Done::Moved(what, done),
            Ok(_) => break Ok(()),
            Err(error) if !may_pass(&error) || !me.is_valid() => break Err(error),
            Err(_) => {
                failures += 1;
                sleep_until(now() + pause(&core, failures)).await;
            }
        }
    };
    let stands = answer.is_err() && me.is_valid();
    if let Some(done) = done {
        let _ = done.send(answer);
    }
    match stands {
        true => Done::Adopted(what),
        false => Done::Other,
    }
}

/// Gives up in the incarnation that was asked for the adoption. If the session has moved, no request for that
/// incarnation is executed any more; but the new one may have the adoption.
async fn give_up_once(core: &Core, me: &Session, what: &GiveUp) -> Result<Adopted> {
    let (backend, session) = (&core.backend, what.adopting.session);
    let (mut seen, mut within) = (what.seen, what.within);
    let here = me.numbers().incarnation();
    if within.is_known() && within != here {
        let states = backend.end(&[session], End::IfDue).await?;
        let ours =
            |state: &&SessionState| state.life == Life::Abandoned && state.adopter == Some(me.id);
        let Some(state) = states.iter().find(ours) else {
            return Ok(Adopted::NotAdopted);
        };
        (seen, within) = (state.adoption.saturating_sub(1), here);
    }
    let given_up = backend.adopt(session, seen, me.id, Adopt::GiveUp, within);
    given_up.await
}
