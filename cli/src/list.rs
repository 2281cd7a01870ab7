//! `lockkeeper ls`, `inspect` and `sessions`.

use lockkeeper::backend::{Filter, Page, Record};
use lockkeeper::{Holder, Life, LockBackend, SessionState};

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
    let mut table = Table::new(&["KEY", "MODE", "AGE", "SESSION", "STATE", "LABEL"]);
    let filter = Filter::Prefix(args.prefix);
    let mut next = None;
    loop {
        let page = store
            .backend
            .records(&filter, next.as_deref(), PAGE)
            .await?;
        for record in &page.items {
            if common.json {
                output.json(&RecordJson::from(record))?;
                continue;
            }
            let key = || Cell::text(record.key.as_str());
            for holder in &record.holders {
                table.row([key()].into_iter().chain(cells(holder)));
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
    let mut output = Output::new();
    if common.json {
        let holders = records.iter().flat_map(|record| &record.holders);
        output.json(&RecordJson {
            key: args.key.as_str(),
            holders: holders.map(HolderJson::from).collect(),
            more: records.iter().any(|record| record.more),
        })?;
        return output.finish();
    }
    if records.is_empty() {
        output.line("nobody holds it")?;
    }
    let mut table = Table::new(&["MODE", "AGE", "SESSION", "STATE", "LABEL"]);
    for record in &records {
        for holder in &record.holders {
            table.row(cells(holder));
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
        true => Table::new(&["SESSION", "STATE", "ADOPTER", "ENDED", "LABEL"]),
        false => Table::new(&["SESSION", "STATE", "ADOPTER", "LABEL"]),
    };
    let mut next = None;
    loop {
        let page: Page<SessionState> = store.backend.sessions(next.as_deref(), PAGE).await?;
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
                output.json(&SessionJson::from(state))?;
                continue;
            }
            let adopter = state
                .adopter
                .map_or_else(|| "-".to_owned(), |adopter| adopter.to_string());
            let [session, life] = [state.session.to_string(), state.life.to_string()];
            let ended = args.ended.then(|| Cell::since(state.ended));
            let cells = [session, life, adopter].map(Cell::text).into_iter();
            table.row(
                cells
                    .chain(ended)
                    .chain([Cell::text(one_line(state.label.as_str()))]),
            );
            for note in state.notes.iter().filter(|_| args.ended) {
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

/// Mode, since, session, state and label.
fn cells(holder: &Holder) -> [Cell; 5] {
    let session = holder
        .grant
        .map_or_else(|| "foreign".to_owned(), |grant| grant.session.to_string());
    [
        Cell::text(describe::mode(&holder.key, holder.mode)),
        Cell::since(holder.since),
        Cell::text(session),
        Cell::text(describe::state(holder)),
        // What stands where a line or a field ends was written by others.
        Cell::text(one_line(&holder.label)),
    ]
}
