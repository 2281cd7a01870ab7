//! Sweeping: removing what does not count. It frees nothing, but clients of the book see what is left.

use std::collections::{BTreeMap, BTreeSet};

use lockcore::backend::judge::is_live;
use lockcore::backend::{End, Sweep, Swept};
use lockcore::limits::TOMBSTONE_KEPT;
use lockcore::{Grant, Life, SessionId, SessionState};
use serde_json::{Value, json};

use crate::EsBackend;
use crate::bulk::{Bulk, Reply, expect};
use crate::error::Outcome;
use crate::read::Document;
use crate::record::{Held, held, key_of, session_id, session_of_intent};
use crate::scripts::{FORGET, RELEASE};

/// So many records are looked at in one request.
pub(crate) const PAGE: usize = 1_000;
/// So many payloads, and so many sessions, go in one call.
const DOCUMENTS: usize = 20_000;
/// So many holders the client lets one call remove: each begins with a refresh, which takes long behind many removals.
pub(crate) const LIMIT: usize = 1_000_000;

/// What is left of sessions.
#[derive(Clone, Copy)]
enum What {
    Payloads,
    Sessions,
}

impl EsBackend {
    pub(crate) async fn sweep_some(&self, which: Sweep, limit: usize) -> Outcome<Swept> {
        if limit == 0 {
            return Ok(Swept::new(0, true));
        }
        let refreshed = self.refreshed().await?;
        match which {
            Sweep::Session(session) => {
                let states = self.end_sessions(&[session], End::IfDue).await?;
                let state = states.first().expect("one session was asked about");
                refreshed.sweep_session(state, limit).await
            }
            Sweep::All => refreshed.sweep_all(limit).await,
        }
    }

    /// Removes what a session has left. The index is refreshed.
    async fn sweep_session(&self, state: &SessionState, limit: usize) -> Outcome<Swept> {
        let session = state.session;
        let more = |removed| Swept::new(removed, true);
        let mut removed = 0;
        let mut after: Option<Vec<Value>> = None;
        loop {
            let page = self.page_of_session(state, after.as_deref()).await?;
            let mut gone = Vec::new();
            let mut entries = 0;
            for document in &page {
                let retired = Retired::of(document, state);
                if removed + entries < limit && retired.len() > 0 {
                    entries += retired.len();
                    gone.push((document.id.as_str(), retired));
                }
            }
            let enough = removed + entries >= limit;
            removed += self.remove_gone(&gone).await?;
            if enough {
                return Ok(more(removed));
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.sort.clone()),
                _ => break,
            }
        }
        if state.life == Life::Dead {
            // Nobody else holds what a dead session holds exclusively.
            let exclusive = json!({"bool": {"filter": [
                {"term": {"processes": session.to_string()}}, {"exists": {"field": "process_id"}},
            ]}});
            let payloads = json!({"bool": {
                "filter": [{"term": {"session": session.to_string()}}],
                "must_not": [{"exists": {"field": "state"}}],
            }});
            for query in [exclusive, payloads] {
                let gone = self.remove_found(&query, limit - removed).await?;
                removed += gone.removed;
                // What was written since the refresh is looked at again.
                if gone.more {
                    return Ok(more(removed));
                }
            }
        }
        Ok(Swept::new(removed, false))
    }

    /// Some of the records that have grants of a session; of a dead one's, those that others may hold with it.
    pub(crate) async fn page_of_session(
        &self,
        state: &SessionState,
        after: Option<&[Value]>,
    ) -> Outcome<Vec<Document>> {
        let mut query =
            json!({"bool": {"filter": [{"term": {"processes": state.session.to_string()}}]}});
        if state.life == Life::Dead {
            query["bool"]["must_not"] = json!([{"exists": {"field": "process_id"}}]);
        }
        let mut search = json!({
            "size": PAGE, "sort": ["key"], "_source": ["key", "lock_type", "lock_count", "holders"], "query": query,
        });
        if let Some(after) = after {
            search["search_after"] = after.into();
        }
        Ok(self.search(&search).await?.documents)
    }

    /// Removes grants from records, by id, and says how many there were.
    async fn remove_gone(&self, gone: &[(&str, Retired)]) -> Outcome<usize> {
        if gone.is_empty() {
            return Ok(0);
        }
        let mut bulk = Bulk::default();
        for (id, Retired { gone, quit }) in gone {
            let named = |grants: &[Grant]| grants.iter().map(Grant::to_string).collect::<Value>();
            let params = json!({"grants": named(gone), "waiters": true, "quit": named(quit)});
            bulk.run(id, &RELEASE, params);
        }
        let known = [
            Reply::Written,
            Reply::Refused,
            Reply::Absent,
            Reply::Unreadable,
        ];
        let items = expect(self.bulk(bulk).await?, &known)?;
        let removed = gone
            .iter()
            .zip(&items)
            .filter(|(_, item)| item.reply() == Reply::Written);
        Ok(removed.map(|((_, retired), _)| retired.len()).sum())
    }

    /// Removes what any session has left, then what is left of sessions. The index is refreshed.
    async fn sweep_all(&self, limit: usize) -> Outcome<Swept> {
        self.end_due().await?;
        let (mut removed, mut looked_at) = (0, 0);
        let mut after = Value::Null;
        loop {
            let (sessions, next) = self.sessions_that_hold(&after).await?;
            let states = self.end_sessions(&sessions, End::IfDue).await?;
            looked_at += states.len();
            // Of the others everything is live.
            let left =
                |state: &&SessionState| state.life != Life::Living || !state.retired.is_empty();
            for state in states.iter().filter(left) {
                let swept = self.sweep_session(state, limit - removed).await?;
                removed += swept.removed;
                if removed >= limit || swept.more {
                    return Ok(Swept::new(removed, true));
                }
            }
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        let most = (limit - removed).min(DOCUMENTS);
        let payloads = self.drop_payloads(most).await?;
        removed += payloads;
        let forgotten = self.forget(most.min(limit - removed)).await?;
        removed += forgotten;
        // While a page of payloads is removed, others of them may change places.
        let more = removed >= limit || forgotten >= most || payloads >= most.min(PAGE);
        Ok(Swept::new(removed, more).of_sessions(looked_at))
    }

    /// Ends every session that is due.
    async fn end_due(&self) -> Outcome<()> {
        let mut after: Option<Vec<Value>> = None;
        loop {
            let mut search = json!({
                "size": PAGE, "sort": ["session"], "_source": ["session"],
                "query": {"bool": {"filter": [
                    {"term": {"state": Life::Living.as_str()}}, {"range": {"expires": {"lte": "now"}}},
                ]}},
            });
            if let Some(after) = &after {
                search["search_after"] = after.as_slice().into();
            }
            let page = self.search(&search).await?.documents;
            let due: Vec<SessionId> = page.iter().filter_map(session_of).collect();
            self.end_sessions(&due, End::IfDue).await?;
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.sort.clone()),
                _ => return Ok(()),
            }
        }
    }

    /// Some of the sessions that are in lock records, and where to go on.
    async fn sessions_that_hold(&self, after: &Value) -> Outcome<(Vec<SessionId>, Option<Value>)> {
        let mut composite = json!({
            "size": PAGE, "sources": [{"session": {"terms": {"field": "processes"}}}],
        });
        if !after.is_null() {
            composite["after"] = after.clone();
        }
        let search = json!({"size": 0, "aggs": {"sessions": {"composite": composite}}});
        let found = self.search(&search).await?.aggregations;
        let buckets = found["sessions"]["buckets"].as_array();
        let names = buckets
            .into_iter()
            .flatten()
            .filter_map(|bucket| bucket["key"]["session"].as_str());
        let next = Some(&found["sessions"]["after_key"]).filter(|next| !next.is_null());
        Ok((
            names.filter_map(|name| name.parse().ok()).collect(),
            next.cloned(),
        ))
    }

    /// Removes payloads of sessions that are dead, so many at most.
    async fn drop_payloads(&self, limit: usize) -> Outcome<usize> {
        let search = json!({
            "_source": false, "sort": ["_doc"],
            "query": {"bool": {
                "filter": [{"exists": {"field": "session"}}], "must_not": [{"exists": {"field": "state"}}],
            }},
        });
        // Before those of the dead may stand any number that are needed.
        self.remove_pages(search, limit, What::Payloads).await
    }

    /// Goes through all that the search finds, page by page, until so many are removed.
    async fn remove_pages(&self, mut search: Value, limit: usize, what: What) -> Outcome<usize> {
        let mut removed = 0;
        while removed < limit {
            let size = (limit - removed).min(PAGE);
            search["size"] = size.into();
            let found = self.search(&search).await?.documents;
            removed += match what {
                What::Payloads => self.drop_some(&found).await?,
                What::Sessions => self.forget_some(&found).await?,
            };
            match found.last() {
                Some(last) if found.len() == size => {
                    search["search_after"] = last.sort.as_slice().into();
                }
                _ => break,
            }
        }
        Ok(removed)
    }

    /// Of these payloads, removes those of sessions that are dead.
    async fn drop_some(&self, found: &[Document]) -> Outcome<usize> {
        let named = |document: &Document| {
            let session = session_of_intent(&document.id)?;
            Some((document.id.clone(), session))
        };
        let payloads: Vec<(String, SessionId)> = found.iter().filter_map(named).collect();
        let sessions: BTreeSet<SessionId> = payloads.iter().map(|(_, session)| *session).collect();
        let sessions: Vec<SessionId> = sessions.into_iter().collect();
        let states = self.end_sessions(&sessions, End::IfDue).await?;
        let dead = states.iter().filter(|state| state.life == Life::Dead);
        let dead: BTreeSet<SessionId> = dead.map(|state| state.session).collect();
        let mut bulk = Bulk::default();
        for (id, _) in payloads
            .iter()
            .filter(|(_, session)| dead.contains(session))
        {
            bulk.delete(id);
        }
        self.written(bulk, &[Reply::Written, Reply::Absent]).await
    }

    /// Forgets sessions that died long ago, of which nothing is left, so many at most.
    async fn forget(&self, limit: usize) -> Outcome<usize> {
        let before = format!("now-{}s", TOMBSTONE_KEPT.as_secs());
        let search = json!({
            "_source": ["session"], "sort": ["session"],
            "query": {"bool": {"filter": [
                {"term": {"state": Life::Dead.as_str()}}, {"range": {"ended": {"lte": before}}},
            ]}},
        });
        self.remove_pages(search, limit, What::Sessions).await
    }

    async fn forget_some(&self, found: &[Document]) -> Outcome<usize> {
        let kept_ms = u64::try_from(TOMBSTONE_KEPT.as_millis()).unwrap_or(u64::MAX);
        let mut bulk = Bulk::default();
        for session in found.iter().filter_map(session_of) {
            bulk.run(&session_id(session), &FORGET, json!({"kept": kept_ms}));
        }
        let known = [
            Reply::Written,
            Reply::Refused,
            Reply::Absent,
            Reply::Unreadable,
        ];
        self.written(bulk, &known).await
    }

    /// How many items of a bulk were written.
    async fn written(&self, bulk: Bulk, known: &[Reply]) -> Outcome<usize> {
        if bulk.is_empty() {
            return Ok(0);
        }
        let items = expect(self.bulk(bulk).await?, known)?;
        Ok(items
            .iter()
            .filter(|item| item.reply() == Reply::Written)
            .count())
    }
}

/// What a session has left in a record, as it was read before its state.
struct Retired {
    /// What is not live, and never will be.
    gone: Vec<Grant>,
    /// Waiters of a session that is abandoned. What has been granted since is held.
    quit: Vec<Grant>,
}

impl Retired {
    fn of(document: &Document, state: &SessionState) -> Self {
        let held = key_of(&document.id, &document.source)
            .map(|key| held(&key, &document.source))
            .unwrap_or_default();
        let retired = held.iter().filter(|held| !is_live(*held, state));
        let grants = retired.filter_map(Held::grant);
        let own = grants.filter(|grant| grant.session == state.session);
        let (quit, gone) = own.partition(|grant| state.is_live(grant.n));
        Self { gone, quit }
    }

    fn len(&self) -> usize {
        self.gone.len() + self.quit.len()
    }
}

fn session_of(document: &Document) -> Option<SessionId> {
    let session: SessionId = document.source["session"].as_str()?.parse().ok()?;
    (document.id == session_id(session)).then_some(session)
}

/// The sessions of holders, each once.
pub(crate) fn sessions_of<'a>(held: impl Iterator<Item = &'a Held>) -> Vec<SessionId> {
    let sessions = held
        .filter_map(Held::grant)
        .map(|grant| (grant.session, ()));
    BTreeMap::from_iter(sessions).into_keys().collect()
}
