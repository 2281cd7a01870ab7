//! Bare rows in a table beside the namespace, through one connection of the same driver.

use async_trait::async_trait;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};

use crate::store::id;

/// Keys of a step of the backend.
const STEP: u32 = 1_000;

pub(crate) struct Floor {
    connection: PgConnection,
}

impl Floor {
    pub(crate) async fn new(url: &str) -> Self {
        // The driver leaves out what is ours.
        let address = url.split('?').next().unwrap_or_default();
        let options: PgConnectOptions = address.parse().expect("it is the URL of a server");
        let mut connection = PgConnection::connect_with(&options)
            .await
            .expect("the server is there");
        sqlx::raw_sql(
            "DROP TABLE IF EXISTS lockkeeper_floor;
             CREATE TABLE lockkeeper_floor (key text COLLATE \"C\" PRIMARY KEY, record bytea NOT NULL)",
        )
        .execute(&mut connection)
        .await
        .expect("a table can be made");
        Self { connection }
    }
}

#[async_trait]
impl super::Floor for Floor {
    fn pair_is(&self) -> &'static str {
        "INSERT … ON CONFLICT DO NOTHING and DELETE of one row, prepared"
    }

    async fn pair(&mut self) {
        for statement in [
            "INSERT INTO lockkeeper_floor VALUES ($1, decode(repeat('00', 64), 'hex')) ON CONFLICT DO NOTHING",
            "DELETE FROM lockkeeper_floor WHERE key = $1",
        ] {
            let done = sqlx::query(statement)
                .bind("pair")
                .execute(&mut self.connection)
                .await;
            assert_eq!(done.expect("it is written").rows_affected(), 1);
        }
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

impl Floor {
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
