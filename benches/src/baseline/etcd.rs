//! Bare keys on a lease, as locks without this library are made of.

use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};

use lockkeeper_workloads::{Failure, Granted, Lock, id};

/// Of a lease, in s: a week, longer than any measurement.
pub(crate) const TTL: i64 = 604_800;
/// Claims of a step of the backend.
const STEP: u32 = 125;
/// As long as a holder of the backend's.
const HOLDER: &str = "c/1/1700000000000";
/// As long as the name of a holder.
const GRANT: &str = "0123456789abcdef0123456789abcdef/1";

pub(crate) struct Baseline {
    client: Client,
    lease: i64,
}

impl Baseline {
    pub(crate) async fn new(url: &str) -> Self {
        let mut client = client(url).await;
        let lease = client
            .lease_grant(TTL, None)
            .await
            .expect("the server answers");
        Self {
            lease: lease.id(),
            client,
        }
    }

    async fn each_step(&mut self, count: u32, operation: impl Fn(String) -> TxnOp) {
        for from in (0..count).step_by(STEP as usize) {
            let numbers = from..count.min(from + STEP);
            let operations: Vec<TxnOp> = numbers
                .map(|n| operation(format!("baseline/{}/{GRANT}", id(n))))
                .collect();
            let done = self.client.txn(Txn::new().and_then(operations)).await;
            done.expect("the server answers");
        }
    }
}

/// A client of one server, or of a cluster.
pub(crate) async fn client(url: &str) -> Client {
    let hosts = url.split("://").nth(1).unwrap_or_default();
    let hosts = hosts.split(['/', '?']).next().unwrap_or_default();
    let urls: Vec<String> = hosts
        .split(',')
        .map(|host| format!("http://{host}"))
        .collect();
    let client = Client::connect(urls, None).await;
    client.expect("it is the URL of a server without users")
}

struct Pair {
    client: Client,
    lease: i64,
}

#[async_trait]
impl Lock for Pair {
    async fn turn(&self, key: &str, granted: &mut Granted<'_>) -> Result<(), Failure> {
        let mut client = self.client.clone();
        let key = format!("baseline/{key}/{GRANT}");
        let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
        let on_lease = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(key.as_str(), HOLDER, Some(on_lease));
        let taken = client
            .txn(Txn::new().when([absent]).and_then([put]))
            .await?;
        assert!(taken.succeeded());
        granted().over().await;
        assert_eq!(client.delete(key, None).await?.deleted(), 1);
        Ok(())
    }
}

#[async_trait]
impl super::Baseline for Baseline {
    async fn server(&mut self) -> String {
        let status = self.client.status().await.expect("the server answers");
        format!("etcd {}", status.version())
    }

    fn pair_is(&self) -> &'static str {
        "a transaction that creates a key on a lease, and its deletion"
    }

    fn pair(&self) -> Arc<dyn Lock> {
        Arc::new(Pair {
            client: self.client.clone(),
            lease: self.lease,
        })
    }

    fn many_is(&self) -> &'static str {
        "transactions of 125 puts, and of 125 deletions"
    }

    async fn put(&mut self, count: u32) {
        self.each_step(count, |key| TxnOp::put(key, HOLDER, None))
            .await;
    }

    async fn remove(&mut self, count: u32) {
        self.each_step(count, |key| TxnOp::delete(key, None)).await;
    }
}
