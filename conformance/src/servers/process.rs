//! The process of a server, and its log.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::Server;

/// Starts a program without our standard input, says its process id, and ends it by the signal `END` when that input
/// ends, which it does when this process ends, however it does. One that is stopped goes on, to end.
const WATCH: &str = r#""$@" <&- >&2 & echo $!; read -r _; kill -"$END" $! && kill -CONT $!; wait"#;
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
    /// Several of them.
    Several(Vec<Server>),
    /// A container that ends with its standard input: a shell which removes it then.
    Container {
        shell: Child,
        id: String,
    },
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
        if let Some(folder) = program.get_current_dir() {
            shell.current_dir(folder);
        }
        Self::of_shell(&mut shell, log)
    }

    /// A shell that says the process id of its program, whose errors go to the log.
    pub(super) fn of_shell(shell: &mut Command, log: &Log) -> Result<Self, String> {
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
        Ok(Self::Watched {
            shell,
            pid: pid.ok_or_else(|| format!("the shell says {line:?}"))?,
        })
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Child(child) => Some(child.id()),
            Self::Watched { pid, .. } => Some(*pid),
            Self::Several(_) | Self::Container { .. } => None,
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
            Self::Watched { shell, .. } | Self::Container { shell, .. } => {
                drop(shell.stdin.take());
                let _ = shell.wait();
            }
        }
    }
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
}
