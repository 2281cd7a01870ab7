//! What sessions are.

use std::collections::{BTreeMap, BTreeSet};

use etcd_client::{KeyValue, TxnOp};
use lockcore::{Result, SessionId, SessionState};

use crate::record::Session;
use crate::txn::{Found, Way, get, nobody};

/// So many sessions are asked about, or ended by two operations each and one more, in one request: any `txn_ops` takes them.
pub(crate) const SESSIONS_PER_REQUEST: usize = 33;

/// What is known of sessions; of those that have no record, that they have none.
pub(crate) type States = BTreeMap<SessionId, Option<SessionState>>;

impl Way<'_> {
    /// Sessions as they are; one that was never opened never will be.
    pub(crate) async fn look_at(self, sessions: &[SessionId]) -> Result<Vec<SessionState>> {
        Ok(self.look_at_beside(sessions, Vec::new()).await?.0)
    }

    /// The same, with a few other looks in the first request, and what those have found.
    pub(crate) async fn look_at_beside(
        self,
        sessions: &[SessionId],
        mut others: Vec<TxnOp>,
    ) -> Result<(Vec<SessionState>, Vec<Found>)> {
        let mut states = Vec::with_capacity(sessions.len());
        let mut found = Vec::with_capacity(others.len());
        for some in sessions.chunks(SESSIONS_PER_REQUEST) {
            let others = std::mem::take(&mut others);
            let each = others.len();
            let mut answer = self
                .all(others.into_iter().chain(self.gets(some)).collect())
                .await?;
            for _ in 0..each {
                found.push(answer.found()?);
            }
            for session in some {
                let pairs = answer.found()?.pairs;
                states.push(self.state(*session, &pairs).await?);
            }
        }
        Ok((states, found))
    }

    fn gets(self, sessions: &[SessionId]) -> impl Iterator<Item = TxnOp> {
        let names = &self.link.names;
        sessions
            .iter()
            .map(|session| get(&names.session(*session), 0))
    }

    /// Those of the sessions that have a record, each asked about once.
    pub(crate) async fn peek(
        self,
        sessions: impl Iterator<Item = SessionId>,
    ) -> Result<BTreeMap<SessionId, SessionState>> {
        let sessions: Vec<SessionId> = sessions.collect::<BTreeSet<_>>().into_iter().collect();
        let mut states = BTreeMap::new();
        for some in sessions.chunks(SESSIONS_PER_REQUEST) {
            for (session, pairs) in self.read(some).await? {
                let read = Session::read(&self.link.names, session, &pairs);
                states.extend(read.map(|read| (session, read.state)));
            }
        }
        Ok(states)
    }

    /// Looks up what is not known yet of sessions; what has no record is known to have none.
    pub(crate) async fn learn(
        self,
        sessions: impl Iterator<Item = SessionId>,
        known: &mut States,
    ) -> Result<()> {
        let new: BTreeSet<SessionId> = sessions.filter(|id| !known.contains_key(id)).collect();
        let mut found = self.peek(new.iter().copied()).await?;
        known.extend(new.into_iter().map(|id| (id, found.remove(&id))));
        Ok(())
    }

    /// The keys of some sessions, at one moment.
    pub(crate) async fn read(
        self,
        sessions: &[SessionId],
    ) -> Result<Vec<(SessionId, Vec<KeyValue>)>> {
        let mut answer = self.all(self.gets(sessions).collect()).await?;
        let read = |session: &SessionId| Ok((*session, answer.found()?.pairs));
        sessions.iter().map(read).collect()
    }

    /// What a session is, by its keys; where there are none, it gets one that says that it was used.
    pub(crate) async fn state(
        self,
        session: SessionId,
        pairs: &[KeyValue],
    ) -> Result<SessionState> {
        let names = &self.link.names;
        if let Some(read) = Session::read(names, session, pairs) {
            return Ok(read.state);
        }
        let range = names.session(session);
        let unused = vec![nobody(&range)];
        let used = vec![
            TxnOp::put(names.label(session), "", None),
            TxnOp::put(names.ttl(session), "", None),
            get(&range, 0),
        ];
        let mut answer = self.txn(unused, used, vec![get(&range, 0)]).await?;
        if answer.succeeded {
            (0..2).for_each(|_| answer.skip());
        }
        let read = Session::read(names, session, &answer.found()?.pairs);
        read.map(|read| read.state).ok_or_else(|| answer.odd())
    }
}
