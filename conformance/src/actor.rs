//! [`Actor`]: one session of one process, talking to the traits directly.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Adoption, End, Filter, Incarnation, IntentChange, Ranges,
    Record, Registered, Renewal, Renewed, Settled, Stood, prepare,
};
use lockcore::{
    Busy, Claim, FencingToken, Grant, Intent, Label, Life, LockBackend, OwnerId, SessionId,
    SessionState, Want,
};
use tokio::time::Instant;

use crate::law::Law;
use crate::scene::claim;
use crate::verdict::{Unpassed, Verdict, Wrong, ensure, ensure_eq, in_time};

pub(crate) const SHARE: Want = Want::Share { limit: None };

/// A share beside at most `limit - 1` others.
pub(crate) fn share(limit: u32) -> Want {
    Want::Share {
        limit: NonZeroU32::new(limit),
    }
}

/// What a store says wrongly to a session that was opened in its incarnation.
const MOVED: &str = "the store says that it is of another incarnation";

pub(crate) struct Actor {
    backend: Arc<dyn LockBackend>,
    session: SessionId,
    /// What it was answered when the session was opened.
    incarnation: Incarnation,
    label: Label,
    number: AtomicU64,
    seq: AtomicU64,
    /// The greatest number of a renewal that was acknowledged.
    acknowledged: AtomicU64,
    ttl: Duration,
    /// When the last request that its life counts from was sent.
    since: Mutex<Instant>,
}

impl Actor {
    /// A session that was asked for at that time.
    pub(crate) fn new(
        backend: Arc<dyn LockBackend>,
        session: SessionId,
        label: Label,
        ttl: Duration,
        since: Instant,
    ) -> Self {
        Self {
            backend,
            session,
            incarnation: Incarnation::UNKNOWN,
            label,
            ttl,
            since: Mutex::new(since),
            number: AtomicU64::new(1),
            seq: AtomicU64::new(1),
            acknowledged: AtomicU64::new(0),
        }
    }

    /// The same, of a session that was opened in this incarnation of the store.
    pub(crate) fn within(self, incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            ..self
        }
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(crate) fn backend(&self) -> &Arc<dyn LockBackend> {
        &self.backend
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    fn next(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// An owner that nobody had.
    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId {
            session: self.session,
            m: self.next(),
        }
    }

    /// A new request, with an owner of its own. The claims are prepared as the client does it.
    pub(crate) fn ask(&self, wants: &[(Want, &str)]) -> Acquire {
        self.ask_as(self.owner(), wants)
    }

    /// A new request of that owner.
    pub(crate) fn ask_as(&self, owner: OwnerId, wants: &[(Want, &str)]) -> Acquire {
        let claims: Verdict<Vec<Claim>> =
            wants.iter().map(|(want, key)| claim(*want, key)).collect();
        let claims = claims.unwrap_or_else(|wrong| panic!("a case asks nonsense: {wrong}"));
        self.ask_claims(owner, claims)
    }

    pub(crate) fn ask_claims(&self, owner: OwnerId, claims: Vec<Claim>) -> Acquire {
        Acquire::new(
            Grant {
                session: self.session,
                n: self.next(),
            },
            owner,
            prepare(claims).expect("a case asks for one claim or more"),
        )
        .within(self.incarnation)
    }

    /// Sends the request.
    pub(crate) async fn send(&self, request: &Acquire) -> Verdict<Acquired> {
        Ok(self.backend.acquire(request).await?)
    }

    /// Sends the request, which has to be granted.
    pub(crate) async fn take(&self, request: &Acquire) -> Verdict<FencingToken> {
        match self.send(request).await? {
            Acquired::Acquired(token) => Ok(token),
            other => {
                self.lives()?;
                Err(Wrong(format!(
                    "{} {:?} has to be granted: {other:?}",
                    request.grant, request.claims
                )))
            }
        }
    }

    /// Sends the request, which has to be refused by somebody.
    ///
    /// An error in its place is no failure of the way to the store if it comes twice, and the store answers in between.
    pub(crate) async fn refused(&self, request: &Acquire) -> Verdict<Busy> {
        let answer = self.backend.acquire(request).await;
        if let Err(error) = &answer
            && self.confirms(request).await.is_ok()
            && self.backend.acquire(request).await.is_err()
        {
            return Err(Unpassed::Breaks(
                Law::RefusalIsAValue,
                format!(
                    "{} has to be refused, and not with an error: {error}",
                    request.grant
                ),
            ));
        }
        match answer? {
            Acquired::Busy(busy) => {
                ensure!(
                    !busy.first().holders.is_empty(),
                    "a refusal names who is in the way: {busy:?}"
                );
                Ok(busy)
            }
            other => Err(Wrong(format!(
                "{} {:?} has to be refused: {other:?}",
                request.grant, request.claims
            ))),
        }
    }

    /// A new request, granted.
    pub(crate) async fn hold(&self, wants: &[(Want, &str)]) -> Verdict<Acquire> {
        let request = self.ask(wants);
        self.take(&request).await?;
        Ok(request)
    }

    /// A new request of that owner, granted.
    pub(crate) async fn hold_as(&self, owner: OwnerId, wants: &[(Want, &str)]) -> Verdict<Acquire> {
        let request = self.ask_as(owner, wants);
        self.take(&request).await?;
        Ok(request)
    }

    pub(crate) async fn release(&self, request: &Acquire) -> Verdict {
        self.gives_back(request).await.map(drop)
    }

    /// The same, and what the store says of it.
    pub(crate) async fn gives_back(&self, request: &Acquire) -> Verdict<Stood> {
        Ok(self.backend.release(request.grant, &request.claims).await?)
    }

    /// Releases it, of which the store has to say this.
    pub(crate) async fn releases(&self, request: &Acquire, stood: Stood) -> Verdict {
        ensure_eq!(self.gives_back(request).await?, stood, "the release");
        Ok(())
    }

    /// Whether the store says that the request is still held.
    pub(crate) async fn confirms(&self, request: &Acquire) -> Verdict<bool> {
        Ok(self.backend.confirm(request.grant, &request.claims).await?)
    }

    /// The request is held.
    pub(crate) async fn holds(&self, request: &Acquire) -> Verdict {
        ensure!(self.confirms(request).await?, "{} is held", request.grant);
        Ok(())
    }

    /// The request is not held.
    pub(crate) async fn holds_no_more(&self, request: &Acquire) -> Verdict {
        let confirmed = self.confirms(request).await?;
        ensure!(!confirmed, "{} is confirmed", request.grant);
        Ok(())
    }

    /// The next renewal, with these numbers over.
    pub(crate) fn renewal(&self, retired: &str, intent: IntentChange) -> Renewal {
        Renewal::new(
            self.seq.fetch_add(1, Ordering::Relaxed),
            retired
                .parse()
                .expect("a case names ranges in their spelling"),
            intent,
        )
        .after(self.acknowledged.load(Ordering::Relaxed))
        .within(self.incarnation, Ranges::EMPTY)
    }

    pub(crate) async fn send_renewal(&self, renewal: &Renewal) -> Verdict<Renewed> {
        let sent = Instant::now();
        let renewed = self.backend.renew(self.session, renewal).await?;
        if renewed.is_living() {
            self.acknowledged.fetch_max(renewal.seq, Ordering::Relaxed);
            *self.since.lock().unwrap_or_else(PoisonError::into_inner) = sent;
        }
        Ok(renewed)
    }

    /// Sends the renewal, which has to be answered so.
    pub(crate) async fn renews(&self, renewal: &Renewal, answer: Renewed) -> Verdict {
        ensure_eq!(self.send_renewal(renewal).await?, answer, "the renewal");
        Ok(())
    }

    /// Its TTL has not passed: what is asked of it until now is asked of a living session.
    pub(crate) fn lives(&self) -> Verdict {
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        in_time(since, self.ttl)
    }

    /// Renews; the session has to live.
    pub(crate) async fn renew(&self, retired: &str, intent: IntentChange) -> Verdict {
        let renewal = self.renewal(retired, intent);
        self.renews(&renewal, Renewed::Living).await
    }

    /// Makes exactly the numbers of these requests over.
    pub(crate) async fn retired(&self, requests: &[&Acquire]) -> Verdict {
        let renewal = self.renewal(&numbers(requests), IntentChange::Keep);
        self.renews(&renewal, Renewed::Living).await
    }

    /// Registers this text as the intent, with that token.
    pub(crate) async fn intend(&self, token: FencingToken, text: &str) -> Verdict {
        self.renew("", IntentChange::Put(registered(token, text)?))
            .await
    }

    /// Ends its own session.
    pub(crate) async fn end(&self, how: End) -> Verdict<SessionState> {
        self.end_of(self.session, how).await
    }

    /// Ends its own session, which is this then.
    pub(crate) async fn ends(&self, how: End, life: Life) -> Verdict {
        ensure_eq!(self.end(how).await?.life, life, "the session");
        Ok(())
    }

    /// Ends any session.
    pub(crate) async fn end_of(&self, session: SessionId, how: End) -> Verdict<SessionState> {
        let mut states = self.backend.end(&[session], how).await?;
        ensure_eq!(states.len(), 1, "states of one session");
        let state = states.remove(0);
        ensure_eq!(state.session, session, "the state is the session's own");
        Ok(state)
    }

    pub(crate) async fn adopt(&self, session: SessionId, seen: u64) -> Verdict<Option<Adoption>> {
        let (me, within) = (self.session, self.incarnation);
        let adopted = self.backend.adopt(session, seen, me, Adopt::Take, within);
        match adopted.await? {
            Adopted::Adopted(adoption) => Ok(Some(adoption)),
            Adopted::NotAdopted => Ok(None),
            Adopted::Moved => Err(Wrong(MOVED.to_owned())),
        }
    }

    /// The adoption, which has to be granted.
    pub(crate) async fn adopted(&self, session: SessionId, seen: u64) -> Verdict<Adoption> {
        let adoption = self.adopt(session, seen).await?;
        let Some(adoption) = adoption else {
            return Err(Wrong(format!(
                "{session} is abandoned, seen {seen}: its adoption was refused"
            )));
        };
        ensure_eq!(adoption.number, seen + 1, "the number of the adoption");
        Ok(adoption)
    }

    /// The adoption, which has to be refused.
    pub(crate) async fn adopts_nothing(&self, session: SessionId, seen: u64) -> Verdict {
        let adoption = self.adopt(session, seen).await?;
        ensure_eq!(adoption, None, "an adoption of {session}, seen {seen}");
        Ok(())
    }

    pub(crate) async fn give_up(&self, session: SessionId, seen: u64) -> Verdict {
        let (me, within) = (self.session, self.incarnation);
        let answer = self.backend.adopt(session, seen, me, Adopt::GiveUp, within);
        ensure_eq!(
            answer.await?,
            Adopted::NotAdopted,
            "the answer to giving up"
        );
        Ok(())
    }

    pub(crate) async fn settle(&self, session: SessionId, adoption: u64) -> Verdict<bool> {
        let (me, within) = (self.session, self.incarnation);
        match self.backend.settle(session, adoption, me, within).await? {
            Settled::Settled => Ok(true),
            Settled::NotSettled => Ok(false),
            Settled::Moved => Err(Wrong(MOVED.to_owned())),
        }
    }

    /// The settlement, which has to be granted.
    pub(crate) async fn settles(&self, session: SessionId, adoption: u64) -> Verdict {
        let settled = self.settle(session, adoption).await?;
        ensure!(settled, "{session}, adoption {adoption}, is settled");
        Ok(())
    }

    /// The settlement, which has to be refused.
    pub(crate) async fn settles_nothing(&self, session: SessionId, adoption: u64) -> Verdict {
        let settled = self.settle(session, adoption).await?;
        ensure!(!settled, "{session} is settled by number {adoption}");
        Ok(())
    }

    /// Every record of the filter, by pages of `limit`.
    pub(crate) async fn listed(&self, filter: &Filter, limit: usize) -> Verdict<Vec<Record>> {
        let mut records = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..1_000 {
            let page = self
                .backend
                .records(filter, after.as_deref(), limit)
                .await?;
            ensure!(
                page.items.len() <= limit,
                "a page of {limit} has {} records",
                page.items.len()
            );
            records.extend(page.items);
            after = page.next;
            if after.is_none() {
                return Ok(records);
            }
        }
        Err(Wrong("a listing that never ends".to_owned()))
    }
}

/// The token of a guard that has a grant with this token of the store, after others: floating point has no such number. One
/// that the store may not give out stays as it is.
pub(crate) fn of_guard(token: FencingToken) -> FencingToken {
    let number = token.get().checked_mul(64).map(|number| number + 63);
    number.and_then(FencingToken::new).unwrap_or(token)
}

pub(crate) fn registered(token: FencingToken, text: &str) -> Verdict<Registered> {
    Ok(Registered {
        token,
        intent: Intent::new(text.as_bytes())?,
    })
}

/// The numbers of these requests, which rise, as ranges.
fn numbers(requests: &[&Acquire]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for n in requests.iter().map(|request| request.grant.n) {
        match ranges.last_mut() {
            Some((_, to)) if *to + 1 == n => *to = n,
            _ => ranges.push((n, n)),
        }
    }
    let shown: Vec<String> = ranges
        .iter()
        .map(|(from, to)| format!("{from}-{to}"))
        .collect();
    shown.join(",")
}
