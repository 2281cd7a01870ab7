//! [`Fault`]: what a trial does to processes, to their ways to the store, and to servers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that is done to a part of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// To a process that locks.
    Process(ProcessFault),
    /// To the way between such a process and the store.
    Network(NetworkFault),
    /// To single requests of such a process.
    Request(RequestFault),
    /// To a server of the store.
    Server(ServerFault),
}

/// What is done to a process that locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProcessFault {
    /// SIGKILL.
    Killed,
    /// SIGSTOP, and SIGCONT after a while.
    Stopped,
}

/// What a [`Proxy`](super::Proxy) does to the connections between a client and its store.
///
/// What is held is not lost: it goes on when the fault is over, as what TCP sends again does. So the store may execute
/// a request whose client has given up long before, or is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkFault {
    /// Connections are closed, and new ones are refused.
    Cut,
    /// Nothing passes, neither data nor the end of a connection. Connections stay, and new ones are made.
    Silent,
    /// Answers pass, and requests do not.
    RequestsHeld,
    /// Requests pass, and answers do not.
    AnswersHeld,
    /// The next request passes in part, and both sides see a reset. It is over then.
    Reset,
    /// Everything is late, and comes in small pieces.
    Slow,
    /// The next answer is dropped, and both sides see a reset. It is over then.
    Swallowed,
}

/// What a [`Link`](super::Link) does to a request, beside its delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RequestFault {
    /// It is refused, and the client knows.
    Refused,
    /// It never arrives.
    Lost,
    /// Its answer never arrives.
    AnswerLost,
    /// It is executed once more, later.
    Repeated,
}

/// What is done to a server of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServerFault {
    /// SIGKILL; it is started again when another one has its part.
    Killed,
    /// SIGSTOP, until long after another one has its part.
    Stopped,
    /// SIGSTOP, for a time that the others do not notice.
    Paused,
    /// What it has with the other servers is reset, until long after another one has its part. Clients reach it.
    CutOff,
    /// The same, but nothing is heard of it: connections stay, and nothing passes.
    Silenced,
}

impl NetworkFault {
    /// Every one.
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
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::Killed,
        Self::Stopped,
        Self::Paused,
        Self::CutOff,
        Self::Silenced,
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
        })
    }
}
