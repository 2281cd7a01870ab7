//! `lockkeeper verify`.

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
fn a_store_is_verified_and_nothing_is_left() {
    let place = Place::new();
    let args = [
        "verify",
        "--cases",
        "quick",
        "--minutes",
        "0.2",
        "--jobs",
        "16",
        "--json",
    ];
    // A run so short may meet nothing that a law judges, and says so.
    let mut runs = 0;
    let (ended, report) = loop {
        runs += 1;
        let ended = place.ends(&args);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        let is_short = report["verdict"] == "undecided"
            && report["cases"]["undecided"]
                .as_array()
                .is_some_and(Vec::is_empty);
        if !is_short || runs == 3 {
            break (ended, report);
        }
    };
    assert_eq!(ended.status, 0, "{report:#}\n{}", ended.stderr);
    assert_eq!(
        (&report["verdict"], &report["store"]),
        (&"held".into(), &"sqlite".into())
    );
    let cases = &report["cases"];
    let [passed, wanted] = ["passed", "wanted"].map(|name| cases[name].as_u64().unwrap());
    let missing = report["not_tried"].as_array().unwrap();
    let not_tried: u64 = missing.iter().map(|it| it["cases"].as_u64().unwrap()).sum();
    assert!(passed > 40 && not_tried > 0, "{report:#}");
    assert_eq!(passed + not_tried, wanted);
    let run = &report["processes"];
    assert!(run["guards"].as_u64().unwrap() >= 20, "{run:#}");
    assert_eq!(run["violations"].as_array().unwrap().len(), 0);
    assert_eq!(files(&place), [""; 0]);
}

#[test]
fn who_is_ended_in_the_middle_leaves_nothing() {
    must_not_be_ignored(&[Signal::INT]);
    let place = Place::new();
    let mut running = Running::new(place.lockkeeper(["verify"]).stdin(Stdio::null()));
    assert!(running.error_line().contains("lockkeeper-scratch-"));
    crate::harness::until("cases run", || !files(&place).is_empty());
    running.signal(Signal::INT);
    let ended = running.ends();
    assert_eq!(ended.status, 130, "{}", ended.stderr);
    assert_eq!(files(&place), [""; 0]);
}

#[test]
fn bad_input() {
    let place = Place::new();
    for args in [
        &["verify", "--minutes", "0"][..],
        &["verify", "--jobs", "0"],
        &["verify", "--processes", "1"],
        &["verify", "--url", "memory:"],
        &["verify", "--history", "/nonexistent/history"],
    ] {
        let ended = place.ends(args);
        assert_eq!(ended.status, 64, "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    let ended = place.ends(&["verify", "--url", "sqlite:/nonexistent/locks.db"]);
    assert_eq!(ended.status, 64, "{}", ended.stderr);
}
