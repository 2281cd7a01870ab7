//! `ClaimStore`: each claim is one key of its own, and nothing is written for the ancestors of a path.
//!
//! A batch that meets nobody is one transaction. One that meets somebody has read who it is in that same transaction; then
//! their sessions are looked at, and if none of them is in the way after all, a second transaction takes the batch, if
//! nobody has come since, and removes what does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, DeleteOptions, KeyValue, PutOptions, Txn, TxnOp};
use lockcore::backend::judge::Entry as _;
use lockcore::backend::{Acquire, Acquired, ClaimStore, SmallBatches, Stood, Sweep, Swept};
use lockcore::{Claim, Grant, LockKey, Operation, Result, Want};

use crate::EtcdBackend;
use crate::config::{MAX_REMOVED, OVERHEAD};
use crate::judging::{FIRST_LOOK, Judgement, Learnt, Look, Meeting, View};
use crate::line::{InLine, is_in_line};
use crate::namespace::unix_ms;
use crate::pages::PAGE;
use crate::record::{
    Classes, Held, Names, Range, SHARED, batch_value, class, digits, holder_value, holds_from,
    shares_from, values_of,
};
use crate::txn::{Answer, get, nobody, not_since, present};

/// So many bytes has what removes a holder beside its name, which is there three times: whether the batch is taken or not.
const BESIDE_A_NAME: usize = 64;
/// So many operations has what removes one where somebody has come meanwhile: they count beside all others.
pub(crate) const CLEARED: usize = 1;
/// How often a batch is taken past those who do not count before it gives way to those who are quicker.
const ATTEMPTS: usize = 64;

/// What is known of who is in the way of a batch.
enum Known {
    /// Nothing, and nothing is asked.
    Nothing,
    /// Nothing: who it is shall be read if there is somebody.
    Asked,
    /// Nobody who counts, as of a revision: where the claims' holders stand then, beside claims, and whose have to go.
    Passed {
        revision: i64,
        places: Vec<Vec<u8>>,
        gone: Vec<Vec<u8>>,
        /// Beside looks that ask for those who hold exclusively: only others are there, and more of them may come.
        shared: Vec<bool>,
        line: InLine,
    },
}

/// So many paths are remembered.
const REFUSED: usize = 1_024;

/// Paths that were refused last: who asks again reads who is below before it asks for what nobody may be below.
#[derive(Default)]
pub(crate) struct Refused(Mutex<BTreeSet<LockKey>>);

impl Refused {
    fn paths(&self) -> MutexGuard<'_, BTreeSet<LockKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_any(&self, claims: &[Claim]) -> bool {
        let paths = self.paths();
        !paths.is_empty() && claims.iter().any(|claim| paths.contains(claim.key()))
    }

    fn remember(&self, claims: &[Claim]) {
        let mut paths = self.paths();
        if paths.len() >= REFUSED {
            paths.clear();
        }
        let new = claims.iter().filter(|claim| claim.want().is_path());
        paths.extend(new.map(|claim| claim.key().clone()).take(REFUSED));
    }

    fn forget(&self, claims: &[Claim]) {
        let mut paths = self.paths();
        if !paths.is_empty() {
            claims
                .iter()
                .for_each(|claim| _ = paths.remove(claim.key()));
        }
    }
}

/// How a try ended that did not fail.
enum Tried {
    Granted(Acquired),
    Void,
    Moved,
    Met(View),
    /// Somebody is there, and nobody was asked for.
    Refused,
}

#[async_trait]
impl ClaimStore for EtcdBackend {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let claims = &request.claims;
        if !SmallBatches::fits(claims) || !self.seems_free(claims) {
            return self.acquire_alone(request).await;
        }
        // It is large, and stands there twice.
        let alone = |request| Box::pin(async move { self.acquire_alone(&request).await });
        self.small.acquire(request, alone).await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        if !SmallBatches::fits(claims) {
            return self.release_alone(grant, claims).await;
        }
        let alone = |(grant, claim)| async move { self.release_alone(grant, &[claim]).await };
        self.small.release(grant, &claims[0], alone).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let names = &self.link.names;
        for some in claims.chunks(self.keys_per_batch()) {
            let (shared, exclusive): (Vec<&Claim>, Vec<&Claim>) =
                some.iter().partition(|claim| class(claim.want()) == SHARED);
            let shared = shared
                .into_iter()
                .map(|claim| holds(names, grant, SHARED, claim.key().as_str()));
            let all = not_over(names, grant).into_iter().chain(shared).collect();
            // Something is written, so that no member answers from what it has not heard of yet.
            let same = PutOptions::new().with_ignore_value().with_ignore_lease();
            let written = TxnOp::put(names.live(grant.session), "", Some(same));
            let held = exclusive.iter().map(|claim| {
                let (class, key) = (class(claim.want()), claim.key().as_str());
                let stands = stands(names, grant, class, key);
                let beside = TxnOp::get(names.holder_beside(grant, class, key), None);
                TxnOp::txn(Txn::new().when(stands).or_else([beside]))
            });
            let then = [written].into_iter().chain(held).collect();
            let way = self.way(Operation::Confirm);
            let mut answer = way.txn(all, then, Vec::new()).await?;
            if !answer.succeeded {
                return Ok(false);
            }
            answer.skip();
            for _ in &exclusive {
                if !answer.done_or_holds()? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.sweep_some(which, limit).await
    }
}

impl EtcdBackend {
    async fn acquire_alone(&self, request: &Acquire) -> Result<Acquired> {
        let claims = &request.claims;
        let looks = looks(&self.link.names, claims);
        let free = self.seems_free(claims);
        let mut known = if free { Known::Nothing } else { Known::Asked };
        let mut learnt = Learnt::default();
        let has_paths = claims.iter().any(|claim| claim.want().is_path());
        let seems_met = self.watches.stand_for(claims) || self.refused.has_any(claims);
        let mut reads = has_paths && seems_met;
        for _ in 0..ATTEMPTS {
            let tried = match known {
                Known::Asked if reads => self.look(request, &looks).await?,
                known => self.take_batch(request, &looks, known).await?,
            };
            reads = has_paths;
            let mut view = match tried {
                Tried::Granted(granted) => {
                    self.refused.forget(claims);
                    return Ok(granted);
                }
                Tried::Void => return Ok(Acquired::Void),
                Tried::Moved => return Ok(Acquired::Moved),
                Tried::Met(view) => view,
                Tried::Refused => {
                    known = Known::Asked;
                    continue;
                }
            };
            let met = Meeting {
                request,
                looks: &looks,
            };
            known = match self.judge(met, &mut view, &mut learnt).await? {
                Judgement::Answer(answer) => {
                    self.refused.remember(claims);
                    return Ok(answer);
                }
                Judgement::Again => Known::Asked,
                Judgement::Nobody(line) => self.passed(met, &view, &learnt, line),
            };
        }
        Err(self.way(Operation::Acquire).never_still())
    }

    async fn release_alone(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let names = &self.link.names;
        // Of several transactions the first one asks: who dies after it has held until then.
        let lives = TxnOp::txn(Txn::new().when(not_over(names, grant)));
        let each = claims
            .iter()
            .map(|claim| removal(names, grant, class(claim.want()), claim.key().as_str()));
        // The batch is forgotten with the last of them.
        let forgotten = TxnOp::delete(names.batch(grant), None);
        // Only one claim waits.
        let waits = (claims.len() == 1).then(|| TxnOp::delete(names.waiting_batch(grant), None));
        let forgotten = [forgotten].into_iter().chain(waits);
        let mut removals: Vec<TxnOp> = [lives].into_iter().chain(each).chain(forgotten).collect();
        let (mut lives, mut removed) = (None, Vec::with_capacity(claims.len()));
        while !removals.is_empty() {
            let some = self.some_of(&mut removals);
            let mut answer = self.way(Operation::Release).all(some).await?;
            if lives.is_none() {
                lives = Some(answer.done()?);
            }
            removed.extend(answer.each_holder_removed());
        }
        let there = removed.len() > claims.len() && removed[..claims.len()].iter().all(|n| *n > 0);
        Ok(match (there, lives) {
            (true, Some(true)) => Stood::Held,
            (true, _) => Stood::Fallen,
            (false, _) => Stood::Absent,
        })
    }

    /// Whether nobody seems to be in the way: who is there is not asked for then.
    fn seems_free(&self, claims: &[Claim]) -> bool {
        claims.iter().all(|claim| alone(claim.want()))
            && !self.watches.stand_for(claims)
            && !self.refused.has_any(claims)
    }

    /// Reads who is in the way, and writes nothing: what compares a range goes through all that is in it, while every other
    /// request waits.
    async fn look(&self, request: &Acquire, looks: &[Look]) -> Result<Tried> {
        let then = || self.seen(request, looks).collect();
        let way = self.way(Operation::Acquire);
        let asked = way.under(request.incarnation, Vec::new, then, || Some(Vec::new()));
        let Ok(mut answer) = asked.await? else {
            return Ok(Tried::Moved);
        };
        self.met(request, looks, &mut answer)
    }

    /// What reads whether the grant may hold anything, and who is in the way.
    fn seen(&self, request: &Acquire, looks: &[Look]) -> impl Iterator<Item = TxnOp> {
        let (names, grant) = (&self.link.names, request.grant);
        let own = [
            TxnOp::get(names.live(grant.session), None),
            get(&names.over_from(grant.session, grant.n), 0),
        ];
        let mut limits = request.claims.iter().map(|claim| claim.want().limit());
        let first = match limits.any(|limit| limit.is_some()) {
            true => PAGE,
            false => FIRST_LOOK,
        };
        let met = looks.iter().map(move |look| get(&look.range, first));
        own.into_iter().chain(met)
    }

    /// What was [seen](Self::seen).
    fn met(&self, request: &Acquire, looks: &[Look], answer: &mut Answer) -> Result<Tried> {
        let lives = !answer.found()?.pairs.is_empty();
        let n = digits(request.grant.n);
        let is_over = |range: &KeyValue| range.value() <= n.as_bytes();
        if !lives || answer.found()?.pairs.iter().any(is_over) {
            return Ok(Tried::Void);
        }
        Ok(Tried::Met(self.view(looks, answer)?))
    }

    /// Takes away as many removals as fit into a transaction: the comparisons of one of them count beside all.
    pub(crate) fn some_of(&self, removals: &mut Vec<TxnOp>) -> Vec<TxnOp> {
        let most = self.keys_per_batch() + 1;
        removals.drain(..removals.len().min(most)).collect()
    }

    /// Takes a batch if nobody is in the way; where it is known who was as of a revision, if nobody has come since.
    async fn take_batch(&self, request: &Acquire, looks: &[Look], known: Known) -> Result<Tried> {
        let names = &self.link.names;
        let Acquire {
            grant,
            owner,
            claims,
            ..
        } = request;
        let since_ms = unix_ms();
        let compares = || {
            let free = looks.iter().enumerate().map(|(at, look)| match &known {
                Known::Passed { shared, .. } if shared[at] => all_share(&look.range),
                Known::Passed { revision, .. } => not_since(&look.range, *revision),
                Known::Nothing | Known::Asked => nobody(&look.range),
            });
            let still = match &known {
                Known::Passed { line, .. } => line.still.as_slice(),
                Known::Nothing | Known::Asked => &[],
            };
            let free = free.chain(still.iter().cloned());
            not_over(names, *grant).into_iter().chain(free).collect()
        };
        let then = || {
            let (places, gone) = match &known {
                Known::Passed { places, gone, .. } => (places.clone(), gone.as_slice()),
                Known::Nothing | Known::Asked => (self.places(request), &[][..]),
            };
            let removed = gone.iter().map(|name| TxnOp::delete(name.clone(), None));
            let entered = claims.iter().zip(places).map(|(claim, place)| {
                let value = holder_value(claim.want(), *grant, *owner, since_ms);
                TxnOp::put(place, value, None)
            });
            let batch = TxnOp::put(names.batch(*grant), batch_value(claims), None);
            // Who shares a key and has waited for it is in nobody's way where it is granted.
            let waited = || TxnOp::delete(names.waiting_batch(*grant), None);
            let line = match &known {
                Known::Nothing => Vec::new(),
                Known::Asked if is_in_line(request) => vec![waited()],
                Known::Asked => Vec::new(),
                Known::Passed { line, .. } => line.changes.clone(),
            };
            removed.chain(entered).chain(line).chain([batch]).collect()
        };
        let or_else = || {
            if matches!(known, Known::Nothing) {
                return None;
            }
            let seen = self.seen(request, looks);
            Some(seen.chain(self.cleared(looks, &known)).collect())
        };
        let way = self.way(Operation::Acquire);
        let asked = way.under(request.incarnation, compares, then, or_else);
        let Ok(mut answer) = asked.await? else {
            return Ok(Tried::Moved);
        };
        if answer.succeeded {
            return Ok(Tried::Granted(Acquired::Acquired(answer.token()?)));
        }
        if matches!(known, Known::Nothing) {
            return Ok(Tried::Refused);
        }
        self.met(request, looks, &mut answer)
    }

    /// Removes who does not count also where somebody has come meanwhile: those who come and go would keep a batch away from
    /// them for ever.
    fn cleared(&self, looks: &[Look], known: &Known) -> Vec<TxnOp> {
        let Known::Passed { revision, gone, .. } = known else {
            return Vec::new();
        };
        let room = self
            .link
            .config
            .operations
            .saturating_sub(looks.len() + OVERHEAD + CLEARED);
        let cleared = gone.iter().take(room).map(|name| {
            let as_seen = Compare::mod_revision(name.clone(), CompareOp::Less, revision + 1);
            let removal = TxnOp::delete(name.clone(), None);
            TxnOp::txn(Txn::new().when([as_seen]).and_then([removal]))
        });
        cleared.collect()
    }

    /// Where the claims' holders stand where nobody else is.
    fn places(&self, request: &Acquire) -> Vec<Vec<u8>> {
        let place = |claim: &Claim| {
            let key = claim.key().as_str();
            self.link
                .names
                .holder(request.grant, class(claim.want()), key)
        };
        request.claims.iter().map(place).collect()
    }

    /// How a batch is taken past those who were met.
    fn passed(&self, met: Meeting<'_>, view: &View, learnt: &Learnt, line: InLine) -> Known {
        let Meeting { request, looks } = met;
        let held = || view.held.iter().flatten();
        let mut places = self.places(request);
        for (claim, place) in request.claims.iter().zip(&mut places) {
            let mut here = held().filter(|held| held.key == *claim.key());
            // A request that is sent again finds itself, and who enters a key once more the one of the former time.
            if let Some(own) = here
                .clone()
                .find(|held| held.grant() == Some(request.grant))
            {
                place.clone_from(&own.name);
            } else if here.any(|held| held.name == *place && !learnt.is_gone(held)) {
                let (class, key) = (class(claim.want()), claim.key().as_str());
                *place = self.link.names.holder_beside(request.grant, class, key);
            }
        }
        // As many as fit into the transaction, with what clears them otherwise; what is put is not removed besides.
        let room = self
            .link
            .config
            .operations
            .saturating_sub(request.claims.len() + 1 + line.changes.len() + CLEARED);
        let gone = held().filter(|held| learnt.is_gone(held));
        let gone: BTreeSet<&Vec<u8>> = gone.map(|held| &held.name).collect();
        let put: BTreeSet<&Vec<u8>> = places.iter().collect();
        let mut bytes = 0;
        let fits = |name: &&&Vec<u8>| {
            bytes += 3 * name.len() + BESIDE_A_NAME;
            bytes <= MAX_REMOVED
        };
        let gone = gone.difference(&put).take(room).take_while(fits);
        let gone = gone.copied().cloned().collect();
        let shared = looks.iter().zip(&view.held).map(|(look, held)| {
            look.classes == Classes::Exclusive && !held.is_empty() && held.iter().all(Held::shares)
        });
        Known::Passed {
            revision: view.revision,
            places,
            gone,
            shared: shared.collect(),
            line,
        }
    }
}

/// That a session lives, and a number of it is not over.
pub(crate) fn not_over(names: &Names, grant: Grant) -> [Compare; 2] {
    [
        present(names.live(grant.session)),
        behind_over(names, grant),
    ]
}

/// That a number is not over, of a session that lives.
pub(crate) fn behind_over(names: &Names, grant: Grant) -> Compare {
    let Range { from, to } = names.over_from(grant.session, grant.n);
    Compare::value(from, CompareOp::Greater, digits(grant.n)).with_range(to)
}

/// That a grant's holder stands where everybody's does.
pub(crate) fn stands(names: &Names, grant: Grant, class: u8, key: &str) -> Vec<Compare> {
    let name = names.holder(grant, class, key);
    if class == SHARED {
        return vec![holds(names, grant, class, key)];
    }
    let [from, to] = values_of(grant);
    vec![
        Compare::value(name.clone(), CompareOp::Greater, from),
        Compare::value(name, CompareOp::Less, to),
    ]
}

/// That a grant holds at its own name, and does not wait.
pub(crate) fn holds(names: &Names, grant: Grant, class: u8, key: &str) -> Compare {
    let name = names.holder_beside(grant, class, key);
    Compare::value(name, CompareOp::Greater, holds_from(grant, class))
}

/// Removes a grant's holder, and nobody else's, wherever it stands. What may have waited is told with its value.
pub(crate) fn removal(names: &Names, grant: Grant, class: u8, key: &str) -> TxnOp {
    let told = DeleteOptions::new().with_prev_key();
    let beside = TxnOp::delete(names.holder_beside(grant, class, key), Some(told));
    if class == SHARED {
        return beside;
    }
    let holder = TxnOp::delete(names.holder(grant, class, key), None);
    let stands = stands(names, grant, class, key);
    TxnOp::txn(Txn::new().when(stands).and_then([holder]).or_else([beside]))
}

/// Where claims meet others; ancestors that they share once. First the ancestors, in path order, then the claims' own
/// keys, as the claims are.
pub(crate) fn looks(names: &Names, claims: &[Claim]) -> Vec<Look> {
    let above: Vec<(LockKey, Classes)> = if let [claim] = claims {
        let asked = classes(claim.want());
        let keys = claim.key().ancestor_keys();
        keys.map(|key| (key, asked)).collect()
    } else {
        above_all(claims).into_iter().collect()
    };
    let above = above.into_iter().map(|(key, classes)| Look {
        range: names.holders(&key, classes, false),
        classes,
        key,
    });
    let own = claims.iter().map(|claim| {
        let classes = classes(claim.want());
        Look {
            range: names.holders(claim.key(), classes, claim.want().is_path()),
            classes,
            key: claim.key().clone(),
        }
    });
    above.chain(own).collect()
}

/// What several claims ask of their ancestors.
fn above_all(claims: &[Claim]) -> BTreeMap<LockKey, Classes> {
    let mut above: BTreeMap<LockKey, Classes> = BTreeMap::new();
    for claim in claims {
        for key in claim.key().ancestor_keys() {
            let asked = above.entry(key).or_insert(Classes::Exclusive);
            *asked = (*asked).max(classes(claim.want()));
        }
    }
    // What a claim asks of its own key is more.
    for claim in claims {
        above.remove(claim.key());
    }
    above
}

/// Whether nobody else holds the like, mostly. Who is there costs the server more to read than all the rest of a batch.
fn alone(want: Want) -> bool {
    match want {
        Want::Create | Want::Upsert | Want::Write | Want::Share { limit: None } => true,
        Want::Read | Want::Share { limit: Some(_) } => false,
    }
}

/// Whom a claim may not stand beside at all: everybody, or all but those who share.
fn classes(want: Want) -> Classes {
    match want {
        Want::Share { limit: None } | Want::Read => Classes::Exclusive,
        Want::Create | Want::Upsert | Want::Write | Want::Share { limit: Some(_) } => Classes::All,
    }
}

/// That there is somebody in a range, and whoever is there shares.
fn all_share(range: &Range) -> Compare {
    Compare::value(range.from.clone(), CompareOp::Greater, shares_from())
        .with_range(range.to.clone())
}
