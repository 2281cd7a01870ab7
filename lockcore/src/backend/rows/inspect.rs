//! The acts of listing and evicting. Listing changes nothing: a session that is due is shown as recorded.

use std::time::Duration;

use super::judging::{LOOKED_AT, Pages, Standing, holder, judge};
use super::sessions::Met;
use super::{Access, Act, At, Done, Freed, HolderRow, Rows, SessionRow, Stored};
use crate::backend::judge::{Entry as _, Listed, Place};
use crate::{Filter, Life, LockKey, Operation, Page, Record, SessionId, SessionState};

/// The most keys examined for one page. If few of them are held, the page is short.
const KEYS: usize = 5_000;
/// The number of keys read at once.
const KEYS_READ: usize = 100;

pub(crate) struct Listing {
    filter: Filter,
    after: After,
    limit: usize,
}

/// Where a page begins.
enum After {
    Start,
    Key(LockKey),
    Place(u64, String),
}

impl Listing {
    /// `None` if the store never gave out `after`.
    pub(crate) fn new(filter: &Filter, after: Option<&str>, limit: usize) -> Option<Self> {
        let after = match (filter, after) {
            (_, None) => After::Start,
            (Filter::Session(_), Some(after)) => {
                let (n, key) = after.split_once(':')?;
                After::Place(n.parse().ok()?, key.to_owned())
            }
            (_, Some(after)) => After::Key(LockKey::parse(after).ok()?),
        };
        Some(Self {
            filter: filter.clone(),
            after,
            limit: limit.max(1),
        })
    }
}

impl Act for Listing {
    type Answer = Page<Record>;
    const OPERATION: Operation = Operation::Inspect;

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Page<Record>, R> {
        match &self.filter {
            Filter::Key(key) => one(rows, key).await,
            Filter::Prefix(prefix) => self.by_prefix(rows, prefix).await,
            Filter::Session(session) => self.by_session(rows, *session).await,
        }
    }
}

impl Listing {
    async fn by_prefix<R: Rows>(&self, rows: &mut R, prefix: &str) -> Done<Page<Record>, R> {
        let mut items = Vec::new();
        let mut looked_at = 0;
        let mut after = match &self.after {
            After::Key(key) => Some(key.clone()),
            After::Start | After::Place(..) => None,
        };
        loop {
            let most = KEYS_READ.min(self.limit.saturating_add(1));
            let keys = rows.keys(prefix, after.as_ref(), most).await?;
            let all = keys.len() < most;
            let last = keys.len();
            for (at, key) in keys.into_iter().enumerate() {
                let record = OnKey::read(rows, &mut Met::reading(), &key).await?;
                items.extend(record.listed.record(&key, record.version));
                looked_at += 1;
                let ends = all && at + 1 == last;
                if items.len() >= self.limit || looked_at >= KEYS {
                    let next = (!ends).then(|| key.as_str().to_owned());
                    return Ok(Page { items, next });
                }
                after = Some(key);
            }
            if all {
                return Ok(Page { items, next: None });
            }
        }
    }

    async fn by_session<R: Rows>(&self, rows: &mut R, id: SessionId) -> Done<Page<Record>, R> {
        let after = match &self.after {
            After::Place(n, key) => Some((*n, key.as_str())),
            After::Start | After::Key(_) => None,
        };
        let places = rows.of_session(id, (0, u64::MAX), after, KEYS).await?;
        let all = places.len() < KEYS;
        let last = places.len();
        let mut page = Page {
            items: Vec::new(),
            next: None,
        };
        for (at, (key, row)) in places.into_iter().enumerate() {
            let ends_here = at + 1 == last;
            if let Ok(parsed) = LockKey::parse(&key) {
                let record = OnKey::read(rows, &mut Met::reading(), &parsed).await?;
                // Where it has several grants on a key, the key is listed at the first of them.
                if record.names(id).min() == Some(row.n) && record.holds(id) {
                    page.items
                        .extend(record.listed.record(&parsed, record.version));
                }
            }
            if page.items.len() >= self.limit || ends_here {
                page.next = (!(all && ends_here)).then(|| format!("{}:{key}", row.n));
                break;
            }
        }
        Ok(page)
    }
}

/// The holders on a key itself.
struct OnKey<I> {
    listed: Listed,
    /// The content of its foreign rows, one after the other.
    version: String,
    foreign: Vec<I>,
    /// Each session that a row names, with the row's number and whether the row is live.
    named: Vec<(SessionId, u64, bool)>,
}

impl<I: Clone + Send + Sync + 'static> OnKey<I> {
    async fn read<R: Rows<Id = I>>(rows: &mut R, met: &mut Met, key: &LockKey) -> Done<Self, R> {
        let mut here = Self {
            listed: Listed::default(),
            version: String::new(),
            foreign: Vec::new(),
            named: Vec::new(),
        };
        let mut pages = Pages::new(everybody(key, Place::Key));
        loop {
            let page = pages.next(rows).await?;
            if page.is_empty() {
                return Ok(here);
            }
            for row in page {
                here.take(rows, met, key, row).await?;
            }
        }
    }

    async fn take<R: Rows<Id = I>>(
        &mut self,
        rows: &mut R,
        met: &mut Met,
        key: &LockKey,
        mut row: HolderRow<I>,
    ) -> Done<(), R> {
        let counts = judge(rows, met, &mut row).await? == Standing::Counts;
        self.named.extend(row.session.map(|id| (id, row.n, counts)));
        if !counts {
            return Ok(());
        }
        let holder = holder(rows, met, &row, key, row.mode()).await?;
        self.listed.add(holder);
        if let Err(strange) = row.held {
            self.version += &strange.version;
            self.foreign.push(row.id);
        }
        Ok(())
    }

    fn names(&self, id: SessionId) -> impl Iterator<Item = u64> {
        let of_it = move |(named, n, _): &(SessionId, u64, bool)| (*named == id).then_some(*n);
        self.named.iter().filter_map(of_it)
    }

    fn holds(&self, id: SessionId) -> bool {
        self.named
            .iter()
            .any(|(named, _, counts)| *named == id && *counts)
    }
}

fn everybody(key: &LockKey, place: Place) -> At<'_> {
    At {
        key,
        place,
        but: None,
    }
}

/// The record of one key, with the holders of something below it.
async fn one<R: Rows>(rows: &mut R, key: &LockKey) -> Done<Page<Record>, R> {
    let mut met = Met::reading();
    let OnKey {
        mut listed,
        version,
        ..
    } = OnKey::read(rows, &mut met, key).await?;
    if key.is_path() {
        let mut pages = Pages::new(everybody(key, Place::Below));
        let mut looked_at = 0;
        while !listed.is_full() && looked_at < LOOKED_AT {
            let page = pages.next(rows).await?;
            if page.is_empty() {
                break;
            }
            for mut row in page {
                if judge(rows, &mut met, &mut row).await? == Standing::Counts {
                    let mode = Place::Below.seen(row.mode());
                    listed.add(holder(rows, &mut met, &row, key, mode).await?);
                }
                // Whoever has gone may stand there by the thousand, before the only one that holds something.
                looked_at += usize::from(listed.has_a_holder());
            }
        }
        listed.more |= looked_at >= LOOKED_AT;
    }
    Ok(Page {
        items: listed.record(key, version).into_iter().collect(),
        next: None,
    })
}

pub(crate) struct ListingSessions {
    after: Option<SessionId>,
    limit: usize,
}

impl ListingSessions {
    /// `None` if the store never gave out `after`.
    pub(crate) fn new(after: Option<&str>, limit: usize) -> Option<Self> {
        let after = after.map(str::parse).transpose().ok()?;
        let limit = limit.max(1);
        Some(Self { after, limit })
    }
}

impl Act for ListingSessions {
    type Answer = Page<SessionState>;
    const OPERATION: Operation = Operation::Inspect;

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Page<SessionState>, R> {
        let most = self.limit.saturating_add(1);
        let read = rows.sessions(self.after, most).await?;
        let states = read.into_iter().filter_map(|(id, row)| listed(id, row));
        Ok(Page::of(states, self.limit, |state| {
            state.session.to_string()
        }))
    }
}

/// A session for people.
fn listed(id: SessionId, stored: Stored<SessionRow>) -> Option<SessionState> {
    match stored {
        Stored::Row(row) => Some(row.state(id)),
        Stored::Unreadable => Some(SessionState::unreadable(id)),
        Stored::Absent => None,
    }
}

/// Some sessions.
pub(crate) struct States(pub(crate) Vec<SessionId>);

impl Act for States {
    type Answer = Vec<Option<SessionState>>;
    const OPERATION: Operation = Operation::Inspect;

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Vec<Option<SessionState>>, R> {
        let mut states = Vec::with_capacity(self.0.len());
        for id in &self.0 {
            states.push(listed(*id, rows.session(*id).await?));
        }
        Ok(states)
    }
}

/// What is left of leases.
pub(crate) struct Leases(pub(crate) Vec<SessionId>);

impl Act for Leases {
    type Answer = Vec<Option<Duration>>;
    const OPERATION: Operation = Operation::Inspect;

    fn access(&self) -> Access {
        Access::Read
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Vec<Option<Duration>>, R> {
        let now = rows.now().lease;
        let mut left = Vec::with_capacity(self.0.len());
        for id in &self.0 {
            left.push(match rows.session(*id).await? {
                Stored::Row(row) if row.life == Life::Living => Some(row.due.saturating_sub(now)),
                Stored::Row(_) | Stored::Absent | Stored::Unreadable => None,
            });
        }
        Ok(left)
    }
}

pub(crate) struct Evicting {
    pub(crate) key: LockKey,
    pub(crate) version: String,
}

impl Act for Evicting {
    type Answer = bool;
    const OPERATION: Operation = Operation::Inspect;

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<bool, R> {
        let record = OnKey::read(rows, &mut Met::writing(), &self.key).await?;
        let is_as_seen = !record.foreign.is_empty() && record.version == self.version;
        if is_as_seen {
            rows.remove(&record.foreign).await?;
            rows.frees(Freed::Key(&self.key));
        }
        Ok(is_as_seen)
    }
}
