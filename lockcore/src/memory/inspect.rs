//! Listing what is held, and evicting what cannot be read.

use std::time::Duration;

use async_trait::async_trait;

use super::MemoryBackend;
use crate::backend::rows::inspect::{Evicting, Leases, Listing, ListingSessions, States};
use crate::{
    Error, ErrorKind, Filter, Inspect, Operation, Page, Record, Result, SessionId, SessionState,
};

#[async_trait]
impl Inspect for MemoryBackend {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        self.act(&Listing::new(filter, after, limit).ok_or_else(not_ours)?)
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.act(&ListingSessions::new(after, limit).ok_or_else(not_ours)?)
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        self.act(&States(sessions.to_vec()))
    }

    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        self.act(&Leases(sessions.to_vec()))
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let (key, version) = (seen.key.clone(), seen.version.clone());
        self.act(&Evicting { key, version })
    }
}

fn not_ours() -> Error {
    Error::new(
        ErrorKind::Config,
        super::NAME,
        Operation::Inspect,
        "not the beginning of a page that this store gave out",
    )
}
