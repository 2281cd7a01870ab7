//! The line of a key: who came before, who lets whom by, and who gets a place.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::judging::{Found, Look, Obstacle, Pages, Standing, harmless, judge, limit};
use super::sessions::Met;
use super::{At, Done, Rows, Waits};
use crate::backend::judge::{Ask, Entry as _, Keeper, Place, line_limit, waited_for};
use crate::limits::MAX_WAITERS;
use crate::store::Past;
use crate::{Acquire, Claim, Mode, SessionId, Waiting};

/// Of those who came before a waiter so many are examined, and of the rows that keep it out.
const KEEPERS: usize = 1_000;
const ROWS: usize = 10_000;

impl<I: Clone + Send + Sync + 'static> Look<I> {
    /// Leaves of the waiters those who came before who asks, and are not let by; the first one first.
    pub(super) async fn keep_in_line<R: Rows<Id = I>>(
        &mut self,
        rows: &mut R,
        met: &mut Met,
        claim: &Claim,
        found: &mut Found<I>,
    ) -> Done<(), R> {
        if let Some((grant, _)) = self.asker.filter(|_| self.waits) {
            let own = rows.holder(&R::id(claim.key(), grant)).await?;
            self.own = own.and_then(|row| row.waits());
        }
        let own = self.own.map_or(u64::MAX, |own| own.place);
        let mut waiters = std::mem::take(&mut found.waiters);
        waiters.retain(|waiter| waiter.place() < own);
        waiters.sort_by_key(Obstacle::place);
        for (at, mut waiter) in waiters.into_iter().enumerate() {
            let is_listed = found.obstacles.len() + at < self.most;
            if self.waits && is_listed && self.lets_by(rows, met, claim, &mut waiter).await? {
                continue;
            }
            found.waiters.push(waiter);
        }
        Ok(())
    }

    /// Sees whether a waiter may go, and whether who asks may have what it asks for all the same: because that waiter does not
    /// go although it may, or because it waits for the session of who asks.
    async fn lets_by<R: Rows<Id = I>>(
        &mut self,
        rows: &mut R,
        met: &mut Met,
        claim: &Claim,
        waiter: &mut Obstacle<I>,
    ) -> Done<bool, R> {
        let (Some(waits), Some((asker, _))) = (waiter.row.waits(), self.asker) else {
            return Ok(false);
        };
        let Some(request) = waiter.request::<R>(line_limit(claim)) else {
            return Ok(false);
        };
        let is_past = |past: &&Past| past.grant == request.grant;
        let past = self.past.iter().find(is_past).copied();
        let by = past
            .filter(|past| !past.waiting.may_go)
            .map(|_| asker.session);
        let keeper = keeper(rows, met, &request, waits, by).await?;
        let waiting = waiter.waiting.insert(Waiting {
            may_go: keeper == Keeper::Nobody,
            ..waits.waiting()
        });
        if past.is_none_or(|past| past.waiting != *waiting) {
            return Ok(false);
        }
        match keeper {
            Keeper::Nobody => {
                let [claim] = &*request.claims else {
                    return Ok(false);
                };
                let removed = (claim.key().clone(), waiter.row.id.clone());
                self.removed.push(removed);
            }
            Keeper::Asked => {
                let passed = waits.passed.saturating_add(1);
                self.passed.push((request, Waits { passed, ..waits }));
            }
            Keeper::Somebody => return Ok(false),
        }
        Ok(true)
    }

    /// Whether a refused request stands in line from now on: it waits, has no place yet, and there is one.
    pub(super) async fn stands_in_line<R: Rows<Id = I>>(
        &self,
        rows: &mut R,
        request: &Acquire,
    ) -> Done<bool, R> {
        let [claim] = &*request.claims else {
            return Ok(false);
        };
        if !request.waits || self.own.is_some() {
            return Ok(false);
        }
        let own = rows.holder(&R::id(claim.key(), request.grant)).await?;
        // What it holds in another mode it keeps.
        if own.is_some() {
            return Ok(false);
        }
        let mut pages = Pages::new(At {
            key: claim.key(),
            place: Place::Key,
            but: None,
        });
        let mut waiters = 0;
        loop {
            let page = pages.next(rows).await?;
            if page.is_empty() {
                return Ok(true);
            }
            waiters += page.iter().filter(|row| row.waits().is_some()).count();
            if waiters >= MAX_WAITERS {
                return Ok(false);
            }
        }
    }
}

impl<I> Obstacle<I> {
    /// Its place in line.
    fn place(&self) -> u64 {
        self.waiting.map_or(0, |waiting| waiting.place)
    }

    /// Whether it is one of those that a limit counts.
    pub(super) fn is_share(&self) -> bool {
        self.row.held.is_ok() && self.row.mode() == Mode::IS && !self.key.is_path()
    }

    /// What a waiter asks for. A share has [this limit](line_limit).
    fn request<R: Rows<Id = I>>(&self, limit: Option<NonZeroU32>) -> Option<Acquire> {
        let (held, key) = (self.row.held.as_ref().ok()?, R::key(&self.row.id)?);
        let claim = waited_for(key, held.mode, limit)?;
        Some(Acquire::new(held.grant, held.owner, vec![claim]))
    }
}

/// Who keeps a waiter from what it asks for. If a session is `asked` about, whether that does: as a holder, or because somebody
/// who came before waits for it in turn.
async fn keeper<R: Rows>(
    rows: &mut R,
    met: &mut Met,
    request: &Acquire,
    waits: Waits,
    asked: Option<SessionId>,
) -> Done<Keeper, R> {
    let mut keeper = Keeper::Nobody;
    let (mut left, mut looked_at) = (vec![(request.clone(), waits)], 0);
    let mut seen = BTreeSet::from([request.grant]);
    while let Some((request, waits)) = left.pop() {
        for obstacle in keepers(rows, met, &request, waits, asked, &mut looked_at).await? {
            keeper = Keeper::Somebody;
            let Some(asked) = asked else {
                return Ok(keeper);
            };
            let grant = obstacle.row.grant();
            match obstacle.row.waits() {
                None if grant.is_some_and(|grant| grant.session == asked) => {
                    return Ok(Keeper::Asked);
                }
                Some(before) if grant.is_some_and(|grant| seen.insert(grant)) => {
                    let limit = request.claims.first().and_then(line_limit);
                    left.extend(obstacle.request::<R>(limit).zip(Some(before)));
                }
                _ => {}
            }
        }
    }
    Ok(keeper)
}

/// Those who keep a waiter from what it asks for: the first one; or, if a session is asked about, one holder, who is of that
/// session if any is, all shares of a limit, and who came before.
async fn keepers<R: Rows>(
    rows: &mut R,
    met: &mut Met,
    request: &Acquire,
    waits: Waits,
    asked: Option<SessionId>,
    looked_at: &mut usize,
) -> Done<Vec<Obstacle<R::Id>>, R> {
    let (mut keepers, mut kept) = (Vec::new(), false);
    for claim in &request.claims {
        let ask = Ask::of(request, claim);
        let limit = limit(claim);
        let mut shares = Vec::new();
        let above = claim.key().ancestor_keys().map(|key| (key, Place::Above));
        let here = [Place::Key, Place::Below].map(|place| (claim.key().clone(), place));
        for (key, place) in above.chain(here) {
            let ask = ask.at(place);
            let mut pages = Pages::new(At {
                key: &key,
                place: match place {
                    Place::Below => Place::Below,
                    Place::Key | Place::Above => Place::Key,
                },
                but: harmless(ask),
            });
            loop {
                let page = pages.next(rows).await?;
                if page.is_empty() {
                    break;
                }
                for mut row in page {
                    let is_own = row.grant() == Some(request.grant);
                    let is_later = row.waits().is_some_and(|it| it.place >= waits.place);
                    let is_share = limit.is_some() && row.held.is_ok() && row.mode() == Mode::IS;
                    if is_own || is_later || (!is_share && ask.beside(&row)) {
                        continue;
                    }
                    let is_holder = row.waits().is_none();
                    let is_asked = (row.grant().map(|grant| grant.session))
                        .is_some_and(|of| Some(of) == asked);
                    *looked_at += 1;
                    if is_holder && !is_share && kept && !is_asked && *looked_at < ROWS {
                        continue;
                    }
                    if judge(rows, met, &mut row).await? == Standing::Gone {
                        continue;
                    }
                    kept |= is_holder && !is_share;
                    let one = Obstacle {
                        key: key.clone(),
                        mode: row.mode(),
                        waiting: row.waits().map(Waits::waiting),
                        row,
                    };
                    if is_share {
                        shares.push(one);
                    } else {
                        keepers.push(one);
                    }
                    let full = limit.is_some_and(|limit| shares.len() >= limit);
                    let first = asked.is_none() && (full || !keepers.is_empty());
                    let found = is_holder && is_asked && !is_share;
                    if first || found || keepers.len() >= KEEPERS || *looked_at >= ROWS {
                        keepers.append(&mut shares);
                        return Ok(keepers);
                    }
                }
            }
        }
        if limit.is_some_and(|limit| shares.len() >= limit) {
            keepers.append(&mut shares);
        }
    }
    Ok(keepers)
}
