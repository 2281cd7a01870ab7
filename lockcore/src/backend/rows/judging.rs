//! Who is in the way of a claim: on its key, on the ancestors of a path and below it.

use std::collections::BTreeSet;

use super::sessions::Met;
use super::{At, Done, HolderRow, Rows, Stored, Strange, Waits};
use crate::backend::judge::{Ask, Entry as _, Place};
use crate::limits::MAX_OWN_BELOW;
use crate::store::Past;
use crate::{
    Acquire, Claim, Error, ErrorKind, Grant, Holder, Life, LockKey, Mode, Operation, OwnerId,
    Waiting,
};

/// Once a holder is in the way, so many rows are examined for others.
pub(super) const LOOKED_AT: usize = 1_000;
/// The most rows that are not live to remember for removal. A request that meets so many removes them first.
const REMEMBERED: usize = 5_000;
/// The size of a page of rows, which grows from the first to the second: mostly nobody is in the way, or a holder soon
/// is.
const PAGE: (usize, usize) = (32, 1_024);

/// The standing of a holder towards everybody but its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is live. So is a holder that cannot be judged.
    Counts,
    /// It is not live, and never will be again.
    Gone,
}

/// Judges a row. If the session cannot be understood, neither can the row from then on.
pub(super) async fn judge<R: Rows>(
    rows: &mut R,
    met: &mut Met,
    row: &mut HolderRow<R::Id>,
) -> Done<Standing, R> {
    let Ok(held) = row.held else {
        return Ok(Standing::Counts);
    };
    Ok(match met.meet(rows, held.grant.session).await? {
        // What nobody waits for any more keeps nobody waiting.
        Stored::Row(session) if held.waits.is_some() && session.life != Life::Living => {
            Standing::Gone
        }
        Stored::Row(session) if session.is_live(held.grant.n) => Standing::Counts,
        Stored::Row(_) | Stored::Absent => Standing::Gone,
        Stored::Unreadable => {
            row.held = Err(Strange {
                what: format!("unreadable session record {}", held.grant.session),
                version: format!("{}/{}/{};", held.grant, held.owner.m, held.mode),
            });
            Standing::Counts
        }
    })
}

/// A live row, as a holder of `key` in that mode.
pub(super) async fn holder<R: Rows>(
    rows: &mut R,
    met: &mut Met,
    row: &HolderRow<R::Id>,
    key: &LockKey,
    mode: Mode,
) -> Done<Holder, R> {
    let (label, life) = match &row.held {
        Err(strange) => (strange.what.clone(), Life::Living),
        Ok(held) => match met.meet(rows, held.grant.session).await? {
            Stored::Row(session) => (session.label.as_str().to_owned(), session.life),
            Stored::Absent | Stored::Unreadable => (String::new(), Life::Living),
        },
    };
    Ok(Holder {
        key: key.clone(),
        grant: row.grant(),
        owner: row.owner(),
        mode,
        label,
        since: row.since,
        life,
        waiting: row.waits().map(Waits::waiting),
    })
}

/// All rows at a place, page by page.
pub(super) struct Pages<'a, I> {
    at: At<'a>,
    most: usize,
    after: Option<I>,
    done: bool,
}

impl<'a, I: Clone> Pages<'a, I> {
    pub(super) fn new(at: At<'a>) -> Self {
        Self {
            at,
            most: PAGE.0,
            after: None,
            done: false,
        }
    }

    /// The next rows; none if there are no more.
    pub(super) async fn next<R: Rows<Id = I>>(
        &mut self,
        rows: &mut R,
    ) -> Done<Vec<HolderRow<I>>, R> {
        if self.done {
            return Ok(Vec::new());
        }
        let page = rows
            .holders(self.at, self.after.as_ref(), self.most)
            .await?;
        self.done = page.len() < self.most;
        if !self.done {
            self.after = page.last().map(|row| row.id.clone());
            self.most = PAGE.1.min(4 * self.most);
        }
        Ok(page)
    }
}

/// A holder in the way.
pub(super) struct Obstacle<I> {
    pub(super) row: HolderRow<I>,
    /// The claim's own key, or the ancestor on which the holder stands.
    pub(super) key: LockKey,
    /// The mode in which that key is held.
    pub(super) mode: Mode,
    /// It holds nothing, but came before.
    pub(super) waiting: Option<Waiting>,
}

/// The result for one claim.
pub(super) struct Found<I> {
    /// At most as many as requested.
    pub(super) obstacles: Vec<Obstacle<I>>,
    /// There may be more.
    pub(super) more: bool,
    /// Of these some may hold.
    pub(super) hides_holders: bool,
    /// Whether the asking grant already stands on the key as requested; `None` if that was not seen.
    stands: Option<bool>,
    looked_at: usize,
    /// Those who wait for what conflicts with the claim.
    pub(super) waiters: Vec<Obstacle<I>>,
    /// Shares, if the claim has a limit: some of them, and how many there are.
    shares: Vec<Obstacle<I>>,
    counted: usize,
}

impl<I> Found<I> {
    fn new() -> Self {
        Self {
            obstacles: Vec::new(),
            more: false,
            hides_holders: false,
            stands: None,
            looked_at: 0,
            waiters: Vec::new(),
            shares: Vec::new(),
            counted: 0,
        }
    }

    /// Adds one. A grant that holds much below a path is in the way once, in its strongest mode.
    fn push(&mut self, one: Obstacle<I>, most: usize) {
        let grant = one.row.grant();
        let same = |other: &&mut Obstacle<I>| {
            grant.is_some() && other.row.grant() == grant && other.key == one.key
        };
        if let Some(other) = self.obstacles.iter_mut().find(same) {
            other.mode = other.mode.max(one.mode);
        } else if self.obstacles.len() == most {
            self.more = true;
            self.hides_holders |= one.waiting.is_none();
        } else {
            self.obstacles.push(one);
        }
    }

    /// Whether to examine one more row.
    fn goes_on(&mut self) -> bool {
        self.looked_at += 1;
        self.more |= self.looked_at >= LOOKED_AT && !self.obstacles.is_empty();
        self.hides_holders |= self.more;
        !self.more
    }
}

/// The owner holds so many rows below the requested paths that examining them would keep others waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TooMuch;

impl TooMuch {
    pub(crate) fn error(self, backend: &'static str) -> Error {
        let what = "too many paths are held below: hold the path above them first";
        Error::new(ErrorKind::Limit, backend, Operation::Acquire, what)
    }
}

/// A search for obstacles, for one claim or for many.
pub(super) struct Look<I> {
    pub(super) asker: Option<(Grant, OwnerId)>,
    /// The most obstacles of a claim.
    pub(super) most: usize,
    /// Ancestors on which nobody is in the way of a claim with this mode there.
    clear: BTreeSet<(Mode, LockKey)>,
    /// Rows of the owner below claims, from other requests.
    own_below: usize,
    /// Rows in the way that are not live.
    pub(super) gone: Vec<I>,
    /// Who asks stands in line.
    pub(super) waits: bool,
    /// Waiters that may be passed.
    pub(super) past: Vec<Past>,
    /// How who asks stands in line already.
    pub(super) own: Option<Waits>,
    /// Waiters that make room.
    pub(super) removed: Vec<(LockKey, I)>,
    /// Waiters that are passed if the request is granted, as they stand then.
    pub(super) passed: Vec<(Acquire, Waits)>,
}

impl<I: Clone + Send + Sync + 'static> Look<I> {
    /// A search for a request.
    pub(super) fn by(request: &Acquire, most: usize) -> Self {
        Self {
            asker: Some((request.grant, request.owner)),
            waits: request.waits && request.claims.len() == 1,
            past: request.past.clone(),
            ..Self::by_nobody(most)
        }
    }

    /// A search for nobody in particular: everybody is in the way.
    pub(super) fn by_nobody(most: usize) -> Self {
        Self {
            asker: None,
            most,
            clear: BTreeSet::new(),
            own_below: 0,
            gone: Vec::new(),
            waits: false,
            past: Vec::new(),
            own: None,
            removed: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// Whether the search has ended early: there is so much to remove that others would wait for it, and for what is behind
    /// that. Where nobody asks, nothing is removed.
    pub(super) fn has_to_remove(&self) -> bool {
        self.asker.is_some() && self.gone.len() >= REMEMBERED
    }

    /// Fails if too many rows were examined; the search has ended early then.
    pub(super) fn check(&self) -> Result<(), TooMuch> {
        match self.own_below > MAX_OWN_BELOW {
            true => Err(TooMuch),
            false => Ok(()),
        }
    }

    /// Who is in the way of the claim. Nobody is, if the grant already stands there: the request was sent before, and
    /// later holders were granted beside it.
    pub(super) async fn at<R: Rows<Id = I>>(
        &mut self,
        rows: &mut R,
        met: &mut Met,
        claim: &Claim,
    ) -> Done<Found<I>, R> {
        let key = claim.key();
        let mut found = Found::new();
        let ask = Ask {
            claim,
            place: Place::Key,
            asker: self.asker,
        };
        if key.is_path() {
            self.above(rows, met, ask, &mut found).await?;
        }
        if !found.more {
            self.place(rows, met, ask, key, &mut found).await?;
        }
        if key.is_path() && !found.more {
            let below = ask.at(Place::Below);
            self.place(rows, met, below, key, &mut found).await?;
        }
        if !found.waiters.is_empty() {
            self.keep_in_line(rows, met, claim, &mut found).await?;
        }
        if let Some(limit) = limit(claim) {
            let waiting = found.waiters.iter().filter(|it| it.is_share()).count();
            if found.counted + waiting < limit {
                found.shares.clear();
                found.waiters.retain(|it| !it.is_share());
            }
        }
        let shares = std::mem::take(&mut found.shares);
        let waiters = std::mem::take(&mut found.waiters);
        for one in shares.into_iter().chain(waiters) {
            found.push(one, self.most);
        }
        if let Some((grant, _)) = self.asker
            && !found.obstacles.is_empty()
        {
            let stands = match found.stands {
                Some(stands) => stands,
                None => stands(rows, grant, claim).await?,
            };
            if stands {
                found.obstacles.clear();
            }
        }
        Ok(found)
    }

    async fn above<R: Rows<Id = I>>(
        &mut self,
        rows: &mut R,
        met: &mut Met,
        ask: Ask<'_>,
        found: &mut Found<I>,
    ) -> Done<(), R> {
        let ask = ask.at(Place::Above);
        for ancestor in ask.claim.key().ancestor_keys() {
            let clear = (ask.mode(), ancestor);
            if self.clear.contains(&clear) {
                continue;
            }
            let in_the_way = |found: &Found<I>| found.obstacles.len() + found.waiters.len();
            let before = in_the_way(found);
            self.place(rows, met, ask, &clear.1, found).await?;
            if found.more {
                break;
            }
            if in_the_way(found) == before {
                self.clear.insert(clear);
            }
        }
        Ok(())
    }

    /// Examines the rows of one place until there are enough.
    async fn place<R: Rows<Id = I>>(
        &mut self,
        rows: &mut R,
        met: &mut Met,
        ask: Ask<'_>,
        key: &LockKey,
        found: &mut Found<I>,
    ) -> Done<(), R> {
        let limit = limit(ask.claim);
        let mut pages = Pages::new(At {
            key,
            place: match ask.place {
                Place::Below => Place::Below,
                Place::Key | Place::Above => Place::Key,
            },
            but: harmless(ask),
        });
        'all: loop {
            let page = pages.next(rows).await?;
            if page.is_empty() {
                if ask.place == Place::Key && pages.at.but.is_none() {
                    found.stands.get_or_insert(false);
                }
                break;
            }
            for mut row in page {
                if self.is_own(&row) {
                    if ask.place == Place::Key {
                        found.stands = Some(row.mode() == ask.mode() && row.waits().is_none());
                    }
                    continue;
                }
                let is_share = limit.is_some() && row.held.is_ok() && row.mode() == Mode::IS;
                if !is_share && ask.beside(&row) {
                    self.own_below += usize::from(ask.place == Place::Below);
                    if self.check().is_err() {
                        break 'all;
                    }
                    continue;
                }
                if judge(rows, met, &mut row).await? == Standing::Gone {
                    if self.gone.len() < REMEMBERED {
                        self.gone.push(row.id);
                    }
                    if self.has_to_remove() {
                        break 'all;
                    }
                    continue;
                }
                let one = Obstacle {
                    key: key.clone(),
                    mode: ask.place.seen(row.mode()),
                    waiting: row.waits().map(Waits::waiting),
                    row,
                };
                if one.waiting.is_some() {
                    found.waiters.push(one);
                    // Each is in the way of a request without a place, but for those who want a share as well. Whoever watches
                    // has to see the holders, which stand behind some of them.
                    let is_enough = !is_share && found.waiters.len() > self.most;
                    found.more |= is_enough && !self.waits && self.asker.is_some();
                    if found.more {
                        break 'all;
                    }
                    continue;
                }
                if is_share && one.row.held.is_ok() {
                    found.counted += 1;
                    // One more than is listed, so that it is said that there are more.
                    if found.shares.len() <= self.most {
                        found.shares.push(one);
                    }
                    let is_reached = limit.is_some_and(|limit| found.counted >= limit);
                    if found.counted >= LOOKED_AT && is_reached {
                        break 'all;
                    }
                    continue;
                }
                found.push(one, self.most);
                if !found.goes_on() {
                    break 'all;
                }
            }
        }
        Ok(())
    }

    fn is_own(&self, row: &HolderRow<I>) -> bool {
        row.grant().is_some() && row.grant() == self.asker.map(|(grant, _)| grant)
    }
}

/// The limit of a share.
pub(super) fn limit(claim: &Claim) -> Option<usize> {
    claim.want().limit().map(|limit| limit.get() as usize)
}

/// The mode whose holders stand beside each other in any number, if the claim is one of them.
pub(super) fn harmless(ask: Ask<'_>) -> Option<Mode> {
    let want = ask.claim.want();
    let mode = want.mode();
    (want.limit().is_none() && mode.beside(mode)).then_some(mode)
}

/// Whether the grant holds the key as the claim wants it.
pub(super) async fn stands<R: Rows>(rows: &mut R, grant: Grant, claim: &Claim) -> Done<bool, R> {
    let row = rows.holder(&R::id(claim.key(), grant)).await?;
    let held = row.and_then(|row| row.held.ok());
    Ok(held.is_some_and(|held| held.mode == claim.want().mode() && held.waits.is_none()))
}
