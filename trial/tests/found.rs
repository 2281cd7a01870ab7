//! What the simulation has found in the client, each as small as it gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{Adopt, Adopted, End, Incarnation, SessionStore};
use lockcore::{
    Attempt, Error, ErrorKind, Guard, Life, LockBackend, Locks, MemoryBackend, Operation, Recover,
    RecoverError, Recovery, Released, SessionId,
};
use lockcore_conformance::{Decorated, Decorator};
use lockcore_trial::faults::{Faulty, Link, Weather};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(2);

fn client(store: &Arc<MemoryBackend>) -> Locks {
    Locks::builder(Arc::clone(store) as Arc<dyn LockBackend>)
        .ttl(TTL)
        .build()
        .expect("a TTL that the store takes")
}

async fn with_intent(locks: &Locks, id: &str) -> Guard {
    let guard = locks
        .documents([id])
        .intent(&"a change")
        .expect("a short text");
    guard.acquire().await.expect("nobody is in the way")
}

#[tokio::test(start_paused = true)]
async fn what_re_enters_leaves_the_intent_of_the_outer_guard() {
    let store = MemoryBackend::new();
    let locks = client(&store);
    let outer = with_intent(&locks, "outer").await;
    let inner = locks.documents(["inner"]).owner(&outer.owner());
    drop(inner.acquire().await.unwrap());
    sleep(TTL).await;
    drop(outer);
    sleep(TTL).await;
    assert_eq!(locks.abandoned().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_has_re_entered_believes_nothing_when_the_outer_guard_leaves_its_intent() {
    let store = MemoryBackend::new();
    let locks = client(&store);
    let outer = with_intent(&locks, "outer").await;
    let inner = locks.documents(["inner"]).owner(&outer.owner());
    let inner = inner.acquire().await.unwrap();
    drop(outer);
    assert!(
        !inner.is_valid(),
        "before the session is closed in the store"
    );
    timeout(Duration::ZERO, inner.lost()).await.unwrap();
    sleep(TTL).await;
    let abandoned = locks.abandoned().await.unwrap();
    assert_eq!(abandoned[0].life, Life::Abandoned);
}

#[derive(Default)]
struct OneAtATime {
    now: AtomicUsize,
    done: AtomicUsize,
}

#[async_trait]
impl Recover for &'static OneAtATime {
    async fn recover(&self, _: &Recovery) -> Result<(), RecoverError> {
        assert_eq!(self.now.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
        sleep(TTL / 10).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        let done = self.done.fetch_add(1, Ordering::SeqCst);
        if done == 0 {
            Err("once more".into())
        } else {
            Ok(())
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_process_adopt_one_after_the_other() {
    // Both tasks see the session abandoned before either has adopted it.
    let mut far = Weather::FAIR;
    far.delay = Duration::from_millis(20);
    for seed in 0..20 {
        let store = MemoryBackend::new();
        drop(with_intent(&client(&store), "f").await);
        sleep(TTL / 10).await;
        let handler: &'static OneAtATime = Box::leak(Box::default());
        let backend: Arc<dyn LockBackend> = Arc::clone(&store) as _;
        let link = Link::new(seed, far);
        let locks = Locks::builder(Arc::new(Faulty::new(backend, link, TTL)))
            .ttl(TTL)
            .recovery(handler)
            .build()
            .unwrap();
        let tasks = (0..3).map(|_| {
            let acquisition = locks.documents(["f"]).acquire();
            async move { acquisition.await.map(drop) }
        });
        let got = futures_util::future::join_all(tasks).await;
        assert!(got.iter().any(Result::is_ok), "{got:?}");
        assert_eq!(
            handler.done.load(Ordering::SeqCst),
            2,
            "it failed once, and was done once"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_lost_while_its_intent_is_removed_ends_its_keeper() {
    let store = MemoryBackend::new();
    let link = Link::new(1, Weather::FAIR);
    let backend: Arc<dyn LockBackend> = Arc::clone(&store) as _;
    let timeout_of_one = Duration::from_millis(300);
    let locks = Locks::builder(Arc::new(Faulty::new(backend, link.clone(), timeout_of_one)))
        .ttl(TTL)
        .build()
        .unwrap();
    let guard = with_intent(&locks, "f").await;
    let session = guard.session();
    link.cut(true);
    assert!(
        timeout(TTL / 10, guard.release()).await.is_err(),
        "nobody waits for it"
    );
    drop(store.end(&[session], End::Revoke).await.unwrap());
    link.cut(false);
    assert!(locks.shutdown(TTL * 10).await);
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_does_not_stand_in_line_behind_who_waits_for_it() {
    let store = MemoryBackend::new();
    let (locks, other) = (client(&store), client(&store));
    let owner = locks.owner();
    let reads = locks
        .tree()
        .read("/a")
        .owner(&owner)
        .acquire()
        .await
        .unwrap();
    let in_the_way = other.tree().read("/a").acquire().await.unwrap();
    let waits = {
        let locks = locks.clone();
        async move { locks.tree().write("/a/b").acquire().await }
    };
    let upgrade = async {
        sleep(TTL / 10).await;
        let upgrade = locks.tree().write("/a/b").owner(&owner);
        let upgraded = timeout(TTL * 10, upgrade.acquire()).await;
        let upgraded = upgraded
            .expect("only the other process was in the way")
            .unwrap();
        drop((reads, upgraded));
    };
    let leaves = async {
        sleep(TTL).await;
        in_the_way.release().await.unwrap()
    };
    let (waited, (), _) = tokio::join!(waits, upgrade, leaves);
    let released = waited.unwrap().release().await.unwrap();
    assert_eq!(released, Released::Released);
    assert!(matches!(
        locks.tree().write("/a").try_acquire().await.unwrap(),
        Attempt::Acquired(_)
    ));
}

/// Adopts, loses the answer, and cannot be reached by whoever asks again.
struct AdoptsUnheard {
    store: Arc<MemoryBackend>,
    adopted: AtomicUsize,
}

#[async_trait]
impl Decorator for AdoptsUnheard {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> lockcore::Result<Adopted> {
        let failed = |kind| Error::new(kind, "memory", Operation::Adopt, "as the test wants it");
        if how == Adopt::GiveUp {
            return self.store.adopt(session, seen, adopter, how, within).await;
        }
        if self.adopted.fetch_add(1, Ordering::SeqCst) > 0 {
            return Err(failed(ErrorKind::Unavailable));
        }
        drop(
            self.store
                .adopt(session, seen, adopter, how, within)
                .await?,
        );
        Err(failed(ErrorKind::Indeterminate))
    }
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_may_have_been_taken_is_given_up_whatever_failed_last() {
    let store = MemoryBackend::new();
    drop(with_intent(&client(&store), "f").await);
    sleep(TTL / 10).await;
    let unheard = Arc::new(Decorated(AdoptsUnheard {
        store: Arc::clone(&store),
        adopted: AtomicUsize::new(0),
    }));
    let locks = Locks::builder(Arc::clone(&unheard) as Arc<dyn LockBackend>)
        .ttl(TTL)
        .patience(TTL / 4)
        .build()
        .unwrap();
    let other = client(&store);
    let abandoned = other.abandoned().await.unwrap()[0].session;
    assert!(locks.adopt(abandoned).await.is_err());
    assert!(unheard.adopted.load(Ordering::SeqCst) > 1);
    sleep(TTL).await;
    let adopted = other.adopt(abandoned).await.unwrap();
    assert!(adopted.is_some(), "the first adopter lives, and has it not");
}
