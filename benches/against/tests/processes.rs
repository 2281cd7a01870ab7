//! Processes that take turns at one lock, and how they end.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_workloads::Turn;
use lockkeeper_workloads::processes::{Processes, Work};

/// A process of the program, on an SQLite file in the folder.
fn worker(folder: &tempfile::TempDir) -> Command {
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_against"));
    command.arg("worker").env("LOCKKEEPER_URL", url);
    command
}

#[test]
fn each_task_of_each_process_has_turns() {
    let folder = tempfile::tempdir().unwrap();
    let mut processes = Processes::start(2, || worker(&folder)).unwrap();
    let time = Duration::from_millis(200);
    for work in [
        Work::shared_out(8, 2, time),
        vec![Work::of(3, time), Work::of(1, time)],
    ] {
        let (each, _) = processes.take_turns(&work).unwrap();
        let tasks: Vec<usize> = each.iter().map(Vec::len).collect();
        assert_eq!(tasks, [work[0].tasks, work[1].tasks]);
        let tasks = each.concat();
        assert!(tasks.iter().all(|turns| !turns.is_empty()), "{tasks:?}");
        let in_order = |turn: &Turn| turn.asked <= turn.granted && turn.granted <= turn.released;
        assert!(tasks.iter().flatten().all(in_order), "{tasks:?}");
    }
    assert!(processes.take_turns(&[Work::of(1, time)]).is_err());
}

#[test]
fn a_process_ends_with_its_input_in_the_middle_of_its_work() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = worker(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let mut input = child.stdin.take().unwrap();
    // An hour of turns.
    writeln!(input, "2 1 0 3600000000").unwrap();
    drop(input);
    let start = Instant::now();
    assert!(child.wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(60));
}
