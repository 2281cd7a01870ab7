//! The test programs of a store: built once, copied with a text changed in place, and run case by case.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::state::hash;

/// A test program, and what of it is run.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    bytes: Vec<u8>,
    /// Where its package is: tests read files from there.
    folder: PathBuf,
    /// Every case, in the order of their listing.
    all: Vec<String>,
    /// Those that are run.
    pub(super) cases: Vec<String>,
}

/// What came of running cases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ran {
    Passed,
    /// The first that failed.
    Failed(String),
    /// It was not done in time, or ended without a word.
    Stuck,
}

/// These test programs of a package.
pub(super) fn build(package: &str, tests: &[&str]) -> Result<HashMap<String, PathBuf>, String> {
    println!("+ cargo test --no-run --package={package}");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .arg(format!("--package={package}"))
        .args(tests.iter().map(|test| format!("--test={test}")))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("{package} cannot be built"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let tests = messages.filter_map(|message: Value| {
        let program = message["executable"].as_str()?;
        let name = message["target"]["name"].as_str()?;
        let is_test = message["target"]["kind"][0] == "test";
        is_test.then(|| (name.to_owned(), PathBuf::from(program)))
    });
    Ok(tests.collect())
}

impl Program {
    /// Of the cases those whose names begin so.
    pub(super) fn new(
        name: &str,
        path: &Path,
        folder: &Path,
        begin: &str,
        environment: &[(&str, String)],
    ) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let output = Command::new(path)
            .arg("--list")
            .current_dir(folder)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .output()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let list = String::from_utf8_lossy(&output.stdout);
        let all = list.lines().filter_map(|line| line.strip_suffix(": test"));
        let all: Vec<String> = all.map(str::to_owned).collect();
        let cases = all.iter().filter(|case| case.starts_with(begin));
        let cases = spread(cases.cloned().collect());
        Ok(Self {
            name: name.to_owned(),
            bytes,
            folder: folder.to_owned(),
            cases,
            all,
        })
    }

    /// Another one, another program, or other cases of it.
    pub(super) fn hash(&self) -> u64 {
        hash(&[&self.bytes, self.cases.join(" ").as_bytes()])
    }

    /// Where the text stands in the program.
    pub(super) fn places(&self, text: &str) -> Vec<usize> {
        find(&self.bytes, text.as_bytes())
    }

    /// Writes a copy in which another text of the same length stands in these places.
    pub(super) fn write(&self, to: &Path, places: &[usize], text: &str) -> Result<(), String> {
        let mut bytes = self.bytes.clone();
        for &place in places {
            bytes[place..place + text.len()].copy_from_slice(text.as_bytes());
        }
        // A program that still runs cannot be written to.
        let _ = fs::remove_file(to);
        let run = fs::Permissions::from_mode(0o755);
        fs::write(to, bytes)
            .and_then(|()| fs::set_permissions(to, run))
            .map_err(|error| format!("{}: {error}", to.display()))
    }

    /// Runs these cases of a copy until the first of them fails; those that have passed are taken out.
    pub(super) fn run(
        &self,
        copy: &Path,
        cases: &mut Vec<&str>,
        at_a_time: usize,
        environment: &[(&str, String)],
        limit: Duration,
    ) -> Result<Ran, String> {
        if cases.is_empty() {
            return Ok(Ran::Passed);
        }
        let mut command = Command::new(copy);
        command
            .arg("--exact")
            .arg(format!("--test-threads={at_a_time}"));
        // The programs take one name at most, and any number that they leave out.
        if let [case] = cases.as_slice() {
            command.arg(case);
        } else {
            let wanted: HashSet<&str> = cases.iter().copied().collect();
            let others = self
                .all
                .iter()
                .filter(|case| !wanted.contains(case.as_str()));
            command.args(others.flat_map(|case| ["--skip", case]));
        }
        command
            .current_dir(&self.folder)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child =
            spawn(&mut command).map_err(|error| format!("{}: {error}", copy.display()))?;
        let mut passed = HashSet::new();
        let ran = watch(&mut child, limit, &mut passed);
        cases.retain(|case| !passed.contains(*case));
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // It may have ended, with all that it started.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
        Ok(ran)
    }
}

/// A program that was written just now may be open in a process that another thread has forked and that has not become
/// its own program yet.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let since = Instant::now();
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy
                    && since.elapsed() < Duration::from_secs(10) =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

/// The first case of each group, then the second of each, and so on.
fn spread(cases: Vec<String>) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut numbered: Vec<(usize, String)> = Vec::new();
    for case in cases {
        let group = case.rsplit_once("::").map_or("", |(group, _)| group);
        let number = seen.entry(group.to_owned()).or_default();
        *number += 1;
        numbered.push((*number, case));
    }
    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, case)| case).collect()
}

/// Reads what a program says, until a case has failed or all is said.
fn watch(child: &mut Child, limit: Duration, passed: &mut HashSet<String>) -> Ran {
    let Some(said) = child.stdout.take() else {
        return Ran::Stuck;
    };
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(said).split(b'\n').map_while(Result::ok) {
            if sender
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    let since = Instant::now();
    loop {
        let left = limit.saturating_sub(since.elapsed());
        let Ok(line) = receiver.recv_timeout(left) else {
            return Ran::Stuck;
        };
        if let Some(case) = ended(&line, "FAILED") {
            return Ran::Failed(case.to_owned());
        }
        passed.extend(ended(&line, "ok").map(str::to_owned));
        if line.starts_with("test result: ok") {
            return Ran::Passed;
        }
    }
}

/// The case that a line says to have ended so.
fn ended<'a>(line: &'a str, how: &str) -> Option<&'a str> {
    let said = line.strip_suffix(how)?.strip_prefix("test ")?;
    Some(said.split_once(" ...")?.0.trim_end())
}

/// Where a text stands among bytes.
fn find(bytes: &[u8], text: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let Some((&last, rest)) = text.split_last() else {
        return places;
    };
    // How far to go on where the last byte of a place is this one.
    let mut skips = [text.len(); 256];
    for (at, &byte) in rest.iter().enumerate() {
        skips[usize::from(byte)] = rest.len() - at;
    }
    let mut end = rest.len();
    while end < bytes.len() {
        let byte = bytes[end];
        if byte == last && bytes[end - rest.len()..end] == *rest {
            places.push(end - rest.len());
        }
        end += skips[usize::from(byte)];
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_wherever_it_stands() {
        assert_eq!(find(b"abcabxabcab", b"abcab"), [0, 6]);
        assert_eq!(find(b"aaaa", b"aa"), [0, 1, 2]);
        assert_eq!(find(b"abc", b"abcd"), [0; 0]);
        assert_eq!(find(b"xxabc", b"c"), [4]);
    }

    #[test]
    fn the_case_that_ended_is_read() {
        let line = "test redis::a::b   ... FAILED";
        assert_eq!(ended(line, "FAILED"), Some("redis::a::b"));
        assert_eq!(ended(line, "ok"), None);
        assert_eq!(ended("test a ... ok", "ok"), Some("a"));
        assert_eq!(ended("test result: FAILED. 1 passed", "FAILED"), None);
        assert_eq!(ended("test result: ok", "ok"), None);
    }
}
