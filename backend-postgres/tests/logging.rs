//! Nothing of an intent comes into the program's log, also where a pooler's statements have it in them.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod support;

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockcore::backend::{IntentChange, Ranges, Registered, Renewal, SessionStore};
use lockcore::{FencingToken, Intent, Label, SessionId};
use lockcore_postgres::PostgresBackend;
use log::{LevelFilter, Log, Metadata, Record};
use sqlx::postgres::PgPoolOptions;

use support::Space;

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

#[tokio::test]
async fn an_intent_is_not_in_the_log() {
    log::set_logger(&KEPT).unwrap();
    log::set_max_level(LevelFilter::Trace);
    let space = Space::new().await;
    let pool = PgPoolOptions::new().connect_lazy_with(Space::driver_options());
    // The program's own statements are logged, until it gives the pool away.
    let query = "SELECT 1 AS the_programs_own";
    sqlx::raw_sql(query).fetch_one(&pool).await.unwrap();
    assert!(has("the_programs_own"), "nothing is logged here at all");
    pool.close().await;
    let pool = PgPoolOptions::new().connect_lazy_with(Space::driver_options());
    let pooled = || space.config().pooled();
    let backends = [
        PostgresBackend::connect(pooled()).await.unwrap(),
        PostgresBackend::from_pool(pool, pooled()).await.unwrap(),
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
    let kept = KEPT.0.lock().unwrap();
    for said in [payload, &hex] {
        let line = kept.lines().find(|line| line.contains(said));
        assert_eq!(line, None, "{said:?} is in the log");
    }
}
