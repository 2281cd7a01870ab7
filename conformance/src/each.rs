//! [`each`]: one check of many things in one namespace.

use std::fmt::Display;

use futures_util::TryStreamExt;
use futures_util::stream;

use crate::verdict::{Under, Verdict};

/// Enough that a slow store is not waited for one by one, and few enough that no connection is queued for long.
const AT_A_TIME: usize = 8;

/// Checks each of these, several at a time, and names the first that fails. They have to be apart: by their keys, and
/// where a check ends or renews a session, by their sessions.
pub(crate) async fn each<T: Display>(
    all: impl IntoIterator<Item = T>,
    check: impl AsyncFn(&T) -> Verdict,
) -> Verdict {
    let check = &check;
    stream::iter(all.into_iter().map(Ok))
        .try_for_each_concurrent(AT_A_TIME, async |one| check(&one).await.about(&one))
        .await
}
