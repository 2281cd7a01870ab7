//! Steps, and how long each took.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::builds::root;

/// Of the steps before this program: a line for each, with the seconds that it took, a tab and its name.
const BEFORE: &str = "LOCKKEEPER_CI_BEFORE";

/// How often a step that still runs is told.
const STILL: Duration = Duration::from_secs(60);

/// What was run, and how long it took.
#[derive(Debug)]
pub(crate) struct Times {
    since: Instant,
    steps: Mutex<Vec<Step>>,
    running: Mutex<Vec<(String, Instant)>>,
}

/// A step that is done.
#[derive(Debug, Clone, Serialize)]
struct Step {
    /// The server that it ran on, or what kind of step it is.
    place: String,
    name: String,
    /// When it began; `None` of a step before this program.
    at_s: Option<f64>,
    wall_s: f64,
    /// Of its process and the children that it has waited for, where the system tells.
    cpu_s: Option<f64>,
    /// Of the server, meanwhile.
    server_cpu_s: Option<f64>,
    passed: bool,
    /// The last words of its test programs.
    results: Vec<String>,
}

/// What is written for programs.
#[derive(Serialize)]
struct Report<'a> {
    wall_s: f64,
    steps: &'a [Step],
}

impl Times {
    /// Starts the clock, after the steps that the environment tells.
    pub(crate) fn begin() -> Self {
        let before = std::env::var(BEFORE).unwrap_or_default();
        Self::after(&fs::read_to_string(before).unwrap_or_default())
    }

    /// Starts the clock after these steps.
    fn after(before: &str) -> Self {
        Self {
            since: Instant::now(),
            steps: Mutex::new(before.lines().filter_map(Step::before).collect()),
            running: Mutex::default(),
        }
    }

    /// Runs something here, as a step.
    pub(crate) fn time<T>(
        &self,
        place: &str,
        name: &str,
        run: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let began = Instant::now();
        let done = self.watched(&format!("{place}: {name}"), run);
        self.note(Step {
            passed: done.is_ok(),
            ..self.step(place, name, began)
        });
        done
    }

    /// Runs a program as a step; what it says is printed when it has ended, of passed tests only the last words. One with
    /// tests fails if it runs none of them.
    pub(crate) fn run(
        &self,
        place: &str,
        name: &str,
        command: &mut Command,
        server: Option<u32>,
        with_tests: bool,
    ) -> Result<(), String> {
        let log = log(place, name)?;
        let output = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let began = Instant::now();
        let server_before = server.and_then(processor_time);
        let ended = self.watched(&format!("{place}: {name}"), || {
            let errors = output.try_clone().map_err(|error| error.to_string())?;
            let child = command
                .stdin(Stdio::null())
                .stdout(output)
                .stderr(errors)
                .spawn();
            child
                .and_then(ended)
                .map_err(|error| format!("{command:?} cannot be run: {error}"))
        });
        let said = fs::read(&log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let (status, cpu) = match ended {
            Ok((status, cpu)) => (Ok(status), cpu),
            Err(error) => (Err(error), None),
        };
        let results = results(&said);
        let status = match status {
            Ok(status) if status.success() && with_tests && ran_none(&results) => {
                Err("no test was run".to_owned())
            }
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(status.to_string()),
            Err(error) => Err(error),
        };
        let passed = status.is_ok();
        let step = Step {
            cpu_s: cpu.map(|it| it.as_secs_f64()),
            server_cpu_s: server
                .and_then(processor_time)
                .zip(server_before)
                .map(|(after, before)| after.saturating_sub(before).as_secs_f64()),
            passed,
            results,
            ..self.step(place, name, began)
        };
        let shown = if passed {
            shortened(&said)
        } else {
            said.to_string()
        };
        println!(
            "\n+ {place}: {name} ({:.1} s)\n{}",
            step.wall_s,
            shown.trim_end()
        );
        self.note(step);
        status.map_err(|error| format!("{place}: {name}: {error}\n{}", failures(&said)))
    }

    fn step(&self, place: &str, name: &str, began: Instant) -> Step {
        Step {
            place: place.to_owned(),
            name: name.to_owned(),
            at_s: Some(began.duration_since(self.since).as_secs_f64()),
            wall_s: began.elapsed().as_secs_f64(),
            cpu_s: None,
            server_cpu_s: None,
            passed: true,
            results: Vec::new(),
        }
    }

    fn note(&self, step: Step) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(step);
    }

    fn watched<T>(&self, name: &str, run: impl FnOnce() -> T) -> T {
        let running = || self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running().push((name.to_owned(), Instant::now()));
        let done = run();
        running().retain(|(running, _)| running != name);
        done
    }

    /// Says every minute what still runs, until it is told to stop by the other end.
    pub(crate) fn tell(&self, stop: &std::sync::mpsc::Receiver<()>) {
        while stop.recv_timeout(STILL) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let running: Vec<String> = running
                .iter()
                .map(|(name, since)| format!("{name} ({:.0} s)", since.elapsed().as_secs_f64()))
                .collect();
            let now = self.since.elapsed().as_secs_f64();
            println!("{now:.0} s: still running: {}", running.join(", "));
        }
    }

    /// Prints the table and writes it as JSON; the last words of every test program go before it.
    pub(crate) fn report(&self) {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        println!("\n{}", table(&steps, self.since.elapsed()));
        let report = Report {
            wall_s: self.since.elapsed().as_secs_f64(),
            steps: &steps,
        };
        let file = folder().join("times.json");
        let written = serde_json::to_vec_pretty(&report)
            .map_err(|error| error.to_string())
            .and_then(|json| fs::write(&file, json).map_err(|error| error.to_string()));
        match written {
            Ok(()) => println!("These times are in {}.", file.display()),
            Err(error) => eprintln!("{}: {error}", file.display()),
        }
    }
}

impl Step {
    fn before(line: &str) -> Option<Self> {
        let (seconds, name) = line.split_once('\t')?;
        Some(Self {
            place: "before".to_owned(),
            name: name.to_owned(),
            at_s: None,
            wall_s: seconds.parse().ok()?,
            cpu_s: None,
            server_cpu_s: None,
            passed: true,
            results: Vec::new(),
        })
    }
}

/// The last words of every test program, then every step with its time.
fn table(steps: &[Step], all: Duration) -> String {
    let mut text = String::new();
    let width = |of: fn(&Step) -> &str| steps.iter().map(|step| of(step).len()).max().unwrap_or(0);
    let (places, names) = (width(|step| &step.place), width(|step| &step.name));
    // Writing to a string does not fail.
    for step in steps {
        for result in &step.results {
            let _ = writeln!(text, "{}: {}: {result}", step.place, step.name);
        }
    }
    let _ = writeln!(
        text,
        "\n{:>8} {:>8} {:>8} {:>8}  {:places$}  step",
        "at s", "wall s", "CPU s", "server s", "on"
    );
    let shown = |seconds: Option<f64>| seconds.map_or(String::new(), |it| format!("{it:.1}"));
    for step in steps {
        let _ = writeln!(
            text,
            "{:>8} {:>8.1} {:>8} {:>8}  {:places$}  {:names$}{}",
            shown(step.at_s),
            step.wall_s,
            shown(step.cpu_s),
            shown(step.server_cpu_s),
            step.place,
            step.name,
            if step.passed { "" } else { "  FAILED" },
        );
    }
    let sum = |of: fn(&Step) -> Option<f64>| {
        let times = steps.iter().filter_map(of);
        times.fold(0.0, |sum, time| sum + time)
    };
    let before = sum(|step| step.at_s.is_none().then_some(step.wall_s));
    let _ = write!(
        text,
        "{:>8} {:>8.1} {:>8.1} {:>8.1}  all of it",
        "",
        before + all.as_secs_f64(),
        sum(|step| step.cpu_s),
        sum(|step| step.server_cpu_s),
    );
    text
}

/// The lines with which test programs end.
fn results(said: &str) -> Vec<String> {
    let lines = said
        .lines()
        .filter(|line| line.starts_with("test result: "));
    lines.map(str::to_owned).collect()
}

fn ran_none(results: &[String]) -> bool {
    results.iter().all(|line| line.contains(" 0 passed;"))
}

/// What was said, without the tests that passed.
fn shortened(said: &str) -> String {
    let passed = |line: &&str| line.starts_with("test ") && line.ends_with("... ok");
    let kept: Vec<&str> = said.lines().filter(|line| !passed(line)).collect();
    let mut kept = kept.join("\n");
    while kept.contains("\n\n\n") {
        kept = kept.replace("\n\n\n", "\n\n");
    }
    kept
}

/// What a failed program said of its failures, short enough to be said once more at the end of everything.
fn failures(said: &str) -> String {
    const LINES: usize = 60;
    let frame = |line: &&str| {
        let line = line.trim_start();
        let (number, _) = line.split_once(": ").unwrap_or_default();
        line.starts_with("at ")
            || !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit())
    };
    let lines: Vec<&str> = said.lines().filter(|line| !frame(line)).collect();
    let told = lines.iter().position(|line| *line == "failures:");
    let first = told.unwrap_or(lines.len().saturating_sub(LINES));
    let last = lines.len().min(first + LINES);
    lines[first..last].join("\n")
}

/// Where times and logs are.
fn folder() -> PathBuf {
    root().join("target/xtask")
}

/// The file with what a step says.
fn log(place: &str, name: &str) -> Result<PathBuf, String> {
    let folder = folder().join("logs");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let name: String = format!("{place} {name}")
        .chars()
        .map(|it| {
            if it.is_alphanumeric() || "-.".contains(it) {
                it
            } else {
                '_'
            }
        })
        .collect();
    Ok(folder.join(name).with_extension("log"))
}

/// Waits for a program; the time of the processor that it took is known until it is forgotten.
fn ended(mut child: Child) -> std::io::Result<(ExitStatus, Option<Duration>)> {
    #[cfg(target_os = "linux")]
    let time = {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let pid = rustix::process::Pid::from_child(&child);
        let gone = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), gone).is_err_and(|error| error == rustix::io::Errno::INTR) {}
        processor_time(child.id())
    };
    #[cfg(not(target_os = "linux"))]
    let time = None;
    Ok((child.wait()?, time))
}

/// What a process and the children that it has waited for took of the processors; `None` where the system does not
/// tell.
fn processor_time(pid: u32) -> Option<Duration> {
    let line = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The program's name may have blanks and brackets in it.
    let (_, fields) = line.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(4);
    let ticks: u64 = times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    let each = Duration::from_secs(1)
        .checked_div(u32::try_from(rustix::param::clock_ticks_per_second()).ok()?)?;
    each.checked_mul(u32::try_from(ticks).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_passed_the_last_words_are_shown() {
        let said = "running 2 tests\ntest a::b ... ok\ntest c   ... ok\n\n\nleft out: d\n\
                    test result: ok. 2 passed; 0 failed\n";
        assert_eq!(
            shortened(said),
            "running 2 tests\n\nleft out: d\ntest result: ok. 2 passed; 0 failed"
        );
        assert_eq!(results(said), ["test result: ok. 2 passed; 0 failed"]);
        let failed = "test a ... FAILED";
        assert_eq!(shortened(failed), failed);
    }

    #[test]
    fn a_failure_is_told_without_its_frames() {
        let said = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nleft: 1\n  0: main\n     at main.rs:1\n\
                    test result: FAILED";
        let told = "failures:\n\n---- a stdout ----\nleft: 1\ntest result: FAILED";
        assert_eq!(failures(said), told);
        let long = "line\n".repeat(1000) + "the last one";
        assert_eq!(failures(&long).lines().count(), 60);
        assert!(failures(&long).ends_with("the last one"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_step_has_its_times_and_its_result() {
        let times = Times::after("");
        let mut busy = Command::new("sh");
        busy.args([
            "-c",
            "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo test result: ok. 1 passed",
        ]);
        times.run("test", "busy", &mut busy, None, true).unwrap();
        let mut failing = Command::new("sh");
        failing.args(["-c", "exit 3"]);
        let error = times
            .run("test", "failing", &mut failing, None, false)
            .unwrap_err();
        assert!(error.contains("exit status: 3"), "{error}");
        let missing = times.run(
            "test",
            "missing",
            &mut Command::new("/nonexistent"),
            None,
            true,
        );
        assert!(missing.unwrap_err().contains("cannot be run"));
        let mut empty = Command::new("echo");
        empty.arg("test result: ok. 0 passed; 0 failed");
        let nothing = times.run("test", "empty", &mut empty, None, true);
        assert!(nothing.unwrap_err().contains("no test was run"));
        times.run("test", "empty", &mut empty, None, false).unwrap();
        let steps = times.steps.lock().unwrap();
        let [busy, failing, missing, empty, _] = &steps[..] else {
            panic!("{steps:?}")
        };
        assert!(busy.passed && !failing.passed && !missing.passed && !empty.passed);
        assert_eq!(busy.results, ["test result: ok. 1 passed"]);
        let cpu = busy.cpu_s.unwrap();
        assert!(cpu > 0.02 && cpu < busy.wall_s + 0.05, "{busy:?}");
        let table = table(&steps, Duration::from_secs(5));
        assert!(
            table.contains("test: busy: test result: ok. 1 passed"),
            "{table}"
        );
        assert!(table.contains("failing  FAILED"), "{table}");
        assert!(table.contains("5.0"), "{table}");
    }

    #[test]
    fn a_line_of_a_step_before_is_read() {
        let step = Step::before("12.5\tcargo fmt --all --check").unwrap();
        assert!(step.passed && step.at_s.is_none());
        assert_eq!(
            (step.name.as_str(), step.wall_s),
            ("cargo fmt --all --check", 12.5)
        );
        assert!(Step::before("nothing").is_none());
    }
}
