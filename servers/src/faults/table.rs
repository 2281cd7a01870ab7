//! The table.

use lockcore_trial::faults::{Fault, NetworkFault, ProcessFault, RequestFault, ServerFault};
use lockcore_trial::history::Law;

/// The stores, in the order of a row's cells.
pub const STORES: [&str; 5] = ["sqlite", "redis", "postgres", "etcd", "elasticsearch"];

/// What a run under a kind of fault says of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// Every law holds.
    Holds,
    /// Some laws may be broken once it has met the store, all others hold.
    Breaks(&'static Loss),
    /// It cannot happen there; the text says why.
    Never(&'static str),
    /// Every law holds. Another test makes it: this one.
    Elsewhere(&'static str),
    /// As [`Cell::Breaks`], and no run of `soak` makes it: the text says what does, or why nothing does.
    BreaksElsewhere(&'static Loss, &'static str),
    /// It can happen, and nobody makes it; the text says why.
    NotMade(&'static str),
}

/// What a store may lose.
#[derive(Debug, PartialEq, Eq)]
pub struct Loss {
    /// In a few words.
    pub what: &'static str,
    /// What follows.
    pub so: &'static str,
    /// The laws that may be broken then.
    pub laws: &'static [Law],
    /// What lists and refusals say of sessions may be lost, too: it is not judged.
    pub unsure: bool,
}

/// A kind of fault: a row of the table.
#[derive(Debug)]
pub struct Kind {
    /// Its name for `--fault`.
    pub name: &'static str,
    /// What goes wrong, in a few words.
    pub what: &'static str,
    /// The faults that a run makes, besides SIGKILL, SIGSTOP and operators.
    pub faults: &'static [Fault],
    /// One for each store.
    pub cells: [Cell; STORES.len()],
}

impl Kind {
    /// The laws that its runs are judged by: turns in line and wake-ups only where nothing happens to servers and requests.
    pub fn laws(&self) -> impl Iterator<Item = Law> {
        let steady = |fault: &Fault| matches!(fault, Fault::Process(_) | Fault::Network(_));
        let all = self.faults.iter().all(steady);
        let laws = Law::JUDGED.into_iter();
        laws.filter(move |law| all || !matches!(law, Law::InTurn | Law::Waiting))
    }

    /// What holds for that store; `None` if it is not in the table.
    #[must_use]
    pub fn cell(&self, store: &str) -> Option<Cell> {
        let at = STORES.iter().position(|name| *name == store)?;
        Some(self.cells[at])
    }
}

impl Cell {
    /// Whether a run of `soak` makes it.
    #[must_use]
    pub fn is_made(&self) -> bool {
        matches!(self, Self::Holds | Self::Breaks(_))
    }

    /// Whether what lists and refusals say of sessions may be lost.
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        matches!(self, Self::Breaks(loss) if loss.unsure)
    }

    /// The laws that may be broken.
    #[must_use]
    pub fn may_break(&self) -> &'static [Law] {
        match self {
            Self::Breaks(loss) => loss.laws,
            _ => &[],
        }
    }
}

/// The kind of that name.
///
/// # Errors
///
/// There is none; the text names all.
pub fn find(name: &str) -> Result<&'static Kind, String> {
    let found = TABLE.iter().find(|kind| kind.name == name);
    found.ok_or_else(|| {
        let known: Vec<&str> = TABLE.iter().map(|kind| kind.name).collect();
        format!("no fault of that name; known are {}", known.join(", "))
    })
}

/// A release waits for no disk and no replica.
const RELEASES: Loss = Loss {
    what: "a release may be lost",
    so: "what was given back is held again, until its session renews or ends; a confirmation, or a release that is repeated, says \
         that it is held",
    laws: &[Law::AllowedIsGranted, Law::ConfirmationsAreTrue],
    unsure: false,
};

/// A list and a refusal tell what the primary has, before its replicas have it, and an old primary what it had.
const READS: Loss = Loss {
    what: "a release may be lost, and what a list said",
    so: "the same, and a session that a list or a refusal called dead may live, with its locks, until it is due again, or the \
         other way round: nobody was granted anything because of that, and what they say of sessions is not judged",
    laws: RELEASES.laws,
    unsure: true,
};

/// What a store has acknowledged last is gone: grants, releases, deaths, intents, their removal, adoptions.
const LAST_WRITES: Loss = Loss {
    what: "the last writes may be lost",
    so: "a lock that was granted last may be granted again, with a greater token, while its holder is not told yet; tokens \
         rise, and a resource that checks them loses nothing",
    laws: &[
        Law::AtMostOneHolder,
        Law::DeadStaysDead,
        Law::DiesOfItsEnd,
        Law::ExpiryFrees,
        Law::SharedAreASet,
        Law::UnknownIsSettled,
        Law::NothingKept,
        Law::AllowedIsGranted,
        Law::ConfirmationsAreTrue,
        Law::Guard,
        Law::IntentHasItsLocks,
        Law::IntentStays,
        Law::OneAdopter,
        Law::LossIsExplained,
    ],
    unsure: false,
};

/// The same, and an old primary grants beside the new one.
const TWO_PRIMARIES: Loss = Loss {
    what: "the last writes may be lost, and two servers may grant",
    so: "the same, and until the old server is stopped it may grant to clients that still reach it, with smaller tokens than \
         the new one's; a resource that checks them refuses those, and loses nothing",
    laws: &[
        Law::AtMostOneHolder,
        Law::DeadStaysDead,
        Law::DiesOfItsEnd,
        Law::ExpiryFrees,
        Law::TokensOnlyRise,
        Law::SharedAreASet,
        Law::UnknownIsSettled,
        Law::NothingKept,
        Law::AllowedIsGranted,
        Law::ConfirmationsAreTrue,
        Law::Guard,
        Law::IntentHasItsLocks,
        Law::IntentStays,
        Law::OneAdopter,
        Law::FencedTakesValid,
        Law::LossIsExplained,
    ],
    unsure: false,
};

/// Leases end before their guards expect it. The checker knows of the step and excuses what it explains, and nothing else.
const EARLY: Loss = Loss {
    what: "a guard may be valid after its lease",
    so: "a session that lived when the clock was set forward ends early, and its guards say that they are valid until their \
         deadline; whoever is granted the lock meanwhile has a greater token",
    laws: &[],
    unsure: false,
};

/// Every loss.
pub const LOSSES: [&Loss; 5] = [&EARLY, &RELEASES, &READS, &LAST_WRITES, &TWO_PRIMARIES];

use Cell::{Breaks, BreaksElsewhere, Elsewhere, Holds, Never, NotMade};

const EMBEDDED: &str = "the store is in the programs, which `signals` and `kill` end";
const ALONE: &str = "one file on one machine: nothing takes over";
const CLUSTER_ES: &str = "`cargo xtask soak --only cluster`";
const ES_POWER: &str = "its servers run here as Java without a disk of their own";

/// Every kind of fault.
pub const TABLE: &[Kind] = &[
    Kind {
        name: "signals",
        what: "a client is killed, or sleeps for longer than its lease",
        faults: &[
            Fault::Process(ProcessFault::Killed),
            Fault::Process(ProcessFault::Stopped),
        ],
        cells: [Holds; 5],
    },
    Kind {
        name: "kill",
        what: "a client is killed, and nothing else: the times of takeovers",
        faults: &[Fault::Process(ProcessFault::Killed)],
        cells: [Holds; 5],
    },
    Kind {
        name: "partition",
        what: "a client is cut off, both ways or one way, with or without a reset",
        faults: &[
            Fault::Network(NetworkFault::Cut),
            Fault::Network(NetworkFault::Silent),
            Fault::Network(NetworkFault::RequestsHeld),
            Fault::Network(NetworkFault::AnswersHeld),
        ],
        cells: [
            Never("no network is in between"),
            Holds,
            Holds,
            Holds,
            Holds,
        ],
    },
    Kind {
        name: "connection",
        what: "a request is torn, an answer is lost, everything is late",
        faults: &[
            Fault::Network(NetworkFault::Reset),
            Fault::Network(NetworkFault::Slow),
            Fault::Network(NetworkFault::Swallowed),
        ],
        cells: [
            Never("no network is in between"),
            Holds,
            Holds,
            Holds,
            Holds,
        ],
    },
    Kind {
        name: "requests",
        what: "a request is lost, late or executed twice",
        faults: &[
            Fault::Request(RequestFault::Refused),
            Fault::Request(RequestFault::Lost),
            Fault::Request(RequestFault::AnswerLost),
            Fault::Request(RequestFault::Repeated),
        ],
        cells: [Holds; 5],
    },
    Kind {
        name: "slow-client",
        what: "a client's clock is slower than the store's, within the margin",
        faults: &[],
        cells: [Elsewhere("`cargo xtask simulate`, on the store in memory"); 5],
    },
    Kind {
        name: "server-killed",
        what: "the server is killed and started again",
        faults: &[Fault::Server(ServerFault::Killed)],
        cells: [
            Never(EMBEDDED),
            Holds,
            Breaks(&RELEASES),
            Holds,
            Elsewhere(CLUSTER_ES),
        ],
    },
    Kind {
        name: "server-restarted",
        what: "the server is stopped in order and started again",
        faults: &[Fault::Server(ServerFault::Restarted)],
        cells: [
            Never(EMBEDDED),
            Holds,
            Holds,
            Holds,
            NotMade("the cluster's nodes are killed instead"),
        ],
    },
    Kind {
        name: "server-stopped",
        what: "the server stands still, for less or more than a lease",
        faults: &[Fault::Server(ServerFault::Stopped)],
        cells: [Never(EMBEDDED), Holds, Holds, Holds, Elsewhere(CLUSTER_ES)],
    },
    Kind {
        name: "power",
        what: "the server loses its power, and all that was not synced",
        faults: &[Fault::Server(ServerFault::PowerLost)],
        cells: [
            NotMade("its programs would go with it; its own test `power` cuts and tears its log"),
            Holds,
            Breaks(&RELEASES),
            Holds,
            NotMade(ES_POWER),
        ],
    },
    Kind {
        name: "power-unsynced",
        what: "the same, and the server acknowledges before it syncs (Redis with `appendfsync everysec`)",
        faults: &[Fault::Server(ServerFault::PowerLost)],
        cells: [
            NotMade("as `power`"),
            Breaks(&LAST_WRITES),
            NotMade(
                "a grant waits for the disk whatever `synchronous_commit` says; `fsync = off` breaks the server's data",
            ),
            Never("it always syncs first"),
            NotMade(ES_POWER),
        ],
    },
    Kind {
        name: "disk-full",
        what: "the disk is full",
        faults: &[Fault::Server(ServerFault::DiskFull)],
        // PostgreSQL's server ends, as if it were killed, if it cannot write its log.
        cells: [
            Holds,
            Holds,
            Breaks(&RELEASES),
            Holds,
            Elsewhere(
                "`lockcore-es`, test `running`: an index that the server has closed for writes",
            ),
        ],
    },
    Kind {
        name: "disk-slow",
        what: "each sync of the disk takes 300 ms",
        faults: &[Fault::Server(ServerFault::DiskSlow)],
        cells: [
            NotMade("it calls the system without the C library's functions"),
            Holds,
            Holds,
            NotMade("it calls the system without the C library's functions"),
            NotMade(ES_POWER),
        ],
    },
    Kind {
        name: "memory-full",
        what: "the server has no memory left for data",
        faults: &[Fault::Server(ServerFault::MemoryFull)],
        cells: [
            Never(EMBEDDED),
            Holds,
            Never(
                "its memory is taken at its start; the system's end of a process is `server-killed`",
            ),
            Never("it has no limit of its own; the system's end of a process is `server-killed`"),
            NotMade("test `errors` has the answer of a server that says so"),
        ],
    },
    Kind {
        name: "descriptors",
        what: "the server can open no further connection and no further file",
        faults: &[Fault::Server(ServerFault::DescriptorsUsedUp)],
        cells: [
            NotMade("the store is in the programs, which could not keep their records either"),
            Holds,
            // The same.
            Breaks(&RELEASES),
            Holds,
            NotMade("test `descriptors` uses up the client's own"),
        ],
    },
    Kind {
        name: "clock-forward",
        what: "the server's clock is set forward by an hour",
        faults: &[Fault::Server(ServerFault::ClockForward)],
        cells: [
            Never("leases run by the time since the machine's start, which nobody sets"),
            Breaks(&EARLY),
            Breaks(&EARLY),
            Never("leases run by the time since the machine's start, which nobody sets"),
            BreaksElsewhere(
                &EARLY,
                "not made: test `cluster`, `--skew-ms`, has clocks that are apart, within what the client allows for",
            ),
        ],
    },
    Kind {
        name: "clock-back",
        what: "the server's clock is set back by half a lease",
        faults: &[Fault::Server(ServerFault::ClockBack)],
        cells: [
            Never("leases run by the time since the machine's start, which nobody sets"),
            Holds,
            Holds,
            Never("leases run by the time since the machine's start, which nobody sets"),
            NotMade("test `cluster`, `--skew-ms`, has clocks that are apart, and none that is set"),
        ],
    },
    Kind {
        name: "failover",
        what: "another server takes over in order, and has everything",
        faults: &[Fault::Server(ServerFault::HandedOver)],
        cells: [
            Never(ALONE),
            Holds,
            Holds,
            Holds,
            NotMade("its nodes are killed, stopped and cut off instead"),
        ],
    },
    Kind {
        name: "failover-forced",
        what: "another server is forced to take over, has everything that was acknowledged, and the old one comes back",
        faults: &[Fault::Server(ServerFault::TakenOver)],
        cells: [
            Never(ALONE),
            Breaks(&READS),
            Breaks(&READS),
            Holds,
            Elsewhere(CLUSTER_ES),
        ],
    },
    Kind {
        name: "failover-asynchronous",
        what: "another server is forced to take over, is behind, and the old one comes back",
        faults: &[Fault::Server(ServerFault::TakenOver)],
        cells: [
            Never(ALONE),
            Breaks(&TWO_PRIMARIES),
            Breaks(&TWO_PRIMARIES),
            Never("what is acknowledged is on a majority"),
            BreaksElsewhere(
                &LAST_WRITES,
                "another test: `lockcore-es`, test `cluster`: an operator forces a stale copy",
            ),
        ],
    },
    Kind {
        name: "replica-cut-off",
        what: "a replica that every write waits for is cut off",
        faults: &[Fault::Server(ServerFault::ReplicaCutOff)],
        cells: [Never(ALONE), Holds, Holds, Holds, Elsewhere(CLUSTER_ES)],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_what_is_made_has_faults() {
        let names: BTreeSet<&str> = TABLE.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), TABLE.len());
        for kind in TABLE {
            let is_made = kind.cells.iter().any(Cell::is_made);
            assert_eq!(is_made, !kind.faults.is_empty(), "{}", kind.name);
            assert!(find(kind.name).is_ok());
        }
        assert!(find("nothing").unwrap_err().contains("partition"));
    }

    /// One server alone never grants smaller tokens, and no guard that was told is valid again.
    #[test]
    fn what_is_never_lost() {
        for loss in LOSSES {
            for law in [
                Law::ValidOnce,
                Law::HandedOutValid,
                Law::OwnClaimsOnly,
                Law::FencedLosesNothing,
            ] {
                assert!(!loss.laws.contains(&law), "{law}");
            }
            let fenced = [Law::TokensOnlyRise, Law::FencedTakesValid];
            let two = *loss == TWO_PRIMARIES;
            assert!(fenced.iter().all(|law| loss.laws.contains(law) == two));
        }
        let alone = TABLE.iter().find(|kind| kind.name == "power-unsynced");
        let alone = alone.and_then(|kind| kind.cell("redis"));
        assert_eq!(alone, Some(Breaks(&LAST_WRITES)));
    }
}
