//! Servers of a test's own: started, killed and started again, with another one's data.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

use std::path::Path;
use std::process::Command;

use lockcore_postgres::PostgresConfig;
use lockkeeper_servers::{Port, Server, postgres};
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;

use crate::support;

pub fn config(server: &Server) -> PostgresConfig {
    let url = server.url().replacen("http", "postgres", 1);
    // A slow machine has more to do than this test.
    PostgresConfig::parse(&(url + "?timeout_ms=20000")).unwrap()
}

/// A connection to a server, which may be about to recover.
pub async fn raw(server: &Server) -> PgConnection {
    let url = server.url().replacen("http", "postgres", 1);
    let connected = async || PgConnection::connect(&url).await.ok();
    support::until("a connection", connected).await
}

pub fn kill(pid: i64) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
}

/// Does what waits for a process, on a thread that may.
pub async fn waited<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// The data of a new server, and the server.
pub async fn begun() -> (TempDir, Server) {
    waited(|| {
        let data = postgres::data().unwrap();
        let server = postgres::run_in(data.path(), &[]).unwrap();
        (data, server)
    })
    .await
}

/// The server of this data again; what the killed one has left may hold it for a moment.
pub async fn again(data: &Path, port: &Port) -> Server {
    let (data, port) = (data.to_owned(), port.clone());
    waited(move || {
        for _ in 0..50 {
            if let Ok(server) = postgres::run_at(&port, &data, &[]) {
                return server;
            }
        }
        panic!("the server does not start again");
    })
    .await
}

/// A copy of what a server has now takes over at its address, while clients go on. `between` comes after the copy.
pub async fn taken_over<T>(
    port: &Port,
    primary: Server,
    between: impl Future<Output = T>,
) -> (TempDir, Server, T) {
    let url = primary.url().to_owned();
    let copy = waited(move || postgres::copy_of(&url).unwrap()).await;
    let done = between.await;
    drop(primary);
    let server = again(copy.path(), port).await;
    let promoted = async || {
        // It takes connections when it has recovered.
        let url = server.url().replacen("http", "postgres", 1);
        let mut connection = PgConnection::connect(&url).await.ok()?;
        let promoted = sqlx::raw_sql("SELECT pg_promote()").execute(&mut connection);
        promoted.await.ok()
    };
    support::until("the copy is promoted", promoted).await;
    (copy, server, done)
}
