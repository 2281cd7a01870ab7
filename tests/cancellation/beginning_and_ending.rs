//! A client that is ended while it connects or shuts down is in nobody's way.

use crate::support::{At, How, SOON, dropped, none, sweep};

#[tokio::test]
async fn connect() {
    for polls in 1..200 {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("locks.db").display());
        let at = At::new(polls, How::Dropped);
        let completed = dropped(lockkeeper::connect(&url), at).await.is_some();
        let locks = lockkeeper::connect(&url).await.unwrap();
        assert!(locks.lock("g").acquire().await.unwrap().is_valid());
        if completed {
            return;
        }
    }
    panic!("connect never completes");
}

#[tokio::test]
async fn shutdown() {
    sweep("shutdown", none, |locks, at| async move {
        drop(locks.lock("g").acquire().await.unwrap());
        let all_gone = dropped(locks.shutdown(SOON), at).await;
        all_gone.is_some_and(|all| all)
    })
    .await;
}
