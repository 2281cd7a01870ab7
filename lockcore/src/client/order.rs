//! What the keeper of a session is asked for.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::client::adopting::Adopting;
use crate::{Claim, Incarnation, Registered, Result, Stood};

/// What the keeper is asked for.
#[derive(Debug)]
pub(crate) enum Order {
    /// These grants are to be over. If they are what the intent is about, it goes first; the claims follow when that is
    /// acknowledged.
    Release(Release),
    /// Register the intent. `true` when a living session has it.
    Put(Registered, oneshot::Sender<bool>),
    /// Close the session at once, and leave its intent.
    Abandon,
    /// The store said that the session is dead.
    Fall,
    /// Run this beside the keeper: the runtime of whoever asks may hang.
    Run(Beside),
    /// Renew at once. `true` when the session lived then.
    Renew(oneshot::Sender<bool>),
    /// An adoption must not be ours.
    GiveUp(GiveUp, Option<oneshot::Sender<Result<()>>>),
}

/// The adoption behind the one that was seen.
#[derive(Debug)]
pub(crate) struct GiveUp {
    pub(crate) adopting: Adopting,
    pub(crate) seen: u64,
    /// The incarnation of the store that was asked for it.
    pub(crate) within: Incarnation,
}

/// What runs beside a keeper.
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
    /// The grants are what the session's intent is about, and the change is finished or never began. Others of the
    /// session leave the intent alone.
    pub(crate) with_intent: bool,
    /// A copy of one of the acquiring requests may still be under way.
    pub(crate) in_doubt: bool,
    /// The grants are all that the session has, and many: it is closed instead, with one write.
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
    /// It was held until then: the store says so.
    Released,
    /// Another task of this process has it now, which waited for the same, or others have the same share. The store was not
    /// asked: it was held until then as far as this process knew. [`confirm`](crate::Held::confirm) before the release asks.
    HandedOn,
    /// It was no longer held: its session had died, was closed or revoked, or somebody else had removed it.
    /// [`lost`](crate::Held::lost) of what was [held](crate::Guard::held) tells why, if it is known. An intent is left behind,
    /// unless its removal had been acknowledged before.
    NotHeld,
    /// It is given back, and its session lives. Whether it was held until then nobody knows: it was gone, and an earlier copy
    /// of the request, which was not answered, may have released it.
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
