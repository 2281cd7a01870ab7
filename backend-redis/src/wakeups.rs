//! `Wakeups`: one subscription for each process, which tells of every release and death of the namespace.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{self, Changed, Together, Wakeups};
use lockcore::{Claim, LockKey, Result};
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::RedisBackend;
use crate::link::Link;

/// How often the subscription is asked whether it still stands.
const PROBED: Duration = Duration::from_secs(5);

#[async_trait]
impl Wakeups for RedisBackend {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        // First the watch, then the subscription: what is told between the two is not missed.
        let watch = backend::Watches::add(&self.watches.all, claims);
        self.subscribed().await?;
        Ok(Box::pin(watch.changed()))
    }
}

impl RedisBackend {
    /// Makes sure that the subscription stands.
    async fn subscribed(&self) -> Result<()> {
        while !self.watches.standing().load(Ordering::Acquire) {
            let begin = || {
                let (watches, link) = (Arc::clone(&self.watches), Arc::clone(&self.link));
                let probed = Arc::clone(&self.subscription.probed);
                async move {
                    let probing = subscribe(watches, link).await?;
                    *probed.lock().unwrap_or_else(PoisonError::into_inner) = Some(probing);
                    Ok(())
                }
            };
            let within = self.link.config.timeout;
            if let Some(made) = self.subscription.making.make(within, begin).await {
                return made;
            }
        }
        Ok(())
    }
}

async fn subscribe(watches: Arc<Watches>, link: Arc<Link>) -> Result<Probed> {
    let stands = Arc::new(AtomicBool::new(true));
    let told = {
        let (watches, stands) = (Arc::clone(&watches), Arc::clone(&stands));
        move |push: PushInfo| {
            watches.told(&push, &stands);
            Ok::<(), std::convert::Infallible>(())
        }
    };
    let driver = link.subscribe(told).await?;
    let standing = Standing(Arc::clone(&watches), Arc::clone(&stands));
    #[expect(
        clippy::disallowed_methods,
        reason = "the task belongs to the subscription, and ends with the backend"
    )]
    let task = tokio::spawn(probe(link, driver, standing));
    *watches.standing() = stands;
    Ok(Probed(task.abort_handle()))
}

/// Keeps a subscription as long as it answers: what has gone silent on the way is broken, though nobody says so.
async fn probe(link: Arc<Link>, mut driver: MultiplexedConnection, _standing: Standing) {
    loop {
        tokio::time::sleep(PROBED).await;
        let answer = timeout(link.config.timeout, link.listen(&mut driver)).await;
        if !matches!(answer, Ok(Ok(()))) {
            return;
        }
    }
}

/// Who watches is told when it is dropped: also where the subscription ends with the runtime that it was made in.
struct Standing(Arc<Watches>, Arc<AtomicBool>);

impl Drop for Standing {
    fn drop(&mut self) {
        self.0.broken(&self.1);
    }
}

/// The subscription: a task that has its connection, which ends when this is dropped.
struct Probed(AbortHandle);

impl Drop for Probed {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The one of this process, if it was needed yet.
#[derive(Default)]
pub(crate) struct Subscription {
    probed: Arc<Mutex<Option<Probed>>>,
    making: Together<Result<()>>,
}

/// The watches of this process, and whether they are told.
#[derive(Default)]
pub(crate) struct Watches {
    /// Whether the last subscription stands.
    stands: Mutex<Arc<AtomicBool>>,
    all: Arc<backend::Watches>,
}

impl Watches {
    /// Somebody in the way of the key is due then: whoever watches it looks again.
    pub(crate) fn due(&self, key: &LockKey, within: Duration) {
        self.all.due(key, Instant::now() + within);
    }

    fn told(&self, push: &PushInfo, stands: &AtomicBool) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [_, Value::BulkString(what)]) => self.freed(what),
            (PushKind::SSubscribe, _) => {}
            // The connection is gone, or the namespace is at another node.
            _ => self.broken(stands),
        }
    }

    fn broken(&self, stands: &AtomicBool) {
        // Who watches by another one need not look again.
        if stands.swap(false, Ordering::AcqRel) {
            self.all.wake_all();
        }
    }

    /// Wakes those who may get their claim now that these keys were given back; `*` is any.
    fn freed(&self, what: &[u8]) {
        // Who connects says nothing, to see whether he may.
        if self.all.is_empty() || what.is_empty() {
            return;
        }
        let keys = std::str::from_utf8(what).unwrap_or("*");
        for key in keys.split('\n') {
            match LockKey::parse(key) {
                Ok(key) if keys != "*" => self.all.wake(&key),
                _ => self.all.wake_all(),
            }
        }
    }

    fn standing(&self) -> MutexGuard<'_, Arc<AtomicBool>> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
