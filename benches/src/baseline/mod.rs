//! What a store needs for the like of a lock without this library: nothing can be cheaper.
//!
//! A store has a file of its own here.

mod elasticsearch;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
mod postgres;
mod redis;
mod sqlite;

use std::sync::Arc;

use async_trait::async_trait;
use lockkeeper_workloads::Lock;

use crate::bystander::Request;
use crate::store::Store;

/// The store by itself, through the client that its backend uses, with the same settings.
#[async_trait]
pub(crate) trait Baseline: Send {
    /// What the server says it is, and how durable its writes are.
    async fn server(&mut self) -> String;

    /// What [`pair`](Self::pair) does, in a few words.
    fn pair_is(&self) -> &'static str;

    /// The cheapest durable write that takes a key and the cheapest that gives it back, one after the other.
    fn pair(&self) -> Arc<dyn Lock>;

    /// What [`put`](Self::put) and [`remove`](Self::remove) do, in a few words.
    fn many_is(&self) -> &'static str;

    /// Writes a record for each document of the numbers below `count` (see [`id`](lockkeeper_workloads::id)), as long as a
    /// lock's, as many at a time as the backend does.
    async fn put(&mut self, count: u32);

    /// Removes them, as a release has to.
    async fn remove(&mut self, count: u32);
}

/// The baseline of a store; `None` where there is none.
pub(crate) async fn of(store: &Store) -> Option<Box<dyn Baseline>> {
    match store.scheme() {
        "sqlite" => Some(Box::new(sqlite::Baseline::new(store.url()).await)),
        "elasticsearch" | "opensearch" => {
            Some(Box::new(elasticsearch::Baseline::new(store.url()).await))
        }
        #[cfg(feature = "etcd")]
        "etcd" => Some(Box::new(etcd::Baseline::new(store.url()).await)),
        "postgres" | "postgresql" => Some(Box::new(postgres::Baseline::new(store.url()).await)),
        "redis" => Some(Box::new(redis::Baseline::new(store.url()).await)),
        _ => None,
    }
}

/// What somebody else asks of the store meanwhile, whom the backend must not hold up; `None` where nothing is said of
/// that.
pub(crate) fn request_of_another(store: &Store) -> Option<Request> {
    match store.scheme() {
        "redis" => Some(redis::get(store.url())),
        _ => None,
    }
}
