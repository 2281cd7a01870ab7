//! The process of a server, and its log.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Server;

/// Starts a program without our standard input, says its process id, and ends it by the signal `END` when that input
/// ends, which it does when this process ends, however it does. One that is stopped goes on, to end.
const WATCH: &str = r#""$@" <&- >&2 & echo $!; read -r _; kill -"$END" $! && kill -CONT $!; wait"#;
/// The same for a program that starts the server as its child: both are in a group of their own, and are killed. What is
/// at `DATA` is removed then; it stays where the program has ended before.
const LAUNCH: &str = r#"exec 3<&0; set -m; "$@" <&- >&2 & pid=$!; set +m; echo $pid
{ read -r _ <&3; trap "" TERM; kill -KILL -- -$pid; } & reader=$!
wait $pid; kill $reader 2>&-; wait $reader && rm -rf "$DATA""#;
/// Longest until one that was killed is not there any more.
const DIES: Duration = Duration::from_secs(10);
/// The last lines of a log are shown, and of those before it the first that complain.
const TAIL_LINES: usize = 60;
const COMPLAINTS: usize = 40;
/// As much of a log is read, from its end.
const READ_BYTES: u64 = 8 << 20;

#[derive(Debug)]
pub(super) enum Process {
    Child(Child),
    /// A program that ends with its standard input: a shell which ends the server then.
    Watched {
        shell: Child,
        pid: u32,
    },
    /// A program that starts the server, both in a group of its number: a shell which kills that with its standard input.
    Launched {
        shell: Child,
        group: u32,
    },
    /// Several of them.
    Several(Vec<Server>),
    #[cfg(feature = "containers")]
    Container(Box<super::docker::Container>),
}

impl Process {
    /// Starts a program, as the command says it but for its output, which goes to the log. It is ended by this signal.
    pub(super) fn watched(program: &Command, end: &str, log: &Log) -> Result<Self, String> {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", WATCH, "sh"])
            .env("END", end)
            .arg(program.get_program())
            .args(program.get_args());
        for (name, value) in program.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        if let Some(folder) = program.get_current_dir() {
            shell.current_dir(folder);
        }
        let (shell, pid) = Self::shell(&mut shell, log)?;
        Ok(Self::Watched { shell, pid })
    }

    /// Starts a program that starts the server. Its working directory goes with it.
    pub(super) fn launched(program: &mut Command, log: &Log) -> Result<Self, String> {
        let mut shell = Command::new("bash");
        shell
            .args(["-c", LAUNCH, "bash"])
            .arg(program.get_program())
            .args(program.get_args());
        for (name, value) in program.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        if let Some(folder) = program.get_current_dir() {
            shell.current_dir(folder).env("DATA", folder);
        }
        let (shell, group) = Self::shell(&mut shell, log)?;
        Ok(Self::Launched { shell, group })
    }

    /// A shell that says the process id of its program, whose errors go to the log.
    fn shell(shell: &mut Command, log: &Log) -> Result<(Child, u32), String> {
        let mut shell = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.open()?)
            .spawn()
            .map_err(|error| format!("sh cannot be run: {error}"))?;
        let mut line = String::new();
        let said = BufReader::new(shell.stdout.take().ok_or("the shell says nothing")?);
        let read = said.take(32).read_line(&mut line);
        let pid = read.ok().and_then(|_| line.trim().parse().ok());
        let pid = pid.ok_or_else(|| format!("the shell says {line:?}"))?;
        Ok((shell, pid))
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Child(child) => Some(child.id()),
            Self::Watched { pid, .. } => Some(*pid),
            Self::Launched { group, .. } => child_of(*group),
            Self::Several(_) => None,
            #[cfg(feature = "containers")]
            Self::Container(_) => None,
        }
    }

    /// Ends it, and waits until it has; it may have ended by itself.
    pub(super) fn end(&mut self) {
        match self {
            Self::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Self::Several(servers) => servers.clear(),
            Self::Watched { shell, .. } | Self::Launched { shell, .. } => {
                drop(shell.stdin.take());
                let _ = shell.wait();
            }
            #[cfg(feature = "containers")]
            Self::Container(container) => container.end(),
        }
    }

    /// Ends it so that it can be started again on what it has written.
    pub(super) fn kill(&mut self) {
        if let Self::Launched { shell, group } = self {
            let server = child_of(*group);
            if let Ok(None) = shell.try_wait() {
                kill_group(*group);
            }
            // To wait would end its input, and so what the server has written.
            let input = shell.stdin.take();
            let _ = shell.wait();
            drop(input);
            // Nobody waits for it, and until then it has its port and its files.
            let until = Instant::now() + DIES;
            while server.is_some_and(runs) && Instant::now() < until {
                sleep(Duration::from_millis(5));
            }
        }
        self.end();
    }
}

/// Kills a process and those that it has started.
fn kill_group(group: u32) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(group)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = group;
}

/// A process that this one has started, as Linux says it.
fn child_of(process: u32) -> Option<u32> {
    let all = fs::read_dir("/proc").ok()?.flatten();
    let mut ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|id: &u32| {
        let about = fs::read_to_string(format!("/proc/{id}/stat"));
        about.is_ok_and(|about| state(&about).is_some_and(|(_, parent)| parent == process))
    })
}

/// Whether a process is there that has not ended.
fn runs(process: u32) -> bool {
    let about = fs::read_to_string(format!("/proc/{process}/stat"));
    about.is_ok_and(|about| state(&about).is_some_and(|(state, _)| state != "Z"))
}

/// The state of a process and whose child it is, by what is said of it: `ID (NAME) STATE PARENT …`.
fn state(about: &str) -> Option<(&str, u32)> {
    let (_, rest) = about.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace();
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

/// A file in which a server says what happens, over all its starts.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// Where it began to write when it was started last.
    from: u64,
}

impl Log {
    /// From the end of what is there.
    pub(super) fn new(path: PathBuf) -> Self {
        let from = fs::metadata(&path).map_or(0, |file| file.len());
        Self { path, from }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// To write at its end.
    pub(super) fn open(&self) -> Result<File, String> {
        let file = File::options().create(true).append(true).open(&self.path);
        file.map_err(|error| format!("{}: {error}", self.path.display()))
    }

    /// What the server has said since it was started last.
    pub(super) fn since_start(&self) -> String {
        read_from(&self.path, self.from).unwrap_or_default()
    }

    /// The last lines, and what complains before them.
    pub(super) fn tail(&self) -> String {
        tail(&self.path)
    }
}

/// The last lines of a file, and what complains before them; empty where there is none.
pub(super) fn tail(path: &Path) -> String {
    let length = fs::metadata(path).map_or(0, |file| file.len());
    let text = read_from(path, length.saturating_sub(READ_BYTES)).unwrap_or_default();
    shown(&text)
}

fn shown(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (before, last) = lines.split_at(lines.len().saturating_sub(TAIL_LINES));
    let complains = |line: &&&str| {
        ["WARN", "ERROR", "FATAL", "PANIC"]
            .iter()
            .any(|it| line.contains(it))
    };
    let mut shown: Vec<&str> = before
        .iter()
        .filter(complains)
        .take(COMPLAINTS)
        .copied()
        .collect();
    if !shown.is_empty() {
        shown.push("…");
    }
    shown.extend(last);
    shown.join("\n")
}

fn read_from(path: &Path, from: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut said = Vec::new();
    file.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_complains_is_shown_however_long_ago_it_was() {
        let mut lines: Vec<String> = (0..1_000).map(|n| format!("LOG {n}")).collect();
        lines[3] = "FATAL: the login failed".to_owned();
        let text = shown(&lines.join("\n"));
        assert!(
            text.starts_with("FATAL: the login failed\n…\nLOG 940\n"),
            "{text}"
        );
        assert!(text.ends_with("LOG 999"));
        assert_eq!(shown("LOG 1\nLOG 2"), "LOG 1\nLOG 2");
    }

    #[test]
    fn what_the_system_says_of_a_process_is_read() {
        assert_eq!(state("7 (a) (b) c) S 42 7 7 0"), Some(("S", 42)));
        assert_eq!(state(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_server_that_is_launched_ends_with_who_launched_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("out.log"));
        let launched = |name: &str| {
            let home = folder.path().join(name);
            fs::create_dir_all(&home).unwrap();
            let mut program = Command::new("sh");
            program.args(["-c", "sleep 1000 & wait"]).current_dir(&home);
            let process = Process::launched(&mut program, &log).unwrap();
            while process.pid().is_none() {
                sleep(Duration::from_millis(5));
            }
            let server = process.pid().unwrap();
            assert!(runs(server));
            (process, server, home)
        };
        let (mut ended, its_server, its_home) = launched("ended");
        ended.end();
        assert!(!its_home.exists(), "{its_home:?}");
        let until = Instant::now() + DIES;
        while runs(its_server) {
            assert!(Instant::now() < until, "{its_server} runs");
            sleep(Duration::from_millis(5));
        }
        let (mut killed, its_server, its_home) = launched("killed");
        killed.kill();
        assert!(!runs(its_server) && its_home.exists());
    }
}
