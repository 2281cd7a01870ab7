//! What is stored: the book's documents, with clients of the book beside us, and what is left of sessions. Needs a server.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::time::Duration;

use elasticsearch::http::Method;
use lockcore::backend::{
    Acquire, Adopt, Adopted, ClaimStore, End, Filter, Incarnation, Inspect, IntentChange, Ranges,
    Registered, Renewal, Renewed, SessionStore, Settled, Sweep,
};
use lockcore::limits::MAX_WAITERS;
use lockcore::{
    Claim, ErrorKind, FencingToken, Intent, Label, Life, LockKey, Mode, SessionId, Want,
};
use lockcore_es::EsBackend;
use serde_json::{Value, json};
use support::book::Book;
use support::{Space, claim, connect, connect_to, granted, open, refused, request};

/// What is in a record besides times and what is ours alone.
fn book(record: &Value) -> Value {
    let mut record = record.clone();
    for field in ["key", "processes", "holders"] {
        record.as_object_mut().unwrap().remove(field);
    }
    record
}

#[tokio::test]
async fn lock_records_are_the_books() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    let first = request(session, 1, &["write /a/b/c"]);
    granted(&backend, &first).await;
    granted(&backend, &request(session, 2, &["write /a/d"])).await;
    let target = space.document("/a/b/c").await.unwrap();
    let process = format!("{session}/1");
    assert_eq!(
        book(&target),
        json!({"lock_type": "exclusive", "lock_count": 1, "process_id": process})
    );
    let above = space.document("/a").await.unwrap();
    assert_eq!(
        book(&above),
        json!({"lock_type": "shared", "lock_count": 2})
    );
    assert_eq!(above["processes"], json!([session.to_string()]));
    backend.release(first.grant, &first.claims).await.unwrap();
    assert_eq!(space.document("/a/b/c").await, None);
    assert_eq!(space.document("/a/b").await, None);
    assert_eq!(
        book(&space.document("/a").await.unwrap()),
        json!({"lock_type": "shared", "lock_count": 1})
    );
}

#[tokio::test]
async fn documents_of_other_writers_hold_as_the_book_means_it() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    let mut n = 0;
    for document in [
        json!({}),
        json!({"process_id": 123}),
        json!({"lock_type": "exclusive"}),
        json!({"lock_type": "shared", "lock_count": 0}),
        json!({"lock_type": "shared", "lock_count": -2}),
        json!({"lock_type": "shared", "lock_count": 1.5}),
        json!({"lock_type": "shared", "lock_count": "x"}),
        json!({"lock_type": "shared", "lock_count": 3_000_000_000_u64}),
        json!({"key": "/f", "lock_count": 1, "holders": 5}),
        json!({"key": "/f", "lock_count": 1, "holders": {"x": 5}}),
        json!({"key": "/other", "lock_count": 1, "holders": {}}),
    ] {
        space.put("/f", &document).await;
        for wanted in ["write /f", "read /f", "write /f/x", "read /f/x"] {
            n += 1;
            let asked = request(session, n, &[wanted]);
            let busy = refused(&backend, &asked).await;
            let holder = &busy.first().holders[0];
            assert_eq!(
                (holder.grant, holder.mode, holder.life),
                (None, Mode::X, Life::Living),
                "{document}"
            );
            backend.release(asked.grant, &asked.claims).await.unwrap();
        }
        assert_eq!(
            space.document("/f").await,
            Some(document),
            "it is not changed"
        );
        assert_eq!(
            space.document("/f/x").await,
            None,
            "nothing is left below it"
        );
    }
}

#[tokio::test]
async fn shares_of_other_writers_are_counted_with_ours() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    space
        .put("/f", &json!({"lock_type": "shared", "lock_count": 2}))
        .await;
    let below = request(session, 1, &["write /f/x"]);
    granted(&backend, &below).await;
    let reader = request(session, 2, &["read /f/y"]);
    granted(&backend, &reader).await;
    let record = space.document("/f").await.unwrap();
    assert_eq!(
        (&record["lock_type"], &record["lock_count"]),
        (&json!("shared"), &json!(4))
    );
    for wanted in ["write /f", "read /f"] {
        let other = open(&backend, if wanted == "read /f" { 2 } else { 3 }).await;
        let busy = refused(&backend, &request(other, 1, &[wanted])).await;
        assert!(
            busy.first()
                .holders
                .iter()
                .any(|holder| holder.grant.is_none() && holder.mode == Mode::IX)
        );
    }
    backend.release(below.grant, &below.claims).await.unwrap();
    backend.release(below.grant, &below.claims).await.unwrap();
    backend.release(reader.grant, &reader.claims).await.unwrap();
    let left = space.document("/f").await.unwrap();
    assert_eq!(
        left,
        json!({"lock_type": "shared", "lock_count": 2}),
        "exactly the book's"
    );
}

#[tokio::test]
async fn an_eviction_takes_what_is_foreign_and_as_it_was_seen() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    space
        .put("/f", &json!({"lock_type": "shared", "lock_count": 2}))
        .await;
    let below = request(session, 1, &["write /f/x"]);
    granted(&backend, &below).await;
    let listed = async || {
        let key = LockKey::parse("/f").unwrap();
        backend
            .records(&Filter::Key(key), None, 10)
            .await
            .unwrap()
            .items
            .remove(0)
    };
    let seen = listed().await;
    assert_eq!(seen.holders.len(), 2);
    granted(&backend, &request(session, 2, &["write /f/y"])).await;
    assert!(!backend.evict(&seen).await.unwrap(), "it was written since");
    assert!(backend.evict(&listed().await).await.unwrap());
    let left = listed().await;
    assert_eq!(left.holders.len(), 2);
    assert!(left.holders.iter().all(|holder| holder.grant.is_some()));
    assert_eq!(space.document("/f").await.unwrap()["lock_count"], 2);
    assert!(
        !backend.evict(&left).await.unwrap(),
        "nothing foreign is left"
    );
    assert!(backend.confirm(below.grant, &below.claims).await.unwrap());
}

#[tokio::test]
async fn foreign_records_are_listed_by_prefix() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    for key in ["fa", "fb", "g"] {
        space.put(key, &json!({"process_id": 1})).await;
    }
    granted(&backend, &request(session, 1, &["create f"])).await;
    let mut keys = Vec::new();
    let mut after = None;
    loop {
        let filter = Filter::Prefix("f".to_owned());
        let page = backend.records(&filter, after.as_deref(), 1).await.unwrap();
        keys.extend(page.items.iter().map(|record| record.key.to_string()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    keys.sort();
    assert_eq!(keys, ["f", "fa", "fb"]);
}

fn many(session: SessionId, n: u64, range: std::ops::Range<usize>) -> Acquire {
    let keys: Vec<String> = range
        .map(|number| format!("upsert document {number:05}"))
        .collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    request(session, n, &keys)
}

#[tokio::test]
async fn many_keys_are_written_as_the_script_writes_one() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    let all = many(session, 1, 0..100);
    let path = format!("/{{ns}}/_doc/~session/{session}").replace("~session/", "~session%2F");
    let written = async || space.raw(Method::Get, &path, String::new()).await.1["_seq_no"].clone();
    let before = written().await;
    let token = granted(&backend, &all).await;
    assert_eq!(
        written().await,
        before,
        "nothing stands between the records"
    );
    let mut created = space.document("document 00042").await.unwrap();
    let one = request(session, 1, &["upsert alone"]);
    granted(&backend, &one).await;
    let mut alone = space.document("alone").await.unwrap();
    created["key"] = Value::Null;
    alone["key"] = Value::Null;
    for (record, of) in [(&mut created, 100), (&mut alone, 1)] {
        let holder = &mut record["holders"][format!("{session}/1")];
        assert_eq!(holder["of"].take(), of);
        let since = holder["since"].take();
        assert!(
            since.as_u64().is_some_and(|ms| ms > 1_600_000_000_000),
            "{since}"
        );
    }
    assert_eq!(created, alone);
    assert!(granted(&backend, &all).await > token, "sent again");
    let other = open(&backend, 2).await;
    let overlapping = many(other, 1, 60..160);
    let busy = refused(&backend, &overlapping).await;
    assert_eq!(busy.first().claim, claim("upsert document 00060"));
    assert!(busy.more && busy.refused().len() == 16);
    assert_eq!(
        space.document("document 00150").await,
        None,
        "what was granted beside it is given back"
    );
    backend.end(&[session], End::Close).await.unwrap();
    granted(&backend, &overlapping).await;
    assert!(
        backend
            .confirm(overlapping.grant, &overlapping.claims)
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn many_keys_of_a_session_that_died_are_void_and_leave_nothing_that_counts() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    let held = many(session, 1, 0..1);
    granted(&backend, &held).await;
    backend.end(&[session], End::Revoke).await.unwrap();
    let had = space.document("document 00000").await;
    // All are new, or one is there already.
    for (n, range) in [(2, 1..41), (3, 0..40)] {
        let mut all = many(session, n, range);
        all.owner = held.owner;
        assert_eq!(
            backend.acquire(&all).await.unwrap(),
            lockcore::backend::Acquired::Void
        );
        assert_eq!(space.document("document 00000").await, had);
        assert_eq!(space.document("document 00001").await, None);
    }
}

async fn swept(backend: &EsBackend, which: Sweep) -> usize {
    let mut removed = 0;
    loop {
        let swept = backend.sweep(which, 1_000).await.unwrap();
        removed += swept.removed;
        if !swept.more {
            return removed;
        }
    }
}

#[tokio::test]
async fn a_sweep_takes_everything_of_a_dead_session_and_leaves_other_writers() {
    let space = Space::new();
    let backend = connect(&space).await;
    let (dead, living) = (open(&backend, 1).await, open(&backend, 2).await);
    space.put("book", &json!({"process_id": 123})).await;
    space
        .put("/p", &json!({"lock_type": "shared", "lock_count": 1}))
        .await;
    granted(&backend, &many(dead, 1, 0..50)).await;
    granted(&backend, &request(dead, 2, &["write /p/x", "read /q/r"])).await;
    granted(&backend, &request(dead, 3, &["share s"])).await;
    let share = request(living, 1, &["share s"]);
    granted(&backend, &share).await;
    backend.end(&[dead], End::Close).await.unwrap();
    assert_eq!(swept(&backend, Sweep::Session(dead)).await, 50 + 4 + 1);
    assert_eq!(
        space.document("/p").await,
        Some(json!({"lock_type": "shared", "lock_count": 1}))
    );
    assert_eq!(
        space.document("book").await,
        Some(json!({"process_id": 123}))
    );
    assert_eq!(space.document("/q").await, None);
    assert!(backend.confirm(share.grant, &share.claims).await.unwrap());
}

#[tokio::test]
async fn one_sweep_takes_more_than_one_search_finds() {
    let space = Space::new();
    let backend = connect(&space).await;
    let (dead, living) = (open(&backend, 1).await, open(&backend, 2).await);
    for (n, from) in (1..).zip((0..10_000).step_by(2_000)) {
        granted(&backend, &many(dead, n, from..from + 2_000)).await;
    }
    let kept = many(living, 1, 10_000..10_100);
    granted(&backend, &kept).await;
    backend.end(&[dead], End::Close).await.unwrap();
    let which = Sweep::Session(dead);
    let mut swept = backend.sweep(which, 8_500).await.unwrap();
    assert_eq!((swept.removed, swept.more), (8_500, true), "its limit");
    swept = backend.sweep(which, 8_500).await.unwrap();
    assert_eq!((swept.removed, swept.more), (1_500, false), "the rest");
    assert!(backend.confirm(kept.grant, &kept.claims).await.unwrap());
}

fn put(seq: u64, text: &str, token: FencingToken) -> Renewal {
    let intent = Intent::new(text).unwrap();
    Renewal::new(
        seq,
        Ranges::EMPTY,
        IntentChange::Put(Registered { token, intent }),
    )
}

#[tokio::test]
async fn payloads_are_documents_of_their_own_that_go_with_their_session() {
    let space = Space::new();
    let backend = connect(&space).await;
    let (holder, adopter) = (open(&backend, 1).await, open(&backend, 2).await);
    let token = granted(&backend, &request(holder, 1, &["create k"])).await;
    assert_eq!(
        backend
            .renew(holder, &put(1, "half done", token))
            .await
            .unwrap(),
        Renewed::Living
    );
    let payload = space
        .document(&format!("~intent/{holder}/1"))
        .await
        .unwrap();
    assert_eq!(payload["payload"], "aGFsZiBkb25l");
    let record = space.document(&format!("~session/{holder}")).await.unwrap();
    assert!(!record.to_string().contains("aGFsZiBkb25l"), "{record}");
    backend.end(&[holder], End::Close).await.unwrap();
    // What a dead session still sends changes nothing of what it has left.
    assert_eq!(
        backend
            .renew(holder, &put(2, "other", token))
            .await
            .unwrap(),
        Renewed::Dead
    );
    let adoption = backend
        .adopt(holder, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
        .await
        .unwrap()
        .adoption()
        .unwrap();
    assert_eq!(adoption.left.intent.as_bytes(), b"half done");
    assert!(adoption.token > token);
    assert!(
        backend
            .settle(holder, 1, adopter, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .is_settled()
    );
    swept(&backend, Sweep::All).await;
    for seq in [1, 2] {
        assert_eq!(
            space.document(&format!("~intent/{holder}/{seq}")).await,
            None
        );
    }
    let finished = open(&backend, 3).await;
    assert_eq!(
        backend.renew(finished, &put(1, "x", token)).await.unwrap(),
        Renewed::Living
    );
    let drop = Renewal::new(2, Ranges::EMPTY, IntentChange::Drop);
    assert_eq!(
        backend.renew(finished, &drop).await.unwrap(),
        Renewed::Living
    );
    backend.end(&[finished], End::Close).await.unwrap();
    assert_eq!(space.document(&format!("~intent/{finished}/1")).await, None);
}

/// The payload of one that lives is met before those of the dead.
#[tokio::test]
async fn a_sweep_goes_on_behind_a_payload_that_is_needed() {
    let space = Space::new();
    let backend = connect(&space).await;
    let holder = open(&backend, 1).await;
    let token = granted(&backend, &request(holder, 1, &["create k"])).await;
    let renewed = backend.renew(holder, &put(1, "half done", token)).await;
    assert_eq!(renewed.unwrap(), Renewed::Living);
    let id = |session: SessionId| format!("~intent/{session}/1");
    let needed = space.document(&id(holder)).await.unwrap();
    let dead: Vec<SessionId> = (0..1_500).map(|_| SessionId::new(rand::random())).collect();
    let left = dead.iter().map(|session| {
        let mut left = needed.clone();
        left["session"] = session.to_string().into();
        (id(*session), left)
    });
    let left: Vec<(String, Value)> = left.collect();
    space
        .put_all(left.iter().map(|(id, left)| (id.as_str(), left)))
        .await;
    while backend.sweep(Sweep::All, 1_000_000).await.unwrap().more {}
    for session in dead.iter().step_by(50).chain(dead.last()) {
        assert_eq!(space.document(&id(*session)).await, None);
    }
    assert_eq!(space.document(&id(holder)).await, Some(needed));
}

#[tokio::test]
async fn an_intent_without_its_payload_never_began() {
    let space = Space::new();
    let backend = connect(&space).await;
    let (holder, adopter) = (open(&backend, 1).await, open(&backend, 2).await);
    let token = granted(&backend, &request(holder, 1, &["create k"])).await;
    backend.renew(holder, &put(1, "x", token)).await.unwrap();
    // As if that item of the bulk had failed.
    space.remove(&format!("~intent/{holder}/1")).await;
    backend.end(&[holder], End::Close).await.unwrap();
    assert_eq!(
        backend
            .adopt(holder, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
            .await
            .unwrap()
            .adoption(),
        None
    );
    let state = backend.end(&[holder], End::IfDue).await.unwrap();
    assert_eq!(state[0].life, Life::Dead);
    granted(&backend, &request(adopter, 1, &["create k"])).await;
}

#[tokio::test]
async fn an_intent_that_cannot_be_read_is_not_thrown_away() {
    let space = Space::new();
    let backend = connect(&space).await;
    let adopter = open(&backend, 9).await;
    for (number, change) in [
        (1, json!({"payload": "no base64!"})),
        (2, json!({"payload": Value::Null})),
        (3, json!({"token": "7"})),
        (
            4,
            json!({"payload": "A".repeat(4 * lockcore::limits::MAX_INTENT_BYTES)}),
        ),
    ] {
        let holder = open(&backend, number).await;
        let key = format!("create k{number}");
        let token = granted(&backend, &request(holder, 1, &[&key])).await;
        backend.renew(holder, &put(1, "x", token)).await.unwrap();
        let id = format!("~intent/{holder}/1");
        let payload = space.document(&id).await.unwrap();
        let mut damaged = payload.clone();
        for (field, value) in change.as_object().unwrap() {
            damaged[field] = value.clone();
        }
        space.put(&id, &damaged).await;
        backend.end(&[holder], End::Close).await.unwrap();
        let error = backend
            .adopt(holder, 0, adopter, Adopt::Take, Incarnation::UNKNOWN)
            .await
            .map(Adopted::adoption);
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{change}: {error}");
        assert!(error.to_string().contains(&id), "{error}");
        let state = backend.end(&[holder], End::IfDue).await.unwrap();
        assert_eq!(state[0].life, Life::Abandoned, "{change}");
        let asked = request(adopter, u64::try_from(number).unwrap(), &[&key]);
        refused(&backend, &asked).await;
        // Somebody has fixed it.
        space.put(&id, &payload).await;
        let adoption = backend
            .adopt(holder, 1, adopter, Adopt::Take, Incarnation::UNKNOWN)
            .await
            .map(Adopted::adoption);
        let adoption = adoption.unwrap().unwrap();
        assert_eq!(adoption.left.intent.as_bytes(), b"x");
        let settled = backend
            .settle(holder, adoption.number, adopter, Incarnation::UNKNOWN)
            .await
            .map(Settled::is_settled);
        assert!(settled.unwrap());
    }
}

/// Who asks need not know how far the clocks of the nodes may be apart: who has opened the session does.
#[tokio::test]
async fn a_session_is_due_when_its_owner_says() {
    let space = Space::new();
    let exact = connect(&space).await;
    let url = space
        .url()
        .replace("clock_skew_ms=0", "clock_skew_ms=60000");
    let careful = connect_to(&url).await.unwrap();
    let label = Label::parse("").unwrap();
    let ttl = Duration::from_secs(2);
    let (mine, theirs, renewed) = (SessionId::new(1), SessionId::new(2), SessionId::new(3));
    for (backend, session) in [(&exact, mine), (&careful, theirs), (&careful, renewed)] {
        backend.open(session, &label, ttl).await.unwrap();
    }
    let renewal = Renewal::new(1, Ranges::EMPTY, IntentChange::Keep);
    careful.renew(renewed, &renewal).await.unwrap();
    // By the server's clock the exact one is due then; more time changes nothing for the others.
    tokio::time::sleep(ttl + Duration::from_millis(50)).await;
    for asks in [&exact, &careful] {
        let states = asks.end(&[mine, theirs, renewed], End::IfDue).await;
        let lives: Vec<Life> = states.unwrap().iter().map(|state| state.life).collect();
        assert_eq!(lives, [Life::Dead, Life::Living, Life::Living]);
    }
}

#[tokio::test]
async fn session_records_that_cannot_be_understood_live() {
    let space = Space::new();
    let backend = connect(&space).await;
    let asker = open(&backend, 9).await;
    for (number, change) in [
        (1, json!({"state": "undead"})),
        (2, json!({"expires": null})),
        (3, json!({"retired": 5})),
        (4, json!({"state": "dead", "retired": "x"})),
    ] {
        let session = open(&backend, number).await;
        let key = format!("create k{number}");
        granted(&backend, &request(session, 1, &[&key])).await;
        let id = format!("~session/{session}");
        let mut record = space.document(&id).await.unwrap();
        for (field, value) in change.as_object().unwrap() {
            record[field] = value.clone();
        }
        space.put(&id, &record).await;
        let states = backend.end(&[session], End::IfDue).await.unwrap();
        assert_eq!(states[0].life, Life::Living, "{change}");
        let asked = request(asker, u64::try_from(number).unwrap(), &[&key]);
        refused(&backend, &asked).await;
        backend.release(asked.grant, &asked.claims).await.unwrap();
    }
}

#[tokio::test]
async fn long_keys_have_ids_of_their_own() {
    let space = Space::new();
    let backend = connect(&space).await;
    let session = open(&backend, 1).await;
    let mut n = 0;
    for (key, id) in [
        ("x".repeat(512), "x".repeat(512)),
        ("é".repeat(256), "é".repeat(256)),
        ("..".to_owned(), "..".to_owned()),
        ("_all".to_owned(), "_all".to_owned()),
        (
            "~".to_owned(),
            "~sha256/7ace431cb61584cb9b8dc7ec08cf38ac0a2d649660be86d349fb43108b542fa4".to_owned(),
        ),
    ] {
        n += 1;
        let mut asked = request(session, n, &["create placeholder"]);
        asked.claims = vec![Claim::new(LockKey::parse(&key).unwrap(), Want::Create).unwrap()];
        granted(&backend, &asked).await;
        assert_eq!(space.document(&id).await.unwrap()["key"], key.as_str());
        backend.release(asked.grant, &asked.claims).await.unwrap();
        assert_eq!(space.document(&id).await, None);
    }
}

/// The book's clients find a lock, also when only waiters are left.
#[tokio::test]
async fn who_waits_stands_in_the_record_and_keeps_the_books_clients_out() {
    let space = Space::new();
    let backend = connect(&space).await;
    let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
    let by_book = Book {
        space: &space,
        process: 7,
    };
    let shares = request(one, 1, &["read /a/b"]);
    granted(&backend, &shares).await;
    let below = |count| json!({"lock_type": "shared", "lock_count": count});
    assert_eq!(book(&space.document("/a").await.unwrap()), below(1));
    let waits = request(other, 1, &["write /a"]).waiting();
    refused(&backend, &waits).await;
    // One holds it from below, and no more of the book's clients come there.
    let awaited = |count| json!({"lock_type": "exclusive", "lock_count": count});
    let record = space.document("/a").await.unwrap();
    assert_eq!(book(&record), awaited(1));
    assert_eq!(
        record["processes"],
        json!([one.to_string(), other.to_string()])
    );
    assert!(!by_book.lock_tree("/a/c").await);

    backend.release(shares.grant, &shares.claims).await.unwrap();
    assert_eq!(book(&space.document("/a").await.unwrap()), awaited(0));
    assert!(!by_book.lock_tree("/a").await);
    assert!(!by_book.create("/a", json!({"process_id": 7})).await);
    // Whatever removes it: who waits stands in line again.
    space.remove("/a").await;
    assert!(by_book.lock_tree("/a/c").await);
    let busy = refused(&backend, &waits).await;
    assert_eq!(busy.first().holders[0].grant, None, "it is the book's");
    assert_eq!(book(&space.document("/a").await.unwrap()), awaited(1));
    by_book.release_tree("/a/c").await;
    granted(&backend, &waits).await;
    let mut held = awaited(1);
    held["process_id"] = format!("{other}/1").into();
    assert_eq!(book(&space.document("/a").await.unwrap()), held);
    backend.release(waits.grant, &waits.claims).await.unwrap();
    for key in ["/a", "/a/b", "/a/c"] {
        assert_eq!(space.document(key).await, None, "{key}");
    }
}

/// While it tries again, its entries are those of a holder. Who comes then stands behind it all the same.
#[tokio::test]
async fn who_tries_again_for_several_records_keeps_its_place_before_who_comes_meanwhile() {
    let space = Space::new();
    let backend = connect(&space).await;
    let [holder, first, later] = [1, 2, 3].map(|n| open(&backend, n));
    let (holder, first, later) = (holder.await, first.await, later.await);
    granted(&backend, &request(holder, 1, &["write /a/b"])).await;
    refused(&backend, &request(first, 1, &["write /a/b"]).waiting()).await;
    // As an attempt leaves it that has entered this record and not the next.
    let mut record = space.document("/a").await.unwrap();
    let name = format!("{first}/1");
    let entry = record["holders"][&name].as_object_mut().unwrap();
    assert!(entry.remove("waits").is_some());
    record["lock_count"] = 2.into();
    space.put("/a", &record).await;

    refused(&backend, &request(later, 1, &["write /a"]).waiting()).await;
    let record = space.document("/a").await.unwrap();
    let place = |name: &str| record["holders"][name]["place"].as_u64().unwrap();
    assert!(place(&name) < place(&format!("{later}/1")), "{record}");
}

/// What a dead waiter leaves is removed, and what others hold there stays.
#[tokio::test]
async fn a_sweep_of_a_dead_waiter_takes_nothing_from_who_holds_the_record() {
    let space = Space::new();
    let backend = connect(&space).await;
    let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
    let holds = request(one, 1, &["create k", "write /a"]);
    granted(&backend, &holds).await;
    for (n, wanted) in [(1, "create k"), (2, "write /a")] {
        refused(&backend, &request(other, n, &[wanted]).waiting()).await;
    }
    assert_eq!(
        space.document("k").await.unwrap()["process_id"],
        Value::Null
    );
    backend.end(&[other], End::Close).await.unwrap();
    let swept = backend.sweep(Sweep::Session(other), 100).await.unwrap();
    assert!(!swept.more);
    assert!(swept.removed >= 2, "{swept:?}");
    let process = format!("{one}/1");
    for key in ["k", "/a"] {
        let record = space.document(key).await.unwrap();
        assert_eq!(record["process_id"], json!(process), "{key}");
        assert_eq!(record["processes"], json!([one.to_string()]), "{key}");
    }
    assert!(backend.confirm(holds.grant, &holds.claims).await.unwrap());
    // And the other way round: who waits keeps its place when the holder's record is swept.
    let third = open(&backend, 3).await;
    let waits = request(third, 1, &["create k"]).waiting();
    refused(&backend, &waits).await;
    backend.end(&[one], End::Close).await.unwrap();
    backend.sweep(Sweep::All, 100).await.unwrap();
    let busy = refused(
        &backend,
        &request(open(&backend, 4).await, 1, &["create k"]),
    )
    .await;
    assert_eq!(busy.first().holders[0].grant, Some(waits.grant));
    granted(&backend, &waits).await;
}

/// The line of a key has a thousand places, and who asks when all are taken is in nobody's way.
#[tokio::test]
async fn a_line_has_its_bound() {
    let space = Space::new();
    let backend = connect(&space).await;
    let (one, other) = (open(&backend, 1).await, open(&backend, 2).await);
    granted(&backend, &request(one, 1, &["create k"])).await;
    let waits = |n| request(other, n, &["create k"]).waiting();
    refused(&backend, &waits(1)).await;
    let mut record = space.document("k").await.unwrap();
    let holders = record["holders"].as_object_mut().unwrap();
    let first = holders[&format!("{other}/1")].clone();
    for n in 2..MAX_WAITERS {
        let mut waiter = first.clone();
        waiter["place"] = (first["place"].as_u64().unwrap() + n as u64).into();
        holders.insert(format!("{other}/{n}"), waiter);
    }
    space.put("k", &record).await;
    let waiting = async || {
        let record = space.document("k").await.unwrap();
        let holders = record["holders"].as_object().unwrap();
        let waiting = holders.values().filter(|it| it.get("waits").is_some());
        waiting.count()
    };
    let last = MAX_WAITERS as u64;
    refused(&backend, &waits(last)).await;
    assert_eq!(waiting().await, MAX_WAITERS);
    refused(&backend, &waits(last + 1)).await;
    assert_eq!(waiting().await, MAX_WAITERS);
    backend
        .release(waits(last).grant, &waits(last).claims)
        .await
        .unwrap();
    refused(&backend, &waits(last + 1)).await;
    assert_eq!(waiting().await, MAX_WAITERS, "the place that was given up");
}
