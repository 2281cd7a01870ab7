//! [`Inspect`]: listing and evicting, for people.

use std::time::Duration;

use async_trait::async_trait;

use crate::store::{Holder, SessionState};
use crate::{LockKey, Result, SessionId};

/// The records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// The record of this key. For a path, holders of something below it are listed too, in mode IX or IS.
    Key(LockKey),
    /// The records whose key begins with this text; all for the empty text. A store that keeps ancestors as records
    /// lists those too.
    Prefix(String),
    /// The records that this session holds, and those that it [waits](crate::backend::Acquire::waits) for.
    Session(SessionId),
}

/// A part of a list, and where it continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page begins, if there is one. Only the store can read it.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A page of at most `limit` items (one if it is 0), with the name of the last one if there are more.
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

/// A held key and its holders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: LockKey,
    /// Its live holders, then its [waiters](Holder::waiting) in their order; if there are many, the first of them. Of many
    /// holders below a path some may be missing where waiters are listed.
    pub holders: Vec<Holder>,
    /// There are more holders or waiters than are listed.
    pub more: bool,
    /// The state of the record when it was read. Only the store can read this text.
    pub version: String,
}

impl Record {
    /// Whether somebody who is not listed may hold the key: there are more, and whoever is listed holds it. Of a path also
    /// if somebody is listed who waits, because what is held below it is looked at in part.
    #[must_use]
    pub fn may_hide_holders(&self) -> bool {
        let waits = |holder: &Holder| holder.waiting.is_some();
        self.more && (self.key.is_path() || !self.holders.iter().any(waits))
    }
}

/// Listing and evicting. A listing is no snapshot. It proves nothing about what may be acquired.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// Lists held records, in the store's order. Records without a live holder or waiter are left out.
    ///
    /// # Errors
    ///
    /// The store failed, or it never gave out `after`.
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>>;

    /// Lists sessions, including dead ones that are still remembered: those whose id
    /// [`open`](crate::SessionStore::open) refuses.
    ///
    /// # Errors
    ///
    /// The store failed, or it never gave out `after`.
    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>>;

    /// Each of these sessions as it would be listed, in their order; `None` for one that is not remembered. Changes nothing.
    ///
    /// # Errors
    ///
    /// The store failed.
    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>>;

    /// What is left of the lease of each session, in their order, by the store's clock: the time until it is due. `None`
    /// for one that does not live or cannot be read, or if the store does not tell. A lease that is over has nothing left until somebody ends the
    /// session. Changes nothing.
    ///
    /// # Errors
    ///
    /// The store failed.
    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>>;

    /// Deletes the foreign or unreadable part of a record, if the record is unchanged since it was seen. Holders of
    /// this library on it stay. `false` if the record has changed, or contains nothing foreign. To remove a holder of
    /// this library, end its session with [`End::Revoke`](crate::End::Revoke).
    ///
    /// # Errors
    ///
    /// The store failed; the record may be gone.
    async fn evict(&self, seen: &Record) -> Result<bool>;
}
