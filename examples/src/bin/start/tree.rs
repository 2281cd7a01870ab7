//! Tree locks: a path and everything below it.

use lockkeeper::Released;

use crate::BoxError;

pub(crate) async fn run(url: &str) -> Result<(), BoxError> {
    let locks = lockkeeper::connect(url).await?;
    let others = lockkeeper::connect(url).await?;

    // To move a folder, both of its ends.
    let moves = locks
        .tree()
        .write("/clinton/projects")
        .write("/bush")
        .acquire()
        .await?;

    // What lies below is not to be had, neither is what lies above.
    for path in ["/clinton/projects/elasticsearch/README.txt", "/clinton"] {
        let other = others.tree().write(path).try_acquire().await?;
        assert!(other.acquired().is_none(), "{path} is being moved");
    }
    // What lies beside it is.
    let beside = others.tree().write("/clinton/speeches").acquire().await?;
    assert_eq!(beside.release().await?, Released::Released);
    assert_eq!(moves.release().await?, Released::Released);

    // Any number may read.
    let one = locks.tree().read("/clinton").acquire().await?;
    let other = others.tree().read("/clinton/projects").acquire().await?;
    println!(
        "{} and {} read at the same time",
        one.token(),
        other.token()
    );
    assert_eq!(one.release().await?, Released::Released);
    assert_eq!(other.release().await?, Released::Released);
    Ok(())
}
