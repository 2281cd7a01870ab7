//! Who is in the way of a batch, of those who were met.

use std::collections::{BTreeMap, BTreeSet};

use etcd_client::TxnOp;
use lockcore::backend::judge::{self, Ask, Entry as _, Judged, Listed, Place, Verdict};
use lockcore::backend::{Acquire, Acquired};
use lockcore::limits::MAX_LISTED;
use lockcore::{
    Busy, Claim, Grant, Life, LockKey, Mode, Operation, Result, SessionId, SessionState,
};

use crate::EtcdBackend;
use crate::line::{InLine, is_in_line};
use crate::pages::{PAGE, after};
use crate::record::{Classes, Held, Range, SHARED, class};
use crate::txn::{Answer, Found, count};

/// So many holders of each range are read with a refusal.
pub(crate) const FIRST_LOOK: usize = 64;
/// Of so many claims it is asked in one request whether the grant stands there.
const OWN_AT_ONCE: usize = 8;

/// Where a batch meets others: who holds a key, in these classes, and whoever holds something below it.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) key: LockKey,
    pub(crate) classes: Classes,
    pub(crate) range: Range,
}

/// Who was met, as of a revision.
pub(crate) struct View {
    pub(crate) revision: i64,
    /// Beside each look.
    pub(crate) held: Vec<Vec<Held>>,
    /// From where on there are more.
    pub(crate) more: Vec<Option<Vec<u8>>>,
}

/// A batch, and where it meets others.
#[derive(Clone, Copy)]
pub(crate) struct Meeting<'a> {
    pub(crate) request: &'a Acquire,
    pub(crate) looks: &'a [Look],
}

/// What comes of a batch that has met somebody.
pub(crate) enum Judgement {
    Answer(Acquired),
    /// Somebody has made room: look again.
    Again,
    /// Nobody who counts is in the way.
    Nobody(InLine),
}

/// What was learnt of those who were met, over all tries of a batch.
#[derive(Default)]
pub(crate) struct Learnt {
    judged: Judged,
    pub(crate) states: BTreeMap<SessionId, SessionState>,
}

impl Learnt {
    /// Whether it does not count, and never will.
    pub(crate) fn is_gone(&self, held: &Held) -> bool {
        self.judged.is_gone(held)
    }

    /// What was learnt last of its session.
    pub(crate) fn state(&self, held: &Held) -> Option<&SessionState> {
        self.states.get(&held.grant()?.session)
    }

    /// Takes the sessions of those who were met.
    pub(crate) fn take(&mut self, states: &[SessionState]) {
        let states = states.iter().map(|state| (state.session, state.clone()));
        self.states.extend(states);
    }

    fn learn(
        &mut self,
        request: &Acquire,
        met: &judge::Met<Held>,
        states: Vec<SessionState>,
    ) -> Verdict {
        self.take(&states);
        self.judged.learn(request, met, states)
    }
}

/// Where the grant that asks stands already.
#[derive(Default)]
pub(crate) struct Own {
    found: Vec<Held>,
    /// The claims of which that was asked.
    asked: BTreeSet<LockKey>,
    /// On one of them it holds nothing, and so on none.
    is_new: bool,
    /// How many there are on the key, at the least, if that was counted.
    pub(crate) on_key: usize,
}

impl Own {
    /// How it stands on the claim's key, if that is known.
    pub(crate) fn on<'a>(
        &'a self,
        met: Meeting<'_>,
        view: &'a View,
        claim: &Claim,
    ) -> Option<&'a Held> {
        let is_own = |held: &&Held| {
            held.grant() == Some(met.request.grant)
                && held.key == *claim.key()
                && held.mode() == claim.want().mode()
        };
        let mut all = view.held.iter().flatten().chain(&self.found);
        all.find(is_own)
    }

    /// Its place in line: in front of whoever came later. Who is not in line comes last.
    fn place(&self, met: Meeting<'_>, view: &View, claim: &Claim) -> u64 {
        let own = self
            .on(met, view, claim)
            .filter(|_| is_in_line(met.request));
        let waiting = own.and_then(Held::waiting);
        waiting.map_or(u64::MAX, |waiting| waiting.place)
    }
}

/// Who is in the way of a claim, and where.
pub(crate) struct InTheWay<'a> {
    pub(crate) claim: &'a Claim,
    pub(crate) holders: Vec<(Place, &'a Held)>,
    /// Those who came before, the first one first.
    pub(crate) waiters: Vec<(Place, &'a Held)>,
}

impl EtcdBackend {
    pub(crate) fn view(&self, looks: &[Look], answer: &mut Answer) -> Result<View> {
        let mut view = View {
            revision: answer.revision,
            held: Vec::with_capacity(looks.len()),
            more: Vec::with_capacity(looks.len()),
        };
        for look in looks {
            let Found { pairs, more, .. } = answer.found()?;
            view.more.push(after(&pairs, more));
            view.held.push(self.held(&look.key, &pairs));
        }
        Ok(view)
    }

    /// Whether somebody who counts is in the way; learns of those who do not count.
    pub(crate) async fn judge(
        &self,
        met: Meeting<'_>,
        view: &mut View,
        learnt: &mut Learnt,
    ) -> Result<Judgement> {
        let (request, looks) = (met.request, met.looks);
        let mut own = Own::default();
        loop {
            let ways = in_the_way(met, view, &own, learnt);
            if ways.is_empty() {
                // Whoever comes meanwhile is newer than the view.
                if !self.look_on(looks, view, learnt).await? {
                    let nobody = self.in_line(met, view, &own, &[]);
                    return Ok(Judgement::Nobody(nobody));
                }
                continue;
            }
            // Who was met first is not the first in line.
            let wait = ways.iter().all(|way| way.holders.is_empty());
            if wait && is_in_line(request) && view.more.iter().any(Option::is_some) {
                self.look_on(looks, view, learnt).await?;
                continue;
            }
            let known: judge::Met<Held> = known(&ways);
            let to_end = Judged::to_end(request, &known);
            let (asked, gets) = self.own(met, view, &own, &ways);
            let asked: Vec<Claim> = asked.into_iter().cloned().collect();
            let way = self.way(Operation::Acquire);
            let (states, found) = way.look_at_beside(&to_end, gets).await?;
            self.found_own(met, view, &mut own, &asked, found);
            match learnt.learn(request, &known, states) {
                Verdict::Again => continue,
                Verdict::Void => return Ok(Judgement::Answer(Acquired::Void)),
                Verdict::Busy => {}
            }
            let ways = in_the_way(met, view, &own, learnt);
            if ways.is_empty() || !self.own(met, view, &own, &ways).0.is_empty() {
                continue;
            }
            let by = match (&*ways, &*request.claims) {
                ([way], [_]) => met_by(way, view, learnt),
                _ => None,
            };
            for claim in &request.claims {
                self.watches.refused(claim, view.revision, by.clone());
            }
            return match &*ways {
                [way] if is_in_line(request) => {
                    self.judge_in_line(met, view, &own, way, learnt).await
                }
                _ => Ok(Judgement::Answer(busy(&ways, learnt, &BTreeSet::new()))),
            };
        }
    }

    /// Reads some more of those ranges that were not read to their end. Says whether there were any.
    async fn look_on(&self, looks: &[Look], view: &mut View, learnt: &Learnt) -> Result<bool> {
        for (at, look) in looks.iter().enumerate() {
            let Some(from) = view.more[at].take() else {
                continue;
            };
            let rest = Range {
                from,
                to: look.range.to.clone(),
            };
            let (found, _) = self.way(Operation::Acquire).get(&rest, PAGE).await?;
            view.more[at] = after(&found.pairs, found.more);
            // Of those who do not count enough stay for what is removed with the batch.
            let mut gone = [0, 0];
            view.held[at].retain(|held| {
                let is_gone = learnt.is_gone(held);
                let gone = &mut gone[usize::from(held.shares())];
                *gone += usize::from(is_gone);
                !is_gone || *gone <= PAGE
            });
            view.held[at].extend(self.held(&look.key, &found.pairs));
            return Ok(true);
        }
        Ok(false)
    }

    /// The claims of which to ask whether the grant stands there already, as one that holds or waits, and what asks that:
    /// where somebody has come since, who holds it is granted again. Of one that waits it is also counted who is there.
    fn own<'a>(
        &self,
        met: Meeting<'_>,
        view: &View,
        own: &Own,
        ways: &[InTheWay<'a>],
    ) -> (Vec<&'a Claim>, Vec<TxnOp>) {
        let (names, request) = (&self.link.names, met.request);
        let waits = is_in_line(request);
        let is_unknown = |way: &&InTheWay<'a>| {
            let matters = waits || !way.waiters.is_empty() || way.claim.want().limit().is_some();
            matters
                && !own.asked.contains(way.claim.key())
                && own.on(met, view, way.claim).is_none()
        };
        if own.is_new {
            return (Vec::new(), Vec::new());
        }
        let unknown = ways.iter().filter(is_unknown).take(OWN_AT_ONCE);
        let unknown: Vec<&Claim> = unknown.map(|way| way.claim).collect();
        let mut gets = Vec::with_capacity(2 * unknown.len() + 1);
        for claim in &unknown {
            let (class, key) = (class(claim.want()), claim.key().as_str());
            let mut stands = vec![names.holder_beside(request.grant, class, key)];
            if class != SHARED {
                stands.push(names.holder(request.grant, class, key));
            }
            gets.extend(stands.into_iter().map(|name| TxnOp::get(name, None)));
            if waits {
                gets.push(count(&names.holders(claim.key(), Classes::All, false)));
            }
        }
        (unknown, gets)
    }

    /// Takes what was found of what [was asked](Self::own).
    fn found_own(
        &self,
        met: Meeting<'_>,
        view: &View,
        own: &mut Own,
        asked: &[Claim],
        found: Vec<Found>,
    ) {
        let mut found = found.into_iter();
        for claim in asked {
            let names = if class(claim.want()) == SHARED { 1 } else { 2 };
            for found in found.by_ref().take(names) {
                let held = self.held(claim.key(), &found.pairs).into_iter();
                let is_own = |held: &Held| held.grant() == Some(met.request.grant);
                own.found.extend(held.filter(is_own));
            }
            if is_in_line(met.request) {
                own.on_key = found.next().map_or(0, |found| found.count);
            }
            own.asked.insert(claim.key().clone());
            let holds = own.on(met, view, claim);
            own.is_new |= holds.is_none_or(|held| held.waiting().is_some());
        }
    }
}

/// Who is in the way of the claims, but for those who are known not to count.
pub(crate) fn in_the_way<'a>(
    met: Meeting<'a>,
    view: &'a View,
    own: &Own,
    learnt: &Learnt,
) -> Vec<InTheWay<'a>> {
    let claims = met.request.claims.iter();
    claims
        .filter_map(|claim| in_the_way_of(met, claim, view, own, learnt, &BTreeSet::new()))
        .collect()
}

/// Who is in the way of a claim, but for those who are known not to count, and those who are passed.
pub(crate) fn in_the_way_of<'a>(
    met: Meeting<'a>,
    claim: &'a Claim,
    view: &'a View,
    own: &Own,
    learnt: &Learnt,
    passed: &BTreeSet<Grant>,
) -> Option<InTheWay<'a>> {
    let request = met.request;
    let ask = Ask::of(request, claim);
    let looks = met.looks.iter().zip(view.held.iter().map(Vec::as_slice));
    let (mut holders, mut waiters, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for (place, held) in meets(claim, looks) {
        let is_share = is_share(claim, held);
        let is_own = held.grant() == Some(request.grant);
        if is_own || (!is_share && ask.at(place).beside(held)) || learnt.is_gone(held) {
            continue;
        }
        match held.waiting() {
            Some(_) => waiters.push((place, held)),
            None if is_share => shares.push((place, held)),
            None => holders.push((place, held)),
        }
    }
    if !waiters.is_empty() {
        let own = own.place(met, view, claim);
        let is_passed = |held: &Held| held.grant().is_some_and(|grant| passed.contains(&grant));
        waiters.retain(|(_, held)| held.place() < own && !is_passed(held));
        waiters.sort_by_key(|(_, held)| held.place());
    }
    if let Some(limit) = claim.want().limit() {
        // Who waits for a place has it, once there is one.
        let is_share = |(_, held): &(Place, &Held)| is_share(claim, held);
        let waiting = waiters.iter().filter(|it| is_share(it)).count();
        if shares.len() + waiting < usize::try_from(limit.get()).unwrap_or(usize::MAX) {
            shares.clear();
            waiters.retain(|it| !is_share(it));
        }
    }
    holders.extend(shares);
    if holders.is_empty() && waiters.is_empty() {
        return None;
    }
    // It was sent before, and whoever came since has come beside it.
    let stands = own.on(met, view, claim);
    if stands.is_some_and(|own| own.waiting().is_none()) {
        return None;
    }
    Some(InTheWay {
        claim,
        holders,
        waiters,
    })
}

/// Whom a claim meets, and where.
pub(crate) fn meets<'a, 'b>(
    claim: &'b Claim,
    looks: impl Iterator<Item = (&'b Look, &'a [Held])>,
) -> impl Iterator<Item = (Place, &'a Held)> {
    let own = claim.key();
    looks.flat_map(move |(look, held)| {
        let is_above = look.key.is_above(own);
        let is_met = is_above || look.key == *own;
        held.iter().filter(move |_| is_met).filter_map(move |held| {
            let is_here = held.key == look.key;
            match (is_above, is_here) {
                (true, true) => Some((Place::Above, held)),
                (true, false) => None,
                (false, true) => Some((Place::Key, held)),
                (false, false) => Some((Place::Below, held)),
            }
        })
    })
}

/// Whether it is one of those that the claim's limit counts.
pub(crate) fn is_share(claim: &Claim, held: &Held) -> bool {
    claim.want().limit().is_some() && held.mode() == Mode::IS && held.grant().is_some()
}

/// Those of whom to ask whether they count. Of those who wait, the first are enough to be refused by.
fn known(ways: &[InTheWay<'_>]) -> judge::Met<Held> {
    let mut met = judge::Met::new();
    for way in ways {
        let waiters = way.waiters.iter().take(MAX_LISTED);
        for (_, held) in way.holders.iter().chain(waiters) {
            let known: &mut Vec<Held> = met.entry(held.key.clone()).or_default();
            if !known.contains(held) {
                known.push((*held).clone());
            }
        }
    }
    met
}

/// The sessions that are in the way, if all of them are known, and live.
fn met_by(way: &InTheWay<'_>, view: &View, learnt: &Learnt) -> Option<BTreeSet<SessionId>> {
    let all = way.holders.iter().chain(&way.waiters);
    let living = |held: &Held| match held.grant() {
        Some(_) => learnt
            .state(held)
            .is_some_and(|state| state.life == Life::Living),
        // Nothing but its removal frees the key.
        None => true,
    };
    let known = view.more.iter().all(Option::is_none) && all.clone().all(|(_, held)| living(held));
    known.then(|| {
        let grants = all.filter_map(|(_, held)| held.grant());
        grants.map(|grant| grant.session).collect()
    })
}

/// Adds those to a list, as they are in the way of the claim.
pub(crate) fn list(
    listed: &mut Listed,
    claim: &Claim,
    met: &[(Place, &Held)],
    learnt: &Learnt,
    may_go: &BTreeSet<Grant>,
) {
    for (place, held) in met {
        let (key, mode) = match place {
            Place::Below => (claim.key(), place.seen(held.mode())),
            Place::Key | Place::Above => (&held.key, held.mode()),
        };
        let mut holder = held.holder(key, mode, learnt.state(held));
        if let Some(waiting) = &mut holder.waiting {
            waiting.may_go = held.grant().is_some_and(|grant| may_go.contains(&grant));
        }
        listed.add(holder);
    }
}

/// The refusal by those who are in the way.
pub(crate) fn busy(ways: &[InTheWay<'_>], learnt: &Learnt, may_go: &BTreeSet<Grant>) -> Acquired {
    let refused = ways.iter().filter_map(|way| {
        let mut listed = Listed::default();
        list(&mut listed, way.claim, &way.holders, learnt, may_go);
        list(&mut listed, way.claim, &way.waiters, learnt, may_go);
        listed.refusal(way.claim)
    });
    Acquired::Busy(Busy::of(refused).expect("somebody is in the way of a claim"))
}
