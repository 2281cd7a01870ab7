//! One of the processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::backend::End;
use lockkeeper::{LockPath, Locks, Recover, RecoverError, Recovery, SessionId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::files::{Files, parent};
use crate::operation::{Change, Operation};
use crate::scheme::{self, Scheme};
use crate::{BoxError, Options};

/// Finishes what a killed process was about to do.
pub(crate) struct Finish {
    pub(crate) folder: PathBuf,
    pub(crate) files: Files,
}

#[async_trait]
impl Recover for Finish {
    async fn recover(&self, recovery: &Recovery) -> Result<(), RecoverError> {
        let operation: Operation = serde_json::from_slice(recovery.intent().as_bytes())?;
        if operation.has_begun(&self.folder) {
            let documents = operation
                .carry_out(&self.files, recovery.token().get())
                .await?;
            let began = recovery.old_token().get();
            operation.record(&self.folder, began, documents, true)?;
        }
        Ok(())
    }
}

/// Works until the folder says stop.
pub(crate) async fn run(folder: &Path, options: &Options) -> Result<(), BoxError> {
    let scheme = options.scheme.ok_or("a process works under one scheme")?;
    let files = Files::new(options)?;
    let locks = match scheme {
        Scheme::None => None,
        _ => Some(scheme::locks(folder, options).await?),
    };
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let mut count = 0;
    while !folder.join("stop").exists() {
        count += 1;
        let id = format!("{}-{count}", options.seed);
        let Some(operation) = choose(&files, &mut rng, id).await? else {
            continue;
        };
        match &locks {
            Some(locks) => under_locks(locks, scheme, folder, &files, &operation).await?,
            None => alone(folder, &files, &operation).await?,
        }
    }
    if let Some(locks) = locks {
        locks.shutdown(Duration::from_secs(10)).await;
    }
    Ok(())
}

/// Adopts and finishes whatever is abandoned.
pub(crate) async fn finish_abandoned(folder: &Path, options: &Options) -> Result<(), BoxError> {
    let locks = scheme::locks(folder, options).await?;
    let finish = Finish {
        folder: folder.to_owned(),
        files: Files::new(options)?,
    };
    // Those that were killed last are due when their TTL is over: real time, which the server measures.
    tokio::time::sleep(scheme::TTL + Duration::from_secs(1)).await;
    let sessions = locks.backend().sessions(None, 1_000).await?.items;
    let sessions: Vec<SessionId> = sessions.iter().map(|state| state.session).collect();
    let _ = locks.backend().end(&sessions, End::IfDue).await?;
    for state in locks.abandoned().await? {
        if let Some(recovery) = locks.adopt(state.session).await? {
            let finished = finish.recover(&recovery).await;
            finished.map_err(|error| format!("an intent cannot be finished: {error}"))?;
            recovery.settle().await?;
        }
    }
    locks.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

async fn under_locks(
    locks: &Locks,
    scheme: Scheme,
    folder: &Path,
    files: &Files,
    operation: &Operation,
) -> Result<(), BoxError> {
    let Some(guard) = scheme.lock(locks, files, operation).await? else {
        return Ok(());
    };
    operation.begin(folder)?;
    let token = guard.token().get();
    let documents = operation.carry_out(files, token).await?;
    if !guard.is_valid() {
        return Err("the lock was lost while nobody was paused".into());
    }
    operation.record(folder, token, documents, false)?;
    let _ = guard.release().await?;
    Ok(())
}

/// Whatever others do meanwhile, it believes that it has done what it was to do.
async fn alone(folder: &Path, files: &Files, operation: &Operation) -> Result<(), BoxError> {
    let documents = operation.carry_out_alone(files).await?;
    // In the order in which they end, for want of anything better.
    let order = fs::read(folder.join("journal")).map_or(0, |journal| journal.len());
    operation.record(folder, u64::try_from(order)?, documents, false)?;
    Ok(())
}

/// Something to do with a file as it is just now, or with a directory above it.
async fn choose(
    files: &Files,
    rng: &mut SmallRng,
    id: String,
) -> Result<Option<Operation>, BoxError> {
    let (Some(path), Some(other)) = (
        files.any(rng.random()).await?,
        files.any(rng.random()).await?,
    ) else {
        return Ok(None);
    };
    let change = match rng.random_range(0..8) {
        0 => {
            let mut cuts: Vec<usize> = path.match_indices('/').skip(1).map(|(at, _)| at).collect();
            cuts.truncate(3);
            match cuts.is_empty() {
                true => return Ok(None),
                false => renamed(
                    path[..cuts[rng.random_range(0..cuts.len())]].to_owned(),
                    &other,
                    &id,
                ),
            }
        }
        1..4 => renamed(path, &other, &id),
        4..6 => Change::Add {
            path: format!("{}/added~{id}", parent(&other)),
        },
        _ => Change::Delete { path },
    };
    let possible = match &change {
        Change::Rename { from, to } => {
            let into_itself = to.starts_with(&format!("{from}/"));
            // Both ends in one acquisition, neither above the other.
            !into_itself && LockPath::parse(to).is_ok()
        }
        Change::Add { path } | Change::Delete { path } => LockPath::parse(path).is_ok(),
    };
    Ok(possible.then_some(Operation { id, change }))
}

/// Beside another file, under a name that nothing else has.
fn renamed(from: String, other: &str, id: &str) -> Change {
    let name = from.rsplit('/').next().unwrap_or_default();
    let name = name.split('~').next().unwrap_or_default();
    let to = format!("{}/{name}~{id}", parent(other));
    Change::Rename { from, to }
}
