//! Nothing of an intent comes into the program's log, also where a pooler's statements have it in them.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockcore::backend::{IntentChange, Ranges, Registered, Renewal, SessionStore};
use lockcore::{FencingToken, Intent, Label, SessionId};
use lockcore_postgres::{PostgresBackend, PostgresConfig};
use lockkeeper_servers::postgres;
use log::{LevelFilter, Log, Metadata, Record};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use support::{Space, server};

/// All that was logged, at whatever level.
struct Kept(Mutex<String>);

static KEPT: Kept = Kept(Mutex::new(String::new()));

impl Log for Kept {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(kept, "{} {}", record.target(), record.args()).unwrap();
    }

    fn flush(&self) {}
}

fn has(text: &str) -> bool {
    KEPT.0.lock().unwrap().contains(text)
}

/// Connections that pools have made.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// One of the program's own, of one connection.
fn pool(options: PgConnectOptions) -> PgPool {
    let pool = PgPoolOptions::new().max_connections(1);
    pool.after_connect(|_, _| {
        MADE.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    })
    .connect_lazy_with(options)
}

async fn says(pool: &PgPool, query: &'static str) {
    sqlx::raw_sql(query).execute(pool).await.unwrap();
    assert!(has(query), "nothing is logged here at all");
}

#[tokio::test]
async fn an_intent_is_not_in_the_log() {
    log::set_logger(&KEPT).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let space = Space::new().await;
    let start = || postgres::pgbouncer(&server(), &[(support::ROLE, support::VERIFIER)]);
    let pooler = tokio::task::spawn_blocking(start).await.unwrap().unwrap();
    let url = space.url_at(pooler.url());
    let by_pooler: PgConnectOptions = url.split('?').next().unwrap().parse().unwrap();
    let by_pooler = || {
        let options = by_pooler.clone().extra_float_digits(None);
        options.statement_cache_capacity(0)
    };
    // Its connection is there before it is given away; those of the others are made then.
    let old = pool(by_pooler());
    says(&old, "SELECT 1 AS said_before").await;
    let config = space.config().pooled();
    let from_pool = async |pool: &PgPool, config: &PostgresConfig| {
        let backend = PostgresBackend::from_pool(pool.clone(), config.clone());
        backend.await.unwrap()
    };
    let backends = [
        PostgresBackend::connect(config.clone()).await.unwrap(),
        from_pool(&old, &config).await,
        from_pool(&pool(by_pooler()), &config).await,
        from_pool(&pool(Space::driver_options()), &space.config()).await,
    ];
    let (payload, label) = ("of nobody's business", Label::parse("l").unwrap());
    let hex: String = payload.bytes().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    for (n, backend) in (1..).zip(backends) {
        let session = SessionId::new(n);
        let ttl = Duration::from_secs(60);
        backend.open(session, &label, ttl).await.unwrap();
        let put = IntentChange::Put(Registered {
            intent: Intent::new(payload).unwrap(),
            token: FencingToken::new(1).unwrap(),
        });
        let renewal = Renewal::new(1, Ranges::EMPTY, put);
        assert!(backend.renew(session, &renewal).await.unwrap().is_living());
    }
    // What the program itself says there is its own matter.
    says(&old, "SELECT 1 AS said_after").await;
    assert_eq!(MADE.load(Ordering::Relaxed), 3, "one for each pool");
    let kept = KEPT.0.lock().unwrap();
    for said in [payload, &hex] {
        let line = kept.lines().find(|line| line.contains(said));
        assert_eq!(line, None, "{said:?} is in the log");
    }
}
