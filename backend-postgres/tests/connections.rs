//! Connections that die in silence, servers that do not answer, and several servers in one URL.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod nodes;
mod support;

use std::cell::Cell;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockcore::backend::{
    Acquire, Acquired, ClaimStore, End, IntentChange, Ranges, Renewal, SessionStore, Wakeups,
};
use lockcore::{
    Claim, ErrorKind, Grant, Guard, Label, LockBackend, LockKey, LockPath, Locks, LostReason,
    OwnerId, Released, SessionId, Want,
};
use lockcore_postgres::{PostgresBackend, PostgresConfig};
use lockcore_trial::faults::{NetworkFault, Proxies};
use lockkeeper_servers::{Server, postgres};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tokio::time::timeout;

use nodes::{again, config, raw, waited};
use support::{PATIENCE, until};

const SESSION: SessionId = SessionId::new(7);
/// What was asked last on connections for operations.
const OURS: &str = "query LIKE '%\"lockkeeper\".%'";
/// Holds the latch of the key `k`.
const LATCH: &str = "BEGIN; SELECT pg_advisory_xact_lock(lockkeeper.latch('k'))";

/// Those for paths do not go together.
fn request(key: &str, n: u64) -> Acquire {
    let session = SESSION;
    let claim = match LockPath::parse(key) {
        Ok(path) => Claim::write(path),
        Err(_) => Claim::new(LockKey::parse(key).unwrap(), Want::Create).unwrap(),
    };
    Acquire::new(Grant { session, n }, OwnerId { session, m: n }, vec![claim])
}

async fn open(backend: &PostgresBackend) {
    let label = Label::parse("test").unwrap();
    let opened = backend.open(SESSION, &label, Duration::from_secs(600));
    opened.await.unwrap();
}

/// A backend that waits as long for an answer, and its session.
async fn begun(server: &Server, most: usize, ms: u64) -> Arc<PostgresBackend> {
    let config = config(server).connections(most);
    let backend = PostgresBackend::connect(config.timeout(Duration::from_millis(ms)));
    let backend = backend.await.unwrap();
    open(&backend).await;
    backend
}

/// A backend with as many idle connections.
async fn with_connections(server: &Server, most: usize) -> Arc<PostgresBackend> {
    let backend = begun(server, most, 10_000).await;
    let mut holding = raw(server).await;
    // On a slow machine it takes a while until each has a connection.
    let patient = "ALTER FUNCTION lockkeeper.acquire_one SET lock_timeout = '1min'";
    sqlx::raw_sql(patient).execute(&mut holding).await.unwrap();
    sqlx::raw_sql(LATCH).execute(&mut holding).await.unwrap();
    let asks: Vec<_> = (0..most)
        .map(|n| {
            let backend = Arc::clone(&backend);
            let n = u64::try_from(n).unwrap() + 1_000;
            tokio::spawn(async move { backend.acquire(&request("k", n)).await })
        })
        .collect();
    // In one transaction, the server would say the same again.
    let mut by = raw(server).await;
    until("all wait for the latch", async || {
        (pids(&mut by, "query LIKE '%acquire%'").await.len() == most).then_some(())
    })
    .await;
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut holding)
        .await
        .unwrap();
    for ask in asks {
        ask.await.unwrap().unwrap();
    }
    backend
}

/// The server's processes for our connections that are so.
async fn pids(by: &mut PgConnection, so: &str) -> Vec<i32> {
    let text = format!(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'lockkeeper' AND {so} ORDER BY pid"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(by).await;
    rows.unwrap().iter().map(|row| row.get(0)).collect()
}

fn signal(name: &str, pids: &[i32]) {
    let pids = pids.iter().map(ToString::to_string);
    let sent = Command::new("kill").arg(name).args(pids).status();
    assert!(sent.unwrap().success());
}

/// A request that is no renewal.
async fn looks(backend: &PostgresBackend) -> lockcore::Result<()> {
    let other = [SessionId::new(9)];
    backend.end(&other, End::IfDue).await.map(drop)
}

async fn renews(backend: &PostgresBackend, number: u64) -> lockcore::Result<()> {
    let renewal = Renewal::new(number, Ranges::EMPTY, IntentChange::Keep);
    backend.renew(SESSION, &renewal).await.map(drop)
}

#[tokio::test]
async fn connections_that_died_in_silence_cost_one_time_out_and_not_one_each() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = with_connections(&server, 4).await;
    let mut by = raw(&server).await;
    let dead = pids(&mut by, OURS).await;
    assert_eq!(dead.len(), 4, "{dead:?}");
    signal("-STOP", &dead);
    let first = renews(&backend, 1).await;
    let then = renews(&backend, 2).await;
    // What is stopped is not ended by the server either.
    signal("-CONT", &dead);
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Indeterminate);
    then.expect("it goes by a new connection");
}

/// As where a server restarts.
#[tokio::test]
async fn connections_that_the_server_ends_cost_one_request_and_not_one_each() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = with_connections(&server, 4).await;
    let mut by = raw(&server).await;
    let ended = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE application_name = 'lockkeeper' AND {OURS}"
    );
    let ended = sqlx::raw_sql(AssertSqlSafe(ended)).fetch_all(&mut by).await;
    assert_eq!(ended.unwrap().len(), 4);
    until("they are gone", async || {
        pids(&mut by, OURS).await.is_empty().then_some(())
    })
    .await;
    let first = renews(&backend, 1).await;
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Indeterminate);
    renews(&backend, 2).await.expect("by a new connection");
}

/// Its process at the server may be at work still, and so may those of the others.
#[tokio::test]
async fn a_late_renewal_leaves_its_place_to_the_next() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = begun(&server, 1, 3_000).await;
    let mut by = raw(&server).await;
    let mut dead = pids(&mut by, OURS).await;
    assert_eq!(dead.len(), 1, "{dead:?}");
    signal("-STOP", &dead);
    let other = {
        let backend = Arc::clone(&backend);
        tokio::spawn(async move { looks(&backend).await })
    };
    // It takes that one.
    tokio::task::yield_now().await;
    renews(&backend, 1).await.unwrap();
    let own = format!("{OURS} AND pid <> {}", dead[0]);
    let second = pids(&mut by, &own).await;
    assert_eq!(second.len(), 1, "{second:?}");
    signal("-STOP", &second);
    dead.extend(second);
    let late = renews(&backend, 2).await;
    let begun = Instant::now();
    let next = renews(&backend, 3).await;
    let took = begun.elapsed();
    signal("-CONT", &dead);
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Indeterminate);
    next.unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(other.await.unwrap().is_err());
}

/// Who lets new connections in.
async fn postmaster(server: &Server) -> i32 {
    let text = "SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int";
    let row = sqlx::raw_sql(text).fetch_one(&mut raw(server).await).await;
    row.unwrap().get(0)
}

/// Where many log in at once, a new connection takes longer than what the others are used for.
#[tokio::test]
async fn who_makes_a_connection_takes_one_that_comes_back_before() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = begun(&server, 8, 20_000).await;
    let postmaster = [postmaster(&server).await];
    // Nobody is let in any more; who is in is served.
    signal("-STOP", &postmaster);
    let asks: Vec<_> = (1..=8)
        .map(|n| {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { renews(&backend, n).await })
        })
        .collect();
    let mut answers = Vec::new();
    for ask in asks {
        answers.push(timeout(Duration::from_secs(10), ask).await);
    }
    signal("-CONT", &postmaster);
    for answer in answers {
        answer.expect("it waits for a login").unwrap().unwrap();
    }
    // And what was begun meanwhile is of use.
    renews(&backend, 9).await.unwrap();
}

/// Whoever returns a connection and needs one at once does not take it again before those who wait.
#[tokio::test]
async fn who_waits_for_a_connection_has_the_next_that_comes_back_and_renewals_first() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = begun(&server, 8, 20_000).await;
    let postmaster = [postmaster(&server).await];
    signal("-STOP", &postmaster);
    // Two of them: there is always one more that waits.
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { while looks(&backend).await.is_ok() {} })
        })
        .collect();
    let mut answers = Vec::new();
    for number in 1..=20 {
        // Else this task would be the one that takes it again.
        tokio::task::yield_now().await;
        let look = timeout(Duration::from_secs(10), looks(&backend)).await;
        tokio::task::yield_now().await;
        let renewal = timeout(Duration::from_secs(10), renews(&backend, number)).await;
        let in_turn = look.is_ok() && renewal.is_ok();
        answers.extend([look, renewal]);
        if !in_turn {
            break;
        }
    }
    signal("-CONT", &postmaster);
    for one in busy {
        one.abort();
        // What it has begun goes with it: else the server waits a minute for a login that nobody goes on with.
        assert!(one.await.is_err_and(|ended| ended.is_cancelled()));
    }
    for answer in answers {
        answer.expect("it has its turn").unwrap();
    }
}

#[tokio::test]
async fn a_renewal_waits_for_no_other_request() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = begun(&server, 1, 20_000).await;
    let mut holding = raw(&server).await;
    sqlx::raw_sql(LATCH).execute(&mut holding).await.unwrap();
    let waits = {
        let backend = Arc::clone(&backend);
        tokio::spawn(async move { backend.acquire(&request("k", 1)).await })
    };
    let mut by = raw(&server).await;
    until("it waits for the latch", async || {
        let waiting = pids(&mut by, "wait_event_type = 'Lock'").await;
        (waiting.len() == 1).then_some(())
    })
    .await;
    renews(&backend, 1).await.unwrap();
    assert!(!waits.is_finished(), "it still waits for the latch");
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut holding)
        .await
        .unwrap();
    waits.await.unwrap().unwrap();
}

/// A program may keep a request and do something else first.
#[tokio::test]
async fn a_request_that_nobody_polls_keeps_nobody_from_a_new_connection() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = begun(&server, 8, 20_000).await;
    let mut seq = 0;
    let (first, mut kept) = loop {
        seq += 3;
        let mut first = Box::pin(renews(&backend, seq));
        // The one has the connection that is there, unless it is answered at once; the other begins to make one.
        if futures_util::poll!(&mut first).is_pending() {
            break (first, Box::pin(renews(&backend, seq + 1)));
        }
    };
    assert!(futures_util::poll!(&mut kept).is_pending());
    let third = timeout(Duration::from_secs(10), renews(&backend, seq + 2)).await;
    third.expect("it makes a connection").unwrap();
    first.await.unwrap();
    kept.await.unwrap();
}

#[tokio::test]
async fn a_late_time_out_closes_no_connection_that_has_answered_since() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = with_connections(&server, 2).await;
    let mut by = raw(&server).await;
    let all = pids(&mut by, OURS).await;
    // The one that was used last is used next, and does not answer.
    renews(&backend, 1).await.unwrap();
    let text = format!(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'lockkeeper' AND {OURS}
         ORDER BY state_change DESC LIMIT 1"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(text)).fetch_one(&mut by).await;
    let dead: i32 = row.unwrap().get(0);
    signal("-STOP", &[dead]);
    let is_late = Cell::new(false);
    let late = async {
        let late = renews(&backend, 2).await;
        is_late.set(true);
        late
    };
    // Until it is late, the other one answers.
    let meanwhile = async {
        let mut number = 3;
        while !is_late.get() {
            renews(&backend, number).await.unwrap();
            number += 1;
            // Few requests are enough; the other side ends the loop.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        number
    };
    // In this order: the first one takes the dead connection.
    let (late, number) = tokio::join!(late, meanwhile);
    renews(&backend, number).await.unwrap();
    let others: Vec<i32> = all.into_iter().filter(|pid| *pid != dead).collect();
    let now = pids(&mut by, &format!("{OURS} AND pid <> {dead}")).await;
    signal("-CONT", &[dead]);
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert_eq!(now, others);
}

/// The server's processes, which listen to signals for themselves; the one that starts them comes first.
async fn processes(server: &Server) -> Vec<i32> {
    let mut all = vec![postmaster(server).await];
    let text = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
    let rows = sqlx::raw_sql(text).fetch_all(&mut raw(server).await).await;
    all.extend(rows.unwrap().iter().map(|row| row.get::<i32, _>(0)));
    all
}

#[tokio::test]
async fn a_standby_that_is_lost_does_not_exhaust_the_servers_connections() {
    const MOST: usize = 3;
    let primary = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = begun(&primary, MOST, 1_000).await;
    let (_copy, standby) = standby_of(primary.url().to_owned()).await;
    let mut by = raw(&primary).await;
    for text in [
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(text).execute(&mut by).await.unwrap();
    }
    let synchronous = "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("the standby is waited for", async || {
        let found = sqlx::raw_sql(synchronous).fetch_optional(&mut by).await;
        found.unwrap()
    })
    .await;
    // It is there, and answers.
    backend.acquire(&request("before", 1)).await.unwrap();

    let lost = processes(&standby).await;
    signal("-STOP", &lost);
    let clients: Vec<_> = (0..4 * MOST)
        .map(|client| {
            let backend = Arc::clone(&backend);
            let first = 1_000 * (u64::try_from(client).unwrap() + 1);
            tokio::spawn(async move {
                let mut errors = Vec::new();
                for n in first..first + 4 {
                    let key = format!("/k{n}");
                    errors.push(backend.acquire(&request(&key, n)).await.err());
                }
                errors
            })
        })
        .collect();
    let mut number = 0;
    let (mut most, mut renewed) = (0, Vec::new());
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        number += 1;
        renewed.push(renews(&backend, number).await.err());
        let waiting = pids(&mut by, "wait_event = 'SyncRep'").await.len();
        most = most.max(waiting);
    }
    let mut errors = Vec::new();
    for client in clients {
        errors.extend(client.await.unwrap());
    }
    signal("-CONT", &lost);
    // Nothing is acknowledged without it.
    assert!(
        errors.iter().chain(&renewed).all(Option::is_some),
        "{errors:?} {renewed:?}"
    );
    // A renewal has one more than the others, and one that was late may be there still.
    assert!(
        (MOST + 1..=MOST + 2).contains(&most),
        "{most} processes wait"
    );

    until("renewals go on", async || {
        number += 1;
        renews(&backend, number).await.ok()
    })
    .await;
    // What was asked meanwhile may have been granted; it is given back, and everybody goes on.
    for (client, n) in (1..).zip(20_000..20_000 + 4 * u64::try_from(MOST).unwrap()) {
        for asked in 1_000 * client..1_000 * client + 4 {
            let request = request(&format!("/k{asked}"), asked);
            let released = backend.release(request.grant, &request.claims);
            released.await.unwrap();
        }
        let again = request(&format!("/k{}", 1_000 * client), n);
        let acquired = backend.acquire(&again).await.unwrap();
        assert!(matches!(acquired, Acquired::Acquired(_)), "{acquired:?}");
    }
    drop(standby);
}

#[tokio::test]
async fn a_latch_is_given_up_before_its_client_gives_up() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = begun(&server, 1, 4_000).await;
    let mut holding = raw(&server).await;
    sqlx::raw_sql(LATCH).execute(&mut holding).await.unwrap();
    // That nothing was done is known.
    let error = backend.acquire(&request("k", 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// What lies between has forgotten the connection that listens.
#[tokio::test]
async fn a_connection_that_listens_in_vain_is_noticed() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let backend = begun(&server, 1, 10_000).await;
    let mut by = raw(&server).await;
    let listens = pids(&mut by, &format!("NOT {OURS}")).await;
    assert_eq!(listens.len(), 1);
    let claims = request("k", 1).claims;
    let watch = backend.watch(&claims).await.unwrap();
    signal("-STOP", &listens);
    let told = timeout(PATIENCE, watch).await;
    signal("-CONT", &listens);
    told.expect("everybody looks when it is noticed");
    let again = async || backend.watch(&claims).await.ok();
    let watch = until("somebody listens again", again).await;
    let grant = Grant {
        session: SESSION,
        n: 1,
    };
    backend.release(grant, &claims).await.unwrap();
    timeout(PATIENCE, watch).await.expect("it is told");
}

#[tokio::test]
async fn who_waits_behind_a_network_that_swallows_everything_is_woken() {
    let server = waited(|| postgres::node(&[]).unwrap()).await;
    let proxies = Proxies::new().unwrap();
    let proxy = proxies.start(&address(&server), 1).unwrap();
    let url = server.url().replacen("http", "postgres", 1);
    let url = url.replace(&address(&server), &format!("127.0.0.1:{}", proxy.port()));
    let url = url + "?timeout_ms=3000";
    let backend = PostgresBackend::connect(PostgresConfig::parse(&url).unwrap());
    let backend = backend.await.unwrap();
    let claims = request("k", 1).claims;
    let watch = backend.watch(&claims).await.unwrap();
    proxy.strike(NetworkFault::Silent);
    let told = timeout(PATIENCE, watch).await;
    assert!(proxy.mend(), "something was held");
    told.expect("everybody looks when it is noticed");
    let again = async || backend.watch(&claims).await.ok();
    drop(until("somebody listens again", again).await);
}

/// `HOST:PORT`.
fn address(server: &Server) -> String {
    let (_, rest) = server.url().rsplit_once('@').unwrap();
    rest.split('/').next().unwrap().to_owned()
}

async fn several(servers: &[&Server]) -> Result<Arc<PostgresBackend>, lockcore::Error> {
    let (first, rest) = servers.split_first().unwrap();
    let rest: String = rest
        .iter()
        .map(|server| format!(",{}", address(server)))
        .collect();
    let url = first.url().replacen("http", "postgres", 1);
    let url = url.replace(&address(first), &(address(first) + &rest));
    let url = url + "?target_session_attrs=read-write&timeout_ms=20000";
    PostgresBackend::connect(PostgresConfig::parse(&url).unwrap()).await
}

async fn held(locks: &Locks, key: &str) -> Guard {
    let acquired = locks.lock(key).wait(PATIENCE).acquire().await;
    acquired.unwrap_or_else(|error| panic!("{key}: {error}"))
}

fn client(backend: Arc<PostgresBackend>) -> Locks {
    let locks = Locks::builder(backend as Arc<dyn LockBackend>);
    locks.ttl(Duration::from_secs(120)).build().unwrap()
}

/// A standby of the server at that URL, with the folder of its data.
async fn standby_of(url: String) -> (tempfile::TempDir, Server) {
    let begun = waited(move || {
        let copy = postgres::copy_of(&url).unwrap();
        let standby = postgres::run_in(copy.path(), &[]).unwrap();
        (copy, standby)
    });
    begun.await
}

/// Its standby has everything.
async fn has_caught_up(primary: &mut PgConnection) {
    let caught_up =
        "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
    until("the standby has it", async || {
        let row = sqlx::raw_sql(caught_up).fetch_one(&mut *primary).await;
        (row.unwrap().get::<i64, _>(0) == 1).then_some(())
    })
    .await;
}

/// An old primary that was only cut off goes on, and so does whoever is connected to it.
#[tokio::test]
async fn who_is_connected_to_an_old_primary_leaves_it_while_it_lives() {
    let primary = waited(|| postgres::node(&[]).unwrap()).await;
    let url = primary.url().to_owned();
    drop(PostgresBackend::connect(config(&primary)).await.unwrap());
    let (_copy, standby) = standby_of(url).await;
    let ours = several(&[&primary, &standby]).await.unwrap();
    open(&ours).await;
    let promote = "SELECT pg_promote()";
    let mut other = raw(&standby).await;
    sqlx::raw_sql(promote).execute(&mut other).await.unwrap();
    let since = Instant::now();
    let mut number = 0;
    let error = until("it hears of the other", async || {
        number += 1;
        renews(&ours, number).await.err()
    })
    .await;
    assert!(error.to_string().contains("two of the servers"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "it passes");
    assert!(
        since.elapsed() < Duration::from_secs(20),
        "{:?}",
        since.elapsed()
    );
    drop(other);
    drop(standby);
    // An operator has decided.
    until("it goes on", async || renews(&ours, number + 1).await.ok()).await;
}

/// A primary that takes no new connections once its standby has replaced it, and goes on with those that it has.
struct OldPrimary {
    database: String,
    /// A connection to another database: who is connected to one cannot close it.
    by: PgConnection,
    /// A connection to its database, for whoever holds something there.
    holding: PgConnection,
    /// With a session.
    ours: Arc<PostgresBackend>,
    standby: Server,
    _primary: Server,
    _copy: tempfile::TempDir,
}

impl OldPrimary {
    async fn new() -> Self {
        let primary = waited(|| postgres::node(&[]).unwrap()).await;
        let url = primary.url().to_owned();
        drop(PostgresBackend::connect(config(&primary)).await.unwrap());
        let mut holding = raw(&primary).await;
        // On a slow machine it takes a while until somebody is asked.
        let patient = "ALTER FUNCTION lockkeeper.acquire_one SET lock_timeout = '1min'";
        sqlx::raw_sql(patient).execute(&mut holding).await.unwrap();
        let (copy, standby) = standby_of(url.clone()).await;
        let (server, database) = url.rsplit_once('/').unwrap();
        let aside = format!("{server}/template1").replacen("http", "postgres", 1);
        let by = PgConnection::connect(&aside).await.unwrap();
        let ours = several(&[&primary, &standby]).await.unwrap();
        open(&ours).await;
        Self {
            database: database.to_owned(),
            by,
            holding,
            ours,
            standby,
            _primary: primary,
            _copy: copy,
        }
    }

    /// The standby is promoted. A connection to it.
    async fn is_replaced(&mut self) -> PgConnection {
        let mut other = raw(&self.standby).await;
        let promote = "SELECT pg_promote()";
        sqlx::raw_sql(promote).execute(&mut other).await.unwrap();
        let close = format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", self.database);
        let close = sqlx::raw_sql(AssertSqlSafe(close));
        close.execute(&mut self.by).await.unwrap();
        other
    }
}

/// An old primary that takes no new connection goes on with those that it has, and does not answer the question which one is
/// the primary: whoever needs one more connection meets the new one.
#[tokio::test]
async fn who_meets_the_new_primary_leaves_its_connections_to_the_old_one() {
    let mut old = OldPrimary::new().await;
    let ours = Arc::clone(&old.ours);
    has_caught_up(&mut old.by).await;
    sqlx::raw_sql(LATCH)
        .execute(&mut old.holding)
        .await
        .unwrap();
    let asks = [1, 2].map(|n| {
        let ours = Arc::clone(&ours);
        tokio::spawn(async move { ours.acquire(&request("k", n)).await })
    });
    until("both wait for the latch", async || {
        (pids(&mut old.by, "query LIKE '%acquire%'").await.len() == 2).then_some(())
    })
    .await;
    let mut other = old.is_replaced().await;
    renews(&ours, 1).await.unwrap();
    assert_eq!(pids(&mut other, OURS).await.len(), 1, "it was asked there");
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut old.holding)
        .await
        .unwrap();
    for ask in asks {
        ask.await.unwrap().unwrap();
    }
    until("the old one is left", async || {
        pids(&mut old.by, "true").await.is_empty().then_some(())
    })
    .await;
    renews(&ours, 2).await.unwrap();
}

/// The same, where no more connections are needed: whoever asks which one is the primary compares with the server that the
/// requests go to, and not with the one that was found last, as by who listens.
#[tokio::test]
async fn who_listens_at_the_new_primary_does_not_hide_it_from_the_rest() {
    let mut old = OldPrimary::new().await;
    let ours = Arc::clone(&old.ours);
    let held = request("held", 9);
    ours.acquire(&held).await.unwrap();
    let _watch = ours.watch(&held.claims).await.unwrap();
    has_caught_up(&mut old.by).await;
    sqlx::raw_sql(LATCH)
        .execute(&mut old.holding)
        .await
        .unwrap();
    let ask = {
        let ours = Arc::clone(&ours);
        tokio::spawn(async move { ours.acquire(&request("k", 1)).await })
    };
    let asks = "query LIKE '%acquire%'";
    until("it waits for the latch", async || {
        (pids(&mut old.by, asks).await.len() == 1).then_some(())
    })
    .await;
    renews(&ours, 1).await.unwrap();
    let _other = old.is_replaced().await;
    // Of two connections, the one that is idle ends. Nobody needs another one since.
    let idle = pids(&mut old.by, "query LIKE '%renew%'").await;
    assert_eq!(idle.len(), 1);
    let ends = format!("SELECT pg_terminate_backend({})", idle[0]);
    let ends = sqlx::raw_sql(AssertSqlSafe(ends));
    ends.execute(&mut old.by).await.unwrap();
    renews(&ours, 2).await.unwrap_err();
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut old.holding)
        .await
        .unwrap();
    ask.await.unwrap().unwrap();
    let mut number = 2;
    until("the old one is left", async || {
        number += 1;
        renews(&ours, number).await.unwrap();
        pids(&mut old.by, "query LIKE '%renew%'")
            .await
            .is_empty()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn of_several_servers_the_primary_is_used_and_two_of_them_are_refused() {
    let primary = waited(|| postgres::node(&[]).unwrap()).await;
    let url = primary.url().to_owned();
    let first = PostgresBackend::connect(config(&primary)).await.unwrap();
    let (_copy, standby) = standby_of(url).await;
    drop(first);
    let ours = client(several(&[&standby, &primary]).await.unwrap());
    let theirs = client(several(&[&primary, &standby]).await.unwrap());
    // By two names it is one server.
    let twice = client(several(&[&primary, &primary]).await.unwrap());
    let kept = held(&ours, "kept").await;
    let released = held(&twice, "twice").await.release().await;
    assert_eq!(released.unwrap(), Released::Released);
    let mut connection = raw(&primary).await;
    has_caught_up(&mut connection).await;
    // It is cut off, and goes on.
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
    let promote = "SELECT pg_promote()";
    let mut other = raw(&standby).await;
    sqlx::raw_sql(promote).execute(&mut other).await.unwrap();
    sqlx::raw_sql(cut).execute(&mut connection).await.unwrap();
    let lost = held(&ours, "lost").await;
    let error = several(&[&primary, &standby]).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("two of the servers"), "{error}");
    drop(connection);
    drop(primary);
    // Clients go on with the other one by themselves.
    let next = held(&theirs, "lost").await;
    assert!(
        next.token() > lost.token(),
        "{} after {}",
        next.token(),
        lost.token()
    );
    let new = held(&ours, "new").await;
    assert!(new.token() > next.token());
    let told = timeout(PATIENCE, lost.lost()).await;
    assert_eq!(told.expect("it is told"), LostReason::Forgotten);
    assert!(!kept.is_valid(), "it is of the same session");
    assert!(next.confirm().await.unwrap());
}

#[tokio::test]
async fn guards_move_to_the_server_that_takes_over_and_an_old_primary_that_comes_back_is_refused() {
    let (data, primary) = nodes::begun().await;
    let port = primary.port().unwrap();
    let url = primary.url().to_owned();
    let (_copy, standby) = standby_of(url).await;
    let backend = several(&[&primary, &standby]).await.unwrap();
    let locks = client(Arc::clone(&backend));
    let kept = held(&locks, "kept").await;
    let claims = request("kept", 1).claims;
    let mut connection = raw(&primary).await;
    has_caught_up(&mut connection).await;
    drop(connection);
    drop(primary);
    let mut other = raw(&standby).await;
    sqlx::raw_sql("SELECT pg_promote()")
        .execute(&mut other)
        .await
        .unwrap();
    let next = held(&locks, "next").await;
    assert!(next.token() > kept.token());
    assert_eq!(next.session(), kept.session());
    assert!(kept.is_valid() && kept.confirm().await.unwrap());
    // Who waits is told by the one that took over.
    let listens = async || backend.watch(&claims).await.ok();
    let watch = until("somebody listens there", listens).await;
    let old = again(data.path(), &port).await;
    let error = several(&[&old, &standby]).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert_eq!(kept.release().await.unwrap(), Released::Released);
    timeout(PATIENCE, watch).await.expect("it is told");
}
