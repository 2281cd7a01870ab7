//! [`Recorded`]: a backend whose requests and answers are written down.

use std::sync::Arc;

use async_trait::async_trait;
use lockcore::backend::Renewal;
use lockcore::{Claim, LockBackend, Result};

use crate::decorator::{Decorated, Decorator};
use crate::journal::Journal;
use crate::request::{Answer, Request};

/// Of a long answer, the beginning is enough to read.
const SHOWN: usize = 600;

pub(crate) struct Recorded {
    backend: Arc<dyn LockBackend>,
    journal: Journal,
    /// Which connection it is.
    name: String,
}

impl Recorded {
    pub(crate) fn new(
        backend: Arc<dyn LockBackend>,
        journal: Journal,
        name: String,
    ) -> Decorated<Self> {
        Decorated(Self {
            backend,
            journal,
            name,
        })
    }

    async fn watch(&self, what: String, watch: &Request) -> Result<Answer> {
        self.journal.note(what.clone());
        let answer = watch.send(self.inner()).await?;
        let journal = self.journal.clone();
        journal.note(format!("… {what} stands"));
        Ok(answer.watching(|changed| {
            Box::pin(async move {
                changed.await;
                journal.note(format!("… {what} woke"));
            })
        }))
    }
}

#[async_trait]
impl Decorator for Recorded {
    fn inner(&self) -> &dyn LockBackend {
        &*self.backend
    }

    async fn call(&self, request: Request) -> Result<Answer> {
        let what = format!("{}: {}", self.name, shown(&request));
        match &request {
            Request::Watch { .. } | Request::WatchTurn { .. } | Request::WatchSession { .. } => {
                return self.watch(what, &request).await;
            }
            Request::Open { session, .. } => self.journal.name(*session),
            _ => {}
        }
        if self.journal.is_stopped() {
            std::future::pending::<()>().await;
        }
        let entry = self.journal.request(shorten(what));
        let answer = request.send(self.inner()).await;
        let shown = match &answer {
            Ok(answer) => format!("{answer:?}"),
            Err(error) => format!("error: {error}"),
        };
        entry.answer(&shorten(shown));
        answer
    }
}

fn shown(request: &Request) -> String {
    match request {
        Request::Open { session, ttl, .. } => format!("open {session} ttl {ttl:?}"),
        Request::Renew { session, renewal } => {
            let Renewal {
                seq,
                acknowledged,
                retired,
                intent,
                ..
            } = renewal;
            format!(
                "renew {session} seq {seq} after {acknowledged} over {retired} intent {intent:?}"
            )
        }
        Request::End { sessions, how } => format!("end {sessions:?} {how:?}"),
        Request::Adopt {
            session,
            seen,
            adopter,
            how,
            within,
        } => format!("adopt {session} seen {seen} by {adopter} {how:?} within {within:?}"),
        Request::Settle {
            session,
            adoption,
            adopter,
            within,
        } => format!("settle {session} adoption {adoption} by {adopter} within {within:?}"),
        Request::Note { session, note } => format!("note {session} {note}"),
        Request::Acquire(request) => {
            let joined = if request.joined { " joined" } else { "" };
            let (grant, owner) = (request.grant, request.owner);
            let claims = listed(&request.claims);
            format!("acquire {grant} owner {owner}{joined} {claims}")
        }
        Request::Release { grant, claims } => format!("release {grant} {}", listed(claims)),
        Request::Confirm { grant, claims } => format!("confirm {grant} {}", listed(claims)),
        Request::Sweep { which, limit } => format!("sweep {which:?} limit {limit}"),
        Request::Watch { claims } => format!("watch {}", listed(claims)),
        Request::WatchTurn { grant, claim, .. } => {
            format!(
                "watch the turn of {grant} {}",
                listed(std::slice::from_ref(claim))
            )
        }
        Request::WatchSession { session } => format!("watch {session}"),
        Request::Records {
            filter,
            after,
            limit,
        } => format!("records {filter:?} after {after:?} limit {limit}"),
        Request::Sessions { after, limit } => format!("sessions after {after:?} limit {limit}"),
        Request::SessionStates { sessions } => format!("states of {sessions:?}"),
        Request::LeaseLeft { sessions } => format!("leases of {sessions:?}"),
        Request::Evict { seen } => format!("evict {:?}", seen.key),
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push('…');
    }
    text
}

fn listed(claims: &[Claim]) -> String {
    let shown: Vec<String> = claims
        .iter()
        .take(8)
        .map(|claim| format!("{:?} {:?}", claim.want(), claim.key()))
        .collect();
    let more = if claims.len() > 8 { ", …" } else { "" };
    format!("[{}{more}]", shown.join(", "))
}
