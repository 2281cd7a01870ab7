//! A semaphore: so many at a time, over all processes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::Released;
use tokio::time::sleep;

use crate::BoxError;

/// All who use it say the same number.
const PERMITS: u32 = 3;

pub(crate) async fn run(url: &str) -> Result<(), BoxError> {
    let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let import = async |number: u32| -> Result<(), BoxError> {
        let locks = lockkeeper::connect(url).await?;
        let permit = locks.semaphore("importers", PERMITS).acquire().await?;
        let now = running.fetch_add(1, Ordering::AcqRel) + 1;
        most.fetch_max(now, Ordering::AcqRel);
        println!("importer {number} runs beside {} others", now - 1);
        // The work.
        sleep(Duration::from_millis(20)).await;
        running.fetch_sub(1, Ordering::AcqRel);
        assert_eq!(permit.release().await?, Released::Released);
        Ok(())
    };
    let (a, b, c, d, e) = tokio::join!(import(1), import(2), import(3), import(4), import(5));
    a.and(b).and(c).and(d).and(e)?;
    assert!(most.into_inner() <= PERMITS as usize);
    Ok(())
}
