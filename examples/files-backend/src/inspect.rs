//! `Inspect`: what is there, for people. Listing changes nothing: a session that is due is shown as it is recorded.

use std::ops::Bound;
use std::str::FromStr;

use async_trait::async_trait;
use lockcore::judge::{Entry as _, Listed, Place};
use lockcore::{
    Error, ErrorKind, Filter, Inspect, LockKey, Operation, Page, Record, Result, SessionId,
    SessionState,
};

use crate::claims::below;
use crate::state::{Entry, State, Text};
use crate::{FilesBackend, NAME};

#[async_trait]
impl Inspect for FilesBackend {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let filter = filter.clone();
        let after: Option<LockKey> = after.map(place).transpose()?;
        self.look(Operation::Inspect, move |state| match &filter {
            Filter::Key(key) => Page {
                items: state.one(key).into_iter().collect(),
                next: None,
            },
            Filter::Prefix(prefix) => {
                state.page(after, limit, |key, _| key.as_str().starts_with(prefix))
            }
            Filter::Session(session) => state.page(after, limit, |_, entry| {
                entry.grant().is_some_and(|grant| grant.session == *session)
            }),
        })
        .await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let after: Option<SessionId> = after.map(place).transpose()?;
        self.look(Operation::Inspect, move |state| {
            let from = after.map_or(Bound::Unbounded, |id| Bound::Excluded(Text(id)));
            let sessions = state.sessions.by_id.range((from, Bound::Unbounded));
            let states = sessions.map(|(id, session)| session.state(id.0));
            page(states, limit, |state| state.session.to_string())
        })
        .await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let seen = seen.clone();
        self.update(Operation::Inspect, move |state, _| {
            let entries = state.records.get(&Text(seen.key.clone()));
            entries.is_some_and(|entries| version(entries) == seen.version)
                && state.remove(&seen.key, |entry| entry.held().is_none()) > 0
        })
        .await
    }
}

impl State {
    /// One key, with whoever holds something below it.
    fn one(&self, key: &LockKey) -> Option<Record> {
        let here = self
            .records
            .get(&Text(key.clone()))
            .map_or(&[][..], Vec::as_slice);
        let mut listed = Listed::default();
        self.list(&mut listed, key, here, Place::Key);
        for entries in below(&self.records, key) {
            self.list(&mut listed, key, entries, Place::Below);
        }
        listed.record(key, version(here))
    }

    fn list(&self, listed: &mut Listed, key: &LockKey, entries: &[Entry], place: Place) {
        for entry in entries.iter().filter(|entry| self.counts(entry)) {
            listed.add(entry.holder(&self.sessions, key, place));
        }
    }

    fn counts(&self, entry: &Entry) -> bool {
        entry
            .grant()
            .is_none_or(|grant| self.sessions.counts(grant))
    }

    /// The records behind `after` of which a holder that counts is wanted.
    fn page(
        &self,
        after: Option<LockKey>,
        limit: usize,
        wanted: impl Fn(&LockKey, &Entry) -> bool,
    ) -> Page<Record> {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(Text(key)));
        let records = self.records.range((from, Bound::Unbounded));
        let items = records.filter_map(|(key, entries)| {
            let key = &key.0;
            let mut counting = entries.iter().filter(|entry| self.counts(entry));
            counting.any(|entry| wanted(key, entry)).then(|| {
                let mut listed = Listed::default();
                self.list(&mut listed, key, entries, Place::Key);
                listed.record(key, version(entries))
            })?
        });
        page(items, limit, |item| item.key.to_string())
    }
}

/// The foreign entries as they stand in the file.
fn version(entries: &[Entry]) -> String {
    let foreign: Vec<&str> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Ours(_) => None,
            Entry::Foreign(raw) => Some(raw.get()),
        })
        .collect();
    foreign.join(",")
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

/// Where a page begins: the last name of the one before.
fn place<T: FromStr>(after: &str) -> Result<T> {
    after.parse().map_err(|_| {
        let what = "the place to go on from was not given out by this store";
        Error::new(ErrorKind::Config, NAME, Operation::Inspect, what)
    })
}
