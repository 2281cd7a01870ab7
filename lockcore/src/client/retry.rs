//! Repeats requests that may be repeated.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{BoxFuture, FutureExt as _};

pub(crate) use crate::client::breaker::may_pass;
use crate::client::clock::now;
use crate::client::core::Core;
use crate::{Error, Result};

/// The same request, which notes when it fails and may have been executed.
pub(crate) fn in_doubt<'a, T: 'a>(
    request: BoxFuture<'a, Result<T>>,
    doubted: &'a AtomicBool,
) -> BoxFuture<'a, Result<T>> {
    let noted = async move {
        let answer = request.await;
        let failed = answer.as_ref().err();
        if failed.is_some_and(|error| !error.is_certainly_without_effect()) {
            doubted.store(true, Ordering::Relaxed);
        }
        answer
    };
    noted.boxed()
}

/// Sends a request that may be repeated until it is answered, for at most the client's patience from the first failure
/// on, and only while `go_on` is true. The error is one of unknown outcome if any of the failures was, whatever failed
/// last.
pub(crate) async fn until_answered<'a, T>(
    core: &Core,
    go_on: impl Fn() -> bool,
    mut send: impl FnMut() -> BoxFuture<'a, Result<T>>,
) -> Result<T> {
    let mut patience = None;
    let mut failures = 0;
    let mut in_doubt: Option<Error> = None;
    loop {
        let answer = send().await;
        core.giving.heard(core, &answer);
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let patience = *patience.get_or_insert_with(|| core.patience());
        let again = may_pass(&error) && now() < patience && go_on();
        let failed = match in_doubt.take() {
            Some(unknown) if error.is_certainly_without_effect() => unknown,
            _ => error,
        };
        failures += 1;
        if !again || !Box::pin(core.giving.again(core, failures, patience)).await || !go_on() {
            return Err(failed);
        }
        in_doubt = (!failed.is_certainly_without_effect()).then_some(failed);
    }
}
