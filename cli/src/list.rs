//! `lockkeeper ls`, `inspect` and `sessions`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper::backend::{Filter, Page, Record};
use lockkeeper::{Holder, Life, LockBackend, SessionId, SessionState};

use crate::args::{Common, InspectArgs, LsArgs, SessionsArgs};
use crate::describe::{self, HolderJson, RecordJson, SessionJson};
use crate::failure::{Failure, one_line};
use crate::output::{Cell, Output, Table};
use crate::store;

/// Records or sessions of one page.
const PAGE: usize = 500;

pub(crate) async fn ls(common: &Common, args: LsArgs) -> Result<u8, Failure> {
    let store = store::open(common).await?;
    let mut output = Output::new();
    let mut table = Table::new(&["KEY", "MODE", "AGE", "LEFT", "SESSION", "STATE", "LABEL"]);
    let filter = Filter::Prefix(args.prefix);
    let mut next = None;
    loop {
        let page = store
            .backend
            .records(&filter, next.as_deref(), PAGE)
            .await?;
        let left = Left::of(&*store.backend, &page.items).await?;
        for record in &page.items {
            if common.json {
                output.json(&RecordJson::of(record, &left))?;
                continue;
            }
            let key = || Cell::text(record.key.as_str());
            for holder in &record.holders {
                table.row([key()].into_iter().chain(cells(holder, &left)));
            }
            if record.more {
                table.row([key(), Cell::text("and more")]);
            }
        }
        table.write(&mut output)?;
        next = page.next;
        if next.is_none() {
            return output.finish();
        }
    }
}

pub(crate) async fn inspect(common: &Common, args: InspectArgs) -> Result<u8, Failure> {
    let store = store::open(common).await?;
    let filter = Filter::Key(args.key.clone());
    let records = records(&*store.backend, &filter).await?;
    let left = Left::of(&*store.backend, &records).await?;
    let mut output = Output::new();
    if common.json {
        let holders = records.iter().flat_map(|record| &record.holders);
        output.json(&RecordJson {
            key: args.key.as_str(),
            holders: holders.map(|it| HolderJson::of(it, &left)).collect(),
            more: records.iter().any(|record| record.more),
        })?;
        return output.finish();
    }
    if records.is_empty() {
        output.line("nobody holds it")?;
    }
    let mut table = Table::new(&["MODE", "AGE", "LEFT", "SESSION", "STATE", "LABEL"]);
    for record in &records {
        for holder in &record.holders {
            table.row(cells(holder, &left));
        }
        if record.more {
            table.row([Cell::text("and more")]);
        }
    }
    table.write(&mut output)?;
    output.finish()
}

pub(crate) async fn sessions(common: &Common, args: SessionsArgs) -> Result<u8, Failure> {
    let store = store::open(common).await?;
    let mut output = Output::new();
    let mut table = match args.ended {
        true => Table::new(&["SESSION", "STATE", "LEFT", "ADOPTER", "ENDED", "LABEL"]),
        false => Table::new(&["SESSION", "STATE", "LEFT", "ADOPTER", "LABEL"]),
    };
    let mut next = None;
    loop {
        let page: Page<SessionState> = store.backend.sessions(next.as_deref(), PAGE).await?;
        let living = page.items.iter().filter(|it| it.life == Life::Living);
        let living = living.filter(|_| !args.ended).map(|it| it.session);
        let left = Left::of_sessions(&*store.backend, living.collect()).await?;
        for state in &page.items {
            let wanted = match state.life {
                Life::Living => !args.ended,
                Life::Abandoned => true,
                Life::Dead => args.all || args.ended,
            };
            if !wanted {
                continue;
            }
            if common.json {
                output.json(&SessionJson::of(state, left.session(state.session)))?;
                continue;
            }
            let adopter = state
                .adopter
                .map_or_else(|| "-".to_owned(), |adopter| adopter.to_string());
            let [session, life] = [state.session.to_string(), state.life.to_string()];
            let ended = args.ended.then(|| Cell::since(state.ended));
            let cells = [session, life].map(Cell::text).into_iter();
            let left = Cell::lasting(left.session(state.session));
            table.row(
                cells
                    .chain([left, Cell::text(adopter)])
                    .chain(ended)
                    .chain([Cell::text(one_line(state.label.as_str()))]),
            );
            for note in describe::notes(state).filter(|_| args.ended) {
                table.detail(&describe::note(&note));
            }
        }
        table.write(&mut output)?;
        next = page.next;
        if next.is_none() {
            return output.finish();
        }
    }
}

/// Every record of a filter that is expected to have few.
pub(crate) async fn records(
    backend: &dyn LockBackend,
    filter: &Filter,
) -> Result<Vec<Record>, Failure> {
    let (mut records, mut next) = (Vec::new(), None);
    loop {
        let page = backend.records(filter, next.as_deref(), PAGE).await?;
        records.extend(page.items);
        next = page.next;
        if next.is_none() {
            return Ok(records);
        }
    }
}

/// What is left of the leases of those who hold or wait. Of an abandoned session no lease is left: it holds until its change
/// is finished or discarded.
#[derive(Default)]
pub(crate) struct Left(BTreeMap<SessionId, Duration>);

impl Left {
    async fn of(backend: &dyn LockBackend, records: &[Record]) -> Result<Self, Failure> {
        let holders = records.iter().flat_map(|record| &record.holders);
        let living = holders.filter(|holder| holder.life == Life::Living);
        let sessions = living.filter_map(|holder| Some(holder.grant?.session));
        Self::of_sessions(backend, sessions.collect()).await
    }

    pub(crate) async fn of_sessions(
        backend: &dyn LockBackend,
        sessions: BTreeSet<SessionId>,
    ) -> Result<Self, Failure> {
        let sessions: Vec<SessionId> = sessions.into_iter().collect();
        if sessions.is_empty() {
            return Ok(Self(BTreeMap::new()));
        }
        let left = backend.lease_left(&sessions).await?;
        let left = sessions.into_iter().zip(left);
        Ok(Self(
            left.filter_map(|(id, left)| Some((id, left?))).collect(),
        ))
    }

    pub(crate) fn session(&self, session: SessionId) -> Option<Duration> {
        self.0.get(&session).copied()
    }

    pub(crate) fn holder(&self, holder: &Holder) -> Option<Duration> {
        self.session(holder.grant?.session)
    }
}

/// Mode, since, what is left of the lease, session, state and label.
fn cells(holder: &Holder, left: &Left) -> [Cell; 6] {
    let session = holder
        .grant
        .map_or_else(|| "foreign".to_owned(), |grant| grant.session.to_string());
    [
        Cell::text(describe::mode(&holder.key, holder.mode)),
        Cell::since(holder.since),
        Cell::lasting(left.holder(holder)),
        Cell::text(session),
        Cell::text(describe::state(holder)),
        // What stands where a line or a field ends was written by others.
        Cell::text(one_line(&holder.label)),
    ]
}
