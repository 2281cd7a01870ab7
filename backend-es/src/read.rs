//! Reading: by id, which sees every write, and by search, which sees what was refreshed. Nothing is decided by it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use elasticsearch::http::Method;
use lockcore::{SessionId, SessionState};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::EsBackend;
use crate::bulk::Seen;
use crate::error::{Cause, Failure, Outcome, Refusal};
use crate::http::Request;
use crate::record::{Session, session_id};

/// How long removing by a query may take, which nobody waits for to go on.
const REMOVED_WITHIN: Duration = Duration::from_secs(300);
/// So many documents are found and removed at a time by one: as many as a search of the index may ask for
/// (`max_result_window`).
pub(crate) const BATCH: usize = 12_000;

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
struct Shards {
    failed: u64,
}

#[derive(Deserialize)]
struct Hits {
    hits: Vec<Document>,
}

/// What a search has found.
pub(crate) struct Found {
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

#[derive(Deserialize)]
pub(crate) struct Removed {
    pub(crate) deleted: usize,
    /// How many were not as they were found.
    pub(crate) version_conflicts: usize,
}

impl EsBackend {
    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        action: &str,
        query: &[(&str, &str)],
        body: &Value,
        within: Option<Duration>,
    ) -> Outcome<T> {
        let path = format!("/{}/{action}", self.alias);
        let body = match body {
            Value::Null => Bytes::new(),
            body => Bytes::from(body.to_string()),
        };
        self.nodes
            .send(Request {
                method: Method::Post,
                path: &path,
                query,
                body,
                within,
            })
            .await
    }

    /// The documents of these ids, in order, as they are now; `None` where there is none.
    pub(crate) async fn get(&self, ids: Vec<String>) -> Outcome<Vec<Option<Document>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let asked = ids.len();
        let mut got: Got = self.post("_mget", &[], &json!({"ids": ids}), None).await?;
        let mut documents = got.docs.iter_mut();
        if let Some(cause) = documents.find_map(|document| document.error.take()) {
            // It has no status of its own.
            if cause.is("security_exception") {
                let (status, cause) = (403, Some(cause));
                return Err(Failure::Server(Refusal { status, cause }));
            }
            return Err(Failure::Answer("some documents could not be read".into()));
        }
        if got.docs.len() != asked {
            return Err(Failure::Answer("another number of documents".into()));
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

    /// Lets searches see everything that was written.
    pub(crate) async fn refresh(&self) -> Outcome<()> {
        let _: Value = self.post("_refresh", &[], &Value::Null, None).await?;
        Ok(())
    }

    pub(crate) async fn search(&self, body: &Value) -> Outcome<Found> {
        let found: Searched = self.post("_search", &[], body, None).await?;
        if found.timed_out || found.shards.failed > 0 {
            return Err(Failure::Answer("only a part was searched".into()));
        }
        Ok(Found {
            documents: found.hits.hits,
            aggregations: found.aggregations,
        })
    }

    /// Removes up to `most` documents that the query finds, and that are as it found them.
    pub(crate) async fn delete_by_query(&self, query: &Value, most: usize) -> Outcome<Removed> {
        let (most, batch) = (most.to_string(), most.min(BATCH).to_string());
        let query_string = [
            ("conflicts", "proceed"),
            ("max_docs", most.as_str()),
            ("scroll_size", batch.as_str()),
        ];
        self.post(
            "_delete_by_query",
            &query_string,
            &json!({"query": query}),
            Some(REMOVED_WITHIN),
        )
        .await
    }
}
