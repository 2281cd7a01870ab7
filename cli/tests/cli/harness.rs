//! A place for a store, and `lockkeeper` processes on it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// What hangs for that long fails its test.
const LIMIT: Duration = Duration::from_secs(120);

/// A directory with a store in it.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The path of a new file.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    /// A shell script with `$1` as this directory, as a command for `run`.
    pub(crate) fn sh<'a>(&'a self, script: &'a str) -> [&'a str; 5] {
        ["sh", "-c", script, "sh", self.0.path().to_str().unwrap()]
    }

    /// `lockkeeper`, on the store of this place.
    pub(crate) fn lockkeeper<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command
            .args(args)
            .env("LOCKKEEPER_URL", self.url())
            .env("XDG_STATE_HOME", self.path("state"))
            .current_dir(self.0.path());
        command
    }

    /// Runs `lockkeeper` to its end, without any input.
    pub(crate) fn ends(&self, args: &[&str]) -> Ended {
        ends(&mut self.lockkeeper(args))
    }

    /// Runs a script under claims.
    pub(crate) fn runs(&self, claims: &[&str], script: &str) -> Ended {
        let args = [&["run"], claims, &["--"], &self.sh(script)].concat();
        self.ends(&args)
    }

    /// A process that holds claims until it is told to let go.
    pub(crate) fn holds(&self, claims: &[&str]) -> Running {
        self.starts(claims, "echo held; cat >/dev/null")
    }

    /// A script that runs under claims, and has said its first line. `lockkeeper` is a job, as a shell with job control starts
    /// it.
    pub(crate) fn starts(&self, claims: &[&str], script: &str) -> Running {
        let args = [&["run"], claims, &["--"], &self.sh(script)].concat();
        let mut command = self.lockkeeper(args);
        let mut running = Running::new(command.stdin(Stdio::piped()).process_group(0));
        assert_eq!(running.line(), "held", "{}", running.stderr_now());
        running
    }

    /// The lines of `lockkeeper ls`.
    pub(crate) fn held(&self) -> Vec<String> {
        let ended = self.ends(&["ls"]);
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        ended.stdout.lines().map(str::to_owned).collect()
    }

    /// The states of `lockkeeper sessions`, by session.
    pub(crate) fn sessions(&self) -> Vec<(String, String)> {
        let ended = self.ends(&["sessions"]);
        assert_eq!(ended.status, 0, "{}", ended.stderr);
        let pair = |line: &str| {
            let mut fields = line.split('\t').map(str::to_owned);
            (fields.next().unwrap(), fields.next().unwrap())
        };
        ended.stdout.lines().map(pair).collect()
    }
}

/// What a process has left.
#[derive(Debug)]
pub(crate) struct Ended {
    /// 128 + n after a signal.
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

fn number(status: ExitStatus) -> i32 {
    // A signal that ended `lockkeeper` itself is no exit status of it.
    status.code().unwrap_or_else(|| -status.signal().unwrap())
}

/// Runs a command to its end, without any input unless it was given some.
pub(crate) fn ends(command: &mut Command) -> Ended {
    Running::new(command.stdin(Stdio::null())).ends()
}

/// A process that runs.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
    stderr_seen: String,
}

impl Running {
    pub(crate) fn new(command: &mut Command) -> Self {
        let outputs = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = outputs.spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            stdout,
            stderr,
            stderr_seen: String::new(),
        }
    }

    /// The next line of its standard output.
    pub(crate) fn line(&mut self) -> String {
        let line = self.stdout.recv_timeout(LIMIT);
        line.unwrap_or_else(|_| panic!("no further line; errors: {}", self.stderr_now()))
    }

    /// The next line of its standard error.
    pub(crate) fn error_line(&mut self) -> String {
        let line = self.stderr.recv_timeout(LIMIT).expect("no further error");
        self.stderr_seen.push_str(&line);
        self.stderr_seen.push('\n');
        line
    }

    pub(crate) fn stderr_now(&mut self) -> String {
        for line in self.stderr.try_iter() {
            self.stderr_seen.push_str(&line);
            self.stderr_seen.push('\n');
        }
        self.stderr_seen.clone()
    }

    pub(crate) fn write(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
    }

    /// Lets it go.
    pub(crate) fn close(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Lets it go, and waits for its end.
    pub(crate) fn ends(&mut self) -> Ended {
        self.stdin = None;
        let since = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                since.elapsed() < LIMIT,
                "does not end: {}",
                self.stderr_now()
            );
            thread::sleep(Duration::from_millis(2));
        };
        let stdout = rest(&self.stdout);
        self.stderr_seen.push_str(&rest(&self.stderr));
        Ended {
            status: number(status),
            stdout,
            stderr: self.stderr_seen.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Where a test has failed; the command dies with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines until the end of an output.
fn rest(lines: &mpsc::Receiver<String>) -> String {
    let mut text = String::new();
    loop {
        match lines.recv_timeout(LIMIT) {
            Ok(line) => text.push_str(&(line + "\n")),
            Err(mpsc::RecvTimeoutError::Disconnected) => return text,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("an output stays open after:\n{text}"),
        }
    }
}

/// The lines of an output, read as they come.
fn lines(output: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

/// Fails where whoever has started the tests ignores one of these signals: so would `lockkeeper`, as `nohup` wants it.
///
/// # Panics
///
/// Then.
pub(crate) fn must_not_be_ignored(signals: &[Signal]) {
    // Elsewhere nobody tells.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    for signal in signals {
        assert!(
            mask & (1 << (signal.as_raw() - 1)) == 0,
            "the tests were started with {signal:?} ignored, as by nohup or by a shell in the background: start them without"
        );
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < LIMIT, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

pub(crate) fn json(output: &str) -> Vec<Value> {
    output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
