//! The acts on sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Access, Act, Corrupt, Done, Freed, Rows, SessionRow, Stored};
use crate::{
    Adopt, Adopted, Adoption, End, Grant, Incarnation, IntentChange, Label, Note, Opened,
    Operation, Renewal, Renewed, SessionId, SessionState, Settled,
};

pub(crate) struct Open {
    pub(crate) session: SessionId,
    pub(crate) label: Label,
    pub(crate) ttl: Duration,
}

impl Act for Open {
    type Answer = Opened;
    const OPERATION: Operation = Operation::Open;

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Opened, R> {
        let row = SessionRow::opened(self.label.clone(), self.ttl, rows.now());
        Ok(match rows.create_session(self.session, &row).await? {
            true => Opened::Opened(Incarnation::UNKNOWN),
            false => Opened::Used,
        })
    }
}

pub(crate) struct Renew {
    pub(crate) session: SessionId,
    pub(crate) renewal: Renewal,
}

impl Act for Renew {
    type Answer = Renewed;
    const OPERATION: Operation = Operation::Renew;

    fn access(&self) -> Access {
        match self.renewal.intent {
            IntentChange::Keep => Access::Write,
            IntentChange::Put(_) | IntentChange::Drop => Access::Durable,
        }
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Renewed, R> {
        let Some(mut row) = read(rows, self.session).await? else {
            return Ok(Renewed::Dead);
        };
        let frees = row.retired != self.renewal.retired;
        let renewed = row.renew(&self.renewal, rows.now());
        if renewed.is_living() {
            match &self.renewal.intent {
                IntentChange::Keep => {}
                IntentChange::Put(intent) => rows.put_intent(self.session, Some(intent)).await?,
                IntentChange::Drop => rows.put_intent(self.session, None).await?,
            }
            rows.put_session(self.session, &row).await?;
            if frees {
                rows.frees(Freed::Any);
            }
        }
        Ok(renewed)
    }
}

pub(crate) struct Ending {
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) how: End,
}

impl Act for Ending {
    type Answer = Vec<SessionState>;
    const OPERATION: Operation = Operation::End;

    fn access(&self) -> Access {
        match self.how {
            End::Discard => Access::Durable,
            End::IfDue | End::Close | End::Revoke => Access::Write,
        }
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Vec<SessionState>, R> {
        let mut states = Vec::with_capacity(self.sessions.len());
        for id in &self.sessions {
            states.push(match end(rows, *id, self.how).await? {
                Stored::Row(row) => row.state(*id),
                Stored::Absent | Stored::Unreadable => SessionState::unreadable(*id),
            });
        }
        Ok(states)
    }
}

pub(crate) struct Adopting {
    pub(crate) session: SessionId,
    pub(crate) seen: u64,
    pub(crate) adopter: SessionId,
    pub(crate) how: Adopt,
}

impl Act for Adopting {
    type Answer = Adopted;
    const OPERATION: Operation = Operation::Adopt;

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Adopted, R> {
        let Some(mut row) = read(rows, self.session).await? else {
            return Ok(Adopted::NotAdopted);
        };
        let number = match self.how {
            Adopt::Take => row.adopt(self.seen, self.adopter),
            Adopt::GiveUp => {
                if row.give_up(self.seen, self.adopter) {
                    rows.put_session(self.session, &row).await?;
                }
                None
            }
        };
        let Some(number) = number else {
            return Ok(Adopted::NotAdopted);
        };
        rows.put_session(self.session, &row).await?;
        let Stored::Row(left) = rows.intent(self.session).await? else {
            let gone = Corrupt("the intent of an abandoned session is gone or broken");
            return Err(gone.into());
        };
        let token = rows.next_token().await?;
        Ok(Adopted::Adopted(Adoption {
            number,
            token,
            left,
        }))
    }
}

pub(crate) struct Settle {
    pub(crate) session: SessionId,
    pub(crate) adoption: u64,
    pub(crate) adopter: SessionId,
}

impl Act for Settle {
    type Answer = Settled;
    const OPERATION: Operation = Operation::Settle;

    fn access(&self) -> Access {
        Access::Durable
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<Settled, R> {
        let Some(mut row) = read(rows, self.session).await? else {
            return Ok(Settled::NotSettled);
        };
        if row.settle(self.adoption, self.adopter, rows.now()) {
            rows.put_intent(self.session, None).await?;
            rows.put_session(self.session, &row).await?;
            rows.frees(Freed::Any);
        }
        Ok(Settled::of(row.is_settled(self.adoption, self.adopter)))
    }
}

pub(crate) struct Noting {
    pub(crate) session: SessionId,
    pub(crate) note: Note,
}

impl Act for Noting {
    type Answer = bool;
    const OPERATION: Operation = Operation::Note;

    fn access(&self) -> Access {
        Access::Write
    }

    async fn run<R: Rows>(&self, rows: &mut R) -> Done<bool, R> {
        let Some(mut row) = read(rows, self.session).await? else {
            return Ok(false);
        };
        row.notes.add(&self.note);
        rows.put_session(self.session, &row).await?;
        Ok(true)
    }
}

/// The record, if it can be understood.
async fn read<R: Rows>(rows: &mut R, id: SessionId) -> Done<Option<SessionRow>, R> {
    match rows.session(id).await? {
        Stored::Absent => Ok(None),
        Stored::Row(row) => Ok(Some(row)),
        Stored::Unreadable => Err(cannot_be_read().into()),
    }
}

fn cannot_be_read() -> Corrupt {
    Corrupt("the session's record cannot be understood")
}

/// Ends a session if `how` does. A session without a record gets a tombstone.
pub(crate) async fn end<R: Rows>(
    rows: &mut R,
    id: SessionId,
    how: End,
) -> Done<Stored<SessionRow>, R> {
    let now = rows.now();
    let mut row = match rows.session(id).await? {
        Stored::Row(row) => row,
        Stored::Absent => {
            let tombstone = SessionRow::tombstone(now);
            rows.put_session(id, &tombstone).await?;
            return Ok(Stored::Row(tombstone));
        }
        Stored::Unreadable => return Ok(Stored::Unreadable),
    };
    if row.ends(how, now) {
        // Even one that cannot be read is left behind.
        let intent = rows.intent(id).await? != Stored::Absent;
        if how == End::Discard {
            rows.put_intent(id, None).await?;
        }
        row.end(how, intent, now);
        rows.put_session(id, &row).await?;
        rows.frees(Freed::Any);
    }
    Ok(Stored::Row(row))
}

/// The sessions that one act has met, each as first met. If the act writes, a session that was due has been ended, and
/// one without a record has a tombstone.
pub(crate) struct Met {
    writes: bool,
    /// Mostly the only one.
    first: Option<(SessionId, Stored<SessionRow>)>,
    others: BTreeMap<SessionId, Stored<SessionRow>>,
}

impl Met {
    pub(crate) fn writing() -> Self {
        Self::of(true)
    }

    pub(crate) fn reading() -> Self {
        Self::of(false)
    }

    fn of(writes: bool) -> Self {
        Self {
            writes,
            first: None,
            others: BTreeMap::new(),
        }
    }

    pub(crate) async fn meet<R: Rows>(
        &mut self,
        rows: &mut R,
        id: SessionId,
    ) -> Done<&Stored<SessionRow>, R> {
        if self.first.as_ref().is_none_or(|(first, _)| *first != id)
            && !self.others.contains_key(&id)
        {
            let row = match self.writes {
                true => end(rows, id, End::IfDue).await?,
                false => rows.session(id).await?,
            };
            if self.first.is_some() {
                self.others.insert(id, row);
            } else {
                self.first = Some((id, row));
            }
        }
        Ok(match &self.first {
            Some((first, row)) if *first == id => row,
            _ => &self.others[&id],
        })
    }

    /// Whether a request under that grant may be granted.
    pub(crate) async fn admits<R: Rows>(&mut self, rows: &mut R, grant: Grant) -> Done<bool, R> {
        match self.meet(rows, grant.session).await? {
            Stored::Row(row) => Ok(row.admits(grant)),
            Stored::Absent => Ok(false),
            Stored::Unreadable => Err(cannot_be_read().into()),
        }
    }
}
