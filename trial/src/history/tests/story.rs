//! [`Story`]: a history told event by event.

use lockcore::{Claim, FencingToken, Grant, LockKey, OwnerId, SessionId, Want};

use crate::history::{
    Answer, Call, Change, Event, History, How, Law, Outcome, Reply, Stored, What, check, text,
};

/// A history that is being told. Times are milliseconds; a guard is valid for a second from the last renewal.
pub(super) struct Story {
    history: History,
    at: u64,
    process: u32,
}

pub(super) fn session(number: u128) -> SessionId {
    SessionId::new(number)
}

pub(super) fn grant((id, n): (u128, u64)) -> Grant {
    Grant {
        session: session(id),
        n,
    }
}

pub(super) fn claims(texts: &[&str]) -> Vec<Claim> {
    texts
        .iter()
        .map(|shown| text::parsed(shown).unwrap())
        .collect()
}

pub(super) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

pub(super) fn key(text: &str) -> LockKey {
    LockKey::parse(text).unwrap()
}

pub(super) const MS: u64 = 1_000_000;

impl Story {
    pub(super) fn new() -> Self {
        Self {
            history: History::default(),
            at: 0,
            process: 1,
        }
    }

    pub(super) fn tell(&mut self, what: What) -> &mut Self {
        let (at, process) = (self.at * MS, self.process);
        self.history.events.push(Event { at, process, what });
        self
    }

    pub(super) fn in_real_time(&mut self) -> &mut Self {
        self.history.real_time = true;
        self
    }

    pub(super) fn after(&mut self, ms: u64) -> &mut Self {
        self.at += ms;
        self
    }

    /// Who tells from now on.
    pub(super) fn by(&mut self, process: u32) -> &mut Self {
        self.process = process;
        self
    }

    pub(super) fn ask(&mut self, attempt: u64, wanted: &[&str]) -> &mut Self {
        self.ask_as(attempt, attempt, wanted)
    }

    pub(super) fn ask_as(&mut self, attempt: u64, owner: u64, wanted: &[&str]) -> &mut Self {
        let claims = claims(wanted);
        self.tell(What::Asked {
            attempt,
            owner,
            claims,
            intent: false,
        })
    }

    pub(super) fn ask_with_intent(&mut self, attempt: u64, wanted: &[&str]) -> &mut Self {
        let claims = claims(wanted);
        self.tell(What::Asked {
            attempt,
            owner: attempt,
            claims,
            intent: true,
        })
    }

    /// A guard that says that it is valid for `left` ms, the first on its grant.
    pub(super) fn granted(&mut self, attempt: u64, id: u128, number: u64, left: u64) -> &mut Self {
        self.handed_on(attempt, id, (number, 0), (attempt, left))
    }

    /// A guard on a grant with this token and this number, after so many others.
    pub(super) fn handed_on(
        &mut self,
        attempt: u64,
        id: u128,
        (number, pass): (u64, u64),
        (n, left): (u64, u64),
    ) -> &mut Self {
        self.tell(What::Granted {
            attempt,
            session: session(id),
            token: token(number * 64 + pass),
            numbers: vec![n],
            left: left * MS,
            validity: 1_000 * MS,
        })
    }

    pub(super) fn look(&mut self, attempt: u64, left: u64) -> &mut Self {
        let left = left * MS;
        self.tell(What::Looked { attempt, left })
    }

    pub(super) fn back(&mut self, attempt: u64, how: How) -> &mut Self {
        self.tell(What::GivingBack { attempt, how })
    }

    pub(super) fn adopted(
        &mut self,
        adoption: u64,
        id: u128,
        attempt: u64,
        (old, new): (u64, u64),
    ) -> &mut Self {
        self.tell(What::Adopted {
            adoption,
            session: session(id),
            attempt,
            old_token: token(old * 64),
            token: token(new * 64),
        });
        self.believes(adoption, 900)
    }

    /// An adopter says that it has so many ms.
    pub(super) fn believes(&mut self, adoption: u64, left: u64) -> &mut Self {
        let left = left * MS;
        self.tell(What::Believed { adoption, left })
    }

    pub(super) fn refused(&mut self, attempt: u64, outcome: Outcome) -> &mut Self {
        self.tell(What::Refused { attempt, outcome })
    }

    pub(super) fn stored(&mut self, stored: Stored) -> &mut Self {
        self.tell(What::Stored(stored))
    }

    pub(super) fn opened(&mut self, id: u128, ttl: u64) -> &mut Self {
        self.stored(Stored::Open {
            session: session(id),
            ttl: ttl * MS,
            opened: true,
        })
    }

    pub(super) fn renewed(
        &mut self,
        id: u128,
        seq: u64,
        retired: &str,
        change: Change,
    ) -> &mut Self {
        self.stored(Stored::Renew {
            session: session(id),
            seq,
            retired: retired.parse().unwrap(),
            change,
            ttl: None,
            answer: Answer::Living,
        })
    }

    pub(super) fn ended(&mut self, id: u128, if_due: bool, answer: Answer) -> &mut Self {
        self.stored(Stored::End {
            session: session(id),
            if_due,
            discard: false,
            answer,
        })
    }

    /// The store begins with a request.
    pub(super) fn begin(&self) -> (u64, usize) {
        (self.at * MS, self.history.events.len())
    }

    fn acquire(
        &mut self,
        (begun, answer, token): ((u64, usize), Answer, Option<u64>),
        of: (u128, u64),
        wanted: &[&str],
        met: Vec<Grant>,
    ) -> &mut Self {
        let claims = claims(wanted);
        self.stored(Stored::Acquire {
            grant: grant(of),
            owner: OwnerId {
                session: session(of.0),
                m: of.1,
            },
            joined: claims.len() > 1,
            claims,
            begun,
            answer,
            token,
            met,
        })
    }

    pub(super) fn acquired(&mut self, of: (u128, u64), wanted: &[&str], number: u64) -> &mut Self {
        self.acquired_since(self.begin(), of, wanted, number)
    }

    /// The same, of a request with which the store began before.
    pub(super) fn acquired_since(
        &mut self,
        begun: (u64, usize),
        of: (u128, u64),
        wanted: &[&str],
        number: u64,
    ) -> &mut Self {
        let (answer, token) = (Answer::Acquired, Some(number));
        self.acquire((begun, answer, token), of, wanted, Vec::new())
    }

    pub(super) fn busy(&mut self, of: (u128, u64), wanted: &[&str], met: (u128, u64)) -> &mut Self {
        let answer = (self.begin(), Answer::Busy, None);
        self.acquire(answer, of, wanted, vec![grant(met)])
    }

    pub(super) fn released(&mut self, of: (u128, u64), wanted: &[&str]) -> &mut Self {
        let (grant, claims) = (grant(of), claims(wanted));
        self.stored(Stored::Release { grant, claims });
        self.stored(Stored::Released { grant })
    }

    /// A request is sent. Its number is that of the event.
    pub(super) fn call(&mut self, request: Call) -> u64 {
        let call = self.history.events.len() as u64;
        self.tell(What::Called { call, request });
        call
    }

    pub(super) fn reply(&mut self, call: u64, reply: Reply) -> &mut Self {
        self.tell(What::Answered { call, reply })
    }

    /// A request and its answer, a millisecond apart.
    pub(super) fn done(&mut self, request: Call, reply: Reply) -> &mut Self {
        let call = self.call(request);
        self.after(1).reply(call, reply).after(1)
    }

    pub(super) fn end(&mut self) -> History {
        std::mem::take(&mut self.history)
    }

    /// It breaks exactly this law.
    #[track_caller]
    pub(super) fn breaks(&mut self, law: Law) {
        let report = check(&self.end());
        let mut laws: Vec<Law> = report.violations.iter().map(|found| found.law).collect();
        laws.dedup();
        assert_eq!(laws, [law], "{:#?}", report.violations);
    }

    #[track_caller]
    pub(super) fn is_fine(&mut self) {
        let report = check(&self.end());
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        assert!(report.events > 0);
    }
}

/// What a text is about: every want there is.
#[test]
fn claims_have_one_text() {
    let all = [
        "create f",
        "upsert f",
        "share f",
        "share:2 f",
        "write /a",
        "read /a/b",
    ];
    let parsed = claims(&all);
    let shown: Vec<String> = parsed.iter().map(text::shown).collect();
    assert_eq!(shown, all);
    assert_eq!(parsed[3].want().limit().unwrap().get(), 2);
    assert_eq!(parsed[4].want(), Want::Write);
    assert_eq!(text::parsed("share:0 f"), None);
    assert_eq!(text::parsed("write f"), None);
}
