//! What is in a request, and how many there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockcore::backend::{
    Acquire, Acquired, ClaimStore as _, End, Filter, Inspect as _, Ranges, Record, Renewed,
    SessionStore as _, Stood, Sweep,
};
use lockcore::{
    Claim, ErrorKind, Grant, LockBackend as _, LockKey, Locks, OwnerId, SessionId, Want,
};
use lockcore_etcd::EtcdBackend;

use crate::steps::{ask, asks, connect, keep, opened, sent, token, told, transactions, url};
use crate::support::{Space, client, member, until};

#[tokio::test]
async fn batches_are_as_large_as_the_server_takes() {
    let server = member(&[("max-txn-ops", "70")]).await;
    let space = Space::at(url(&server));
    let backend = space.connect().await;
    let session = opened(&backend).await;
    let keys = |count: usize| (0..count).map(|n| format!("d{n}")).collect::<Vec<_>>();
    let error = backend
        .acquire(&asks(session, 1, &keys(100)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("txn_ops"), "{error}");
    let config = space.config().operations(70);
    let fewer = EtcdBackend::connect(config).await.unwrap();
    let most = fewer.info().keys_per_batch;
    assert_eq!(most, 67);
    token(&fewer, &asks(session, 2, &keys(most))).await;
    // And as many that were refused, and as are gone past.
    let other = opened(&fewer).await;
    assert!(matches!(
        fewer.acquire(&asks(other, 1, &keys(most))).await.unwrap(),
        Acquired::Busy(_)
    ));
    fewer.end(&[session], End::Close).await.unwrap();
    let held = asks(other, 2, &keys(most));
    token(&fewer, &held).await;
    assert!(fewer.confirm(held.grant, &held.claims).await.unwrap());
    fewer.release(held.grant, &held.claims).await.unwrap();
    assert!(!fewer.confirm(held.grant, &held.claims).await.unwrap());
}

/// A server that takes many operations takes no longer requests.
/// With as few operations in a transaction as we take.
#[tokio::test]
async fn what_is_asked_meanwhile_is_one_transaction_for_all_and_answered_alike() {
    let server = member(&[("max-txn-ops", "67")]).await;
    let backend = connect(&format!("{}/?txn_ops=67", url(&server)))
        .await
        .unwrap();
    let (one, other) = (opened(&backend).await, opened(&backend).await);
    let dead = opened(&backend).await;
    backend.end(&[dead], End::Close).await.unwrap();
    let many: Vec<SessionId> = (1..=40).map(SessionId::new).collect();
    for how in [End::Close, End::Revoke] {
        let ended = backend.end(&many, how).await.unwrap();
        assert_eq!(ended.len(), 40, "{how:?}");
    }
    let mut retired = keep(1);
    retired.retired = Ranges::of([100]);
    assert_eq!(backend.renew(one, &retired).await.unwrap(), Renewed::Living);
    token(&backend, &ask(other, 100, "held")).await;

    let small =
        |session, from: u64| (from..from + 40).map(move |n| ask(session, n, &format!("k{n}")));
    let mut requests: Vec<Acquire> = small(one, 1).chain(small(other, 50)).collect();
    let all = requests.len();
    let mut shares = ask(one, 45, "shared");
    shares.claims[0] =
        Claim::new(shares.claims[0].key().clone(), Want::Share { limit: None }).unwrap();
    requests.extend([
        shares,
        // Another one asks for it in the same transaction.
        ask(one, 46, "k40"),
        ask(one, 47, "held"),
        ask(one, 100, "over"),
        ask(dead, 1, "dead"),
    ]);
    let mut client = client(&url(&server)).await;
    let mut revision = async || {
        let got = client.get("none", None).await.unwrap();
        got.header().unwrap().revision()
    };
    let before = revision().await;
    let answers = join_all(requests.iter().map(|request| backend.acquire(request))).await;
    let answers: Vec<Acquired> = answers.into_iter().map(Result::unwrap).collect();
    let sent = revision().await - before;
    // The first, 16 at once of the others of either session, and each of those that are refused by itself.
    assert!(sent <= 1 + 3 + 3 + 4, "{sent} transactions");
    let granted = |answer: &Acquired| matches!(answer, Acquired::Acquired(_));
    assert!(answers[..=all].iter().all(granted), "{answers:?}");
    let [twice, held, retired, dead] = &answers[all + 1..] else {
        panic!("{answers:?}");
    };
    assert!(matches!(twice, Acquired::Busy(_)), "{twice:?}");
    assert!(matches!(held, Acquired::Busy(_)), "{held:?}");
    assert!(matches!(retired, Acquired::Void), "{retired:?}");
    assert!(matches!(dead, Acquired::Void), "{dead:?}");
    for (request, answer) in requests.iter().zip(&answers) {
        let confirmed = backend.confirm(request.grant, &request.claims).await;
        assert_eq!(confirmed.unwrap(), granted(answer), "{}", request.grant);
    }

    let mut retired = keep(2);
    retired.retired = Ranges::of([3, 100]);
    assert_eq!(backend.renew(one, &retired).await.unwrap(), Renewed::Living);
    let before = revision().await;
    let released = requests
        .iter()
        .map(|request| backend.release(request.grant, &request.claims));
    let released = join_all(released).await;
    let sent = revision().await - before;
    assert!(sent <= 1 + 3 + 3 + 5, "{sent} transactions");
    for ((request, answer), stood) in requests.iter().zip(&answers).zip(released) {
        let expected = match (granted(answer), request.grant.n) {
            (true, 3) => Stood::Fallen,
            (true, _) => Stood::Held,
            (false, _) => Stood::Absent,
        };
        assert_eq!(stood.unwrap(), expected, "{}", request.grant);
    }
    // Nothing is left of any of them, as who asks for the same keys finds.
    let again = (201..).zip(["k1", "k3", "k40", "shared"]);
    let again = join_all(again.map(|(n, key)| {
        let request = ask(one, n, key);
        let backend = &backend;
        async move { backend.acquire(&request).await }
    }));
    let again = again.await;
    assert!(again.iter().flatten().all(granted), "{again:?}");
}

#[tokio::test]
async fn batches_of_long_keys_fit_into_a_request() {
    let server = member(&[("max-txn-ops", "10000")]).await;
    let space = Space::at(url(&server));
    // Who is at work for longer than that, as with a large batch on a busy machine, loses its connection.
    let config = || space.config().timeout(Duration::from_secs(60));
    for operations in [2_000, 10_000] {
        let config = config().operations(operations);
        let backend = EtcdBackend::connect(config).await.unwrap();
        let info = backend.info();
        assert!(
            info.keys_per_batch > 1_500,
            "short ones as many as before: {info:?}"
        );
        for (kind, bytes) in [("long", 1_024), ("medium", 100), ("short", 12)] {
            let most = info.keys_per_batch.min(info.bytes_per_batch / bytes);
            let keys: Vec<String> = (0..most)
                .map(|n| format!("{kind}{n:0>width$}", width = bytes - kind.len()))
                .collect();
            let share = |session, n| {
                let mut shares = asks(session, n, &keys);
                let want = Want::Share { limit: None };
                let claim = |claim: &Claim| Claim::new(claim.key().clone(), want).unwrap();
                shares.claims = shares.claims.iter().map(claim).collect();
                shares
            };
            // Numbers as long as they can be.
            let (first, next) = (u64::MAX - 2, u64::MAX - 1);
            let alive = opened(&backend).await;
            let rival = asks(alive, first, &keys);
            let mut dead = Vec::new();
            for _ in 0..8 {
                dead.push(opened(&backend).await);
                token(&backend, &share(dead[dead.len() - 1], first)).await;
            }
            for exclusive in [false, true] {
                if exclusive {
                    dead = vec![opened(&backend).await];
                    token(&backend, &asks(dead[0], first, &keys)).await;
                }
                // Who is refused reads who is there, and who comes after the dead removes some of them.
                let refused = backend.acquire(&rival).await.unwrap();
                assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
                backend.end(&dead, End::Close).await.unwrap();
                token(&backend, &rival).await;
                assert!(backend.confirm(rival.grant, &rival.claims).await.unwrap());
                let stood = backend.release(rival.grant, &rival.claims).await.unwrap();
                assert_eq!(stood, Stood::Held);
                backend.sweep(Sweep::All, 100_000).await.unwrap();
            }
            let again = asks(alive, next, &keys);
            token(&backend, &again).await;
            backend.end(&[alive], End::Close).await.unwrap();
            let swept = backend.sweep(Sweep::Session(alive), 10_000).await.unwrap();
            assert_eq!((swept.removed, swept.more), (keys.len(), false));
        }
    }
    // The client cuts by both.
    let config = config().operations(2_000);
    let backend = EtcdBackend::connect(config).await.unwrap() as Arc<dyn lockcore::LockBackend>;
    let locks = lockcore::Locks::builder(backend).build().unwrap();
    let ids = (0..2_000).map(|n| format!("{n:0>1024}"));
    let guard = locks.documents(ids).acquire().await.unwrap();
    assert!(guard.confirm().await.unwrap());
    let released = guard.release().await.unwrap();
    assert_eq!(released, lockcore::Released::Released);
}

/// Each takes requests of its own: a sweep of a namespace with a million of them would not end.
#[tokio::test]
async fn a_sweep_buries_as_many_of_the_dead_as_it_may() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    for _ in 0..5 {
        let dead = opened(&backend).await;
        backend.end(&[dead], End::Revoke).await.unwrap();
    }
    let mut more = Vec::new();
    for _ in 0..4 {
        more.push(backend.sweep(Sweep::All, 2).await.unwrap().more);
    }
    assert_eq!(more, [true, true, false, false]);
}

#[tokio::test]
async fn a_sweep_reads_nothing_of_those_that_are_buried() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let mut dead = Vec::new();
    for _ in 0..200 {
        dead.push(opened(&backend).await);
    }
    backend.end(&dead, End::Close).await.unwrap();
    let living = opened(&backend).await;
    let (mut cost, mut took) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let before = (sent(&server).await, transactions(&server).await);
        let swept = backend.sweep(Sweep::All, 1_000).await.unwrap();
        assert!(!swept.more);
        cost.push(sent(&server).await - before.0);
        took.push(transactions(&server).await - before.1);
    }
    let [first, then] = cost[..] else {
        unreachable!()
    };
    assert!(first > 20_000.0 && then < 2_000.0, "{cost:?}");
    assert!(took[0] < 30.0 && took[1] < 5.0, "{took:?} transactions");
    let page = backend.sessions(None, 1_000).await.unwrap();
    assert_eq!(page.items.len(), 201, "they are remembered");
    backend.end(&[living], End::Close).await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_session_wakes_nobody_who_waits_for_others() {
    const WAIT: usize = 20;
    const END: usize = 200;
    let server = member(&[]).await;
    let space = Space::at(url(&server));
    let (holds, waits) = (space.connect().await, space.connect().await);
    let session = opened(&holds).await;
    for n in 0..WAIT {
        token(&holds, &ask(session, n as u64 + 1, &format!("k{n}"))).await;
    }
    let locks = Locks::builder(waits).build().unwrap();
    let waiting = (0..WAIT).map(|n| {
        let locks = locks.clone();
        async move {
            locks
                .lock(format!("k{n}"))
                .wait(Duration::from_secs(300))
                .acquire()
                .await
        }
    });
    let ends = async || {
        let (before, since) = (transactions(&server).await, Instant::now());
        for _ in 0..END {
            let other = opened(&holds).await;
            holds.end(&[other], End::Close).await.unwrap();
        }
        (transactions(&server).await - before, since.elapsed())
    };
    let (alone, _) = ends().await;
    let beside = async {
        loop {
            let page = holds.records(&Filter::Prefix("k".into()), None, WAIT).await;
            let all = page.unwrap().items;
            let stands = |record: &Record| record.holders.iter().any(|it| it.waiting.is_some());
            if all.iter().filter(|record| stands(record)).count() == WAIT {
                break;
            }
            // From one look to the next.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ends().await
    };
    let granted = join_all(waiting);
    let (beside, took) = tokio::select! {
        told = beside => told,
        granted = granted => panic!("{granted:?}"),
    };
    // Each asks about twice a second, to be safe, with up to three transactions; and once more after the first end.
    let polls = 3.0 * WAIT as f64 * (2.0 + 2.0 * took.as_secs_f64());
    assert!(
        beside < alone + polls,
        "{beside} beside {alone} and {polls}, in {took:?}"
    );
}

/// The session is looked up once, and not again for each of its batches.
#[tokio::test]
async fn many_dead_below_a_path_are_passed_in_few_requests() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let (dead, living) = (opened(&backend).await, opened(&backend).await);
    let write = |path: &str| Claim::new(LockKey::parse(path).unwrap(), Want::Write).unwrap();
    let asks =
        |session, n, claims| Acquire::new(Grant { session, n }, OwnerId { session, m: n }, claims);
    for n in 0..100_u64 {
        let claims = (0..100).map(|key| write(&format!("/a/{n:03}/{key:02}")));
        token(&backend, &asks(dead, n + 1, claims.collect())).await;
    }
    backend.end(&[dead], End::Close).await.unwrap();
    let before = transactions(&server).await;
    token(&backend, &asks(living, 1, vec![write("/a")])).await;
    let took = transactions(&server).await - before;
    // Ten pages of them are read, and no session beside each.
    assert!(took <= 18.0, "{took} transactions");
}

/// What compares all that is below a path keeps every other request of the cluster waiting. Who asks for it again and again
/// reads.
#[tokio::test]
async fn who_is_refused_a_path_again_proposes_nothing() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let (holds, asks) = (opened(&backend).await, opened(&backend).await);
    let ask = |session, n, path: &str, want| {
        let claim = Claim::new(LockKey::parse(path).unwrap(), want).unwrap();
        Acquire::new(Grant { session, n }, OwnerId { session, m: n }, vec![claim])
    };
    let below = ask(holds, 1, "/a/b", Want::Write);
    token(&backend, &below).await;
    let proposed = async || told(&server, "etcd_server_proposals_committed_total ").await;
    let mut n = 0;
    for want in [Want::Write, Want::Read] {
        let mut before = 0.0;
        for turn in 0..10 {
            n += 1;
            let busy = backend.acquire(&ask(asks, n, "/a", want)).await.unwrap();
            assert!(matches!(busy, Acquired::Busy(_)), "{busy:?}");
            if turn == 0 {
                before = proposed().await;
            }
        }
        assert_eq!(proposed().await - before, 0.0, "{want:?}");
    }
    // And is granted it as soon as it is free.
    backend.release(below.grant, &below.claims).await.unwrap();
    token(&backend, &ask(asks, n + 1, "/a", Want::Write)).await;
}

/// One that has left more than a request takes is buried in several.
#[tokio::test]
async fn a_sweep_buries_all_of_a_session() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let session = opened(&backend).await;
    let mut retired = keep(1);
    retired.retired = Ranges::of((0..400).map(|n| 2 * n + 1));
    let renewed = backend.renew(session, &retired).await.unwrap();
    assert_eq!(renewed, Renewed::Living);
    backend.end(&[session], End::Close).await.unwrap();
    let mut sweeps = 0;
    while backend.sweep(Sweep::All, 1_000).await.unwrap().more {
        sweeps += 1;
        assert!(sweeps < 20);
    }
    assert!(sweeps > 0, "it says that there is more");
    // What is buried is not looked at again.
    let swept = backend.sweep(Sweep::All, 1_000).await.unwrap();
    assert_eq!((swept.more, swept.sessions), (false, 0));
}

/// Of each key the holder is told with its session, and thousands are listed each second by who watches.
#[tokio::test]
async fn lists_and_sweeps_take_few_requests_for_many_keys() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let mut sessions = Vec::new();
    for _ in 0..10 {
        sessions.push(opened(&backend).await);
    }
    for (at, session) in sessions.iter().enumerate() {
        for n in 1..=40 {
            let key = format!("{n:02}-{at}");
            token(&backend, &ask(*session, n, &key)).await;
        }
    }
    let everything = Filter::Prefix(String::new());
    let before = transactions(&server).await;
    let page = backend.records(&everything, None, 500).await.unwrap();
    assert_eq!((page.items.len(), page.next), (400, None));
    let took = transactions(&server).await - before;
    assert!(took <= 4.0, "{took} for a list");
    let before = transactions(&server).await;
    let own = Filter::Session(sessions[3]);
    let page = backend.records(&own, None, 12).await.unwrap();
    assert_eq!(page.items.len(), 12);
    let took = transactions(&server).await - before;
    assert!(took <= 4.0, "{took} for those of one");
    let rest = backend.records(&own, page.next.as_deref(), 500).await;
    assert_eq!(rest.unwrap().items.len(), 28);
    let before = transactions(&server).await;
    let swept = backend.sweep(Sweep::All, 1_000).await.unwrap();
    assert_eq!((swept.removed, swept.more, swept.sessions), (0, false, 10));
    let took = transactions(&server).await - before;
    assert!(took <= 6.0, "{took} for a sweep");
}

/// Who reads above others who read is in nobody's way, and they are not in his, however quickly they come and go.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_above_readers_who_come_and_go_is_granted() {
    let server = member(&[]).await;
    let backend = Space::at(url(&server)).connect().await;
    let path = |session, n, key: &str, want| {
        let claim = Claim::new(LockKey::parse(key).unwrap(), want).unwrap();
        Acquire::new(Grant { session, n }, OwnerId { session, m: n }, vec![claim])
    };
    let read = move |session, n, key: &str| path(session, n, key, Want::Read);
    let write = |session, n| path(session, n, "/a/w", Want::Write);
    let turns = Arc::new(AtomicU64::new(0));
    let mut churn = tokio::task::JoinSet::new();
    for one in 0..40 {
        let (backend, turns) = (Arc::clone(&backend), Arc::clone(&turns));
        churn.spawn(async move {
            let session = opened(&backend).await;
            for n in 1.. {
                // Now and then at a place where nobody has been.
                let key = format!("/a/{one}/{}", n / 4);
                let reads = read(session, n, &key);
                token(&backend, &reads).await;
                // It is held for a moment; how many turns there were is counted.
                tokio::time::sleep(Duration::from_millis(10)).await;
                backend.release(reads.grant, &reads.claims).await.unwrap();
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let session = opened(&backend).await;
    for n in 1..4 {
        // Others read meanwhile.
        let before = turns.load(Ordering::Relaxed);
        until("others read", async || {
            (turns.load(Ordering::Relaxed) > before + 40).then_some(())
        })
        .await;
        if n == 2 {
            // One who has written below and is dead is in nobody's way, either.
            let dead = opened(&backend).await;
            token(&backend, &write(dead, 1)).await;
            backend.end(&[dead], End::Close).await.unwrap();
        }
        let above = read(session, n, "/a");
        token(&backend, &above).await;
        // And who writes is in their way, and is kept out.
        let writes = write(session, 100 + n);
        let refused = backend.acquire(&writes).await.unwrap();
        assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
        backend.release(above.grant, &above.claims).await.unwrap();
        token(&backend, &writes).await;
        let above = read(session, 200 + n, "/a");
        let refused = backend.acquire(&above).await.unwrap();
        assert!(matches!(refused, Acquired::Busy(_)), "{refused:?}");
        backend.release(writes.grant, &writes.claims).await.unwrap();
    }
    churn.abort_all();
}

#[tokio::test]
async fn a_request_that_is_too_large_is_a_limit() {
    let server = member(&[("max-request-bytes", "65536")]).await;
    let backend = Space::at(url(&server)).connect().await;
    let session = opened(&backend).await;
    let long = |n: usize| format!("{n:03}{}", "x".repeat(1_000));
    let keys: Vec<String> = (0..100).map(long).collect();
    let error = backend.acquire(&asks(session, 1, &keys)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error:?}");
    token(&backend, &asks(session, 2, &keys[..10])).await;
}
