//! 10,000 guards in one process: how many requests keep them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lockcore::{
    Acquire, Acquired, Adopt, Adoption, Changed, Claim, ClaimStore, End, Filter, Grant, Info,
    Inspect, Label, LockBackend, Locks, Opened, Page, Record, Renewal, Renewed, Result, SessionId,
    SessionState, SessionStore, Sweep, Swept, Wakeups,
};

use crate::rounds::{one_thread, sqlite};

/// Counts renewals, and passes everything on.
struct Counted(Arc<dyn LockBackend>, AtomicUsize);

#[async_trait]
impl SessionStore for Counted {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.0.open(session, label, ttl).await
    }
    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.renew(session, renewal).await
    }
    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.0.end(sessions, how).await
    }
    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
    ) -> Result<Option<Adoption>> {
        self.0.adopt(session, seen, adopter, how).await
    }
    async fn settle(&self, session: SessionId, adoption: u64) -> Result<bool> {
        self.0.settle(session, adoption).await
    }
}

#[async_trait]
impl ClaimStore for Counted {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.0.acquire(request).await
    }
    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<()> {
        self.0.release(grant, claims).await
    }
    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.0.confirm(grant, claims).await
    }
    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.0.sweep(which, limit).await
    }
}

#[async_trait]
impl Wakeups for Counted {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        self.0.watch(claims).await
    }
}

#[async_trait]
impl Inspect for Counted {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        self.0.records(filter, after, limit).await
    }
    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.0.sessions(after, limit).await
    }
    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.0.evict(seen).await
    }
}

impl LockBackend for Counted {
    fn info(&self) -> Info {
        self.0.info()
    }
}

pub(crate) fn run() {
    one_thread().block_on(async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let backend = Arc::new(Counted(
            sqlite(&folder.path().join("locks.db")).await,
            AtomicUsize::new(0),
        ));
        let ttl = Duration::from_secs(3);
        let locks = Locks::builder(Arc::clone(&backend) as _)
            .ttl(ttl)
            .build()
            .expect("3 s is a TTL");
        for count in [1_usize, 100, 10_000] {
            let mut guards = Vec::new();
            for n in 0..count {
                guards.push(
                    locks
                        .documents([format!("{n}")])
                        .acquire()
                        .await
                        .expect("nobody else wants it"),
                );
            }
            let start = Instant::now();
            let before = backend.1.load(Ordering::Relaxed);
            tokio::time::sleep(4 * ttl).await;
            let renewals = backend.1.load(Ordering::Relaxed) - before;
            let thirds = start.elapsed().as_secs_f64() / (ttl.as_secs_f64() / 3.0);
            assert!(guards.iter().all(|guard| guard.is_valid()));
            println!(
                "{count} guards: {renewals} renewals in {thirds:.1} times TTL/3, all guards valid"
            );
        }
    });
}
