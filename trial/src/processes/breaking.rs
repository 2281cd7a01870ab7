//! [`Breaking`]: a real store that breaks one law, and a client that does.
//!
//! What a store does wrong is done behind the [`Watched`](crate::programs::Watched) of the process, so that its history
//! has what the store is said to have answered; what a client does wrong is done before it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Acquire, Acquired, Changed, End, Incarnation, IntentChange, Renewal, Renewed, Settled, Stood,
};
use lockcore::{
    Busy, Claim, FencingToken, Grant, Holder, Label, Life, LockBackend, LockKey, OwnerId, Refused,
    Result, SessionId, SessionState, Want,
};
use tokio::time::sleep;

use super::Breach;
use lockcore_conformance::{Decorated, Decorator};

/// Numbers of grants that no client reaches.
const OTHER: u64 = 1 << 40;
/// By so much tokens of paths that have nothing above them are greater.
const ABOVE: u64 = 1 << 40;
/// By so much the number of a settled adoption is wrong.
const WRONG: u64 = 7;

/// What both sides of a process know.
#[derive(Default)]
pub(super) struct Known {
    requests: AtomicU64,
    /// Who has released each key last.
    released: Mutex<BTreeMap<LockKey, Grant>>,
    /// What holders of sessions with an intent hold.
    held: Mutex<BTreeMap<Grant, Vec<Claim>>>,
    /// Who is to be in the way of the next request, in a session that is dead.
    expired: Mutex<Option<Grant>>,
    /// What each owner was granted last.
    owned: Mutex<BTreeMap<OwnerId, Acquire>>,
}

fn locked<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// Every so many requests.
    fn every(&self, requests: u64) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed) % requests == requests - 1
    }
}

/// A store that breaks a law, behind what the process writes down; or a client, before it.
pub(super) struct Breaking<const STORE: bool> {
    store: Arc<dyn LockBackend>,
    breach: Breach,
    known: Arc<Known>,
    ttl: Duration,
}

/// A store that does something wrong.
pub(super) type BrokenStore = Breaking<true>;
/// A client that does.
pub(super) type BrokenClient = Breaking<false>;

impl<const STORE: bool> Breaking<STORE> {
    /// The store with this in front of it.
    pub(super) fn before(
        store: Arc<dyn LockBackend>,
        breach: Breach,
        known: &Arc<Known>,
        ttl: Duration,
    ) -> Arc<dyn LockBackend>
    where
        Decorated<Self>: LockBackend,
    {
        let known = Arc::clone(known);
        Arc::new(Decorated(Self {
            store,
            breach,
            known,
            ttl,
        }))
    }
}

#[async_trait]
impl Decorator for BrokenStore {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let keeps = renewal.intent == IntentChange::Keep;
        match self.breach {
            Breach::Unrenewed if keeps => Ok(Renewed::Living),
            Breach::SpuriousLost if keeps && self.known.every(5) => Ok(Renewed::Dead),
            Breach::DeadLives => {
                self.store.renew(session, renewal).await?;
                Ok(Renewed::Living)
            }
            _ => self.store.renew(session, renewal).await,
        }
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        if self.breach == Breach::IntentsUnlocked && how == End::Close {
            for session in sessions {
                let of_it = |grant: &Grant, _: &mut Vec<Claim>| grant.session == *session;
                let held: Vec<_> = locked(&self.known.held).extract_if(.., of_it).collect();
                for (grant, claims) in held {
                    self.store.release(grant, &claims).await?;
                }
            }
        }
        let ended = self.store.end(sessions, how).await?;
        if self.breach == Breach::IntentsLost && how == End::Close {
            return self.store.end(sessions, End::Discard).await;
        }
        Ok(ended)
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let wrong = match self.breach {
            Breach::SettledUnadopted => WRONG,
            _ => 0,
        };
        let adoption = adoption.saturating_sub(wrong);
        self.store.settle(session, adoption, adopter, within).await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        match self.breach {
            Breach::SpuriousBusy => {
                if let Some(refused) = self.refused_by_nobody(request) {
                    return Ok(refused);
                }
            }
            Breach::ExpiredBlocks => {
                let expired = locked(&self.known.expired).take();
                if let Some(grant) = expired {
                    return Ok(busy(&request.claims[0], grant, Life::Abandoned));
                }
            }
            Breach::OwnersRefused => {
                if let Some(refused) = self.refused_by_its_owner(request) {
                    return Ok(refused);
                }
            }
            Breach::Overtakes => {
                let mut tries = request.clone();
                (tries.waits, tries.past) = (false, Vec::new());
                return self.store.acquire(&tries).await;
            }
            Breach::KeptBehind => self.keep(request, false).await?,
            Breach::LimitIgnored => return self.store.acquire(&unlimited(request)).await,
            Breach::ForeignClaims => return self.store.acquire(&more(request)).await,
            _ => {}
        }
        let acquired = self.store.acquire(request).await?;
        if self.breach == Breach::HandedOutLate {
            sleep(self.ttl).await;
        }
        let Acquired::Acquired(token) = &acquired else {
            let lies = self.breach == Breach::GrantedTwice
                && matches!(acquired, Acquired::Busy(_))
                && self.known.every(5);
            return Ok(match FencingToken::new(u64::MAX >> 8) {
                Some(token) if lies => Acquired::Acquired(token),
                _ => acquired,
            });
        };
        let token = token.get();
        let changed = match self.breach {
            Breach::TokenGoesBack if self.known.every(10) => token / 2,
            Breach::TokenBelowAncestor if has_nothing_above(request) => token + ABOVE,
            Breach::TwoGrants => {
                let mut other = request.clone();
                other.grant.n += OTHER;
                drop(self.store.acquire(&other).await?);
                token
            }
            Breach::IntentsUnlocked => {
                let claims = request.claims.clone();
                locked(&self.known.held).insert(request.grant, claims);
                token
            }
            Breach::OwnersRefused => {
                locked(&self.known.owned).insert(request.owner, request.clone());
                token
            }
            _ => token,
        };
        Ok(FencingToken::new(changed).map_or(acquired, Acquired::Acquired))
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        if self.breach == Breach::ReleaseUnsent {
            return Ok(Stood::Held);
        }
        locked(&self.known.held).remove(&grant);
        locked(&self.known.owned).retain(|_, owned| owned.grant != grant);
        let stood = self.store.release(grant, claims).await?;
        let mut released = locked(&self.known.released);
        released.extend(claims.iter().map(|claim| (claim.key().clone(), grant)));
        Ok(stood)
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let held = self.store.confirm(grant, claims).await?;
        Ok(match self.breach {
            Breach::ConfirmsAll => true,
            Breach::ConfirmsNone => held && !self.known.every(3),
            _ => held,
        })
    }

    async fn watch(&self, claims: &[Claim]) -> Result<Changed> {
        if self.breach == Breach::NeverWakes {
            return Ok(Box::pin(std::future::pending()));
        }
        self.store.watch(claims).await
    }

    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        if self.breach == Breach::NeverWakes {
            return Ok(None);
        }
        self.store.watch_turn(grant, owner, claim).await
    }
}

impl<const STORE: bool> Breaking<STORE> {
    /// Now and then the session of the request gets something else, which is never given back.
    async fn keep(&self, request: &Acquire, joined: bool) -> Result<()> {
        if !self.known.every(20) {
            return Ok(());
        }
        let mut other = request.clone();
        other.grant.n += OTHER;
        other.claims = vec![flat(&format!("kept-{}", rand::random::<u64>()))];
        (other.joined, other.waits, other.past) = (joined, false, Vec::new());
        self.store.acquire(&other).await?;
        Ok(())
    }
}

impl BrokenStore {
    /// Says that whoever has released the first key last is in the way.
    fn refused_by_nobody(&self, request: &Acquire) -> Option<Acquired> {
        let claim = &request.claims[0];
        let grant = locked(&self.known.released).get(claim.key()).copied()?;
        let same = grant.session == request.grant.session && self.known.every(5);
        same.then(|| busy(claim, grant, Life::Living))
    }

    /// Says that what the owner was granted last is in its way.
    fn refused_by_its_owner(&self, request: &Acquire) -> Option<Acquired> {
        let owned = locked(&self.known.owned);
        let owned = owned.get(&request.owner)?;
        let reenters = |claim: &Claim| claim.want().reenters();
        let is_other = owned.grant != request.grant && request.claims.iter().all(reenters);
        let same = |claim: &&Claim| owned.claims.contains(claim);
        let claim = request.claims.iter().find(same).filter(|_| is_other)?;
        Some(busy(claim, owned.grant, Life::Living))
    }
}

#[async_trait]
impl Decorator for BrokenClient {
    fn inner(&self) -> &dyn LockBackend {
        &*self.store
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let keeps = renewal.intent == IntentChange::Keep;
        if self.breach == Breach::HandedOutLate && keeps {
            return Ok(Renewed::Living);
        }
        if self.breach == Breach::DeadLives && keeps && self.known.every(3) {
            self.store.end(&[session], End::Revoke).await?;
        }
        self.store.renew(session, renewal).await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        let mut states = self.store.end(sessions, how).await?;
        if self.breach == Breach::AdoptedByTwo && how == End::IfDue {
            for state in &mut states {
                if state.life == Life::Living {
                    state.life = Life::Dead;
                }
            }
        }
        Ok(states)
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        let wrong = match self.breach {
            Breach::SettledUnadopted => WRONG,
            _ => 0,
        };
        self.store
            .settle(session, adoption + wrong, adopter, within)
            .await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        if self.breach == Breach::ExpiredBlocks && self.known.every(5) {
            // A session of its own gets the first claim, and ends.
            let session = SessionId::new(rand::random());
            let label = Label::parse("expired").expect("a short label");
            self.store.open(session, &label, self.ttl).await?;
            let other = alone(session, request.claims[0].clone());
            let acquired = self.store.acquire(&other).await?;
            self.store.end(&[session], End::Close).await?;
            if let Acquired::Acquired(_) = acquired {
                *locked(&self.known.expired) = Some(other.grant);
            }
        }
        if self.breach == Breach::StepKept {
            self.keep(request, true).await?;
        }
        if self.breach == Breach::NeverAnswered && self.known.every(20) {
            return std::future::pending().await;
        }
        self.store.acquire(request).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        if self.breach == Breach::ConfirmsAll && self.known.every(3) {
            self.store.release(grant, claims).await?;
        }
        let held = self.store.confirm(grant, claims).await?;
        Ok(held && !(self.breach == Breach::Denied && self.known.every(3)))
    }
}

fn flat(name: &str) -> Claim {
    let key = LockKey::parse(name).expect("a flat key");
    Claim::new(key, Want::Create).expect("a flat claim")
}

/// The only request of a session.
fn alone(session: SessionId, claim: Claim) -> Acquire {
    Acquire::new(
        Grant { session, n: 1 },
        OwnerId { session, m: 1 },
        vec![claim],
    )
}

fn busy(claim: &Claim, grant: Grant, life: Life) -> Acquired {
    let holder = Holder {
        key: claim.key().clone(),
        grant: Some(grant),
        owner: None,
        mode: claim.want().mode(),
        label: String::new(),
        since: None,
        life,
        waiting: None,
    };
    let refused = Refused {
        claim: claim.clone(),
        holders: vec![holder],
        more: false,
    };
    Acquired::Busy(Busy::new(vec![refused], false))
}

/// The same without the limits of shares.
fn unlimited(request: &Acquire) -> Acquire {
    let mut request = request.clone();
    for claim in &mut request.claims {
        if let Want::Share { .. } = claim.want() {
            let share = Claim::new(claim.key().clone(), Want::Share { limit: None });
            *claim = share.expect("a flat key");
        }
    }
    request
}

/// The same with another flat key, if these are some.
fn more(request: &Acquire) -> Acquire {
    let mut request = request.clone();
    let flat = |claim: &Claim| claim.want() == Want::Upsert;
    if request.claims.iter().all(flat) {
        let key = crate::programs::FLAT[request.claims.len() % crate::programs::FLAT.len()];
        let key = LockKey::parse(key).expect("a flat key");
        if request.claims.iter().all(|claim| *claim.key() != key) {
            request.claims.extend(Claim::new(key, Want::Upsert));
            request
                .claims
                .sort_by(|left, right| left.key().cmp(right.key()));
        }
    }
    request
}

/// Every claim is of a path that has nothing above it.
fn has_nothing_above(request: &Acquire) -> bool {
    let mut claims = request.claims.iter();
    claims.all(|claim| claim.key().is_path() && claim.key().ancestors().count() == 0)
}
