//! Runs of each kind of fault on each store, and the sums of what they counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockcore_conformance::Law;
use lockkeeper_servers::faults::{Cell, Kind, LOSSES, Record, STORES, TABLE, percentile};
use serde::{Deserialize, Serialize};

use crate::builds::root;
use crate::stores::Store;
use crate::trial;

/// The sums, a line for each store and kind of fault. They are committed, so that another machine goes on.
const SUMS: &str = "docs/soak.jsonl";
/// Written from the sums.
const REPORT: &str = "docs/soak.md";
/// What a soak writes in the repository.
pub(super) const WRITTEN: [&str; 3] = [SUMS, REPORT, PROMISES];
/// How long one run takes, if nobody says how long.
const RUN: Duration = Duration::from_secs(40);
/// So many events of each law, and so many faults of each kind, prove something.
const JUDGED: u64 = 1_000;
const FAULTS: u64 = 30;

/// The kind whose takeovers are measured.
const KILL: &str = "kill";

/// What the runs are to be.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) store: Option<&'static Store>,
    pub(crate) fault: Option<&'static Kind>,
    pub(crate) seed: Option<u64>,
    pub(crate) minutes: Option<u64>,
}

/// A line of the sums.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    store: String,
    fault: String,
    #[serde(flatten)]
    record: Record,
}

/// The sums, by store and kind of fault.
type Sums = BTreeMap<(String, String), Record>;

/// Runs one kind of fault on one store, or each of those that are made, first those with few faults, then those that have
/// run least; as many as there is time for. Adds what they counted to the sums.
pub(crate) fn run(asked: &Asked) -> Result<(), String> {
    let begun = Instant::now();
    let limit = asked
        .minutes
        .map(|minutes| Duration::from_secs(60 * minutes));
    let mut sums = read()?;
    let mut cells = cells(asked)?;
    let ran = |sums: &Sums, (store, kind): &(&Store, &Kind)| {
        let key = (store.name.to_owned(), kind.name.to_owned());
        let none = Record::default();
        let record = sums.get(&key).unwrap_or(&none);
        let few = kind.faults.iter().any(|fault| record.met(fault) < FAULTS);
        (!few, record.seconds)
    };
    cells.sort_by_key(|cell| ran(&sums, cell));
    let length = match (&cells[..], limit) {
        ([_], Some(limit)) => limit,
        _ => RUN,
    };
    let mut failed = Vec::new();
    for (store, kind) in cells {
        if limit.is_some_and(|limit| begun.elapsed() + length > limit) && begun.elapsed() > RUN {
            break;
        }
        println!("{}, {}: {}", store.name, kind.name, kind.what);
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("record.json");
        let mut args = vec![
            "--fault".to_owned(),
            kind.name.to_owned(),
            "--seconds".to_owned(),
            length.as_secs().to_string(),
            "--record".to_owned(),
            file.display().to_string(),
        ];
        if let Some(seed) = asked.seed {
            args.extend(["--seed".to_owned(), seed.to_string()]);
        }
        let done = trial::run(store, &args);
        let record = match fs::read(&file) {
            Ok(json) => serde_json::from_slice(&json).map_err(|error| error.to_string())?,
            // It came to no end.
            Err(_) => Record {
                runs: 1,
                failed: 1,
                ..Record::default()
            },
        };
        let key = (store.name.to_owned(), kind.name.to_owned());
        let sum = sums.entry(key).or_default();
        sum.add_run(&record);
        if done.is_err() || sum.in_time() == Some(false) {
            failed.push(format!("{} {}", store.name, kind.name));
        }
        write(&sums)?;
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

fn cells(asked: &Asked) -> Result<Vec<(&'static Store, &'static Kind)>, String> {
    let mut cells = Vec::new();
    for name in STORES {
        let store = crate::stores::find(name)?;
        if asked.store.is_some_and(|wanted| wanted.name != name) {
            continue;
        }
        for kind in TABLE {
            let is_wanted = asked.fault.is_none_or(|wanted| wanted.name == kind.name);
            let cell = kind.cell(name).ok_or("the table has every store")?;
            match (asked.store, asked.fault, cell) {
                _ if !is_wanted => {}
                (_, _, cell) if cell.is_made() => cells.push((store, kind)),
                (Some(_), Some(_), Cell::Never(why) | Cell::NotMade(why)) => {
                    return Err(format!("{} is not made on {name}: {why}", kind.name));
                }
                (Some(_), Some(_), Cell::Elsewhere(test)) => {
                    return Err(format!("{} on {name} is made by {test}", kind.name));
                }
                (Some(_), Some(_), Cell::BreaksElsewhere(_, why)) => {
                    return Err(format!("no run makes {} on {name}: {why}", kind.name));
                }
                _ => {}
            }
        }
    }
    if cells.is_empty() {
        return Err("no store of the table has such a fault".to_owned());
    }
    Ok(cells)
}

fn file(name: &str) -> PathBuf {
    root().join(name)
}

fn read() -> Result<Sums, String> {
    match fs::read_to_string(file(SUMS)) {
        Ok(text) => parsed(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Sums::new()),
        Err(error) => Err(format!("{SUMS}: {error}")),
    }
}

fn parsed(text: &str) -> Result<Sums, String> {
    let line = |line: &str| {
        let Line {
            store,
            fault,
            record,
        } = serde_json::from_str(line).map_err(|error| format!("{SUMS}: {error}"))?;
        Ok(((store, fault), record))
    };
    text.lines().map(line).collect()
}

/// Writes the sums and the report, each in one step.
fn write(sums: &Sums) -> Result<(), String> {
    let mut text = String::new();
    for ((store, fault), record) in sums {
        let line = Line {
            store: store.clone(),
            fault: fault.clone(),
            record: record.clone(),
        };
        text += &serde_json::to_string(&line).map_err(|error| error.to_string())?;
        text.push('\n');
    }
    replace(&file(SUMS), &text)?;
    check(true)
}

fn replace(file: &Path, text: &str) -> Result<(), String> {
    let new = file.with_extension("new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, file));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// The report of the sums.
fn report(sums: &Sums) -> String {
    let mut text = String::from(
        "# Every fault on every store\n\n\
         `cargo xtask soak --store STORE --fault FAULT --seed N --minutes M` repeats one of these runs; `cargo xtask soak \
         --store STORE` continues with what has run least. Processes take locks, hand them on, die and recover meanwhile, \
         and a checker judges requests, answers and guards by each law; turns in line, and how soon who waits is \
         woken, only where nothing happens to servers and requests. The sums of all runs are in \
         `docs/soak.jsonl`, from which this page is written. A run whose law was broken, or that judged too little, counts as failed, also after the \
         defect is fixed.\n",
    );
    for store in STORES {
        one_store(store, sums, &mut text);
    }
    text
}

fn one_store(store: &str, sums: &Sums, text: &mut String) {
    let _ = write!(
        text,
        "\n## {store}\n\n| fault | what goes wrong | faults | runs | minutes | events | guards | adoptions | violations |\n\
         |---|---|---|---|---|---|---|---|---|\n"
    );
    let (mut all, mut others) = (Record::default(), String::new());
    for kind in TABLE {
        let Some(cell) = kind.cell(store) else {
            continue;
        };
        let why = match cell {
            Cell::Never(why) => format!("cannot happen: {why}"),
            Cell::Elsewhere(test) => format!("another test: {test}"),
            Cell::BreaksElsewhere(_, why) => why.to_owned(),
            Cell::NotMade(why) => format!("not made: {why}"),
            Cell::Holds | Cell::Breaks(_) => {
                let key = (store.to_owned(), kind.name.to_owned());
                let none = Record::default();
                let record = sums.get(&key).unwrap_or(&none);
                row(kind, record, text);
                all.add(record);
                continue;
            }
        };
        let _ = writeln!(others, "- `{}`: {why}", kind.name);
    }
    let excused: u64 = all.excused.values().sum();
    let _ = write!(
        text,
        "| all | | {} | {} ({} failed) | {} | {} | {} | {} | {} |\n\nNot in these runs:\n\n{others}",
        all.faults.values().sum::<u64>(),
        all.runs,
        all.failed,
        all.seconds.div_ceil(60),
        all.events,
        all.guards,
        all.adoptions,
        all.violations.values().sum::<u64>(),
    );
    takeovers(&all, text);
    for (law, count) in &all.violations {
        let _ = writeln!(text, "\nBroken: {law}, {count} times.");
    }
    if excused > 0 {
        text.push_str("\nBroken where the store does not promise it (of each law, the first 20 at least of each run):\n\n");
        for (law, count) in &all.excused {
            let _ = writeln!(text, "- {law}: {count}");
        }
    }
    let few: Vec<String> = Law::JUDGED
        .into_iter()
        .map(|law| law.to_string())
        .map(|law| (all.judged.get(&law).copied().unwrap_or(0), law))
        .filter(|(count, _)| *count < JUDGED)
        .map(|(count, law)| format!("{law} ({count})"))
        .collect();
    if all.runs > 0 && !few.is_empty() {
        let _ = writeln!(
            text,
            "\nLaws with fewer than {JUDGED} events, which these runs do not prove: {}.",
            few.join("; ")
        );
    }
}

fn takeovers(all: &Record, text: &mut String) {
    let kinds = [
        ("Takeovers of a killed client's locks", &all.takeovers_ms),
        (
            "Those behind a waiter that was killed, too",
            &all.takeovers_behind_ms,
        ),
    ];
    for (what, times) in kinds {
        let figures = [50, 99, 100].map(|percent| percentile(times, percent));
        let [Some(median), Some(most), Some(longest)] = figures else {
            continue;
        };
        let _ = writeln!(
            text,
            "\n{what}, from its last acknowledged renewal: {} of them, half within {median} ms, 99 in 100 within {most} \
             ms, all within {longest} ms.",
            times.len()
        );
    }
    let _ = match all.in_time() {
        Some(true) => writeln!(text, "\n99 in 100 of all these were within their limit."),
        Some(false) => writeln!(
            text,
            "\nBroken: {} takeovers were later than their limit, which is more than 1 in 100.",
            all.takeovers_late
        ),
        None => Ok(()),
    };
}

fn row(kind: &Kind, record: &Record, text: &mut String) {
    let made: Vec<String> = kind
        .faults
        .iter()
        .map(|fault| {
            let count = record.met(fault);
            let few = if count < FAULTS { " (few)" } else { "" };
            format!("{count} {fault}{few}")
        })
        .collect();
    let failed = match record.failed {
        0 => String::new(),
        failed => format!(" ({failed} failed)"),
    };
    let excused: u64 = record.excused.values().sum();
    let excused = match excused {
        0 => String::new(),
        count => format!(", {count} not promised"),
    };
    let _ = writeln!(
        text,
        "| `{}` | {} | {} | {}{failed} | {} | {} | {} | {} | {}{excused} |",
        kind.name,
        kind.what,
        made.join(", "),
        record.runs,
        record.seconds.div_ceil(60),
        record.events,
        record.guards,
        record.adoptions,
        record.violations.values().sum::<u64>(),
    );
}

/// The part of GUARANTEES.md that follows from the table.
const PROMISES: &str = "GUARANTEES.md";
const BEGIN: &str = "<!-- from servers/src/faults/table.rs, by `cargo xtask faults --save` -->\n";
const END: &str = "<!-- to here -->\n";

/// Compares what is written from the table and from the sums with what the files say, or writes it there.
pub(crate) fn check(save: bool) -> Result<(), String> {
    let sums = read()?;
    let read =
        |name: &str| fs::read_to_string(file(name)).map_err(|error| format!("{name}: {error}"));
    let before = read(PROMISES)?;
    for (name, before, now) in [
        (PROMISES, before.clone(), with_promises(&before, &sums)?),
        (REPORT, read(REPORT).unwrap_or_default(), report(&sums)),
    ] {
        if before == now {
            continue;
        }
        if !save {
            return Err(format!(
                "{name} is not what the table of faults says: `cargo xtask faults --save` writes it there"
            ));
        }
        replace(&file(name), &now)?;
    }
    Ok(())
}

/// The text with the table in its place.
fn with_promises(text: &str, sums: &Sums) -> Result<String, String> {
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or("GUARANTEES.md has no place for the table of faults")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", promises(sums)))
}

fn promises(sums: &Sums) -> String {
    let mut text = String::from(
        "| fault | SQLite | Redis, Valkey | PostgreSQL | etcd | Elasticsearch, OpenSearch |\n|---|---|---|---|---|---|\n",
    );
    for kind in TABLE {
        let cells = kind.cells.iter().zip(STORES).map(|(cell, store)| {
            let sum = sums.get(&(store.to_owned(), kind.name.to_owned()));
            let is_fast = |sum: &Record| kind.name != KILL || sum.in_time() == Some(true);
            let passed = |sum: &Record| sum.passed(kind.laws()) && is_fast(sum);
            let counted = match sum.is_some_and(passed) {
                true => "",
                false => " \\*",
            };
            match cell {
                Cell::Holds if sum.is_some_and(|sum| sum.in_time() == Some(false)) => {
                    "all hold, and more than 1 in 100 takeovers were late".to_owned()
                }
                Cell::Holds => format!("all hold{counted}"),
                Cell::Breaks(loss) => format!("{}{counted}", loss.what),
                Cell::Elsewhere(_) => "all hold †".to_owned(),
                Cell::BreaksElsewhere(loss, _) => format!("{} †", loss.what),
                Cell::Never(_) => "–".to_owned(),
                Cell::NotMade(_) => "not tested".to_owned(),
            }
        });
        let cells: Vec<String> = cells.collect();
        let _ = writeln!(text, "| {} | {} |", kind.what, cells.join(" | "));
    }
    if text.contains("\\*") {
        text.push_str(
            "\n\\* No run that passed, after the last one that failed, was judged by all laws of today, or fewer than 100 takeovers were measured. Those of `docs/soak.md`, earlier ones and tests of the store say so.\n",
        );
    }
    text.push_str(
        "\n† No run of the soak makes it. `docs/soak.md` names the test that does, or says that none does.\n",
    );
    for loss in LOSSES {
        let mut laws: Vec<&str> = loss.laws.iter().map(|law| law.as_str()).collect();
        laws.sort_unstable();
        let laws = match &laws[..] {
            [] => "Everything else holds.".to_owned(),
            laws => format!("May be broken, and no others: {}.", laws.join("; ")),
        };
        let _ = writeln!(text, "\n**{}**: {}. {laws}", capital(loss.what), loss.so);
    }
    text
}

/// With a capital at its beginning.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|it| it.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guarantees_and_the_report_are_what_the_table_says() {
        check(false).unwrap();
    }

    #[test]
    fn sums_are_kept_as_lines() {
        let record = Record {
            runs: 2,
            failed: 1,
            takeovers_ms: vec![1, 2],
            ..Record::default()
        };
        let line = Line {
            store: "redis".to_owned(),
            fault: "power".to_owned(),
            record: record.clone(),
        };
        let text = serde_json::to_string(&line).unwrap() + "\n";
        let sums = parsed(&text).unwrap();
        assert_eq!(sums[&("redis".to_owned(), "power".to_owned())], record);
        assert!(parsed("{").is_err());
        let shown = report(&sums);
        assert!(shown.contains("| `power` |"), "{shown}");
        assert!(shown.contains("2 (1 failed)"), "{shown}");
    }

    #[test]
    fn what_a_store_does_not_promise_is_in_the_guarantees() {
        let text = format!("a\n{BEGIN}before\n{END}b\n");
        let text = with_promises(&text, &Sums::new()).unwrap();
        assert!(text.starts_with("a\n") && text.ends_with("b\n"), "{text}");
        assert!(!text.contains("before\n") && text.contains("the last writes may be lost"));
        let with = |failed, takeovers_late| {
            let record = Record {
                runs: 1,
                failed,
                takeovers_ms: vec![1; 100],
                takeovers_late,
                judged: Law::JUDGED.map(|law| (law.to_string(), 1)).into(),
                ..Record::default()
            };
            let sums = TABLE.iter().flat_map(|kind| {
                STORES.map(|store| ((store.to_owned(), kind.name.to_owned()), record.clone()))
            });
            with_promises(&text, &sums.collect()).unwrap()
        };
        assert!(text.contains("all hold \\*") && with(1, 0).contains("all hold \\*"));
        let late = "takeovers were late";
        let (fast, slow) = (with(0, 1), with(0, 2));
        assert!(!fast.contains("\\*") && !fast.contains(late));
        assert!(!slow.contains("\\*") && slow.contains(late));
        assert!(with_promises("nothing", &Sums::new()).is_err());
    }

    #[test]
    fn what_is_not_made_says_why() {
        let asked = |store, fault| Asked {
            store: Some(crate::stores::find(store).unwrap()),
            fault: Some(lockkeeper_servers::faults::find(fault).unwrap()),
            seed: None,
            minutes: None,
        };
        assert_eq!(cells(&asked("redis", "power")).unwrap().len(), 1);
        let error = cells(&asked("sqlite", "failover")).unwrap_err();
        assert!(error.contains("one machine"), "{error}");
        let mut all = asked("redis", "power");
        all.fault = None;
        assert!(cells(&all).unwrap().len() >= 12);
    }
}
