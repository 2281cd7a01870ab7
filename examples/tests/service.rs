//! The service ends well, whenever it is told to.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

struct Service {
    folder: TempDir,
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Service {
    fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_service"))
            .args(args)
            .env("LOCKKEEPER_URL", url(&folder))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            folder,
            child,
            lines,
        }
    }

    /// The lines up to the first with that text.
    fn until(&mut self, text: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let line = self
                .lines
                .next()
                .unwrap_or_else(|| panic!("no {text}: {seen:?}"));
            seen.push(line.unwrap());
            if seen.last().unwrap().contains(text) {
                return seen;
            }
        }
    }

    fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// It ended by itself, and nothing is held: long before a TTL could be over.
    async fn has_ended_well(&mut self) {
        assert!(self.child.wait().unwrap().success());
        let locks = lockkeeper::connect(&url(&self.folder)).await.unwrap();
        for account in 0..20 {
            let account = format!("account/{account}");
            let free = locks.documents([&account]).try_acquire().await.unwrap();
            assert!(
                matches!(free, lockkeeper::Attempt::Acquired(_)),
                "{account}: {free:?}"
            );
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn url(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().join("locks.db").display())
}

#[tokio::test]
async fn work_that_is_done_in_time_is_finished() {
    let mut service = Service::start(&["--work", "300", "--grace", "60000"]);
    let before = service.until("begins");
    service.terminate();
    let after = service.until("nothing is held");
    let count = |what: &str| {
        let all = before.iter().chain(&after);
        all.filter(|line| line.contains(what)).count()
    };
    assert!(count("begins") > 0 && count("stopped") == 0);
    assert_eq!(count("begins"), count("has done"), "{before:?} {after:?}");
    service.has_ended_well().await;
}

#[tokio::test]
async fn work_that_is_not_done_in_time_is_stopped() {
    let mut service = Service::start(&["--work", "600000", "--grace", "200"]);
    service.until("begins");
    let since = Instant::now();
    service.terminate();
    let after = service.until("nothing is held");
    assert!(
        after
            .iter()
            .any(|line| line.contains("stopped where it is"))
    );
    assert!(since.elapsed() < Duration::from_secs(30));
    service.has_ended_well().await;
}
