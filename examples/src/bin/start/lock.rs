//! A lock: one name, one holder.

use std::time::Duration;

use lockkeeper::{AcquireError, Released};

use crate::BoxError;

pub(crate) async fn run(url: &str) -> Result<(), BoxError> {
    let locks = lockkeeper::connect(url).await?;
    let guard = locks.lock("reindex").acquire().await?;
    println!("token {}: the index is mine", guard.token());

    // Another client, as in another process.
    let others = lockkeeper::connect(url).await?;
    let waits = others.lock("reindex").wait(Duration::from_millis(50));
    match waits.acquire().await {
        Err(AcquireError::Busy(busy)) => println!(
            "{} is taken: the other one gives up",
            busy.first().claim.key()
        ),
        other => return Err(format!("two holders: {other:?}").into()),
    }

    // Do the work here. Where it takes long, look at `guard.is_valid()`, or select on `guard.lost()`.
    assert!(guard.is_valid());
    assert_eq!(guard.release().await?, Released::Released);

    // The same in one: the work is stopped when the lock is lost.
    let work = async |held: std::sync::Arc<lockkeeper::Held>| Ok::<_, BoxError>(held.token());
    let (token, released) = others.lock("reindex").run(work).await?;
    println!("token {token}: now the other one has had it");
    assert_eq!(released?, Released::Released);
    Ok(())
}
