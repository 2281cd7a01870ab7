//! The primary shard: which one has answered, and where its tokens begin.
//!
//! A copy in sync that takes over has everything that was acknowledged. One that an operator forces may be stale or empty,
//! and so may an index that a snapshot brings back: both number their writes anew. Each has a term of its own, or its index
//! another uuid. The term stands in the answer to every write; the uuid in the error of a removal whose condition nobody
//! meets, so whatever has to know who answers asks for one besides.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use lockcore::ErrorKind;
use lockcore::backend::Incarnation;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::EsBackend;
use crate::bulk::{Bulk, Reply, Seen, expect, one};
use crate::error::{Failure, Outcome};
use crate::namespace::{Place, look};
use crate::scripts::BEGIN;

/// The id of the document that says where tokens begin.
pub(crate) const STORE: &str = "~store";

/// What this process has heard of where the namespace is.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) place: Arc<Place>,
    /// The last that has written something for us.
    primary: Option<Arc<Primary>>,
    /// No token of the indices before is known to be greater.
    reach: u64,
    /// It was another one before, of which what we know of our sessions may be.
    moved: bool,
}

impl Known {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place: Arc::new(place),
            primary: None,
            reach: 0,
            moved: false,
        }
    }

    /// No token that was given out is known to be greater.
    fn reach(&self) -> u64 {
        let last = self.primary.as_ref().map_or(0, |primary| primary.reach());
        self.reach.max(last)
    }
}

/// A primary shard, and the tokens of its writes.
#[derive(Debug)]
pub(crate) struct Primary {
    /// Of the index.
    uuid: String,
    term: u64,
    pub(crate) incarnation: Incarnation,
    /// The write of this number begins its tokens.
    since: u64,
    /// The token that it would have.
    base: u64,
    /// The greatest number that was heard.
    heard: AtomicU64,
}

impl Primary {
    fn new(uuid: &str, begun: Seen, base: u64) -> Self {
        let named = Sha256::digest(format!("{}/{uuid}", begun.primary_term));
        let number = |number, byte: &u8| number << 8 | u128::from(*byte);
        let name = named[..16].iter().fold(0, number);
        Self {
            uuid: uuid.to_owned(),
            term: begun.primary_term,
            incarnation: Incarnation::new(name.max(1)),
            since: begun.seq_no,
            base,
            heard: AtomicU64::new(begun.seq_no),
        }
    }

    fn is(&self, uuid: &str, term: u64) -> bool {
        self.uuid == uuid && self.term == term
    }

    /// Of the same index a later one is known.
    fn is_later(&self, uuid: &str, term: u64) -> bool {
        self.uuid == uuid && self.term > term
    }

    /// The token of a write; `None` of one before tokens began.
    pub(crate) fn token(&self, seq_no: u64) -> Option<u64> {
        let since = seq_no.checked_sub(self.since).filter(|since| *since > 0)?;
        Some(self.base.saturating_add(since))
    }

    /// No token that was given out is known to be greater.
    fn reach(&self) -> u64 {
        let heard = self.heard.load(Ordering::Relaxed);
        self.token(heard).unwrap_or(self.base)
    }
}

impl EsBackend {
    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn place(&self) -> Arc<Place> {
        Arc::clone(&self.known().place)
    }

    /// The last that has written something for us.
    pub(crate) fn primary(&self) -> Option<Arc<Primary>> {
        self.known().primary.clone()
    }

    /// The namespace was made anew, or another primary has taken over, while we were connected.
    pub(crate) fn has_moved(&self) -> bool {
        self.known().moved
    }

    /// The incarnation that we have heard of last, if it is not the one that a request is meant for.
    pub(crate) fn elsewhere(&self, meant: Incarnation) -> Option<Incarnation> {
        let here = self.primary()?.incarnation;
        (meant.is_known() && here != meant).then_some(here)
    }

    /// Checks that the answers come from the index that we know. Else the namespace was made anew, and the answer
    /// belongs to a store that this request was not meant for.
    pub(crate) async fn answered_by(&self, indices: &[&str]) -> Outcome<()> {
        let place = self.place();
        if indices.iter().all(|index| *index == place.index) {
            return Ok(());
        }
        Err(self.look_again("the namespace was made anew").await)
    }

    /// Looks where the namespace is, because of this.
    async fn look_again(&self, why: &'static str) -> Failure {
        let found = match look(&self.nodes, &self.alias, self.lane).await {
            Ok(Some(found)) => found,
            Ok(None) => return Failure::Answer("the index is gone again".into()),
            Err(failure) => return failure,
        };
        let mut known = self.known_mut();
        if *known.place != found {
            *known = Known {
                moved: true,
                reach: known.reach(),
                ..Known::new(found)
            };
        }
        Failure::Answer(why.into())
    }

    /// The primary that has made these writes, of an index with this uuid, if there are any.
    pub(crate) async fn primary_of(
        &self,
        uuid: &str,
        writes: &[Seen],
    ) -> Outcome<Option<Arc<Primary>>> {
        let Some(last) = writes.last() else {
            return Ok(None);
        };
        let term = last.primary_term;
        if writes.iter().any(|write| write.primary_term != term) {
            return Err(another());
        }
        if self.place().uuid != uuid {
            return Err(self.look_again("another index was put in its place").await);
        }
        let known = self.primary().filter(|known| known.is(uuid, term));
        let primary = match known {
            Some(known) => known,
            None => Box::pin(self.begin(uuid, *last)).await?,
        };
        primary.heard.fetch_max(last.seq_no, Ordering::Relaxed);
        Ok(Some(primary))
    }

    /// Where the tokens of the primary begin that has made this write: above all that is known, and at its time. Whoever
    /// meets it first says so to all.
    async fn begin(&self, uuid: &str, write: Seen) -> Outcome<Arc<Primary>> {
        let (before, term) = (self.primary(), write.primary_term);
        if before.as_ref().is_some_and(|it| it.is_later(uuid, term)) {
            return Err(another());
        }
        let above = self.known().reach();
        let params = json!({"uuid": uuid, "term": term, "seq": write.seq_no, "above": above});
        let first = json!({"uuid": "", "term": 0, "seq": 0, "base": self.place().base});
        let mut bulk = Bulk::default();
        bulk.upsert(STORE, &BEGIN, params, first);
        let known = [Reply::Written, Reply::Refused, Reply::Unreadable];
        let item = one(expect(self.bulk(bulk).await?, &known)?);
        if item.reply() == Reply::Unreadable {
            let what = "the document ~store cannot be understood: remove it";
            return Err(Failure::Found(ErrorKind::Corrupt, what.into()));
        }
        let says = |name: &str| item.document().and_then(|document| document[name].as_u64());
        let same =
            item.document().is_some_and(|it| it["uuid"] == uuid) && says("term") == Some(term);
        // Written by a later one, it says nothing of this one's numbers.
        let begun = item
            .seen()
            .filter(|begun| same && begun.primary_term == term);
        let (Some(begun), Some(base)) = (begun, says("base")) else {
            return Err(another());
        };
        let primary = Arc::new(Primary::new(uuid, begun, base));
        let mut known = self.known_mut();
        match &known.primary {
            Some(other) if other.is_later(uuid, term) => return Err(another()),
            Some(other) if other.is(uuid, term) => return Ok(Arc::clone(other)),
            other => {
                let moved = other.is_some();
                known.moved |= moved;
            }
        }
        known.primary = Some(Arc::clone(&primary));
        Ok(primary)
    }
}

pub(crate) fn another() -> Failure {
    Failure::Answer("another primary has taken over".into())
}
