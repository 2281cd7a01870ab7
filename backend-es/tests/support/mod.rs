//! What the tests share: the server that they talk to, and namespaces of their own that they remove.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

pub mod access;
pub mod book;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use access::{Access, User};
use elasticsearch::http::Method;
use lockcore::backend::{
    Acquire, Acquired, Adopt, ClaimStore, End, Filter, Incarnation, Inspect, IntentChange, Opened,
    Ranges, Registered, Renewal, SessionStore, Sweep, Wakeups,
};
use lockcore::{
    Busy, Claim, Error, FencingToken, Grant, Intent, Label, LockKey, Note, NoteKind, OwnerId,
    SessionId, Want,
};
use lockcore_es::{EsBackend, EsConfig};
use serde_json::{Value, json};

/// In this variable is the URL of the server. If it names a user, that is one who may do everything, and everything but
/// what the tests do besides is then done with no more rights than it needs.
pub const VARIABLE: &str = "LOCKKEEPER_TEST_ELASTICSEARCH";

/// The server's URL.
///
/// # Panics
///
/// Panics, and says what to do, if none is given.
pub fn server() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set: run `cargo xtask test --only elasticsearch`, which starts servers, or set it to the \
             URL of one, as in elasticsearch://localhost:9200"
        )
    })
}

/// A namespace of its own, whose index is removed in the end.
pub struct Space {
    pub namespace: String,
}

impl Space {
    pub fn new() -> Self {
        let number: u64 = rand::random();
        Self {
            namespace: format!("test-{number:016x}"),
        }
    }

    /// How a backend reaches it that may use it.
    pub fn url(&self) -> String {
        self.url_of(&Access::get().to_use)
    }

    /// How a backend reaches it that may make it, too.
    pub fn url_to_make(&self) -> String {
        self.url_of(&Access::get().to_make)
    }

    /// How a backend reaches it as this user.
    pub fn url_of(&self, user: &User) -> String {
        user.url(&self.options())
    }

    /// How a backend reaches it through another server.
    pub fn url_at(&self, server: &str) -> String {
        format!("{server}/?{}", self.options())
    }

    /// There is one node, whose clock does not differ from itself.
    fn options(&self) -> String {
        let namespace = &self.namespace;
        format!("namespace={namespace}&replicas=0&clock_skew_ms=0&timeout_ms=20000")
    }

    /// A request beside the backend, about the namespace.
    pub async fn raw(&self, method: Method, path: &str, body: String) -> (u16, Value) {
        let path = path.replace("{ns}", &self.namespace);
        raw(method, &path, body).await
    }

    /// Puts a document there, as another writer would.
    pub async fn put(&self, id: &str, document: &Value) {
        self.put_all([(id, document)]).await;
    }

    /// The same with many, in one request.
    pub async fn put_all<'a>(&self, documents: impl IntoIterator<Item = (&'a str, &'a Value)>) {
        let line = |(id, document)| format!("{}\n{document}\n", json!({"index": {"_id": id}}));
        let body: String = documents.into_iter().map(line).collect();
        let path = "/{ns}/_bulk?pipeline=_none";
        let (status, answer) = self.raw(Method::Post, path, body).await;
        assert!(status == 200 && answer["errors"] == false, "{answer}");
    }

    /// Removes a document.
    pub async fn remove(&self, id: &str) {
        let action = json!({"delete": {"_id": id}});
        let (status, answer) = self
            .raw(Method::Post, "/{ns}/_bulk", format!("{action}\n"))
            .await;
        assert!(status == 200 && answer["errors"] == false, "{answer}");
    }

    /// The document of this id, as it is now.
    pub async fn document(&self, id: &str) -> Option<Value> {
        let body = json!({"ids": [id]}).to_string();
        let (status, answer) = self.raw(Method::Post, "/{ns}/_mget", body).await;
        assert_eq!(status, 200, "{answer}");
        let document = &answer["docs"][0];
        (document["found"] == true).then(|| document["_source"].clone())
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let namespace = self.namespace.clone();
        let remove = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let (status, about) =
                    raw(Method::Get, &format!("/{namespace}"), String::new()).await;
                let indices = about.as_object().filter(|_| status == 200);
                for index in indices.into_iter().flat_map(|indices| indices.keys()) {
                    raw(Method::Delete, &format!("/{index}"), String::new()).await;
                }
            });
        };
        // Not on this thread, which may be in a runtime. What is left behind harms no other test.
        let _ = std::thread::spawn(remove).join();
    }
}

/// A request to the server, by who may do everything.
pub async fn raw(method: Method, path: &str, body: String) -> (u16, Value) {
    User::given().send(method, path, body).await
}

/// A request to the server, by who may do everything, and its answer as it came.
pub async fn raw_text(method: Method, path: &str, body: String) -> (u16, String) {
    User::given().send_text(method, path, body).await
}

/// What an error says, with its causes.
pub fn said(error: &Error) -> String {
    let mut said = format!("{error} {error:?}");
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        said += &format!(" {deeper} {deeper:?}");
        cause = deeper.source();
    }
    said
}

pub fn id(number: u128) -> SessionId {
    SessionId::new(number)
}

/// `create k`, `upsert k`, `share k`, `write /p`, `read /p`.
pub fn claim(text: &str) -> Claim {
    let (want, key) = text.split_once(' ').unwrap();
    let want = match want {
        "create" => Want::Create,
        "upsert" => Want::Upsert,
        "share" => Want::Share { limit: None },
        "write" => Want::Write,
        "read" => Want::Read,
        other => panic!("{other}"),
    };
    Claim::new(LockKey::parse(key).unwrap(), want).unwrap()
}

/// A request under number `n`, by an owner of its own.
pub fn request(session: SessionId, n: u64, texts: &[&str]) -> Acquire {
    Acquire::new(
        Grant { session, n },
        OwnerId { session, m: n },
        texts.iter().map(|text| claim(text)).collect(),
    )
}

/// Connects as who may use the namespace, which is made before if there is none.
pub async fn connect(space: &Space) -> Arc<EsBackend> {
    if Access::get().is_asked_for() {
        connect_to(&space.url_to_make()).await.unwrap();
    }
    connect_to(&space.url()).await.unwrap()
}

pub async fn connect_to(url: &str) -> Result<Arc<EsBackend>, Error> {
    EsBackend::connect(EsConfig::parse(url).unwrap()).await
}

pub async fn open(backend: &EsBackend, number: u128) -> SessionId {
    let label = Label::parse(format!("session {number}")).unwrap();
    let opened = backend.open(id(number), &label, Duration::from_secs(30));
    assert_ne!(opened.await.unwrap(), Opened::Used);
    id(number)
}

pub async fn granted(backend: &EsBackend, request: &Acquire) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        Acquired::Acquired(token) => token,
        other => panic!("{request:?} not granted: {other:?}"),
    }
}

pub async fn refused(backend: &EsBackend, request: &Acquire) -> Busy {
    match backend.acquire(request).await.unwrap() {
        Acquired::Busy(busy) => busy,
        other => panic!("{request:?} not refused: {other:?}"),
    }
}

/// Does everything once that a backend can do, and says what failed.
pub async fn failures(space: &Space, backend: &EsBackend) -> Vec<Error> {
    let session = id(rand::random());
    let held = request(session, 1, &["create k", "write /a/b"]);
    let left = request(session, 2, &["create l", "share s"]);
    let renewal = |seq, intent| Renewal::new(seq, Ranges::EMPTY, intent);
    let intent = IntentChange::Put(Registered {
        token: FencingToken::new(1).unwrap(),
        intent: Intent::new("{}").unwrap(),
    });
    let mut failures = Vec::new();
    macro_rules! does {
        ($operation:expr) => {{
            failures.extend($operation.await.err());
        }};
    }
    let label = Label::parse("somebody").unwrap();
    does!(backend.open(session, &label, Duration::from_secs(30)));
    does!(backend.acquire(&held));
    does!(backend.confirm(held.grant, &held.claims));
    does!(backend.renew(session, &renewal(1, IntentChange::Keep)));
    does!(backend.renew(session, &renewal(2, intent)));
    does!(backend.watch(&held.claims));
    does!(backend.sessions(None, 10));
    space
        .put("foreign", &json!({"lock_type": "exclusive"}))
        .await;
    does!(backend.sweep(Sweep::All, 10));
    let everything = Filter::Prefix(String::new());
    match backend.records(&everything, None, 100).await {
        Ok(page) => {
            let foreign = page
                .items
                .iter()
                .find(|record| record.key.as_str() == "foreign");
            does!(backend.evict(foreign.unwrap()));
        }
        Err(error) => failures.push(error),
    }
    does!(backend.release(held.grant, &held.claims));
    does!(backend.acquire(&left));
    does!(backend.end(&[session], End::Close));
    does!(backend.adopt(
        session,
        0,
        id(rand::random()),
        Adopt::Take,
        Incarnation::UNKNOWN
    ));
    does!(backend.settle(session, 1, session, Incarnation::UNKNOWN));
    let note = Note::new(NoteKind::Revoke, label.clone(), label, UNIX_EPOCH);
    does!(backend.note(session, &note));
    does!(backend.end(&[session], End::Discard));
    does!(backend.sweep(Sweep::Session(session), 10));
    failures
}
