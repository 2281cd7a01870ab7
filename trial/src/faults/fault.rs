//! [`Fault`]: the faults of processes, of their network, and of servers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fault of a part of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// Of a process that locks.
    Process(ProcessFault),
    /// Of the network between such a process and the store.
    Network(NetworkFault),
    /// Of single requests of such a process.
    Request(RequestFault),
    /// Of a server of the store.
    Server(ServerFault),
}

/// A fault of a process that locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProcessFault {
    /// SIGKILL.
    Killed,
    /// SIGSTOP, and SIGCONT after a while.
    Stopped,
}

/// A fault that a [`Proxy`](super::Proxy) applies to the connections between a client and its store.
///
/// Held data is not lost: it is delivered when the fault ends, as TCP does by sending again. So the store may execute a
/// request whose client gave up long before, or is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkFault {
    /// Connections are closed, and new ones are refused.
    Cut,
    /// Nothing passes, neither data nor the end of a connection. Connections stay, and new ones are accepted.
    Silent,
    /// Answers pass, requests do not.
    RequestsHeld,
    /// Requests pass, answers do not.
    AnswersHeld,
    /// A part of the next request passes, and both sides see a reset. That ends the fault.
    Reset,
    /// Everything is late, and arrives in small pieces.
    Slow,
    /// The next answer is dropped, and both sides see a reset. That ends the fault.
    Swallowed,
}

/// A fault that a [`Link`](super::Link) applies to a request, besides its delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RequestFault {
    /// The request is refused, and the client knows.
    Refused,
    /// The request never arrives.
    Lost,
    /// The answer never arrives.
    AnswerLost,
    /// The request is executed once more, later.
    Repeated,
}

/// A fault of a server of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServerFault {
    /// SIGKILL. The server is started again when another one has its role; one alone, after a while.
    Killed,
    /// SIGSTOP, until long after another server has its role.
    Stopped,
    /// SIGSTOP, for a time that the others do not notice.
    Paused,
    /// Its connections to the other servers are reset, until long after another one has its role. Clients reach it.
    CutOff,
    /// The same, but silently: connections stay, and nothing passes.
    Silenced,
    /// It ends in order, and is started again.
    Restarted,
    /// It loses its power: what it has written and not synced is gone when it starts again.
    PowerLost,
    /// Its disk is full.
    DiskFull,
    /// Each sync of its disk takes long.
    DiskSlow,
    /// Its memory is full.
    MemoryFull,
    /// It can open no further file and no further connection.
    DescriptorsUsedUp,
    /// Its clock is set forward, by more than a session lives.
    ClockForward,
    /// Its clock is set back.
    ClockBack,
    /// Another server takes its role, in order.
    HandedOver,
    /// It is stopped, another server is forced to take its role, and then it goes on, as if it still had it.
    TakenOver,
    /// A replica is cut off from it.
    ReplicaCutOff,
}

impl NetworkFault {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Cut,
        Self::Silent,
        Self::RequestsHeld,
        Self::AnswersHeld,
        Self::Reset,
        Self::Slow,
        Self::Swallowed,
    ];
}

impl ServerFault {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Killed,
        Self::Stopped,
        Self::Paused,
        Self::CutOff,
        Self::Silenced,
        Self::Restarted,
        Self::PowerLost,
        Self::DiskFull,
        Self::DiskSlow,
        Self::MemoryFull,
        Self::DescriptorsUsedUp,
        Self::ClockForward,
        Self::ClockBack,
        Self::HandedOver,
        Self::TakenOver,
        Self::ReplicaCutOff,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process(ProcessFault::Killed) => "SIGKILL",
            Self::Process(ProcessFault::Stopped) => "SIGSTOP and SIGCONT",
            Self::Network(NetworkFault::Cut) => "cuts",
            Self::Network(NetworkFault::Silent) => "silences",
            Self::Network(NetworkFault::RequestsHeld) => "one-way cuts of requests",
            Self::Network(NetworkFault::AnswersHeld) => "one-way cuts of answers",
            Self::Network(NetworkFault::Reset) => "resets in a request",
            Self::Network(NetworkFault::Slow) => "slow ways",
            Self::Network(NetworkFault::Swallowed) => "answers swallowed",
            Self::Request(RequestFault::Refused) => "requests refused",
            Self::Request(RequestFault::Lost) => "requests lost",
            Self::Request(RequestFault::AnswerLost) => "answers lost",
            Self::Request(RequestFault::Repeated) => "requests repeated",
            Self::Server(ServerFault::Killed) => "servers killed",
            Self::Server(ServerFault::Stopped) => "servers stopped",
            Self::Server(ServerFault::Paused) => "servers paused",
            Self::Server(ServerFault::CutOff) => "servers cut off",
            Self::Server(ServerFault::Silenced) => "servers silenced",
            Self::Server(ServerFault::Restarted) => "servers restarted",
            Self::Server(ServerFault::PowerLost) => "losses of power",
            Self::Server(ServerFault::DiskFull) => "full disks",
            Self::Server(ServerFault::DiskSlow) => "slow disks",
            Self::Server(ServerFault::MemoryFull) => "full memories",
            Self::Server(ServerFault::DescriptorsUsedUp) => "descriptors used up",
            Self::Server(ServerFault::ClockForward) => "clocks set forward",
            Self::Server(ServerFault::ClockBack) => "clocks set back",
            Self::Server(ServerFault::HandedOver) => "failovers by order",
            Self::Server(ServerFault::TakenOver) => "failovers by force",
            Self::Server(ServerFault::ReplicaCutOff) => "replicas cut off",
        })
    }
}
