//! Many processes on few keys, some of them killed.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use lockcore::{AcquireError, Guard, Intent, Locks, Recover, RecoverError, Recovery};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use crate::case::Case;
use crate::child::{Process, Shared, Task};
use crate::client::{SOON, acquired, granted, locks, locks_on, promptly, release, settles, soon};
use crate::scene::{Scene, short};
use crate::verdict::{Verdict, Wrong, at_most, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Processes "processes";
        AtMostOneHolder:
            counters_of_several_processes,
            counters_beside_processes_that_are_killed;
        ExpiryFrees:
            a_killed_holder_frees_its_lock;
        Recovery:
            a_killed_holder_leaves_its_intent,
            transfers_are_finished_for_processes_that_are_killed;
        NothingKept:
            a_process_that_ends_gives_everything_back;
        Waiting:
            a_release_wakes_a_waiter_of_another_process;
    }
}

/// Keys, and turns of a process that is not killed.
const KEYS: usize = 3;
const TURNS: usize = 25;
/// What is in each account at first.
const BALANCE: i64 = 100;

/// What a child does.
pub(crate) async fn run(task: Task) -> Verdict {
    let info = task.backend.info();
    let ttl = short(&info) * 2;
    let chance = StdRng::seed_from_u64(task.seed);
    match task.role.as_str() {
        role @ ("count" | "count for ever") => {
            let turns = if role == "count" { TURNS } else { usize::MAX };
            let locks = locks_on(task.backend, ttl)?;
            count(locks, &task.dir, task.seed, chance, turns).await
        }
        "transfer" => transfer(task, ttl, chance, TURNS).await,
        "transfer for ever" => transfer(task, ttl, chance, usize::MAX).await,
        "hold" => {
            let locks = locks_on(task.backend, ttl)?;
            let _guard = take(|| locks.lock("g")).await?;
            fs::write(task.dir.join("ready"), "")?;
            std::future::pending().await
        }
        "intend" => {
            let locks = locks_on(task.backend, ttl)?;
            let intent = Intent::new(&b"half done"[..])?;
            let _guard = take(|| locks.lock("g").intent_bytes(intent.clone())).await?;
            fs::write(task.dir.join("ready"), "")?;
            std::future::pending().await
        }
        "leave" => {
            let locks = locks_on(task.backend, info.max_ttl)?;
            for key in ["g", "h"] {
                drop(acquired(locks.lock(key)).await?);
            }
            let kept = acquired(locks.tree().write("/t/m")).await?;
            drop(kept);
            ensure!(locks.shutdown(SOON).await, "everything is given back");
            Ok(())
        }
        "wait" => {
            let locks = locks_on(task.backend, ttl)?;
            fs::write(task.dir.join("ready"), "")?;
            release(take(|| locks.lock("g")).await?).await?;
            ensure!(locks.shutdown(SOON).await, "everything is given back");
            Ok(())
        }
        other => Err(Wrong(format!("no child can {other:?}"))),
    }
}

/// Writes a file so that a kill leaves the old one or the new one.
fn replace(file: &Path, text: &str, by: impl Display) -> Verdict {
    let new = file.with_extension(format!("new-{by}"));
    fs::write(&new, text)?;
    fs::rename(&new, file)?;
    Ok(())
}

/// Count and token of a counter; nothing yet is nothing counted.
fn read_counter(file: &Path) -> Verdict<(u64, u64)> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((0, 0)),
        Err(error) => return Err(error.into()),
    };
    let (count, token) = text
        .split_once(' ')
        .ok_or_else(|| Wrong(format!("counter {text:?}")))?;
    Ok((count.parse()?, token.parse()?))
}

async fn count(locks: Locks, dir: &Path, seed: u64, mut chance: StdRng, turns: usize) -> Verdict {
    let mut log = String::new();
    for _ in 0..turns {
        let key = chance.random_range(0..KEYS);
        let guard = match chance.random_range(0..3) {
            0 => {
                let both = [key, (key + 1) % KEYS].map(|key| format!("k{key}"));
                take(|| locks.documents(&both)).await?
            }
            _ => take(|| locks.lock(format!("k{key}"))).await?,
        };
        let file = dir.join(format!("counter-{key}"));
        let (counted, token) = read_counter(&file)?;
        ensure!(
            guard.token().get() > token,
            "token {} after {token} on k{key}",
            guard.token()
        );
        sleep(Duration::from_millis(chance.random_range(0..4))).await;
        if guard.is_valid() {
            replace(&file, &format!("{} {}", counted + 1, guard.token()), seed)?;
            log.push_str(&format!("{key} {}\n", counted + 1));
            replace(&dir.join(format!("log-{seed}")), &log, seed)?;
        }
        if chance.random() {
            release(guard).await?;
        } else {
            drop(guard);
        }
    }
    ensure!(locks.shutdown(SOON).await, "everything is given back");
    Ok(())
}

/// No count was made twice, and none is missing but those that a kill kept from being written down.
fn check_counts(dir: &Path, processes: &[u64], kills: usize) -> Verdict {
    let mut counts = BTreeSet::new();
    for seed in processes {
        let log = fs::read_to_string(dir.join(format!("log-{seed}"))).unwrap_or_default();
        for line in log.lines() {
            ensure!(
                counts.insert(line.to_owned()),
                "two processes counted the same: {line}"
            );
        }
    }
    let mut counted = 0;
    for key in 0..KEYS {
        counted += read_counter(&dir.join(format!("counter-{key}")))?.0;
    }
    let missing = usize::try_from(counted)?.checked_sub(counts.len());
    ensure!(
        missing.is_some_and(|missing| missing <= kills),
        "{counted} were counted, {} were written down, {kills} processes were killed",
        counts.len()
    );
    ensure!(!counts.is_empty(), "something was counted");
    Ok(())
}

async fn counted(scene: &Scene, kills: usize) -> Verdict {
    let dir = Shared::new()?;
    let mut steady = Vec::new();
    let mut seeds = Vec::new();
    for _ in 0..4 {
        let process = Process::start(scene, &dir, "count")?;
        seeds.push(process.seed);
        steady.push(process);
    }
    for _ in 0..kills {
        let mut victim = Process::start(scene, &dir, "count for ever")?;
        seeds.push(victim.seed);
        victim
            .made(&dir.path().join(format!("log-{}", victim.seed)))
            .await?;
        let after = scene.below(60) as u64;
        sleep(Duration::from_millis(after)).await;
        victim.kill(scene)?;
    }
    for process in steady {
        process.done().await?;
    }
    check_counts(dir.path(), &seeds, kills)?;
    // The last to die still hold what they held until they are due.
    let locks = locks(scene).await?;
    for key in 0..KEYS {
        release(acquired(locks.lock(format!("k{key}"))).await?).await?;
    }
    Ok(())
}

async fn counters_of_several_processes(scene: Scene) -> Verdict {
    counted(&scene, 0).await
}

async fn counters_beside_processes_that_are_killed(scene: Scene) -> Verdict {
    counted(&scene, 3).await
}

async fn a_killed_holder_frees_its_lock(scene: Scene) -> Verdict {
    let dir = Shared::new()?;
    let locks = locks(&scene).await?;
    let mut holder = Process::start(&scene, &dir, "hold")?;
    holder.made(&dir.path().join("ready")).await?;
    crate::client::refused(locks.lock("g")).await?;
    holder.kill(&scene)?;
    let since = Instant::now();
    // Nobody renews it any more: it is due within a TTL.
    let ttl = short(locks.info()) * 2;
    let guard = acquired(locks.lock("g")).await?;
    at_most(since, ttl + promptly(&scene, locks.info()), "the wait")?;
    release(guard).await
}

async fn a_killed_holder_leaves_its_intent(scene: Scene) -> Verdict {
    let dir = Shared::new()?;
    let locks = locks(&scene).await?;
    let mut holder = Process::start(&scene, &dir, "intend")?;
    holder.made(&dir.path().join("ready")).await?;
    holder.kill(&scene)?;
    let session = match locks.lock("g").wait(SOON).acquire().await {
        Err(AcquireError::Abandoned(abandoned)) => abandoned.sessions[0].session,
        other => {
            return Err(Wrong(format!(
                "an abandoned change is in the way: {other:?}"
            )));
        }
    };
    let Some(recovery) = locks.adopt(session).await? else {
        return Err(Wrong("an abandoned session is adopted".to_owned()));
    };
    ensure_eq!(recovery.intent().as_bytes(), b"half done", "the intent");
    settles(recovery).await?;
    release(granted(locks.lock("g")).await?).await
}

async fn a_process_that_ends_gives_everything_back(scene: Scene) -> Verdict {
    let dir = Shared::new()?;
    Process::start(&scene, &dir, "leave")?.done().await?;
    // At once: its TTL is the longest that there is.
    for key in ["g", "h", "/t"] {
        scene.free(key).await?;
    }
    Ok(())
}

async fn a_release_wakes_a_waiter_of_another_process(scene: Scene) -> Verdict {
    let dir = Shared::new()?;
    let locks = locks(&scene).await?;
    let guard = granted(locks.lock("g")).await?;
    let mut waiter = Process::start(&scene, &dir, "wait")?;
    waiter.made(&dir.path().join("ready")).await?;
    sleep(Duration::from_millis(200)).await;
    release(guard).await?;
    soon("the waiter is woken", waiter.done()).await??;
    scene.free("g").await
}

/// One transfer; its name tells in each account whether it has been done there.
struct Transfer {
    name: String,
    from: usize,
    to: usize,
    amount: i64,
}

impl Transfer {
    fn intent(&self) -> Verdict<Intent> {
        let text = format!("{} {} {} {}", self.name, self.from, self.to, self.amount);
        Ok(Intent::new(text.into_bytes())?)
    }

    fn parse(intent: &[u8]) -> Verdict<Self> {
        let text = std::str::from_utf8(intent)?;
        let [name, from, to, amount] = text.split(' ').collect::<Vec<_>>()[..] else {
            return Err(Wrong(format!("no transfer: {text:?}")));
        };
        Ok(Self {
            name: name.to_owned(),
            from: from.parse()?,
            to: to.parse()?,
            amount: amount.parse()?,
        })
    }

    fn changes(&self) -> [(usize, i64); 2] {
        [(self.from, -self.amount), (self.to, self.amount)]
    }

    /// Done once in this account, however often it is asked for while its lock is held.
    fn apply(&self, dir: &Path, at: usize, change: i64) -> Verdict {
        let (value, last) = read_account(dir, at)?;
        if last == self.name {
            return Ok(());
        }
        let text = format!("{} {}", value + change, self.name);
        replace(&account(dir, at), &text, &self.name)
    }
}

/// What is in the account, and the last transfer that changed it.
fn read_account(dir: &Path, at: usize) -> Verdict<(i64, String)> {
    let text = fs::read_to_string(account(dir, at))?;
    let (value, last) = text
        .split_once(' ')
        .ok_or_else(|| Wrong(format!("account {text:?}")))?;
    Ok((value.parse()?, last.to_owned()))
}

fn account(dir: &Path, at: usize) -> PathBuf {
    dir.join(format!("account-{at}"))
}

/// Finishes the transfer of a process that was killed.
struct Finish(PathBuf);

#[async_trait]
impl Recover for Finish {
    async fn recover(&self, recovery: &Recovery) -> Result<(), RecoverError> {
        let finish = || -> Verdict {
            let transfer = Transfer::parse(recovery.intent().as_bytes())?;
            for (at, change) in transfer.changes() {
                transfer.apply(&self.0, at, change)?;
            }
            Ok(())
        };
        finish().map_err(|unpassed| unpassed.to_string().into())
    }
}

async fn transfer(task: Task, ttl: Duration, mut chance: StdRng, turns: usize) -> Verdict {
    let Task {
        backend, dir, seed, ..
    } = task;
    let recovery = Finish(dir.clone());
    let locks = Locks::builder(backend)
        .ttl(ttl)
        .recovery(recovery)
        .build()?;
    for turn in 0..turns {
        let from = chance.random_range(0..KEYS);
        let transfer = Transfer {
            name: format!("{seed}-{turn}"),
            from,
            to: (from + chance.random_range(1..KEYS)) % KEYS,
            amount: chance.random_range(1..10),
        };
        let intent = transfer.intent()?;
        let both = [transfer.from, transfer.to].map(|at| format!("account {at}"));
        let guard = take(|| locks.documents(&both).intent_bytes(intent.clone())).await?;
        for (at, change) in transfer.changes() {
            sleep(Duration::from_millis(chance.random_range(0..4))).await;
            // After a loss the change is left to whoever finds it.
            if guard.is_valid() {
                transfer.apply(&dir, at, change)?;
            }
        }
        // Whether it was still held is no matter: if not, the change is left, and done once all the same.
        let _ = guard.release().await?;
        fs::write(dir.join(format!("moved-{seed}")), "")?;
    }
    ensure!(locks.shutdown(SOON).await, "everything is given back");
    Ok(())
}

/// Acquires; while another process recovers what is in the way, looks again. So does one whose session is lost meanwhile,
/// as it is on a machine that has no time for its renewals.
async fn take<S>(make: impl Fn() -> lockcore::Acquisition<S>) -> Verdict<Guard> {
    loop {
        match make().wait(SOON).acquire().await {
            Err(AcquireError::Abandoned(abandoned)) if abandoned.recovery.is_none() => {
                sleep(Duration::from_millis(10)).await;
            }
            Err(AcquireError::Lost) => {}
            answer => return Ok(answer?),
        }
    }
}

async fn transfers_are_finished_for_processes_that_are_killed(scene: Scene) -> Verdict {
    let dir = Shared::new()?;
    for at in 0..KEYS {
        fs::write(account(dir.path(), at), format!("{BALANCE} none"))?;
    }
    let mut steady = Vec::new();
    for _ in 0..2 {
        steady.push(Process::start(&scene, &dir, "transfer")?);
    }
    for _ in 0..3 {
        let mut victim = Process::start(&scene, &dir, "transfer for ever")?;
        victim
            .made(&dir.path().join(format!("moved-{}", victim.seed)))
            .await?;
        let after = scene.below(60) as u64;
        sleep(Duration::from_millis(after)).await;
        victim.kill(&scene)?;
    }
    for process in steady {
        process.done().await?;
    }
    // The last change that was left may still be there: this process finishes it.
    let finish = Finish(dir.path().to_owned());
    let locks = Locks::builder(scene.connect().await?)
        .recovery(finish)
        .build()?;
    let all = || locks.documents((0..KEYS).map(|at| format!("account {at}")));
    release(take(all).await?).await?;
    let mut sum = 0;
    for at in 0..KEYS {
        sum += read_account(dir.path(), at)?.0;
    }
    ensure_eq!(
        sum,
        BALANCE * i64::try_from(KEYS)?,
        "the sum of all accounts"
    );
    ensure_eq!(locks.abandoned().await?, [], "abandoned sessions");
    Ok(())
}
