//! What operators do: `lockkeeper break`, `discard` and `sweep`.

use std::collections::BTreeMap;

use lockkeeper::backend::{End, Filter, Sweep};
use lockkeeper::{Life, LockBackend, LockKey, SessionId};

use crate::args::{BreakArgs, DiscardArgs};
use crate::describe;
use crate::failure::{Failure, say, status};
use crate::list::records;
use crate::store;

/// Keys that are named of what a session holds.
const NAMED: usize = 10;

/// `lockkeeper break`: the sessions of the key's holders are revoked, and its foreign records evicted.
pub(crate) async fn break_lock(url: Option<&str>, args: BreakArgs) -> Result<u8, Failure> {
    let store = store::open(url).await?;
    let backend = &*store.backend;
    let (key, reason) = (args.key.as_str(), &args.reason);
    let filter = Filter::Key(args.key.clone());
    let mut abandoned = BTreeMap::new();
    let mut broken = 0;
    loop {
        let mut progress = false;
        for record in records(backend, &filter).await? {
            let mut living = BTreeMap::new();
            for holder in &record.holders {
                let Some(grant) = holder.grant else { continue };
                match holder.life {
                    Life::Abandoned => abandoned.insert(grant.session, holder.label.clone()),
                    _ => living.insert(grant.session, holder.label.clone()),
                };
            }
            for (session, label) in living {
                also_held(backend, session, &label, &args.key).await?;
                let state = end(backend, session, End::Revoke).await?;
                progress = true;
                broken += 1;
                say(&format!(
                    "revoked session {session} ({label}), a holder of {key:?}: {reason}"
                ));
                if state == Life::Abandoned {
                    abandoned.insert(session, label);
                }
            }
            let foreign = record.holders.iter().any(|holder| holder.grant.is_none());
            if foreign && backend.evict(&record).await? {
                progress = true;
                broken += 1;
                say(&format!("evicted a foreign record of {key:?}: {reason}"));
            }
        }
        // Of many holders some are listed at a time; whoever came meanwhile goes as well.
        if !progress {
            break;
        }
    }
    if let Some((session, label)) = abandoned.first_key_value() {
        return Err(Failure::new(
            status::ABANDONED,
            format!(
                "{key:?} is held by unfinished work of session {session} ({label}): lockkeeper recover or discard it"
            ),
        ));
    }
    if broken == 0 {
        say(&format!("nobody holds {key:?}"));
    }
    Ok(0)
}

/// Says what else goes with a session.
async fn also_held(
    backend: &dyn LockBackend,
    session: SessionId,
    label: &str,
    key: &LockKey,
) -> Result<(), Failure> {
    let page = backend
        .records(&Filter::Session(session), None, NAMED + 2)
        .await?;
    let others: Vec<String> = page
        .items
        .iter()
        .filter(|record| record.key != *key)
        .map(|record| format!("{:?}", record.key.as_str()))
        .collect();
    let more = if others.len() > NAMED || page.next.is_some() {
        " and more"
    } else {
        ""
    };
    if !others.is_empty() {
        let others = others[..others.len().min(NAMED)].join(", ");
        say(&format!(
            "session {session} ({label}) also holds {others}{more}"
        ));
    }
    Ok(())
}

/// `lockkeeper discard`.
pub(crate) async fn discard(url: Option<&str>, args: DiscardArgs) -> Result<u8, Failure> {
    let store = store::open(url).await?;
    let (session, reason) = (args.session, &args.reason);
    let Some(state) = find(&*store.backend, session).await? else {
        return Err(Failure::usage(format!(
            "there is no session {session}: see lockkeeper sessions"
        )));
    };
    let was_dead = state.life == Life::Dead;
    match end(&*store.backend, session, End::Discard).await? {
        Life::Living => Err(Failure::new(
            status::BUSY,
            format!(
                "{} is alive, only abandoned work can be discarded: lockkeeper break a key of it first",
                describe::session(&state)
            ),
        )),
        _ if was_dead => {
            say(&format!("{} has left nothing", describe::session(&state)));
            Ok(0)
        }
        _ => {
            say(&format!(
                "discarded the unfinished work of {}: {reason}",
                describe::session(&state)
            ));
            Ok(0)
        }
    }
}

/// A session of the list: asking about one that is not there would leave a record of it.
async fn find(
    backend: &dyn LockBackend,
    session: SessionId,
) -> Result<Option<lockkeeper::SessionState>, Failure> {
    let mut next: Option<String> = None;
    loop {
        let page = backend.sessions(next.as_deref(), 500).await?;
        if let Some(state) = page
            .items
            .into_iter()
            .find(|state| state.session == session)
        {
            return Ok(Some(state));
        }
        next = page.next;
        if next.is_none() {
            return Ok(None);
        }
    }
}

async fn end(backend: &dyn LockBackend, session: SessionId, how: End) -> Result<Life, Failure> {
    let states = backend.end(&[session], how).await?;
    let state = states.first().ok_or_else(|| {
        Failure::new(
            status::UNAVAILABLE,
            "the store did not say what became of the session",
        )
    })?;
    Ok(state.life)
}

/// `lockkeeper sweep`.
pub(crate) async fn sweep(url: Option<&str>) -> Result<u8, Failure> {
    let store = store::open(url).await?;
    let mut removed = 0;
    loop {
        let swept = store.backend.sweep(Sweep::All, 10_000).await?;
        removed += swept.removed;
        if !swept.more {
            say(&format!("{removed} records removed"));
            return Ok(0);
        }
    }
}
