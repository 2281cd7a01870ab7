//! What is asked while something is under way goes together: few transactions, and each request has an answer of its own.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::pin::pin;

use futures_util::future::join_all;
use futures_util::poll;
use lockcore::backend::{
    Acquire, Acquired, ClaimStore, End, Incarnation, IntentChange, Ranges, Renewal, SessionStore,
    Stood, Wakeups,
};
use lockcore::{SessionId, Want};
use lockcore_postgres::PostgresBackend;
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::timeout;

use support::{PATIENCE, Space, open, owner, request, until};

async fn acquire_all(backend: &PostgresBackend, requests: &[Acquire]) -> Vec<Acquired> {
    let asked = requests.iter().map(|request| backend.acquire(request));
    let answers = join_all(asked).await.into_iter();
    answers.map(|answer| answer.unwrap()).collect()
}

async fn release_all(backend: &PostgresBackend, requests: &[Acquire]) -> Vec<Stood> {
    let asked = requests.iter();
    let asked = asked.map(|request| backend.release(request.grant, &request.claims));
    let answers = join_all(asked).await.into_iter();
    answers.map(|answer| answer.unwrap()).collect()
}

fn told(answer: &Acquired) -> &'static str {
    match answer {
        Acquired::Acquired(_) => "granted",
        Acquired::Busy(_) => "busy",
        Acquired::Void => "void",
        Acquired::Moved => "moved",
    }
}

async fn retired(backend: &PostgresBackend, session: SessionId, numbers: Ranges) {
    let renewal = Renewal::new(1, numbers, IntentChange::Keep);
    assert!(backend.renew(session, &renewal).await.unwrap().is_living());
}

async fn number(space: &Space, text: &str) -> i64 {
    space.sql(text).await[0].get(0)
}

/// What is answered, where somebody else decides about one of the keys until so many are held.
async fn beside<T>(space: &Space, decides: &str, held: i64, asked: impl Future<Output = T>) -> T {
    let mut other = owner().await;
    let begin = space.text(&format!("BEGIN; SELECT {decides}"));
    let begun = sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut other);
    begun.await.unwrap();
    let mut asked = pin!(asked);
    until("all others are answered", async || {
        assert!(poll!(&mut asked).is_pending());
        let count = number(space, "SELECT count(*) FROM {ns}.holders").await;
        (count == held).then_some(())
    })
    .await;
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    asked.await
}

const LATCH: &str = "pg_advisory_xact_lock({ns}.latch('k5'))";
const ROW: &str = "FROM {ns}.holders WHERE key = 'k5' FOR KEY SHARE";

/// Counts the statements that remove holders from now on.
const COUNT_REMOVALS: &str = "CREATE TABLE {ns}.removals (at timestamptz);
    CREATE FUNCTION {ns}.removal() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO {ns}.removals VALUES (clock_timestamp()); RETURN NULL; END $$;
    CREATE TRIGGER removal AFTER DELETE ON {ns}.holders FOR EACH STATEMENT EXECUTE FUNCTION {ns}.removal()";

#[tokio::test]
async fn what_is_asked_meanwhile_is_answered_as_if_it_were_asked_alone() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (one, other, dead) = (
        open(&backend).await,
        open(&backend).await,
        open(&backend).await,
    );
    backend.end(&[dead], End::Close).await.unwrap();
    let held = request(other, 100, Want::Create, "held");
    assert_eq!(told(&backend.acquire(&held).await.unwrap()), "granted");
    let own = request(one, 2, Want::Upsert, "own");
    assert_eq!(told(&backend.acquire(&own).await.unwrap()), "granted");
    retired(&backend, one, Ranges::of([9])).await;

    let small = |session, from: u64| {
        (from..from + 10)
            .map(move |n| request(session, n, Want::Upsert, &format!("k{n}")).waiting())
    };
    // It is under way until all others are answered.
    let first = request(one, 1, Want::Upsert, "k5");
    let share = Want::Share { limit: None };
    let mut requests = vec![first];
    requests.extend(small(one, 10).chain(small(other, 110)));
    requests.extend([
        request(one, 30, Want::Upsert, "own"),
        request(one, 31, Want::Create, "held").waiting(),
        request(one, 9, Want::Upsert, "over"),
        request(dead, 1, Want::Upsert, "dead"),
        request(one, 32, Want::Upsert, "/path"),
        request(one, 33, share, "shared"),
        request(other, 133, share, "shared"),
        request(one, 34, Want::Upsert, "elsewhere"),
    ]);
    requests[28].incarnation = Incarnation::new(1);
    let answers = beside(&space, LATCH, 26, acquire_all(&backend, &requests)).await;
    let said: Vec<&str> = answers.iter().map(told).collect();
    assert_eq!(said[..21], ["granted"; 21]);
    let others = [
        "busy", "busy", "void", "void", "granted", "granted", "granted", "moved",
    ];
    assert_eq!(said[21..], others);
    let tokens = answers.iter().filter_map(|answer| match answer {
        Acquired::Acquired(token) => Some(*token),
        _ => None,
    });
    let mut tokens: Vec<_> = tokens.collect();
    tokens.sort();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let wrote = "SELECT count(DISTINCT xmin::text) FROM {ns}.holders WHERE key LIKE 'k%'";
    let wrote = number(&space, wrote).await;
    // The first, and those of each session.
    assert_eq!(wrote, 3);

    for (request, said) in requests.iter().zip(&said) {
        let confirmed = backend.confirm(request.grant, &request.claims).await;
        assert_eq!(confirmed.unwrap(), *said == "granted", "{}", request.grant);
    }
    // What is not there is released, too; who waits for something else is not told.
    let watched = backend.watch(&requests[16].claims).await.unwrap();
    let nothing = request(one, 1, Want::Create, "nothing");
    let mut another = backend.watch(&nothing.claims).await.unwrap();
    space.sql(COUNT_REMOVALS).await;
    // The first is under way until all others are answered; "held", "own" and "k5" are left.
    let released = beside(&space, ROW, 3, release_all(&backend, &requests)).await;
    for ((stood, said), request) in released.iter().zip(said).zip(&requests) {
        let expected = match said {
            "granted" => Stood::Held,
            _ => Stood::Absent,
        };
        assert_eq!(*stood, expected, "{}", request.grant);
    }
    let removals = number(&space, "SELECT count(*) FROM {ns}.removals").await;
    // The first and the path; those of each session; what held nothing once more, unless it waited. After a second's
    // standstill one goes again by itself.
    assert!((9..11).contains(&removals), "{removals} statements");
    timeout(PATIENCE, watched).await.unwrap();
    assert!(poll!(&mut another).is_pending());
    let left = space.sql("SELECT key FROM {ns}.holders ORDER BY key").await;
    let left: Vec<&str> = left.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["held", "own"]);
}

/// As one that is due, and one without a record.
#[tokio::test]
async fn what_is_asked_by_a_session_that_may_not_have_it_is_answered_alike() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let (due, unknown) = (open(&backend).await, SessionId::new(rand::random()));
    let all = |session, from: u64| {
        let keys = (from..from + 5).map(|n| request(session, n, Want::Upsert, &format!("k{n}")));
        keys.collect::<Vec<_>>()
    };
    let stood = release_all(&backend, &all(unknown, 1)).await;
    assert_eq!(stood, [Stood::Absent; 5]);
    let answers = acquire_all(&backend, &all(unknown, 1)).await;
    assert!(answers.iter().all(|it| told(it) == "void"), "{answers:?}");
    let held = all(due, 1);
    let answers = acquire_all(&backend, &held).await;
    assert!(answers.iter().all(|it| told(it) == "granted"));
    let past = "UPDATE {ns}.sessions SET expires = clock_timestamp() - interval '1 second' WHERE id = decode('{due}', 'hex')";
    space.sql(&past.replace("{due}", &due.to_string())).await;
    let answers = acquire_all(&backend, &all(due, 11)).await;
    assert!(answers.iter().all(|it| told(it) == "void"), "{answers:?}");
    // It has ended by that.
    let stood = release_all(&backend, &held).await;
    assert_eq!(stood, [Stood::Fallen; 5]);
    let session = open(&backend).await;
    let held = all(session, 1);
    let answers = acquire_all(&backend, &held).await;
    assert!(answers.iter().all(|it| told(it) == "granted"));
    retired(&backend, session, Ranges::of([2, 4])).await;
    let (held_yet, fallen) = (Stood::Held, Stood::Fallen);
    // And what a newer version has written stays.
    space
        .sql("UPDATE {ns}.holders SET want = 'later' WHERE key = 'k3'")
        .await;
    let stood = release_all(&backend, &held).await;
    assert_eq!(stood, [held_yet, fallen, Stood::Absent, fallen, held_yet]);
    let left = space.sql("SELECT key FROM {ns}.holders").await;
    let left: Vec<&str> = left.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["k3"]);
}

/// Not even what goes with it.
#[tokio::test]
async fn nobody_waits_for_what_somebody_else_decides_about_another_key() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let requests: Vec<_> = (1..11)
        .map(|n| request(session, n, Want::Upsert, &format!("k{n}")))
        .collect();
    let answers = beside(&space, LATCH, 9, acquire_all(&backend, &requests)).await;
    assert!(
        answers.iter().all(|it| told(it) == "granted"),
        "{answers:?}"
    );
    let stood = beside(&space, ROW, 1, release_all(&backend, &requests)).await;
    assert_eq!(stood, [Stood::Held; 10]);
}

/// As after a start of the server, perhaps with an older state.
#[tokio::test]
async fn tokens_are_raised_before_any_of_them_is_granted() {
    let space = Space::new().await;
    let backend = space.connect().await;
    let session = open(&backend).await;
    let before = request(session, 1, Want::Upsert, "before");
    let Acquired::Acquired(before) = backend.acquire(&before).await.unwrap() else {
        panic!("nobody is in the way");
    };
    let started = "SELECT setval('{ns}.token', 1);
                   UPDATE {ns}.base SET started = '-infinity', written = pg_current_xact_id()::xid";
    space.sql(started).await;
    let requests: Vec<_> = [5, 2, 3, 4, 6]
        .map(|n| request(session, n, Want::Upsert, &format!("k{n}")))
        .into();
    for answer in beside(&space, LATCH, 5, acquire_all(&backend, &requests)).await {
        let Acquired::Acquired(token) = answer else {
            panic!("{answer:?}");
        };
        assert!(token > before, "{token} after {before}");
    }
}
