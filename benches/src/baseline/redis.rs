//! Bare keys, as locks without this library are made of.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{Commands as _, Script};

use crate::bystander::Request;
use lockkeeper_workloads::{Failure, Granted, Lock, id};

/// Keys of a step of the backend.
const STEP: u32 = 1_000;
/// As long as a holder of the backend's.
const HOLDER: &str = "c0123456789abcdef0123456789abcdef/1/1/1700000000000";

/// What everybody gives a key back with.
static DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
    )
});
/// All keys or none.
static SET_ALL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "for _, key in ipairs(KEYS) do if redis.call('EXISTS', key) == 1 then return 0 end end \
         for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', ARGV[2]) end return 1",
    )
});
static DELETE_ALL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "for _, key in ipairs(KEYS) do if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end end return 1",
    )
});

pub(crate) struct Baseline {
    connection: MultiplexedConnection,
}

fn client(url: &str) -> redis::Client {
    let host = url.split('?').next().unwrap_or_default();
    redis::Client::open(host).expect("it is the URL of one server")
}

/// Reads a small value.
pub(super) fn get(url: &str) -> Request {
    let mut connection = client(url).get_connection().expect("the server answers");
    let set = connection.set::<_, _, ()>("bystander", "value");
    set.expect("the server answers");
    Box::new(move || {
        let value: String = connection.get("bystander").expect("the server answers");
        assert_eq!(value, "value");
    })
}

impl Baseline {
    pub(crate) async fn new(url: &str) -> Self {
        let client = client(url);
        let connection = client.get_multiplexed_async_connection().await;
        Self {
            connection: connection.expect("the server answers"),
        }
    }

    async fn all(&mut self, script: &Script, count: u32) {
        let mut invocation = script.prepare_invoke();
        for n in 0..count {
            invocation.key(format!("{{baseline}}:{}", id(n)));
        }
        invocation.arg(HOLDER).arg(30_000);
        let done = invocation.invoke_async::<u32>(&mut self.connection).await;
        assert_eq!(done.expect("the server answers"), 1);
    }

    /// A command for each document, a step of them in flight.
    async fn each(&mut self, count: u32, command: impl Fn(&mut redis::Pipeline, String)) {
        for from in (0..count).step_by(STEP as usize) {
            let mut pipeline = redis::pipe();
            for n in from..count.min(from + STEP) {
                command(&mut pipeline, format!("{{baseline}}:{}", id(n)));
                pipeline.ignore();
            }
            let done = pipeline.query_async::<()>(&mut self.connection).await;
            done.expect("the server answers");
        }
    }
}

struct Pair(MultiplexedConnection);

#[async_trait]
impl Lock for Pair {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let (mut connection, key) = (self.0.clone(), format!("{{baseline}}:{key}"));
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(HOLDER).arg("NX").arg("PX").arg(30_000);
        assert!(set.query_async::<bool>(&mut connection).await?);
        granted().over().await;
        let mut delete = DELETE.key(key);
        let deleted = delete.arg(HOLDER).invoke_async::<u32>(&mut connection);
        assert_eq!(deleted.await?, 1);
        Ok(())
    }
}

#[async_trait]
impl super::Baseline for Baseline {
    async fn server(&mut self) -> String {
        let info = redis::cmd("INFO")
            .query_async::<redis::InfoDict>(&mut self.connection)
            .await
            .expect("the server answers");
        let version: String = info.get("redis_version").unwrap_or_default();
        let on = info.get("aof_enabled") == Some(1);
        let fsync = redis::cmd("CONFIG")
            .arg("GET")
            .arg("appendfsync")
            .to_owned();
        let fsync = fsync
            .query_async::<(String, String)>(&mut self.connection)
            .await;
        match fsync {
            Ok((_, fsync)) if on => format!("Redis {version}, appendonly, appendfsync {fsync}"),
            _ if on => format!("Redis {version}, appendonly"),
            _ => format!("Redis {version}, no appendonly"),
        }
    }

    fn pair_is(&self) -> &'static str {
        "SET NX PX, and the script that compares and deletes"
    }

    fn pair(&self) -> Arc<dyn Lock> {
        Arc::new(Pair(self.connection.clone()))
    }

    fn many_is(&self) -> &'static str {
        "up to 1,000 keys one script that sets them and one that deletes them, else SET and UNLINK, 1,000 in a pipeline"
    }

    async fn put(&mut self, count: u32) {
        if count <= STEP {
            return self.all(&SET_ALL, count).await;
        }
        self.each(count, |pipeline, key| {
            pipeline.cmd("SET").arg(key).arg(HOLDER);
        })
        .await;
    }

    async fn remove(&mut self, count: u32) {
        if count <= STEP {
            return self.all(&DELETE_ALL, count).await;
        }
        self.each(count, |pipeline, key| {
            pipeline.cmd("UNLINK").arg(key);
        })
        .await;
    }
}
