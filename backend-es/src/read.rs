//! Reading: by id, which sees every write, and by search, which sees what was refreshed. Nothing is decided by it.

use std::collections::BTreeMap;

use bytes::Bytes;
use elasticsearch::http::Method;
use lockcore::{SessionId, SessionState};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::EsBackend;
use crate::bulk::{Bulk, Reply, Seen, expect};
use crate::error::{Cause, Failure, Outcome, Refusal};
use crate::http::{At, Request};
use crate::record::{MARK, Session, session_id};

/// So many documents are found, and then removed, by one request.
const AT_ONCE: usize = 4_000;
/// More than so many documents are removed by two requests at a time.
const REMOVED_TOGETHER: usize = 500;

/// Searches ask the same copy of the shard where they can: each has an order of its own, in which one page follows another.
const SAME_COPY: (&str, &str) = ("preference", "lockkeeper");

/// A document.
#[derive(Debug, Deserialize)]
pub(crate) struct Document {
    #[serde(rename = "_id")]
    pub(crate) id: String,
    #[serde(rename = "_seq_no")]
    seq_no: Option<u64>,
    #[serde(rename = "_primary_term")]
    primary_term: Option<u64>,
    #[serde(rename = "_source", default)]
    pub(crate) source: Value,
    #[serde(default)]
    pub(crate) sort: Vec<Value>,
    #[serde(default)]
    found: bool,
    error: Option<Cause>,
}

impl Document {
    pub(crate) fn seen(&self) -> Seen {
        Seen {
            seq_no: self.seq_no.unwrap_or(0),
            primary_term: self.primary_term.unwrap_or(0),
        }
    }
}

#[derive(Deserialize)]
struct Got {
    docs: Vec<Document>,
}

#[derive(Deserialize)]
struct Searched {
    timed_out: bool,
    #[serde(rename = "_shards")]
    shards: Shards,
    hits: Hits,
    #[serde(default)]
    aggregations: Value,
}

#[derive(Deserialize)]
struct Refreshment {
    #[serde(rename = "_shards")]
    shards: Shards,
}

#[derive(Deserialize)]
struct Shards {
    successful: u64,
    failed: u64,
}

impl Shards {
    /// A copy that is not there is counted neither way: not even a primary that nobody is.
    fn in_part(&self) -> bool {
        self.failed > 0 || self.successful == 0
    }
}

#[derive(Deserialize)]
struct Hits {
    total: Option<Total>,
    hits: Vec<Document>,
}

#[derive(Deserialize)]
struct Total {
    value: usize,
}

/// What was refreshed, for what is read then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refreshed {
    /// The node, which is asked.
    at: At,
    /// What was written there before: a copy that does not have it was left behind.
    mark: Option<Seen>,
}

/// What a search has found.
pub(crate) struct Found {
    /// How many there are, where that was asked.
    total: Option<usize>,
    pub(crate) documents: Vec<Document>,
    pub(crate) aggregations: Value,
}

/// What sessions are; one without a record is dead, and not in it.
pub(crate) type States = BTreeMap<SessionId, SessionState>;

/// The states that the documents of sessions say.
pub(crate) fn states(sessions: &[SessionId], documents: Vec<Option<Document>>) -> States {
    let state = |(session, document): (&SessionId, Option<Document>)| {
        let read = Session::read(*session, &document?.source);
        let state = read.map_or_else(|| SessionState::unreadable(*session), |read| read.state);
        Some((*session, state))
    };
    sessions.iter().zip(documents).filter_map(state).collect()
}

/// What became of the documents that a query finds.
pub(crate) struct Removed {
    pub(crate) removed: usize,
    /// Not all of them were removed: there are more, or some were not as they were found.
    pub(crate) more: bool,
}

impl EsBackend {
    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        action: &str,
        query: &[(&str, &str)],
        body: &Value,
    ) -> Outcome<(T, At)> {
        let path = format!("/{}/{action}", self.alias);
        let body = match body {
            Value::Null => Bytes::new(),
            body => Bytes::from(body.to_string()),
        };
        let request = Request {
            method: Method::Post,
            path: &path,
            query,
            body,
        };
        let at = self.refreshed.map(|refreshed| refreshed.at);
        self.nodes.send_to(at, self.lane, request).await
    }

    /// A node has answered for a part alone: it may be cut off from the others, which are asked next.
    fn in_part(&self, at: At, what: &'static str) -> Failure {
        self.nodes.leave(at);
        Failure::Answer(what.into())
    }

    /// The documents of these ids, in order, as they are now; `None` where there is none. Of what is
    /// [marked](Self::marked) certainly so: one copy answers for all, and the mark is among them.
    pub(crate) async fn get(&self, mut ids: Vec<String>) -> Outcome<Vec<Option<Document>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mark = self.refreshed.and_then(|refreshed| refreshed.mark);
        ids.extend(mark.map(|_| MARK.to_owned()));
        let asked = ids.len();
        let (mut got, at): (Got, At) = self.post("_mget", &[], &json!({"ids": ids})).await?;
        let mut documents = got.docs.iter_mut();
        if let Some(cause) = documents.find_map(|document| document.error.take()) {
            // It has no status of its own.
            if cause.is("security_exception") {
                let (status, cause) = (403, Some(cause));
                return Err(Failure::Server(Refusal { status, cause }));
            }
            return Err(self.in_part(at, "some documents could not be read"));
        }
        if got.docs.len() != asked {
            return Err(Failure::Answer("another number of documents".into()));
        }
        if let Some(mark) = mark {
            let found = got.docs.pop().filter(|document| document.found);
            if found.is_none_or(|found| found.seen() < mark) {
                return Err(self.in_part(at, "a copy was read that is behind the others"));
            }
        }
        let found = got
            .docs
            .into_iter()
            .map(|document| Some(document).filter(|it| it.found));
        Ok(found.collect())
    }

    /// What these sessions are, as their records stand.
    pub(crate) async fn states(&self, sessions: &[SessionId]) -> Outcome<States> {
        let ids = sessions.iter().map(|session| session_id(*session));
        Ok(states(sessions, self.get(ids.collect()).await?))
    }

    /// Lets searches of what is returned see everything that was written. They ask the node that has refreshed: another one
    /// may be cut off, and has what was there before.
    ///
    /// A node that is cut off from the others, and does not know it yet, refreshes what it has, and says that nothing has
    /// failed. So something is written, which it cannot do. Only where nothing may be written it is believed.
    pub(crate) async fn refreshed(&self) -> Outcome<Self> {
        self.behind_mark(true).await
    }

    /// The same for [`get`](Self::get) alone, which sees what is not refreshed, too. A refresh makes a segment of what was
    /// written, and costs each copy more than that.
    pub(crate) async fn marked(&self) -> Outcome<Self> {
        self.behind_mark(false).await
    }

    async fn behind_mark(&self, refreshes: bool) -> Outcome<Self> {
        let refreshed = match self.mark(refreshes).await {
            Ok((mark, at)) => Refreshed {
                at,
                mark: Some(mark),
            },
            Err(failure) if failure.is_of_no_right_to_write() => {
                let (answer, at): (Refreshment, At) =
                    self.post("_refresh", &[], &Value::Null).await?;
                if answer.shards.in_part() {
                    return Err(self.in_part(at, "only a part was refreshed"));
                }
                Refreshed { at, mark: None }
            }
            Err(failure) => return Err(failure),
        };
        Ok(self.refreshed_by(refreshed))
    }

    /// Of what is [refreshed](Self::refreshed).
    pub(crate) async fn search(&self, body: &Value) -> Outcome<Found> {
        let (found, at): (Searched, At) = self.post("_search", &[SAME_COPY], body).await?;
        if found.timed_out || found.shards.in_part() {
            return Err(self.in_part(at, "only a part was searched"));
        }
        Ok(Found {
            total: found.hits.total.map(|total| total.value),
            documents: found.hits.hits,
            aggregations: found.aggregations,
        })
    }

    /// Removes up to `most` documents that the query finds, and that are as it found them: each by its id and the number
    /// of its last write, which no other write of the index has. So a removal that is late, or comes twice, removes nothing
    /// else.
    ///
    /// Not by `_delete_by_query`, which names the index behind the alias: a role for use is for the alias alone.
    pub(crate) async fn remove_found(&self, query: &Value, most: usize) -> Outcome<Removed> {
        let mut search = json!({
            "query": query, "sort": ["_doc"], "size": most.min(AT_ONCE), "track_total_hits": true,
            "_source": false, "seq_no_primary_term": true,
        });
        let mut found = self.search(&search).await?;
        let total = found.total;
        let total = total.ok_or_else(|| Failure::Answer("not how many there are".into()))?;
        search["track_total_hits"] = false.into();
        let (mut seen, mut removed) = (0, 0);
        while let Some(last) = found.documents.last() {
            seen += found.documents.len();
            search["search_after"] = last.sort.as_slice().into();
            search["size"] = most.saturating_sub(seen).min(AT_ONCE).into();
            let next = async {
                match seen < most.min(total) {
                    true => self.search(&search).await.map(Some),
                    false => Ok(None),
                }
            };
            // The server removes the rest and looks for the next ones meanwhile.
            let many = found.documents.len() > REMOVED_TOGETHER;
            let half = found.documents.len() / if many { 2 } else { 1 };
            let (some, rest) = found.documents.split_at(half);
            let (gone, rest_gone, next) =
                tokio::join!(self.remove_seen(some), self.remove_seen(rest), next);
            removed += gone? + rest_gone?;
            match next? {
                Some(next) => found = next,
                None => break,
            }
        }
        Ok(Removed {
            removed,
            more: removed < total,
        })
    }

    /// Removes the documents that are as they were seen, and says how many these were.
    async fn remove_seen(&self, documents: &[Document]) -> Outcome<usize> {
        if documents.is_empty() {
            return Ok(0);
        }
        let mut bulk = Bulk::default();
        for document in documents {
            bulk.delete_seen(&document.id, document.seen());
        }
        let known = [Reply::Written, Reply::Absent, Reply::Conflict];
        let items = expect(self.bulk_of_removals(bulk).await?, &known)?;
        let removed = items.iter().filter(|item| item.reply() == Reply::Written);
        Ok(removed.count())
    }
}
