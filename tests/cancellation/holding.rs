//! What is held is given back by whoever ends, and by nobody else.

use lockkeeper::Guard;

use crate::cases::{confirmed, released, two_paths, with_intent};
use crate::support::{At, How, SOON, Store, TTL, dropped, forty, none, sweep};

/// Whoever asks for a release and goes away has released all the same, and the change was finished.
#[tokio::test]
async fn release() {
    sweep("release", none, |locks, at| async move {
        released(locks.lock("g"), at).await
    })
    .await;
    sweep("release of many", none, |locks, at| async move {
        released(locks.documents(forty()), at).await
    })
    .await;
    sweep("release with an intent", none, |locks, at| async move {
        released(two_paths(&locks).intent(&"change").unwrap(), at).await
    })
    .await;
}

#[tokio::test]
async fn confirm_and_lost() {
    sweep("confirm", none, |locks, at| async move {
        confirmed(locks.documents(["d00"]), at).await
    })
    .await;
    sweep("confirm of many", none, |locks, at| async move {
        confirmed(locks.documents(forty()), at).await
    })
    .await;
    sweep("lost", none, |locks, _| async move {
        let guard = locks.lock("g").acquire().await.unwrap();
        let lost = dropped(guard.lost(), At::new(1, How::Dropped)).await;
        assert!(lost.is_none(), "it is not lost");
        guard.is_valid()
    })
    .await;
}

#[tokio::test]
async fn guards_dropped_where_nothing_can_be_awaited() {
    for store in Store::all().await {
        let locks = store.locks(TTL);
        let guard = locks.lock("g").acquire().await.unwrap();
        std::thread::spawn(move || drop(guard)).join().unwrap();
        store.is_free("a thread without a runtime", SOON).await;

        panics_with(locks.lock("g").acquire().await.unwrap());
        store.is_free("a panic", SOON).await;

        let nested = Nested(
            Some(locks.lock("g").acquire().await.unwrap()),
            Some(locks.documents(forty()).acquire().await.unwrap()),
        );
        panics_with(nested);
        store
            .is_free("two guards in a drop during a panic", SOON)
            .await;

        panics_with(with_intent(&locks).acquire().await.unwrap());
        let left = store.is_free("a panic with an intent", SOON).await;
        assert_eq!(left, 1, "{}: the intent is left", store.name);
    }
}

struct Nested(Option<Guard>, Option<Guard>);

impl Drop for Nested {
    fn drop(&mut self) {
        let _guard = self.1.take();
        drop(self.0.take());
    }
}

/// A thread has it, and panics.
fn panics_with(guards: impl Send + 'static) {
    let panicked = std::thread::spawn(move || {
        let _guards = guards;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.join().is_err());
}
