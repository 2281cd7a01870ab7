//! Requests by chance, one after the other, each answer compared with the [`Model`]'s. What is not as the model says
//! breaks the law that the answer is about.

use std::collections::BTreeSet;
use std::fmt::Debug;

use lockcore::backend::{
    Acquire, Acquired, Adopt, End, Filter, IntentChange, Ranges, Renewed, Stood, Sweep,
};
use lockcore::{Busy, Claim, FencingToken, Grant, Life, LockKey, SessionId, SessionState, Want};

use crate::actor::{Actor, SHARE, of_guard, registered, share};
use crate::case::{Case, Layer};
use crate::law::Law;
use crate::model::{Model, Session};
use crate::scene::Scene;
use crate::verdict::{Under, Unpassed, Verdict, Wrong, ensure, ensure_eq};

/// Requests of a run.
const REQUESTS: usize = 200;

pub(super) fn cases() -> Vec<Case> {
    (1..=8)
        .map(|run| {
            let name = format!("answers_like_the_model_{run}");
            Case::new(
                Layer::Backend,
                "random",
                Law::AtMostOneHolder,
                name,
                move |scene| {
                    Box::pin(async move {
                        // Each run goes its own way from the one seed.
                        for _ in 0..run * 7 {
                            scene.below(1_000_000);
                        }
                        Run::new(scene).await?.run().await
                    })
                },
            )
        })
        .collect()
}

const FLAT: [&str; 4] = ["k", "l", "%", "k_"];
const PATHS: [&str; 7] = ["/a", "/a/b", "/a/b/c", "/a/d", "/a!", "/b", "/b/c"];

struct Run {
    scene: Scene,
    model: Model,
    actors: Vec<Actor>,
    /// Every request that was ever sent, with its actor.
    sent: Vec<(usize, Acquire)>,
    greatest: Option<FencingToken>,
}

impl Run {
    async fn new(scene: Scene) -> Verdict<Self> {
        let mut run = Run {
            scene,
            model: Model::default(),
            actors: Vec::new(),
            sent: Vec::new(),
            greatest: None,
        };
        for _ in 0..3 {
            run.open().await?;
        }
        Ok(run)
    }

    async fn open(&mut self) -> Verdict {
        let actor = match self.actors.first() {
            Some(first) if self.scene.below(2) == 0 => self.scene.beside(first).await?,
            _ => self.scene.actor().await?,
        };
        self.model.open(actor.session());
        self.actors.push(actor);
        Ok(())
    }

    async fn run(mut self) -> Verdict {
        for _ in 0..REQUESTS {
            match self.scene.below(100) {
                0..45 => self.acquire().await?,
                45..55 => self.send_again().await?,
                55..70 => self.release().await?,
                70..78 => self.renew().await?,
                78..83 => self.end().await?,
                83..90 => self.adopt().await?,
                90..92 => self.sweep().await?,
                92..96 => self.confirm().await?,
                _ => self.compare().await?,
            }
        }
        self.compare().await
    }

    fn someone(&self) -> usize {
        // The last ones mostly live.
        let last = self.actors.len().min(4);
        self.actors.len() - 1 - self.scene.below(last)
    }

    async fn acquire(&mut self) -> Verdict {
        let who = self.someone();
        let actor = &self.actors[who];
        let wants: Vec<(Want, &str)> = if self.scene.below(2) == 0 {
            let want = *self.scene.pick(&[
                Want::Create,
                Want::Upsert,
                SHARE,
                share(1),
                share(2),
                Want::Upsert,
            ]);
            (0..=self.scene.below(3))
                .map(|_| (want, *self.scene.pick(&FLAT)))
                .collect()
        } else {
            (0..=self.scene.below(3))
                .map(|_| {
                    (
                        *self.scene.pick(&[Want::Write, Want::Read]),
                        *self.scene.pick(&PATHS),
                    )
                })
                .collect()
        };
        // One of two owners of the session, or one of its own.
        let mut request = actor.ask(&wants);
        if self.scene.below(2) == 0 {
            request.owner.m = u64::MAX / 4 + u64::from(self.scene.below(2) == 0);
        }
        request.joined = self.scene.below(4) == 0;
        self.sent.push((who, request.clone()));
        self.send(who, &request).await
    }

    async fn send_again(&mut self) -> Verdict {
        if self.sent.is_empty() {
            return Ok(());
        }
        let (who, request) = self.scene.pick(&self.sent).clone();
        // What is held and meets a holder that came in beside it may be answered either way.
        if self.model.holds(request.grant) && !self.model.in_the_way(&request).is_empty() {
            return Ok(());
        }
        self.send(who, &request).await
    }

    async fn send(&mut self, who: usize, request: &Acquire) -> Verdict {
        let actor = &self.actors[who];
        let refused = self.model.in_the_way(request);
        let may = self.model.may_acquire(request.grant);
        let answer = actor.send(request).await?;
        match answer {
            Acquired::Acquired(token) if may && refused.is_empty() => {
                if !self.model.holds(request.grant) {
                    self.rises(token)?;
                }
                self.greatest = self.greatest.max(Some(token));
                self.model.granted(request);
                Ok(())
            }
            // A store that learns of a death too late may write a claim that does not count.
            Acquired::Acquired(_) if !may && !actor.backend().info().atomic => {
                self.model.granted(request);
                Ok(())
            }
            Acquired::Busy(busy) if !refused.is_empty() => {
                named(&busy, &refused).under(Law::RefusalIsAValue)
            }
            Acquired::Void if !may => Ok(()),
            answer => {
                let (law, want) = match (may, refused.is_empty()) {
                    (false, _) => (self.gone(request.grant), "it void".to_owned()),
                    (true, true) => (Self::allowing(request), "it granted".to_owned()),
                    (true, false) => (Law::AtMostOneHolder, format!("it refused by {refused:?}")),
                };
                let (grant, claims) = (request.grant, &request.claims);
                let what = format!("{grant} {claims:?}: got {answer:?}, want {want}");
                Err(Unpassed::Breaks(law, what))
            }
        }
    }

    /// The token of a new grant is greater than all before.
    fn rises(&self, token: FencingToken) -> Verdict {
        if self.greatest < Some(token) {
            return Ok(());
        }
        let what = format!("token {token} after {:?}", self.greatest);
        Err(Unpassed::Breaks(Law::TokensOnlyRise, what))
    }

    /// Why the grant holds nothing: its session has ended, or it is over itself.
    fn gone(&self, grant: Grant) -> Law {
        if self.model.session(grant.session).life == Life::Living {
            Law::UnknownIsSettled
        } else {
            Law::DeadStaysDead
        }
    }

    /// Why the request has to be granted: nobody is in the way, or no more shares than may be.
    fn allowing(request: &Acquire) -> Law {
        let share = |claim: &Claim| matches!(claim.want(), Want::Share { .. });
        if request.claims.iter().any(share) {
            Law::SharedAreASet
        } else {
            Law::AllowedIsGranted
        }
    }

    async fn release(&mut self) -> Verdict {
        if self.sent.is_empty() {
            return Ok(());
        }
        let held: Vec<usize> = (0..self.sent.len())
            .filter(|at| self.model.holds(self.sent[*at].1.grant))
            .collect();
        // Mostly what is held; now and then a late copy.
        let at = if held.is_empty() || self.scene.below(4) == 0 {
            self.scene.below(self.sent.len())
        } else {
            *self.scene.pick(&held)
        };
        let (who, request) = &self.sent[at];
        let told = self.actors[*who].gives_back(request).await?;
        let expected = self.model.release(request.grant);
        // Whoever meets what does not count may have removed it.
        let is_so = told == expected || (expected, told) == (Stood::Fallen, Stood::Absent);
        if is_so {
            return Ok(());
        }
        Err(Unpassed::Breaks(
            Law::OwnClaimsOnly,
            format!(
                "{} is released, and was {expected:?}: {told:?}",
                request.grant
            ),
        ))
    }

    async fn renew(&mut self) -> Verdict {
        let who = self.someone();
        let actor = &self.actors[who];
        let session = actor.session();
        // What was over stays over, and some of what is not held becomes it.
        let live: BTreeSet<u64> = self
            .sent
            .iter()
            .map(|(_, request)| request.grant)
            .filter(|grant| {
                grant.session == session && !self.model.session(session).retired.contains(grant.n)
            })
            .filter(|grant| self.model.holds(*grant) || self.scene.below(2) == 0)
            .filter(|_| self.scene.below(10) > 0)
            .map(|grant| grant.n)
            .collect();
        let highest = self
            .sent
            .iter()
            .filter(|(_, r)| r.grant.session == session)
            .map(|(_, r)| r.grant.n)
            .max();
        let retired = Ranges::except(live, highest.unwrap_or(0) + 1);
        let change = match self.scene.below(5) {
            0 | 1 => match self.greatest {
                Some(token) => IntentChange::Put(registered(
                    of_guard(token),
                    &format!("intent {}", self.scene.below(1_000)),
                )?),
                None => IntentChange::Keep,
            },
            2 => IntentChange::Drop,
            _ => IntentChange::Keep,
        };
        let renewal = actor.renewal(&retired.to_string(), change);
        if self.scene.below(10) == 0 {
            // This one knows more than the store.
            let ahead = renewal.clone().after(renewal.seq);
            let expected = self.model.renew(session, &ahead);
            renewed(actor.send_renewal(&ahead).await?, expected)?;
        }
        if self.scene.below(5) == 0 {
            // This one comes later than the next.
            let newer = actor.renewal(&retired.to_string(), IntentChange::Keep);
            let expected = self.model.renew(session, &newer);
            renewed(actor.send_renewal(&newer).await?, expected)?;
        }
        let expected = self.model.renew(session, &renewal);
        renewed(actor.send_renewal(&renewal).await?, expected)
    }

    async fn end(&mut self) -> Verdict {
        let who = self.someone();
        let session = self.actors[who].session();
        let how = *self
            .scene
            .pick(&[End::IfDue, End::Close, End::Revoke, End::Discard]);
        let by = &self.actors[self.someone()];
        let state = by.end_of(session, how).await?;
        let expected = self.model.end(session, how);
        alike(&state, &expected)?;
        let living = self
            .actors
            .iter()
            .filter(|actor| self.model.session(actor.session()).life == Life::Living);
        if living.count() < 3 {
            self.open().await?;
        }
        Ok(())
    }

    async fn adopt(&mut self) -> Verdict {
        let left: Vec<&Actor> = self
            .actors
            .iter()
            .filter(|actor| self.model.session(actor.session()).life == Life::Abandoned)
            .collect();
        let session = if left.is_empty() {
            self.actors[self.someone()].session()
        } else {
            self.scene.pick(&left).session()
        };
        let by = &self.actors[self.someone()];
        let number = self.model.session(session).adoption;
        let about = (number + self.scene.below(3) as u64).saturating_sub(1);
        match self.scene.below(3) {
            0 => {
                let settled = by.settle(session, about).await?;
                same(
                    settled,
                    self.model.settle(session, about, by.session()),
                    "settling",
                )
                .under(Law::Recovery)?;
            }
            // Only what is abandoned was ever asked for, and given up.
            1 if self.model.session(session).life == Life::Abandoned => {
                by.give_up(session, about).await.under(Law::Recovery)?;
                self.model
                    .adopt(session, about, by.session(), Adopt::GiveUp);
            }
            _ => {
                let adoption = by.adopt(session, about).await?;
                let expected = self.model.adopt(session, about, by.session(), Adopt::Take);
                if let Some(adoption) = &adoption {
                    if adoption.number == number + 1 {
                        self.rises(adoption.token)?;
                    }
                    self.greatest = self.greatest.max(Some(adoption.token));
                }
                let adoption = adoption.map(|adoption| (adoption.number, adoption.left));
                same(adoption, expected, "an adoption").under(Law::Recovery)?;
            }
        }
        Ok(())
    }

    async fn sweep(&self) -> Verdict {
        let which = if self.scene.below(2) == 0 {
            Sweep::All
        } else {
            Sweep::Session(self.actors[self.someone()].session())
        };
        self.scene.sweep(which).await.under(Law::Listing)
    }

    async fn confirm(&self) -> Verdict {
        if self.sent.is_empty() {
            return Ok(());
        }
        let (who, request) = self.scene.pick(&self.sent);
        // Whether an abandoned session's lock is confirmed to a process that lost it is of no use to anybody.
        let living = self.model.session(request.grant.session).life == Life::Living;
        let holds = living && self.model.holds(request.grant);
        let confirmed = self.actors[*who].confirms(request).await?;
        let law = if holds {
            // Somebody has taken away what is not theirs.
            Law::OwnClaimsOnly
        } else {
            self.gone(request.grant)
        };
        same(confirmed, holds, &format!("{} is held", request.grant)).under(law)
    }

    /// Everything that is listed, against everything that counts.
    async fn compare(&self) -> Verdict {
        let by = &self.actors[self.someone()];
        for key in FLAT.into_iter().chain(PATHS) {
            let key = LockKey::parse(key)?;
            let page = by
                .backend()
                .records(&Filter::Key(key.clone()), None, 10)
                .await?;
            let listed: BTreeSet<Grant> = page
                .items
                .iter()
                .flat_map(|record| &record.holders)
                .filter_map(|holder| holder.grant)
                .collect();
            let more = page.items.iter().any(|record| record.more);
            let (on, below) = (self.model.on(&key), self.model.on_or_below(&key));
            let shown = || {
                ensure!(
                    listed.is_subset(&below),
                    "{key} lists {listed:?}, of which only {below:?} count"
                );
                ensure!(
                    more || on.is_subset(&listed),
                    "{key} lists {listed:?}, and is held by {on:?}"
                );
                Ok(())
            };
            shown().under(Law::Listing)?;
        }
        for actor in &self.actors {
            let state = by.end_of(actor.session(), End::IfDue).await?;
            alike(&state, self.model.session(actor.session()))?;
        }
        Ok(())
    }
}

/// The state is the model's. What a dead session was adopted by, and what is over in it, is of no use to anybody.
fn alike(state: &SessionState, expected: &Session) -> Verdict {
    let about = |retired: &Ranges, adoption: u64, adopter: Option<SessionId>| match expected.life {
        Life::Living => (retired.clone(), 0, None),
        Life::Abandoned => (retired.clone(), adoption, adopter),
        Life::Dead => (Ranges::EMPTY, 0, None),
    };
    let seen = about(&state.retired, state.adoption, state.adopter);
    let wanted = about(&expected.retired, expected.adoption, expected.adopter);
    let law = if state.life != expected.life {
        match (state.life, expected.life) {
            // It has left an intent, or not.
            (Life::Abandoned, _) | (_, Life::Abandoned) => Law::Recovery,
            _ => Law::DeadStaysDead,
        }
    } else if seen.0 != wanted.0 {
        Law::UnknownIsSettled
    } else {
        Law::Recovery
    };
    let what = format!("the session {}", state.session);
    same((state.life, seen), (expected.life, wanted), &what).under(law)
}

fn same<T: PartialEq + Debug>(seen: T, wanted: T, what: &str) -> Verdict {
    ensure_eq!(seen, wanted, "{what}");
    Ok(())
}

fn renewed(seen: Renewed, wanted: Renewed) -> Verdict {
    let law = match (&seen, &wanted) {
        (Renewed::Dead, _) | (_, Renewed::Dead) => Law::DeadStaysDead,
        _ => Law::OneWriter,
    };
    same(seen, wanted, "a renewal").under(law)
}

/// The refusal names the first refused claim, and nobody who is not in the way.
fn named(busy: &Busy, refused: &[(Claim, BTreeSet<Grant>)]) -> Verdict {
    ensure_eq!(busy.first().claim, refused[0].0, "the first refused claim");
    for seen in busy.refused() {
        let Some((_, in_the_way)) = refused.iter().find(|(claim, _)| *claim == seen.claim) else {
            return Err(Wrong(format!("{:?} is not refused: {busy:?}", seen.claim)));
        };
        let listed: BTreeSet<Grant> = seen
            .holders
            .iter()
            .filter_map(|holder| holder.grant)
            .collect();
        ensure!(
            !listed.is_empty(),
            "a refusal names who is in the way: {busy:?}"
        );
        ensure!(
            listed.is_subset(in_the_way),
            "{listed:?} are named for {:?}, and {in_the_way:?} are in the way",
            seen.claim
        );
    }
    Ok(())
}
