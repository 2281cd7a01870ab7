//! The namespace's index: made once, checked, and made anew under a running program. Needs a server.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use elasticsearch::http::Method;
use lockcore::backend::{
    Acquired, ClaimStore, IntentChange, Opened, Ranges, Renewal, Renewed, SessionStore,
};
use lockcore::{Error, ErrorKind, Label, LockBackend};
use lockcore_es::{EsBackend, EsConfig};
use serde_json::{Value, json};
use support::access::User;
use support::{Space, connect, connect_to, granted, id, open, raw, request};

async fn error(space: &Space) -> Error {
    connect_to(&space.url()).await.unwrap_err()
}

/// Makes an index behind the namespace's alias, as somebody else would.
async fn make(space: &Space, suffix: &str, body: Value) {
    let (status, answer) = space
        .raw(Method::Put, &format!("/{{ns}}-{suffix}"), body.to_string())
        .await;
    assert_eq!(status, 200, "{answer}");
}

fn aliased(space: &Space, meta: Value) -> Value {
    let mut index: Value = serde_json::from_str(include_str!("../server/index.json")).unwrap();
    index["settings"]["index"]["number_of_replicas"] = 0.into();
    index["aliases"] = json!({&space.namespace: {}});
    index["mappings"]["_meta"] = meta;
    index
}

async fn remove(space: &Space) {
    let (_, about) = raw(Method::Get, &format!("/{}", space.namespace), String::new()).await;
    let index = about.as_object().unwrap().keys().next().unwrap().clone();
    let (status, _) = raw(Method::Delete, &format!("/{index}"), String::new()).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn it_is_made_hidden_with_one_shard_behind_an_alias() {
    let space = Space::new();
    let backend = connect(&space).await;
    let (_, about) = space.raw(Method::Get, "/{ns}", String::new()).await;
    let (index, about) = about.as_object().unwrap().iter().next().unwrap();
    assert!(
        index.starts_with(&format!("{}-", space.namespace)),
        "{index}"
    );
    let settings = &about["settings"]["index"];
    assert_eq!(
        (&settings["number_of_shards"], &settings["hidden"]),
        (&json!("1"), &json!("true"))
    );
    assert_eq!(about["mappings"]["dynamic"], json!("false"));
    assert_eq!(about["mappings"]["_meta"]["lockkeeper"], json!(4));
    let info = backend.info();
    assert!(
        info.durability.crash && info.durability.power_loss && !info.durability.failover,
        "there is no replica"
    );
    assert!(!info.atomic && info.poll.is_some());
}

#[tokio::test]
async fn many_that_connect_at_once_have_one_index() {
    let space = Space::new();
    let config = EsConfig::parse(&space.url_to_make()).unwrap();
    let connects = (0..8).map(|_| EsBackend::connect(config.clone()));
    let mut backends = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    connects.for_each(|connect| {
        tasks.spawn(connect);
    });
    while let Some(backend) = tasks.join_next().await {
        backends.push(backend.unwrap().unwrap());
    }
    let session = open(&backends[0], 1).await;
    let held = request(session, 1, &["create k"]);
    granted(&backends[1], &held).await;
    let other = open(&backends[2], 2).await;
    for backend in &backends {
        let busy = backend
            .acquire(&request(other, 1, &["create k"]))
            .await
            .unwrap();
        assert!(matches!(busy, Acquired::Busy(_)));
    }
    let (_, about) = space.raw(Method::Get, "/{ns}", String::new()).await;
    assert_eq!(about.as_object().unwrap().len(), 1, "{about}");
}

#[tokio::test]
async fn it_is_removed_and_its_neighbour_is_not() {
    let (space, neighbour) = (Space::new(), Space::new());
    let neighbour = Space {
        namespace: format!("{}-{}", space.namespace, &neighbour.namespace[5..9]),
    };
    let user = User::given();
    // The roles of the tests are not for a namespace of such a name.
    let other = connect_to(&neighbour.url_of(&user)).await.unwrap();
    let backend = connect(&space).await;
    let held = request(open(&backend, 1).await, 1, &["create k"]);
    granted(&backend, &held).await;
    let others = request(open(&other, 1).await, 1, &["create k"]);
    granted(&other, &others).await;
    let config = EsConfig::parse(&space.url_of(&user)).unwrap();
    let indices = async || {
        let path = "/{ns}*?expand_wildcards=all";
        let (_, about) = space.raw(Method::Get, path, String::new()).await;
        about.as_object().unwrap().len()
    };
    assert_eq!(indices().await, 2);
    for _ in 0..2 {
        EsBackend::remove(config.clone()).await.unwrap();
        assert_eq!(indices().await, 1);
        let (status, _) = space.raw(Method::Get, "/{ns}", String::new()).await;
        assert_eq!(status, 404, "the alias is gone");
    }
    assert!(other.confirm(others.grant, &others.claims).await.unwrap());
    backend.acquire(&held).await.expect_err("it is gone");
}

#[tokio::test]
async fn what_is_no_index_of_ours_is_not_removed() {
    let space = Space::new();
    make(&space, "1", aliased(&space, json!({}))).await;
    let config = EsConfig::parse(&space.url_of(&User::given())).unwrap();
    let error = EsBackend::remove(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let (status, _) = space.raw(Method::Get, "/{ns}-1", String::new()).await;
    assert_eq!(status, 200, "it is there");
}

#[tokio::test]
async fn what_is_no_index_of_ours_is_refused_and_not_changed() {
    let meta = json!({"lockkeeper": 4, "base": 1024});
    let two = Space::new();
    make(&two, "1", aliased(&two, meta.clone())).await;
    make(&two, "2", aliased(&two, meta.clone())).await;
    let error_of_two = error(&two).await;
    assert!(
        error_of_two.to_string().contains("several indices"),
        "{error_of_two}"
    );
    raw(
        Method::Delete,
        &format!("/{}-2", two.namespace),
        String::new(),
    )
    .await;
    connect(&two).await;

    let cases = [
        (json!({}), "not made for locks"),
        (json!({"lockkeeper": 4}), "not made for locks"),
        (json!({"lockkeeper": 5, "base": 1}), "version 5"),
        (json!({"lockkeeper": 3, "base": 1}), "version 3"),
    ];
    for (meta, says) in cases {
        let space = Space::new();
        make(&space, "1", aliased(&space, meta)).await;
        let error = error(&space).await;
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(says), "{error}");
    }

    let shards = Space::new();
    let mut body = aliased(&shards, meta.clone());
    body["settings"]["index"]["number_of_shards"] = 2.into();
    make(&shards, "1", body).await;
    assert!(error(&shards).await.to_string().contains("several shards"));

    let mapped = Space::new();
    let mut body = aliased(&mapped, meta.clone());
    body["mappings"]["properties"]["processes"]["type"] = "text".into();
    body["mappings"]["properties"]["processes"]
        .as_object_mut()
        .unwrap()
        .remove("ignore_above");
    make(&mapped, "1", body).await;
    assert!(
        error(&mapped)
            .await
            .to_string()
            .contains("another mapping of processes")
    );

    let filtered = Space::new();
    let mut body = aliased(&filtered, meta.clone());
    body["aliases"][&filtered.namespace] = json!({"filter": {"term": {"state": "dead"}}});
    make(&filtered, "1", body).await;
    assert!(error(&filtered).await.to_string().contains("has a filter"));

    let index = Space::new();
    let (status, _) = index
        .raw(
            Method::Put,
            "/{ns}",
            json!({"settings": {"number_of_replicas": 0}}).to_string(),
        )
        .await;
    assert_eq!(status, 200);
    assert!(error(&index).await.to_string().contains("not an alias"));
}

/// Its tokens are those of the store, and ours are 64 times as large.
#[tokio::test]
async fn an_older_version_is_refused_and_not_changed() {
    let space = Space::new();
    let older = json!({"lockkeeper": 1, "base": 1024});
    make(&space, "1", aliased(&space, older.clone())).await;
    let about = async || {
        let path = "/{ns}*?expand_wildcards=all";
        space.raw(Method::Get, path, String::new()).await
    };
    let before = about().await;
    let config = EsConfig::parse(&space.url_of(&User::given())).unwrap();
    let connects = EsBackend::connect(config.clone()).await.unwrap_err();
    let removes = EsBackend::remove(config).await.unwrap_err();
    for error in [connects, removes] {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let said = error.to_string();
        assert!(said.contains("version 1"), "{said}");
        assert!(said.contains("use another namespace"), "{said}");
    }
    assert_eq!(about().await, before, "no index is made or changed");
    let (_, written) = space
        .raw(Method::Get, "/{ns}/_stats/indexing", String::new())
        .await;
    let writes = &written["_all"]["total"]["indexing"]["index_total"];
    assert_eq!(*writes, 0, "{written}");

    // Nor is it used by who is connected when a program of before makes it anew.
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    remove(&space).await;
    make(&space, "1", aliased(&space, older)).await;
    let label = Label::parse("again").unwrap();
    let opened = backend.open(id(2), &label, Duration::from_secs(30)).await;
    let acquired = backend.acquire(&request(session, 1, &["create k"])).await;
    for error in [opened.unwrap_err(), acquired.unwrap_err()] {
        assert!(error.to_string().contains("version 1"), "{error}");
    }
    let renewed = backend.renew(session, &renewal(1)).await.unwrap();
    assert_eq!(renewed, Renewed::Dead);
}

fn renewal(seq: u64) -> Renewal {
    Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep)
}

#[tokio::test]
async fn an_index_that_is_removed_under_a_program_ends_its_sessions_and_tokens_still_rise() {
    let space = Space::new();
    let (old, held) = (connect(&space).await, "create k");
    let session = open(&old, 1).await;
    let mut greatest = granted(&old, &request(session, 1, &[held])).await;
    for n in 2..20 {
        greatest = granted(&old, &request(session, n, &[&format!("create k{n}")])).await;
    }
    remove(&space).await;
    let error = old.renew(session, &renewal(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let error = old
        .acquire(&request(session, 30, &[held]))
        .await
        .unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Config,
        "nothing is made by writing: {error}"
    );

    let new = connect(&space).await;
    let other = open(&new, 2).await;
    let token = granted(&new, &request(other, 1, &[held])).await;
    assert!(token > greatest, "{token} after {greatest}");

    // The first answer of the new index is not taken for one of the old.
    let error = old
        .acquire(&request(session, 31, &["create other"]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    assert_eq!(
        old.acquire(&request(session, 31, &["create other"]))
            .await
            .unwrap(),
        Acquired::Void
    );
    assert_eq!(
        old.renew(session, &renewal(2)).await.unwrap(),
        Renewed::Dead
    );
    let again = open(&old, 3).await;
    let later = granted(&old, &request(again, 1, &["create other"])).await;
    assert!(later > token, "{later} after {token}");
}

/// Copies all documents. A server without the module that does it gets them one by one.
async fn reindex(index: &str, copy: &str) {
    let body = json!({"source": {"index": index}, "dest": {"index": copy}}).to_string();
    let (status, answer) = raw(Method::Post, "/_reindex?refresh=true", body).await;
    if status != 405 {
        assert_eq!(status, 200, "{answer}");
        return;
    }
    let path = format!("/{index}/_search");
    let all = json!({"size": 1_000, "query": {"match_all": {}}}).to_string();
    let (status, found) = raw(Method::Post, &path, all).await;
    assert_eq!(status, 200, "{found}");
    let mut lines = String::new();
    for hit in found["hits"]["hits"].as_array().unwrap() {
        let action = json!({"index": {"_id": hit["_id"]}});
        lines += &format!("{action}\n{}\n", hit["_source"]);
    }
    let path = format!("/{copy}/_bulk?refresh=true");
    let (status, answer) = raw(Method::Post, &path, lines).await;
    assert!(status == 200 && answer["errors"] == false, "{answer}");
}

/// The usual step of an upgrade: another index gets the alias. A copy numbers its writes anew.
#[tokio::test]
async fn a_copy_is_refused_and_tokens_still_rise() {
    for by in ["_clone", "_reindex"] {
        let space = Space::new();
        let old = connect(&space).await;
        let session = open(&old, 1).await;
        let held = request(session, 1, &["create k"]);
        let mut greatest = granted(&old, &held).await;
        for n in 2..20 {
            greatest = granted(&old, &request(session, n, &[&format!("create k{n}")])).await;
        }
        let (_, about) = space.raw(Method::Get, "/{ns}", String::new()).await;
        let index = about.as_object().unwrap().keys().next().unwrap().clone();
        let copy = format!("{}-copy", space.namespace);
        let done = |(status, answer): (u16, Value)| assert_eq!(status, 200, "{by}: {answer}");
        let settings = json!({"index.blocks.write": true}).to_string();
        done(raw(Method::Put, &format!("/{index}/_settings"), settings).await);
        if by == "_clone" {
            let open = json!({"settings": {"index.blocks.write": null}}).to_string();
            done(
                raw(
                    Method::Put,
                    &format!("/{index}/_clone/{copy}?wait_for_active_shards=1"),
                    open,
                )
                .await,
            );
        } else {
            let mut body: Value = about[&index].clone();
            let meta = body["mappings"]["_meta"].take();
            body = aliased(&space, meta);
            body.as_object_mut().unwrap().remove("aliases");
            done(raw(Method::Put, &format!("/{copy}"), body.to_string()).await);
            done(raw(Method::Post, &format!("/{index}/_refresh"), String::new()).await);
            reindex(&index, &copy).await;
        }
        let swap = json!({"actions": [
            {"remove": {"index": index, "alias": space.namespace}},
            {"add": {"index": copy, "alias": space.namespace, "is_write_index": true}},
        ]});
        done(raw(Method::Post, "/_aliases", swap.to_string()).await);

        let mut errors = vec![error(&space).await];
        errors.push(
            old.acquire(&request(session, 30, &["create new"]))
                .await
                .unwrap_err(),
        );
        errors.push(old.renew(session, &renewal(1)).await.unwrap_err());
        errors.push(old.confirm(held.grant, &held.claims).await.unwrap_err());
        for error in errors {
            assert!(error.to_string().contains("is a copy of"), "{by}: {error}");
            assert!(
                error.to_string().contains("take the alias off"),
                "{by}: {error}"
            );
        }

        let off = json!({"actions": [{"remove": {"index": copy, "alias": space.namespace}}]});
        done(raw(Method::Post, "/_aliases", off.to_string()).await);
        let new = connect(&space).await;
        let other = open(&new, 2).await;
        let token = granted(&new, &request(other, 1, &["create k"])).await;
        assert!(token > greatest, "{by}: {token} after {greatest}");
        for index in [index, copy] {
            raw(Method::Delete, &format!("/{index}"), String::new()).await;
        }
    }
}

/// Whoever makes the index may have a clock that is behind.
#[tokio::test]
async fn tokens_begin_at_the_time_of_the_server() {
    let space = Space::new();
    make(
        &space,
        "1",
        aliased(&space, json!({"lockkeeper": 4, "base": 1024})),
    )
    .await;
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    let token = granted(&backend, &request(session, 1, &["create k"])).await;
    // That of 2024 at least, in milliseconds since 1970, above ten bits.
    assert!(token.get() > 1_704_067_200_000 << 10, "{token}");
}

/// The clock of the server was ahead, or that of another one is behind.
#[tokio::test]
async fn tokens_of_an_index_made_anew_are_above_all_that_its_first_client_knows() {
    const AHEAD: u64 = 4_000_000_000_000;
    let space = Space::new();
    let makes = async |base: u64| {
        let meta = json!({"lockkeeper": 4, "base": base << 10});
        make(&space, &base.to_string(), aliased(&space, meta)).await;
    };
    makes(AHEAD).await;
    let backend = connect(&space).await;
    let (mut last, mut index) = (AHEAD << 10, AHEAD);
    for number in 1..=3 {
        let session = open(&backend, number).await;
        let token = granted(&backend, &request(session, 1, &["create k"])).await;
        assert!(token.get() > last, "{token} after {last}, index {index}");
        last = token.get();
        let old = format!("/{}-{index}", space.namespace);
        let (status, _) = raw(Method::Delete, &old, String::new()).await;
        assert_eq!(status, 200);
        index = 100 + u64::try_from(number).unwrap();
        makes(index).await;
        let label = Label::parse("meets it").unwrap();
        let ttl = Duration::from_secs(30);
        let met = backend.open(id(100 + number), &label, ttl).await;
        assert!(met.is_err(), "it finds another index: {met:?}");
    }
}

#[tokio::test]
async fn a_disk_that_is_full_is_told_and_passes() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    let block = async |on: bool| {
        let body = json!({"index.blocks.read_only_allow_delete": if on { json!(true) } else { Value::Null }});
        let (status, answer) = space
            .raw(Method::Put, "/{ns}/_settings", body.to_string())
            .await;
        assert_eq!(status, 200, "{answer}");
    };
    let held = request(session, 1, &["create k"]);
    granted(&backend, &held).await;
    block(true).await;
    for error in [
        backend
            .acquire(&request(session, 2, &["create l"]))
            .await
            .unwrap_err(),
        backend.renew(session, &renewal(1)).await.unwrap_err(),
        backend.release(held.grant, &held.claims).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("free the disk"), "{error}");
    }
    block(false).await;
    assert_eq!(
        backend.renew(session, &renewal(2)).await.unwrap(),
        Renewed::Living
    );
    backend.release(held.grant, &held.claims).await.unwrap();
    assert_eq!(space.document("k").await, None);
}

#[tokio::test]
async fn nothing_is_written_where_fewer_copies_are_active_than_are_asked_for() {
    let space = Space::new();
    // Of a replica's two copies one is active: there is one node.
    let url = |active: &str| {
        let url = space.url_to_make().replace("replicas=0", "replicas=1");
        let url = url.replace("timeout_ms=20000", "timeout_ms=2000");
        format!("{url}&wait_for_active_shards={active}")
    };
    let reach = async |active| EsBackend::connect(EsConfig::parse(&url(active)).unwrap()).await;
    let label = Label::parse("").unwrap();
    let opens =
        async |backend: Arc<EsBackend>| backend.open(id(1), &label, Duration::from_secs(30)).await;
    for active in ["2", "all"] {
        let error = opens(reach(active).await.unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        assert!(
            error.to_string().contains("wait_for_active_shards"),
            "{error}"
        );
    }
    let error = reach("3").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("can be 2 at most"), "{error}");
    // Nothing was written: the number is not used.
    let opened = opens(reach("1").await.unwrap()).await.unwrap();
    assert!(matches!(opened, Opened::Opened(_)), "{opened:?}");
}
