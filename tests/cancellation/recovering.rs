//! Whoever is ended at a change that was left gives it up, or has settled it.

use crate::cases::{adopted, given_up, listed, recovered, settled};
use crate::support::{one, one_if_ended, sweep};

#[tokio::test]
async fn abandoned() {
    sweep("abandoned", one, listed).await;
}

#[tokio::test]
async fn adopt() {
    sweep("adopt", one, adopted).await;
}

/// A settle that is ended may have been done.
#[tokio::test]
async fn settle() {
    sweep("settle", one_if_ended, settled).await;
}

#[tokio::test]
async fn give_up() {
    sweep("give_up", one, given_up).await;
}

/// The handler goes on without whoever met the change.
#[tokio::test]
async fn acquire_that_recovers() {
    sweep("recovery", one_if_ended, recovered).await;
}
