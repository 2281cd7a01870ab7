//! Orders to the keeper of a session.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::adopting::Adopting;
use crate::{Claim, Incarnation, Registered, Result, Stood};

/// An order to the keeper.
#[derive(Debug)]
pub(crate) enum Order {
    /// Retire these grants. If the intent is about them, it is removed first; the claims follow when that is
    /// acknowledged.
    Release(Release),
    /// Register the intent. Answers `true` when a living session has it.
    Put(Registered, oneshot::Sender<bool>),
    /// Close the session at once and leave its intent.
    Abandon,
    /// The store said that the session is dead.
    Fall,
    /// Run this beside the keeper: the runtime of the asker may hang.
    Run(Beside),
    /// Renew at once. Answers `true` if the session lived then.
    Renew(oneshot::Sender<bool>),
    /// Leave the session, with all that it holds, to the end of one last lease.
    Keep(Keep),
    /// Make sure that an adoption is not this process's.
    GiveUp(GiveUp, Option<oneshot::Sender<Result<()>>>),
}

/// How a session is left.
#[derive(Debug)]
pub(crate) struct Keep {
    /// The end of its last lease, by this process's clock.
    pub(crate) until: Instant,
    /// The least number of the renewal that leaves it.
    pub(crate) seq: u64,
    /// How to give it back. Its grants are the only ones that the session may have.
    pub(crate) release: Release,
    pub(crate) done: oneshot::Sender<Result<Left>>,
}

/// What became of a session that was to be left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Left {
    /// It lives until the end of its lease.
    Kept,
    /// It does not live, or its grants were evicted.
    NotHeld,
    /// It has other grants, which would be lost.
    Shared,
}

/// The adoption after the one that was seen.
#[derive(Debug)]
pub(crate) struct GiveUp {
    pub(crate) adopting: Adopting,
    pub(crate) seen: u64,
    /// The incarnation of the store that was asked for it.
    pub(crate) within: Incarnation,
}

/// A future that runs beside a keeper.
pub(crate) struct Beside(pub(crate) BoxFuture<'static, ()>);

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Beside")
    }
}

/// Grants to give back.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) claims: Arc<[Claim]>,
    pub(crate) grants: Vec<(u64, Range<usize>)>,
    /// The session's intent is about these grants, and the change is finished or never began. Other grants of the
    /// session leave the intent alone.
    pub(crate) with_intent: bool,
    /// A copy of one of the acquiring requests may still be under way.
    pub(crate) in_doubt: bool,
    /// The session has many grants, and these are all of them: one write closes it instead.
    pub(crate) by_close: bool,
    pub(crate) done: Option<oneshot::Sender<Result<Released>>>,
}

impl Release {
    pub(crate) fn answer(self, answer: Result<Released>) {
        if let Some(done) = self.done {
            // Who asked may not be interested any more.
            let _ = done.send(answer);
        }
    }
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it may not have been held any more"]
pub enum Released {
    /// The lock was held until the release: the store says so.
    Released,
    /// Another task of this process, which waited for the same lock, has it now; or other tasks share it. The store was
    /// not asked: the lock was held until then as far as this process knew. To ask the store, call
    /// [`confirm`](crate::Held::confirm) before the release.
    HandedOn,
    /// The lock was no longer held: its session had died, was closed or revoked, or somebody else had removed the lock.
    /// [`lost`](crate::Held::lost) on what was [held](crate::Guard::held) tells why, if that is known. An intent is
    /// left behind, unless its removal was acknowledged before, or the store still takes it when the session is closed.
    NotHeld,
    /// The lock is given back. Nobody knows whether it was held until then: the store did not find it, and an earlier,
    /// unanswered copy of the request may have released it.
    Unknown,
}

impl Released {
    /// Of one grant. `once`: no other copy of the request can have been executed.
    pub(crate) fn of(stood: Stood, once: bool) -> Self {
        match stood {
            Stood::Held => Released::Released,
            Stood::Fallen => Released::NotHeld,
            Stood::Absent if once => Released::NotHeld,
            Stood::Absent => Released::Unknown,
        }
    }

    /// Of a guard that has two grants.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Released::NotHeld, _) | (_, Released::NotHeld) => Released::NotHeld,
            (Released::Unknown, _) | (_, Released::Unknown) => Released::Unknown,
            (Released::HandedOn, _) | (_, Released::HandedOn) => Released::HandedOn,
            (Released::Released, Released::Released) => Released::Released,
        }
    }
}
