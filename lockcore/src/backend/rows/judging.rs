//! Who is in the way of a claim: on its key, on the ancestors of a path and below it.

use std::collections::BTreeSet;

use super::sessions::Met;
use super::{At, Done, HolderRow, Rows, Stored, Strange};
use crate::backend::judge::{Ask, Entry as _, Place};
use crate::limits::MAX_OWN_BELOW;
use crate::{
    Acquire, Claim, Error, ErrorKind, Grant, Holder, Life, LockKey, Mode, Operation, OwnerId,
};

/// Once somebody is in the way, so many rows are looked at for others.
pub(super) const LOOKED_AT: usize = 1_000;
/// So many rows that do not count are remembered, to be removed.
const REMEMBERED: usize = 5_000;
/// A page of rows has so many, then more and more: mostly there is nobody, or soon somebody who is in the way.
const PAGE: (usize, usize) = (32, 1_024);

/// What a holder is to everybody but its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It counts. One that cannot be judged does.
    Counts,
    /// It does not count, and never will again.
    Gone,
}

/// Judges a row. One of a session that cannot be understood cannot be understood from then on.
pub(super) async fn judge<R: Rows>(
    rows: &mut R,
    met: &mut Met,
    row: &mut HolderRow<R::Id>,
) -> Done<Standing, R> {
    let Ok(held) = row.held else {
        return Ok(Standing::Counts);
    };
    Ok(match met.meet(rows, held.grant.session).await? {
        Stored::Row(session) if session.counts(held.grant.n) => Standing::Counts,
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

/// A row that counts, as a holder of `key` in that mode.
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

/// Somebody in the way.
pub(super) struct Obstacle<I> {
    pub(super) row: HolderRow<I>,
    /// The claim's own key, or the ancestor on which it stands.
    pub(super) key: LockKey,
    /// How that key is held.
    pub(super) mode: Mode,
}

/// What was found in the way of one claim.
pub(super) struct Found<I> {
    /// At most as many as are asked for.
    pub(super) obstacles: Vec<Obstacle<I>>,
    /// There may be more.
    pub(super) more: bool,
    /// Whether the grant that asks already stands on the key as it asks to; `None` if that was not seen.
    stands: Option<bool>,
    looked_at: usize,
}

impl<I> Found<I> {
    fn new() -> Self {
        Self {
            obstacles: Vec::new(),
            more: false,
            stands: None,
            looked_at: 0,
        }
    }

    /// Takes one more. One grant that holds much below a path is in the way once, in its strongest mode.
    fn push(&mut self, row: HolderRow<I>, key: &LockKey, mode: Mode, most: usize) {
        let same = |other: &&mut Obstacle<I>| {
            row.grant().is_some() && other.row.grant() == row.grant() && other.key == *key
        };
        if let Some(other) = self.obstacles.iter_mut().find(same) {
            other.mode = other.mode.max(mode);
        } else if self.obstacles.len() == most {
            self.more = true;
        } else {
            let key = key.clone();
            self.obstacles.push(Obstacle { row, key, mode });
        }
    }

    /// Whether to look at one more row.
    fn goes_on(&mut self) -> bool {
        self.looked_at += 1;
        self.more |= self.looked_at >= LOOKED_AT && !self.obstacles.is_empty();
        !self.more
    }
}

/// So much of the owner's own is below what is asked for that looking at it would keep others waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TooMuch;

impl TooMuch {
    pub(crate) fn error(self, backend: &'static str) -> Error {
        let what = "too many paths are held below: hold the path above them first";
        Error::new(ErrorKind::Limit, backend, Operation::Acquire, what)
    }
}

/// A look for obstacles, of one claim or of many.
pub(super) struct Look<I> {
    asker: Option<(Grant, OwnerId)>,
    /// Most obstacles of a claim.
    most: usize,
    /// Ancestors on which nobody is in the way of a claim that has them in this mode.
    clear: BTreeSet<(Mode, LockKey)>,
    /// Rows below claims that are the owner's, by other requests.
    own_below: usize,
    /// Rows in the way that do not count.
    pub(super) gone: Vec<I>,
}

impl<I: Clone + Send + Sync + 'static> Look<I> {
    /// A look by who asks.
    pub(super) fn by(request: &Acquire, most: usize) -> Self {
        Self {
            asker: Some((request.grant, request.owner)),
            ..Self::by_nobody(most)
        }
    }

    /// A look by nobody in particular, in whose way everybody is.
    pub(super) fn by_nobody(most: usize) -> Self {
        Self {
            asker: None,
            most,
            clear: BTreeSet::new(),
            own_below: 0,
            gone: Vec::new(),
        }
    }

    /// Whether it was looked at too much; then it has ended early.
    pub(super) fn check(&self) -> Result<(), TooMuch> {
        match self.own_below > MAX_OWN_BELOW {
            true => Err(TooMuch),
            false => Ok(()),
        }
    }

    /// Who is in the way of the claim. Nobody is if the grant stands there already: the request was sent before, and
    /// whoever came since has come beside it.
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
            let before = found.obstacles.len();
            self.place(rows, met, ask, &clear.1, found).await?;
            if found.more {
                break;
            }
            if found.obstacles.len() == before {
                self.clear.insert(clear);
            }
        }
        Ok(())
    }

    /// Looks at the rows of one place until it is enough.
    async fn place<R: Rows<Id = I>>(
        &mut self,
        rows: &mut R,
        met: &mut Met,
        ask: Ask<'_>,
        key: &LockKey,
        found: &mut Found<I>,
    ) -> Done<(), R> {
        let limit = ask.claim.want().limit().map(|limit| limit.get() as usize);
        let mut shares = Found::new();
        let mut counted = 0;
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
                        found.stands = Some(row.mode() == ask.mode());
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
                    continue;
                }
                let mode = ask.place.seen(row.mode());
                if is_share && row.held.is_ok() {
                    counted += 1;
                    shares.push(row, key, mode, self.most);
                    let is_reached = limit.is_some_and(|limit| counted >= limit);
                    if !shares.goes_on() && is_reached {
                        break 'all;
                    }
                    continue;
                }
                found.push(row, key, mode, self.most);
                if !found.goes_on() {
                    break 'all;
                }
            }
        }
        if limit.is_some_and(|limit| counted >= limit) {
            for share in shares.obstacles {
                found.push(share.row, key, share.mode, self.most);
            }
            found.more |= shares.more;
        }
        Ok(())
    }

    fn is_own(&self, row: &HolderRow<I>) -> bool {
        row.grant().is_some() && row.grant() == self.asker.map(|(grant, _)| grant)
    }
}

/// The mode of which any number stand beside each other, if the claim is one of them.
fn harmless(ask: Ask<'_>) -> Option<Mode> {
    let want = ask.claim.want();
    let mode = want.mode();
    (want.limit().is_none() && mode.beside(mode)).then_some(mode)
}

/// Whether the grant holds the key as the claim wants it.
pub(super) async fn stands<R: Rows>(rows: &mut R, grant: Grant, claim: &Claim) -> Done<bool, R> {
    let row = rows.holder(&R::id(claim.key(), grant)).await?;
    let held = row.and_then(|row| row.held.ok());
    Ok(held.is_some_and(|held| held.mode == claim.want().mode()))
}
