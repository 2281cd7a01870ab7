//! `Inspect`: what is there, for people. Listing changes no record: a session that is due is shown as it is recorded.

use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::judge::Listed;
use lockcore::backend::{Filter, Inspect, Page, Record};
use lockcore::{Error, ErrorKind, LockKey, Operation, Result, SessionId, SessionState};
use serde_json::{Value, json};

use crate::EsBackend;
use crate::bulk::{Bulk, Reply, Seen, expect};
use crate::error::{Failure, NAME, Outcome};
use crate::read::{Document, States};
use crate::record::{Held, held, key_of, lock_id, session_id, without_foreign};
use crate::sweep::sessions_of;
use crate::wakeups::counts_by;

/// So many documents are looked at in one request.
const LOOKED_AT: usize = 1_000;

/// Longest prefix of a query.
const PREFIX_BYTES: usize = 256;

/// Where a page of records begins: behind a key, or behind a write of a record that says no key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum After {
    Key(String),
    Foreign(i64),
}

#[async_trait]
impl Inspect for EsBackend {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let after = match after {
            Some(after) => Some(place(after).ok_or_else(not_ours)?),
            None => None,
        };
        let page = async {
            match filter {
                Filter::Key(key) => self.one(key).await,
                Filter::Prefix(_) | Filter::Session(_) => self.listed(filter, after, limit).await,
            }
        };
        page.await
            .map_err(|failure| failure.into_error(Operation::Inspect))
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let after: Option<SessionId> = match after {
            Some(after) => Some(after.parse().map_err(|_| not_ours())?),
            None => None,
        };
        self.listed_sessions(after, limit)
            .await
            .map_err(|failure| failure.into_error(Operation::Inspect))
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        let found = async {
            let mut found = States::new();
            for some in sessions.chunks(LOOKED_AT) {
                // A copy that is cut off has what was there before.
                found.extend(self.marked().await?.states(some).await?);
            }
            Ok(found)
        };
        let found = found.await;
        let found = found.map_err(|failure: Failure| failure.into_error(Operation::Inspect))?;
        Ok(sessions.iter().map(|id| found.get(id).cloned()).collect())
    }

    /// Not told: the end of a lease is a time of its node, and only what changes a document sees the clock of a node.
    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        Ok(vec![None; sessions.len()])
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.evict_record(seen)
            .await
            .map_err(|failure| failure.into_error(Operation::Inspect))
    }
}

fn not_ours() -> Error {
    let what = "the place to go on from was not given out by this store";
    Error::new(ErrorKind::Config, NAME, Operation::Inspect, what)
}

fn place(after: &str) -> Option<After> {
    match after.split_once(':')? {
        ("key", key) => Some(After::Key(key.to_owned())),
        ("foreign", number) => number.parse().ok().map(After::Foreign),
        _ => None,
    }
}

impl After {
    fn text(&self) -> String {
        match self {
            After::Key(key) => format!("key:{key}"),
            After::Foreign(number) => format!("foreign:{number}"),
        }
    }
}

impl EsBackend {
    /// The record of one key.
    async fn one(&self, key: &LockKey) -> Outcome<Page<Record>> {
        // A copy that is cut off has what was there before.
        let marked = self.marked().await?;
        let documents = marked.get(vec![lock_id(key).into_owned()]).await?;
        let documents: Vec<Document> = documents.into_iter().flatten().collect();
        let items = marked.shown(&documents, |_, _| true).await?;
        Ok(Page {
            items: items.into_iter().flatten().collect(),
            next: None,
        })
    }

    /// The records that are held, by key; then those of other writers, which say no key.
    async fn listed(
        &self,
        filter: &Filter,
        mut after: Option<After>,
        limit: usize,
    ) -> Outcome<Page<Record>> {
        let refreshed = self.refreshed().await?;
        let mut items = Vec::new();
        let mut at = after.take().unwrap_or(After::Key(String::new()));
        loop {
            let documents = refreshed.search(&query(filter, &at)).await?.documents;
            let found = documents.len();
            let wanted = |key: &LockKey, held: &[Held]| match filter {
                Filter::Key(_) => true,
                Filter::Prefix(prefix) => key.as_str().starts_with(prefix),
                Filter::Session(session) => {
                    let mut grants = held.iter().filter_map(Held::grant);
                    grants.any(|grant| grant.session == *session)
                }
            };
            let shown = refreshed.shown(&documents, wanted).await?;
            for (document, record) in documents.iter().zip(shown) {
                at = match &at {
                    After::Key(_) => {
                        After::Key(document.sort[0].as_str().unwrap_or_default().to_owned())
                    }
                    After::Foreign(_) => {
                        After::Foreign(document.sort[0].as_i64().unwrap_or(i64::MAX))
                    }
                };
                items.extend(record);
                if items.len() >= limit.max(1) {
                    let next = Some(at.text());
                    return Ok(Page { items, next });
                }
            }
            if found == LOOKED_AT {
                continue;
            }
            match (&at, filter) {
                (After::Key(_), Filter::Prefix(_)) => at = After::Foreign(-1),
                _ => return Ok(Page { items, next: None }),
            }
        }
    }

    /// The records of documents, each with those of its holders that count; `None` where none is left or wanted.
    async fn shown(
        &self,
        documents: &[Document],
        wanted: impl Fn(&LockKey, &[Held]) -> bool,
    ) -> Outcome<Vec<Option<Record>>> {
        let read = |document: &Document| {
            let key = key_of(&document.id, &document.source)?;
            let held = held(&key, &document.source);
            Some((key, held))
        };
        let records: Vec<Option<(LockKey, Vec<Held>)>> = documents.iter().map(read).collect();
        let all = records.iter().flatten().flat_map(|(_, held)| held);
        let states = self.states(&sessions_of(all)).await?;
        let shown = records
            .into_iter()
            .zip(documents)
            .map(|(record, document)| {
                let (key, mut held) = record?;
                held.retain(|held| counts_by(held, &states));
                if held.is_empty() || !wanted(&key, &held) {
                    return None;
                }
                let mut listed = Listed::default();
                for held in &held {
                    let state = held.grant().and_then(|grant| states.get(&grant.session));
                    listed.add(held.holder(&key, state));
                }
                listed.record(&key, version(document.seen()))
            });
        Ok(shown.collect())
    }

    async fn listed_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Outcome<Page<SessionState>> {
        let refreshed = self.refreshed().await?;
        let size = limit.clamp(1, LOOKED_AT);
        let mut search = json!({
            "size": size, "sort": ["session"],
            "query": {"bool": {"filter": [{"exists": {"field": "session"}}, {"exists": {"field": "state"}}]}},
        });
        if let Some(after) = after {
            search["search_after"] = json!([after.to_string()]);
        }
        let documents = refreshed.search(&search).await?.documents;
        let session = |document: &Document| {
            let session = document.source["session"].as_str()?.parse().ok()?;
            // A document that only says so is no session's record.
            (document.id == session_id(session)).then_some(session)
        };
        let found: Vec<SessionId> = documents.iter().filter_map(session).collect();
        let last = found.last().map(SessionId::to_string);
        // The copy that was searched may have been left behind: what a session is, its record says.
        let items = refreshed.states(&found).await?.into_values().collect();
        let next = last.filter(|_| documents.len() == size);
        Ok(Page { items, next })
    }

    async fn evict_record(&self, seen: &Record) -> Outcome<bool> {
        let id = lock_id(&seen.key);
        let documents = self.get(vec![id.clone().into_owned()]).await?;
        let Some(document) = documents.into_iter().flatten().next() else {
            return Ok(false);
        };
        let here = document.seen();
        let foreign = held(&seen.key, &document.source)
            .iter()
            .any(|held| held.known.is_none());
        if version(here) != seen.version || !foreign {
            return Ok(false);
        }
        let mut bulk = Bulk::default();
        match without_foreign(&seen.key, &document.source) {
            Some(ours) => bulk.replace_seen(&id, here, &ours),
            None => bulk.delete_seen(&id, here),
        }
        let known = [Reply::Written, Reply::Conflict, Reply::Absent];
        let items = expect(self.bulk(bulk).await?, &known)?;
        Ok(items.iter().all(|item| item.reply() == Reply::Written))
    }
}

/// The state of a document.
fn version(seen: Seen) -> String {
    format!("{}/{}", seen.primary_term, seen.seq_no)
}

/// Looks for lock records behind a place.
fn query(filter: &Filter, at: &After) -> Value {
    let mut query = json!({"size": LOOKED_AT, "seq_no_primary_term": true});
    match at {
        After::Key(after) => {
            let which = match filter {
                Filter::Session(session) => json!({"term": {"processes": session.to_string()}}),
                Filter::Key(key) => json!({"term": {"key": key.as_str()}}),
                Filter::Prefix(prefix) if prefix.is_empty() => json!({"exists": {"field": "key"}}),
                Filter::Prefix(prefix) => json!({"prefix": {"key": short(prefix)}}),
            };
            query["query"] = json!({"bool": {"filter": [which]}});
            query["sort"] = json!(["key"]);
            query["search_after"] = json!([after]);
        }
        After::Foreign(after) => {
            query["query"] = json!({"bool": {"must_not": [
                {"exists": {"field": "key"}}, {"exists": {"field": "session"}},
            ]}});
            query["sort"] = json!(["_seq_no"]);
            query["search_after"] = json!([after]);
        }
    }
    query
}

/// As much of a prefix as a query takes; the rest is looked at here.
fn short(prefix: &str) -> &str {
    let mut end = prefix.len().min(PREFIX_BYTES);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    &prefix[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_to_go_on_from_are_read_or_refused() {
        for after in [
            After::Key("a:b".into()),
            After::Key(String::new()),
            After::Foreign(7),
        ] {
            assert_eq!(place(&after.text()), Some(after));
        }
        for text in ["", "key", "foreign:x", "other:1"] {
            assert_eq!(place(text), None, "{text}");
        }
    }
}
