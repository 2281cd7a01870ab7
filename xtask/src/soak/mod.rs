//! `cargo xtask soak`: what takes hours, and is run on purpose.

mod child;
pub(crate) mod faults;
mod parts;
mod schedule;
mod state;

use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper_servers::etcd;
use serde::Serialize;

use crate::builds::root;
use child::Ended;
use parts::{Part, Work};
use schedule::Wish;
use state::{Done, Outcome, State};

/// Without a limit, a part that takes so many times what it can use hangs.
const HANGS: u32 = 3;

/// Runs the parts of a soak, as many as fit into so many minutes, or all; only those whose names begin so, where some are
/// named.
pub(crate) fn run(minutes: Option<u64>, only: &[String], list: bool) -> Result<(), String> {
    let xtask = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut parts = parts::all(&xtask.display().to_string());
    for only in only {
        if !parts.iter().any(|part| part.name.starts_with(&**only)) {
            return Err(format!("no part begins with {only:?}; --list shows all"));
        }
    }
    parts.retain(|part| only.is_empty() || only.iter().any(|only| part.name.starts_with(&**only)));
    let folder = root().join("target/soak");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let state = State::read(&folder.join("state.json"), &commit()?)?;
    let begin = Instant::now();
    let mut soak = Soak {
        state,
        begin,
        until: minutes.map(|minutes| begin + Duration::from_secs(60 * minutes)),
        folder,
        rows: Vec::new(),
    };
    if !list {
        etcd::protoc()?;
        soak.run(parts)?;
        return soak.report();
    }
    for part in parts {
        let known = soak.state.parts.get(&part.name);
        let done = known.and_then(|known| known.done.as_ref());
        let done = done.map_or("not run".to_owned(), |done| text(&done.outcome));
        let [least, full] = [part.least, part.full].map(|time| time.as_secs().div_ceil(60));
        println!(
            "{}: {least} to {full} minutes; on this commit: {done}",
            part.name
        );
    }
    Ok(())
}

/// The commit, and what is changed of it but for what a soak writes itself.
fn commit() -> Result<String, String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let own = faults::WRITTEN.map(|file| format!(":!{file}"));
    let diff = [
        &["diff", "HEAD", "--", "."][..],
        &own.each_ref().map(|it| &**it),
    ]
    .concat();
    let changed = git(&diff)?;
    if changed.is_empty() {
        return Ok(commit);
    }
    let mut hasher = DefaultHasher::new();
    changed.hash(&mut hasher);
    Ok(format!("{commit}-changed-{:016x}", hasher.finish()))
}

fn git(args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(root()).output();
    let output = output.map_err(|error| format!("git cannot be run: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// A soak that goes on.
struct Soak {
    state: State,
    begin: Instant,
    until: Option<Instant>,
    /// Where the state, the logs and the result are.
    folder: PathBuf,
    rows: Vec<Row>,
}

/// A part in the result.
#[derive(Debug, Serialize)]
struct Row {
    part: String,
    ran: String,
    outcome: Outcome,
    minutes: f64,
    /// It ran before this soak, on the same commit.
    before: bool,
}

/// What came of the commands of a part.
struct Ran {
    what: String,
    outcome: Outcome,
    whole: bool,
}

impl Soak {
    /// Runs what fits, until nothing is left that does.
    fn run(&mut self, mut parts: Vec<Part>) -> Result<(), String> {
        if parts.iter().all(|part| self.state.is_complete(&part.name)) {
            println!(
                "everything was done on {}: it begins anew",
                self.state.commit
            );
            for part in &parts {
                self.state.of(&part.name).begin_anew();
            }
        }
        parts.retain(|part| {
            let complete = self.state.is_complete(&part.name);
            let known = self.state.parts.get(&part.name);
            if let Some(done) = known.and_then(|known| known.done.clone())
                && complete
            {
                self.row(&part.name, done, true);
            }
            !complete
        });
        parts.retain(|part| match &part.missing {
            None => true,
            Some(why) => {
                let outcome = Outcome::NotRun(why.clone());
                self.note(&part.name, String::new(), outcome, false, Duration::ZERO);
                false
            }
        });
        while let Some((at, share)) = schedule::next(&self.wishes(&parts), self.left()) {
            let part = parts.remove(at);
            let start = Instant::now();
            println!(
                "{}: {} min of this soak, output in {}",
                part.name,
                share.as_secs().div_ceil(60),
                self.log(&part).display()
            );
            let ran = self.run_part(&part, share)?;
            let took = start.elapsed();
            if let Outcome::Failed(how) = &ran.outcome {
                println!(
                    "{}\n{}: FAILED: {how}",
                    child::last_lines(&self.log(&part)),
                    part.name
                );
            }
            self.note(&part.name, ran.what, ran.outcome, ran.whole, took);
            self.state.keep()?;
        }
        for part in parts {
            let outcome =
                Outcome::NotRun("no time, it is among the first the next time".to_owned());
            // It is not noted: it ran as long ago as before.
            let done = Done {
                ran: String::new(),
                outcome,
                whole: false,
                minutes: 0.0,
            };
            self.row(&part.name, done, false);
        }
        self.state.keep()
    }

    fn left(&self) -> Option<Duration> {
        let until = self.until?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    fn wishes(&mut self, parts: &[Part]) -> Vec<Wish> {
        let wish = |part: &Part| {
            let known = self.state.of(&part.name);
            let took = known
                .took_minutes
                .map(|it| Duration::from_secs_f64(it * 60.0));
            let took = took.filter(|_| matches!(part.work, Work::Fixed(_)));
            Wish {
                least: took.unwrap_or(part.least),
                full: took.unwrap_or(part.full),
                last: known.last,
            }
        };
        parts.iter().map(wish).collect()
    }

    fn log(&self, part: &Part) -> PathBuf {
        let name = part.name.replace([' ', ','], "-");
        self.folder.join(name).with_extension("log")
    }

    /// Runs a part's commands. It may take longer than its share, but not longer than the soak.
    fn run_part(&mut self, part: &Part, share: Duration) -> Result<Ran, String> {
        let log = self.log(part);
        let _ = fs::remove_file(&log);
        let until = self.until;
        if !part.build.is_empty() {
            match child::run(&part.build, &log, until)? {
                Ended::Well => {}
                ended => return Ok(Ran::so_far(&part.build, ended, until)),
            }
        }
        // The build may have taken what it was to have.
        let share = self.left().map_or(share, |left| share.min(left));
        let end = until.unwrap_or_else(|| Instant::now() + part.full * HANGS);
        let commands = match &part.work {
            Work::Steps(count, command) => return self.steps(part, *count, command, share, end),
            Work::Fixed(commands) => commands.clone(),
            Work::Timed(_) if share < part.least => {
                let nothing = "built, and then too little time was left".to_owned();
                return Ok(Ran {
                    what: shown(&part.build),
                    outcome: Outcome::NotRun(nothing),
                    whole: false,
                });
            }
            Work::Timed(commands) => commands(share),
        };
        for command in &commands {
            match child::run(command, &log, Some(end))? {
                Ended::Well => {}
                ended => return Ok(Ran::so_far(command, ended, until)),
            }
        }
        let what: Vec<String> = commands.iter().map(|it| shown(it)).collect();
        Ok(Ran {
            what: what.join("; "),
            outcome: Outcome::Passed,
            whole: matches!(part.work, Work::Fixed(_)) || share >= part.full,
        })
    }

    /// Runs the steps that are not done yet, while there is time for another one.
    fn steps(
        &mut self,
        part: &Part,
        count: u64,
        command: &dyn Fn(u64) -> Vec<String>,
        share: Duration,
        end: Instant,
    ) -> Result<Ran, String> {
        let log = self.log(part);
        let first = self.state.of(&part.name).steps;
        let (start, mut last) = (Instant::now(), Duration::ZERO);
        let mut at = first;
        while at < count && (self.until.is_none() || start.elapsed() + last <= share) {
            let step = Instant::now();
            let command = command(at);
            match child::run(&command, &log, Some(end))? {
                Ended::Well => {}
                ended => return Ok(Ran::so_far(&command, ended, self.until)),
            }
            at += 1;
            last = step.elapsed();
            self.state.of(&part.name).steps = at;
            self.state.keep()?;
        }
        let last_one = shown(&command(at.saturating_sub(1)));
        Ok(Ran {
            what: format!(
                "steps {} to {at} of {count}, the last one {last_one}",
                first + 1
            ),
            outcome: Outcome::Passed,
            whole: at == count,
        })
    }

    /// Notes what came of a part, in the state and for the result.
    fn note(&mut self, part: &str, ran: String, outcome: Outcome, whole: bool, took: Duration) {
        let minutes = took.as_secs_f64() / 60.0;
        let known = self.state.of(part);
        // What could not run is not behind the others the next time.
        if !matches!(outcome, Outcome::NotRun(_)) {
            known.last = Some(now());
        }
        match outcome {
            Outcome::Passed if whole => known.took_minutes = Some(minutes),
            // It takes longer than that.
            Outcome::NotFinished => known.took_minutes = Some(minutes * 1.5),
            _ => {}
        }
        let done = Done {
            ran,
            outcome,
            whole,
            minutes,
        };
        known.done = Some(done.clone());
        self.row(part, done, false);
    }

    fn row(&mut self, part: &str, done: Done, before: bool) {
        self.rows.push(Row {
            part: part.to_owned(),
            ran: done.ran,
            outcome: done.outcome,
            minutes: done.minutes,
            before,
        });
    }

    /// Prints the result, keeps it as JSON, and fails if a part did.
    fn report(&self) -> Result<(), String> {
        let table = self.table();
        print!("{table}");
        let result = serde_json::json!({
            "commit": self.state.commit,
            "minutes": self.begin.elapsed().as_secs_f64() / 60.0,
            "parts": self.rows,
        });
        let file = self.folder.join("result.json");
        let json = serde_json::to_vec_pretty(&result).map_err(|error| error.to_string())?;
        fs::write(&file, json).map_err(|error| format!("{}: {error}", file.display()))?;
        println!("{}", file.display());
        let failed: Vec<&str> = self
            .rows
            .iter()
            .filter(|row| matches!(row.outcome, Outcome::Failed(_)))
            .map(|row| &*row.part)
            .collect();
        if failed.is_empty() {
            Ok(())
        } else {
            Err(format!("failed: {}", failed.join("; ")))
        }
    }

    fn table(&self) -> String {
        let minutes = self.begin.elapsed().as_secs_f64() / 60.0;
        let commit = &self.state.commit;
        let mut table = format!(
            "{commit}, {minutes:.1} minutes\n\n| part | what ran | outcome | minutes |\n|---|---|---|---|\n"
        );
        for row in &self.rows {
            let before = if row.before { ", before this soak" } else { "" };
            let outcome = text(&row.outcome);
            let (part, ran, minutes) = (&row.part, &row.ran, row.minutes);
            let _ = writeln!(
                table,
                "| {part} | {ran} | {outcome}{before} | {minutes:.1} |"
            );
        }
        table
    }
}

impl Ran {
    /// Of a part whose command did not end well.
    fn so_far(command: &[String], ended: Ended, until: Option<Instant>) -> Self {
        let outcome = match ended {
            Ended::Badly(how) => Outcome::Failed(how),
            // Within a limit the end is the soak's; without one it is long overdue.
            Ended::Late if until.is_none() => Outcome::Failed("it hangs".to_owned()),
            Ended::Late | Ended::Well => Outcome::NotFinished,
        };
        Self {
            what: shown(command),
            outcome,
            whole: false,
        }
    }
}

fn text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed => "passed".to_owned(),
        Outcome::Failed(how) => format!("**failed**: {how}"),
        Outcome::NotFinished => "not finished".to_owned(),
        Outcome::NotRun(why) => format!("not run: {why}"),
    }
}

/// A command as a reader would type it.
fn shown(command: &[String]) -> String {
    let mut words = command.iter().map(String::as_str);
    let program = words.next().unwrap_or_default();
    let program = match Path::new(program).file_name() {
        Some(name) if name == "xtask" => "cargo xtask",
        _ => program,
    };
    [program]
        .into_iter()
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the next soak compares it with its own clock"
)]
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, script: &str, least: Duration) -> Part {
        Part {
            name: name.to_owned(),
            build: Vec::new(),
            least,
            full: least,
            work: Work::Fixed(vec![script_of(script)]),
            missing: None,
        }
    }

    fn script_of(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    fn soak(folder: &Path, commit: &str, time: Option<Duration>) -> Soak {
        let begin = Instant::now();
        Soak {
            state: State::read(&folder.join("state.json"), commit).unwrap(),
            begin,
            until: time.map(|time| begin + time),
            folder: folder.to_owned(),
            rows: Vec::new(),
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_fails_fails_the_soak_and_what_cannot_run_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let passes = format!("echo run >> {}", count.display());
        let parts = || {
            let mut without = part("without its tool", "exit 1", SECOND);
            without.missing = Some("no tool".to_owned());
            vec![
                part("passes", &passes, SECOND),
                part("fails", "echo told; exit 3", SECOND),
                without,
                part("too long", "exit 1", HOUR * 2),
            ]
        };
        let mut first = soak(folder.path(), "one", Some(HOUR));
        first.run(parts()).unwrap();
        assert_eq!(first.report(), Err("failed: fails".to_owned()));
        let table = first.table();
        for cells in [
            "| without its tool |  | not run: no tool | 0.0 |",
            "| too long |  | not run: no time",
            " | passed | 0.0 |",
            " | **failed**: exit status: 3 |",
        ] {
            assert!(table.contains(cells), "{cells}: {table}");
        }
        let json = fs::read(folder.path().join("result.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["parts"].as_array().map(Vec::len), Some(4));

        // What passed is not run again on this commit, what failed is.
        let mut second = soak(folder.path(), "one", Some(HOUR));
        second.run(parts()).unwrap();
        assert!(second.table().contains("passed, before this soak"));
        assert!(second.report().is_err());
        assert_eq!(fs::read_to_string(&count).unwrap(), "run\n");
        let mut other = soak(folder.path(), "two", Some(HOUR));
        other.run(parts()).unwrap();
        assert_eq!(fs::read_to_string(&count).unwrap(), "run\nrun\n");

        // When all is done, it begins anew.
        let done = || vec![part("passes", &passes, SECOND)];
        let mut third = soak(folder.path(), "two", None);
        third.run(done()).unwrap();
        third.report().unwrap();
        assert_eq!(fs::read_to_string(&count).unwrap(), "run\nrun\nrun\n");
    }

    #[test]
    fn steps_go_on_where_they_ended() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("steps");
        let path = log.display().to_string();
        let steps = || {
            let path = path.clone();
            // The third fails the first time.
            let step = move |at: u64| {
                script_of(&format!("echo {at} >> {path}; [ $(wc -l < {path}) != 3 ]"))
            };
            Part {
                work: Work::Steps(5, Box::new(step)),
                ..part("steps", "", SECOND)
            }
        };
        let mut first = soak(folder.path(), "one", None);
        first.run(vec![steps()]).unwrap();
        assert!(first.report().is_err());
        let mut second = soak(folder.path(), "one", None);
        second.run(vec![steps()]).unwrap();
        second.report().unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "0\n1\n2\n2\n3\n4\n");
        assert!(second.state.is_complete("steps"));
    }

    #[test]
    fn the_soak_ends_in_time_and_what_it_ends_did_not_pass() {
        let folder = tempfile::tempdir().unwrap();
        let mut soak = soak(folder.path(), "one", Some(SECOND * 2));
        let parts = vec![
            part("long", "sleep 1000", SECOND),
            part("late", "true", SECOND),
        ];
        soak.run(parts).unwrap();
        soak.report().unwrap();
        assert!(soak.begin.elapsed() < SECOND * 60);
        let outcomes: Vec<&Outcome> = soak.rows.iter().map(|row| &row.outcome).collect();
        assert!(
            matches!(outcomes[..], [Outcome::NotFinished, Outcome::NotRun(_)]),
            "{outcomes:?}"
        );
    }

    #[test]
    fn the_parts_have_names_of_their_own_and_fit() {
        let parts = parts::all("/nothing/here");
        let mut names: Vec<&str> = parts.iter().map(|part| &*part.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for part in &parts {
            assert!(part.least <= part.full, "{}", part.name);
        }
        for wanted in [
            "kit elasticsearch-7",
            "trial redis",
            "cluster etcd",
            "mutants redis",
        ] {
            assert!(names.contains(&wanted), "{wanted}: {names:?}");
        }
    }
}
