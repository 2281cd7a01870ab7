//! What servers, proxies and broken connections answer, from a server of this test that says one thing: which error
//! each becomes, and where the next request goes.
#![allow(clippy::unwrap_used, reason = "it is a test")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, ClaimStore, End, Incarnation, SessionStore, Settled, Stood,
    Sweep, Wakeups,
};
use lockcore::{Claim, Error, ErrorKind, Grant, Label, LockKey, OwnerId, SessionId, Want};
use lockcore_es::{EsBackend, EsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A namespace, as the server describes it.
const NAMESPACE: &str = r#"{"lockkeeper-1":{"mappings":{"dynamic":"false","_meta":{"lockkeeper":4,"base":1024},"properties":{"key":{"type":"keyword"},"process_id":{"type":"keyword"},"processes":{"type":"keyword"},"session":{"type":"keyword"},"state":{"type":"keyword"},"expires":{"type":"date"},"ended":{"type":"date"}}},"settings":{"index.uuid":"u","index.number_of_shards":"1","index.number_of_replicas":"0"}}}"#;

/// Where its tokens begin.
const BEGUN: &str = r#"{"update":{"_index":"lockkeeper-1","_id":"~store","result":"noop","_seq_no":0,"_primary_term":1,"status":200,"get":{"_source":{"uuid":"u","term":1,"seq":0,"base":1024}}}}"#;
/// What is answered first, where it is asked who answers.
const BY_WHOM: &str = r#"{"delete":{"_index":"lockkeeper","_id":"~store","status":409,"error":{"type":"version_conflict_engine_exception","reason":"conflict","index_uuid":"u"}}}"#;

/// What the server does with a request.
#[derive(Debug, Clone)]
enum Says {
    /// This status and body.
    This(u16, String),
    /// That it sends more than it does.
    CutOff(String),
    /// Nothing, and closes.
    Nothing,
    /// Nothing, and does not close.
    Never,
    /// One after the other.
    Then(Box<[Says; 2]>),
}

impl Says {
    /// What is said to that request.
    fn by_whom(self, request: &str) -> Self {
        match self {
            Says::This(status, body) if request.contains(r#"{"delete":{"_id":"~store""#) => {
                let items = r#""items":["#;
                let first = format!(r#"{items}{BY_WHOM},"#);
                Says::This(
                    status,
                    body.replacen(&format!("{items}{{"), &format!("{first}{{"), 1),
                )
            }
            says => says,
        }
    }

    /// What is said next.
    fn next(&mut self) -> Self {
        let Says::Then(both) = self else {
            return self.clone();
        };
        let [first, then] = (**both).clone();
        *self = then;
        first
    }
}

/// A server that describes a namespace, and answers everything else alike.
struct Server {
    port: u16,
    says: Arc<Mutex<Says>>,
    /// Where tokens begin.
    begun: Arc<Mutex<Says>>,
    /// Which index there is.
    describes: Arc<Mutex<Says>>,
    asked: Arc<AtomicUsize>,
    last: Arc<Mutex<String>>,
}

impl Server {
    async fn new(says: Says) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            says: Arc::new(Mutex::new(says)),
            begun: Arc::new(Mutex::new(bulk(&[BEGUN.to_owned()]))),
            describes: Arc::new(Mutex::new(Says::This(200, NAMESPACE.to_owned()))),
            asked: Arc::default(),
            last: Arc::default(),
        };
        let (says, asked, last) = (
            [&server.says, &server.begun, &server.describes].map(Arc::clone),
            server.asked.clone(),
            server.last.clone(),
        );
        #[expect(
            clippy::disallowed_methods,
            reason = "the server of a test belongs to nobody else"
        )]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (says, asked, last) = (says.clone(), asked.clone(), last.clone());
                tokio::spawn(serve(stream, says, asked, last));
            }
        });
        server
    }

    fn says(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    async fn backend(&self) -> Arc<EsBackend> {
        connect(&format!(
            "elasticsearch://127.0.0.1:{}/?timeout_ms=1000",
            self.port
        ))
        .await
    }
}

async fn connect(url: &str) -> Arc<EsBackend> {
    EsBackend::connect(EsConfig::parse(url).unwrap())
        .await
        .unwrap()
}

async fn serve(
    mut stream: TcpStream,
    [says, begun, describes]: [Arc<Mutex<Says>>; 3],
    asked: Arc<AtomicUsize>,
    last: Arc<Mutex<String>>,
) {
    while let Some(request) = read(&mut stream).await {
        let begins = request.contains(r#"{"update":{"_id":"~store""#);
        if !begins {
            asked.fetch_add(1, Ordering::Relaxed);
            last.lock().unwrap().clone_from(&request);
        }
        let says = if request.starts_with("GET ") {
            describes.lock().unwrap().next()
        } else if begins {
            begun.lock().unwrap().next()
        } else {
            says.lock().unwrap().next().by_whom(&request)
        };
        let head = |status, length| {
            format!(
                "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            )
        };
        let answer = match says {
            Says::This(status, body) => head(status, body.len()) + &body,
            Says::CutOff(body) => {
                let answer = head(200, body.len() + 100) + &body;
                let _ = stream.write_all(answer.as_bytes()).await;
                return;
            }
            Says::Nothing => return,
            Says::Never | Says::Then(_) => std::future::pending().await,
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// One request with its body.
async fn read(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut some = [0; 4096];
        match stream.read(&mut some).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&some[..read]),
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        });
        if body.len() >= length.unwrap_or(0) {
            return Some(text);
        }
    }
}

fn request(keys: &[&str]) -> Acquire {
    let session = SessionId::new(7);
    // One key that nobody else may hold is tried as a new document.
    let want = match keys {
        [_] => Want::Share { limit: None },
        _ => Want::Create,
    };
    let claim = |key: &&str| Claim::new(LockKey::parse(key).unwrap(), want).unwrap();
    Acquire::new(
        Grant { session, n: 1 },
        OwnerId { session, m: 1 },
        keys.iter().map(claim).collect(),
    )
}

fn bulk(items: &[String]) -> Says {
    Says::This(
        200,
        format!(
            r#"{{"took":1,"errors":true,"items":[{}]}}"#,
            items.join(",")
        ),
    )
}

fn written(id: &str, seq_no: u64) -> String {
    format!(
        r#"{{"update":{{"_index":"lockkeeper-1","_id":"{id}","result":"created","_seq_no":{seq_no},"_primary_term":1,"status":201,"get":{{"_source":{{}}}}}}}}"#
    )
}

fn failed(id: &str, status: u16, error: &str) -> String {
    format!(
        r#"{{"update":{{"_index":"lockkeeper","_id":"{id}","status":{status},"error":{error}}}}}"#
    )
}

const HTML: &str = "<html><body>502 Bad Gateway</body></html>";
const NOT_FOUND: &str = r#"{"type":"index_not_found_exception","reason":"no such index [lockkeeper] and [require_alias] request flag is [true]"}"#;
const REJECTED: &str = r#"{"type":"es_rejected_execution_exception","reason":"rejected execution of primary operation"}"#;
const BREAKER: &str = r#"{"type":"circuit_breaking_exception","reason":"[parent] Data too large"}"#;
const READ_ONLY: &str = r#"{"type":"cluster_block_exception","reason":"index [lockkeeper-1] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];"}"#;
const COMPILATIONS: &str = r#"{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"circuit_breaking_exception","reason":"[script] Too many dynamic script compilations within, max: [75/5m]"}}"#;
const CONFLICT: &str =
    r#"{"type":"version_conflict_engine_exception","reason":"[a]: version conflict"}"#;
const SHARD: &str = r#"{"type":"shard_not_found_exception","reason":"no such shard"}"#;
const SECURITY: &str = r#"{"type":"security_exception","reason":"action is unauthorized"}"#;

/// Every operation that sends a bulk gives the same error for one cause; here it is acquiring.
async fn error(says: Says) -> Error {
    let server = Server::new(says).await;
    let backend = server.backend().await;
    backend.acquire(&request(&["a"])).await.unwrap_err()
}

fn whole(status: u16, error: &str) -> Says {
    Says::This(status, format!(r#"{{"error":{error},"status":{status}}}"#))
}

macro_rules! rows {
    ($($name:ident: $says:expr => $kind:ident;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let error = error($says).await;
                assert_eq!(error.kind(), ErrorKind::$kind, "{error:?}");
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
        )*
    };
}

rows! {
    unauthenticated: whole(401, SECURITY) => Unauthorized;
    forbidden: whole(403, SECURITY) => Unauthorized;
    forbidden_in_a_bulk: bulk(&[failed("a", 403, SECURITY)]) => Unauthorized;
    index_missing: whole(404, NOT_FOUND) => Config;
    index_missing_in_a_bulk: bulk(&[failed("a", 404, NOT_FOUND)]) => Config;
    shard_missing_in_a_bulk: bulk(&[failed("a", 404, SHARD)]) => Indeterminate;
    conflict_in_a_bulk: bulk(&[failed("a", 409, CONFLICT)]) => Indeterminate;
    overloaded: whole(429, REJECTED) => Unavailable;
    overloaded_in_a_bulk: bulk(&[failed("a", 429, REJECTED)]) => Unavailable;
    circuit_breaker: whole(429, BREAKER) => Unavailable;
    circuit_breaker_in_a_bulk: bulk(&[failed("a", 429, BREAKER)]) => Unavailable;
    read_only: whole(429, READ_ONLY) => Unavailable;
    read_only_in_a_bulk: bulk(&[failed("a", 429, READ_ONLY)]) => Unavailable;
    read_only_in_a_bulk_older: bulk(&[failed("a", 403, READ_ONLY)]) => Unavailable;
    script_compilations_in_a_bulk: bulk(&[failed("a", 400, COMPILATIONS)]) => Unavailable;
    server_error: whole(500, r#"{"type":"null_pointer_exception","reason":null}"#) => Indeterminate;
    unavailable: whole(503, r#"{"type":"master_not_discovered_exception","reason":null}"#) => Indeterminate;
    unavailable_in_a_bulk: bulk(&[failed("a", 503, r#"{"type":"unavailable_shards_exception","reason":"x"}"#)]) => Indeterminate;
    html_of_a_proxy: Says::This(502, HTML.into()) => Indeterminate;
    html_of_a_proxy_that_says_yes: Says::This(200, HTML.into()) => Indeterminate;
    html_of_a_proxy_that_finds_nothing: Says::This(404, HTML.into()) => Indeterminate;
    html_of_a_proxy_that_asks_for_a_password: Says::This(401, HTML.into()) => Unauthorized;
    too_large_for_a_proxy: Says::This(413, HTML.into()) => Limit;
    json_that_ends_early: Says::This(200, r#"{"took":1,"items":[{"update":{"_in"#.into()) => Indeterminate;
    an_answer_that_is_cut_off: Says::CutOff(r#"{"took":1,"items":["#.into()) => Indeterminate;
    nothing_at_all: Says::Nothing => Indeterminate;
    no_answer_in_time: Says::Never => Indeterminate;
    other_json: Says::This(200, r#"{"acknowledged":true}"#.into()) => Indeterminate;
    no_items: bulk(&[]) => Indeterminate;
    an_item_too_many: bulk(&[written("a", 1), written("a", 2)]) => Indeterminate;
    the_item_of_another_document: bulk(&[written("b", 1)]) => Indeterminate;
    the_item_of_another_index: bulk(&[written("a", 1).replace("lockkeeper-1", "lockkeeper-2")]) => Indeterminate;
    another_kind_of_item: bulk(&[written("a", 1).replace("update", "delete")]) => Indeterminate;
    a_write_without_a_number: bulk(&[written("a", 1).replace("_seq_no", "x")]) => Indeterminate;
    a_write_by_nobody: bulk(&[written("a", 1).replace("_primary_term", "x")]) => Indeterminate;
    a_write_by_another_primary: bulk(&[written("a", 1).replace("_term\":1", "_term\":2")]) => Indeterminate;
    a_write_before_tokens_began: bulk(&[written("a", 0)]) => Indeterminate;
    a_token_above_all: bulk(&[written("a", u64::MAX >> 1)]) => Corrupt;
}

#[tokio::test]
async fn what_fails_beside_something_written_is_of_unknown_outcome() {
    for error in [REJECTED, READ_ONLY] {
        let server = Server::new(bulk(&[
            written("a", 1),
            failed("b", 429, error),
            failed("~session/00000000000000000000000000000007", 429, error),
        ]))
        .await;
        let backend = server.backend().await;
        let error = backend.acquire(&request(&["a", "b"])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error:?}");
    }
}

/// The record is written: where its token begins is another request.
#[tokio::test]
async fn what_has_no_token_may_be_held() {
    let begun = |from: &str, to: &str| bulk(&[BEGUN.replace(from, to)]);
    for (begun, kind) in [
        (whole(429, REJECTED), ErrorKind::Indeterminate),
        (whole(403, SECURITY), ErrorKind::Indeterminate),
        (whole(404, NOT_FOUND), ErrorKind::Indeterminate),
        (Says::Nothing, ErrorKind::Indeterminate),
        (
            begun(r#""uuid":"u""#, r#""uuid":"v""#),
            ErrorKind::Indeterminate,
        ),
        (
            begun(r#""term":1,"seq""#, r#""term":2,"seq""#),
            ErrorKind::Indeterminate,
        ),
        (
            begun(r#"_primary_term":1"#, r#"_primary_term":2"#),
            ErrorKind::Indeterminate,
        ),
        (begun(r#""base""#, r#""bass""#), ErrorKind::Indeterminate),
        (
            begun(r#""_seq_no":0"#, r#""_seq_no":1"#),
            ErrorKind::Indeterminate,
        ),
        (
            bulk(&[failed(
                "~store",
                400,
                r#"{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"script_exception","reason":"runtime error"}}"#,
            )]),
            ErrorKind::Corrupt,
        ),
    ] {
        let server = Server::new(bulk(&[written("a", 1)])).await;
        *server.begun.lock().unwrap() = begun.clone();
        let error = server.backend().await.acquire(&request(&["a"])).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), kind, "{begun:?}: {error:?}");
    }
}

#[tokio::test]
async fn many_new_records_count_if_all_are_written_and_the_session_is_seen_to_live() {
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let new = |count: u64| {
        (0..count).map(|n| format!(r#"{{"create":{{"_seq_no":{n},"_primary_term":1}}}}"#))
    };
    let look = |index: &str| {
        let session =
            r#"{"label":"","state":"living","ttl":1000,"seq":1,"retired":[],"adoption":0}"#;
        written("~session/00000000000000000000000000000007", 1)
            .replace("\"created\"", "\"noop\"")
            .replace("201", "200")
            .replace("{}", session)
            .replace("lockkeeper-1", index)
    };
    let all_done = |items: Vec<String>| match bulk(&items) {
        Says::This(status, body) => Says::This(status, body.replace("true", "false")),
        _ => unreachable!(),
    };
    let acquire = async |items: Vec<String>| {
        let server = Server::new(all_done(items)).await;
        server.backend().await.acquire(&request(&keys)).await
    };
    let whole = new(40).chain([look("lockkeeper-1")]).collect();
    let answer = acquire(whole).await.unwrap();
    assert!(
        matches!(answer, Acquired::Acquired(token) if token.get() & 0xff == 39),
        "{answer:?}"
    );
    for part in [
        new(40).collect(),
        new(39).chain([look("lockkeeper-1")]).collect(),
        new(40).chain([look("lockkeeper-2")]).collect(),
        vec![look("lockkeeper-1")],
        new(39)
            .chain([r#"{"create":{}}"#.to_owned(), look("lockkeeper-1")])
            .collect(),
    ] {
        let part: Vec<String> = part;
        let error = acquire(part).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error:?}");
    }
}

#[tokio::test]
async fn what_fails_after_something_may_have_been_written_is_of_unknown_outcome() {
    let id = "~session/00000000000000000000000000000007";
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let refused = || whole(429, REJECTED);
    // Of so many keys the last was there already, and is asked for by itself; then nothing is taken any more.
    let new = (0..39).map(|n| format!(r#"{{"create":{{"_seq_no":{n},"_primary_term":1}}}}"#));
    let there = r#"{"create":{"error":{"type":"version_conflict_engine_exception"}}}"#;
    let items: Vec<String> = new.chain([there.to_owned(), written(id, 1)]).collect();
    let server = Server::new(Says::Then(Box::new([bulk(&items), refused()]))).await;
    let error = server.backend().await.acquire(&request(&keys)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error:?}");
    assert_eq!(server.asked(), 3);
    let last = server.last.lock().unwrap().clone();
    let ids: Vec<&str> = last.split(r#"{"update":{"_id":""#).skip(1).collect();
    assert!(ids.len() == 2 && ids[0].starts_with("k9\""), "{last}");

    // One was written, one is held by another writer, and the first cannot be given back.
    let held = r#"{"lock_type":"exclusive","process_id":"123"}"#;
    let held = written("b", 1)
        .replace("\"created\"", "\"noop\"")
        .replace("201", "200")
        .replace("{}", held);
    let entered = bulk(&[written("a", 1), held, written(id, 2)]);
    let server = Server::new(Says::Then(Box::new([entered, refused()]))).await;
    let error = server.backend().await.acquire(&request(&["a", "b"])).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error:?}");
    assert_eq!(server.asked(), 3);
}

#[tokio::test]
async fn many_items_are_sent_in_parts_of_500_and_one_more() {
    let keys: Vec<String> = (0..1_004).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let Acquire { grant, claims, .. } = request(&keys);
    // The lowest first.
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    let looked = written(&format!("~session/{}", grant.session), 1);
    let removed = sorted.iter().rev().map(|key| written(key, 1));
    let released: Vec<String> = [looked].into_iter().chain(removed).collect();
    let parts: Vec<Says> = released.chunks(501).map(bulk).collect();
    let [first, second, third] = parts.try_into().unwrap();
    let second_and = |third| Says::Then(Box::new([second.clone(), third]));

    let server = Server::new(Says::Then(Box::new([first.clone(), second_and(third)]))).await;
    server
        .backend()
        .await
        .release(grant, &claims)
        .await
        .unwrap();
    assert_eq!(server.asked(), 4);

    let refused = whole(429, REJECTED);
    let server = Server::new(Says::Then(Box::new([first, second_and(refused)]))).await;
    let error = server
        .backend()
        .await
        .release(grant, &claims)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error:?}");
}

/// The adoption is written; what it is of is another request.
#[tokio::test]
async fn an_adoption_of_which_nothing_more_is_told_is_in_doubt() {
    let record = r#"{"session":"00000000000000000000000000000007","label":"","ttl":1000,"state":"abandoned","seq":2,"retired":[],"intent":{"token":"5","seq":2},"adoption":1,"adopter":"00000000000000000000000000000008"}"#;
    let adopted = written("~session/00000000000000000000000000000007", 1).replace("{}", record);
    let absent = failed(
        "~intent/00000000000000000000000000000007/2",
        404,
        r#"{"type":"document_missing_exception","reason":"missing"}"#,
    );
    let (adopted, absent) = (bulk(&[adopted]), bulk(&[absent]));
    let then = |first: &Says, next| Says::Then(Box::new([first.clone(), next]));
    for refused in [whole(429, REJECTED), whole(403, SECURITY)] {
        for says in [
            then(&adopted, refused.clone()),
            then(&adopted, then(&absent, refused.clone())),
        ] {
            let server = Server::new(says).await;
            let backend = server.backend().await;
            let (session, adopter) = (SessionId::new(7), SessionId::new(8));
            let adopted = backend
                .adopt(session, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
                .await
                .map(Adopted::adoption);
            let error = adopted.unwrap_err();
            // So the client gives the adoption up.
            assert!(!error.is_certainly_without_effect(), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_404_that_is_not_the_items_own_throws_no_session_away() {
    let id = "~session/00000000000000000000000000000007";
    let session = SessionId::new(7);
    let renewal = lockcore::backend::Renewal::new(
        1,
        lockcore::backend::Ranges::EMPTY,
        lockcore::backend::IntentChange::Keep,
    );
    for (error, kind) in [
        (SHARD, ErrorKind::Indeterminate),
        (NOT_FOUND, ErrorKind::Config),
    ] {
        let server = Server::new(bulk(&[failed(id, 404, error)])).await;
        let backend = server.backend().await;
        assert_eq!(
            backend.renew(session, &renewal).await.unwrap_err().kind(),
            kind
        );
        assert_eq!(
            backend
                .end(&[session], End::IfDue)
                .await
                .unwrap_err()
                .kind(),
            kind
        );
        let settled = backend
            .settle(session, 1, session, Incarnation::UNKNOWN)
            .await
            .map(Settled::is_settled);
        assert_eq!(settled.unwrap_err().kind(), kind);
    }
    let missing = r#"{"type":"document_missing_exception","reason":"document missing"}"#;
    let server = Server::new(bulk(&[failed(id, 404, missing)])).await;
    let backend = server.backend().await;
    assert_eq!(
        backend.renew(session, &renewal).await.unwrap(),
        lockcore::backend::Renewed::Dead
    );
}

/// What the server says while the records of a dead session are swept, of which one is its own: to the mark, of the
/// session, of what others may hold with it, of what is its own, to the removal of that, and of its payloads.
fn while_swept(removal: Says) -> Says {
    const MARKED: &str =
        r#""_id":"~mark","status":200,"result":"updated","_seq_no":4,"_primary_term":2"#;
    let id = "00000000000000000000000000000007";
    let dead = format!(
        r#""_source":{{"session":"{id}","label":"","ttl":0,"state":"dead","seq":0,"retired":[],"adoption":0}}"#
    );
    let dead = written(&format!("~session/{id}"), 1).replace(r#""_source":{}"#, &dead);
    let found = |hits: &[&str]| {
        let (total, hits) = (hits.len(), hits.join(","));
        let hits = format!(r#"{{"total":{{"value":{total}}},"hits":[{hits}]}}"#);
        let found = format!(
            r#"{{"timed_out":false,"_shards":{{"successful":1,"failed":0}},"hits":{hits}}}"#
        );
        Says::This(200, found)
    };
    let own = r#"{"_id":"a","_seq_no":5,"_primary_term":2,"sort":[0]}"#;
    let each = [
        Says::This(200, format!(r#"{{"items":[{{"index":{{{MARKED}}}}}]}}"#)),
        bulk(&[dead]),
        found(&[]),
        found(&[own]),
        removal,
        found(&[]),
    ];
    let then = |rest, first| Says::Then(Box::new([first, rest]));
    each.into_iter().rev().reduce(then).unwrap()
}

#[tokio::test]
async fn what_changed_since_it_was_found_is_not_swept() {
    let removal = |item: &str| {
        let answer = format!(r#"{{"items":[{{"delete":{{{item}}}}}]}}"#);
        Says::This(200, answer)
    };
    let changed = removal(&format!(r#""status":409,"error":{CONFLICT}"#));
    let server = Server::new(while_swept(changed)).await;
    let backend = server.backend().await;
    let which = Sweep::Session(SessionId::new(7));
    let swept = backend.sweep(which, 1_000).await.unwrap();
    assert_eq!((swept.removed, swept.more), (0, true), "there may be more");
    let last = server.last.lock().unwrap().clone();
    let asked = r#"{"delete":{"_id":"a","if_seq_no":5,"if_primary_term":2}}"#;
    assert!(last.contains(asked), "{last}");

    let gone = removal(r#""status":200,"result":"deleted""#);
    server.says(while_swept(gone));
    let swept = backend.sweep(which, 1_000).await.unwrap();
    assert_eq!((swept.removed, swept.more), (1, false), "nothing is left");

    for (fails, kind) in [
        (Says::Nothing, ErrorKind::Indeterminate),
        (
            removal(&format!(r#""status":403,"error":{SECURITY}"#)),
            ErrorKind::Unauthorized,
        ),
    ] {
        server.says(while_swept(fails));
        let error = backend.sweep(which, 1_000).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
    }
}

/// The answer names an index that is not known, and who looks for that one is refused.
#[tokio::test]
async fn what_another_index_has_written_is_not_without_effect() {
    let session = SessionId::new(7);
    let elsewhere = written(&format!("~session/{session}"), 1);
    let elsewhere = elsewhere.replace("lockkeeper-1", "lockkeeper-2");
    let server = Server::new(bulk(&[elsewhere])).await;
    let backend = server.backend().await;
    for refused in [403, 429, 503] {
        let error = format!(r#"{{"error":{SECURITY},"status":{refused}}}"#);
        *server.describes.lock().unwrap() = Says::This(refused, error);
        let label = Label::parse("").unwrap();
        let opened = backend.open(session, &label, Duration::from_secs(30)).await;
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error:?}");
    }
}

#[tokio::test]
async fn a_release_is_not_believed_without_its_answer() {
    let request = request(&["a"]);
    let looked = || written(&format!("~session/{}", request.grant.session), 1);
    let server = Server::new(bulk(&[looked(), failed("a", 404, SHARD)])).await;
    let backend = server.backend().await;
    let error = backend
        .release(request.grant, &request.claims)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    let missing = r#"{"type":"document_missing_exception","reason":"document missing"}"#;
    server.says(bulk(&[looked(), failed("a", 404, missing)]));
    let stood = backend.release(request.grant, &request.claims).await;
    assert_eq!(stood.unwrap(), Stood::Absent);
}

#[tokio::test]
async fn no_secret_is_said() {
    let server = Server::new(whole(401, SECURITY)).await;
    for (url, sent) in [
        (
            format!("elasticsearch://me:s%23cret@127.0.0.1:{}", server.port),
            "authorization: basic bwu6cynjcmv0",
        ),
        (
            format!(
                "elasticsearch://127.0.0.1:{}/?api_key=s%23cret",
                server.port
            ),
            "authorization: apikey s#cret",
        ),
    ] {
        let backend = connect(&url).await;
        let error = backend.acquire(&request(&["a"])).await.unwrap_err();
        assert!(
            !format!("{error} {error:?} {backend:?}").contains("s#cret"),
            "{error:?}"
        );
        let last = server.last.lock().unwrap().to_lowercase();
        assert!(last.contains(sent), "{last}");
    }
}

#[tokio::test]
async fn the_next_node_is_asked_when_one_cannot_be_reached() {
    let server = Server::new(bulk(&[written("a", 1)])).await;
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let backend = connect(&format!(
        "elasticsearch://127.0.0.1:{gone},127.0.0.1:{}",
        server.port
    ))
    .await;
    for _ in 0..3 {
        let acquired = backend.acquire(&request(&["a"])).await.unwrap();
        assert_eq!(
            acquired,
            Acquired::Acquired(lockcore::FencingToken::new(1025).unwrap())
        );
    }
    let nobody = format!("elasticsearch://127.0.0.1:{gone}");
    let error = EsBackend::connect(EsConfig::parse(&nobody).unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_certainly_without_effect());
}

#[tokio::test]
async fn a_node_that_fails_is_left_with_the_next_request_and_not_with_the_same() {
    for says in [Says::This(503, HTML.into()), Says::Nothing, Says::Never] {
        let (first, second) = (
            Server::new(says.clone()).await,
            Server::new(bulk(&[written("a", 1)])).await,
        );
        let backend = connect(&format!(
            "elasticsearch://127.0.0.1:{},127.0.0.1:{}/?timeout_ms=1000",
            first.port, second.port
        ))
        .await;
        let error = backend.acquire(&request(&["a"])).await.unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Indeterminate,
            "one attempt: {says:?}"
        );
        assert_eq!(second.asked(), 0);
        for _ in 0..2 {
            backend.acquire(&request(&["a"])).await.unwrap();
        }
        assert_eq!((first.asked(), second.asked()), (2, 2), "{says:?}");
    }
}

#[tokio::test]
async fn a_request_ends_in_time() {
    let server = Server::new(Says::Never).await;
    let backend = server.backend().await;
    let since = tokio::time::Instant::now();
    backend.acquire(&request(&["a"])).await.unwrap_err();
    assert!(
        since.elapsed() < Duration::from_secs(3),
        "{:?}",
        since.elapsed()
    );
    let last = server.last.lock().unwrap().clone();
    assert!(
        last.starts_with("POST /lockkeeper/_bulk?require_alias=true&pipeline=_none&timeout=800ms "),
        "{last}"
    );
}

#[tokio::test]
async fn documents_that_cannot_be_read_are_told() {
    let got = |error: &str| {
        let document = format!(r#"{{"_index":"lockkeeper-1","_id":"a","error":{error}}}"#);
        Says::This(200, format!(r#"{{"docs":[{document}]}}"#))
    };
    for (says, kind) in [
        (got(SECURITY), ErrorKind::Unauthorized),
        (got(SHARD), ErrorKind::Indeterminate),
        (
            Says::This(200, r#"{"docs":[]}"#.to_owned()),
            ErrorKind::Indeterminate,
        ),
    ] {
        let backend = Server::new(says.clone()).await.backend().await;
        let watched = backend.watch(&request(&["a"]).claims).await.map(|_| ());
        assert_eq!(watched.unwrap_err().kind(), kind, "{says:?}");
    }
}

#[tokio::test]
async fn a_certificate_that_is_none_is_told() {
    for (ca, says) in [
        ("/nonexistent.pem", "/nonexistent.pem"),
        ("Cargo.toml", "Cargo.toml"),
    ] {
        let config = EsConfig::parse("elasticsearchs://127.0.0.1")
            .unwrap()
            .ca(ca);
        let error = EsBackend::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(says), "{error}");
    }
}
