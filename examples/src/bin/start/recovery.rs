//! Recovery: whoever comes next finishes the change of a holder that died.

use lockkeeper::{Locks, Recover, RecoverError, Recovery, Released, async_trait};
use serde::{Deserialize, Serialize};

use crate::BoxError;

/// What is about to be done, in words that another process can act upon.
#[derive(Debug, Serialize, Deserialize)]
struct Rename {
    from: String,
    to: String,
}

struct Finish;

#[async_trait]
impl Recover for Finish {
    /// May run more than once, and after a part of the change: so it does the same each time.
    async fn recover(&self, left: &Recovery) -> Result<(), RecoverError> {
        let rename: Rename = serde_json::from_slice(left.intent().as_bytes())?;
        println!("finishes the renaming of {} to {}", rename.from, rename.to);
        Ok(())
    }
}

pub(crate) async fn run(url: &str) -> Result<(), BoxError> {
    let backend = lockkeeper::backend(url).await?;
    let change = Rename {
        from: "a.txt".to_owned(),
        to: "b.txt".to_owned(),
    };
    let documents = ["a.txt", "b.txt"];
    let dies = Locks::builder(backend.clone()).build()?;
    let guard = dies.documents(documents).intent(&change)?.acquire().await?;
    // Half of the work is done, and then something goes wrong: the guard is dropped, and not released.
    drop(guard);

    let next = Locks::builder(backend).recovery(Finish).build()?;
    let guard = next.documents(documents).acquire().await?;
    println!("token {}: both are mine, and whole", guard.token());
    assert_eq!(guard.release().await?, Released::Released);
    Ok(())
}
