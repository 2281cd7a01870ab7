//! Servers of our own: killed while they work, started again, and a standby that takes over.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockcore::{
    Acquire, Acquired, Claim, ClaimStore, ErrorKind, FencingToken, Grant, Label, LockBackend,
    LockKey, OwnerId, Renewal, SessionId, SessionStore, Want,
};
use lockcore_conformance::servers::{Server, postgres};
use lockcore_postgres::{PostgresBackend, PostgresConfig};
use sqlx::{Connection as _, PgConnection, Row as _};

const SESSION: SessionId = SessionId::new(7);

fn config(server: &Server) -> PostgresConfig {
    PostgresConfig::parse(&server.url().replacen("http", "postgres", 1)).unwrap()
}

async fn raw(server: &Server) -> PgConnection {
    PgConnection::connect(&server.url().replacen("http", "postgres", 1))
        .await
        .unwrap()
}

fn kill(pid: i64) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
}

fn request(n: u64) -> Acquire {
    let key = LockKey::parse(format!("k{n}")).unwrap();
    Acquire {
        grant: Grant {
            session: SESSION,
            n,
        },
        owner: OwnerId {
            session: SESSION,
            m: n,
        },
        claims: vec![Claim::new(key, Want::Create).unwrap()],
        joined: false,
    }
}

async fn open(backend: &PostgresBackend) {
    let label = Label::parse("test").unwrap();
    backend
        .open(SESSION, &label, Duration::from_secs(600))
        .await
        .unwrap();
}

async fn acquired(backend: &PostgresBackend, n: u64) -> FencingToken {
    match backend.acquire(&request(n)).await.unwrap() {
        Acquired::Acquired(token) => token,
        answer => panic!("{answer:?}"),
    }
}

/// The server of this data again; what the killed one has left may hold it for a moment.
fn again(data: &Path, port: u16) -> Server {
    for _ in 0..50 {
        if let Ok(server) = postgres::run_in(data, port, &[]) {
            return server;
        }
    }
    panic!("the server does not start again");
}

/// Several tasks acquire one key after the other, until the store cannot be used; returns what was acknowledged.
async fn load(backend: &Arc<PostgresBackend>, next: &Arc<AtomicU64>) -> Vec<(u64, FencingToken)> {
    let task = || {
        let (backend, next) = (Arc::clone(backend), Arc::clone(next));
        tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                match backend.acquire(&request(n)).await {
                    Ok(Acquired::Acquired(token)) => held.push((n, token)),
                    Ok(answer) => panic!("{answer:?}"),
                    Err(_) => return held,
                }
            }
        })
    };
    let tasks: Vec<_> = (0..4).map(|_| task()).collect();
    let mut held = Vec::new();
    for task in tasks {
        held.extend(task.await.unwrap());
    }
    held
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let data = postgres::data().unwrap();
    let port = postgres::free_port().unwrap();
    let server = postgres::run_in(data.path(), port, &[]).unwrap();
    let backend = PostgresBackend::connect(config(&server)).await.unwrap();
    open(&backend).await;
    let next = Arc::new(AtomicU64::new(1));
    let mut held: Vec<(u64, FencingToken)> = Vec::new();

    // First one process of the server, whereupon it ends the others and recovers; then the server itself.
    for whole in [false, true] {
        let (killing, from) = (Arc::clone(&next), next.load(Ordering::Relaxed));
        let mut connection = raw(&server).await;
        let pid = i64::from(server.pid().unwrap());
        let killer = tokio::spawn(async move {
            while killing.load(Ordering::Relaxed) < from + 200 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if whole {
                return kill(pid);
            }
            let other =
                "SELECT pid::bigint FROM pg_stat_activity WHERE application_name = 'lockkeeper'
                         AND query LIKE '%acquire%' LIMIT 1";
            kill(
                sqlx::raw_sql(other)
                    .fetch_one(&mut connection)
                    .await
                    .unwrap()
                    .get(0),
            );
        });
        held.extend(load(&backend, &next).await);
        killer.await.unwrap();
        if !whole {
            // It takes requests again by itself.
            let mut n = next.fetch_add(1, Ordering::Relaxed);
            while let Err(error) = backend.acquire(&request(n)).await {
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::Unavailable | ErrorKind::Indeterminate
                    ),
                    "{error}"
                );
                n = next.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(server);
    let server = again(data.path(), port);
    let backend = PostgresBackend::connect(config(&server)).await.unwrap();
    assert!(held.len() > 300, "{} acknowledged", held.len());
    for (n, _) in &held {
        let request = request(*n);
        assert!(
            backend
                .confirm(request.grant, &request.claims)
                .await
                .unwrap(),
            "k{n}"
        );
    }
    let greatest = held.iter().map(|(_, token)| *token).max().unwrap();
    assert!(acquired(&backend, 1_000_000).await > greatest);
}

#[tokio::test]
async fn a_standby_is_refused_and_grants_greater_tokens_when_it_takes_over() {
    let primary = postgres::node(&[]).unwrap();
    let backend = PostgresBackend::connect(config(&primary)).await.unwrap();
    assert!(backend.info().survives.failover, "there is no other copy");
    open(&backend).await;
    acquired(&backend, 1).await;
    let copy = postgres::copy_of(primary.url()).unwrap();
    let standby = postgres::run_in(copy.path(), postgres::free_port().unwrap(), &[]).unwrap();
    let refused = async || PostgresBackend::connect(config(&standby)).await.err();
    // It takes connections when it has recovered.
    let mut error = refused().await.unwrap();
    while error.to_string().contains("starts or stops") {
        tokio::time::sleep(Duration::from_millis(50)).await;
        error = refused().await.unwrap();
    }
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("standby"), "{error}");
    let other = PostgresBackend::connect(config(&primary)).await.unwrap();
    assert!(
        !other.info().survives.failover,
        "the copy is not waited for"
    );
    // More tokens than a sequence says ahead to a standby.
    let mut last = acquired(&backend, 2).await;
    for n in 3..100 {
        let token = acquired(&backend, n).await;
        assert!(token > last);
        last = token;
    }
    drop(primary);
    let mut connection = raw(&standby).await;
    sqlx::raw_sql("SELECT pg_promote()")
        .execute(&mut connection)
        .await
        .unwrap();
    let backend = PostgresBackend::connect(config(&standby)).await.unwrap();
    let session = SessionId::new(8);
    let label = Label::parse("").unwrap();
    backend
        .open(session, &label, Duration::from_secs(60))
        .await
        .unwrap();
    let grant = Grant { session, n: 1 };
    let owner = OwnerId { session, m: 1 };
    let answer = backend
        .acquire(&Acquire {
            grant,
            owner,
            ..request(1_000)
        })
        .await
        .unwrap();
    let Acquired::Acquired(token) = answer else {
        panic!("{answer:?}")
    };
    assert!(token > last, "{token} after {last}");
}

#[tokio::test]
async fn a_promise_to_wait_for_standbys_is_told() {
    let server = postgres::node(&[]).unwrap();
    let backend = PostgresBackend::connect(config(&server)).await.unwrap();
    open(&backend).await;
    let mut connection = raw(&server).await;
    sqlx::raw_sql("ALTER SYSTEM SET synchronous_standby_names = 'elsewhere'")
        .execute(&mut connection)
        .await
        .unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()")
        .execute(&mut connection)
        .await
        .unwrap();
    let show = "SHOW synchronous_standby_names";
    while sqlx::raw_sql(show)
        .fetch_one(&mut connection)
        .await
        .unwrap()
        .get::<&str, _>(0)
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let config = config(&server).timeout(Duration::from_millis(500));
    let backend = PostgresBackend::connect(config).await.unwrap();
    assert!(backend.info().survives.failover);
    // The standby does not answer: nothing is acknowledged.
    let renewal = Renewal {
        seq: 1,
        over: lockcore::Ranges::EMPTY,
        intent: lockcore::IntentChange::Keep,
    };
    let error = backend.renew(SESSION, &renewal).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
}
