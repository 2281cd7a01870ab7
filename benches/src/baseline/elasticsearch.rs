//! Bare documents in an index that is made like the namespace's.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use elasticsearch::auth::Credentials;
use elasticsearch::http::Method;
use elasticsearch::http::headers::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use elasticsearch::http::transport::{SingleNodeConnectionPool, Transport, TransportBuilder};
use serde_json::{Value, json};
use url::Url;

use crate::store::backend;
use lockkeeper_workloads::{Failure, Granted, Lock, id};

const INDEX: &str = "lockkeeper-baseline";
/// Keys of a step of the backend.
const STEP: u32 = 2_000;
/// So long a grant's name and its owner's are; a session's is two less.
const NAME: &str = "0123456789abcdef0123456789abcdef/1";

#[derive(Clone)]
pub(crate) struct Baseline {
    transport: Transport,
}

impl Baseline {
    pub(crate) async fn new(url: &str) -> Self {
        // The namespace is made if it is not there.
        drop(backend(url).await);
        let mut url = Url::parse(url).expect("it is the URL of one node");
        let option = |(name, value): (_, _)| (name == "namespace").then_some(value);
        let namespace = url.query_pairs().find_map(option);
        let namespace = namespace.map_or_else(|| "lockkeeper".to_owned(), |name| name.into_owned());
        let user = url.username().to_owned();
        let password = url.password().map(str::to_owned);
        let _ = (url.set_username(""), url.set_password(None));
        url.set_query(None);
        let plain = format!("http{}", &url[url::Position::AfterScheme..]);
        let pool = SingleNodeConnectionPool::new(plain.parse().expect("a URL"));
        let mut builder = TransportBuilder::new(pool)
            .disable_proxy()
            .enable_meta_header(false)
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(password) = password {
            builder = builder.auth(Credentials::Basic(user, password));
        }
        let baseline = Self {
            transport: builder.build().expect("a client"),
        };
        baseline.make(&namespace).await;
        baseline
    }

    /// Makes the index, with the settings and the mapping of the namespace's.
    async fn make(&self, namespace: &str) {
        let (_, found) = self
            .send(Method::Get, &format!("/{namespace}"), &[], Bytes::new())
            .await;
        let found: Value = serde_json::from_slice(&found).expect("an index");
        let like = found
            .as_object()
            .and_then(|indices| indices.values().next());
        let mut like = like.expect("the namespace's index").clone();
        let settings = like["settings"]["index"]
            .as_object_mut()
            .expect("its settings");
        for of_one in ["creation_date", "provided_name", "uuid", "version"] {
            settings.remove(of_one);
        }
        let index = json!({"settings": like["settings"], "mappings": like["mappings"]});
        let path = format!("/{INDEX}");
        self.send(Method::Delete, &path, &[], Bytes::new()).await;
        self.must(Method::Put, &path, &[], Bytes::from(index.to_string()))
            .await;
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Bytes,
    ) -> (u16, Bytes) {
        let sent = self
            .transport
            .send(
                method,
                path,
                HeaderMap::new(),
                Some(query),
                Some(body),
                Some(Duration::from_secs(600)),
            )
            .await
            .expect("the server answers");
        let status = sent.status_code().as_u16();
        (status, sent.bytes().await.expect("the server answers"))
    }

    async fn must(&self, method: Method, path: &str, query: &[(&str, &str)], body: Bytes) -> Bytes {
        let (status, answer) = self.send(method, path, query, body).await;
        assert!(
            (200..300).contains(&status),
            "{method:?} {path}: {status} {}",
            String::from_utf8_lossy(&answer)
        );
        answer
    }

    /// Sends the documents of every number below `count` in bulks of a step each.
    async fn bulk(&self, count: u32, line: impl Fn(&mut String, &str)) {
        for from in (0..count).step_by(STEP as usize) {
            let mut body = String::new();
            for n in from..count.min(from + STEP) {
                line(&mut body, &id(n));
            }
            let path = format!("/{INDEX}/_bulk");
            let query = [("filter_path", "errors")];
            let answer = self
                .must(Method::Post, &path, &query, Bytes::from(body))
                .await;
            assert_eq!(&answer[..], b"{\"errors\":false}");
        }
    }
}

#[async_trait]
impl Lock for Baseline {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let path = format!("/{INDEX}/_create/{key}");
        self.must(Method::Put, &path, &[], Bytes::from_static(b"{}"))
            .await;
        granted().over().await;
        let path = format!("/{INDEX}/_doc/{key}");
        self.must(Method::Delete, &path, &[], Bytes::new()).await;
        Ok(())
    }
}

#[async_trait]
impl super::Baseline for Baseline {
    async fn server(&mut self) -> String {
        let said = self.must(Method::Get, "/", &[], Bytes::new()).await;
        let said: Value = serde_json::from_slice(&said).expect("JSON");
        let version = &said["version"];
        let name = version["distribution"].as_str().unwrap_or("elasticsearch");
        let nodes = self
            .must(Method::Get, "/_nodes/jvm", &[], Bytes::new())
            .await;
        let nodes: Value = serde_json::from_slice(&nodes).expect("JSON");
        let mut nodes = nodes["nodes"].as_object().into_iter().flatten();
        let heap = nodes
            .next()
            .and_then(|(_, node)| node["jvm"]["mem"]["heap_max_in_bytes"].as_u64());
        format!(
            "{name} {}, a heap of {} MiB, translog as it is by default",
            version["number"].as_str().unwrap_or_default(),
            heap.unwrap_or_default() >> 20
        )
    }

    fn pair_is(&self) -> &'static str {
        "PUT _create and DELETE of a bare document"
    }

    fn pair(&self) -> Arc<dyn Lock> {
        Arc::new(self.clone())
    }

    fn many_is(&self) -> &'static str {
        "_bulk of index, as many bytes, 2,000 at a time; up to 2,000 _bulk of delete, else refresh and delete by query"
    }

    async fn put(&mut self, count: u32) {
        let session = &NAME[..NAME.len() - 2];
        let since = 1_700_000_000_000_u64;
        self.bulk(count, |body, id| {
            use std::fmt::Write;
            let _ = writeln!(body, r#"{{"index":{{"_id":"{id}"}}}}"#);
            let _ = writeln!(
                body,
                r#"{{"key":"{id}","lock_type":"exclusive","lock_count":1,"process_id":"{NAME}","processes":["{session}"],"holders":{{"{NAME}":{{"owner":"{NAME}","session":"{session}","mode":"X","since":{since}}}}}}}"#
            );
        })
        .await;
    }

    async fn remove(&mut self, count: u32) {
        if count <= STEP {
            self.bulk(count, |body, id| {
                use std::fmt::Write;
                let _ = writeln!(body, r#"{{"delete":{{"_id":"{id}"}}}}"#);
            })
            .await;
            return;
        }
        let path = format!("/{INDEX}/_refresh");
        self.must(Method::Post, &path, &[], Bytes::new()).await;
        let session = &NAME[..NAME.len() - 2];
        let query = json!({"query": {"term": {"processes": session}}}).to_string();
        // As a task: the answer to who waits may have more headers than a client takes, one for each batch.
        let path = format!("/{INDEX}/_delete_by_query");
        let how = [
            ("conflicts", "proceed"),
            ("scroll_size", "5000"),
            ("wait_for_completion", "false"),
        ];
        let started = self.must(Method::Post, &path, &how, Bytes::from(query));
        let started: Value = serde_json::from_slice(&started.await).expect("JSON");
        let path = format!("/_tasks/{}", started["task"].as_str().expect("a task"));
        let how = [("wait_for_completion", "true"), ("timeout", "10m")];
        let done = self.must(Method::Get, &path, &how, Bytes::new()).await;
        let done: Value = serde_json::from_slice(&done).expect("JSON");
        assert_eq!(done["response"]["deleted"], count, "{done}");
    }
}
