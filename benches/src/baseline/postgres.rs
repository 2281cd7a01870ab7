//! Bare rows in a table beside the namespace, through the same driver.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};

use lockkeeper_workloads::{Failure, Granted, Lock, id};

/// Keys of a step of the backend.
const STEP: u32 = 1_000;

pub(crate) struct Baseline {
    options: PgConnectOptions,
    connection: PgConnection,
}

impl Baseline {
    pub(crate) async fn new(url: &str) -> Self {
        // The driver leaves out what is ours.
        let address = url.split('?').next().unwrap_or_default();
        let options: PgConnectOptions = address.parse().expect("it is the URL of a server");
        let connection = PgConnection::connect_with(&options).await;
        let mut connection = connection.expect("the server is there");
        sqlx::raw_sql(
            "DROP TABLE IF EXISTS lockkeeper_floor;
             CREATE TABLE lockkeeper_floor (key text COLLATE \"C\" PRIMARY KEY, record bytea NOT NULL)",
        )
        .execute(&mut connection)
        .await
        .expect("a table can be made");
        Self {
            options,
            connection,
        }
    }
}

struct Pair {
    options: PgConnectOptions,
    /// Those that nobody uses just now.
    kept: Mutex<Vec<PgConnection>>,
}

impl Pair {
    fn kept(&self) -> MutexGuard<'_, Vec<PgConnection>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Lock for Pair {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let kept = self.kept().pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => PgConnection::connect_with(&self.options).await?,
        };
        write(
            &mut connection,
            "INSERT INTO lockkeeper_floor VALUES ($1, decode(repeat('00', 64), 'hex')) ON CONFLICT DO NOTHING",
            key,
        )
        .await?;
        granted().over().await;
        write(
            &mut connection,
            "DELETE FROM lockkeeper_floor WHERE key = $1",
            key,
        )
        .await?;
        self.kept().push(connection);
        Ok(())
    }
}

async fn write(
    connection: &mut PgConnection,
    statement: &'static str,
    key: &str,
) -> Result<(), Failure> {
    let done = sqlx::query(statement).bind(key).execute(connection).await?;
    assert_eq!(done.rows_affected(), 1);
    Ok(())
}

#[async_trait]
impl super::Baseline for Baseline {
    async fn server(&mut self) -> String {
        let said: (String, String, String) = sqlx::query_as(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')",
        )
        .fetch_one(&mut self.connection)
        .await
        .expect("the server answers");
        let (version, fsync, commit) = said;
        let version = version.split(' ').next().unwrap_or_default();
        format!("PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}")
    }

    fn pair_is(&self) -> &'static str {
        "INSERT … ON CONFLICT DO NOTHING and DELETE of one row, prepared"
    }

    fn pair(&self) -> Arc<dyn Lock> {
        Arc::new(Pair {
            options: self.options.clone(),
            kept: Mutex::default(),
        })
    }

    fn many_is(&self) -> &'static str {
        "INSERT … SELECT unnest of 1,000 rows at a time; as many deletes"
    }

    async fn put(&mut self, count: u32) {
        let insert = "INSERT INTO lockkeeper_floor
                      SELECT k, decode(repeat('00', 64), 'hex') FROM unnest($1) k ON CONFLICT DO NOTHING";
        self.each(count, insert).await;
    }

    async fn remove(&mut self, count: u32) {
        self.each(
            count,
            "DELETE FROM lockkeeper_floor f USING unnest($1) k WHERE f.key = k",
        )
        .await;
    }
}

impl Baseline {
    /// Runs a statement for the documents of the numbers below `count`.
    async fn each(&mut self, count: u32, statement: &'static str) {
        for from in (0..count).step_by(STEP as usize) {
            let ids: Vec<String> = (from..count.min(from + STEP)).map(id).collect();
            let wanted = ids.len() as u64;
            let done = sqlx::query(statement)
                .bind(ids)
                .execute(&mut self.connection)
                .await;
            assert_eq!(done.expect("it is written").rows_affected(), wanted);
        }
    }
}
