//! Listing what is held, and evicting what cannot be read.

use std::ops::Bound;
use std::str::FromStr;

use async_trait::async_trait;

use super::record::{Held, Record as Stored};
use super::{Form, MemoryBackend, State, atomic};
use crate::judge::{Listed, Place};
use crate::{
    Error, ErrorKind, Filter, Inspect, LockKey, Operation, Page, Record, Result, SessionId,
    SessionState,
};

#[async_trait]
impl Inspect for MemoryBackend {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let after: Option<LockKey> = after.map(cursor).transpose()?;
        Ok(self.update(|state| match filter {
            Filter::Key(key) => Page {
                items: state.record(key, self.form).into_iter().collect(),
                next: None,
            },
            Filter::Prefix(prefix) => {
                state.page(after, limit, |key, _| key.as_str().starts_with(prefix))
            }
            Filter::Session(session) => state.page(after, limit, |_, held| {
                held.grant.is_some_and(|grant| grant.session == *session)
            }),
        }))
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let after: Option<SessionId> = after.map(cursor).transpose()?;
        Ok(self.update(|state| {
            let items = state.sessions.states(after);
            page(items, limit, |item| item.session.to_string())
        }))
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let evicted = self.update(|state| {
            let record = state.records.get(&seen.key);
            record.is_some_and(|record| record.version.to_string() == seen.version)
                && state.remove(&seen.key, |grant| grant.is_none()) > 0
        });
        if evicted {
            self.watchers.wake(std::iter::once(&seen.key));
        }
        Ok(evicted)
    }
}

impl State {
    /// One key, with whoever holds something below it.
    fn record(&self, key: &LockKey, form: Form) -> Option<Record> {
        let mut listed = Listed::default();
        let record = self.records.get(key);
        if let Some(record) = record {
            self.list(&mut listed, key, record, Place::Key);
        }
        if form == Form::Atomic {
            for (_, record) in atomic::below(&self.records, key) {
                self.list(&mut listed, key, record, Place::Below);
            }
        }
        let version = record.map_or(0, |record| record.version);
        listed.record(key, version.to_string())
    }

    fn list(&self, listed: &mut Listed, key: &LockKey, record: &Stored, place: Place) {
        for held in self.counting(record) {
            listed.add(held.holder(key, place.seen(held.mode), |id| self.sessions.shown(id)));
        }
    }

    fn counting<'a>(&'a self, record: &'a Stored) -> impl Iterator<Item = &'a Held> {
        let counts = |held: &&Held| held.grant.is_none_or(|grant| self.sessions.counts(grant));
        record.holders.iter().filter(counts)
    }

    /// The records behind `after` of which a holder that counts is wanted.
    fn page(
        &self,
        after: Option<LockKey>,
        limit: usize,
        wanted: impl Fn(&LockKey, &Held) -> bool,
    ) -> Page<Record> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let items = self
            .records
            .range((from, Bound::Unbounded))
            .filter(|(key, record)| self.counting(record).any(|held| wanted(key, held)))
            .filter_map(|(key, record)| {
                let mut listed = Listed::default();
                self.list(&mut listed, key, record, Place::Key);
                listed.record(key, record.version.to_string())
            });
        page(items, limit, |item| item.key.to_string())
    }
}

/// The first items, at least one, and the last one's name if there are more.
fn page<T>(items: impl Iterator<Item = T>, limit: usize, name: impl Fn(&T) -> String) -> Page<T> {
    let limit = limit.max(1);
    let mut items: Vec<T> = items.take(limit.saturating_add(1)).collect();
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(name);
    Page { items, next }
}

fn cursor<T: FromStr>(after: &str) -> Result<T> {
    after.parse().map_err(|_| {
        Error::new(
            ErrorKind::Config,
            "memory",
            Operation::Inspect,
            "not the beginning of a page that this store gave out",
        )
    })
}
