//! A leader that is killed is followed by the next candidate.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is missing"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

struct Candidate {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Candidate {
    fn start(url: &str, name: &str, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leader"))
            .args(["--name", name, "--ttl", "2000"])
            .args(args)
            .env("LOCKKEEPER_URL", url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn says(&mut self, text: &str) -> String {
        let line = self.lines.next().unwrap().unwrap();
        assert!(line.contains(text), "{line}");
        line
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_next_candidate_leads_within_the_ttl() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let token = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    let mut first = Candidate::start(&url, "one", &[]);
    let before = token(&first.says("one leads"));
    let mut second = Candidate::start(&url, "two", &["--turns", "3"]);
    // Where it leads before, it says so before it was to.
    std::thread::sleep(Duration::from_millis(500));
    let killed = Instant::now();
    first.child.kill().unwrap();
    let after = token(&second.says("two leads"));
    let took = killed.elapsed();
    // The TTL, the poll of the store, and what a busy machine takes.
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(after > before);
    second.says("two has resigned");
    assert!(second.child.wait().unwrap().success());
}
