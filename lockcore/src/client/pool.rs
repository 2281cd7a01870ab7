//! Which session an acquisition runs in.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::client::clock::now;
use crate::client::core::Core;
use crate::client::keeper::keep;
use crate::client::session::Handle;
use crate::limits::MAX_OVER_RANGES;
use crate::{ErrorKind, Opened, Result, SessionId};

/// The session that acquisitions share, opened by the first that needs it and replaced when it is lost or its numbers
/// have become too many ranges; the old one then closes with its last guard.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    shared: Mutex<Option<Handle>>,
    opening: tokio::sync::Mutex<()>,
}

impl Pool {
    /// The shared session.
    pub(crate) async fn shared(&self, core: &Arc<Core>) -> Result<Handle> {
        if let Some(handle) = self.usable() {
            return Ok(handle);
        }
        let _only_one_opens = self.opening.lock().await;
        if let Some(handle) = self.usable() {
            return Ok(handle);
        }
        let handle = open(core).await?;
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        // An acquisition that is still under way while the client shuts down keeps its session to itself. A client that
        // shuts down after this look takes it away, for which it waits for the lock.
        if core.check_open().is_ok() {
            *shared = Some(handle.clone());
        }
        drop(shared);
        Ok(handle)
    }

    fn usable(&self) -> Option<Handle> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = shared.as_ref().filter(|handle| handle.is_usable())?;
        (handle.session.numbers().ranges() <= MAX_OVER_RANGES).then(|| handle.clone())
    }

    /// The pool's own handle goes; the session closes with its last guard.
    pub(crate) fn let_go(&self) {
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Opens a session of its own.
pub(crate) async fn open(core: &Arc<Core>) -> Result<Handle> {
    let patience = core.patience();
    let mut failures = 0;
    loop {
        // An open of unknown outcome is never sent again: its session, if there is one, is nobody's, and dies when it
        // is due.
        let id = SessionId::new(core.random());
        let sent = now();
        match core
            .backend
            .open(id, &core.config.label, core.config.ttl)
            .await
        {
            Ok(Opened::Opened(incarnation)) if now() < sent + core.config.validity() => {
                return Ok(keep(core, id, sent, incarnation));
            }
            Ok(_) => {}
            Err(error) if error.kind() != ErrorKind::Indeterminate || now() >= patience => {
                return Err(error);
            }
            Err(_) => {
                failures += 1;
                tokio::time::sleep(core.backoff(
                    failures,
                    Duration::from_millis(50),
                    Duration::from_secs(1),
                ))
                .await;
            }
        }
    }
}
