//! Renewals: when they are sent, and what their answers change.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Keeper;
use crate::client::clock::now;
use crate::client::core::Core;
use crate::client::lost::LostReason;
use crate::client::telemetry;
use crate::{Incarnation, IntentChange, NoteKind, Notes, Ranges, Renewal, Renewed, Result};

pub(super) struct InFlight {
    pub(super) answer: BoxFuture<'static, Result<Renewed>>,
    sent: Instant,
    /// The version of the intent's change that it carries.
    intent: u64,
    /// The incarnation to which it moves the session, with these grants.
    moves: Option<(Incarnation, Ranges)>,
    confirms: Vec<oneshot::Sender<bool>>,
}

impl Keeper {
    /// Renewals are sent every third of the TTL, at least every 10 s, and at once when somebody waits for one, or the
    /// store says that there is news.
    pub(super) fn renew_if_it_is_time(&mut self, now: Instant) {
        if self.renewal.is_some() || now < self.next {
            return;
        }
        self.core.queues.take_back(self.session.id);
        self.seq += 1;
        let (retired, incarnation, granted) = {
            let numbers = self.session.numbers();
            let (incarnation, granted) = match self.moving {
                Some(incarnation) => (incarnation, numbers.granted()),
                None => (numbers.incarnation(), Ranges::EMPTY),
            };
            (numbers.retired(), incarnation, granted)
        };
        let moves = self.moving.map(|_| (incarnation, granted.clone()));
        let renewal = Renewal::new(self.seq, retired, self.intent.clone())
            .after(self.acknowledged)
            .within(incarnation, granted);
        let (backend, id) = (Arc::clone(&self.core.backend), self.session.id);
        let sent = now;
        // None is sent while the store still has the last one.
        let late = now.saturating_duration_since(self.next.max(self.answered));
        self.core.telemetry.renews(id, late, self.core.config.ttl);
        self.renewal = Some(InFlight {
            answer: Box::pin(async move { backend.renew(id, &renewal).await }),
            sent,
            intent: self.intent_version,
            moves,
            confirms: std::mem::take(&mut self.confirms),
        });
        self.renewed = sent;
        self.next = sent + self.core.config.renewal_interval();
        self.news.renewing();
        self.sweep_if_it_is_time(sent);
    }

    pub(super) fn renewed(&mut self, (renewal, answer): (InFlight, Result<Renewed>)) {
        self.answered = now();
        let before = self.session.deadline.get();
        if answer.as_ref().is_ok_and(Renewed::is_living) {
            self.acknowledged = self.seq;
            // Who is told to give something up does not believe in it longer.
            if let Ok(Renewed::Noted(notes)) = &answer {
                self.read(notes);
            }
            if let Some((incarnation, granted)) = &renewal.moves {
                if !self.session.numbers().moves(*incarnation, granted) {
                    // By the incarnation before, meanwhile: whether this one has it, too, is not known.
                    self.next = now();
                    self.confirms.extend(renewal.confirms);
                    return;
                }
                self.moving = None;
                self.session.tell();
            }
        }
        match answer {
            // An answer after the deadline extends nothing, and the loop goes on as lost.
            Ok(Renewed::Living | Renewed::Noted(_))
                if self
                    .session
                    .deadline
                    .extend(now(), renewal.sent + self.core.config.validity()) =>
            {
                self.failures = 0;
                self.tell_renewed(before, renewal.sent);
                self.release_doubts();
                for (what, done) in std::mem::take(&mut self.adopted) {
                    self.give_up(what, done);
                }
                for confirm in renewal.confirms {
                    let _ = confirm.send(true);
                }
                if renewal.intent == self.intent_version {
                    self.intent_acknowledged();
                }
                return;
            }
            Ok(Renewed::Living | Renewed::Noted(_)) => {}
            Ok(Renewed::Dead) => self.fall(),
            Ok(Renewed::Forgotten) if self.gave_back(&renewal) => self.next = now(),
            Ok(Renewed::Forgotten) => self.session.forget(),
            // Whether the intent is there is not known.
            Ok(Renewed::Moved(_)) if self.intent_version > 0 => self.session.forget(),
            Ok(Renewed::Moved(incarnation)) if self.moving.is_none() => {
                self.moving = Some(incarnation);
                self.next = now();
            }
            // An answer to a renewal that a later one overtook acknowledges nothing; nor does an error, nor that of a store
            // which moves on.
            Ok(Renewed::Overtaken | Renewed::Moved(_)) | Err(_) => {
                if let Ok(Renewed::Moved(incarnation)) = answer {
                    self.moving = Some(incarnation);
                }
                self.failures += 1;
                self.next = now() + pause(&self.core, self.failures);
                let (id, error) = (self.session.id, answer.as_ref().err());
                self.core.telemetry.not_renewed(id, self.failures, error);
            }
        }
        self.confirms.extend(renewal.confirms);
    }

    /// Tells how much of the lease was left when the renewal was acknowledged.
    fn tell_renewed(&self, deadline: Option<Instant>, sent: Instant) {
        if !telemetry::IS_ON {
            return;
        }
        let (now, ttl) = (now(), self.core.config.ttl);
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let took = now.saturating_duration_since(sent);
        let (id, left) = (self.session.id, left.unwrap_or_default());
        self.core.telemetry.renewed(id, took, left, ttl);
    }

    /// Whether the release of a grant that the renewal named has begun: it may have been executed before.
    fn gave_back(&self, renewal: &InFlight) -> bool {
        let numbers = self.session.numbers();
        let named = renewal.moves.as_ref().map(|(_, granted)| granted);
        named.is_some_and(|named| numbers.gave_back(named))
    }

    /// Reads the notes of operators. An evicted grant goes with its number; a grant with an intent goes with its
    /// session, which leaves the intent behind.
    pub(super) fn read(&mut self, notes: &Notes) {
        let asks = notes.iter().filter(|note| note.kind == NoteKind::Ask);
        self.session
            .ask(asks.filter_map(|note| Some((note.grant?, note))));
        for note in notes.iter() {
            let (NoteKind::Evict, Some(n)) = (note.kind, note.grant) else {
                continue;
            };
            if self.intent == IntentChange::Drop {
                // Its change is finished, and it is given back.
                continue;
            }
            let why = LostReason::Evicted(note.clone().into());
            if self.session.evict(n, note) {
                self.core.telemetry.lost(self.session.id, Some(n), &why);
                self.core.queues.forget(|chain| !chain.stands());
                self.unswept = true;
                self.next = now();
                match self.put.take() {
                    // Nobody has the guard yet: its change never began.
                    Some(put) => {
                        let _ = put.send(false);
                        self.set_intent(IntentChange::Drop);
                    }
                    None if self.may_have_intent => {
                        self.session.die();
                        self.abandon();
                    }
                    None => {}
                }
            }
        }
    }

    pub(super) fn set_intent(&mut self, change: IntentChange) {
        self.intent = change;
        self.intent_version += 1;
        self.next = now();
    }

    fn intent_acknowledged(&mut self) {
        match std::mem::replace(&mut self.intent, IntentChange::Keep) {
            IntentChange::Keep => {}
            IntentChange::Put(_) => {
                if let Some(put) = self.put.take() {
                    let _ = put.send(true);
                }
            }
            IntentChange::Drop => {
                self.may_have_intent = false;
                for release in std::mem::take(&mut self.after_intent) {
                    self.release(release);
                }
            }
        }
    }
}

/// The answer to the renewal under way; never resolves without one.
pub(super) async fn answered(renewal: &mut Option<InFlight>) -> (InFlight, Result<Renewed>) {
    match renewal {
        None => std::future::pending().await,
        Some(in_flight) => {
            let answer = (&mut in_flight.answer).await;
            let in_flight = renewal.take().expect("it was there a moment ago");
            (in_flight, answer)
        }
    }
}

/// The renewal that is under way when the session closes changes nothing any more. It is not left in the way of the
/// close: it may have its turn, or a connection, before. Never resolves.
pub(super) async fn goes_on(renewal: Option<InFlight>) {
    if let Some(renewal) = renewal {
        let _ = renewal.answer.await;
    }
    std::future::pending().await
}

/// The pause before a renewal or a close is sent again after so many failures.
pub(super) fn pause(core: &Core, failures: u32) -> Duration {
    let longest = (core.config.ttl / 10).min(Duration::from_secs(2));
    core.backoff(failures, Duration::from_millis(50), longest)
}
