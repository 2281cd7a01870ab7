//! What takes processes of their own: turns of several, many guards that are kept, and holders that are killed.

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hdrhistogram::Histogram;
use lockkeeper::Locks;
use lockkeeper_workloads::turns::now_us;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::result::{CPU_MS, REQUESTS, Round, TTL_MS, Times, to_f64};
use crate::relay::Relay;
use crate::rounds::one_thread;
use crate::store::{Store, backend};

/// So many guards are kept for so long.
pub(super) const GUARDS: u32 = 10_000;
const KEPT_FOR: Duration = Duration::from_secs(60);
/// So many of them are acquired at once.
const AT_ONCE: usize = 16;
/// So many holders are killed in one batch, and so many batches are there.
const KILLED: u32 = 10;
const BATCHES: u32 = 2;
/// How long a lock of one who was killed may stay.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// A process of this program, whose output is read.
fn process(url: &str, args: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let program = std::env::current_exe().expect("the program's path");
    let mut child = Command::new(program)
        .args(["--url", url, "worker"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    let output = child.stdout.take().expect("piped");
    (child, BufReader::new(output).lines())
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = lines.next_line().await.expect("it can be read");
    line.expect("the process goes on")
}

/// Keeps many guards on each store for a while, at the same time, each by a process of its own.
pub(super) async fn guards(urls: &[&str]) -> Vec<Round> {
    join_all(urls.iter().map(|url| async move {
        let relay = Relay::before(url);
        let (mut child, mut lines) = process(relay.as_ref().map_or(*url, Relay::url), &["guards"]);
        let asked = || relay.as_ref().map(Relay::round_trips);
        assert_eq!(line(&mut lines).await, "kept");
        let before = asked();
        let cpu_ms: f64 = line(&mut lines).await.parse().expect("a number");
        let requests = asked()
            .zip(before)
            .map(|(after, before)| to_f64(after - before));
        assert!(child.wait().await.expect("it ends").success());
        let mut round = Round::default();
        round.figures.insert(CPU_MS.to_owned(), cpu_ms);
        round
            .figures
            .extend(requests.map(|count| (REQUESTS.to_owned(), count)));
        round
    }))
    .await
}

/// The process that keeps them: says when it has all, and then what CPU time it took to keep them.
pub(crate) fn keep_guards(store: &Store) {
    use futures_util::stream::{self, StreamExt as _};
    one_thread().block_on(async {
        let locks = store.locks().await;
        let acquired: Vec<_> = stream::iter(0..GUARDS)
            .map(|n| locks.documents([format!("{n}")]).acquire())
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let guards: Vec<_> = acquired
            .into_iter()
            .map(|guard| guard.expect("nobody else wants it"))
            .collect();
        println!("kept");
        let before = cpu();
        tokio::time::sleep(KEPT_FOR).await;
        let taken = cpu() - before;
        assert!(guards.iter().all(|guard| guard.is_valid()), "one was lost");
        println!("{}", taken.as_secs_f64() * 1e3);
        drop(guards);
        locks.shutdown(TAKEN_WITHIN).await;
    });
}

/// The CPU time of this process so far.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("it is not negative")
}

/// Kills processes that hold a lock which another one waits for: how long after the kill that one has it.
pub(super) async fn takeovers(url: &str) -> Round {
    let backend = backend(url).await;
    let ttl = backend.info().min_ttl;
    let locks = Locks::builder(backend)
        .ttl(ttl)
        .build()
        .expect("its own shortest");
    let mut times: Histogram<u64> = Histogram::new(3).expect("three digits");
    for batch in 0..BATCHES {
        let holders = (0..KILLED).map(|n| {
            let key = format!("held-{batch}-{n}");
            // At different times since the last renewal.
            let more = ttl * (batch * KILLED + n) / (BATCHES * KILLED);
            killed(&locks, url, key, ttl + more)
        });
        for time in join_all(holders).await {
            let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            times.record(us).expect("it resizes");
        }
    }
    locks.shutdown(TAKEN_WITHIN).await;
    let mut round = Round::default();
    round.times.insert("takeover".to_owned(), Times::of(&times));
    round
        .figures
        .insert(TTL_MS.to_owned(), ttl.as_secs_f64() * 1e3);
    round
}

/// Starts a holder, waits for its lock, kills it so long after it was granted.
async fn killed(locks: &Locks, url: &str, key: String, after: Duration) -> Duration {
    let (mut holder, mut lines) = process(url, &["held", "--key", &key]);
    assert_eq!(line(&mut lines).await, "held");
    let kill = async {
        tokio::time::sleep(after).await;
        holder.start_kill().expect("it runs");
        let killed = Instant::now();
        holder.wait().await.expect("it ends");
        killed
    };
    let wait = async {
        let guard = locks.lock(&key).wait(TAKEN_WITHIN).acquire().await;
        let guard = guard.expect("its holder died");
        (guard, Instant::now())
    };
    let (killed, (guard, taken)) = tokio::join!(kill, wait);
    drop(guard);
    taken
        .checked_duration_since(killed)
        .expect("it was held until then")
}

/// The process that is killed.
pub(crate) fn hold(store: &Store, key: &str) {
    one_thread().block_on(async {
        let backend = backend(store.url()).await;
        let ttl = backend.info().min_ttl;
        let locks = Locks::builder(backend)
            .ttl(ttl)
            .build()
            .expect("its own shortest");
        let guard = locks.lock(key).acquire().await.expect("nobody has it");
        println!("held");
        guard.lost().await;
        panic!("{key} was lost at {} µs", now_us());
    });
}
