//! The acts on claims.

use super::judging::{Look, Standing, TooMuch, holder, judge, stands};
use super::sessions::Met;
use super::{Access, Act, Done, Freed, Rows, Stored, Waits};
use crate::limits::{MAX_LISTED, TOMBSTONE_KEPT};
use crate::{
    Acquire, Acquired, Busy, Claim, Grant, Operation, Refused, SessionId, Stood, Sweep, Swept,
};

/// The most rows removed in one transaction, so that others do not wait for long.
const SWEPT_AT_ONCE: usize = 2_000;
/// The most sessions with holders examined in one page.
const SESSIONS: usize = 100;

pub(crate) struct Acquiring(pub(crate) Acquire);

/// What comes of a request; nothing where so much had to be removed that it has to be asked again.
type Asked = Result<Option<Acquired>, TooMuch>;

impl Act for Acquiring {
    type Answer = Asked;
    const OPERATION: Operation = Operation::Acquire;

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Self::Answer, R> {
        acquire(rows, &self.0).await
    }
}

/// A limit is an answer, not a failure: sessions found due on the way have ended all the same.
pub(crate) async fn acquire<R: Rows>(rows: &mut R, request: &Acquire) -> Done<Asked, R> {
    let mut met = Met::writing();
    if !met.admits(rows, request.grant).await? {
        return Ok(Ok(Some(Acquired::Void)));
    }
    let mut look = Look::by(request, MAX_LISTED);
    let mut refused = Vec::new();
    for claim in &request.claims {
        let found = look.at(rows, &mut met, claim).await?;
        if let Err(too_much) = look.check() {
            return Ok(Err(too_much));
        }
        if look.has_to_remove() {
            rows.remove(&look.gone).await?;
            return Ok(Ok(None));
        }
        if found.obstacles.is_empty() {
            continue;
        }
        if refused.len() == MAX_LISTED {
            rows.remove(&look.gone).await?;
            return Ok(Ok(Some(Acquired::Busy(Busy::new(refused, true)))));
        }
        let mut holders = Vec::with_capacity(found.obstacles.len());
        for it in &found.obstacles {
            let mut holder = holder(rows, &mut met, &it.row, &it.key, it.mode).await?;
            holder.waiting = it.waiting;
            holders.push(holder);
        }
        refused.push(Refused {
            claim: claim.clone(),
            holders,
            more: found.more,
        });
    }
    rows.remove(&look.gone).await?;
    for (key, id) in std::mem::take(&mut look.removed) {
        rows.remove(&[id]).await?;
        rows.frees(Freed::Key(&key));
    }
    if !refused.is_empty() {
        if look.stands_in_line(rows, request).await? {
            let (place, passed) = (rows.next_token().await?.get(), 0);
            rows.hold(request, Some(Waits { place, passed })).await?;
        }
        return Ok(Ok(Some(Acquired::Busy(Busy::new(refused, false)))));
    }
    for (request, waits) in &look.passed {
        rows.hold(request, Some(*waits)).await?;
    }
    rows.hold(request, None).await?;
    Ok(Ok(Some(Acquired::Acquired(rows.next_token().await?))))
}

pub(crate) struct Releasing {
    pub(crate) grant: Grant,
    pub(crate) claims: Vec<Claim>,
}

impl Act for Releasing {
    type Answer = Stood;
    const OPERATION: Operation = Operation::Release;

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Stood, R> {
        release(rows, self.grant, &self.claims).await
    }
}

pub(crate) async fn release<R: Rows>(
    rows: &mut R,
    grant: Grant,
    claims: &[Claim],
) -> Done<Stood, R> {
    let removed = rows.release(grant, claims).await?;
    rows.frees(Freed::Claims(claims));
    if removed < claims.len() {
        return Ok(Stood::Absent);
    }
    Ok(match rows.lives(grant).await? {
        Stored::Row(true) => Stood::Held,
        Stored::Row(false) | Stored::Absent => Stood::Fallen,
        // It frees nothing, so nobody else held the claims.
        Stored::Unreadable => Stood::Held,
    })
}

pub(crate) struct Confirming {
    pub(crate) grant: Grant,
    pub(crate) claims: Vec<Claim>,
}

impl Act for Confirming {
    type Answer = bool;
    const OPERATION: Operation = Operation::Confirm;

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<bool, R> {
        confirm(rows, self.grant, &self.claims).await
    }
}

pub(crate) async fn confirm<R: Rows>(
    rows: &mut R,
    grant: Grant,
    claims: &[Claim],
) -> Done<bool, R> {
    if !Met::writing().admits(rows, grant).await? {
        return Ok(false);
    }
    for claim in claims {
        if !stands(rows, grant, claim).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A part of a sweep, each in a transaction of its own: nobody else writes meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Sweeping {
    part: Part,
    limit: usize,
    /// By the parts before.
    removed: usize,
    sessions: usize,
}

#[derive(Clone, Copy)]
enum Part {
    Session(SessionId),
    /// Sessions that are due.
    Due,
    /// Some of the sessions that hold something, behind that one.
    Holding(Option<SessionId>),
    /// Sessions that died long ago.
    Old,
}

/// What came of a part.
pub(crate) struct Portion {
    removed: usize,
    sessions: usize,
    /// Where to go on.
    next: Option<SessionId>,
}

impl Sweeping {
    pub(crate) fn new(which: Sweep, limit: usize) -> Self {
        Self {
            part: match which {
                Sweep::Session(id) => Part::Session(id),
                Sweep::All => Part::Due,
            },
            limit: limit.clamp(1, SWEPT_AT_ONCE),
            removed: 0,
            sessions: 0,
        }
    }

    /// The next part, or what came of all of them.
    pub(crate) fn then(mut self, portion: Portion) -> std::result::Result<Self, Swept> {
        self.removed += portion.removed;
        self.sessions += portion.sessions;
        let is_full = self.removed >= self.limit;
        self.part = match (self.part, portion.next) {
            _ if is_full => return Err(self.swept(true)),
            (Part::Session(_) | Part::Old, _) => return Err(self.swept(false)),
            (Part::Due, _) => Part::Holding(None),
            (Part::Holding(_), None) => Part::Old,
            (Part::Holding(_), next) => Part::Holding(next),
        };
        Ok(self)
    }

    fn swept(self, more: bool) -> Swept {
        Swept::new(self.removed, more).of_sessions(self.sessions)
    }
}

impl Act for Sweeping {
    type Answer = Portion;
    const OPERATION: Operation = Operation::Sweep;

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Portion, R> {
        let mut met = Met::writing();
        let most = self.limit - self.removed;
        let mut portion = Portion {
            removed: 0,
            sessions: 0,
            next: None,
        };
        match self.part {
            Part::Session(id) => {
                portion.removed = sweep(rows, &mut met, id, most).await?;
                portion.sessions = 1;
            }
            Part::Due => {
                for id in rows.due().await? {
                    met.meet(rows, id).await?;
                }
            }
            Part::Holding(after) => {
                let ids = rows.holding(after, SESSIONS).await?;
                for id in &ids {
                    let most = most - portion.removed;
                    portion.removed += sweep(rows, &mut met, *id, most).await?;
                }
                portion.sessions = ids.len();
                portion.next = ids.last().copied().filter(|_| ids.len() == SESSIONS);
            }
            Part::Old => {
                let before = rows.now().date.saturating_sub(TOMBSTONE_KEPT);
                portion.removed = rows.forget(before, most).await?;
            }
        }
        Ok(portion)
    }
}

/// Removes holders of the session that are not live, and returns how many. Those that cannot be understood stay.
async fn sweep<R: Rows>(
    rows: &mut R,
    met: &mut Met,
    id: SessionId,
    limit: usize,
) -> Done<usize, R> {
    let ranges = match met.meet(rows, id).await? {
        Stored::Row(session) if !session.life.is_live() => vec![(0, u64::MAX)],
        Stored::Row(session) => session.retired.as_slice().to_vec(),
        Stored::Absent | Stored::Unreadable => Vec::new(),
    };
    let mut gone = Vec::new();
    for numbers in ranges {
        let mut after: Option<(u64, String)> = None;
        while gone.len() < limit {
            let most = limit - gone.len();
            let from = after.as_ref().map(|(n, key)| (*n, key.as_str()));
            let page = rows.of_session(id, numbers, from, most).await?;
            let all = page.len() < most;
            after = page.last().map(|(key, row)| (row.n, key.clone()));
            for (_, mut row) in page {
                if judge(rows, met, &mut row).await? == Standing::Gone {
                    gone.push(row.id);
                }
            }
            if all {
                break;
            }
        }
    }
    if !gone.is_empty() {
        rows.remove(&gone).await?;
    }
    Ok(gone.len())
}
