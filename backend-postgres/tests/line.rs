//! The line of a key, where the server's own rows and latches matter.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::pin::pin;

use futures_util::future::join;
use futures_util::poll;
use lockcore::backend::{
    Acquire, Acquired, ClaimStore, Filter, Inspect, IntentChange, Past, Ranges, Renewal, Renewed,
    SessionStore, Stood, Wakeups,
};
use lockcore::limits::{MAX_LISTED, MAX_WAITERS};
use lockcore::{Busy, Want};
use lockcore_postgres::PostgresBackend;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::timeout;

use support::{PATIENCE, Space, open, owner, request, until};

const SHARE: Want = Want::Share { limit: None };

async fn granted(backend: &PostgresBackend, request: &Acquire) {
    let answer = backend.acquire(request).await.unwrap();
    assert!(matches!(answer, Acquired::Acquired(_)), "{answer:?}");
}

async fn refused(backend: &PostgresBackend, request: &Acquire) -> Busy {
    match backend.acquire(request).await.unwrap() {
        Acquired::Busy(busy) => busy,
        answer => panic!("{answer:?}"),
    }
}

/// Those who wait, as a refusal tells them.
fn waiters(busy: &Busy) -> Vec<Past> {
    let holders = busy.first().holders.iter();
    let waiters = holders.filter_map(|it| {
        Some(Past {
            grant: it.grant?,
            waiting: it.waiting?,
        })
    });
    waiters.collect()
}

async fn number(space: &Space, text: &str) -> i64 {
    space.sql(text).await[0].get(0)
}

/// Many sessions that live, and each of them waits for `k`. Whose number is great came early.
async fn many_wait(space: &Space, many: usize) {
    let text = "INSERT INTO {ns}.sessions
        SELECT decode('ee' || lpad(to_hex(i), 30, '0'), 'hex'), '', 60000, clock_timestamp() + interval '1 hour',
               'living', NULL, 0, '{}', 0, NULL, NULL
        FROM generate_series(1, {many}) i;
        INSERT INTO {ns}.holders
        SELECT 'k', decode('ee' || lpad(to_hex(i), 30, '0'), 'hex'), i, 1, 'create', clock_timestamp(), 10000 - i, 0
        FROM generate_series(1, {many}) i;
        SELECT setval('{ns}.token', 20000)";
    space.sql(&text.replace("{many}", &many.to_string())).await;
}

const LINE: &str = "SELECT count(*) FROM {ns}.holders WHERE place IS NOT NULL";

#[tokio::test]
async fn so_many_stand_in_line_and_whoever_comes_later_leaves_nothing() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    granted(&backend, &request(session, 1, SHARE, "k")).await;
    many_wait(&space, MAX_WAITERS - 1).await;
    let (last, later) = (
        request(session, 2, Want::Create, "k").waiting(),
        request(session, 3, Want::Create, "k").waiting(),
    );
    for waits in [&last, &later, &last, &later] {
        refused(&backend, waits).await;
        let all = number(&space, LINE).await;
        assert_eq!(usize::try_from(all).unwrap(), MAX_WAITERS);
    }
    let stood = backend.release(last.grant, &last.claims).await.unwrap();
    assert_eq!(stood, Stood::Absent);
    refused(&backend, &later).await;
    let own = "SELECT n - (-9223372036854775808) FROM {ns}.holders WHERE place > 20000";
    assert_eq!(number(&space, own).await, 3, "who came later has the place");
    // Whoever has died keeps none.
    let last = request(session, 4, Want::Create, "k").waiting();
    refused(&backend, &last).await;
    assert_eq!(number(&space, own).await, 3, "the line is full");
    let die = "UPDATE {ns}.sessions SET life = 'dead', ended = clock_timestamp()
        WHERE id = decode('ee' || lpad(to_hex(1), 30, '0'), 'hex')";
    space.sql(die).await;
    let own = "SELECT count(*) FROM {ns}.holders WHERE place > 20000";
    // It is looked at now and then.
    for _ in 0..500 {
        refused(&backend, &last).await;
        if number(&space, own).await == 2 {
            return;
        }
    }
    panic!("its place is not free");
}

#[tokio::test]
async fn of_many_the_first_are_told_in_their_order_behind_the_holders() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    for n in [1, 2] {
        granted(&backend, &request(session, n, SHARE, "k")).await;
    }
    many_wait(&space, 200).await;
    let busy = refused(&backend, &request(session, 3, Want::Create, "k").waiting()).await;
    let first = busy.first();
    assert!(first.more && first.holders.len() == MAX_LISTED, "{first:?}");
    let holds = first.holders.iter().map(|it| it.waiting.is_none());
    assert_eq!(holds.collect::<Vec<_>>()[..3], [true, true, false]);
    let places = waiters(&busy).into_iter().map(|it| it.waiting.place);
    let wanted = (10_000 - 200..).take(MAX_LISTED - 2);
    assert_eq!(places.collect::<Vec<_>>(), wanted.collect::<Vec<u64>>());
}

#[tokio::test]
async fn who_asks_again_in_line_writes_nothing() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (one, two) = (open(&backend).await, open(&backend).await);
    granted(&backend, &request(one, 1, Want::Create, "k")).await;
    let drawn = "SELECT last_value FROM {ns}.token";
    let waits = request(two, 1, Want::Create, "k").waiting();
    refused(&backend, &waits).await;
    let row = "SELECT xmin::text::bigint FROM {ns}.holders WHERE place IS NOT NULL";
    let before = (number(&space, drawn).await, number(&space, row).await);
    for _ in 0..3 {
        refused(&backend, &waits).await;
        refused(&backend, &request(two, 2, Want::Create, "k")).await;
    }
    let after = (number(&space, drawn).await, number(&space, row).await);
    assert_eq!(after, before);
}

/// Whoever passes has everybody wait anew, also who asks at the same moment.
#[tokio::test]
async fn one_passes_after_the_other() {
    for (key, wants, asks) in [
        ("k", [SHARE, Want::Create], ["k", "k"]),
        ("/a", [Want::Read, Want::Write], ["/a/x", "/a/y"]),
    ] {
        let space = Space::new().await;
        let backend = space.connect().await;
        let (one, two) = (open(&backend).await, open(&backend).await);
        granted(&backend, &request(one, 1, wants[0], key)).await;
        refused(&backend, &request(two, 1, wants[1], key).waiting()).await;
        let again = [2, 3].map(|n| {
            let asked = asks[usize::try_from(n - 2).unwrap()];
            request(one, n, wants[0], asked).waiting()
        });
        let busy = refused(&backend, &again[0]).await;
        let past = waiters(&busy);
        assert_eq!(past.len(), 1, "{busy:?}");
        let [first, second] = again.map(|again| again.past(past.clone()));

        // Neither can say that it has passed before both have looked, if both may look.
        let mut other = owner().await;
        let lock = space.text("BEGIN; SELECT FROM {ns}.holders WHERE place IS NOT NULL FOR UPDATE");
        let locked = sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut other);
        locked.await.unwrap();
        let beside = space.connect().await;
        let mut both = pin!(join(backend.acquire(&first), beside.acquire(&second)));
        until("both are under way", async || {
            assert!(poll!(&mut both).is_pending());
            let waiting = "SELECT count(*) FROM pg_stat_activity
                           WHERE wait_event_type = 'Lock' AND query LIKE '%{name}%acquire%'";
            let waiting = waiting.replace("{name}", &space.namespace);
            (number(&space, &waiting).await == 2).then_some(())
        })
        .await;
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        let (first, second) = both.await;
        let passed = [first.unwrap(), second.unwrap()];
        let passed = passed
            .iter()
            .filter(|it| matches!(it, Acquired::Acquired(_)));
        assert_eq!(passed.count(), 1, "{key}");
        let passed = number(&space, "SELECT max(passed) FROM {ns}.holders").await;
        assert_eq!(passed, 1, "{key}");
    }
}

/// The holder is in the way of the one that waits, and not of who asks.
#[tokio::test]
async fn who_alone_keeps_somebody_that_waits_is_ended_when_it_is_due() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (one, two, three) = (
        open(&backend).await,
        open(&backend).await,
        open(&backend).await,
    );
    granted(&backend, &request(one, 1, SHARE, "k")).await;
    refused(&backend, &request(two, 1, Want::Create, "k").waiting()).await;
    let asks = request(three, 1, SHARE, "k").waiting();
    let before = waiters(&refused(&backend, &asks).await);
    assert!(!before[0].waiting.may_go, "{before:?}");
    let past = "UPDATE {ns}.sessions SET expires = clock_timestamp() - interval '1 second' WHERE id = decode('{due}', 'hex')";
    space.sql(&past.replace("{due}", &one.to_string())).await;
    let now = waiters(&refused(&backend, &asks).await);
    assert!(now[0].waiting.may_go, "{now:?}");
    let dead = "SELECT count(*) FROM {ns}.sessions WHERE life = 'dead'";
    assert_eq!(number(&space, dead).await, 1);
    granted(&backend, &asks.past(now)).await;
}

#[tokio::test]
async fn a_renewal_that_knows_of_a_grant_is_not_content_with_a_waiter() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (one, two) = (open(&backend).await, open(&backend).await);
    granted(&backend, &request(one, 1, Want::Create, "k")).await;
    let waits = request(two, 1, Want::Create, "k").waiting();
    refused(&backend, &waits).await;
    let renewal = |session, seq| {
        let mut renewal = Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep);
        renewal.granted = Ranges::of([1]);
        (session, renewal)
    };
    let (session, renews) = renewal(one, 1);
    let renewed = backend.renew(session, &renews).await.unwrap();
    assert!(renewed.is_living(), "{renewed:?}");
    let (session, renews) = renewal(two, 1);
    let renewed = backend.renew(session, &renews).await.unwrap();
    assert!(matches!(renewed, Renewed::Forgotten), "{renewed:?}");
}

#[tokio::test]
async fn whoever_watches_is_told_of_one_that_is_removed() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (one, two, three) = (
        open(&backend).await,
        open(&backend).await,
        open(&backend).await,
    );
    // By who is granted what it asks for, and by who is refused all the same.
    for (key, refusing) in [("/a", None), ("/b", Some("/b/y"))] {
        if let Some(refusing) = refusing {
            granted(&backend, &request(three, 1, Want::Write, refusing)).await;
        }
        let below = format!("{key}/x");
        let held = request(one, 1, Want::Write, &below);
        granted(&backend, &held).await;
        let stops = request(two, 1, Want::Write, &below).waiting();
        refused(&backend, &stops).await;
        backend.release(held.grant, &held.claims).await.unwrap();
        let asks = request(one, 2, Want::Read, key).waiting();
        let past = waiters(&refused(&backend, &asks).await);
        assert!(past[0].waiting.may_go, "{past:?}");
        let watch = backend.watch(&stops.claims).await.unwrap();
        let asks = asks.past(past);
        match refusing {
            None => granted(&backend, &asks).await,
            Some(_) => {
                let left = waiters(&refused(&backend, &asks).await);
                assert_eq!(left, [], "who was removed");
            }
        }
        timeout(PATIENCE, watch).await.expect("it is told");
    }
}

#[tokio::test]
async fn a_waiter_for_a_path_is_released_as_none() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (one, two) = (open(&backend).await, open(&backend).await);
    granted(&backend, &request(one, 1, Want::Write, "/a/b")).await;
    let waits = request(two, 1, Want::Write, "/a").waiting();
    refused(&backend, &waits).await;
    let stood = backend.release(waits.grant, &waits.claims).await.unwrap();
    assert_eq!(stood, Stood::Absent);
    assert_eq!(number(&space, LINE).await, 0);
}

/// Of two that wait for shares, one may go as far as somebody else knows; nor does what is its own owner's keep anybody.
#[tokio::test]
async fn who_is_kept_by_nobody_may_go_whoever_stands_before() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (one, two, three) = (
        open(&backend).await,
        open(&backend).await,
        open(&backend).await,
    );
    let seen = async |asks: &Acquire| -> Vec<bool> {
        let waiters = waiters(&refused(&backend, asks).await);
        waiters.iter().map(|it| it.waiting.may_go).collect()
    };
    // Shares.
    let held = request(one, 1, Want::Create, "k");
    granted(&backend, &held).await;
    for (session, n) in [(one, 2), (two, 2)] {
        refused(&backend, &request(session, n, SHARE, "k").waiting()).await;
    }
    let asks = request(three, 1, Want::Create, "k").waiting();
    assert_eq!(seen(&asks).await, [false, false]);
    backend.release(held.grant, &held.claims).await.unwrap();
    // Who wants no share does not know how many there may be.
    assert_eq!(seen(&asks).await, [true, false]);
    // Whoever waits for what its own owner holds is not kept by that.
    granted(&backend, &request(two, 3, SHARE, "own")).await;
    let held = request(one, 3, SHARE, "own");
    granted(&backend, &held).await;
    let mut create = request(two, 4, Want::Create, "own").waiting();
    create.owner.m = 3;
    refused(&backend, &create).await;
    let asks = request(three, 2, Want::Create, "own").waiting();
    assert_eq!(seen(&asks).await, [false]);
    backend.release(held.grant, &held.claims).await.unwrap();
    assert_eq!(seen(&asks).await, [true]);
    // A share has the limit of who asks.
    let share = |session, n| {
        let limit = 1.try_into().ok();
        request(session, n, Want::Share { limit }, "limited").waiting()
    };
    let held = share(one, 5);
    granted(&backend, &held).await;
    refused(&backend, &share(two, 5)).await;
    let asks = share(three, 5);
    assert_eq!(seen(&asks).await, [false]);
    backend.release(held.grant, &held.claims).await.unwrap();
    assert_eq!(seen(&asks).await, [true]);
}

#[tokio::test]
async fn of_a_long_line_the_holder_and_the_first_ones_are_listed() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let held = request(open(&backend).await, 1, SHARE, "k");
    granted(&backend, &held).await;
    many_wait(&space, 200).await;
    let filter = Filter::Key(held.claims[0].key().clone());
    let records = backend.records(&filter, None, 10).await.unwrap().items;
    let places = records[0].holders.iter();
    let places: Vec<_> = places.map(|it| it.waiting.map(|it| it.place)).collect();
    let wanted = (10_000 - 200..).take(MAX_LISTED - 1).map(Some);
    let wanted: Vec<Option<u64>> = [None].into_iter().chain(wanted).collect();
    assert_eq!(places, wanted);
    assert!(records[0].more);
}
