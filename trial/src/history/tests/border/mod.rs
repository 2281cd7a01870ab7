//! Requests and answers: each law kept by the least history that looks like its breach, and broken by the least one.

mod grants;
mod sessions;

use lockcore::backend::Ranges;
use lockcore::{Mode, OwnerId};

use super::story::{Story, claims, grant, key, session};
use crate::history::{
    Answer, Call, Change, Ending, Law, Met, Received, Refused, Reply, State, What, check,
};

const MS: u64 = 1_000_000;

fn open(id: u128) -> Call {
    let (session, ttl) = (session(id), 1_000 * MS);
    Call::Open { session, ttl }
}

fn renew(id: u128, retired: &str, change: Change) -> Call {
    naming(id, retired, change, "")
}

fn naming(id: u128, retired: &str, change: Change, granted: &str) -> Call {
    Call::Renew {
        session: session(id),
        seq: 1,
        retired: retired.parse::<Ranges>().unwrap(),
        change,
        granted: granted.parse::<Ranges>().unwrap(),
    }
}

fn end(id: u128, how: Ending) -> Call {
    let sessions = vec![session(id)];
    Call::End { sessions, how }
}

fn acquire(of: (u128, u64), wanted: &[&str]) -> Call {
    Call::Acquire {
        grant: grant(of),
        owner: OwnerId {
            session: session(of.0),
            m: of.1,
        },
        claims: claims(wanted),
        joined: false,
        waits: false,
        past: Vec::new(),
    }
}

fn release(of: (u128, u64), wanted: &[&str]) -> Call {
    let (grant, claims) = (grant(of), claims(wanted));
    Call::Release { grant, claims }
}

fn confirm(of: (u128, u64), wanted: &[&str]) -> Call {
    let (grant, claims) = (grant(of), claims(wanted));
    Call::Confirm { grant, claims }
}

fn adopt(id: u128, seen: u64, adopter: u128) -> Call {
    Call::Adopt {
        session: session(id),
        seen,
        adopter: session(adopter),
        give_up: false,
    }
}

fn settle(id: u128, adoption: u64) -> Call {
    let session = session(id);
    Call::Settle { session, adoption }
}

fn received(number: u64) -> Reply {
    Reply::Adopted(Some(Received {
        number,
        token: 100 + number,
        old_token: 1,
    }))
}

fn states(id: u128, life: Answer) -> Reply {
    let session = session(id);
    Reply::States(vec![State { session, life }])
}

fn met(of: (u128, u64), on: &str, mode: Mode, life: Answer) -> Met {
    Met {
        grant: grant(of),
        key: key(on),
        mode,
        life,
    }
}

/// The first claim was refused by these.
fn busy(by: Vec<Met>) -> Reply {
    let (claim, more) = (0, false);
    Reply::Busy(vec![Refused {
        claim,
        by,
        more,
        waiters: false,
    }])
}

/// The first claim was refused by nobody but those who wait for it.
fn waited_for() -> Reply {
    let (claim, by, more) = (0, Vec::new(), false);
    Reply::Busy(vec![Refused {
        claim,
        by,
        more,
        waiters: true,
    }])
}

fn by(of: (u128, u64), on: &str) -> Reply {
    busy(vec![met(of, on, Mode::X, Answer::Living)])
}

const LIVING: Reply = Reply::Renewed(Answer::Living);

/// Two sessions of two processes, each opened for a second.
fn two() -> Story {
    let mut told = Story::new();
    told.tell(What::Begun {
        ttl: 1_000 * MS,
        poll: Some(10 * MS),
        allowance: 0,
        steady: true,
    });
    told.done(open(1), Reply::Opened(true));
    told.done(open(2), Reply::Opened(true));
    told
}

/// The first session holds f.
fn held() -> Story {
    let mut told = two();
    told.done(acquire((1, 1), &["create f"]), Reply::Granted(1));
    told
}

/// The first session is abandoned.
fn abandoned() -> Story {
    let mut told = held();
    told.done(renew(1, "", Change::Put(1)), LIVING);
    told.done(end(1, Ending::Close), states(1, Answer::Abandoned));
    told
}
