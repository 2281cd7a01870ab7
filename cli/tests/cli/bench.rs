//! `lockkeeper bench`.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Place, Running, must_not_be_ignored};

/// The files beside the store.
fn files(place: &Place) -> Vec<String> {
    let files = place.path(".").read_dir().unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("locks.db")).collect()
}

#[test]
fn a_store_is_measured_and_nothing_is_left() {
    let place = Place::new();
    let ended = place.ends(&["bench", "--seconds", "0.1", "--keys", "50"]);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("lockkeeper-scratch-"),
        "{}",
        ended.stderr
    );
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[0].trim_start().starts_with("p50"), "{lines:?}");
    for what in [
        "1 task, 1 lock: pair ",
        "16 tasks, a lock each: pair ",
        "8 tasks, 1 lock: hand-over ",
        "8 tasks, 1 lock: wait ",
        "30 tasks, 10 places: pair ",
        "a path of depth 5: pair ",
        "50 documents: acquire ",
        "50 documents: swept ",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(what)), "{what}");
    }
    assert_eq!(files(&place), [""; 0], "not the store of the URL either");
}

#[test]
fn figures_for_programs() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "lock-0"]);
    let before = files(&place);
    let ended = place.ends(&["bench", "--seconds", "0.1", "--keys", "1", "--json"]);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let value: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&value["store"], &value["seconds"]),
        (&"sqlite".into(), &0.1.into())
    );
    let workloads = value["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 6);
    let contended = &workloads[2];
    assert_eq!(
        (&contended["workload"], &contended["size"]),
        (&"contended".into(), &8.into())
    );
    assert!(contended["per_second"].as_f64().unwrap() > 1.0);
    assert!(contended["fairness"].as_f64().unwrap() > 0.1);
    let times = &contended["times"]["hand-over"];
    let [p50, p99, longest] =
        ["p50_us", "p99_us", "longest_us"].map(|name| times[name].as_u64().unwrap());
    assert!(0 < p50 && p50 <= p99 && p99 <= longest, "{times}");
    assert_eq!(workloads[5]["times"]["refused"]["count"], 1);
    assert_eq!(files(&place), before);
    assert_eq!(
        place.held().len(),
        1,
        "whoever uses the store is not touched"
    );
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn who_is_ended_in_the_middle_leaves_nothing() {
    must_not_be_ignored(&[Signal::INT]);
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let place = Place::new();
        // Document locks would take for ever.
        let args = ["bench", "--seconds", "0.1", "--keys", "1000000"];
        let mut running = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
        assert!(running.error_line().contains("lockkeeper-scratch-"));
        while !running.line().starts_with("a path") {}
        assert!(!files(&place).is_empty());
        running.signal(signal);
        let ended = running.ends();
        assert_eq!(ended.status, status, "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert_eq!(files(&place), [""; 0]);
    }
}

#[test]
fn who_is_no_more_read_leaves_nothing() {
    let place = Place::new();
    let mut command = place.lockkeeper(["bench", "--seconds", "0.1", "--keys", "1"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = command
        .stdout(writer)
        .stderr(Stdio::null())
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(141));
    assert_eq!(files(&place), [""; 0]);
}

#[test]
fn what_stays_is_said() {
    let place = Place::new();
    let args = ["bench", "--seconds", "0.1", "--keys", "1"];
    let mut running = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    let said = running.error_line();
    let name = said.rsplit(' ').next().unwrap().to_owned();
    while !running.line().starts_with("a path") {}
    // Somebody else puts a file of another kind in its place.
    let path = place.path(&format!("locks.db.{name}"));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let ended = running.ends();
    assert_ne!(ended.status, 0);
    assert!(
        ended
            .stderr
            .contains(&format!("{name} may be in the store still")),
        "{}",
        ended.stderr
    );
}

#[test]
fn bad_input() {
    let place = Place::new();
    for (args, status, says) in [
        (&["--url", "mysql://h"][..], 64, "no store has the scheme"),
        (
            &["--url", "redis://h?x=1"],
            64,
            "option 1 in the URL does not exist",
        ),
        (&["--url", "sqlite:missing/locks.db"], 64, "make it first"),
        (&["--url", "redis://127.0.0.1:1"], 69, "unavailable"),
        (&["--seconds", "0.09"], 64, "from 0.1 to 600"),
        (&["--seconds", "601"], 64, "from 0.1 to 600"),
        (&["--keys", "0"], 64, "--keys"),
        (&["--keys", "1000001"], 64, "--keys"),
    ] {
        let ended = place.ends(&[&["bench"], args].concat());
        assert_eq!(ended.status, status, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    assert_eq!(files(&place), [""; 0]);
}
