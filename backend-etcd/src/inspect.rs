//! `Inspect`: what is there, for people. Listing changes nothing.

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{KeyValue, TxnOp};
use futures_util::{StreamExt, TryStreamExt, stream};
use lockcore::backend::judge::{Entry as _, Listed, Place};
use lockcore::backend::{Filter, Inspect, Page, Record};
use lockcore::{Error, ErrorKind, Grant, LockKey, Operation, Result, SessionId, SessionState};

use crate::EtcdBackend;
use crate::error::found;
use crate::pages::Groups;
use crate::record::{Classes, Held, Session};
use crate::states::States;
use crate::txn::not_since;

/// The sessions of so many keys are looked up together.
const KEYS: usize = 256;
/// So many leases are asked for at a time.
const LEASES_AT_ONCE: usize = 16;

#[async_trait]
impl Inspect for EtcdBackend {
    async fn records(
        &self,
        filter: &Filter,
        from: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let names = &self.link.names;
        let mut range = match filter {
            Filter::Key(key) => return self.one(key).await,
            Filter::Prefix(prefix) => names.prefixed(prefix),
            Filter::Session(_) => names.prefixed(""),
        };
        if let Some(from) = from {
            let key = LockKey::parse(from).map_err(|_| not_ours())?;
            range.from = names.holders(&key, Classes::All, false).to;
        }
        let of = |names: &crate::record::Names, name: &[u8]| Some(names.read_holder(name)?.0);
        let mut records = Groups::new(self.way(Operation::Inspect), range, of);
        let (mut items, mut states) = (Vec::new(), States::new());
        loop {
            // The sessions of many keys are looked up together.
            let mut some = Vec::new();
            while some.len() < KEYS
                && let Some((key, pairs)) = records.next().await?
            {
                let held = self.held(&key, &pairs);
                let grants = held.iter().filter_map(Held::grant);
                if names_one_of(filter, grants) {
                    some.push((key, pairs, held));
                }
            }
            let ends = some.len() < KEYS;
            let all = some.iter().flat_map(|(.., held)| held);
            self.learn(all, &mut states).await?;
            for (key, pairs, held) in some {
                items.extend(shown(&key, &pairs, held, filter, &states));
                if items.len() >= limit.max(1) {
                    let next = Some(key.to_string());
                    return Ok(Page { items, next });
                }
            }
            if ends {
                return Ok(Page { items, next: None });
            }
        }
    }

    async fn sessions(&self, from: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let names = &self.link.names;
        let mut range = names.sessions();
        if let Some(from) = from {
            let session = from.parse().map_err(|_| not_ours())?;
            range.from = names.session(session).to;
        }
        let of = |names: &crate::record::Names, name: &[u8]| Some(names.read_session(name)?.0);
        let mut sessions = Groups::new(self.way(Operation::Inspect), range, of);
        let mut items = Vec::new();
        while let Some((session, pairs)) = sessions.next().await? {
            let read = Session::read(names, session, &pairs);
            items.extend(read.map(|read| read.state));
            if items.len() >= limit.max(1) {
                let next = Some(session.to_string());
                return Ok(Page { items, next });
            }
        }
        Ok(Page { items, next: None })
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        let way = self.way(Operation::Inspect);
        let states = way.peek(sessions.iter().copied()).await?;
        Ok(sessions.iter().map(|id| states.get(id).cloned()).collect())
    }

    /// In whole seconds. It takes two requests for each session.
    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        let left = sessions.iter().copied().map(|id| self.left_of(id));
        stream::iter(left)
            .buffered(LEASES_AT_ONCE)
            .try_collect()
            .await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let range = self.link.names.holders(&seen.key, Classes::All, false);
        let (all, revision) = self.way(Operation::Inspect).get(&range, 0).await?;
        let foreign: Vec<TxnOp> = self
            .held(&seen.key, &all.pairs)
            .into_iter()
            .filter(|held| held.grant().is_none())
            .map(|held| TxnOp::delete(held.name, None))
            .take(self.link.config.operations)
            .collect();
        if foreign.is_empty() || version(&all.pairs) != seen.version {
            return Ok(false);
        }
        let unchanged = vec![not_since(&range, revision)];
        let way = self.way(Operation::Inspect);
        let evicted = way.txn(unchanged, foreign, Vec::new()).await?;
        Ok(evicted.succeeded)
    }
}

impl EtcdBackend {
    async fn left_of(&self, session: SessionId) -> Result<Option<Duration>> {
        let live = TxnOp::get(self.link.names.live(session), None);
        let mut found = self.way(Operation::Inspect).all(vec![live]).await?;
        match found.found()?.pairs.first() {
            Some(live) => self.way(Operation::Inspect).left(live.lease()).await,
            None => Ok(None),
        }
    }

    /// The record of one key, with those who hold something below it.
    async fn one(&self, key: &LockKey) -> Result<Page<Record>> {
        let range = self.link.names.holders(key, Classes::All, key.is_path());
        let (all, _) = self.way(Operation::Inspect).get(&range, 0).await?;
        let held = self.held(key, &all.pairs);
        let own = held.iter().filter(|held| held.key == *key).count();
        let filter = Filter::Key(key.clone());
        let mut states = States::new();
        self.learn(held.iter(), &mut states).await?;
        let shown = shown(key, &all.pairs[..own], held, &filter, &states);
        Ok(Page {
            items: shown.into_iter().collect(),
            next: None,
        })
    }

    async fn learn(&self, held: impl Iterator<Item = &Held>, states: &mut States) -> Result<()> {
        let sessions = held.filter_map(Held::grant).map(|grant| grant.session);
        let way = self.way(Operation::Inspect);
        way.learn(sessions, states).await
    }

    /// Who stands in a range; what has no name of a holder holds that key.
    pub(crate) fn held(&self, key: &LockKey, pairs: &[KeyValue]) -> Vec<Held> {
        let read = |pair| Held::read(&self.link.names, key, pair);
        pairs.iter().map(read).collect()
    }
}

/// The record of a key with those who count, if the one who is asked about is among them.
fn shown(
    key: &LockKey,
    own: &[KeyValue],
    mut held: Vec<Held>,
    filter: &Filter,
    states: &States,
) -> Option<Record> {
    let state = |grant: Grant| states.get(&grant.session).and_then(Option::as_ref);
    held.retain(|held| {
        let counts = |grant| state(grant).is_some_and(|state| held.is_live(state));
        held.grant().is_none_or(counts)
    });
    // Of many some are listed: first those who hold it, then those who wait, in their order.
    held.sort_by_key(Held::place);
    if !names_one_of(filter, held.iter().filter_map(Held::grant)) {
        return None;
    }
    let mut listed = Listed::default();
    for held in &held {
        let state = held.grant().and_then(state);
        let place = if held.key == *key {
            Place::Key
        } else {
            Place::Below
        };
        listed.add(held.holder(key, place.seen(held.mode()), state));
    }
    listed.record(key, version(own))
}

/// Whether the filter asks for everybody, or for one of these.
fn names_one_of(filter: &Filter, mut grants: impl Iterator<Item = Grant>) -> bool {
    match filter {
        Filter::Session(session) => grants.any(|grant| grant.session == *session),
        Filter::Key(_) | Filter::Prefix(_) => true,
    }
}

fn not_ours() -> Error {
    let what = "the place to go on from was not given out by this store";
    found(ErrorKind::Config, Operation::Inspect, what)
}

/// What changes whenever somebody is entered in a record, or removed from it.
fn version(pairs: &[KeyValue]) -> String {
    let newest = pairs.iter().map(KeyValue::mod_revision).max().unwrap_or(0);
    format!("{newest}/{}", pairs.len())
}
