//! One of the processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::{Locks, Recover, RecoverError, Recovery};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::layout::{files_below, place, root};
use crate::operation::{Change, Operation};
use crate::{BoxError, Options};

/// Subtrees with more files than this are not deleted, so that something is left to work on.
const DELETED_AT_MOST: usize = 20;

/// Finishes what a killed process was about to do.
struct Finish(PathBuf);

#[async_trait]
impl Recover for Finish {
    async fn recover(&self, recovery: &Recovery) -> Result<(), RecoverError> {
        let operation: Operation = serde_json::from_slice(recovery.intent().as_bytes())?;
        operation.carry_out(&self.0)?;
        operation.record(&self.0, recovery.old_token().get())?;
        fs::write(self.0.join(format!("recovered-{}", operation.id)), "")?;
        Ok(())
    }
}

async fn locks(folder: &Path) -> Result<Locks, BoxError> {
    let url = format!("sqlite:{}", folder.join("locks.db").display());
    let backend = lockkeeper::backend(&url).await?;
    Ok(Locks::builder(backend)
        .ttl(Duration::from_secs(2))
        .recovery(Finish(folder.to_owned()))
        .build()?)
}

fn on_a_runtime<T>(work: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

/// Works until the folder says stop.
pub(crate) fn run(folder: &Path, options: &Options) -> Result<(), BoxError> {
    on_a_runtime(async {
        let locks = if options.without_locks {
            None
        } else {
            Some(locks(folder).await?)
        };
        let mut rng = SmallRng::seed_from_u64(options.seed);
        let mut count = 0;
        while !folder.join("stop").exists() {
            count += 1;
            let id = format!("{}-{count}", options.seed);
            match &locks {
                Some(locks) => turn_with_locks(locks, folder, &mut rng, id).await?,
                None => turn_without_locks(folder, &mut rng, id)?,
            }
        }
        if let Some(locks) = locks {
            locks.shutdown(Duration::from_secs(10)).await;
        }
        Ok(())
    })
}

/// Adopts and finishes whatever is abandoned.
pub(crate) fn finish_abandoned(folder: &Path) -> Result<(), BoxError> {
    on_a_runtime(async {
        let locks = locks(folder).await?;
        // Asking for the whole tree meets whatever is in the way, and waits until those killed last are due.
        for name in fs::read_dir(root(folder))? {
            let name = name?
                .file_name()
                .into_string()
                .map_err(|_| "a name of our own")?;
            let _ = locks
                .tree()
                .write(format!("/{name}"))
                .acquire()
                .await?
                .release()
                .await?;
        }
        for state in locks.abandoned().await? {
            if let Some(recovery) = locks.adopt(state.session).await? {
                Finish(folder.to_owned()).recover(&recovery).await?;
                recovery.settle().await?;
            }
        }
        locks.shutdown(Duration::from_secs(10)).await;
        Ok(())
    })
}

async fn turn_with_locks(
    locks: &Locks,
    folder: &Path,
    rng: &mut SmallRng,
    id: String,
) -> Result<(), BoxError> {
    if rng.random_range(0..4) == 0 {
        let Some(path) = pick(folder, rng, false) else {
            return Ok(());
        };
        let guard = locks.tree().read(&path).acquire().await?;
        let (once, twice) = (files_below(folder, &path)?, files_below(folder, &path)?);
        if once != twice {
            return Err(format!("{path} changed under a lock to read it").into());
        }
        fs::write(folder.join(format!("scanned-{id}")), "")?;
        let _ = guard.release().await?;
        return Ok(());
    }
    let Some(operation) = choose(folder, rng, id) else {
        return Ok(());
    };
    let tree = match &operation.change {
        Change::Rename { from, to } => locks.tree().write(from).write(to),
        Change::Delete { path } => locks.tree().write(path),
    };
    let guard = Arc::new(tree.intent(&operation)?.acquire().await?);
    // What was picked without a lock may be gone by now.
    if still_makes_sense(folder, &operation) {
        operation.carry_out(folder)?;
        if !guard.is_valid() {
            return Err("the lock was lost while nobody was killed or paused".into());
        }
        operation.record(folder, guard.token().get())?;
    }
    if let Ok(guard) = Arc::try_unwrap(guard) {
        let _ = guard.release().await?;
    }
    Ok(())
}

fn turn_without_locks(folder: &Path, rng: &mut SmallRng, id: String) -> Result<(), BoxError> {
    let Some(operation) = choose(folder, rng, id) else {
        return Ok(());
    };
    if still_makes_sense(folder, &operation) {
        // Whatever others do meanwhile, it believes that it has done what it was to do.
        if operation.carry_out(folder).is_err() {
            fs::write(folder.join(format!("failed-{}", operation.id)), "")?;
        }
        // In the order in which they end, for want of anything better.
        let order = fs::read(folder.join("journal")).map_or(0, |journal| journal.len());
        operation.record(folder, u64::try_from(order)?)?;
    }
    Ok(())
}

fn still_makes_sense(folder: &Path, operation: &Operation) -> bool {
    match &operation.change {
        Change::Rename { from, to } => {
            let parent_is_there = place(folder, to).parent().is_some_and(Path::is_dir);
            place(folder, from).exists() && parent_is_there && !place(folder, to).exists()
        }
        Change::Delete { path } => place(folder, path).exists(),
    }
}

/// Something to do with a path of the tree as it is just now.
fn choose(folder: &Path, rng: &mut SmallRng, id: String) -> Option<Operation> {
    let path = pick(folder, rng, false)?;
    let change = if rng.random_range(0..6) == 0 {
        if files_below(folder, &path).ok()?.len() > DELETED_AT_MOST {
            return None;
        }
        Change::Delete { path }
    } else {
        // Beside where it was, or into another folder.
        let parent = match rng.random_range(0..2) {
            0 => path.rsplit_once('/')?.0.to_owned(),
            _ => pick(folder, rng, true)?,
        };
        let name = path.rsplit('/').next()?.split('~').next()?;
        let to = format!("{parent}/{name}~{id}");
        let into_itself = parent == path || parent.starts_with(&format!("{path}/"));
        if into_itself || lockkeeper::LockPath::parse(&to).is_err() {
            return None;
        }
        Change::Rename { from: path, to }
    };
    Some(Operation { id, change })
}

/// A random folder or file: down from the top, stopping anywhere.
fn pick(folder: &Path, rng: &mut SmallRng, only_folders: bool) -> Option<String> {
    let mut path = String::new();
    loop {
        let mut names: Vec<String> = fs::read_dir(place(folder, &path))
            .ok()?
            .filter_map(Result::ok)
            .filter(|entry| !only_folders || entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        if names.is_empty() {
            return (!path.is_empty()).then_some(path);
        }
        names.sort_unstable();
        path = format!("{path}/{}", names[rng.random_range(0..names.len())]);
        if !place(folder, &path).is_dir() || rng.random_range(0..3) == 0 {
            return Some(path);
        }
    }
}
