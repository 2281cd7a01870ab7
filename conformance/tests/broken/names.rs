//! Mistakes with keys, and one decorator for all that take one key for another.

use lockcore::backend::{Acquire, Acquired, Changed, Filter, Page, Record, Stood};
use lockcore::{
    Busy, Claim, Error, ErrorKind, Grant, Holder, LockBackend, LockKey, Operation, Refused, Result,
    async_trait,
};
use lockcore_conformance::{Decorator, Law};

use crate::Broken;
use crate::support::Store;

pub(crate) fn all() -> Vec<Broken> {
    vec![
        Broken::new("key normalised", Law::Keys, |store| Renamed {
            store,
            there: |key| key.to_lowercase(),
            back: str::to_owned,
        }),
        Broken::new("key cut off", Law::Limits, |store| Renamed {
            store,
            there: |key| key[..key.floor_char_boundary(500)].to_owned(),
            back: str::to_owned,
        }),
        Broken::new("one key a batch less than promised", Law::Limits, OneLess),
    ]
}

/// A store that has other names for the keys.
pub(crate) struct Renamed {
    pub(crate) store: Store,
    /// The store's name of a key.
    pub(crate) there: fn(&str) -> String,
    /// The key of the store's name, as well as it can be told.
    pub(crate) back: fn(&str) -> String,
}

impl Renamed {
    fn claims(&self, claims: &[Claim]) -> Vec<Claim> {
        let renamed = |claim: &Claim| {
            let key = LockKey::parse((self.there)(claim.key().as_str())).expect("still a key");
            Claim::new(key, claim.want()).expect("of the same kind")
        };
        let mut claims: Vec<Claim> = claims.iter().map(renamed).collect();
        // Two keys of a batch may have become one.
        claims.sort_by(|a, b| a.key().cmp(b.key()));
        claims.dedup_by(|a, b| a.key() == b.key());
        claims
    }

    fn key(&self, key: &LockKey) -> LockKey {
        LockKey::parse((self.back)(key.as_str())).expect("it was a key")
    }

    fn holders(&self, holders: &[Holder]) -> Vec<Holder> {
        let renamed = |holder: &Holder| Holder {
            key: self.key(&holder.key),
            ..holder.clone()
        };
        holders.iter().map(renamed).collect()
    }
}

#[async_trait]
impl Decorator for Renamed {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let mut renamed = request.clone();
        renamed.claims = self.claims(&request.claims);
        let answer = self.store.acquire(&renamed).await?;
        let Acquired::Busy(busy) = answer else {
            return Ok(answer);
        };
        let refused = |refused: &Refused| Refused {
            claim: Claim::new(self.key(refused.claim.key()), refused.claim.want())
                .expect("of the same kind"),
            holders: self.holders(&refused.holders),
            more: refused.more,
        };
        let listed = busy.refused().iter().map(refused).collect();
        Ok(Acquired::Busy(Busy::new(listed, busy.more)))
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        self.store.release(grant, &self.claims(claims)).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        self.store.confirm(grant, &self.claims(claims)).await
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        self.store.watch(&self.claims(claims)).await
    }

    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let renamed = |key: &str| (self.there)(key);
        let filter = match filter {
            Filter::Key(key) => {
                Filter::Key(LockKey::parse(renamed(key.as_str())).expect("still a key"))
            }
            Filter::Prefix(prefix) => Filter::Prefix(renamed(prefix)),
            Filter::Session(session) => Filter::Session(*session),
        };
        let mut page = self.store.records(&filter, after, limit).await?;
        for record in &mut page.items {
            record.key = self.key(&record.key);
            record.holders = self.holders(&record.holders);
        }
        Ok(page)
    }
}

struct OneLess(Store);

#[async_trait]
impl Decorator for OneLess {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        if request.claims.len() >= self.0.info().keys_per_batch {
            let (name, operation) = (self.0.info().name, Operation::Acquire);
            let what = "too many keys in a batch";
            return Err(Error::new(ErrorKind::Limit, name, operation, what));
        }
        self.0.acquire(request).await
    }
}
