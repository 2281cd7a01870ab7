//! Who waits: where it stands in the store, and what that costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use etcd_client::GetOptions;
use futures_util::future::join_all;
use lockcore::backend::{
    Acquire, Acquired, ClaimStore as _, End, Filter, Inspect as _, Ranges, Renewed,
    SessionStore as _, Stood, Sweep,
};
use lockcore::limits::MAX_WAITERS;
use lockcore::{Claim, Grant, LockKey, Mode, OwnerId, Want};
use lockcore_etcd::EtcdBackend;
use tokio::task::JoinSet;

use crate::steps::{ask, keep, opened, token, transactions, url};
use crate::support::{Space, client, member};

#[tokio::test]
async fn who_holds_a_key_exclusively_stands_at_one_name() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let session = opened(&backend).await;
    let first = ask(session, 1, "a");
    let again = |n| {
        let mut again = ask(session, n, "a");
        again.owner = first.owner;
        again
    };
    let (one, beside) = (space.key("lock/a\0x"), |n: u64| {
        space.key(&format!("lock/a\0x{session}/{n}"))
    });
    let mut admin = client(&space.server).await;
    let mut stand = async |names: &[Vec<u8>]| {
        let all = GetOptions::new().with_prefix();
        let found = admin.get(space.key("lock/"), Some(all)).await.unwrap();
        let found: Vec<Vec<u8>> = found.kvs().iter().map(|pair| pair.key().to_vec()).collect();
        assert_eq!(found, names);
    };
    token(&backend, &first).await;
    stand(std::slice::from_ref(&one)).await;
    // Sent again, and once more by the same owner.
    token(&backend, &first).await;
    stand(std::slice::from_ref(&one)).await;
    for _ in 0..2 {
        token(&backend, &again(2)).await;
        stand(&[one.clone(), beside(2)]).await;
    }
    // A copy that comes when the place is free finds itself beside it.
    backend.release(first.grant, &first.claims).await.unwrap();
    token(&backend, &again(2)).await;
    stand(&[beside(2)]).await;
    assert!(!backend.confirm(first.grant, &first.claims).await.unwrap());
    let second = again(2);
    assert!(backend.confirm(second.grant, &second.claims).await.unwrap());
    token(&backend, &again(3)).await;
    stand(&[one.clone(), beside(2)]).await;
    // A late copy of a release leaves the next one.
    backend.release(first.grant, &first.claims).await.unwrap();
    stand(&[one.clone(), beside(2)]).await;
    for n in [2, 3] {
        let held = again(n);
        backend.release(held.grant, &held.claims).await.unwrap();
    }
    stand(&[]).await;
    // One that does not count is replaced.
    token(&backend, &again(4)).await;
    backend.end(&[session], End::Close).await.unwrap();
    let other = opened(&backend).await;
    token(&backend, &ask(other, 1, "a")).await;
    let late = Sweep::Session(session);
    assert_eq!(backend.sweep(late, 10).await.unwrap().removed, 0);
    stand(&[one]).await;
    backend
        .release(again(4).grant, &again(4).claims)
        .await
        .unwrap();
    let next = ask(other, 1, "a");
    assert!(backend.confirm(next.grant, &next.claims).await.unwrap());
}

/// Those who are in the way of a refused request, and how many of them hold it.
async fn in_the_way(backend: &EtcdBackend, request: &Acquire) -> (Vec<Grant>, usize) {
    match backend.acquire(request).await.unwrap() {
        Acquired::Busy(busy) => {
            let holders = &busy.first().holders;
            let grants = holders.iter().filter_map(|holder| holder.grant).collect();
            let holds = holders.iter().filter(|holder| holder.waiting.is_none());
            (grants, holds.count())
        }
        other => panic!("{other:?}"),
    }
}

/// Whoever waits stands at the name at which it holds then, and leaves nothing behind.
#[tokio::test]
async fn who_has_waited_holds_where_it_has() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let (one, other) = (opened(&backend).await, opened(&backend).await);
    let mut admin = client(&space.server).await;
    let mut stand = async |names: &[(Vec<u8>, bool)]| {
        for prefix in ["lock/", "batch/"] {
            let all = GetOptions::new().with_prefix();
            let found = admin.get(space.key(prefix), Some(all)).await.unwrap();
            let found = found.kvs().iter();
            let waits = |value: &[u8]| value.contains(&b'.');
            let found: Vec<_> = found
                .map(|pair| (pair.key().to_vec(), waits(pair.value())))
                .collect();
            let prefix = space.key(prefix);
            let wanted: Vec<_> = names
                .iter()
                .filter(|(name, _)| name.starts_with(&prefix))
                .cloned()
                .collect();
            assert_eq!(found, wanted);
        }
    };
    let batch = |session, n: u64| (space.key(&format!("batch/{session}/{n:020}")), false);
    let waiting = |session, n: u64| (space.key(&format!("batch/{session}/~{n:020}")), false);
    for want in [Want::Upsert, Want::Share { limit: None }] {
        let asks = |session, n, want| {
            let mut request = ask(session, n, "a");
            request.claims[0] = Claim::new(request.claims[0].key().clone(), want).unwrap();
            request
        };
        let holds = asks(one, 1, Want::Upsert);
        let waits = asks(other, 1, want).waiting();
        let class = if want == Want::Upsert { 'x' } else { '\0' };
        let holder = (space.key("lock/a\0x"), false);
        let beside = |waits| (space.key(&format!("lock/a\0{class}{other}/1")), waits);
        token(&backend, &holds).await;
        assert_eq!(in_the_way(&backend, &waits).await, (vec![holds.grant], 1));
        let mut all = vec![holder, beside(true), batch(one, 1), waiting(other, 1)];
        all.sort();
        stand(&all).await;
        // Nobody has forgotten what it never had.
        let mut granted = keep(1);
        granted.granted = Ranges::of([1]);
        assert_eq!(
            backend.renew(other, &granted).await.unwrap(),
            Renewed::Forgotten
        );
        backend.release(holds.grant, &holds.claims).await.unwrap();
        stand(&[beside(true), waiting(other, 1)]).await;
        token(&backend, &waits).await;
        // Who shares was not in its own way, so that nobody knew that it had waited.
        let left = want.mode() == Mode::IS;
        let left = left.then(|| waiting(other, 1)).into_iter();
        let all = [beside(false), batch(other, 1)].into_iter();
        stand(&all.chain(left).collect::<Vec<_>>()).await;
        assert!(backend.confirm(waits.grant, &waits.claims).await.unwrap());
        let before = transactions(&server).await;
        let stood = backend.release(waits.grant, &waits.claims).await.unwrap();
        assert_eq!(stood, Stood::Held);
        let sent = transactions(&server).await - before;
        assert!(sent < 1.5, "{sent} transactions");
        stand(&[]).await;
    }
    // Who does not come any more leaves nothing, either: when it gives up, when its number is over, and when it is dead.
    let holds = ask(one, 2, "a");
    token(&backend, &holds).await;
    let waits = |n| ask(other, n, "a").waiting();
    let stays = [(space.key("lock/a\0x"), false), batch(one, 2)];
    for n in 2..5 {
        in_the_way(&backend, &waits(n)).await;
    }
    let gives_up = waits(2);
    let stood = backend.release(gives_up.grant, &gives_up.claims).await;
    assert_eq!(stood.unwrap(), Stood::Absent);
    let mut retired = keep(1);
    retired.retired = Ranges::of([2, 3]);
    assert_eq!(
        backend.renew(other, &retired).await.unwrap(),
        Renewed::Living
    );
    let (found, _) = in_the_way(&backend, &ask(one, 3, "a")).await;
    assert_eq!(found, [holds.grant, waits(4).grant]);
    backend.end(&[other], End::Close).await.unwrap();
    let swept = backend.sweep(Sweep::All, 10).await.unwrap();
    assert_eq!(swept.removed, 1);
    stand(&stays).await;
}

/// Those who have waited share a transaction, too.
#[tokio::test]
async fn what_was_waited_for_is_released_together() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let (one, other) = (opened(&backend).await, opened(&backend).await);
    let mut held = Vec::new();
    for n in 1..=8 {
        let key = format!("k{n}");
        let holds = ask(one, n, &key);
        token(&backend, &holds).await;
        let waits = ask(other, n, &key).waiting();
        in_the_way(&backend, &waits).await;
        backend.release(holds.grant, &holds.claims).await.unwrap();
        token(&backend, &waits).await;
        held.push(waits);
    }
    let before = transactions(&server).await;
    let released = held
        .iter()
        .map(|held| backend.release(held.grant, &held.claims));
    let stood = join_all(released).await;
    let sent = transactions(&server).await - before;
    assert!(stood.into_iter().all(|it| it.unwrap() == Stood::Held));
    assert!(sent < 3.5, "{sent} transactions");
}

/// One request each, as where there is no line.
#[tokio::test]
async fn where_nobody_waits_the_line_costs_nothing() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let session = opened(&backend).await;
    for (n, (key, want)) in (1..).zip([
        ("a", Want::Create),
        ("b", Want::Share { limit: None }),
        ("/a/b/c", Want::Write),
    ]) {
        let claim = Claim::new(LockKey::parse(key).unwrap(), want).unwrap();
        let owner = OwnerId { session, m: n };
        let request = Acquire::new(Grant { session, n }, owner, vec![claim]).waiting();
        let before = transactions(&server).await;
        token(&backend, &request).await;
        backend
            .release(request.grant, &request.claims)
            .await
            .unwrap();
        let sent = transactions(&server).await - before;
        assert!(sent < 2.5, "{want:?}: {sent} transactions");
    }
}

/// So many wait for a key at most, and whoever comes later waits all the same, and comes when there is a place.
#[tokio::test]
async fn where_too_many_wait_who_comes_later_has_no_place() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let (one, many) = (opened(&backend).await, opened(&backend).await);
    let holds = ask(one, 1, "a");
    token(&backend, &holds).await;
    let mut admin = client(&space.server).await;
    for n in 1..=MAX_WAITERS {
        let name = space.key(&format!("lock/a\0\0{many}/{n}"));
        let value = format!("~{many}/{n}.0/s/{n}/5");
        admin.put(name, value, None).await.unwrap();
    }
    let later = ask(one, 2, "a").waiting();
    let waits = async || {
        let (found, holds) = in_the_way(&backend, &later).await;
        assert_eq!((found.len(), holds), (16, 1));
        let page = backend
            .records(&Filter::Session(one), None, 10)
            .await
            .unwrap();
        let name = space.key(&format!("lock/a\0x{}", later.grant));
        let found = client(&space.server).await.get(name, None).await.unwrap();
        let listed: Vec<bool> = page.items[0]
            .holders
            .iter()
            .map(|holder| holder.waiting.is_some())
            .collect();
        assert_eq!(listed.len(), 16);
        assert!(!listed[0] && listed[1..].iter().all(|waits| *waits));
        found.kvs().len()
    };
    assert_eq!(waits().await, 0, "as many wait as may");
    let mut last = ask(many, MAX_WAITERS as u64, "a");
    let share = Want::Share { limit: None };
    last.claims[0] = Claim::new(last.claims[0].key().clone(), share).unwrap();
    backend.release(last.grant, &last.claims).await.unwrap();
    assert_eq!(waits().await, 1, "there is a place");
    // It comes when all before it have gone.
    backend.release(holds.grant, &holds.claims).await.unwrap();
    let (_, holds) = in_the_way(&backend, &later).await;
    assert_eq!(holds, 0);
    backend.end(&[many], End::Close).await.unwrap();
    token(&backend, &later).await;
}

/// Many wait for a key while others come and go, and each comes in its turn.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_comes_in_turn_however_many_ask() {
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let one = opened(&backend).await;
    let holds = ask(one, 1, "a");
    token(&backend, &holds).await;
    let (held, turns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut waiting = Vec::new();
    for _ in 0..24 {
        let backend = space.connect().await;
        let session = opened(&backend).await;
        let waits = ask(session, 1, "a").waiting();
        in_the_way(&backend, &waits).await;
        waiting.push((backend, session, waits));
    }
    let mut tasks = JoinSet::new();
    for (turn, (backend, session, waits)) in (0..).zip(waiting) {
        let (held, turns) = (Arc::clone(&held), Arc::clone(&turns));
        tasks.spawn(async move {
            for tries in 0.. {
                assert!(tries < 3_000, "its turn does not come");
                // Others, who do not wait, ask besides, and some wait for a moment.
                let barges = ask(session, 2, "a");
                let refused = backend.acquire(&barges).await.unwrap();
                assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
                let gives_up = ask(session, 3, "a").waiting();
                let refused = backend.acquire(&gives_up).await.unwrap();
                assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
                let (grant, claims) = (gives_up.grant, &gives_up.claims);
                let stood = backend.release(grant, claims).await.unwrap();
                assert_eq!(stood, Stood::Absent);
                let asked = backend.acquire(&waits).await.unwrap();
                if matches!(asked, Acquired::Acquired(_)) {
                    break;
                }
            }
            assert_eq!(held.fetch_add(1, Ordering::AcqRel), 0, "it holds it alone");
            assert_eq!(turns.fetch_add(1, Ordering::AcqRel), turn, "its turn");
            assert!(backend.confirm(waits.grant, &waits.claims).await.unwrap());
            held.fetch_sub(1, Ordering::AcqRel);
            let stood = backend.release(waits.grant, &waits.claims).await.unwrap();
            assert_eq!(stood, Stood::Held);
        });
    }
    backend.release(holds.grant, &holds.claims).await.unwrap();
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(turns.load(Ordering::Acquire), 24);
}
