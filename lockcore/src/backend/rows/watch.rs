//! How a polling store watches for waiters.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::judging::{Look, Standing, judge, limit};
use super::sessions::Met;
use super::{Access, Act, Done, RowStore, Rows, Stored};
use crate::{Changed, Claim, Life, LockKey, Operation, Result};

/// The most obstacles of a watch that [polls](polled) to follow.
const FOLLOWED: usize = 1_000;

/// Who was in the way when a watch began.
#[derive(Debug, Clone)]
pub struct Seen {
    rows: Vec<(LockKey, Arc<dyn Any + Send + Sync>)>,
    more: bool,
}

impl Seen {
    /// Whether nobody was in the way: there is nothing to wait for.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether one that is not followed may free a claim. Then every change is a hint.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.more
    }

    /// Whether something that was given back on these keys may have been in the way.
    #[must_use]
    pub fn is_on(&self, keys: &[LockKey]) -> bool {
        let related = |(one, _): &(LockKey, _)| keys.iter().any(|key| one.meets(key));
        self.rows.iter().any(related)
    }
}

/// Finds who is in the way of claims.
#[derive(Debug)]
pub struct Looking {
    /// The claims.
    pub claims: Vec<Claim>,
    /// The most obstacles to follow: first holders, then those who are first in line. If there are more, every change is a hint
    /// for a share with a limit, and if these are holders, for what an owner may hold already. Nothing else is free while one
    /// of them stands.
    pub most: usize,
}

impl Act for Looking {
    type Answer = Seen;
    const OPERATION: Operation = Operation::Watch;

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Seen, R> {
        let mut seen = Seen {
            rows: Vec::new(),
            more: false,
        };
        let mut met = Met::reading();
        let mut look = Look::by_nobody(self.most);
        for claim in &self.claims {
            if seen.rows.len() >= self.most {
                seen.more = true;
                break;
            }
            let found = look.at(rows, &mut met, claim).await?;
            // One of those that are followed may be the owner's own, which are not in its way.
            let may_be_own = found.hides_holders && claim.want().reenters();
            seen.more |= may_be_own || (found.more && limit(claim).is_some());
            for obstacle in found.obstacles {
                seen.rows.push((obstacle.key, Arc::new(obstacle.row.id)));
            }
        }
        Ok(seen)
    }
}

/// Finds whether an obstacle is gone, is no longer live, or is due: for each that was [seen](Looking) in the same
/// store.
#[derive(Debug)]
pub struct Moving(pub Vec<Seen>);

/// The result of [`Moving`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Whether an obstacle moved, for each that was asked about.
    pub moved: Vec<bool>,
    /// When the first session in the way is due, by the clock of leases.
    pub due: Option<Duration>,
}

impl Act for Moving {
    type Answer = Moved;
    const OPERATION: Operation = Operation::Watch;

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Moved, R> {
        let mut met = Met::reading();
        let mut due = None;
        let mut moved = Vec::with_capacity(self.0.len());
        for seen in &self.0 {
            moved.push(has_moved(rows, &mut met, seen, &mut due).await?);
        }
        Ok(Moved { moved, due })
    }
}

async fn has_moved<R: Rows>(
    rows: &mut R,
    met: &mut Met,
    seen: &Seen,
    due: &mut Option<Duration>,
) -> Done<bool, R> {
    let now = rows.now();
    for (_, id) in &seen.rows {
        let id = id.downcast_ref().expect("it was seen in this store");
        let Some(mut row) = rows.holder(id).await? else {
            return Ok(true);
        };
        if judge(rows, met, &mut row).await? == Standing::Gone {
            return Ok(true);
        }
        let Ok(held) = row.held else { continue };
        if let Stored::Row(session) = met.meet(rows, held.grant.session).await?
            && session.life == Life::Living
        {
            if session.due <= now.lease {
                return Ok(true);
            }
            *due = Some(due.map_or(session.due, |due| due.min(session.due)));
        }
    }
    Ok(false)
}

/// A watch that polls the store, every `every`.
///
/// # Errors
///
/// The store failed.
pub async fn polled<S: RowStore + Clone>(
    store: &S,
    claims: &[Claim],
    every: Duration,
) -> Result<Changed> {
    let claims = claims.to_vec();
    let most = FOLLOWED;
    let seen = store.transact(Looking { claims, most }).await?;
    let store = store.clone();
    Ok(Box::pin(async move {
        while !seen.is_free() {
            tokio::time::sleep(every).await;
            let moved = store.transact(Moving(vec![seen.clone()])).await;
            // A store that fails ends the watch, too: the client asks for itself, and will see the error.
            let stays = moved.is_ok_and(|it| it.moved == [false]);
            if seen.is_part() || !stays {
                return;
            }
        }
    }))
}
