//! `lockkeeper ls`, `inspect` and `sessions`.

use lockkeeper::backend::{Filter, Page, Record};
use lockkeeper::{Holder, Life, LockBackend, SessionState};

use crate::args::{InspectArgs, LsArgs, SessionsArgs};
use crate::describe::{self, HolderJson, RecordJson, SessionJson, time};
use crate::failure::{Failure, one_line};
use crate::output::Output;
use crate::store;

/// Records or sessions of one page.
const PAGE: usize = 500;

pub(crate) async fn ls(url: Option<&str>, args: LsArgs) -> Result<u8, Failure> {
    let store = store::open(url).await?;
    let mut output = Output::new();
    let filter = Filter::Prefix(args.prefix);
    let mut next = None;
    loop {
        let page = store
            .backend
            .records(&filter, next.as_deref(), PAGE)
            .await?;
        for record in &page.items {
            if args.json {
                output.json(&RecordJson::from(record))?;
                continue;
            }
            for holder in &record.holders {
                output.line(&format!("{}\t{}", record.key, fields(holder)))?;
            }
            if record.more {
                output.line(&format!("{}\tand more", record.key))?;
            }
        }
        next = page.next;
        if next.is_none() {
            return output.finish();
        }
    }
}

pub(crate) async fn inspect(url: Option<&str>, args: InspectArgs) -> Result<u8, Failure> {
    let store = store::open(url).await?;
    let filter = Filter::Key(args.key.clone());
    let records = records(&*store.backend, &filter).await?;
    let mut output = Output::new();
    if args.json {
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
    for record in &records {
        for holder in &record.holders {
            output.line(&fields(holder))?;
        }
        if record.more {
            output.line("and more")?;
        }
    }
    output.finish()
}

pub(crate) async fn sessions(url: Option<&str>, args: SessionsArgs) -> Result<u8, Failure> {
    let store = store::open(url).await?;
    let mut output = Output::new();
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
            if args.json {
                output.json(&SessionJson::from(state))?;
                continue;
            }
            let adopter = state
                .adopter
                .map_or_else(|| "-".to_owned(), |adopter| adopter.to_string());
            let (session, life, label) = (state.session, state.life, &state.label);
            if !args.ended {
                output.line(&format!("{session}\t{life}\t{adopter}\t{label}"))?;
                continue;
            }
            let ended = state.ended.map_or_else(|| "-".to_owned(), time);
            output.line(&format!("{session}\t{life}\t{adopter}\t{ended}\t{label}"))?;
            for note in state.notes.iter() {
                output.line(&format!("\t{}", describe::note(&note)))?;
            }
        }
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
fn fields(holder: &Holder) -> String {
    let since = holder.since.map_or_else(|| "-".to_owned(), time);
    let session = holder
        .grant
        .map_or_else(|| "foreign".to_owned(), |grant| grant.session.to_string());
    let (mode, state) = (holder.mode, describe::state(holder));
    // What stands where a line or a field ends was written by others.
    let label = one_line(&holder.label);
    format!("{mode}\t{since}\t{session}\t{state}\t{label}")
}
