//! A command with an end: its output goes to a file, and what it started ends with it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// From one look at a command to the next.
const LOOK: Duration = Duration::from_millis(100);
/// So many of the last lines are shown of one that failed.
const SHOWN: usize = 40;

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Well,
    Badly(String),
    /// Its time was over, and it was killed.
    Late,
}

/// Runs a command until its end, or until its time is over; what it says is added to a file.
pub(super) fn run(command: &[String], log: &Path, until: Option<Instant>) -> Result<Ended, String> {
    let (program, args) = command.split_first().ok_or("there is no command")?;
    let output = File::options().create(true).append(true).open(log);
    let output = output.map_err(|error| format!("{}: {error}", log.display()))?;
    let errors = output.try_clone().map_err(|error| error.to_string())?;
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn();
    let mut child = child.map_err(|error| format!("{program} cannot be run: {error}"))?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(Ended::Well),
            Ok(Some(status)) => return Ok(Ended::Badly(status.to_string())),
            Err(error) => return Err(format!("{program}: {error}")),
            Ok(None) if until.is_some_and(|until| Instant::now() >= until) => {
                end(&mut child);
                return Ok(Ended::Late);
            }
            Ok(None) => thread::sleep(LOOK),
        }
    }
}

/// The last lines that were said.
pub(super) fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

/// Kills a command with all that it started, but for shells: those that watch a server, or a container, clean up and end
/// when who started them is gone.
fn end(child: &mut Child) {
    let all = descendants(child.id());
    let killed = Command::new("kill")
        .arg("-KILL")
        .args(all.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status();
    if !killed.is_ok_and(|status| status.success()) {
        // One that has ended already is an error there, and the others are killed nonetheless.
        let _ = child.kill();
    }
    let _ = child.wait();
}

/// A process, and what it has started, directly or not.
fn descendants(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<(u32, bool)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let stat = fs::read_to_string(entry.path().join("stat"));
        if let (Some(pid), Ok(stat)) = (pid, stat)
            && let Some((name, rest)) = stat.rsplit_once(") ")
            && let Some(parent) = rest.split(' ').nth(1).and_then(|it| it.parse().ok())
        {
            let is_shell = name.ends_with("(sh");
            children.entry(parent).or_default().push((pid, is_shell));
        }
    }
    let (mut found, mut wanted) = (vec![pid], vec![pid]);
    while let Some(parent) = wanted.pop() {
        for (pid, is_shell) in children.remove(&parent).unwrap_or_default() {
            wanted.push(pid);
            if !is_shell {
                found.push(pid);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn how_a_command_ends_and_what_it_says() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(run(&command("echo one"), &log, None), Ok(Ended::Well));
        let failed = run(&command("echo two >&2; exit 3"), &log, None).unwrap();
        assert!(
            matches!(&failed, Ended::Badly(how) if how.contains('3')),
            "{failed:?}"
        );
        assert_eq!(last_lines(&log), "one\ntwo");
        assert!(run(&["/nothing/here".to_owned()], &log, None).is_err());
    }

    #[test]
    fn what_is_late_ends_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let until = Instant::now() + Duration::from_secs(1);
        let script = "sleep 1000 & echo $!; sh -c 'sleep 1000 & echo $!; wait' & wait";
        assert_eq!(run(&command(script), &log, Some(until)), Ok(Ended::Late));
        assert!(until.elapsed() < Duration::from_secs(60));
        let said = last_lines(&log);
        let pids: Vec<&str> = said.lines().collect();
        assert_eq!(pids.len(), 2, "{said}");
        for pid in pids {
            let end = Instant::now() + Duration::from_secs(60);
            // An orphan that is dead may wait for somebody to look at it.
            while fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
            {
                assert!(Instant::now() < end, "{pid} runs still");
                thread::sleep(LOOK);
            }
        }
    }
}
