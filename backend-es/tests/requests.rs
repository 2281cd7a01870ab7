//! Which requests the whole client makes of the server, written down on the way. Needs a server.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod front;
mod support;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use elasticsearch::http::Method;
use futures_util::future::join_all;
use lockcore::backend::{
    Acquired, ClaimStore, End, Filter, Inspect, SessionStore, Stood, Sweep, Wakeups,
};
use lockcore::{AcquireError, Attempt, ErrorKind, Guard, LockKey, Locks, Released};
use lockcore_es::{EsBackend, EsConfig};
use support::{Space, connect, granted, open, raw_text, refused, request};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A request as it was sent.
#[derive(Debug, Clone)]
struct Asked {
    /// Method and path, without the query.
    what: String,
    query: String,
    body: String,
}

impl Asked {
    /// The documents that a bulk is about, in order.
    fn ids(&self) -> Vec<String> {
        let lines = self.body.lines().map(serde_json::from_str);
        let lines = lines.map(|line: Result<serde_json::Value, _>| line.unwrap());
        let id = |line: serde_json::Value| {
            let (_, action) = line.as_object()?.iter().next()?;
            action["_id"].as_str().map(str::to_owned)
        };
        lines.filter_map(id).collect()
    }
}

/// A request with this in its body is told, and passed on when that is.
struct Held {
    with: &'static str,
    arrived: oneshot::Sender<()>,
    goes_on: oneshot::Receiver<()>,
}

/// Takes requests, writes them down and passes them on.
struct Recorder {
    port: u16,
    on_the_way: Arc<OnTheWay>,
    clients: AtomicU64,
}

/// What becomes of requests on their way.
struct OnTheWay {
    asked: Mutex<Vec<Asked>>,
    held: Mutex<Option<Held>>,
    /// The next request with this in its body is refused, as by a server that is busy.
    refused: Mutex<Option<&'static str>>,
    /// Larger bodies are refused, as a proxy does.
    limit: AtomicUsize,
    /// Each request has a connection of its own.
    closes: AtomicBool,
}

impl Recorder {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let on_the_way = Arc::new(OnTheWay {
            asked: Mutex::default(),
            held: Mutex::default(),
            refused: Mutex::default(),
            limit: AtomicUsize::new(usize::MAX),
            closes: AtomicBool::new(false),
        });
        let recorder = Self {
            port,
            on_the_way: Arc::clone(&on_the_way),
            clients: AtomicU64::new(1),
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the recorder of a test belongs to nobody else"
        )]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass_on(stream, Arc::clone(&on_the_way)));
            }
        });
        recorder
    }

    async fn backend(&self, space: &Space) -> Arc<EsBackend> {
        self.backend_within(space, 20_000).await
    }

    /// Each request may take so many milliseconds.
    async fn backend_within(&self, space: &Space, timeout_ms: u64) -> Arc<EsBackend> {
        let url = space.url_at(&format!("elasticsearch://127.0.0.1:{}", self.port));
        let url = url.replace("timeout_ms=20000", &format!("timeout_ms={timeout_ms}"));
        let backend = EsBackend::connect(EsConfig::parse(&url).unwrap()).await;
        backend.unwrap()
    }

    async fn locks(&self, space: &Space, ttl: Duration) -> Locks {
        let backend = self.backend(space).await;
        // Some sessions sweep when they begin, by chance: those of these seeds do not.
        let seed = self.clients.fetch_add(1, Ordering::Relaxed);
        let builder = Locks::builder(backend).ttl(ttl).seed(seed);
        builder.build().unwrap()
    }

    /// What was asked since this was called last.
    fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.on_the_way.asked.lock().unwrap())
    }

    /// Holds the next request with this in its body: says when it has arrived, and is told when it goes on.
    fn hold(&self, with: &'static str) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((arrived, is_there), (go, goes_on)) = (oneshot::channel(), oneshot::channel());
        *self.on_the_way.held.lock().unwrap() = Some(Held {
            with,
            arrived,
            goes_on,
        });
        (is_there, go)
    }
}

async fn pass_on(mut stream: TcpStream, on_the_way: Arc<OnTheWay>) {
    while let Some(next) = front::read(&mut stream).await {
        let (method, target) = (next.method, next.target);
        let body = String::from_utf8(next.body).unwrap();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        on_the_way.asked.lock().unwrap().push(Asked {
            what: format!("{method} {path}"),
            query: query.to_owned(),
            body: body.clone(),
        });
        let held = on_the_way
            .held
            .lock()
            .unwrap()
            .take_if(|held| body.contains(held.with));
        if let Some(held) = held {
            held.arrived.send(()).unwrap();
            held.goes_on.await.unwrap();
        }
        let method = match method.as_str() {
            "GET" => Method::Get,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            other => panic!("{other}"),
        };
        let refused = {
            let mut refuses = on_the_way.refused.lock().unwrap();
            refuses.take_if(|with| body.contains(*with)).is_some()
        };
        let (status, answer) = if refused {
            let cause = r#"{"type":"es_rejected_execution_exception","reason":"busy"}"#;
            (429, format!(r#"{{"status":429,"error":{cause}}}"#))
        } else if body.len() > on_the_way.limit.load(Ordering::Relaxed) {
            (413, "<html>Request Entity Too Large</html>".to_owned())
        } else {
            raw_text(method, &target, body).await
        };
        let closes = on_the_way.closes.load(Ordering::Relaxed);
        let connection = if closes { "close" } else { "keep-alive" };
        let head = format!(
            "HTTP/1.1 {status} Passed on\r\ncontent-type: application/json\r\nconnection: {connection}\r\n\
             content-length: {}\r\n\r\n",
            answer.len()
        );
        if stream.write_all((head + &answer).as_bytes()).await.is_err() || closes {
            return;
        }
    }
}

type Acquisition<'a> = Pin<Box<dyn Future<Output = Result<Guard, AcquireError>> + 'a>>;

async fn back(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

/// Observers of an election look at their key twice a second, and `watch` at sessions.
#[tokio::test]
async fn what_is_looked_up_by_its_id_refreshes_nothing() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let locks = recorder.locks(&space, Duration::from_secs(300)).await;
    let guard = locks.lock("k").acquire().await.unwrap();
    let backend = recorder.backend(&space).await;
    recorder.take();
    // Both see what was written just now.
    let one = Filter::Key(LockKey::parse("k").unwrap());
    let page = backend.records(&one, None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
    let states = backend.session_states(&[guard.session()]).await.unwrap();
    assert!(states[0].is_some());
    let asked = recorder.take();
    assert_eq!(asked.len(), 5, "{asked:?}");
    assert!(
        asked.iter().all(|asked| !asked.query.contains("refresh")),
        "{asked:?}"
    );
    // What is found by a search has to be refreshed.
    backend.sessions(None, 10).await.unwrap();
    let asked = recorder.take();
    assert!(
        asked.iter().any(|asked| asked.query.contains("refresh")),
        "{asked:?}"
    );
    back(guard).await;
}

#[tokio::test]
async fn a_batch_is_one_request_and_its_release_another_and_nothing_is_refreshed() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let locks = recorder.locks(&space, Duration::from_secs(300)).await;
    // The session is opened by the first.
    back(locks.lock("first").acquire().await.unwrap()).await;
    recorder.take();
    let bulk = format!("POST /{}/_bulk", space.namespace);
    let takes = async |acquire: usize, release: usize, acquisition: Acquisition<'_>| {
        let guard = acquisition.await.unwrap();
        let acquired = recorder.take();
        back(guard).await;
        for (asked, requests) in [(acquired, acquire), (recorder.take(), release)] {
            let what: Vec<&str> = asked.iter().map(|asked| asked.what.as_str()).collect();
            assert_eq!(what, vec![bulk.as_str(); requests]);
            assert!(asked.iter().all(|asked| !asked.query.contains("refresh")));
        }
    };
    let deep: String = (0..32).map(|n| format!("/{n}")).collect();
    let ids = |count: u32| (0..count).map(|n| format!("document-{n}"));
    takes(1, 1, Box::pin(locks.lock("k").acquire())).await;
    takes(1, 1, Box::pin(locks.semaphore("s", 2).acquire())).await;
    takes(1, 1, Box::pin(locks.tree().write("/a/b/c/d/e").acquire())).await;
    takes(
        1,
        1,
        Box::pin(locks.tree().write("/a/b").read("/c").acquire()),
    )
    .await;
    takes(1, 1, Box::pin(locks.tree().write(&deep).acquire())).await;
    takes(1, 1, Box::pin(locks.documents(ids(31)).acquire())).await;
    takes(1, 1, Box::pin(locks.documents(ids(100)).acquire())).await;
    // Two batches; of what is released, a script runs for each, so it is sent in parts of 500.
    takes(2, 5, Box::pin(locks.documents(ids(2_001)).acquire())).await;
}

/// Whatever is asked while a request is under way goes together, and each has an answer of its own.
/// Which takes the server less, and is a request in vain where somebody has it: then the next ones are not tried so.
#[tokio::test]
async fn a_lock_alone_is_tried_as_a_new_document_unless_others_were_there() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let backend = recorder.backend(&space).await;
    let (one, two) = (open(&backend, 1).await, open(&backend, 2).await);
    let mut n = 0;
    let mut asks = async |session, key: &str| {
        n += 1;
        recorder.take();
        let asked = request(session, n, &[&format!("create {key}")]);
        let granted = backend.acquire(&asked).await.unwrap();
        let bodies = recorder.take().into_iter().map(|asked| asked.body);
        let bodies: Vec<String> = bodies.collect();
        let creates = bodies.iter().filter(|it| it.contains(r#"{"create":"#));
        let is_granted = matches!(granted, Acquired::Acquired(_));
        (is_granted, creates.count(), bodies.len())
    };
    assert_eq!(asks(one, "a").await, (true, 1, 1));
    assert_eq!(asks(one, "b").await, (true, 1, 1));
    let (granted, creates, sent) = asks(two, "a").await;
    assert_eq!((granted, creates, sent), (false, 1, 3));
    for key in 0..16 {
        assert_eq!(asks(one, &key.to_string()).await, (true, 0, 1), "{key}");
    }
    assert_eq!(asks(one, "c").await, (true, 1, 1));
}

#[tokio::test]
async fn what_is_asked_meanwhile_is_one_request_for_all() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let backend = recorder.backend(&space).await;
    let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
    let mut wanted: Vec<_> = (1..11).map(|n| (one, n, format!("create k{n}"))).collect();
    wanted.extend((1..11).map(|n| (other, n, format!("create l{n}"))));
    wanted.extend([
        (other, 11, "create k1".to_owned()),
        (one, 11, "create m".to_owned()),
        (other, 12, "create m".to_owned()),
    ]);
    let requests = wanted
        .iter()
        .map(|(session, n, key)| request(*session, *n, &[key]));
    let requests: Vec<_> = requests.collect();
    recorder.take();
    let asked = requests.iter().map(|request| backend.acquire(request));
    let answers = join_all(asked).await;
    let asked = recorder.take();
    // The first alone, the others together; whoever is refused asks once more, when it has looked who is in the way.
    assert!(asked.len() <= 2 + 4, "{} requests", asked.len());
    let mut tokens = Vec::new();
    let mut granted = Vec::new();
    for (answer, request) in answers.iter().zip(&requests) {
        match answer {
            Ok(Acquired::Acquired(token)) => {
                tokens.push(*token);
                granted.push(request);
            }
            Ok(Acquired::Busy(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(granted.len(), 21, "each key has one holder");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), granted.len());
    let confirmed = requests
        .iter()
        .map(|it| backend.confirm(it.grant, &it.claims));
    for (confirmed, request) in join_all(confirmed).await.into_iter().zip(&requests) {
        let holds = granted.iter().any(|granted| granted.grant == request.grant);
        assert_eq!(confirmed.unwrap(), holds, "{}", request.grant);
    }
    recorder.take();
    let released = granted
        .iter()
        .map(|it| backend.release(it.grant, &it.claims));
    for stood in join_all(released).await {
        assert_eq!(stood.unwrap(), Stood::Held);
    }
    let asked = recorder.take();
    assert!(asked.len() <= 4, "{} requests", asked.len());
}

/// Nobody knows what became of any of them.
#[tokio::test]
async fn what_is_asked_together_and_not_answered_is_in_doubt_for_each() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let backend = recorder.backend_within(&space, 5_000).await;
    let session = open(&backend, 1).await;
    // The first of all takes the server longer.
    granted(&backend, &request(session, 9, &["create first"])).await;
    let requests: Vec<_> = (1..6)
        .map(|n| request(session, n, &[&format!("create k{n}")]))
        .collect();
    let (arrived, never) = recorder.hold("\"k3\"");
    let asked = requests.iter().map(|request| backend.acquire(request));
    let answers = join_all(asked).await;
    arrived.await.unwrap();
    drop(never);
    assert!(
        matches!(answers[0], Ok(Acquired::Acquired(_))),
        "{:?}",
        answers[0]
    );
    for answer in &answers[1..] {
        let error = answer.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        assert!(error.to_string().contains("no answer in time"), "{error}");
    }
}

#[tokio::test]
async fn a_renewal_is_one_request_for_all_guards() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let ttl = Duration::from_secs(3);
    let locks = recorder.locks(&space, ttl).await;
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(locks.lock(format!("k{n}")).acquire().await.unwrap());
    }
    recorder.take();
    let (since, mut asked) = (Instant::now(), Vec::new());
    // Long enough for two, on a slow machine longer.
    while asked.len() < 2 || since.elapsed() < ttl * 5 / 6 {
        assert!(since.elapsed() < ttl * 2, "renewals: {asked:?}");
        // From one look at what was asked to the next.
        tokio::time::sleep(Duration::from_millis(10)).await;
        asked.extend(recorder.take());
    }
    let thirds = since.elapsed().as_millis() / (ttl / 3).as_millis();
    assert!(asked.len() as u128 <= thirds + 1, "{asked:?}");
    let bulk = format!("POST /{}/_bulk", space.namespace);
    for asked in asked {
        assert_eq!(asked.what, bulk);
        assert!(!asked.query.contains("refresh"), "{asked:?}");
        assert!(
            matches!(asked.ids().as_slice(), [by_whom, id] if by_whom == "~store" && id.starts_with("~session/"))
        );
    }
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

#[tokio::test]
async fn who_waits_looks_with_one_request_and_sets_up_its_watch_once() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let ttl = Duration::from_secs(300);
    let holder = recorder.locks(&space, ttl).await;
    let waiter = recorder.locks(&space, ttl).await;
    let held = holder.lock("k").acquire().await.unwrap();
    let Attempt::Busy(_) = waiter.lock("k").try_acquire().await.unwrap() else {
        panic!("two holders");
    };
    recorder.take();
    let time = Duration::from_secs(3);
    assert!(waiter.lock("k").wait(time).acquire().await.is_err());
    let asked = recorder.take();
    let of = |what: &str| {
        let what = format!("POST /{}/{what}", space.namespace);
        let asked = asked.iter().filter(move |asked| asked.what == what);
        asked.map(|asked| asked.body.as_str()).collect::<Vec<_>>()
    };
    let (bulks, reads) = (of("_bulk"), of("_mget"));
    assert_eq!(bulks.len() + reads.len(), asked.len());
    // It asks by itself, too, of which each is two: who is in the way, and whether their sessions are due.
    assert!(bulks.len() >= 6, "{bulks:?}");
    // The first two set the watch up: who is in the way, and do they count? The others look at both.
    assert_eq!(reads[0], r#"{"ids":["k"]}"#);
    assert!(reads[1].starts_with(r#"{"ids":["~session/"#), "{reads:?}");
    let looks = &reads[2..];
    let both = |read: &&str| read.starts_with(r#"{"ids":["k","~session/"#);
    assert!(looks.iter().all(both), "{looks:?}");
    // From one look to the next it takes 30 ms at least, and no more than 60 ms on a quick machine.
    assert!((5..=100).contains(&looks.len()), "{}", looks.len());
    back(held).await;
}

#[tokio::test]
async fn a_sweep_removes_what_it_has_found_and_nothing_that_was_written_since() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let backend = connect(&space).await;
    let (dead, living) = (open(&backend, 1).await, open(&backend, 2).await);
    for (n, key) in [(1, "create a"), (2, "create b")] {
        granted(&backend, &request(dead, n, &[key])).await;
    }
    backend.end(&[dead], End::Close).await.unwrap();
    let sweeper = recorder.backend(&space).await;
    let is_removal = r#"{"delete":"#;
    let (arrived, go) = recorder.hold(is_removal);
    let (since, later) = (
        request(living, 1, &["create a"]),
        request(living, 2, &["create b"]),
    );
    let (swept, ()) = tokio::join!(sweeper.sweep(Sweep::Session(dead), 100), async {
        arrived.await.unwrap();
        granted(&backend, &since).await;
        go.send(()).unwrap();
    });
    let swept = swept.unwrap();
    assert_eq!((swept.removed, swept.more), (1, true));
    assert!(backend.confirm(since.grant, &since.claims).await.unwrap());
    assert_eq!(space.document("b").await, None);

    // The same request once more, and late: neither finds the record that it was about.
    granted(&backend, &later).await;
    let asked = recorder.take();
    let removal = asked.iter().find(|asked| asked.body.contains(is_removal));
    let removal = removal.unwrap();
    assert_eq!(removal.ids(), ["a", "b"]);
    let path = format!("/{}/_bulk?{}", space.namespace, removal.query);
    let (status, answer) = raw_text(Method::Post, &path, removal.body.clone()).await;
    assert_eq!(status, 200, "{answer}");
    for held in [since, later] {
        assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
    }
}

#[tokio::test]
async fn each_record_is_told_only_of_the_dead_that_were_met_in_it() {
    const KEYS: u64 = 400;
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let backend = recorder.backend(&space).await;
    let dead = open(&backend, 1).await;
    for n in 1..=KEYS {
        granted(&backend, &request(dead, n, &[&format!("create k{n}")])).await;
    }
    backend.end(&[dead], End::Revoke).await.unwrap();
    let all: Vec<String> = (1..=KEYS).map(|n| format!("create k{n}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    recorder.take();
    granted(&backend, &request(open(&backend, 2).await, 1, &all)).await;
    let asked = recorder.take();
    let of_the_dead = format!("\"{dead}/");
    let told = |asked: &Asked| asked.body.matches(&of_the_dead).count() as u64;
    let told: Vec<u64> = asked.iter().map(told).collect();
    assert_eq!(told.iter().sum::<u64>(), KEYS, "{told:?}");
}

#[tokio::test]
async fn what_is_too_large_for_a_proxy_is_sent_in_halves() {
    const LIMIT: usize = 40 << 10;
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let locks = recorder.locks(&space, Duration::from_secs(300)).await;
    back(locks.lock("first").acquire().await.unwrap()).await;
    recorder.on_the_way.limit.store(LIMIT, Ordering::Relaxed);
    recorder.take();
    let ids = |count: u32| (0..count).map(|n| format!("document-{n:0>200}"));
    let held = locks.documents(ids(300)).acquire().await.unwrap();
    let other = locks.documents(ids(300)).try_acquire().await.unwrap();
    assert!(matches!(other, Attempt::Busy(_)));
    assert!(held.confirm().await.unwrap());
    back(held).await;
    let asked = recorder.take();
    let bulks = || {
        asked
            .iter()
            .filter(|asked| asked.what.ends_with("/_bulk"))
            .map(|asked| asked.body.len())
    };
    assert!(
        bulks().any(|length| length > LIMIT),
        "nothing was too large"
    );
    // Who answers is asked for in each.
    let parts = asked.iter().filter(|it| it.body.contains("reenter"));
    for part in parts.filter(|part| part.body.len() <= LIMIT) {
        assert_eq!(part.ids()[0], "~store", "{part:?}");
    }
    // What one item alone needs is too much: nothing is held, and what to do is said.
    recorder.on_the_way.limit.store(1 << 8, Ordering::Relaxed);
    let error = locks.lock("k").try_acquire().await.unwrap_err();
    assert!(
        error.to_string().contains("http.max_content_length"),
        "{error}"
    );
    recorder
        .on_the_way
        .limit
        .store(usize::MAX, Ordering::Relaxed);
    back(locks.documents(ids(300)).acquire().await.unwrap()).await;
    back(locks.lock("k").acquire().await.unwrap()).await;
}

/// A proxy takes a body of 1 MiB, unless it is told otherwise.
#[tokio::test]
async fn no_body_is_larger_than_a_proxy_takes() {
    const MOST: usize = 1 << 20;
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let backend = recorder.backend(&space).await;
    let keys: Vec<String> = (0..2_000).map(|n| format!("create {n:0>500}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let (dead, living) = (open(&backend, 1).await, open(&backend, 2).await);
    let left = request(dead, 1, &keys);
    let held = request(living, 1, &keys);
    let largest = |of: &str| {
        let asked = recorder.take();
        let bulks = asked.iter().filter(|asked| asked.body.contains(of));
        let largest = bulks.map(|asked| asked.body.len()).max().unwrap();
        assert!(largest <= MOST, "{of}: {largest}");
        // As many as that are sent at once: one more has 5 KiB at most.
        assert!(largest > MOST - (5 << 10), "{of}: {largest}");
    };
    recorder.take();
    granted(&backend, &left).await;
    largest(r#"{"create":"#);
    let busy = backend.acquire(&held).await.unwrap();
    assert!(matches!(busy, Acquired::Busy(_)), "{busy:?}");
    largest("reenter");
    backend.end(&[dead], End::Close).await.unwrap();
    let swept = backend.sweep(Sweep::Session(dead), 1_000_000).await;
    assert_eq!(swept.unwrap().removed, keys.len());
    // What is found at once is removed by two requests, at the same time.
    let asked = recorder.take();
    let removals = asked
        .iter()
        .filter(|asked| asked.body.contains(r#""if_seq_no":"#));
    let removed: Vec<usize> = removals
        .inspect(|asked| assert!(asked.body.len() <= MOST))
        .map(|asked| asked.ids().len())
        .collect();
    assert_eq!(removed, [keys.len() / 2; 2]);
    granted(&backend, &held).await;
    assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
    let released = backend.release(held.grant, &held.claims).await;
    assert_eq!(released.unwrap(), Stood::Held);
}

#[tokio::test]
async fn all_who_wait_in_a_process_look_together() {
    const KEYS: usize = 60;
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let ttl = Duration::from_secs(300);
    let (holder, waiter) = (
        recorder.locks(&space, ttl).await,
        recorder.locks(&space, ttl).await,
    );
    let key = |n: usize| format!("k{n}");
    let mut held = Vec::new();
    for n in 0..KEYS {
        held.push(holder.lock(key(n)).acquire().await.unwrap());
    }
    let wait = |n: usize| waiter.lock(key(n)).wait(Duration::from_secs(60)).acquire();
    let waits = join_all((0..KEYS).map(wait));
    let gives_back = async {
        let looks = |asked: &Asked| {
            let ids: serde_json::Value = serde_json::from_str(&asked.body).ok()?;
            let ids = ids["ids"].as_array()?;
            let of_keys = ids.iter().filter_map(|id| id.as_str()?.strip_prefix('k'));
            Some(of_keys.count())
        };
        // Each asks by itself once a second, and is alone for some looks: so most of them look together. All at once do so the
        // less often the longer the server takes for what they ask.
        let (mut together, mut others) = (0, 0);
        let since = Instant::now();
        while together < 20 {
            assert!(since.elapsed() < Duration::from_secs(30), "{together}");
            // From one count of the requests to the next.
            tokio::time::sleep(Duration::from_millis(10)).await;
            for keys in recorder.take().iter().filter_map(looks) {
                match keys > KEYS / 2 {
                    true => together += 1,
                    false => others += 1,
                }
            }
        }
        let took = since.elapsed();
        // They are 30 ms apart at least.
        assert!(
            together <= took.as_millis() / 30 + 2,
            "{together} in {took:?}"
        );
        let seconds = usize::try_from(took.as_secs()).unwrap() + 1;
        assert!(others <= 5 * KEYS * seconds, "{others} in {took:?}");
        for guard in held {
            back(guard).await;
        }
    };
    let (waited, ()) = tokio::join!(waits, gives_back);
    for guard in waited {
        back(guard.unwrap()).await;
    }
}

/// One who waits in a runtime of his own begins to look for all; while the server answers, his runtime stands still, or ends.
fn a_look_is_left(ends: bool) {
    let space = Space::new();
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    let second = Builder::new_multi_thread().enable_all().build().unwrap();
    let recorder = second.block_on(Recorder::new());
    // A connection stands still with the runtime in which it was opened: what is sent on it by others fails in time, too.
    recorder.on_the_way.closes.store(true, Ordering::Relaxed);
    let (backend, request) = second.block_on(async {
        let backend = recorder.backend_within(&space, 3_000).await;
        let request = request(open(&backend, 1).await, 1, &["create a"]);
        granted(&backend, &request).await;
        (backend, request)
    });
    let (arrived, go) = recorder.hold(r#"{"ids":["a","~session/"#);
    first.block_on(async {
        let watch = backend.watch(&request.claims).await.unwrap();
        tokio::select! {
            () = watch => panic!("nothing has changed"),
            it = arrived => it.unwrap(),
        }
    });
    go.send(()).unwrap();
    if ends {
        drop(first);
    }
    second.block_on(async {
        let watch = backend.watch(&request.claims).await.unwrap();
        let released = backend.release(request.grant, &request.claims).await;
        assert_eq!(released.unwrap(), Stood::Held);
        let woken = timeout(Duration::from_secs(30), watch).await;
        assert!(woken.is_ok(), "nobody looks");
    });
}

#[test]
fn a_runtime_that_stands_still_with_a_look_keeps_nobody_waiting() {
    a_look_is_left(false);
}

#[test]
fn a_runtime_that_ends_with_a_look_keeps_nobody_waiting() {
    a_look_is_left(true);
}

/// What a proxy sends once more, late: an attempt, and its undo.
#[tokio::test]
async fn a_late_undo_of_an_attempt_takes_nothing_from_a_later_one() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let backend = recorder.backend(&space).await;
    let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
    let holds = request(one, 1, &["read /a"]);
    granted(&backend, &holds).await;
    recorder.take();
    let waits = request(other, 1, &["write /a/b/c"]).waiting();
    refused(&backend, &waits).await;
    let late = recorder.take();
    let late: Vec<&Asked> = late
        .iter()
        .filter(|it| it.body.contains("/a/b/c"))
        .collect();
    assert_eq!(late.len(), 2, "an attempt, and its undo: {late:?}");
    backend.release(holds.grant, &holds.claims).await.unwrap();
    granted(&backend, &waits).await;
    for asked in late.iter().chain(late.iter().rev()) {
        let (method, path) = asked.what.split_once(' ').unwrap();
        assert_eq!(method, "POST");
        let path = format!("{path}?{}", asked.query);
        raw_text(Method::Post, &path, asked.body.clone()).await;
        assert!(backend.confirm(waits.grant, &waits.claims).await.unwrap());
    }
    let stood = backend.release(waits.grant, &waits.claims).await;
    assert_eq!(stood.unwrap(), Stood::Held);
}

/// Who comes next in line does not ask in vain, and who has been granted a lock in its turn has asked twice.
#[tokio::test]
async fn a_hand_over_in_line_takes_few_requests() {
    const CLIENTS: usize = 4;
    const TURNS: usize = 10;
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let locks = recorder.locks(&space, Duration::from_secs(30)).await;
        drop(locks.lock("opens").acquire().await.unwrap().release().await);
        clients.push(locks);
    }
    recorder.take();
    let turns = async |locks: &Locks| {
        for _ in 0..TURNS {
            let guard = locks.lock("k").acquire().await.unwrap();
            // It is held for a moment, so that the others wait.
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
    };
    join_all(clients.iter().map(turns)).await;
    let asked = recorder.take();
    let hand_overs = CLIENTS * TURNS;
    let writes = asked.iter().filter(|it| it.what.ends_with("/_bulk"));
    // The first attempt, the judgement of who is in its way, the second attempt, the release; some wait in vain for a second.
    let writes = writes.count();
    assert!(writes <= 5 * hand_overs, "{writes} for {hand_overs}");
    let looks = asked
        .iter()
        .filter(|it| it.what.ends_with("/_mget"))
        .count();
    assert!(looks <= 12 * hand_overs, "{looks} for {hand_overs}");
}

/// Of who waits for several records, some requests decide nothing.
#[tokio::test]
async fn who_stands_in_line_keeps_its_place_though_a_request_is_refused() {
    for (first, refuses) in [("write /a/b", "if_due"), ("write /a/b/c", r#""ids""#)] {
        let (space, recorder) = (Space::new(), Recorder::new().await);
        let backend = recorder.backend(&space).await;
        let holds = open(&backend, 1).await;
        let (one, two) = (open(&backend, 2).await, open(&backend, 3).await);
        let held = request(holds, 1, &["write /a/b"]);
        granted(&backend, &held).await;
        let one = request(one, 1, &[first]).waiting();
        refused(&backend, &one).await;
        let two = request(two, 1, &["write /a/b"]).waiting();
        for asks in [&one, &two] {
            refused(&backend, asks).await;
            *recorder.on_the_way.refused.lock().unwrap() = Some(refuses);
            refused(&backend, asks).await;
            let left = recorder.on_the_way.refused.lock().unwrap().take();
            assert!(left.is_none() || asks.grant == one.grant, "{refuses}");
        }
        backend.release(held.grant, &held.claims).await.unwrap();
        refused(&backend, &two).await;
        granted(&backend, &one).await;
    }
}

/// Each asks about twice a second, whether it is next or the last.
#[tokio::test]
async fn who_waits_behind_many_judges_few_of_them() {
    let (space, recorder) = (Space::new(), Recorder::new().await);
    let backend = recorder.backend(&space).await;
    let mut sessions = Vec::new();
    for number in 1..=42 {
        sessions.push(open(&backend, number).await);
    }
    let (holds, waits) = (sessions[0], &sessions[1..]);
    granted(&backend, &request(holds, 1, &["create k"])).await;
    for (at, session) in waits.iter().enumerate() {
        recorder.take();
        let asked = request(*session, 1, &["create k"]).waiting();
        refused(&backend, &asked).await;
        let asked = recorder.take();
        let items: usize = asked.iter().map(|asked| asked.ids().len()).sum();
        // The holder and the first few are looked at, and the record and the session are written and read.
        assert!(items <= 16 + 8, "{items} items behind {at}");
    }
}
