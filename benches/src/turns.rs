//! Processes that take turns at one lock.

use std::process::Command;
use std::time::Duration;

use lockkeeper_workloads::Hold;
use lockkeeper_workloads::processes::{self, Processes, Turns, Work};

use crate::rounds::one_thread;
use crate::store::Store;

/// Processes that take turns at one lock, each as its work says; and how long they did.
pub(crate) fn turns_of_processes(store: &Store, work: &[Work]) -> (Turns, Duration) {
    let program = std::env::current_exe().expect("the program's path");
    let command = || {
        let mut command = Command::new(&program);
        command.args(["worker", "turns"]);
        command.env("LOCKKEEPER_URL", store.url());
        command
    };
    let processes = Processes::start(work.len(), command);
    let turns = processes.and_then(|mut processes| processes.take_turns(work));
    turns.unwrap_or_else(|failure| panic!("{}: {failure}", store.scheme()))
}

/// One task in each of so many processes, with a pause between release and retry.
pub(crate) fn with_pauses(processes: usize, pause: Duration, time: Duration) -> Vec<Work> {
    let work = Work {
        tasks: 1,
        hold: Hold::None,
        pause,
        time,
    };
    vec![work; processes]
}

/// One of the processes that take turns.
pub(crate) fn worker(store: &Store) {
    one_thread().block_on(async {
        let locks = store.locks().await;
        let done = processes::work(&locks).await;
        done.unwrap_or_else(|failure| panic!("{}: {failure}", store.scheme()));
    });
}
