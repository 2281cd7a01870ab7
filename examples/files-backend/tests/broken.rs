//! What an author is told: the same backend with one mistake, and the law that the kit says it breaks.

mod support;

use std::sync::Arc;
use std::time::Duration;

use files_backend::FilesBackend;
use lockcore::{
    Acquire, Acquired, Adopt, Adoption, Changed, Claim, ClaimStore, End, Filter, Grant, Info,
    Inspect, Label, LockBackend, Opened, Page, Record, Renewal, Renewed, Result, SessionId,
    SessionState, SessionStore, Sweep, Swept, Wakeups, async_trait,
};
use lockcore_conformance::{Case, Failure, Law, Layer, World, cases, check};
use support::Files;

/// A release that does not look at the grant: whoever holds the key loses it.
struct Careless(Arc<FilesBackend>);

#[async_trait]
impl ClaimStore for Careless {
    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<()> {
        self.0.release(grant, claims).await?;
        for claim in claims {
            let filter = Filter::Key(claim.key().clone());
            for record in self.0.records(&filter, None, 1).await?.items {
                for other in record.holders.iter().filter_map(|holder| holder.grant) {
                    self.0.release(other, claims).await?;
                }
            }
        }
        Ok(())
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.0.acquire(request).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.0.confirm(grant, claims).await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.0.sweep(which, limit).await
    }
}

// The rest is as it was.

#[async_trait]
impl SessionStore for Careless {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.0.open(session, label, ttl).await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
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
impl Wakeups for Careless {
    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        self.0.watch(claims).await
    }
}

#[async_trait]
impl Inspect for Careless {
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

impl LockBackend for Careless {
    fn info(&self) -> Info {
        self.0.info()
    }
}

/// What the kit says about the law.
fn failures(world: Files, law: Law) -> Vec<Failure> {
    let world: Arc<dyn World> = Arc::new(world);
    let of_law = |case: &Case| case.law() == law && case.layer() == Layer::Backend;
    cases()
        .iter()
        .filter(|case| of_law(case))
        .filter_map(|case| check(case, &world, 7).err())
        .collect()
}

#[test]
fn a_release_that_does_not_look_at_the_grant_is_told_its_law() {
    let law = Law::OwnClaimsOnly;
    let told = failures(
        Files {
            wrap: |files| Arc::new(Careless(files)),
        },
        law,
    );
    let late = "releases::a_late_release_leaves_the_next_holder";
    let late = told.iter().find(|failure| failure.case == late);
    let text = late.expect("the case of that mistake fails").to_string();
    println!("{text}");
    for part in ["law 3, own claims only", "seed 7", "release"] {
        assert!(text.contains(part), "{part:?} is said in:\n{text}");
    }
    assert_eq!(
        failures(
            Files {
                wrap: |files| files
            },
            law
        ),
        []
    );
}
