//! [`Event`] and [`History`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, Write};

use lockcore::backend::{IntentChange, Ranges, Renewed};
use lockcore::{Claim, FencingToken, Grant, Life, LockKey, OwnerId, SessionId};
use serde::{Deserialize, Serialize};

use super::calls::{Call, Reply};
use super::text;
use crate::faults::Fault;

/// An event in one process, or one that happened to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds on the clock that all processes of the history share.
    pub at: u64,
    /// The process. A process that was killed never returns under its number. 0 is the store, and everything outside
    /// the processes.
    pub process: u32,
    /// What happened.
    pub what: What,
}

/// The content of an event. Attempts, owners and adoptions have numbers of their own, unique in the history.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// A program asks for claims. Recorded before anything is sent.
    Asked {
        /// The attempt.
        attempt: u64,
        /// The owner; an attempt's own number, if it has no explicit owner.
        owner: u64,
        /// The claims, as the program states them.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
        /// Whether it has an intent, whose payload is the attempt's number.
        intent: bool,
    },
    /// A guard was handed out.
    Granted {
        /// The attempt.
        attempt: u64,
        /// Its session.
        #[serde(with = "text")]
        session: SessionId,
        /// Its token.
        #[serde(with = "text")]
        token: FencingToken,
        /// The numbers of its grants.
        numbers: Vec<u64>,
        /// How long the guard says that it is valid, in nanoseconds; 0 if it is not.
        left: u64,
        /// How long a guard is valid from when the last acknowledged renewal was sent, in nanoseconds.
        validity: u64,
    },
    /// Nothing was granted.
    Refused {
        /// The attempt.
        attempt: u64,
        /// The reason.
        outcome: Outcome,
    },
    /// A program checked its guard.
    Looked {
        /// The attempt that got the guard.
        attempt: u64,
        /// How long the guard says that it is still valid, in nanoseconds; 0 if it is not.
        left: u64,
    },
    /// A program has asked the store whether its guard still holds. Recorded after the answer.
    Confirmed {
        /// The attempt that got the guard.
        attempt: u64,
        /// The answer.
        held: bool,
    },
    /// A program gives its guard back. Recorded before that is done.
    GivingBack {
        /// The attempt that got the guard.
        attempt: u64,
        /// How it is given back.
        how: How,
    },
    /// A lock stays held without a process from when it was given up, or was renewed by its handle. Recorded after the
    /// answer.
    Kept {
        /// The attempt that got the guard.
        attempt: u64,
        /// For how much longer it is held at least, in nanoseconds.
        left: u64,
        /// For how long it is held at least from when the renewal was sent, in nanoseconds.
        validity: u64,
    },
    /// The result of a guard's release.
    GaveBack {
        /// The attempt that got the guard.
        attempt: u64,
        /// Whether it was held until then; `None` if nobody knows.
        held: Option<bool>,
    },
    /// An abandoned session was adopted.
    Adopted {
        /// The adoption.
        adoption: u64,
        /// The adopted session.
        #[serde(with = "text")]
        session: SessionId,
        /// The attempt that its intent names.
        attempt: u64,
        /// The token of the holder that died.
        #[serde(with = "text")]
        old_token: FencingToken,
        /// The token of the adopter.
        #[serde(with = "text")]
        token: FencingToken,
    },
    /// The adopter still believes in its adoption.
    Believed {
        /// The adoption.
        adoption: u64,
        /// For how long, in nanoseconds.
        left: u64,
    },
    /// The adopter settles. Recorded before that is done.
    Settling {
        /// The adoption.
        adoption: u64,
    },
    /// The adopter gives up, or has lost its session.
    GivingUp {
        /// The adoption.
        adoption: u64,
    },
    /// A resource answered a read under a lock.
    Read {
        /// The resource.
        #[serde(with = "text")]
        resource: LockKey,
        /// Whether it checks tokens.
        fenced: bool,
        /// The attempt that got the guard.
        attempt: u64,
        /// The value; `None` if the token was refused.
        value: Option<u64>,
    },
    /// A resource answered a write under a lock. The new value is one more than the value read.
    Wrote {
        /// The resource.
        #[serde(with = "text")]
        resource: LockKey,
        /// Whether it checks tokens.
        fenced: bool,
        /// The attempt that got the guard.
        attempt: u64,
        /// The value that was read before.
        read: u64,
        /// Whether the write was accepted.
        taken: bool,
    },
    /// The process is paused.
    Paused,
    /// The process continues.
    Resumed,
    /// The process is killed.
    Killed,
    /// The store's clock steps. A step forward may end a lease before its guards expect it.
    Stepped {
        /// By this many nanoseconds. 0: a step that was told before is over.
        by: i64,
    },
    /// The store's clock deviates by so little that the margin of a guard covers it.
    Drifted {
        /// By this many nanoseconds.
        by: i64,
    },
    /// A copy of the store is made.
    Copied,
    /// The last copy takes over. Everything that the store executed since is forgotten. Time and tokens go on.
    FailedOver {
        /// Whether the store has an incarnation, which is another one from now on.
        named: bool,
    },
    /// An operator is about to have a session's owner give a lock up.
    Evicting {
        /// The session.
        #[serde(with = "text")]
        session: SessionId,
    },
    /// An operator revokes a session. Recorded before that is done.
    Revoking {
        /// The session.
        #[serde(with = "text")]
        session: SessionId,
    },
    /// An operator discards an intent. Recorded before that is done.
    Discarding {
        /// Its session.
        #[serde(with = "text")]
        session: SessionId,
    },
    /// A fault begins: on this process's connection to the store or, for process 0, in the store itself.
    Struck {
        /// The fault.
        fault: Fault,
    },
    /// The fault ends.
    Mended {
        /// The fault.
        fault: Fault,
    },
    /// All faults have ended.
    Calm,
    /// Long after, an attempt has no answer.
    Stuck {
        /// The attempt.
        attempt: u64,
    },
    /// Long after, a holder is live although no guard is left.
    Left {
        /// The key.
        #[serde(with = "text")]
        key: LockKey,
        /// The grant.
        #[serde(with = "text")]
        grant: Grant,
    },
    /// Long after, a key cannot be acquired.
    NotToBeHad {
        /// The key.
        #[serde(with = "text")]
        key: LockKey,
    },
    /// A client was shut down.
    ShutDown {
        /// Whether everything was released and closed in time.
        done: bool,
    },
    /// The store executed a request.
    Stored(Stored),
    /// The setup of the run. Laws about time are judged by it.
    Begun {
        /// The time to live of its sessions, in nanoseconds.
        ttl: u64,
        /// How often a watch polls the store, if the store does not push, in nanoseconds.
        poll: Option<u64>,
        /// How much later than its TTL the store may still say that a session is not due, in nanoseconds.
        allowance: u64,
        /// Nothing happens to the store, nor to requests under way. Network faults are recorded.
        steady: bool,
    },
    /// From now on the connection to the store may deliver a request once more, later.
    Repeats,
    /// The store may execute a request once more before it answers, when one of its members takes over from another.
    Doubles,
    /// What a list or a refusal says of a session may be lost with the server that says it.
    Unsure,
    /// A request is sent. Recorded before that is done.
    Called {
        /// Its number, unique in its process.
        call: u64,
        /// The request.
        request: Call,
    },
    /// The answer has come. A request without an answer may yet take effect.
    Answered {
        /// The number of the call.
        call: u64,
        /// The answer.
        reply: Reply,
    },
    /// A watch has resolved.
    Woken {
        /// The call that set it up.
        call: u64,
    },
    /// A watch was dropped before it resolved.
    Unwatched {
        /// The call that set it up.
        call: u64,
    },
    /// The machine woke the process later than requested.
    Late {
        /// By this many nanoseconds.
        by: u64,
    },
}

/// Why nothing was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// Somebody is in the way.
    Busy,
    /// Abandoned work is in the way.
    Abandoned,
    /// The session was lost.
    Lost,
    /// Only the owner itself is in the way.
    WouldDeadlock,
    /// The store failed.
    Failed,
    /// The program did not wait for the answer.
    Cancelled,
}

/// How a guard is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum How {
    /// By its release, which says that the change is finished.
    Released,
    /// By dropping it, which leaves an intent.
    Dropped,
    /// The lock is to stay held, without a process.
    Kept,
}

/// A request that the store has executed, in the store's own order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stored {
    /// A session was opened, or not.
    Open {
        /// The session.
        #[serde(with = "text")]
        session: SessionId,
        /// Its time to live, in nanoseconds.
        ttl: u64,
        /// Whether it was opened.
        opened: bool,
    },
    /// A session was renewed, or not.
    Renew {
        /// The session.
        #[serde(with = "text")]
        session: SessionId,
        /// The number of the send.
        seq: u64,
        /// The retired numbers.
        #[serde(with = "text")]
        retired: Ranges,
        /// The change to its intent.
        change: Change,
        /// The time to live from then on, in nanoseconds, if that changes.
        ttl: Option<u64>,
        /// The store's answer: living, overtaken or dead.
        answer: Answer,
    },
    /// A session was ended, or asked about.
    End {
        /// The session.
        #[serde(with = "text")]
        session: SessionId,
        /// Only if it was due.
        if_due: bool,
        /// Its intent was discarded.
        discard: bool,
        /// The state of the session now: living, abandoned or dead.
        answer: Answer,
    },
    /// Claims were asked for.
    Acquire {
        /// The grant.
        #[serde(with = "text")]
        grant: Grant,
        /// The owner.
        #[serde(with = "text")]
        owner: OwnerId,
        /// The claims.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
        /// The guard has other batches.
        joined: bool,
        /// When the store began with it, and how many events the history had then.
        begun: (u64, usize),
        /// Acquired, busy or void.
        answer: Answer,
        /// The store's token.
        token: Option<u64>,
        /// The holders that a refusal names.
        #[serde(with = "text::list")]
        met: Vec<Grant>,
    },
    /// A grant is released. Recorded before that is done.
    Release {
        /// The grant.
        #[serde(with = "text")]
        grant: Grant,
        /// The claims on whose keys it is released.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
    },
    /// The release of a grant is done.
    Released {
        /// The grant.
        #[serde(with = "text")]
        grant: Grant,
    },
    /// The store was asked whether a grant still holds.
    Confirm {
        /// The grant.
        #[serde(with = "text")]
        grant: Grant,
        /// The claims.
        #[serde(with = "text::claims")]
        claims: Vec<Claim>,
        /// How many events the history had when the store began with it.
        begun: usize,
        /// The answer.
        held: bool,
    },
    /// An abandoned session was adopted, or an adoption was given up.
    Adopt {
        /// Who is adopted.
        #[serde(with = "text")]
        session: SessionId,
        /// The adoption number that the adopter has seen.
        seen: u64,
        /// By whom.
        #[serde(with = "text")]
        adopter: SessionId,
        /// It is given up.
        give_up: bool,
        /// The number of the adoption.
        number: Option<u64>,
    },
    /// An adopted session was settled, or not.
    Settle {
        /// Which.
        #[serde(with = "text")]
        session: SessionId,
        /// By which adoption.
        adoption: u64,
        /// By whom.
        #[serde(with = "text")]
        adopter: SessionId,
        /// Whether.
        settled: bool,
    },
}

/// What a renewal does to an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Nothing.
    Keep,
    /// Puts the one of this attempt.
    Put(u64),
    /// Drops it.
    Drop,
}

impl Change {
    /// The intent is the number of its attempt, as JSON.
    pub(crate) fn of(change: &IntentChange) -> Self {
        match change {
            IntentChange::Keep => Self::Keep,
            IntentChange::Put(put) => {
                let attempt = serde_json::from_slice(put.intent.as_bytes());
                Self::Put(attempt.unwrap_or(u64::MAX))
            }
            IntentChange::Drop => Self::Drop,
        }
    }
}

/// What a store answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// The session lives.
    Living,
    /// The session is dead and has left an intent.
    Abandoned,
    /// The session is dead.
    Dead,
    /// A later renewal was there before.
    Overtaken,
    /// The store has lost what it acknowledged.
    Forgotten,
    /// The store is of another incarnation, and has done nothing.
    Moved,
    /// Everything is held.
    Acquired,
    /// Somebody is in the way.
    Busy,
    /// The session is dead or the number is over.
    Void,
}

impl Answer {
    pub(crate) fn of(renewed: &Renewed) -> Self {
        match renewed {
            Renewed::Living | Renewed::Noted(_) => Self::Living,
            Renewed::Overtaken => Self::Overtaken,
            Renewed::Forgotten => Self::Forgotten,
            Renewed::Moved(_) => Self::Moved,
            Renewed::Dead => Self::Dead,
        }
    }

    pub(crate) fn of_life(life: Life) -> Self {
        match life {
            Life::Living => Self::Living,
            Life::Abandoned => Self::Abandoned,
            Life::Dead => Self::Dead,
        }
    }
}

/// Events in the order in which they happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct History {
    /// The events.
    pub events: Vec<Event>,
    /// Time passes between any two steps of a process, as it does outside a simulation: a guard that was valid when the
    /// client looked may not be so any more when its program does.
    pub real_time: bool,
}

impl History {
    /// A number that is the same for the same events in the same order.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.events.hash(&mut hasher);
        hasher.finish()
    }

    /// Writes one JSON object for each event, each on a line of its own.
    ///
    /// # Errors
    ///
    /// Whatever keeps the lines from being written.
    pub fn write_lines(&self, mut to: impl Write) -> io::Result<()> {
        for event in &self.events {
            serde_json::to_writer(&mut to, event)?;
            to.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Adds events that were written as lines, and puts all of them into the order of their time. Of one file, events
    /// of the same time stay in their order.
    ///
    /// # Errors
    ///
    /// Lines that cannot be read, or are no events.
    pub fn read_lines(&mut self, from: impl BufRead) -> io::Result<()> {
        for line in from.lines() {
            self.events.push(serde_json::from_str(&line?)?);
        }
        self.events.sort_by_key(|event| event.at);
        Ok(())
    }
}
