//! What the tests share: the server that they talk to, and namespaces of their own that they remove.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockcore::backend::{Acquire, SessionStore as _};
use lockcore::{Claim, Grant, Label, LockKey, LockPath, OwnerId, SessionId, Want};
use lockcore_postgres::{PostgresBackend, PostgresConfig};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::sync::OnceCell;

/// In this variable is the URL of the server, without options. Its user may make schemas and roles.
pub const VARIABLE: &str = "LOCKKEEPER_TEST_POSTGRES";
/// The role with the least rights.
pub const ROLE: &str = "lockkeeper_test";
pub const PASSWORD: &str = "geheim";
/// What a server stores of that password, with one round of hashing: a connection costs no tenth of a second.
pub const VERIFIER: &str = "SCRAM-SHA-256$1:bG9ja2tlZXBlci10ZXN0cw==$\
    OhmyhtVyMXnwykq0hXmeNEHUkCJGYfakmuO1PILhdFg=:Zl2Gm9EJ45UTm2QrWmy84pG3D/RmHMSB4YvZH+kr3hY=";
/// Nothing that a test waits for takes longer.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The server's URL.
///
/// # Panics
///
/// Panics, and says what to do, if none is given.
pub fn server() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set: run `cargo xtask test --only postgres`, which starts a server, or set it to the URL \
             of one, as in postgres://postgres:secret@localhost/postgres"
        )
    })
}

/// The server's URL for the role with the least rights.
pub fn server_for_role() -> String {
    for_role(&server())
}

/// A server's URL for the role with the least rights.
fn for_role(server: &str) -> String {
    let (_, address) = server.rsplit_once('@').unwrap();
    format!("postgres://{ROLE}:{PASSWORD}@{address}")
}

/// A connection as the user of the server's URL.
pub async fn owner() -> PgConnection {
    PgConnection::connect(&server()).await.unwrap()
}

/// Runs statements as the user of the server's URL.
pub async fn sql(text: impl Into<String>) -> Vec<PgRow> {
    let text = text.into();
    let mut connection = owner().await;
    let rows = sqlx::raw_sql(AssertSqlSafe(text.clone())).fetch_all(&mut connection);
    let rows = rows.await.unwrap_or_else(|error| panic!("{error}: {text}"));
    connection.close().await.unwrap();
    rows
}

async fn make_role() {
    static MADE: OnceCell<()> = OnceCell::const_new();
    let make = async || {
        // Other test programs make it, too.
        sql(format!(
            "DO $$ BEGIN CREATE ROLE {ROLE} LOGIN PASSWORD '{VERIFIER}'; \
             EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        ))
        .await;
    };
    MADE.get_or_init(make).await;
}

/// Asks again until there is an answer, and panics where there is none in time: what it waits for is said.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(since.elapsed() < PATIENCE, "not in time: {what}");
        // From one look to the next.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A namespace of its own, which is removed in the end.
pub struct Space {
    pub namespace: String,
}

impl Space {
    pub async fn new() -> Self {
        make_role().await;
        let number: u64 = rand::random();
        let namespace = format!("test-{number:016x}");
        let config = format!("{}?namespace={namespace}&timeout_ms=20000", server());
        let config = PostgresConfig::parse(&config).unwrap();
        PostgresBackend::init(config, &[ROLE]).await.unwrap();
        Self { namespace }
    }

    /// How the role with the least rights reaches it.
    pub fn url(&self) -> String {
        self.url_at(&server())
    }

    /// How the role with the least rights reaches it by way of another server.
    pub fn url_at(&self, server: &str) -> String {
        let (server, namespace) = (for_role(server), &self.namespace);
        format!("{server}?namespace={namespace}&timeout_ms=20000&connections=4")
    }

    pub fn config(&self) -> PostgresConfig {
        PostgresConfig::parse(&self.url()).unwrap()
    }

    pub async fn connect(&self) -> Arc<PostgresBackend> {
        PostgresBackend::connect(self.config()).await.unwrap()
    }

    /// Runs statements beside the backend, as the owner; `{ns}` is the namespace's schema.
    pub async fn sql(&self, text: &str) -> Vec<PgRow> {
        sql(self.text(text)).await
    }

    /// `{ns}` is the namespace's schema.
    pub fn text(&self, text: &str) -> String {
        text.replace("{ns}", &format!("\"{}\"", self.namespace))
    }

    pub fn driver_options() -> PgConnectOptions {
        server_for_role().parse().unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let text = self.text("DROP SCHEMA IF EXISTS {ns} CASCADE");
        let remove = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                if let Ok(mut connection) = PgConnection::connect(&server()).await {
                    let text = format!("SET client_min_messages = warning; {text}");
                    let _ = sqlx::raw_sql(AssertSqlSafe(text))
                        .execute(&mut connection)
                        .await;
                }
            });
        };
        // Not on this thread, which may be in a runtime. What is left behind harms no other test.
        let _ = std::thread::spawn(remove).join();
    }
}

/// A session that does not become due.
pub async fn open(backend: &PostgresBackend) -> SessionId {
    let session = SessionId::new(rand::random());
    let label = Label::parse("").unwrap();
    let opened = backend.open(session, &label, Duration::from_secs(60));
    opened.await.unwrap();
    session
}

/// A request for one claim: of a path, to read it or to write it.
pub fn request(session: SessionId, n: u64, want: Want, key: &str) -> Acquire {
    let claim = match (LockPath::parse(key), want) {
        (Ok(path), Want::Read) => Claim::read(path),
        (Ok(path), _) => Claim::write(path),
        (Err(_), want) => Claim::new(LockKey::parse(key).unwrap(), want).unwrap(),
    };
    Acquire::new(Grant { session, n }, OwnerId { session, m: n }, vec![claim])
}
