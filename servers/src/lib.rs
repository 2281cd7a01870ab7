//! Servers for the tests of this workspace: a program found on the machine, a container, or one that is made here.
//!
//! Containers are behind the feature `containers`.

mod apt;
mod archive;
mod cluster;
#[cfg(feature = "containers")]
mod docker;
mod elasticsearch;
pub mod etcd;
pub mod faults;
mod java;
mod local;
pub mod mariadb;
mod ports;
pub mod postgres;
mod process;
pub mod redis;
mod secured;

/// Without the feature `containers` there are none.
#[cfg(not(feature = "containers"))]
mod docker {
    pub(super) fn start(_: &str, _: u16, _: &[&str]) -> Option<Result<super::Server, String>> {
        None
    }
}

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use cluster::Cluster;
pub use elasticsearch::{
    ELASTICSEARCH_7, ELASTICSEARCH_9, ELASTICSEARCH_9_SECURED, ENGINES, Engine, Node, OPENSEARCH_2,
    OPENSEARCH_3, OPENSEARCH_3_SECURED,
};
pub use lockcore_trial::Port;
pub use ports::on_free;
use process::{Log, Process};

/// A running server. Dropping it stops it and removes its data. If a panicking test drops it, the end of its log is
/// printed.
#[derive(Debug)]
pub struct Server {
    url: String,
    how: String,
    // Stopped before its data is removed, and before others get its port.
    process: Process,
    log: Option<Log>,
    says: Says,
    data: Option<TempDir>,
    port: Option<Port>,
}

/// How a server of this URL is asked for its view of itself and of its cluster.
type Says = fn(&str) -> String;

/// The logs of this process's running servers.
static RUNNING: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());

impl Server {
    fn new(url: String, how: String, process: Process) -> Self {
        Self {
            url,
            how,
            process,
            log: None,
            says: |_| String::new(),
            data: None,
            port: None,
        }
    }

    /// The same server with this log, which [`explained`] finds from now on.
    fn with_log(mut self, log: Log) -> Self {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.push((self.url.clone(), log.path().to_owned()));
        drop(running);
        self.log = Some(log);
        self
    }

    /// Its URL: `http://127.0.0.1:PORT`, or `https://USER:PASSWORD@localhost:PORT/?ca=FILE`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The program or image that it was started from, in a few words.
    #[must_use]
    pub fn how(&self) -> &str {
        &self.how
    }

    /// Its process, to stop or kill it; `None` for a container, and for several processes.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Its port, to keep it for another server after this one has gone; `None` for a container, for several servers,
    /// and for one that was started on a given port.
    #[must_use]
    pub fn port(&self) -> Option<Port> {
        self.port.clone()
    }

    /// The last lines of its log, or of the logs of several servers; empty if it has none.
    #[must_use]
    pub fn log_tail(&self) -> String {
        match (&self.process, &self.log) {
            (Process::Several(servers), _) => {
                let tails = servers.iter().map(Self::log_tail);
                tails.collect()
            }
            #[cfg(feature = "containers")]
            (Process::Container(container), _) => container.log_tail(),
            (_, Some(log)) => format!("---- the log of {}\n{}\n", self.url, log.tail()),
            _ => String::new(),
        }
    }

    /// What it says of itself and of its cluster, within seconds; empty if it is not asked.
    #[must_use]
    pub fn says(&self) -> String {
        match &self.process {
            Process::Several(servers) => servers.iter().map(Self::says).collect(),
            _ => match (self.says)(&self.url) {
                said if said.is_empty() => said,
                said => format!("---- {} says\n{}\n", self.url, said.trim_end()),
            },
        }
    }

    /// Waits until it answers.
    ///
    /// # Errors
    ///
    /// It ends, its port is taken, or it does not answer in time. The text is what it has said.
    fn await_answer(
        &self,
        limit: Duration,
        mut ask: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let since = Instant::now();
        loop {
            let asked = ask();
            let said = self.log.as_ref().map(Log::since_start).unwrap_or_default();
            // Then somebody else has answered, if anybody has.
            if ports::is_taken(&said) {
                return Err(format!("{}: {said}", self.url));
            }
            let Err(error) = asked else { return Ok(()) };
            if since.elapsed() > limit {
                let tail = self.log_tail();
                return Err(format!(
                    "{} does not start within {limit:?}: {error}\n{tail}",
                    self.url
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl AsRef<Server> for Server {
    fn as_ref(&self) -> &Server {
        self
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Process::Several(servers) = &mut self.process {
            if std::thread::panicking() {
                let said: String = servers.iter().map(Self::says).collect();
                eprintln!("{said}");
            }
            return servers.clear();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
        if let Some(log) = &self.log {
            let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            running.retain(|(_, path)| path != log.path());
        }
        self.process.end();
    }
}

/// The exit code of a test program whose tests share servers. If it is a failure, prints the ends of the logs of the
/// running servers that this process has started.
#[must_use]
pub fn explained(code: ExitCode) -> ExitCode {
    if code != ExitCode::SUCCESS {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        for (url, log) in running.iter() {
            eprintln!("---- the log of {url}\n{}\n", process::tail(log));
        }
    }
    code
}

/// The environment variable with the folder for the data of servers, if it is not the default one.
const DATA: &str = "LOCKKEEPER_TEST_DATA";
/// A file system in memory, and the space that must be free there.
const MEMORY: &str = "/dev/shm";
const ROOM: u64 = 4 << 30;

/// A folder for a server's data, removed when dropped: in memory if there is room, because no test cuts the power. A
/// server stands still while it syncs a disk, for seconds if others write much; a cluster then takes it for dead.
fn folder() -> Result<TempDir, String> {
    let made = match std::env::var_os(DATA) {
        Some(folder) => tempfile::tempdir_in(folder),
        None if room(MEMORY) >= ROOM => tempfile::tempdir_in(MEMORY),
        None => tempfile::tempdir(),
    };
    made.map_err(|error| format!("no temporary folder: {error}"))
}

/// A folder for data that tests write, removed when dropped: in memory if there is room and programs may be run there.
/// If others write much, a disk delays a write for seconds, and a session of the shortest TTL ends.
///
/// # Errors
///
/// It cannot be created; the text says why.
pub fn scratch() -> Result<TempDir, String> {
    let made = match room(MEMORY) >= ROOM && runs(MEMORY) {
        true => tempfile::tempdir_in(MEMORY),
        false => tempfile::tempdir(),
    };
    made.map_err(|error| format!("no temporary folder: {error}"))
}

/// Whether programs in a folder may be run.
fn runs(folder: &str) -> bool {
    #[cfg(unix)]
    let never = rustix::fs::StatVfsMountFlags::NOEXEC;
    #[cfg(unix)]
    let runs = rustix::fs::statvfs(folder).is_ok_and(|about| !about.f_flag.contains(never));
    #[cfg(not(unix))]
    let runs = false;
    runs
}

/// The free bytes in a folder; none if there is no such folder.
fn room(folder: &str) -> u64 {
    #[cfg(unix)]
    let free = rustix::fs::statvfs(folder).map_or(0, |about| about.f_bavail * about.f_frsize);
    #[cfg(not(unix))]
    let free = 0;
    free
}

/// Installs OpenSSL's headers from Debian's packages if they are missing. A driver of the measurements is built with
/// them.
///
/// # Errors
///
/// They cannot be installed here; the text says what is missing.
pub fn openssl() -> Result<(), String> {
    if quiet("pkg-config", &["--exists", "openssl"]).is_some() {
        return Ok(());
    }
    apt::update();
    let installed = ["pkg-config", "libssl-dev"]
        .into_iter()
        .try_for_each(apt::install);
    installed.map_err(|error| format!("OpenSSL's headers are missing: install them ({error})"))
}

/// The output of a program; `None` if it does not exist or fails.
fn quiet(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    output.status.success().then_some(text)
}

/// Runs a program with visible output.
fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}
