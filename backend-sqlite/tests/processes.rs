//! Several processes on one file: killed while they write, without the right to write, and taking turns.
//!
//! The children are this program again, told by an environment variable what to do.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use lockcore::ErrorKind;
use lockcore::backend::{
    ClaimStore, End, Filter, Inspect, IntentChange, Renewed, SessionStore, Sweep, Wakeups,
};
use lockcore_sqlite::{SqliteBackend, SqliteConfig};
use rustix::process::{Pid, Signal, kill_process};
use support::*;

const ROLE: &str = "LOCKCORE_SQLITE_TEST_ROLE";
const FILE: &str = "LOCKCORE_SQLITE_TEST_FILE";

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        let path = PathBuf::from(std::env::var_os(FILE).expect("a child is told its file"));
        return run(child(&role, &path));
    }
    let trial = |name, test: fn() -> Result<(), Failed>| Trial::test(name, test);
    let trials = vec![
        trial(
            "killed_while_writing_leaves_a_usable_file",
            || run(killed()),
        ),
        trial("a_file_that_may_only_be_read_is_refused", || {
            run(read_only())
        }),
        trial("a_file_that_was_removed_is_left_by_every_process", || {
            run(left_by_all(|space| std::fs::remove_file(&space.path)))
        }),
        trial("a_file_that_was_replaced_is_left_by_every_process", || {
            run(left_by_all(replace))
        }),
        trial("a_log_that_another_process_removed_is_left", || {
            run(log_of_another())
        }),
        trial("processes_take_turns_and_exclude_each_other", || {
            run(turns())
        }),
        trial(
            "who_is_stopped_inside_a_transaction_blocks_the_file_until_it_goes_on",
            || run(stopped_inside(Signal::CONT)),
        ),
        trial(
            "who_is_stopped_inside_a_transaction_blocks_the_file_until_it_is_killed",
            || run(stopped_inside(Signal::KILL)),
        ),
        trial("waiting_costs_next_to_nothing", || run(waiting())),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

fn spawn(role: &str, path: &Path) -> Child {
    spawn_as(role, path, None)
}

fn spawn_as(role: &str, path: &Path, user: Option<u32>) -> Child {
    let mut command = command(role, path);
    if let Some(user) = user {
        command.uid(user).gid(user).current_dir("/");
    }
    command.spawn().unwrap()
}

fn command(role: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env(ROLE, role)
        .env(FILE, path)
        .stdout(Stdio::piped());
    command
}

async fn child(role: &str, path: &Path) -> ExitCode {
    let (role, number) = role.split_once(' ').unwrap_or((role, "1"));
    let number: u128 = number.parse().unwrap();
    match role {
        "write" => write_for_ever(path, number).await,
        "connect" => connect(path).await,
        "stay" => stay(path, number).await,
        "come" => come(path, number).await,
        "count" => count(path).await,
        "wait" => wait(path, number).await,
        "occupy" => occupy(path),
        other => panic!("no role {other}"),
    }
}

async fn backend(path: &Path) -> std::sync::Arc<SqliteBackend> {
    SqliteBackend::connect(SqliteConfig::new(path))
        .await
        .unwrap()
}

/// Sessions, intents, large and small steps, one after the other.
async fn write_for_ever(path: &Path, number: u128) -> ExitCode {
    let backend = backend(path).await;
    let many: Vec<String> = (0..300).map(|n| format!("upsert {number}/{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let session = open(&backend, number).await;
    for n in 1.. {
        granted(&backend, session, 2 * n, &many).await;
        granted(&backend, session, 2 * n + 1, &["write /a/b/c", "share s"]).await;
        renew(&backend, session, 2 * n, "", intent("x")).await;
        renew(&backend, session, 2 * n + 1, "", IntentChange::Drop).await;
        release(&backend, session, 2 * n, &many).await;
        release(&backend, session, 2 * n + 1, &["write /a/b/c", "share s"]).await;
    }
    ExitCode::SUCCESS
}

async fn killed() -> Result<(), Failed> {
    let space = Space::new();
    let here = space.connect().await;
    let me = open(&here, 1).await;
    let mut last = granted(&here, me, 1, &["upsert mine"]).await;
    for round in 0..25_u64 {
        let number = 1_000 + u128::from(round);
        let mut child = spawn(&format!("write {number}"), &space.path);
        // It is killed somewhere in its work: as soon as it holds something, and a little later each time.
        let session = id(number);
        let holds = async || {
            let page = here.records(&Filter::Session(session), None, 1).await;
            !page.unwrap().items.is_empty()
        };
        let began = Instant::now();
        while !holds().await {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "the child does not begin"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_micros(300 * round)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        let token = granted(&here, me, round + 2, &["upsert other"]).await;
        assert!(token > last, "tokens rise");
        last = token;
        release(&here, me, round + 2, &["upsert other"]).await;
        // A step is there whole or not at all.
        let rows = space.count(&format!(
            "SELECT count(*) FROM holders WHERE session = x'{session}' AND want = 'upsert'"
        ));
        assert!(rows == 0 || rows == 300, "{rows} rows of one step");
        here.end(&[session], End::Revoke).await?;
        here.end(&[session], End::Discard).await?;
        granted(&here, me, 100 + round, &["write /a"]).await;
        release(&here, me, 100 + round, &["write /a"]).await;
    }
    assert!(
        here.confirm(grant(me, 1), &claims(&["upsert mine"]))
            .await?
    );
    while here.sweep(Sweep::All, 1_000).await?.more {}
    let left = "SELECT count(*) FROM holders WHERE key <> '' AND session <> x'00000000000000000000000000000001'";
    assert_eq!(space.count(left), 0);
    let broken = "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'";
    assert_eq!(space.count(broken), 0);
    Ok(())
}

/// Says how connecting went: 0 for a backend, 10 for an error of configuration, 11 for another one.
async fn connect(path: &Path) -> ExitCode {
    match SqliteBackend::connect(SqliteConfig::new(path)).await {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::Config => 10.into(),
        Err(_) => 11.into(),
    }
}

async fn read_only() -> Result<(), Failed> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let space = Space::new();
    drop(space.connect().await);
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // Root may write anything, so root asks as nobody.
    let root = std::fs::metadata(space.directory.path())?.uid() == 0;
    let user = root.then_some(65_534);
    let code = |path: &Path| {
        let mut child = spawn_as("connect", path, user);
        child.wait().unwrap().code()
    };
    let open = space.directory.path().join("open");
    std::fs::create_dir(&open)?;
    set(space.directory.path(), 0o755);
    set(&open, 0o777);
    assert_eq!(
        code(&open.join("locks.db")),
        Some(0),
        "the check itself works"
    );
    set(&space.path, 0o444);
    set(space.directory.path(), 0o555);
    assert_eq!(code(&space.path), Some(10), "a file that may only be read");
    assert_eq!(
        code(&space.directory.path().join("new.db")),
        Some(10),
        "a directory that may only be read"
    );
    set(space.directory.path(), 0o755);
    Ok(())
}

/// Holds a key of the old file until it is told to go on, then finds itself dead and takes one of the new file.
async fn stay(path: &Path, number: u128) -> ExitCode {
    let backend = backend(path).await;
    let session = open(&backend, number).await;
    granted(&backend, session, 1, &["upsert old"]).await;
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let renewed = renew(&backend, session, 1, "", IntentChange::Keep).await;
    assert_eq!(renewed, Renewed::Dead);
    let session = open(&backend, number + 1).await;
    refused(&backend, session, 1, &["upsert new"]).await;
    granted(&backend, session, 2, &["upsert old"]).await;
    ExitCode::SUCCESS
}

/// Puts an empty file of locks in the place of the one in use.
fn replace(space: &Space) -> std::io::Result<()> {
    let new = space.path.with_file_name("new.db");
    std::fs::write(&new, "")?;
    std::fs::rename(&new, &space.path)
}

/// The log and its index of the old file are still in use by another process when the new one is begun.
async fn left_by_all(change: fn(&Space) -> std::io::Result<()>) -> Result<(), Failed> {
    let space = Space::new();
    let here = space.connect().await;
    let one = open(&here, 1).await;
    let mut command = command("stay 10", &space.path);
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut told = BufReader::new(child.stdout.take().expect("it is piped"));
    told.read_line(&mut String::new())?;
    granted(&here, one, 1, &["upsert new"]).await;
    change(&space)?;
    assert_eq!(
        renew(&here, one, 1, "", IntentChange::Keep).await,
        Renewed::Dead
    );
    let two = open(&here, 2).await;
    granted(&here, two, 1, &["upsert new"]).await;
    child.stdin.take().expect("it is piped").write_all(b"\n")?;
    assert!(child.wait()?.success(), "the child has failed");
    refused(&here, two, 2, &["upsert old"]).await;
    let broken = "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'";
    assert_eq!(space.count(broken), 0);
    Ok(())
}

/// Takes a key until it is told to go on; another process has removed the log meanwhile.
async fn come(path: &Path, number: u128) -> ExitCode {
    let backend = backend(path).await;
    let session = open(&backend, number).await;
    granted(&backend, session, 1, &["upsert k"]).await;
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let renewed = renew(&backend, session, 1, "", IntentChange::Keep).await;
    assert_eq!(renewed, Renewed::Dead);
    let session = open(&backend, number + 1).await;
    refused(&backend, session, 1, &["upsert k"]).await;
    ExitCode::SUCCESS
}

/// A process comes with a file that was replaced, and goes on with the log of the former one, which a process that knew that
/// one removes.
async fn log_of_another() -> Result<(), Failed> {
    let space = Space::new();
    let here = space.connect().await;
    let one = open(&here, 1).await;
    granted(&here, one, 1, &["upsert old"]).await;
    let copy = space.path.with_file_name("copy.db");
    space.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    std::fs::copy(&space.path, &copy)?;
    std::fs::rename(&copy, &space.path)?;
    let mut command = command("come 10", &space.path);
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut told = BufReader::new(child.stdout.take().expect("it is piped"));
    told.read_line(&mut String::new())?;
    let two = open(&here, 2).await;
    granted(&here, two, 1, &["upsert k"]).await;
    child.stdin.take().expect("it is piped").write_all(b"\n")?;
    assert!(child.wait()?.success(), "the child has failed");
    refused(&here, two, 2, &["upsert old"]).await;
    let broken = "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'";
    assert_eq!(space.count(broken), 0);
    Ok(())
}

/// Adds one to a number in a plain file, under the lock, until the time is up; prints how often.
async fn count(path: &Path) -> ExitCode {
    let backend = backend(path).await;
    let counter = path.with_file_name("counter");
    let locks = lockcore::Locks::builder(backend).build().unwrap();
    let mut done = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let guard = locks.lock("counter").acquire().await.unwrap();
        let value: u64 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
        // Far longer than the lock is free between two turns of one process.
        tokio::time::sleep(Duration::from_millis(2)).await;
        std::fs::write(&counter, (value + 1).to_string()).unwrap();
        assert_eq!(guard.release().await.unwrap(), lockcore::Released::Released);
        done += 1;
    }
    println!("{done}");
    ExitCode::SUCCESS
}

async fn turns() -> Result<(), Failed> {
    let space = Space::new();
    space.connect().await;
    let counter = space.path.with_file_name("counter");
    std::fs::write(&counter, "0")?;
    let children: Vec<Child> = (1..=4)
        .map(|number| spawn(&format!("count {number}"), &space.path))
        .collect();
    let mut all = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        assert!(output.status.success());
        let line = String::from_utf8(output.stdout)?;
        all.push(line.trim().parse::<u64>()?);
    }
    let total: u64 = all.iter().sum();
    let value: u64 = std::fs::read_to_string(&counter)?.parse()?;
    assert_eq!(value, total, "every addition was made alone: {all:?}");
    let least = all.iter().copied().min().unwrap_or(0);
    assert!(least * 4 * 5 >= total, "somebody starves: {all:?}");
    Ok(())
}

/// Begins to write, and ends when it is told to.
fn occupy(path: &Path) -> ExitCode {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    conn.execute_batch("COMMIT").unwrap();
    ExitCode::SUCCESS
}

async fn stopped_inside(end: Signal) -> Result<(), Failed> {
    let space = Space::new();
    let config = SqliteConfig::new(&space.path).timeout(Duration::from_millis(300));
    let here = SqliteBackend::connect(config).await?;
    let me = open(&here, 1).await;
    let mut child = command("occupy", &space.path)
        .stdin(Stdio::piped())
        .spawn()?;
    let mut told = BufReader::new(child.stdout.take().expect("it is piped"));
    told.read_line(&mut String::new())?;
    let id = Pid::from_raw(i32::try_from(child.id())?).expect("a process has a number");
    kill_process(id, Signal::STOP)?;
    // It would end now, if it ran.
    child.stdin.take().expect("it is piped").write_all(b"\n")?;
    for _ in 0..3 {
        let asked = here.acquire(&request(me, 1, &["create k"])).await;
        let error = asked.expect_err("nobody can write");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "certainly no effect");
    }
    kill_process(id, end)?;
    assert_eq!(child.wait()?.success(), end == Signal::CONT);
    granted(&here, me, 1, &["create k"]).await;
    Ok(())
}

/// Waits for a key that nobody frees; prints the processor time of the wait in microseconds.
async fn wait(path: &Path, number: u128) -> ExitCode {
    let backend = backend(path).await;
    let session = open(&backend, number).await;
    refused(&backend, session, 1, &["create k"]).await;
    let changed = backend.watch(&claims(&["create k"])).await.unwrap();
    let before = used_us();
    let woken = tokio::time::timeout(Duration::from_secs(2), changed).await;
    assert!(woken.is_err(), "nothing was freed");
    println!("{}", used_us() - before);
    ExitCode::SUCCESS
}

/// Processor time of this process, in microseconds.
fn used_us() -> i64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec * 1_000_000 + used.tv_nsec / 1_000
}

async fn waiting() -> Result<(), Failed> {
    let space = Space::new();
    let backend = space.connect().await;
    let session = open(&backend, 100).await;
    granted(&backend, session, 1, &["create k"]).await;
    let children: Vec<Child> = (1..=8)
        .map(|number| spawn(&format!("wait {number}"), &space.path))
        .collect();
    let mut total = 0;
    for child in children {
        let output = child.wait_with_output()?;
        assert!(output.status.success());
        total += String::from_utf8(output.stdout)?.trim().parse::<i64>()?;
    }
    println!("eight waiters used {total} µs of processor time in 2 s");
    // Five hundredths of a processor each; who looks without a pause uses all of it.
    assert!(
        total <= 800_000,
        "waiting used {total} µs of processor time in 2 s"
    );
    Ok(())
}
