//! [`Victim`]: the servers of a run, and what is done to them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lockcore_trial::faults::ServerFault;
use rustix::process::{Pid, Signal, kill_process};

/// How long processes may take to end that were killed.
const DIES: Duration = Duration::from_secs(10);
/// How long servers may take to find each other.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// The servers of a run. Each function blocks its thread.
pub(super) trait Victim: Send {
    /// The URL of a namespace of its own on them.
    fn url(&self) -> String;

    /// How much later than its TTL a session may end.
    fn allowance(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// Begins the fault. What takes time to be done is done when it returns.
    ///
    /// # Errors
    ///
    /// It cannot be done; the text says why.
    fn begin(&mut self, fault: ServerFault) -> Result<(), String>;

    /// Ends it. All servers serve when it returns.
    ///
    /// # Errors
    ///
    /// They do not; the text says why.
    fn end(&mut self, fault: ServerFault) -> Result<(), String>;
}

/// The error of a victim that is not made for a fault.
pub(super) fn unknown<T>(fault: ServerFault) -> Result<T, String> {
    Err(format!("{fault:?} is not made here"))
}

/// A process, and all that it has started.
pub(super) fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok());
        let about = fs::read_to_string(entry.path().join("stat"));
        let parent = about.ok().and_then(|about| {
            let (_, rest) = about.rsplit_once(") ")?;
            rest.split(' ').nth(1)?.parse::<u32>().ok()
        });
        if let (Some(pid), Some(parent)) = (pid, parent) {
            parents.push((pid, parent));
        }
    }
    let mut at = 0;
    while let Some(parent) = all.get(at).copied() {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        all.extend(children.map(|(pid, _)| *pid));
        at += 1;
    }
    all
}

/// Sends a signal to processes; one that has ended does not mind.
pub(super) fn signal(pids: &[u32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| process(*pid)) {
        let _ = kill_process(pid, signal);
    }
}

/// Kills processes, and waits until they have gone.
///
/// # Errors
///
/// One of them stays.
pub(super) fn killed(pids: &[u32]) -> Result<(), String> {
    // What is stopped is killed as well.
    signal(pids, Signal::KILL);
    gone(pids)
}

/// Waits until processes have gone.
///
/// # Errors
///
/// One of them stays.
pub(super) fn gone(pids: &[u32]) -> Result<(), String> {
    within(DIES, || match pids.iter().find(|pid| runs(**pid)) {
        Some(pid) => Err(format!("process {pid} runs still")),
        None => Ok(()),
    })
}

/// Whether a process is there that has not ended.
pub(super) fn runs(pid: u32) -> bool {
    let about = fs::read_to_string(format!("/proc/{pid}/stat"));
    about.is_ok_and(|about| !about.contains(") Z "))
}

/// Asks until it is so.
///
/// # Errors
///
/// It is not so in a minute; the text is the last one that was said.
pub(super) fn until(is_so: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    within(PATIENCE, is_so)
}

fn within(limit: Duration, mut is_so: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let since = Instant::now();
    loop {
        match is_so() {
            Err(error) if since.elapsed() > limit => return Err(error),
            Err(_) => sleep(LOOK),
            Ok(()) => return Ok(()),
        }
    }
}

/// The soft limit of a process' descriptors before it was lowered.
#[derive(Debug)]
pub(super) struct Descriptors {
    pid: u32,
    before: String,
}

impl Descriptors {
    /// Leaves a process no further one. What it has open stays.
    ///
    /// # Errors
    ///
    /// Nobody may do that here, or it has ended.
    pub(super) fn used_up(pid: u32) -> Result<Self, String> {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits"));
        let limits = limits.map_err(|error| format!("process {pid}: {error}"))?;
        let mut lines = limits.lines();
        let soft = lines.find_map(|line| line.strip_prefix("Max open files"));
        let soft = soft.and_then(|soft| soft.split_whitespace().next());
        let before = soft
            .ok_or("the system does not tell its limits")?
            .to_owned();
        permit(pid, "3")?;
        Ok(Self { pid, before })
    }

    /// Permits it what it was permitted before. It may have ended.
    pub(super) fn again(self) {
        let _ = permit(self.pid, &self.before);
    }
}

/// As the user of the process, who may do that where another one may not.
fn permit(pid: u32, descriptors: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("process {pid}: {error}");
    let user = fs::metadata(format!("/proc/{pid}")).map_err(|error| failed(&error))?;
    let done = Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--nofile={descriptors}:")])
        .uid(user.uid())
        .gid(user.gid())
        .output()
        .map_err(|error| failed(&format!("prlimit: {error}")))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(failed(&String::from_utf8_lossy(&done.stderr).trim())),
    }
}

fn process(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}
