//! [`Recorded`]: a backend whose requests and answers are written down.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Acquire, Acquired, Adopt, Adopted, Changed, ClaimStore, End, Filter, Incarnation, Inspect,
    Opened, Page, Record, Renewal, Renewed, SessionStore, Settled, Stood, Sweep, Swept, Wakeups,
};
use lockcore::{
    Claim, Grant, Info, Label, LockBackend, Note, OwnerId, Result, SessionId, SessionState,
};

use crate::journal::Journal;

/// Of a long answer, the beginning is enough to read.
const SHOWN: usize = 600;

pub(crate) struct Recorded {
    backend: Arc<dyn LockBackend>,
    journal: Journal,
    /// Which connection it is.
    name: String,
}

impl Recorded {
    pub(crate) fn new(backend: Arc<dyn LockBackend>, journal: Journal, name: String) -> Self {
        Self {
            backend,
            journal,
            name,
        }
    }

    async fn call<T: Debug>(
        &self,
        what: String,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if self.journal.is_stopped() {
            std::future::pending::<()>().await;
        }
        let entry = self
            .journal
            .request(shorten(format!("{}: {what}", self.name)));
        let answer = call.await;
        let shown = match &answer {
            Ok(answer) => format!("{answer:?}"),
            Err(error) => format!("error: {error}"),
        };
        entry.answer(&shorten(shown));
        answer
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push('…');
    }
    text
}

fn claims(claims: &[Claim]) -> String {
    let shown: Vec<String> = claims
        .iter()
        .take(8)
        .map(|claim| format!("{:?} {:?}", claim.want(), claim.key()))
        .collect();
    let more = if claims.len() > 8 { ", …" } else { "" };
    format!("[{}{more}]", shown.join(", "))
}

#[async_trait]
impl SessionStore for Recorded {
    async fn open(&self, session: SessionId, label: &Label, ttl: Duration) -> Result<Opened> {
        self.journal.name(session);
        self.call(
            format!("open {session} ttl {ttl:?}"),
            self.backend.open(session, label, ttl),
        )
        .await
    }

    async fn renew(&self, session: SessionId, renewal: &Renewal) -> Result<Renewed> {
        let Renewal {
            seq,
            acknowledged,
            over,
            intent,
            ..
        } = renewal;
        self.call(
            format!("renew {session} seq {seq} after {acknowledged} over {over} intent {intent:?}"),
            self.backend.renew(session, renewal),
        )
        .await
    }

    async fn end(&self, sessions: &[SessionId], how: End) -> Result<Vec<SessionState>> {
        self.call(
            format!("end {sessions:?} {how:?}"),
            self.backend.end(sessions, how),
        )
        .await
    }

    async fn adopt(
        &self,
        session: SessionId,
        seen: u64,
        adopter: SessionId,
        how: Adopt,
        within: Incarnation,
    ) -> Result<Adopted> {
        self.call(
            format!("adopt {session} seen {seen} by {adopter} {how:?} within {within:?}"),
            self.backend.adopt(session, seen, adopter, how, within),
        )
        .await
    }

    async fn settle(
        &self,
        session: SessionId,
        adoption: u64,
        adopter: SessionId,
        within: Incarnation,
    ) -> Result<Settled> {
        self.call(
            format!("settle {session} adoption {adoption} by {adopter} within {within:?}"),
            self.backend.settle(session, adoption, adopter, within),
        )
        .await
    }

    async fn note(&self, session: SessionId, note: &Note) -> Result<bool> {
        self.call(
            format!("note {session} {note}"),
            self.backend.note(session, note),
        )
        .await
    }
}

#[async_trait]
impl ClaimStore for Recorded {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        let joined = if request.joined { " joined" } else { "" };
        self.call(
            format!(
                "acquire {} owner {}{joined} {}",
                request.grant,
                request.owner,
                claims(&request.claims)
            ),
            self.backend.acquire(request),
        )
        .await
    }

    async fn release(&self, grant: Grant, released: &[Claim]) -> Result<Stood> {
        self.call(
            format!("release {grant} {}", claims(released)),
            self.backend.release(grant, released),
        )
        .await
    }

    async fn confirm(&self, grant: Grant, confirmed: &[Claim]) -> Result<bool> {
        self.call(
            format!("confirm {grant} {}", claims(confirmed)),
            self.backend.confirm(grant, confirmed),
        )
        .await
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        self.call(
            format!("sweep {which:?} limit {limit}"),
            self.backend.sweep(which, limit),
        )
        .await
    }
}

#[async_trait]
impl Wakeups for Recorded {
    async fn watch(&self, watched: &[Claim]) -> Result<Changed> {
        let what = format!("watch {}", claims(watched));
        self.watching(what, self.backend.watch(watched)).await
    }

    async fn watch_turn(
        &self,
        grant: Grant,
        owner: OwnerId,
        claim: &Claim,
    ) -> Result<Option<Changed>> {
        let turn = self.backend.watch_turn(grant, owner, claim).await;
        match turn {
            Ok(Some(turn)) => {
                let what = format!("watch the turn of {grant}");
                Ok(Some(self.watching(what, async { Ok(turn) }).await?))
            }
            other => other,
        }
    }

    async fn watch_session(&self, session: SessionId) -> Result<Changed> {
        let what = format!("watch {session}");
        let watch = self.backend.watch_session(session);
        self.watching(what, watch).await
    }
}

impl Recorded {
    async fn watching(
        &self,
        what: String,
        watch: impl Future<Output = Result<Changed>>,
    ) -> Result<Changed> {
        let what = format!("{}: {what}", self.name);
        self.journal.note(what.clone());
        let changed = watch.await?;
        let journal = self.journal.clone();
        journal.note(format!("… {what} stands"));
        Ok(Box::pin(async move {
            changed.await;
            journal.note(format!("… {what} woke"));
        }))
    }
}

#[async_trait]
impl Inspect for Recorded {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        self.call(
            format!("records {filter:?} after {after:?} limit {limit}"),
            self.backend.records(filter, after, limit),
        )
        .await
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        self.call(
            format!("sessions after {after:?} limit {limit}"),
            self.backend.sessions(after, limit),
        )
        .await
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        self.call(format!("evict {:?}", seen.key), self.backend.evict(seen))
            .await
    }
}

impl LockBackend for Recorded {
    fn info(&self) -> Info {
        self.backend.info()
    }
}
