//! What an operator, a policy or a template does to the namespace: a clear error that says what to do, no lock granted,
//! and nothing lost that was held before. Needs a server.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::time::Duration;

use elasticsearch::http::Method;
use lockcore::backend::ClaimStore;
use lockcore::{Error, ErrorKind, Guard, LockBackend, Locks, Released};
use lockcore_es::EsBackend;
use serde_json::{Value, json};
use support::{Space, connect, connect_to, failures, open, raw, request};
use tokio::sync::RwLock;
use tokio::time::{sleep, timeout};

/// Long enough for a busy machine, and for whoever lifts a fault.
const TTL: Duration = Duration::from_secs(60);

/// Settings of the whole server are changed by one test while no other runs.
static SERVER: RwLock<()> = RwLock::const_new(());

async fn done(method: Method, path: &str, body: Value) -> Value {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let (status, answer) = raw(method, path, body).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

async fn set(space: &Space, name: &str, value: Value) {
    let path = format!("/{}/_settings", space.namespace);
    done(Method::Put, &path, json!({ name: value })).await;
}

async fn index_of(space: &Space) -> String {
    let about = done(Method::Get, &format!("/{}", space.namespace), Value::Null).await;
    about.as_object().unwrap().keys().next().unwrap().clone()
}

/// A program that holds a lock, and a look beside it that does not wait.
struct Program {
    space: Space,
    locks: Locks,
    beside: std::sync::Arc<EsBackend>,
    guard: Guard,
}

impl Program {
    async fn new() -> Self {
        let space = Space::new();
        let beside = connect(&space).await;
        let builder = Locks::builder(connect(&space).await).ttl(TTL);
        let locks = builder.build().unwrap();
        let guard = locks.lock("held").acquire().await.unwrap();
        open(&beside, 1).await;
        Self {
            space,
            locks,
            beside,
            guard,
        }
    }

    /// Nothing is granted now, and why.
    async fn refused(&self, n: u64) -> Error {
        let request = request(support::id(1), n, &["create other"]);
        let error = self.beside.acquire(&request).await.unwrap_err();
        assert!(self.guard.is_valid(), "it is held until its deadline");
        error
    }

    /// All goes on, and nothing was left by what failed.
    async fn goes_on(self) {
        assert!(self.guard.confirm().await.unwrap());
        let other = self.locks.lock("other").acquire().await.unwrap();
        assert!(other.token() > self.guard.token());
        for guard in [other, self.guard] {
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        }
        assert_eq!(self.space.document("other").await, None);
        connect(&self.space).await;
    }
}

fn says(error: &Error, kind: ErrorKind, text: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(text), "{error:?}");
}

#[tokio::test]
async fn a_default_pipeline_that_comes_later_is_passed_by() {
    let _server = SERVER.read().await;
    let program = Program::new().await;
    let name = "index.default_pipeline";
    set(&program.space, name, json!("nobody-has-made-it")).await;
    let error = connect_to(&program.space.url()).await.unwrap_err();
    says(&error, ErrorKind::Config, name);
    let failures = failures(&program.space, &program.beside).await;
    assert!(failures.is_empty(), "{failures:?}");
    // So many are written as new documents; and an intent.
    let documents = program
        .locks
        .documents((0..100).map(|number| number.to_string()))
        .intent(&"change")
        .unwrap();
    let documents = documents.acquire().await.unwrap();
    assert_eq!(documents.release().await.unwrap(), Released::Released);
    set(&program.space, name, json!("_none")).await;
    program.goes_on().await;
}

#[tokio::test]
async fn a_final_pipeline_is_told() {
    let _server = SERVER.read().await;
    let program = Program::new().await;
    let (name, missing) = ("index.final_pipeline", "nobody-has-made-it");
    set(&program.space, name, json!(missing)).await;
    let error = connect_to(&program.space.url()).await.unwrap_err();
    says(&error, ErrorKind::Config, name);
    let error = program.refused(1).await;
    says(&error, ErrorKind::Config, name);
    says(&error, ErrorKind::Config, missing);
    set(&program.space, name, json!("_none")).await;
    program.goes_on().await;
}

/// Makes the namespace while a template matches it.
async fn under(template: &Value) -> (Space, Result<(), Error>) {
    let space = Space::new();
    let path = format!("/_index_template/{}", space.namespace);
    let mut template = template.clone();
    template["index_patterns"] = json!([format!("{}-*", space.namespace)]);
    done(Method::Put, &path, template).await;
    let made = connect_to(&space.url_to_make()).await.map(|_| ());
    done(Method::Delete, &path, Value::Null).await;
    (space, made)
}

#[tokio::test]
async fn the_pipeline_of_a_template_is_not_taken() {
    let _server = SERVER.read().await;
    let pipelines = json!({
        "index.default_pipeline": "nobody-has-made-it", "index.final_pipeline": "nobody-has-made-it",
    });
    let (space, made) = under(&json!({"template": {"settings": pipelines}})).await;
    made.unwrap();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    support::granted(&backend, &request(session, 1, &["create k"])).await;
}

#[tokio::test]
async fn a_template_that_does_not_fit_is_told() {
    let _server = SERVER.read().await;
    let mappings = |mappings: Value| json!({"template": {"mappings": mappings}});
    for (template, text) in [
        (
            mappings(json!({"_source": {"excludes": ["holders"]}})),
            "not kept whole",
        ),
        (
            mappings(json!({"_source": {"enabled": false}})),
            "not kept whole",
        ),
        (
            mappings(json!({"_routing": {"required": true}})),
            "a routing",
        ),
        (
            mappings(json!({"properties": {"holders": {"type": "object"}}})),
            "a field holders",
        ),
    ] {
        let (space, made) = under(&template).await;
        says(&made.unwrap_err(), ErrorKind::Config, text);
        // Without the template, and without what it has spoilt, all goes on.
        let index = index_of(&space).await;
        done(Method::Delete, &format!("/{index}"), Value::Null).await;
        connect(&space).await;
    }
}

#[tokio::test]
async fn a_template_for_data_streams_is_told() {
    let _server = SERVER.read().await;
    let (_, about) = raw(Method::Get, "/", String::new()).await;
    if about["version"]["number"]
        .as_str()
        .unwrap()
        .starts_with("7.")
    {
        // 7.10.2 without X-Pack has none.
        let (status, _) = raw(Method::Get, "/_data_stream", String::new()).await;
        assert_ne!(status, 200);
        return;
    }
    let (space, made) = under(&json!({"data_stream": {}})).await;
    says(&made.unwrap_err(), ErrorKind::Config, "data streams");
    connect(&space).await;
}

#[tokio::test]
async fn blocks_of_the_index_are_told_and_pass() {
    let _server = SERVER.read().await;
    for (block, text) in [
        ("index.blocks.write", "index.blocks.write"),
        ("index.blocks.read_only", "index.blocks.read_only"),
        ("index.blocks.read_only_allow_delete", "free the disk"),
    ] {
        let program = Program::new().await;
        set(&program.space, block, json!(true)).await;
        says(&program.refused(1).await, ErrorKind::Unavailable, text);
        set(&program.space, block, Value::Null).await;
        program.goes_on().await;
    }
}

#[tokio::test]
async fn a_closed_index_is_told_and_passes() {
    let _server = SERVER.read().await;
    let program = Program::new().await;
    let index = index_of(&program.space).await;
    done(Method::Post, &format!("/{index}/_close"), Value::Null).await;
    says(&program.refused(1).await, ErrorKind::Unavailable, "open it");
    let error = connect_to(&program.space.url()).await.unwrap_err();
    says(&error, ErrorKind::Unavailable, "open it");
    done(Method::Post, &format!("/{index}/_open"), Value::Null).await;
    program.goes_on().await;
}

#[tokio::test]
async fn an_alias_that_is_not_written_by_is_told() {
    let _server = SERVER.read().await;
    let program = Program::new().await;
    let (index, alias) = (index_of(&program.space).await, &program.space.namespace);
    let write = async |write: bool| {
        let add = json!({"index": index, "alias": alias, "is_write_index": write});
        done(
            Method::Post,
            "/_aliases",
            json!({"actions": [{"add": add}]}),
        )
        .await;
    };
    write(false).await;
    says(
        &program.refused(1).await,
        ErrorKind::Config,
        "not to be written by",
    );
    let error = connect_to(&program.space.url()).await.unwrap_err();
    says(&error, ErrorKind::Config, "is_write_index");
    write(true).await;
    program.goes_on().await;
}

/// Whether the server makes an index for whoever writes to none, or not.
#[tokio::test]
async fn no_index_is_made_by_writing() {
    let _server = SERVER.write().await;
    let auto = async |value: Value| {
        let settings = json!({"persistent": {"action.auto_create_index": value}});
        done(Method::Put, "/_cluster/settings", settings).await;
    };
    for value in [json!(true), json!(false)] {
        let (old, new) = (Program::new().await, Space::new());
        auto(value).await;
        let index = index_of(&old.space).await;
        done(Method::Delete, &format!("/{index}"), Value::Null).await;
        let error = old.refused(1).await;
        let path = format!("/{}", old.space.namespace);
        let (status, _) = raw(Method::Get, &path, String::new()).await;
        let made = connect_to(&new.url_to_make()).await;
        auto(Value::Null).await;
        says(&error, ErrorKind::Config, "connect again");
        assert_eq!(status, 404, "nothing was made by writing");
        made.unwrap();
    }
}

/// Another program makes up scripts, and uses the limit up.
#[tokio::test]
async fn a_server_that_compiles_no_more_is_told_and_passes() {
    let _server = SERVER.write().await;
    let program = Program::new().await;
    let rate = async |value: Value| {
        let settings = json!({"persistent": {"script.max_compilations_rate": value}});
        done(Method::Put, "/_cluster/settings", settings).await;
    };
    rate(json!("1/10m")).await;
    let mut refused = false;
    for _ in 0..3 {
        let number: u64 = rand::random();
        let source = format!("ctx.op = 'none'; ctx._source.x = {number}L");
        let script = json!({"script": {"source": source}, "upsert": {}});
        let path = format!("/{}/_update/x", program.space.namespace);
        refused |= raw(Method::Post, &path, script.to_string()).await.0 == 400;
    }
    // The cache may have ours.
    let acquire = request(support::id(1), 1, &["create other"]);
    let acquired = program.beside.acquire(&acquire).await;
    let valid = program.guard.is_valid();
    rate(Value::Null).await;
    assert!(refused && valid);
    match acquired {
        Ok(_) => {
            let stood = program.beside.release(acquire.grant, &acquire.claims).await;
            assert_eq!(stood.unwrap(), lockcore::backend::Stood::Held);
        }
        Err(error) => says(&error, ErrorKind::Unavailable, "compil"),
    }
    program.goes_on().await;
}

/// The server itself blocks what is on a disk that is too full, and lifts that.
#[tokio::test]
async fn a_disk_that_the_server_finds_full_is_told_and_passes() {
    let _server = SERVER.write().await;
    let settings = "/_cluster/settings?include_defaults=true&flat_settings=true";
    let settings = done(Method::Get, settings, Value::Null).await;
    if settings["defaults"]["cluster.info.update.interval"] == "24h" {
        // It has looked at its disk, and will not look again.
        return;
    }
    let program = Program::new().await;
    let disk = async |enabled: Value, free: Value| {
        let allocation = "cluster.routing.allocation.disk";
        let settings = json!({"persistent": {
            format!("{allocation}.threshold_enabled"): enabled,
            format!("{allocation}.watermark.low"): free,
            format!("{allocation}.watermark.high"): free,
            format!("{allocation}.watermark.flood_stage"): free,
        }});
        done(Method::Put, "/_cluster/settings", settings).await;
    };
    let index = index_of(&program.space).await;
    let until = async |full: bool| {
        let looks = async {
            let path = format!("/_cluster/state/blocks/{index}");
            loop {
                let state = done(Method::Get, &path, Value::Null).await;
                if full == state["blocks"]["indices"][&index].is_object() {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(TTL / 2, looks).await
    };
    // More than any disk has.
    disk(json!(true), json!("100000tb")).await;
    let full = until(true).await;
    let [other, held] = ["create other", "create held"].map(|it| request(support::id(1), 1, &[it]));
    let told = [
        program.beside.acquire(&other).await,
        program.beside.acquire(&held).await,
    ];
    let new = Space::new();
    let made = connect_to(&new.url_to_make()).await;
    let valid = program.guard.is_valid();
    disk(json!(true), json!("1b")).await;
    let passed = until(false).await;
    disk(Value::Null, Value::Null).await;
    // OpenSearch makes no index from then on or a moment later, and does not lift that itself.
    let (settings, block) = ("/_cluster/settings", "cluster.blocks.create_index");
    let set = format!("{settings}?flat_settings=true");
    if done(Method::Get, &set, Value::Null).await["persistent"][block].is_string() {
        let lifted = json!({"persistent": {block: null}});
        done(Method::Put, settings, lifted).await;
    }
    assert!(valid, "it is held until its deadline");
    full.unwrap();
    passed.unwrap();
    let errors = told.into_iter().map(Result::unwrap_err);
    for error in errors.chain(made.err()) {
        says(&error, ErrorKind::Unavailable, "free the disk");
    }
    connect(&new).await;
    program.goes_on().await;
}

/// One node has no place for a second copy.
#[tokio::test]
async fn a_replica_without_a_node_does_not_count() {
    let _server = SERVER.read().await;
    let space = Space::new();
    let url = space.url_to_make().replace("replicas=0", "replicas=1");
    let backend = connect_to(&url).await.unwrap();
    let durability = backend.info().durability;
    assert!(
        durability.power_loss && !durability.failover,
        "{durability:?}"
    );
}
