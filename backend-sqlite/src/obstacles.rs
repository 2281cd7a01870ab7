//! Who is in the way of a claim: on its key, on the ancestors of a path and below it.

use std::collections::HashSet;
use std::num::NonZeroU32;

use lockcore::limits::MAX_LISTED;
use lockcore::{Claim, Grant, Holder, Life, LockKey, Mode, OwnerId, Want};
use rusqlite::params;

use crate::error::Outcome;
use crate::record::{Entry, want_name};
use crate::sql;
use crate::transaction::{Met, Standing, Transaction};

/// Once somebody is in the way, so many rows are looked at for others.
const LOOKED_AT: usize = 1_000;
/// So many rows that do not count are remembered, to be removed.
const REMEMBERED: usize = 5_000;

/// Who asks; nobody does when it is only watched who is in the way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) grant: Grant,
    pub(crate) owner: OwnerId,
}

/// Somebody in the way.
#[derive(Debug)]
pub(crate) struct Obstacle {
    pub(crate) entry: Entry,
    /// The claim's own key, or the ancestor on which it stands.
    pub(crate) key: LockKey,
    pub(crate) mode: Mode,
    /// What can be said of a foreign one.
    pub(crate) foreign: Option<String>,
}

/// What was found in the way of one claim.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// At most as many as are asked for.
    pub(crate) obstacles: Vec<Obstacle>,
    /// There may be more.
    pub(crate) more: bool,
    looked_at: usize,
}

impl Found {
    /// Takes one more; `false` when it is enough.
    fn push(&mut self, obstacle: Obstacle, most: usize) -> bool {
        if self.obstacles.iter().any(|other| other.is_like(&obstacle)) {
            return true;
        }
        self.more |= self.obstacles.len() >= most;
        if !self.more {
            self.obstacles.push(obstacle);
        }
        !self.more
    }

    /// Whether to look at one more row.
    fn goes_on(&mut self) -> bool {
        self.looked_at += 1;
        self.more |= self.looked_at >= LOOKED_AT && !self.obstacles.is_empty();
        !self.more
    }
}

/// A row that counts.
struct Counting {
    entry: Entry,
    /// What can be said of a foreign one.
    foreign: Option<String>,
    same_owner: bool,
}

impl Counting {
    /// What the row wants; what cannot be understood is exclusive.
    fn mode(&self) -> Mode {
        self.entry.known.map_or(Mode::X, |known| known.want.mode())
    }

    /// How the row holds the ancestors of its key.
    fn above(&self) -> Mode {
        let want = self.entry.known.map_or(Want::Write, |known| known.want);
        want.above().unwrap_or(Mode::IX)
    }

    fn is_share(&self) -> bool {
        let want = self.entry.known.map(|known| known.want);
        matches!(want, Some(Want::Share { .. }))
    }

    fn at(self, key: &LockKey, mode: Mode) -> Obstacle {
        Obstacle {
            entry: self.entry,
            key: key.clone(),
            mode,
            foreign: self.foreign,
        }
    }
}

/// A look for obstacles, of one claim or of many.
pub(crate) struct Look<'a, 't> {
    transaction: &'a Transaction<'t>,
    asker: Option<Asker>,
    /// Most obstacles of a claim.
    most: usize,
    /// Ancestors on which nobody is in the way of a claim that has them in this mode.
    clear: HashSet<(Mode, String)>,
    /// Rows in the way that do not count.
    pub(crate) gone: Vec<Entry>,
}

impl<'a, 't> Look<'a, 't> {
    /// A look by who asks.
    pub(crate) fn by(transaction: &'a Transaction<'t>, asker: Asker) -> Self {
        Self::new(transaction, Some(asker), MAX_LISTED)
    }

    /// A look by nobody in particular, in whose way everybody is.
    pub(crate) fn by_nobody(transaction: &'a Transaction<'t>, most: usize) -> Self {
        Self::new(transaction, None, most)
    }

    fn new(transaction: &'a Transaction<'t>, asker: Option<Asker>, most: usize) -> Self {
        Self {
            transaction,
            asker,
            most,
            clear: HashSet::new(),
            gone: Vec::new(),
        }
    }

    /// Who is in the way of the claim.
    pub(crate) fn at(&mut self, claim: &Claim) -> Outcome<Found> {
        let mut found = Found::default();
        match claim.want() {
            Want::Share { limit } => self.of_share(claim.key(), limit, &mut found)?,
            Want::Create | Want::Upsert => self.on_key(claim, &mut found)?,
            Want::Write | Want::Read => {
                self.on_ancestors(claim, &mut found)?;
                self.on_key(claim, &mut found)?;
                self.below(claim, &mut found)?;
            }
        }
        Ok(found)
    }

    fn on_key(&mut self, claim: &Claim, found: &mut Found) -> Outcome<()> {
        let most = self.most;
        let values = params![claim.key().as_str(), None::<&str>];
        self.rows(sql::HOLDERS_ON_KEY, values, |row| {
            let mode = row.mode();
            if !claim.beside(mode, row.same_owner) && !found.push(row.at(claim.key(), mode), most) {
                return false;
            }
            found.goes_on()
        })
    }

    fn on_ancestors(&mut self, claim: &Claim, found: &mut Found) -> Outcome<()> {
        let most = self.most;
        let above = claim.want().above().expect("a path claim has ancestors");
        for ancestor in claim.key().ancestors() {
            let place = (above, ancestor.to_owned());
            if self.clear.contains(&place) {
                continue;
            }
            let key = LockKey::parse(ancestor).expect("an ancestor of a path is a path");
            let before = found.obstacles.len();
            self.rows(
                sql::HOLDERS_ON_KEY,
                params![ancestor, None::<&str>],
                |row| {
                    let mode = row.mode();
                    if !claim.beside_above(mode, row.same_owner)
                        && !found.push(row.at(&key, mode), most)
                    {
                        return false;
                    }
                    found.goes_on()
                },
            )?;
            if found.more {
                return Ok(());
            }
            if found.obstacles.len() == before {
                self.clear.insert(place);
            }
        }
        Ok(())
    }

    fn below(&mut self, claim: &Claim, found: &mut Found) -> Outcome<()> {
        if found.more {
            return Ok(());
        }
        let (most, key) = (self.most, claim.key());
        // '0' is the byte after '/': this is everything below and nothing else.
        let (from, to) = (format!("{key}/"), format!("{key}0"));
        let beside = (claim.want() == Want::Read).then(|| want_name(Want::Read));
        self.rows(sql::HOLDERS_BELOW, params![from, to, beside], |row| {
            let mode = row.above();
            if !claim.beside(mode, row.same_owner) && !found.push(row.at(key, mode), most) {
                return false;
            }
            found.goes_on()
        })
    }

    /// Of any number of shares none is in the way of another one, unless it has a limit.
    fn of_share(
        &mut self,
        key: &LockKey,
        limit: Option<NonZeroU32>,
        found: &mut Found,
    ) -> Outcome<()> {
        let most = self.most;
        let beside = limit.is_none().then(|| want_name(Want::Share { limit }));
        let limit = limit.map_or(u32::MAX, NonZeroU32::get);
        let mut shares = Found::default();
        let mut counted = 0;
        self.rows(sql::HOLDERS_ON_KEY, params![key.as_str(), beside], |row| {
            let mode = row.mode();
            if !row.is_share() {
                return found.push(row.at(key, mode), most);
            }
            counted += 1;
            shares.push(row.at(key, mode), most) || counted < limit
        })?;
        if counted >= limit {
            for share in shares.obstacles {
                found.push(share, most);
            }
            found.more |= shares.more;
        }
        Ok(())
    }

    /// Hands over the rows that count, the asker's own apart, until it is enough, and remembers those that do not.
    fn rows(
        &mut self,
        statement: &str,
        values: impl rusqlite::Params,
        mut each: impl FnMut(Counting) -> bool,
    ) -> Outcome<()> {
        let (transaction, asker) = (self.transaction, self.asker);
        transaction.each(statement, values, Entry::read, |mut entry| {
            let grant = entry.known.map(|known| known.grant);
            if grant.is_some() && grant == asker.map(|asker| asker.grant) {
                return Ok(true);
            }
            let foreign = match transaction.standing(&entry)? {
                Standing::Counts => None,
                Standing::Foreign(what) => Some(what),
                Standing::Gone => {
                    if self.gone.len() < REMEMBERED {
                        self.gone.push(entry);
                    }
                    return Ok(true);
                }
            };
            if foreign.is_some() {
                entry.known = None;
            }
            let owner = entry.known.map(|known| known.owner);
            let same_owner = owner.is_some() && owner == asker.map(|asker| asker.owner);
            Ok(each(Counting {
                entry,
                foreign,
                same_owner,
            }))
        })
    }
}

impl Obstacle {
    /// Whether it says the same as another: one grant that holds much below a path is in the way once.
    fn is_like(&self, other: &Self) -> bool {
        let grant = |obstacle: &Self| obstacle.entry.known.map(|known| known.grant);
        grant(self).is_some()
            && grant(self) == grant(other)
            && self.mode == other.mode
            && self.key == other.key
    }

    /// The holder, as the traits say it.
    pub(crate) fn holder(&self, transaction: &Transaction<'_>) -> Outcome<Holder> {
        holder(
            transaction,
            &self.entry,
            self.key.clone(),
            self.mode,
            self.foreign.clone(),
        )
    }
}

/// A row as the traits say it.
pub(crate) fn holder(
    transaction: &Transaction<'_>,
    entry: &Entry,
    key: LockKey,
    mode: Mode,
    foreign: Option<String>,
) -> Outcome<Holder> {
    let (label, life) = match (foreign, &entry.known) {
        (Some(what), _) => (what, Life::Living),
        (None, Some(known)) => match &*transaction.meet(known.grant.session)? {
            Met::Session(session) => (session.label.to_string(), session.life),
            Met::Absent | Met::Unreadable => (String::new(), Life::Living),
        },
        (None, None) => (entry.unreadable(), Life::Living),
    };
    Ok(Holder {
        key,
        grant: entry.known.map(|known| known.grant),
        owner: entry.known.map(|known| known.owner),
        mode,
        label,
        since: entry.since(),
        life,
    })
}
