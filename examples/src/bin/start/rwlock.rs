//! A read-write lock: any number of readers, or one writer.

use lockkeeper::Released;

use crate::BoxError;

pub(crate) async fn run(url: &str) -> Result<(), BoxError> {
    let locks = lockkeeper::connect(url).await?;
    let others = lockkeeper::connect(url).await?;

    let one = locks.rwlock("catalog").read().acquire().await?;
    let other = others.rwlock("catalog").read().acquire().await?;
    let writer = others.rwlock("catalog").write().try_acquire().await?;
    assert!(writer.acquired().is_none(), "it is being read");

    assert_eq!(one.release().await?, Released::Released);
    assert_eq!(other.release().await?, Released::Released);
    let writer = others.rwlock("catalog").write().acquire().await?;
    println!("token {}: the catalog is written", writer.token());
    let reader = locks.rwlock("catalog").read().try_acquire().await?;
    assert!(reader.acquired().is_none(), "it is being written");
    assert_eq!(writer.release().await?, Released::Released);
    Ok(())
}
