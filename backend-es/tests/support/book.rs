//! Who follows *Elasticsearch: The Definitive Guide*, "Solving Concurrency Issues", by hand: its three locking schemes as
//! plain requests.
//!
//! The requests are the book's, as today's engines take them: no types in the paths, scripts in Painless, which fails by
//! throwing where Groovy asserted.

use std::collections::BTreeMap;

use elasticsearch::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::Space;

/// Does nothing for the process that has the lock, and fails for any other.
pub const SAME_PROCESS: &str = "if (ctx._source.process_id != params.process_id) { \
     throw new IllegalStateException('locked') } ctx.op = 'none'";
/// One more below, unless the directory itself is locked.
const INCREMENT: &str = "if (ctx._source.lock_type == 'exclusive') { \
     throw new IllegalStateException('locked') } ctx._source.lock_count++";
/// One less below; the last one takes the document away.
const DECREMENT: &str = "if (--ctx._source.lock_count == 0) { ctx.op = 'delete' }";

/// Who follows the book by hand.
pub struct Book<'a> {
    pub space: &'a Space,
    pub process: u64,
}

fn encoded(id: &str) -> String {
    utf8_percent_encode(id, NON_ALPHANUMERIC).to_string()
}

/// The directories above a path, the shortest first.
fn above(path: &str) -> Vec<&str> {
    let cuts = path.match_indices('/').skip(1);
    cuts.map(|(at, _)| &path[..at]).collect()
}

impl Book<'_> {
    async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        // No body, where there is none: newer servers refuse even `null`.
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.space.raw(method, path, body).await
    }

    /// `PUT /fs/lock/<id>/_create`
    pub async fn create(&self, id: &str, document: Value) -> bool {
        let path = format!("/{{ns}}/_create/{}", encoded(id));
        match self.send(Method::Put, &path, document).await {
            (201, _) => true,
            (409, _) => false,
            other => panic!("creating {id}: {other:?}"),
        }
    }

    /// `DELETE /fs/lock/<id>`
    pub async fn delete(&self, id: &str) {
        let path = format!("/{{ns}}/_doc/{}", encoded(id));
        let (status, answer) = self.send(Method::Delete, &path, Value::Null).await;
        assert_eq!(status, 200, "deleting {id}: {answer}");
    }

    /// `POST /fs/lock/<id>/_update`; the result, or `None` where the script has failed.
    pub async fn update(&self, id: &str, body: Value) -> Option<String> {
        // One that lost a race against another update is sent again.
        let path = format!("/{{ns}}/_update/{}?retry_on_conflict=100", encoded(id));
        match self.send(Method::Post, &path, body).await {
            (200 | 201, answer) => Some(answer["result"].as_str()?.to_owned()),
            (400, answer) if answer.to_string().contains("script_exception") => None,
            other => panic!("updating {id}: {other:?}"),
        }
    }

    async fn bulk(&self, lines: &[Value]) -> Vec<Value> {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let (status, answer) = self.space.raw(Method::Post, "/{ns}/_bulk", lines).await;
        assert_eq!(status, 200, "{answer}");
        let items = answer["items"].as_array().unwrap().iter();
        // Each is an object of one entry, named by its action.
        let items = items.map(|item| item.as_object().unwrap().values().next().unwrap().clone());
        items.collect()
    }

    /// Creates a lock for each document; those that exist already are asked whether they are this process's own.
    pub async fn lock_documents(&self, ids: &[&str]) -> bool {
        let process_id = self.process;
        let create = |id: &&str| {
            [
                json!({"create": {"_id": id}}),
                json!({"process_id": process_id}),
            ]
        };
        let items = self
            .bulk(&ids.iter().flat_map(create).collect::<Vec<_>>())
            .await;
        let refused = ids
            .iter()
            .zip(&items)
            .filter(|(_, item)| item["status"] == 409);
        let update = |(id, _): (&&str, _)| {
            let script = json!({"source": SAME_PROCESS, "params": {"process_id": process_id}});
            [
                json!({"update": {"_id": id}}),
                json!({"upsert": {"process_id": process_id}, "script": script}),
            ]
        };
        let again: Vec<Value> = refused.flat_map(update).collect();
        if again.is_empty() {
            return true;
        }
        let items = self.bulk(&again).await;
        items.iter().all(|item| item["status"].as_u64() < Some(300))
    }

    /// Refreshes, and deletes what bears the process's id.
    pub async fn release_documents(&self) {
        self.refresh().await;
        let query = json!({"query": {"term": {"process_id": self.process}}});
        let path = "/{ns}/_delete_by_query";
        let (status, answer) = self.send(Method::Post, path, query).await;
        assert_eq!((status, &answer["failures"]), (200, &json!([])), "{answer}");
    }

    /// As before there was a delete by query: scrolls through them, and deletes each page by a bulk.
    pub async fn release_documents_by_scroll(&self) {
        self.refresh().await;
        let query =
            json!({"size": 2, "_source": false, "query": {"term": {"process_id": self.process}}});
        let mut page = self
            .send(Method::Post, "/{ns}/_search?scroll=1m", query)
            .await
            .1;
        loop {
            let hits = page["hits"]["hits"].as_array().unwrap().clone();
            let scroll = json!({"scroll": "1m", "scroll_id": page["_scroll_id"]});
            if hits.is_empty() {
                let scroll = json!({"scroll_id": page["_scroll_id"]});
                self.send(Method::Delete, "/_search/scroll", scroll).await;
                return;
            }
            let delete = |hit: &Value| json!({"delete": {"_id": hit["_id"]}});
            self.bulk(&hits.iter().map(delete).collect::<Vec<_>>())
                .await;
            page = self.send(Method::Post, "/_search/scroll", scroll).await.1;
        }
    }

    async fn refresh(&self) {
        let (status, answer) = self.send(Method::Post, "/{ns}/_refresh", Value::Null).await;
        assert_eq!(status, 200, "{answer}");
    }

    async fn lock_shared(&self, path: &str) -> bool {
        let upsert = json!({"lock_type": "shared", "lock_count": 1});
        let update = json!({"upsert": upsert, "script": {"source": INCREMENT}});
        self.update(path, update).await.is_some()
    }

    async fn release_shared(&self, paths: &[&str]) {
        for path in paths.iter().rev() {
            let released = self
                .update(path, json!({"script": {"source": DECREMENT}}))
                .await;
            assert!(released.is_some(), "{path}");
        }
    }

    /// Shared on every directory above, the shortest first, then exclusive on the path itself.
    pub async fn lock_tree(&self, path: &str) -> bool {
        let above = above(path);
        for (n, directory) in above.iter().enumerate() {
            if !self.lock_shared(directory).await {
                self.release_shared(&above[..n]).await;
                return false;
            }
        }
        let locked = self.create(path, json!({"lock_type": "exclusive"})).await;
        if !locked {
            self.release_shared(&above).await;
        }
        locked
    }

    /// In the reverse order.
    pub async fn release_tree(&self, path: &str) {
        self.delete(path).await;
        self.release_shared(&above(path)).await;
    }
}

/// Every lock that is there, by its id.
pub async fn locks_in(space: &Space) -> BTreeMap<String, Value> {
    let (status, answer) = space
        .raw(Method::Post, "/{ns}/_refresh", String::new())
        .await;
    assert_eq!(status, 200, "{answer}");
    let query = json!({"size": 1000, "query": {"match_all": {}}}).to_string();
    let (status, answer) = space.raw(Method::Post, "/{ns}/_search", query).await;
    assert_eq!(status, 200, "{answer}");
    let hits = answer["hits"]["hits"].as_array().unwrap().iter();
    let documents = hits.map(|hit| {
        (
            hit["_id"].as_str().unwrap().to_owned(),
            hit["_source"].clone(),
        )
    });
    documents
        .filter(|(id, _)| {
            !id.starts_with("~session/") && !["~store", "~mark"].contains(&id.as_str())
        })
        .collect()
}
