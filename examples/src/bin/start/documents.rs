//! Document locks: all of some documents, or none.

use std::time::Duration;

use lockkeeper::{Attempt, Released};

use crate::BoxError;

pub(crate) async fn run(url: &str) -> Result<(), BoxError> {
    let locks = lockkeeper::connect(url).await?;
    let transfer = locks
        .documents(["account/1", "account/2"])
        .acquire()
        .await?;

    let others = lockkeeper::connect(url).await?;
    match others
        .documents(["account/2", "account/3"])
        .try_acquire()
        .await?
    {
        Attempt::Acquired(_) => return Err("account/2 has two holders".into()),
        Attempt::Busy(busy) => println!("not now: {} is taken", busy.first().claim.key()),
    }
    // Nothing of it was kept: account/3 is free.
    let other = others.documents(["account/3"]).try_acquire().await?;
    assert!(other.acquired().is_some());

    // Whoever waits has all of them as soon as they are free, in whatever order they are named.
    let waits = others
        .documents(["account/2", "account/1"])
        .wait(Duration::from_secs(10));
    let (released, next) = tokio::join!(transfer.release(), waits.acquire());
    assert_eq!(released?, Released::Released);
    assert_eq!(next?.release().await?, Released::Released);
    Ok(())
}
