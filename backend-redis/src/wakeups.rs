//! `Wakeups`: one subscription for each process. It tells the owners of sessions of what operators do to those, and once
//! somebody has waited, of every release and death of the namespace.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{self, Changed, Host, Task, Together, Wakeups};
use lockcore::{Claim, LockKey, Result, SessionId};
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
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
        self.subscribed(true).await?;
        Ok(Box::pin(watch.changed()))
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        let watch = backend::Watches::add_session(&self.watches.all, session);
        self.subscribed(false).await?;
        Ok(Box::pin(watch.changed()))
    }
}

impl RedisBackend {
    /// Makes sure that the subscription stands, and tells of releases if that is wanted.
    async fn subscribed(&self, releases: bool) -> Result<()> {
        while !self.watches.standing().tells(releases) {
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
                // It may have been begun for less.
                made?;
            }
        }
        Ok(())
    }
}

async fn subscribe(watches: Arc<Watches>, link: Arc<Link>) -> Result<Task> {
    // It goes on telling of releases: nobody should need two when it is made anew.
    let releases = watches.standing().releases || !watches.all.is_empty();
    let stands = Arc::new(Stands {
        now: AtomicBool::new(true),
        releases,
    });
    let told = {
        let (watches, stands) = (Arc::clone(&watches), Arc::clone(&stands));
        let news = link.news().to_owned();
        move |push: PushInfo| {
            watches.told(&push, &stands, &news);
            Ok::<(), std::convert::Infallible>(())
        }
    };
    let (node, driver) = link.subscribe(told, releases).await?;
    let standing = Standing(Arc::clone(&watches), Arc::clone(&stands));
    let probed = Task::begin(probe(link, node, driver, standing));
    // One that told of less ends, and nobody has missed anything.
    let before = std::mem::replace(&mut *watches.standing(), stands);
    before.now.store(false, Ordering::Release);
    Ok(probed)
}

/// Keeps a subscription as long as its node has the namespace and answers: an old primary may live on, and what has gone
/// silent on the way is broken, though nobody says so. Where nobody has waited yet nobody is asked: the owners of sessions
/// renew them, and the system probes the connection.
async fn probe(link: Arc<Link>, node: Host, mut driver: MultiplexedConnection, standing: Standing) {
    let mut found = link.found.subscribe();
    loop {
        let elsewhere = found.wait_for(|found| found.as_ref() != Some(&node));
        if timeout(PROBED, elsewhere).await.is_ok() {
            return;
        }
        if !standing.1.releases {
            continue;
        }
        let answer = timeout(link.config.timeout, link.listen(&mut driver, true)).await;
        if !matches!(answer, Ok(Ok(()))) {
            return;
        }
    }
}

/// Who watches is told when it is dropped: also where the subscription ends with the runtime that it was made in.
struct Standing(Arc<Watches>, Arc<Stands>);

impl Drop for Standing {
    fn drop(&mut self) {
        self.0.broken(&self.1);
    }
}

/// The one of this process, if it was needed yet.
#[derive(Default)]
pub(crate) struct Subscription {
    /// It has the connection.
    probed: Arc<Mutex<Option<Task>>>,
    making: Together<Result<()>>,
}

/// Whether a subscription stands, and whether it tells of releases, too.
#[derive(Default)]
struct Stands {
    now: AtomicBool,
    releases: bool,
}

impl Stands {
    fn tells(&self, releases: bool) -> bool {
        self.now.load(Ordering::Acquire) && (self.releases || !releases)
    }
}

/// The watches of this process, and whether they are told.
#[derive(Default)]
pub(crate) struct Watches {
    /// The last subscription.
    stands: Mutex<Arc<Stands>>,
    all: Arc<backend::Watches>,
}

impl Watches {
    /// Somebody in the way of the key is due then: whoever watches it looks again.
    pub(crate) fn due(&self, key: &LockKey, within: Duration) {
        self.all.due(key, Instant::now() + within);
    }

    fn told(&self, push: &PushInfo, stands: &Stands, news: &str) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(what)])
                if channel == news.as_bytes() =>
            {
                let session = std::str::from_utf8(what).ok();
                if let Some(session) = session.and_then(|it| it.parse().ok()) {
                    self.all.wake_session(session);
                }
            }
            (PushKind::SMessage, [_, Value::BulkString(what)]) => self.freed(what),
            (PushKind::SSubscribe, _) => {}
            // The connection is gone, or the namespace is at another node.
            _ => self.broken(stands),
        }
    }

    fn broken(&self, stands: &Stands) {
        // Who watches by another one need not look again.
        if stands.now.swap(false, Ordering::AcqRel) {
            self.all.wake_everybody();
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

    fn standing(&self) -> MutexGuard<'_, Arc<Stands>> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
