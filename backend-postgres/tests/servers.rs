//! Servers of our own: killed while they work, started again, and a standby that takes over.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod nodes;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, ClaimStore, IntentChange, Ranges, Renewal, SessionStore,
};
use lockcore::{
    Attempt, Claim, ErrorKind, FencingToken, Grant, Label, LockBackend, LockKey, Locks, LostReason,
    OwnerId, Released, SessionId, Want,
};
use lockcore_postgres::{PostgresBackend, PostgresConfig};
use lockkeeper_servers::{Port, Server, postgres};
use nodes::{again, begun, config, kill, raw, taken_over, waited};
use sqlx::Row as _;
use tempfile::TempDir;

const SESSION: SessionId = SessionId::new(7);

fn request(n: u64) -> Acquire {
    let key = LockKey::parse(format!("k{n}")).unwrap();
    Acquire::new(
        Grant {
            session: SESSION,
            n,
        },
        OwnerId {
            session: SESSION,
            m: n,
        },
        vec![Claim::new(key, Want::Create).unwrap()],
    )
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

/// Several tasks acquire one key after the other until it is over; returns what was acknowledged.
async fn load(
    backend: &Arc<PostgresBackend>,
    next: &Arc<AtomicU64>,
    over: &Arc<AtomicBool>,
) -> Vec<(u64, FencingToken)> {
    let task = || {
        let (backend, next, over) = (Arc::clone(backend), Arc::clone(next), Arc::clone(over));
        tokio::spawn(async move {
            let mut held = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let n = next.fetch_add(1, Ordering::Relaxed);
                match backend.acquire(&request(n)).await {
                    Ok(Acquired::Acquired(token)) => held.push((n, token)),
                    Ok(answer) => panic!("{answer:?}"),
                    // The server may be about to end connections because of the one that was killed before.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
            held
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
    let (data, server) = begun().await;
    let port = server.port().unwrap();
    let backend = PostgresBackend::connect(config(&server)).await.unwrap();
    open(&backend).await;
    let next = Arc::new(AtomicU64::new(1));
    let mut held: Vec<(u64, FencingToken)> = Vec::new();

    // First one process of the server, whereupon it ends the others and recovers; then the server itself.
    for whole in [false, true] {
        let from = next.load(Ordering::Relaxed);
        let over = Arc::new(AtomicBool::new(false));
        let mut connection = raw(&server).await;
        let pid = i64::from(server.pid().unwrap());
        let killer = async {
            let enough = async {
                while next.load(Ordering::Relaxed) < from + 200 {
                    // From one look at the counter to the next.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), enough)
                .await
                .expect("200 requests in time");
            if whole {
                kill(pid);
                return over.store(true, Ordering::Relaxed);
            }
            let other =
                "SELECT pid::bigint FROM pg_stat_activity WHERE application_name = 'lockkeeper'
                         AND query LIKE '%acquire%' LIMIT 1";
            // Between two requests a connection may be at something else.
            let found = support::until("a connection acquires", async || {
                let found = sqlx::raw_sql(other).fetch_optional(&mut connection).await;
                found.unwrap()
            });
            kill(found.await.get(0));
            over.store(true, Ordering::Relaxed);
        };
        let (more, ()) = tokio::join!(load(&backend, &next, &over), killer);
        held.extend(more);
        if !whole {
            // It takes requests again by itself.
            support::until("a request is granted", async || {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Err(error) = backend.acquire(&request(n)).await else {
                    return Some(());
                };
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::Unavailable | ErrorKind::Indeterminate
                    ),
                    "{error}"
                );
                None
            })
            .await;
        }
    }
    drop(server);
    let server = again(data.path(), &port).await;
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
async fn guards_and_those_who_wait_outlive_a_restart() {
    let (data, server) = begun().await;
    let port = server.port().unwrap();
    let backend = PostgresBackend::connect(config(&server)).await.unwrap();
    let locks = Locks::builder(backend).build().unwrap();
    let other = PostgresBackend::connect(config(&server)).await.unwrap();
    let other = Locks::builder(other).build().unwrap();
    let guard = locks.documents(["d"]).acquire().await.unwrap();
    let token = guard.token();
    let waits = tokio::spawn(async move { other.documents(["d"]).acquire().await });
    let mut connection = raw(&server).await;
    support::until("somebody waits", async || {
        let rows = "SELECT count(*) FROM lockkeeper.waiters";
        let row = sqlx::raw_sql(rows).fetch_one(&mut connection).await;
        (row.unwrap().get::<i64, _>(0) == 1).then_some(())
    })
    .await;
    drop(server);
    let _server = again(data.path(), &port).await;
    // A lock that nobody can ask for just now is neither lost nor granted to somebody else.
    let held = async || guard.confirm().await.ok();
    assert!(support::until("the store answers", held).await);
    assert!(guard.is_valid() && !waits.is_finished());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let next = tokio::time::timeout(support::PATIENCE, waits).await;
    let next = next.expect("it is woken, or looks").unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn a_standby_is_refused_and_grants_greater_tokens_when_it_takes_over() {
    let primary = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = PostgresBackend::connect(config(&primary)).await.unwrap();
    assert!(backend.info().durability.failover, "there is no other copy");
    open(&backend).await;
    acquired(&backend, 1).await;
    let url = primary.url().to_owned();
    let (_copy, standby) = waited(move || {
        let copy = postgres::copy_of(&url).unwrap();
        let standby = postgres::run_in(copy.path(), &[]).unwrap();
        (copy, standby)
    })
    .await;
    let refused = async || PostgresBackend::connect(config(&standby)).await.err();
    // It takes connections when it has recovered.
    let error = support::until("the standby has recovered", async || {
        let error = refused().await.unwrap();
        (!error.to_string().contains("starts or stops")).then_some(error)
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("standby"), "{error}");
    let other = PostgresBackend::connect(config(&primary)).await.unwrap();
    assert!(
        !other.info().durability.failover,
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
    let mut asked = request(1_000);
    (asked.grant, asked.owner) = (grant, owner);
    let answer = backend.acquire(&asked).await.unwrap();
    let Acquired::Acquired(token) = answer else {
        panic!("{answer:?}")
    };
    assert!(token > last, "{token} after {last}");
}

/// A server, a client that renews every 40 s, and another client.
async fn with_clients() -> (TempDir, Port, Server, Locks, Locks) {
    let (data, server) = begun().await;
    let port = server.port().unwrap();
    let locks = async || {
        let backend = PostgresBackend::connect(config(&server)).await.unwrap();
        let locks = Locks::builder(backend as Arc<dyn LockBackend>);
        locks.ttl(Duration::from_secs(120)).build().unwrap()
    };
    let (ours, theirs) = (locks().await, locks().await);
    (data, port, server, ours, theirs)
}

#[tokio::test]
async fn what_a_server_that_takes_over_has_not_is_told_though_no_renewal_is_missing() {
    let (_data, port, primary, ours, theirs) = with_clients().await;
    let kept = ours.lock("kept").acquire().await.unwrap();
    let between = async { ours.lock("lost").acquire().await.unwrap() };
    let (_copy, server, lost) = taken_over(&port, primary, between).await;
    let again = theirs.lock("lost").wait(support::PATIENCE).acquire();
    let again = again.await.expect("nothing is known of its holder");
    assert!(again.token() > lost.token());
    // Who asks meets it before the next renewal.
    let new = ours.lock("new").wait(support::PATIENCE).acquire();
    let new = new.await.expect("another session is opened");
    assert_ne!(new.session(), kept.session());
    let told = async { tokio::join!(kept.lost(), lost.lost()) };
    let told = tokio::time::timeout(support::PATIENCE, told).await;
    let told = told.expect("they are told with the session");
    assert_eq!(told, (LostReason::Forgotten, LostReason::Forgotten));
    assert!(again.confirm().await.unwrap());
    assert_eq!(lost.release().await.unwrap(), Released::NotHeld);
    drop(server);
}

#[tokio::test]
async fn guards_outlive_a_server_if_the_one_that_takes_over_has_them() {
    let (_data, port, primary, ours, theirs) = with_clients().await;
    let kept = ours.lock("kept").acquire().await.unwrap();
    let many = ours.documents((0..1_500).map(|n| format!("d{n}")));
    let many = many.acquire().await.unwrap();
    let (_copy, server, ()) = taken_over(&port, primary, async {}).await;
    let new = ours.lock("new").wait(support::PATIENCE).acquire();
    let new = new.await.unwrap();
    assert_eq!(new.session(), kept.session());
    assert!(new.token() > many.token());
    for guard in [kept, many, new] {
        assert!(guard.is_valid() && guard.confirm().await.unwrap());
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    let again = theirs.lock("kept").try_acquire().await.unwrap();
    assert!(matches!(again, Attempt::Acquired(_)), "{again:?}");
    drop(server);
}

#[tokio::test]
async fn a_promise_to_wait_for_standbys_is_told_and_that_no_disk_is_waited_for() {
    let server = waited(|| postgres::node(&[("fsync", "off")]).unwrap()).await;
    let backend = PostgresBackend::connect(config(&server)).await.unwrap();
    let durability = backend.info().durability;
    assert!(durability.crash && !durability.power_loss);
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
    support::until("the setting is read", async || {
        let row = sqlx::raw_sql(show).fetch_one(&mut connection).await;
        (!row.unwrap().get::<&str, _>(0).is_empty()).then_some(())
    })
    .await;
    let config = config(&server).timeout(Duration::from_secs(2));
    let backend = PostgresBackend::connect(config).await.unwrap();
    assert!(backend.info().durability.failover);
    // The standby does not answer: nothing is acknowledged, from when the server's checkpointer has read the setting, too.
    let mut number = 0;
    let error = support::until("a renewal waits for the standby", async || {
        number += 1;
        let (ranges, keep) = (Ranges::EMPTY, IntentChange::Keep);
        let renewal = Renewal::new(number, ranges, keep);
        backend.renew(SESSION, &renewal).await.err()
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
}

/// An authority, and of a certificate for this machine that it has signed the names of the files: the authority's, the
/// certificate, its key.
fn certificates(folder: &Path) -> [String; 3] {
    let mut authority = rcgen::CertificateParams::new([]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertifiedIssuer::self_signed(authority, authority_key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &authority).unwrap();
    [
        ("ca.pem", authority.pem()),
        ("server.pem", certificate.pem()),
        ("key.pem", key.serialize_pem()),
    ]
    .map(|(name, pem)| {
        let path = folder.join(name);
        fs::write(&path, pem).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        postgres::give(&path).unwrap();
        path.display().to_string()
    })
}

#[tokio::test]
async fn tls_takes_the_authority_that_is_named_and_no_other() {
    let (data, ca, server) = waited(|| {
        let data = postgres::data().unwrap();
        let [ca, certificate, key] = certificates(data.path());
        let settings = [
            ("ssl", "on"),
            ("ssl_cert_file", &*certificate),
            ("ssl_key_file", &*key),
        ];
        let server = postgres::run_in(data.path(), &settings).unwrap();
        (data, ca, server)
    })
    .await;
    let port = server.port().unwrap();
    let url = server.url().replacen("http", "postgres", 1);
    let connect = async |options: String| {
        let config = PostgresConfig::parse(&format!("{url}?{options}")).unwrap();
        PostgresBackend::connect(config).await
    };
    let backend = connect(format!("sslmode=verify-full&sslrootcert={ca}")).await;
    let backend = backend.unwrap();
    open(&backend).await;
    acquired(&backend, 1).await;
    // What works and what listens, each is encrypted.
    let encrypted =
        "SELECT count(*), bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
                     WHERE a.application_name = 'lockkeeper'";
    let row = sqlx::raw_sql(encrypted)
        .fetch_one(&mut raw(&server).await)
        .await;
    let row = row.unwrap();
    assert!(row.get::<i64, _>(0) >= 2 && row.get::<bool, _>(1));

    let elsewhere = tempfile::tempdir().unwrap();
    let [other, ..] = certificates(elsewhere.path());
    for options in [
        format!("sslmode=verify-full&sslrootcert={other}"),
        format!("sslmode=verify-ca&sslrootcert={other}"),
        // The authorities that everybody knows have not signed it either.
        "sslmode=verify-full".to_owned(),
    ] {
        let error = connect(options.clone()).await.expect_err(&options);
        assert_eq!(error.kind(), ErrorKind::Config, "{options}: {error}");
        let mut said = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            said += &format!(" {error} {error:?}");
            source = error.source();
        }
        for password in ["p@ss", "p%40ss", "/word", "%2Fword"] {
            assert!(!said.contains(password), "{said}");
        }
    }

    // A server without is refused where the URL asks for it.
    drop(server);
    let _plain = again(data.path(), &port).await;
    let error = connect(format!("sslmode=verify-full&sslrootcert={ca}")).await;
    assert_eq!(error.err().unwrap().kind(), ErrorKind::Config);
}
