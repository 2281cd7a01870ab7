//! [`Inspect`]: what is there, for people.

use async_trait::async_trait;

use crate::store::{Holder, SessionState};
use crate::{LockKey, Result, SessionId};

/// Which records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// The one of this key. For a path, whoever holds something below it is listed as well, in mode IX or IS.
    Key(LockKey),
    /// Those whose key begins with this text; all for the empty text. A store that keeps ancestors as records lists
    /// those too.
    Prefix(String),
    /// Those that this session holds.
    Session(SessionId),
}

/// Some items of a list, and where to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page begins, if there is one; only its store can read it.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// The first items, at least one, and the name of the last of them if there are more.
    pub fn of(
        items: impl IntoIterator<Item = T>,
        limit: usize,
        name: impl FnOnce(&T) -> String,
    ) -> Self {
        let limit = limit.max(1);
        let mut items: Vec<T> = items.into_iter().take(limit.saturating_add(1)).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(name);
        Self { items, next }
    }
}

/// A key that is held, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: LockKey,
    /// Its holders that count; of many, some.
    pub holders: Vec<Holder>,
    /// There are more holders than are listed.
    pub more: bool,
    /// The state of the record as it was seen; only its store can read it.
    pub version: String,
}

/// Listing and evicting. A listing is no snapshot, and proves nothing about what may be acquired.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// Records that are held, in the store's order; those of which no holder counts are left out.
    ///
    /// # Errors
    ///
    /// The store failed, or `after` is not one that it gave out.
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>>;

    /// Sessions, the dead ones that are still remembered too: those whose id [`open`](crate::SessionStore::open) refuses.
    ///
    /// # Errors
    ///
    /// The store failed, or `after` is not one that it gave out.
    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>>;

    /// Deletes a foreign or unreadable record, if it is still as it was seen; holders of ours on it stay. `false` if
    /// it is not, or has nothing foreign. A holder of ours goes by [`End::Revoke`](crate::End::Revoke) of its session.
    ///
    /// # Errors
    ///
    /// The store failed; the record may be gone.
    async fn evict(&self, seen: &Record) -> Result<bool>;
}
