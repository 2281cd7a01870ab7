//! The ways to the server: a path prefix, a proxy, bearer tokens, several nodes, a transport of the program's own. Needs a
//! server, before which proxies of this test stand.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod front;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use elasticsearch::Elasticsearch;
use elasticsearch::auth::Credentials;
use elasticsearch::http::headers::{HeaderName, HeaderValue};
use elasticsearch::http::transport::{MultiNodeConnectionPool, TransportBuilder};
use front::{Asked, Front, authorization, has_tls, locks_once, who};
use lockcore::backend::{End, Filter, Inspect, Namespace, SessionStore};
use lockcore::{Error, ErrorKind, Label, Life, LockKey, Locks, SessionId};
use lockcore_es::{BearerToken, EsBackend, EsConfig};
use serde_json::{Map, Value, json};
use support::access::{Access, PASSWORD};
use support::{Space, connect, connect_to, said};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use url::Url;

/// What is no part of anything that is said.
const SECRET: &str = "Zq7-correct-horse";

fn keeps_secret(error: &Error) {
    assert!(!said(error).contains(SECRET), "{}", said(error));
}

async fn reads(backend: &EsBackend) -> Result<(), Error> {
    let everything = Filter::Prefix(String::new());
    backend.records(&everything, None, 1).await.map(drop)
}

/// A port where nobody listens.
async fn gone() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn a_reverse_proxy_has_the_server_below_a_path() {
    let space = Space::new();
    let front = Front::new(|asked| match asked.target.strip_prefix("/search/v1/") {
        Some(rest) => {
            asked.target = format!("/{rest}");
            None
        }
        None => Some((404, "<html>nothing is here</html>".to_owned())),
    })
    .await;
    let (who, port) = (who(), front.port);
    for path in ["/search/v1", "/search/v1/"] {
        let server = format!("elasticsearch://{who}127.0.0.1:{port}{path}");
        let url = space.url_at(&server).replace("//?", "/?");
        let backend = connect_to(&url).await.unwrap();
        locks_once(&backend, path.len() as u128).await;
    }
    assert!(front.asked().len() >= 6, "{}", front.asked().len());
    let elsewhere = space.url_at(&format!("elasticsearch://{who}127.0.0.1:{port}"));
    assert!(connect_to(&elsewhere).await.is_err(), "without the path");
}

#[tokio::test]
async fn a_path_that_is_none_of_the_servers_is_told() {
    let space = Space::new();
    let mut url = Url::parse(&space.url_to_make()).unwrap();
    for path in ["index", "an/index"] {
        url.set_path(path);
        let error = connect_to(url.as_str()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{}", said(&error));
        // Elasticsearch 7 takes three parts for a document, and then only does not know the query.
        let told = error.to_string();
        let known = told.contains("prefix of a reverse proxy");
        assert!(known || path != "index", "{told}");
    }
}

#[tokio::test]
async fn a_proxy_is_the_way_to_the_server() {
    let space = Space::new();
    let both = BASE64_STANDARD.encode(format!("me:{SECRET}@"));
    let expected = format!("Basic {both}");
    let proxy = Front::new(move |asked| {
        let known = asked.header("proxy-authorization") == Some(&expected);
        (!known).then(|| (407, String::new()))
    })
    .await;
    // A name that nobody but the proxy knows; a certificate is for the right name, and only the proxy has the right port.
    let mut server = Url::parse(&space.url_to_make()).unwrap();
    if has_tls() {
        server.set_port(Some(gone().await)).unwrap();
    } else {
        server.set_host(Some("search.invalid")).unwrap();
    }
    let by = |proxy: &str| {
        let config = EsConfig::parse(server.as_str()).unwrap();
        config.proxy(proxy).unwrap()
    };
    let port = proxy.port;
    let config = by(&format!("http://me:{SECRET}%40@127.0.0.1:{port}"));
    assert!(!format!("{config:?}").contains(SECRET), "{config:?}");
    let backend = EsBackend::connect(config).await.unwrap();
    locks_once(&backend, 1).await;
    let method = |asked: &Asked| asked.method == "CONNECT";
    assert!(proxy.asked().iter().all(|asked| method(asked) == has_tls()));

    let option = format!("&proxy=http://me:{SECRET}%2540%40127.0.0.1:{port}");
    let backend = connect_to(&format!("{server}{option}")).await.unwrap();
    reads(&backend).await.unwrap();

    let wrong = by(&format!("http://me:{SECRET}@127.0.0.1:{port}"));
    let error = EsBackend::connect(wrong).await.unwrap_err();
    // Where there is no tunnel, nothing was sent.
    let kind = match has_tls() {
        true => ErrorKind::Unavailable,
        false => ErrorKind::Unauthorized,
    };
    assert_eq!(error.kind(), kind, "{}", said(&error));
    keeps_secret(&error);
    let nobody = by(&format!("http://me:{SECRET}@127.0.0.1:{}", gone().await));
    let error = EsBackend::connect(nobody).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", said(&error));
    keeps_secret(&error);
}

/// A role without a right, a block of the index, or too many reads at the server: what is written is answered.
#[tokio::test]
async fn who_waits_where_nothing_can_be_read_asks_seldom() {
    let space = Space::new();
    let is_refused = Arc::new(AtomicBool::new(false));
    let refuses = Arc::clone(&is_refused);
    let front = Front::new(move |asked| {
        let reads = asked.target.contains("_mget") && refuses.load(Ordering::Relaxed);
        let body = json!({"error": {"type": "security_exception", "reason": "no"}, "status": 403});
        reads.then(|| (403, body.to_string()))
    })
    .await;
    let holds = Locks::builder(connect(&space).await).build().unwrap();
    let _guard = holds.lock("k").acquire().await.unwrap();
    let server = format!("elasticsearch://{}127.0.0.1:{}", who(), front.port);
    let backend = connect_to(&space.url_at(&server)).await.unwrap();
    let locks = Locks::builder(backend).build().unwrap();
    let waits = Box::pin(locks.lock("k").acquire().into_future());
    let counts = async {
        let polls = || {
            front
                .asked()
                .iter()
                .any(|asked| asked.target.contains("_mget"))
        };
        while !polls() {
            // From one look whether it stands in line to the next.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        is_refused.store(true, Ordering::Relaxed);
        let before = front.asked().len();
        // The time over which requests are counted.
        tokio::time::sleep(Duration::from_secs(4)).await;
        front.asked().len() - before
    };
    let asked = tokio::select! {
        waited = waits => panic!("it waits still: {waited:?}"),
        asked = counts => asked,
    };
    // Two rounds a second, each of a few requests; without a pause there would be hundreds.
    assert!(asked > 0, "it polls");
    assert!(asked < 80, "{asked} requests in 4 s");
}

#[tokio::test]
async fn the_nodes_that_are_named_are_all_that_are_asked() {
    let space = Space::new();
    let (first, second) = (Front::new(|_| None).await, Front::new(|_| None).await);
    let who = who();
    let server = format!(
        "elasticsearch://{who}127.0.0.1:{},127.0.0.1:{}",
        first.port, second.port
    );
    let backend = connect_to(&space.url_at(&server)).await.unwrap();
    locks_once(&backend, 1).await;
    let asked = first.asked();
    assert!(asked.len() >= 3 && second.asked().is_empty());
    drop(first);
    locks_once(&backend, 2).await;
    let others = second.asked();
    assert!(!others.is_empty());
    for asked in asked.iter().chain(&others) {
        let target = &asked.target;
        assert!(target.contains(&space.namespace), "{target}");
    }
}

/// One that is cut off from the others has what was there before, and answers all the same.
#[tokio::test]
async fn what_is_listed_is_read_at_the_node_that_has_refreshed() {
    let space = Space::new();
    let takes_more: Arc<Mutex<Option<AbortHandle>>> = Arc::default();
    let last = Arc::clone(&takes_more);
    // After that nobody listens there.
    let first = Front::new(move |asked| {
        if asked.target.contains("refresh=true") {
            last.lock().unwrap().take().unwrap().abort();
        }
        None
    });
    let (first, second) = (first.await, Front::new(|_| None).await);
    *takes_more.lock().unwrap() = Some(first.takes_more());
    let server = format!(
        "elasticsearch://{}127.0.0.1:{},127.0.0.1:{}",
        who(),
        first.port,
        second.port
    );
    let backend = connect_to(&space.url_at(&server)).await.unwrap();
    let error = backend.sessions(None, 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", said(&error));
    assert!(second.asked().is_empty(), "{:?}", second.asked());
    // The next one asks there.
    backend.sessions(None, 10).await.unwrap();
    assert!(!second.asked().is_empty());
}

/// What a node answers to the items of a `_bulk` when it is cut off from the others.
fn can_do_nothing(asked: &Asked) -> front::Instead {
    let lines = asked.body.split(|byte| *byte == b'\n');
    let lines = lines.filter_map(|line| serde_json::from_slice::<Map<String, Value>>(line).ok());
    let verbs = ["create", "delete", "index", "update"];
    let items = lines.filter_map(|line| {
        let (verb, about) = line.into_iter().next()?;
        let failed = json!({
            "_index": "i", "_id": about["_id"], "status": 503,
            "error": {"type": "unavailable_shards_exception", "reason": "primary shard is not active"},
        });
        verbs.contains(&verb.as_str()).then(|| json!({verb: failed}))
    });
    let items: Vec<Value> = items.collect();
    let answer = json!({"took": 1, "errors": true, "items": items});
    Some((200, answer.to_string()))
}

/// It takes connections and requests all the same.
#[tokio::test]
async fn a_node_that_is_cut_off_is_left() {
    let space = Space::new();
    let is_cut_off = Arc::new(AtomicBool::new(false));
    let cut_off = Arc::clone(&is_cut_off);
    let first = Front::new(move |asked| {
        if !cut_off.load(Ordering::Relaxed) {
            return None;
        }
        let path = asked.target.split('?').next().unwrap_or_default();
        match path.rsplit('/').next() {
            Some("_bulk") => can_do_nothing(asked),
            _ => None,
        }
    });
    let (first, second) = (first.await, Front::new(|_| None).await);
    let server = format!(
        "elasticsearch://{}127.0.0.1:{},127.0.0.1:{}",
        who(),
        first.port,
        second.port
    );
    for lists in [false, true] {
        is_cut_off.store(false, Ordering::Relaxed);
        let backend = connect_to(&space.url_at(&server)).await.unwrap();
        let session = SessionId::new(1 + u128::from(lists));
        let opens = async || {
            let (label, ttl) = (Label::parse("").unwrap(), Duration::from_secs(60));
            backend.open(session, &label, ttl).await.map(drop)
        };
        let asks = async || match lists {
            true => backend.sessions(None, 10).await.map(drop),
            false => opens().await,
        };
        asks().await.unwrap();
        is_cut_off.store(true, Ordering::Relaxed);
        let before = second.asked().len();
        let error = asks().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{}", said(&error));
        assert_eq!(second.asked().len(), before);
        asks().await.unwrap();
        assert!(second.asked().len() > before);
    }
}

/// It waits for a master before it says which index there is, for longer than a request may take.
#[tokio::test]
async fn who_connects_finds_a_node_that_is_not_cut_off() {
    let space = Space::new();
    connect_to(&space.url_to_make()).await.unwrap();
    let refuses = Front::new(|_| {
        let cause = json!({"type": "master_not_discovered_exception", "reason": null});
        Some((503, json!({"status": 503, "error": cause}).to_string()))
    });
    let (refuses, works) = (refuses.await, Front::new(|_| None).await);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().unwrap().port();
    for cut_off in [refuses.port, silent] {
        let url = |others: &str| {
            let nodes = format!("elasticsearch://{}127.0.0.1:{cut_off}{others}", who());
            space.url_at(&nodes).replace("=20000", "=4000")
        };
        let both = url(&format!(",127.0.0.1:{}", works.port));
        let backend = connect_to(&both).await.unwrap();
        backend.sessions(None, 10).await.unwrap();
        let error = connect_to(&url("")).await.unwrap_err();
        let expected = [ErrorKind::Indeterminate, ErrorKind::Unavailable];
        assert!(expected.contains(&error.kind()), "{error:?}");
    }
}

/// Where nothing may be written, which says more.
#[tokio::test]
async fn what_not_all_copies_have_refreshed_is_not_listed() {
    let space = Space::new();
    let answers = Arc::new(Mutex::new(None));
    let instead = Arc::clone(&answers);
    let cause =
        json!({"type": "cluster_block_exception", "reason": "[FORBIDDEN/8/index write (api)]"});
    let item = json!({"_id": "~mark", "status": 403, "error": cause});
    let refused = json!({"took": 1, "errors": true, "items": [{"index": item}]}).to_string();
    let front = Front::new(move |asked| {
        let answer: &str = (*instead.lock().unwrap())?;
        let is_mark = asked.body.windows(6).any(|it| it == b"\"~mark");
        match is_mark && asked.target.contains("_bulk") {
            true => Some((200, refused.clone())),
            false => asked
                .target
                .ends_with("/_refresh")
                .then(|| (200, answer.to_owned())),
        }
    });
    let front = front.await;
    let server = format!("elasticsearch://{}127.0.0.1:{}", who(), front.port);
    let backend = connect_to(&space.url_at(&server)).await.unwrap();
    let one = Filter::Key(LockKey::parse("k").unwrap());
    for refreshed in [
        None,
        Some(r#"{"_shards":{"total":3,"successful":3,"failed":0}}"#),
    ] {
        *answers.lock().unwrap() = refreshed;
        backend.sessions(None, 10).await.unwrap();
        backend.records(&one, None, 10).await.unwrap();
    }
    for answer in [
        r#"{"_shards":{"total":3,"successful":1,"failed":2}}"#,
        // There is no primary.
        r#"{"_shards":{"total":3,"successful":0,"failed":0}}"#,
    ] {
        *answers.lock().unwrap() = Some(answer);
        for error in [
            backend.sessions(None, 10).await.unwrap_err(),
            backend.records(&one, None, 10).await.unwrap_err(),
            reads(&backend).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Indeterminate, "{}", said(&error));
            assert!(said(&error).contains("only a part was refreshed"));
        }
    }
}

/// A node that was stopped, or cut off, and does not know that others have gone on answers what it had.
#[tokio::test]
async fn what_a_copy_says_that_was_left_behind_is_not_believed() {
    let space = Space::new();
    let marks = Arc::new(Mutex::new(None));
    let mark = Arc::clone(&marks);
    let front = Front::new(move |asked| {
        let mark: Value = mark.lock().unwrap().clone()?;
        let asked = asked.target.contains("/_mget").then_some(&asked.body)?;
        let asked: Value = serde_json::from_slice(asked).unwrap();
        let document = |id: &Value| match id == "~mark" {
            true => mark.clone(),
            false => json!({"_id": id, "found": false}),
        };
        let documents = asked["ids"].as_array().unwrap().iter().map(document);
        Some((
            200,
            json!({"docs": documents.collect::<Vec<_>>()}).to_string(),
        ))
    });
    let front = front.await;
    let server = format!("elasticsearch://{}127.0.0.1:{}", who(), front.port);
    let backend = connect_to(&space.url_at(&server)).await.unwrap();
    let (label, ttl) = (Label::parse("").unwrap(), Duration::from_secs(60));
    backend.open(SessionId::new(1), &label, ttl).await.unwrap();
    let one = Filter::Key(LockKey::parse("k").unwrap());
    let of = |term: u64, number: u64| json!({"_id": "~mark", "found": true, "_primary_term": term, "_seq_no": number});
    for (behind, mark) in [
        (true, json!({"_id": "~mark", "found": false})),
        (true, of(1, 0)),
        // One that nobody acknowledged.
        (true, of(0, 1_000)),
        (false, of(1, 1_000)),
        (false, of(2, 0)),
    ] {
        *marks.lock().unwrap() = Some(mark.clone());
        let sessions = backend.sessions(None, 10).await.map(drop);
        let records = backend.records(&one, None, 10).await.map(drop);
        for answer in [sessions, records] {
            assert_eq!(answer.is_err(), behind, "{mark}: {answer:?}");
            if let Err(error) = answer {
                assert_eq!(error.kind(), ErrorKind::Indeterminate, "{}", said(&error));
                assert!(
                    said(&error).contains("behind the others"),
                    "{}",
                    said(&error)
                );
            }
        }
    }
}

/// A copy that was not there to be refreshed is counted neither as refreshed nor as failed, and may be searched.
#[tokio::test]
async fn a_session_is_listed_as_its_record_says() {
    let space = Space::new();
    let session = SessionId::new(1);
    let front = Front::new(move |asked| {
        let searched = asked.target.contains("/_search");
        let living = json!({"session": session.to_string(), "label": "", "ttl": 60000, "state": "living",
            "seq": 1, "retired": [], "adoption": 0});
        let id = format!("~session/{session}");
        let answer = json!({"timed_out": false, "_shards": {"successful": 1, "failed": 0},
            "hits": {"hits": [{"_id": id, "_source": living, "sort": [session.to_string()]}]}});
        searched.then(|| (200, answer.to_string()))
    });
    let front = front.await;
    let server = format!("elasticsearch://{}127.0.0.1:{}", who(), front.port);
    let backend = connect_to(&space.url_at(&server)).await.unwrap();
    let (label, ttl) = (Label::parse("").unwrap(), Duration::from_secs(60));
    backend.open(session, &label, ttl).await.unwrap();
    let listed = async || backend.sessions(None, 10).await.unwrap().items;
    assert_eq!(listed().await[0].life, Life::Living);
    backend.end(&[session], End::Close).await.unwrap();
    let listed = listed().await;
    assert!(listed.iter().all(|it| it.life == Life::Dead), "{listed:?}");
}

/// The gate of a proxy that knows a bearer token, and says itself who that is to the server.
fn knows(token: &Arc<Mutex<String>>) -> impl Fn(&mut Asked) -> front::Instead + use<> {
    let token = Arc::clone(token);
    move |asked| {
        let known = asked.authorization() == format!("Bearer {}", token.lock().unwrap());
        asked.is_by(authorization());
        (!known).then(|| (401, String::new()))
    }
}

#[tokio::test]
async fn a_bearer_token_is_replaced_while_the_program_runs() {
    let space = Space::new();
    let current = Arc::new(Mutex::new(format!("{SECRET}1")));
    let front = Front::new(knows(&current)).await;
    let url = space.url_at(&format!("elasticsearch://127.0.0.1:{}", front.port));
    let fixed = connect_to(&format!("{url}&bearer_token={SECRET}1"))
        .await
        .unwrap();
    locks_once(&fixed, 1).await;
    let token = BearerToken::new(format!("{SECRET}1"));
    let config = EsConfig::parse(&url).unwrap().bearer(token.clone());
    assert!(!format!("{config:?} {token:?}").contains(SECRET));
    let backend = EsBackend::connect(config).await.unwrap();
    assert!(!format!("{backend:?}").contains(SECRET));
    reads(&backend).await.unwrap();

    *current.lock().unwrap() = format!("{SECRET}2");
    for backend in [&backend, &fixed] {
        let error = reads(backend).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{}", said(&error));
        keeps_secret(&error);
    }
    token.replace(format!("{SECRET}2"));
    locks_once(&backend, 2).await;
    token.replace(format!("{SECRET}\n2"));
    let error = reads(&backend).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{}", said(&error));
    keeps_secret(&error);
}

#[tokio::test]
async fn a_bearer_token_is_read_again_from_its_file() {
    let space = Space::new();
    let current = Arc::new(Mutex::new(format!("{SECRET}1")));
    let front = Front::new(knows(&current)).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, format!("{SECRET}1\n")).unwrap();
    let url = space.url_at(&format!("elasticsearch://127.0.0.1:{}", front.port));
    let url = format!("{url}&bearer_token_file={}", path.display());
    let backend = connect_to(&url).await.unwrap();
    locks_once(&backend, 1).await;

    *current.lock().unwrap() = format!("{SECRET}2");
    let error = reads(&backend).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{}", said(&error));
    keeps_secret(&error);
    std::fs::write(&path, format!("{SECRET}2\n")).unwrap();
    let before = front.asked().len();
    reads(&backend).await.unwrap();
    reads(&backend).await.unwrap();
    let asked = front.asked().split_off(before);
    let old = asked
        .iter()
        .filter(|asked| asked.authorization() == format!("Bearer {SECRET}1"));
    assert_eq!(old.count(), 1, "only the first of {}", asked.len());

    std::fs::write(&path, "").unwrap();
    for path in [path, directory.path().join("none")] {
        let config = EsConfig::parse(&url).unwrap().bearer_file(&path);
        let error = EsBackend::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{}", said(&error));
    }
}

#[tokio::test]
async fn the_programs_own_transport_is_used() {
    let space = Space::new();
    let fronts = [Front::new(|_| None).await, Front::new(|_| None).await];
    let node = |port: u16| Url::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    let mut nodes: Vec<Url> = fronts.iter().map(|front| node(front.port)).collect();
    nodes.push(node(gone().await));
    let pool = MultiNodeConnectionPool::round_robin(nodes, None);
    let header = HeaderName::from_static("x-opaque-id");
    let mut builder = TransportBuilder::new(pool)
        .disable_proxy()
        .header(header, HeaderValue::from_static("the-program"));
    let access = Access::get();
    if access.is_asked_for() {
        let name = access.to_make.name().to_owned();
        builder = builder.auth(Credentials::Basic(name, PASSWORD.to_owned()));
    }
    let client = Elasticsearch::new(builder.build().unwrap());
    let ours = || {
        let namespace = Namespace::parse(&space.namespace).unwrap();
        EsConfig::with_client(&client)
            .namespace(namespace)
            .replicas(0)
    };
    assert!(!format!("{:?}", ours()).contains(PASSWORD));
    let backend = EsBackend::connect(ours()).await.unwrap();
    for number in 1..4 {
        locks_once(&backend, number).await;
    }
    for front in &fronts {
        let asked = front.asked();
        assert!(asked.len() >= 3, "{}", asked.len());
        for asked in asked {
            assert_eq!(asked.header("x-opaque-id"), Some("the-program"));
            assert!(asked.target.contains(&space.namespace), "{}", asked.target);
        }
    }

    // What is said of us here is said in its place.
    let other = ours().bearer("another");
    let answer = EsBackend::connect(other).await;
    assert_eq!(answer.is_err(), access.is_asked_for());
    let last = |front: &Front| front.asked().last().unwrap().authorization() == "Bearer another";
    assert!(fronts.iter().any(last));

    for config in [ours().ca("/ca.pem"), ours().proxy("http://h").unwrap()] {
        let error = EsBackend::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{}", said(&error));
    }
}
