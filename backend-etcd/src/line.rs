//! The line of a key: who waits stands where it will hold, with a value that says so, in the order of the revisions that
//! have written them first.
//!
//! Who waits becomes a holder by the same key: were it another one, its going would wake all who wait for it. A holder that
//! waited stands beside the place where everybody else holds exclusively, and is as good as one there.

use std::collections::{BTreeMap, BTreeSet};

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use lockcore::backend::judge::{Ask, Entry as _, Listed, line_limit};
use lockcore::backend::{Acquire, Acquired};
use lockcore::limits::{MAX_LISTED, MAX_WAITERS};
use lockcore::{Claim, Grant, Mode, Operation, OwnerId, Result, SessionId, Waiting, Want};

use crate::EtcdBackend;
use crate::claims::{CLEARED, looks, not_over, stands};
use crate::config::OVERHEAD;
use crate::judging::{
    FIRST_LOOK, InTheWay, Judgement, Learnt, Look, Meeting, Own, View, busy, in_the_way_of,
    is_share, list, meets,
};
use crate::namespace::unix_ms;
use crate::pages::{PAGE, after};
use crate::record::{
    Classes, Held, Names, Range, SHARED, batch_value, class, holds_from, read_batch, waiter_value,
    waits_from,
};
use crate::txn::{absent, as_seen, get};

/// So many operations [what somebody waits for](quits) has within one of its own.
pub(crate) const QUITS: usize = 2;

/// What a grant changes in line, and what must still be so.
#[derive(Default)]
pub(crate) struct InLine {
    pub(crate) still: Vec<Compare>,
    pub(crate) changes: Vec<TxnOp>,
}

/// Somebody who is passed, as it will be then, and by whom it is kept out.
pub(crate) struct Passed {
    waiter: Held,
    value: String,
    keeper: Kept,
}

/// A holder that keeps somebody out, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    name: Vec<u8>,
    seen: i64,
}

/// Who keeps somebody from what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Keeper {
    Nobody,
    /// A holder, or somebody who came before.
    Somebody,
    /// A holder of the session that was asked about.
    Asked(Kept),
}

/// What is looked at of one that waits.
struct Case {
    place: u64,
    grant: Grant,
    owner: OwnerId,
    claim: Claim,
    looks: Vec<Look>,
    /// The session of which it is asked whether it keeps it out.
    asked: Option<SessionId>,
}

/// What a look says of who keeps one that waits.
enum Looked {
    /// That, and those who wait and came before.
    Known(Keeper, Vec<Held>),
    /// Of these sessions it has to be known whether they count.
    Sessions(BTreeSet<SessionId>),
    /// There is more to be read.
    More,
}

/// What was read of a range, and from where on there is more.
struct Read {
    held: Vec<Held>,
    rest: Option<Vec<u8>>,
}

/// Whether a request stands in line where it is refused.
pub(crate) fn is_in_line(request: &Acquire) -> bool {
    request.waits && request.claims.len() == 1
}

/// Removes what a batch has waited for, and nothing that it holds, and then that batch.
pub(crate) fn quits(names: &Names, grant: Grant, batch: &KeyValue) -> Vec<TxnOp> {
    let waited = read_batch(batch.value()).map(|(class, key)| {
        let name = names.holder_beside(grant, class, key);
        let waits = [
            Compare::value(name.clone(), CompareOp::Greater, waits_from(grant, class)),
            Compare::value(name.clone(), CompareOp::Less, holds_from(grant, class)),
        ];
        let removal = TxnOp::delete(name, None);
        TxnOp::txn(Txn::new().when(waits).and_then([removal]))
    });
    waited.chain([TxnOp::delete(batch.key(), None)]).collect()
}

impl EtcdBackend {
    /// Judges a request that waits, and that is refused by whoever is in the way.
    pub(crate) async fn judge_in_line(
        &self,
        met: Meeting<'_>,
        view: &View,
        own: &Own,
        way: &InTheWay<'_>,
        learnt: &mut Learnt,
    ) -> Result<Judgement> {
        let (request, claim) = (met.request, way.claim);
        let mut listed = Listed::default();
        list(&mut listed, claim, &way.holders, learnt, &BTreeSet::new());
        let room = MAX_LISTED - listed.holders.len();
        let waiters = way.waiters.iter().take(room).map(|(_, held)| *held);
        let waiters: Vec<&Held> = waiters.collect();
        let keepers = self.keepers(met, claim, view, &waiters, learnt).await?;
        let (mut may_go, mut removed, mut passed) = (BTreeSet::new(), Vec::new(), Vec::new());
        for (held, keeper) in waiters.into_iter().zip(keepers) {
            let (Some(grant), Some(waiting)) = (held.grant(), held.waiting()) else {
                continue;
            };
            let waiting = Waiting {
                may_go: keeper == Keeper::Nobody,
                ..waiting
            };
            if waiting.may_go {
                may_go.insert(grant);
            }
            let mut past = request.past.iter();
            if !past.any(|past| (past.grant, past.waiting) == (grant, waiting)) {
                continue;
            }
            match keeper {
                Keeper::Nobody => removed.push(held),
                Keeper::Asked(keeper) => {
                    passed.extend(held.passed_once_more().map(|value| Passed {
                        waiter: held.clone(),
                        value,
                        keeper,
                    }))
                }
                Keeper::Somebody => {}
            }
        }
        if !removed.is_empty() {
            for held in removed {
                self.quit(held).await?;
            }
            return Ok(Judgement::Again);
        }
        if !passed.is_empty() {
            passed.truncate(self.room(met));
            let grants = passed.iter().filter_map(|it| it.waiter.grant()).collect();
            if in_the_way_of(met, claim, view, own, learnt, &grants).is_none() {
                let line = self.in_line(met, view, own, &passed);
                return Ok(Judgement::Nobody(line));
            }
        }
        if !self.stand_in_line(met, view, own, claim).await? {
            return Ok(Judgement::Answer(Acquired::Moved));
        }
        let way = std::slice::from_ref(way);
        Ok(Judgement::Answer(busy(way, learnt, &may_go)))
    }

    /// So many comparisons fit into the transaction of a batch beside those that it always has.
    fn room(&self, met: Meeting<'_>) -> usize {
        let most = self.link.config.operations;
        most.saturating_sub(met.looks.len() + OVERHEAD + CLEARED)
    }

    /// What is written beside a holder where nobody who counts is in the way, but for those who are passed.
    pub(crate) fn in_line(
        &self,
        met: Meeting<'_>,
        view: &View,
        own: &Own,
        passed: &[Passed],
    ) -> InLine {
        let [claim] = &*met.request.claims else {
            return InLine::default();
        };
        if !met.request.waits {
            return InLine::default();
        }
        // Who has gone meanwhile must not come back by being passed.
        let waiters = passed.iter().map(|it| &it.waiter);
        let mut still: Vec<Compare> = waiters
            .map(|held| as_seen(held.name.clone(), held.seen))
            .collect();
        // Nor does a place count that is gone, or is a place passed for a holder that is. Where these do not fit, somebody
        // comes too early at the most.
        if let Some(held) = own.on(met, view, claim).filter(|it| it.waiting().is_some()) {
            still.push(as_seen(held.name.clone(), held.seen));
        }
        let mut keepers: Vec<&Kept> = passed.iter().map(|it| &it.keeper).collect();
        keepers.sort_by(|one, other| one.name.cmp(&other.name));
        keepers.dedup();
        let kept = keepers.into_iter();
        still.extend(kept.map(|kept| as_seen(kept.name.clone(), kept.seen)));
        still.truncate(self.room(met));
        let batch = self.link.names.waiting_batch(met.request.grant);
        let changes = passed
            .iter()
            .map(|it| TxnOp::put(it.waiter.name.clone(), it.value.as_str(), None))
            .chain([TxnOp::delete(batch, None)]);
        InLine {
            still,
            changes: changes.collect(),
        }
    }

    /// Removes one that waits, if it does so as it was seen to.
    async fn quit(&self, held: &Held) -> Result<()> {
        let Some(grant) = held.grant() else {
            return Ok(());
        };
        let names = &self.link.names;
        let still = vec![as_seen(held.name.clone(), held.seen)];
        let removed = [held.name.clone(), names.waiting_batch(grant)];
        let removed = removed.map(|key| TxnOp::delete(key, None)).to_vec();
        let way = self.way(Operation::Acquire);
        way.txn(still, removed, Vec::new()).await.map(drop)
    }

    /// Has a refused request stand in line from now on, unless it does already, or too many do. Whether the store is of the
    /// incarnation that it is meant for.
    async fn stand_in_line(
        &self,
        met: Meeting<'_>,
        view: &View,
        own: &Own,
        claim: &Claim,
    ) -> Result<bool> {
        let (names, request) = (&self.link.names, met.request);
        let in_line = own.on(met, view, claim).is_some();
        if in_line || (own.on_key >= MAX_WAITERS && self.is_full(claim).await?) {
            return Ok(true);
        }
        let (grant, class) = (request.grant, class(claim.want()));
        let key = claim.key().as_str();
        let name = names.holder_beside(grant, class, key);
        let value = waiter_value(claim.want(), grant, request.owner, unix_ms(), 0);
        let batch = batch_value(&request.claims);
        // Whoever was granted meanwhile, by another copy of the request, does not wait.
        let compares = || {
            let not_over = not_over(names, grant).into_iter();
            not_over.chain([absent(name.clone())]).collect()
        };
        let then = || {
            let waits = [(name.clone(), &value), (names.waiting_batch(grant), &batch)];
            let waits = waits.map(|(key, value)| TxnOp::put(key, value.as_str(), None));
            if class == SHARED {
                return waits.to_vec();
            }
            let stands = stands(names, grant, class, key);
            vec![TxnOp::txn(Txn::new().when(stands).or_else(waits))]
        };
        let way = self.way(Operation::Acquire);
        let stood = way.under(request.incarnation, compares, then, || Some(Vec::new()));
        Ok(stood.await?.is_ok())
    }

    /// Whether as many wait for a key as may.
    async fn is_full(&self, claim: &Claim) -> Result<bool> {
        let names = &self.link.names;
        let mut range = names.holders(claim.key(), Classes::All, false);
        let mut waiters = 0;
        loop {
            let (found, _) = self.way(Operation::Acquire).get(&range, PAGE).await?;
            let held = self.held(claim.key(), &found.pairs);
            waiters += held.iter().filter(|held| held.waiting().is_some()).count();
            match after(&found.pairs, found.more) {
                Some(from) if waiters < MAX_WAITERS => range.from = from,
                _ => return Ok(waiters >= MAX_WAITERS),
            }
        }
    }

    /// Who keeps each of these from what it waits for.
    async fn keepers(
        &self,
        met: Meeting<'_>,
        claim: &Claim,
        view: &View,
        waiters: &[&Held],
        learnt: &mut Learnt,
    ) -> Result<Vec<Keeper>> {
        let case = |held: &&Held| self.case(met.request, claim, held);
        let cases: Vec<Option<Case>> = waiters.iter().map(case).collect();
        let mut read = BTreeMap::new();
        for (at, look) in met.looks.iter().enumerate() {
            let (held, rest) = (view.held[at].clone(), view.more[at].clone());
            read.insert(look.range.clone(), Read { held, rest });
        }
        let mut keepers = Vec::with_capacity(cases.len());
        self.look_at(cases.iter().flatten(), &mut read, learnt)
            .await?;
        for case in &cases {
            keepers.push(match case {
                None => Keeper::Somebody,
                Some(case) => {
                    self.kept_in_turn(met, claim, case, &mut read, learnt)
                        .await?
                }
            });
        }
        Ok(keepers)
    }

    /// Who keeps one that waits. If a session is asked about, that may be whoever it waits for in turn; each of them is
    /// followed once.
    async fn kept_in_turn(
        &self,
        met: Meeting<'_>,
        claim: &Claim,
        case: &Case,
        read: &mut BTreeMap<Range, Read>,
        learnt: &mut Learnt,
    ) -> Result<Keeper> {
        let (keeper, before) = case.kept(read, learnt);
        if case.asked.is_none() || keeper != Keeper::Somebody {
            return Ok(keeper);
        }
        let (mut left, mut seen) = (before, BTreeSet::from([case.grant]));
        while let Some(held) = left.pop() {
            let next = self.case(met.request, claim, &held);
            let Some(next) = next.filter(|next| seen.insert(next.grant)) else {
                continue;
            };
            let next = Case {
                asked: case.asked,
                ..next
            };
            self.look_at([&next].into_iter(), read, learnt).await?;
            let (keeper, before) = next.kept(read, learnt);
            if let Keeper::Asked(_) = keeper {
                return Ok(keeper);
            }
            left.extend(before);
        }
        Ok(Keeper::Somebody)
    }

    /// Reads and learns what there is to know of who keeps these.
    async fn look_at<'a>(
        &self,
        cases: impl Iterator<Item = &'a Case> + Clone + Send,
        read: &mut BTreeMap<Range, Read>,
        learnt: &mut Learnt,
    ) -> Result<()> {
        loop {
            self.read_first(cases.clone(), read).await?;
            let (mut sessions, mut more) = (BTreeSet::new(), BTreeSet::new());
            for case in cases.clone() {
                match case.keeper(read, learnt) {
                    Looked::Known(..) => {}
                    Looked::Sessions(some) => sessions.extend(some),
                    Looked::More => more.extend(case.looks.iter().map(|look| &look.range)),
                }
            }
            if !sessions.is_empty() {
                let sessions: Vec<SessionId> = sessions.into_iter().collect();
                let states = self.way(Operation::Acquire).look_at(&sessions).await?;
                learnt.take(&states);
            } else if !more.is_empty() {
                self.read_on(cases.clone(), &more, read).await?;
            } else {
                return Ok(());
            }
        }
    }

    /// What is looked at of one that waits: with the limit of who asks, if it wants a share.
    fn case(&self, request: &Acquire, asks: &Claim, held: &Held) -> Option<Case> {
        let (grant, owner) = (held.grant()?, held.owner()?);
        let want = match (held.mode(), held.key.is_path()) {
            (Mode::X, true) => Want::Write,
            (_, true) => Want::Read,
            (Mode::X, false) => Want::Upsert,
            (_, false) => Want::Share {
                limit: line_limit(asks),
            },
        };
        let claim = Claim::new(held.key.clone(), want)?;
        let is_named = |grant: Grant| {
            let mut past = request.past.iter();
            past.any(|past| past.grant == grant && !past.waiting.may_go)
        };
        Some(Case {
            place: held.place(),
            grant,
            owner,
            looks: looks(&self.link.names, std::slice::from_ref(&claim)),
            claim,
            asked: is_named(grant).then_some(request.grant.session),
        })
    }

    /// Reads the beginning of each range that was not read.
    async fn read_first(
        &self,
        cases: impl Iterator<Item = &Case>,
        read: &mut BTreeMap<Range, Read>,
    ) -> Result<()> {
        let looks = cases.flat_map(|case| &case.looks);
        let unread = looks.filter(|look| !read.contains_key(&look.range));
        let unread: BTreeMap<&Range, &Look> = unread.map(|look| (&look.range, look)).collect();
        let unread: Vec<&Look> = unread.into_values().collect();
        for some in unread.chunks(self.keys_per_batch()) {
            let gets = some.iter().map(|look| get(&look.range, FIRST_LOOK));
            let mut answer = self.way(Operation::Acquire).all(gets.collect()).await?;
            for look in some {
                let found = answer.found()?;
                let held = self.held(&look.key, &found.pairs);
                let rest = after(&found.pairs, found.more);
                read.insert(look.range.clone(), Read { held, rest });
            }
        }
        Ok(())
    }

    /// Reads on in those ranges.
    async fn read_on(
        &self,
        cases: impl Iterator<Item = &Case>,
        ranges: &BTreeSet<&Range>,
        read: &mut BTreeMap<Range, Read>,
    ) -> Result<()> {
        let looks = cases.flat_map(|case| &case.looks);
        let keys: BTreeMap<&Range, &Look> = looks.map(|look| (&look.range, look)).collect();
        for range in ranges {
            let (Some(look), Some(read)) = (keys.get(range), read.get_mut(*range)) else {
                continue;
            };
            let Some(from) = read.rest.take() else {
                continue;
            };
            let to = range.to.clone();
            let rest = Range { from, to };
            let (found, _) = self.way(Operation::Acquire).get(&rest, PAGE).await?;
            read.held.extend(self.held(&look.key, &found.pairs));
            read.rest = after(&found.pairs, found.more);
        }
        Ok(())
    }
}

impl Case {
    /// Who keeps it out, once all of that was read, and who of them waits.
    fn kept(&self, read: &BTreeMap<Range, Read>, learnt: &Learnt) -> (Keeper, Vec<Held>) {
        match self.keeper(read, learnt) {
            Looked::Known(keeper, before) => (keeper, before),
            // It is looked at until it is known.
            Looked::Sessions(_) | Looked::More => (Keeper::Somebody, Vec::new()),
        }
    }

    /// Who keeps it out, by what was read.
    fn keeper(&self, read: &BTreeMap<Range, Read>, learnt: &Learnt) -> Looked {
        let ask = Ask {
            claim: &self.claim,
            place: lockcore::backend::judge::Place::Key,
            asker: Some((self.grant, self.owner)),
        };
        let read = |look: &Look| read.get(&look.range);
        let looks = self.looks.iter();
        let looks = looks.filter_map(|look| Some((look, read(look)?.held.as_slice())));
        let (mut keepers, mut shares, mut sessions) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (place, held) in meets(&self.claim, looks) {
            let is_own = held.grant() == Some(self.grant);
            let is_later = held.waiting().is_some_and(|it| it.place >= self.place);
            let is_share = is_share(&self.claim, held);
            let is_beside = !is_share && ask.at(place).beside(held);
            if is_own || is_later || is_beside || learnt.is_gone(held) {
                continue;
            }
            match (held.grant(), learnt.state(held)) {
                (Some(grant), None) => drop(sessions.insert(grant.session)),
                (Some(_), Some(state)) if !held.is_live(state) => {}
                _ if is_share => shares.push(held),
                _ => keepers.push(held),
            }
        }
        if let Some(limit) = self.claim.want().limit()
            && shares.len() >= usize::try_from(limit.get()).unwrap_or(usize::MAX)
        {
            keepers.extend(shares);
        }
        let asked = |held: &&&Held| {
            let session = held.grant().map(|grant| grant.session);
            self.asked.is_some() && session == self.asked && held.waiting().is_none()
        };
        if let Some(held) = keepers.iter().find(asked) {
            let keeper = Keeper::Asked(Kept {
                name: held.name.clone(),
                seen: held.seen,
            });
            return Looked::Known(keeper, Vec::new());
        }
        if !keepers.is_empty() && self.asked.is_none() {
            return Looked::Known(Keeper::Somebody, Vec::new());
        }
        if !sessions.is_empty() {
            return Looked::Sessions(sessions);
        }
        let mut looks = self.looks.iter();
        if looks.any(|look| read(look).is_some_and(|read| read.rest.is_some())) {
            return Looked::More;
        }
        let keeper = match keepers.is_empty() {
            true => Keeper::Nobody,
            false => Keeper::Somebody,
        };
        let waits = |held: &&Held| held.waiting().is_some();
        let before = keepers.into_iter().filter(waits).cloned().collect();
        Looked::Known(keeper, before)
    }
}
