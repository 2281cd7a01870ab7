//! Copies of the store that took over, and what each has forgotten.

use std::collections::{BTreeMap, BTreeSet};

use lockcore::{Grant, SessionId};

use super::History;
use super::event::{Answer, Change, Event, Stored, What};
use super::index::Pos;

/// A copy that took over.
#[derive(Debug)]
pub(super) struct Failover {
    pub(super) at: Pos,
    /// The store says that it is another one.
    pub(super) named: bool,
    /// The number of the event with which the copy was made.
    copied: usize,
    /// What was granted meanwhile: forgotten, in part or in whole, unless the copy was made while it was written.
    grants: BTreeSet<Grant>,
    /// Sessions that were opened or renewed meanwhile.
    renewed: BTreeSet<SessionId>,
    /// Those whose intent is registered again: its removal, its settlement or its discarding is forgotten.
    revived: BTreeSet<SessionId>,
    /// Those whose intent is forgotten.
    unregistered: BTreeSet<SessionId>,
    /// Those of which it is forgotten that they were adopted, settled or given up.
    adopted: BTreeSet<SessionId>,
    /// Those of which it is forgotten that an adoption has ended: as long as that adopter lives, nobody else has the
    /// change.
    held: BTreeSet<SessionId>,
}

impl Failover {
    /// Whether something of the session is forgotten that it rests on.
    pub(super) fn touches(&self, session: SessionId) -> bool {
        let first = Grant { session, n: 0 };
        let mut grants = self.grants.range(first..);
        let of_it = grants.next().is_some_and(|grant| grant.session == session);
        of_it || self.renewed.contains(&session) || self.unregistered.contains(&session)
    }

    /// Whether one of these grants may be forgotten.
    pub(super) fn has_lost(&self, session: SessionId, numbers: &[u64]) -> bool {
        let mut numbers = numbers.iter();
        numbers.any(|n| self.grants.contains(&Grant { session, n: *n }))
    }

    /// Whether a request that began after that event was executed after the copy was made, as a whole.
    pub(super) fn has_none_of(&self, begun: usize) -> bool {
        begun > self.copied
    }
}

/// The failovers of a history, in their order.
#[derive(Debug, Default)]
pub(super) struct Failovers {
    all: Vec<Failover>,
    /// The number of the event before which the request began that was granted first.
    granted: BTreeMap<Grant, usize>,
}

impl Failovers {
    pub(super) fn of(history: &History) -> Self {
        let mut this = Self::default();
        let mut copied = None;
        for (number, event) in history.events.iter().enumerate() {
            let at = Pos {
                at: event.at,
                number: number + 1,
            };
            match &event.what {
                What::Copied => copied = Some(number),
                What::FailedOver { named } => {
                    let Some(copied) = copied else { continue };
                    let events = &history.events[copied..number];
                    let failover = Failover::of(at, *named, copied + 1, events);
                    this.all.push(failover);
                }
                What::Stored(Stored::Acquire {
                    grant,
                    begun: (_, begun),
                    answer: Answer::Acquired,
                    ..
                }) => {
                    this.granted.entry(*grant).or_insert(*begun);
                    // What it wrote before is forgotten, and nobody has told it.
                    let meanwhile = this.all.iter_mut().rev();
                    for failover in meanwhile.take_while(|it| it.at.number > *begun) {
                        failover.grants.insert(*grant);
                    }
                }
                _ => {}
            }
        }
        this
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Failover> {
        self.all.iter()
    }

    /// Those before that event.
    pub(super) fn before(&self, at: Pos) -> &[Failover] {
        let later = self.all.partition_point(|it| it.at < at);
        &self.all[..later]
    }

    /// Whether one came between these events, which are in order.
    pub(super) fn any_between(&self, begun: usize, at: Pos) -> bool {
        let last = self.before(at).last();
        last.is_some_and(|it| it.at.number > begun)
    }

    /// Until when a guard may be believed of which the last acknowledged renewal was sent then: it is told by the next
    /// one, or by nobody, where the store has no name.
    pub(super) fn cut(&self, session: SessionId, numbers: &[u64], sent: u64) -> Option<Pos> {
        let grants = || numbers.iter().map(|n| Grant { session, n: *n });
        let cuts = |failover: &&Failover| {
            let lost = failover.has_lost(session, numbers);
            let told = (failover.named || !lost) && sent > failover.at.at;
            let asked_later = grants().all(|grant| {
                let begun = self.granted.get(&grant);
                begun.is_some_and(|begun| failover.at.number <= *begun)
            });
            // Who asks another one is told first.
            let told = told || (failover.named && asked_later);
            !told && (lost || failover.touches(session))
        };
        self.iter().find(cuts).map(|failover| failover.at)
    }

    /// Whether the intent of the session came back before that, with or without its locks.
    pub(super) fn is_revived(&self, session: SessionId, by: Pos) -> bool {
        let before = self.before(by);
        before.iter().any(|it| it.revived.contains(&session))
    }

    /// Whether the store may have forgotten before that how an adoption of the session has ended.
    pub(super) fn has_lost_adoption(&self, session: SessionId, by: Pos) -> bool {
        let before = self.before(by);
        before.iter().any(|it| it.adopted.contains(&session))
    }

    /// Whether it may be forgotten that an adoption of the session has ended, or of any.
    pub(super) fn hold(&self, session: Option<SessionId>) -> bool {
        let holds = |failover: &Failover| match session {
            Some(session) => failover.held.contains(&session),
            None => !failover.held.is_empty(),
        };
        self.iter().any(holds)
    }

    /// Whether a store without a name has forgotten a grant of the session before that: nobody is told.
    pub(super) fn has_lost_untold(&self, session: SessionId, by: Pos) -> bool {
        let before = self.before(by);
        before.iter().any(|it| !it.named && it.touches(session))
    }

    /// When something of the session was forgotten first that it rests on: perhaps its intent.
    pub(super) fn touched(&self, session: SessionId) -> Option<Pos> {
        let found = self.iter().find(|it| it.touches(session));
        found.map(|failover| failover.at)
    }
}

impl Failover {
    /// With what happened since the copy was made, after that event.
    fn of(at: Pos, named: bool, copied: usize, since: &[Event]) -> Self {
        let mut this = Self {
            at,
            named,
            copied,
            grants: BTreeSet::new(),
            renewed: BTreeSet::new(),
            revived: BTreeSet::new(),
            unregistered: BTreeSet::new(),
            adopted: BTreeSet::new(),
            held: BTreeSet::new(),
        };
        for event in since {
            if let What::Stored(stored) = &event.what {
                this.forgets(stored);
            }
        }
        this
    }

    fn forgets(&mut self, stored: &Stored) {
        match stored {
            Stored::Open {
                session,
                opened: true,
                ..
            } => drop(self.renewed.insert(*session)),
            Stored::Renew {
                session,
                change,
                answer: Answer::Living,
                ..
            } => {
                self.renewed.insert(*session);
                match change {
                    Change::Keep => {}
                    Change::Put(_) => drop(self.unregistered.insert(*session)),
                    Change::Drop => drop(self.revived.insert(*session)),
                }
            }
            Stored::End {
                session,
                discard: true,
                ..
            } => drop(self.revived.insert(*session)),
            Stored::Settle {
                session,
                settled: true,
                ..
            } => {
                self.revived.insert(*session);
                self.adopted.insert(*session);
                self.held.insert(*session);
            }
            Stored::Adopt {
                session, give_up, ..
            } => {
                self.adopted.insert(*session);
                if *give_up {
                    self.held.insert(*session);
                }
            }
            Stored::Acquire {
                grant,
                answer: Answer::Acquired,
                ..
            } => drop(self.grants.insert(*grant)),
            _ => {}
        }
    }
}
