//! Signals, and the death of `lockkeeper` itself.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Place, Running, must_not_be_ignored, runs, until};

/// A loop that a trap can end.
const FOREVER: &str = "echo held; while :; do sleep 0.02; done";

#[test]
fn the_command_gets_what_lockkeeper_gets() {
    must_not_be_ignored(&[Signal::HUP, Signal::INT, Signal::QUIT]);
    let place = Place::new();
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ] {
        let script = format!("trap 'echo got {name}; exit 7' {name}; {FOREVER}");
        let mut running = place.starts(&["--lock", "a"], &script);
        running.signal(signal);
        let ended = running.ends();
        assert_eq!(
            (ended.status, ended.stdout),
            (7, format!("got {name}\n")),
            "{}",
            ended.stderr
        );
    }
    assert_eq!(place.held(), [""; 0]);
}

#[test]
fn a_command_that_does_nothing_about_a_signal() {
    must_not_be_ignored(&[Signal::HUP, Signal::INT]);
    let place = Place::new();
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut running = place.starts(&["--lock", "a"], FOREVER);
        running.signal(signal);
        assert_eq!(running.ends().status, status);
        assert_eq!(place.held(), [""; 0]);
    }
}

#[test]
fn the_whole_group_gets_it() {
    let place = Place::new();
    let script = "trap 'wait; echo outer; exit' TERM; \
                  sh -c \"trap 'echo inner; exit' TERM; echo held; while :; do sleep 0.02; done\" & wait";
    let mut running = place.starts(&["--lock", "a"], script);
    running.signal(Signal::TERM);
    assert_eq!(running.ends().stdout, "inner\nouter\n");
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    let place = Place::new();
    let args = [
        "lockkeeper",
        "run",
        "--lock",
        "a",
        "--",
        "sh",
        "-c",
        "echo held; cat; echo end",
    ];
    let mut command = std::process::Command::new("nohup");
    command
        .args([env!("CARGO_BIN_EXE_lockkeeper")].iter().chain(&args[1..]))
        .env("LOCKKEEPER_URL", place.url())
        .stdin(Stdio::piped());
    let mut running = Running::new(&mut command);
    assert_eq!(running.line(), "held");
    running.signal(Signal::HUP);
    running.write("still here\n");
    let ended = running.ends();
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "still here\nend\n")
    );
}

#[test]
fn a_waiter_that_is_ended_leaves_nothing() {
    must_not_be_ignored(&[Signal::INT]);
    let place = Place::new();
    let mut holder = place.holds(&["--document", "b"]);
    let args = ["run", "--document", "a", "--document", "b", "--", "true"];
    let mut waiter = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    assert!(waiter.error_line().contains("waiting"));
    waiter.signal(Signal::INT);
    let ended = waiter.ends();
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (130, ""),
        "{ended:?}"
    );
    assert_eq!(place.held().len(), 1);
    assert_eq!(place.sessions().len(), 1, "the waiter's session is closed");
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn a_stop_and_a_continuation_reach_the_command() {
    let place = Place::new();
    let mut running = place.starts(
        &["--lock", "a"],
        "echo $$ > $1/pid; echo held; while read x; do echo $x; done",
    );
    let pid = place.read("pid");
    let lockkeeper = running.pid().to_string();
    running.signal(Signal::TSTP);
    until("the command is stopped", || state(&pid) == 'T');
    until("lockkeeper is stopped", || state(&lockkeeper) == 'T');
    running.signal(Signal::CONT);
    until("the command goes on", || state(&pid) != 'T');
    running.write("on\n");
    let ended = running.ends();
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "on\n"),
        "{ended:?}"
    );
}

/// What a process does, by the letter of the system.
fn state(pid: &str) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

#[test]
fn a_stop_reaches_what_the_command_has_started_and_did_not_hear_it() {
    let place = Place::new();
    let script = "(trap '' TSTP; exec sleep 60) & echo $! > $1/pid; echo held; wait $!; exit 3";
    let mut running = place.starts(&["--lock", "a"], script);
    let (child, lockkeeper) = (place.read("pid"), running.pid().to_string());
    running.signal(Signal::TSTP);
    until("lockkeeper is stopped", || state(&lockkeeper) == 'T');
    until("all of it is stopped", || state(&child) == 'T');
    running.signal(Signal::CONT);
    until("all of it goes on", || state(&child) != 'T');
    running.signal(Signal::TERM);
    assert_ne!(running.ends().status, 0);
}

#[test]
fn a_command_whose_lock_went_free_while_it_was_stopped_does_not_go_on() {
    let place = Place::new();
    // It starts nothing: a shell that is stopped while it does is not seen to stop.
    let script = "trap 'echo on' TERM CONT; echo held; while read x; do echo on; done";
    let mut running = place.starts(&["--lock", "a", "--ttl", "1s"], script);
    let lockkeeper = running.pid().to_string();
    running.signal(Signal::TSTP);
    until("lockkeeper is stopped", || state(&lockkeeper) == 'T');
    let next = place.runs(&["--lock", "a", "--wait", "30s"], "true");
    assert_eq!(next.status, 0, "{next:?}");
    running.signal(Signal::CONT);
    let ended = running.ends();
    assert_eq!((ended.status, ended.stdout.as_str()), (76, ""), "{ended:?}");
}

#[cfg(feature = "redis")]
#[test]
fn a_store_that_does_not_answer_can_be_interrupted() {
    must_not_be_ignored(&[Signal::INT]);
    let place = Place::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    for command in [
        &["run", "--lock", "a", "--", "true"][..],
        &["acquire", "--lock", "a", "--ttl", "1m"],
        &["recover", "--", "true"],
        &["watch"],
    ] {
        let args = [&["--url", &url], command].concat();
        let mut running = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
        let mut connection = None;
        until("it connects", || {
            connection = silent.accept().ok();
            connection.is_some()
        });
        let since = Instant::now();
        running.signal(Signal::INT);
        assert_eq!(running.ends().status, 130, "{command:?}");
        let took = since.elapsed();
        assert!(took < Duration::from_secs(3), "{command:?}: {took:?}");
    }
}

#[test]
fn a_command_that_is_stopped_hears_what_ends_it() {
    must_not_be_ignored(&[Signal::HUP, Signal::INT, Signal::QUIT]);
    let place = Place::new();
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM] {
        let script = "trap 'exit 7' HUP INT QUIT TERM; echo $$ > $1/pid; echo held; kill -STOP $$";
        let mut running = place.starts(&["--lock", "a"], script);
        let pid = place.read("pid");
        let stat = format!("/proc/{}/stat", pid.trim());
        until("the command is stopped", || {
            std::fs::read_to_string(&stat).unwrap().contains(") T ")
        });
        running.signal(signal);
        assert_eq!(running.ends().status, 7);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_command_dies_with_lockkeeper() {
    let place = Place::new();
    let script = "trap '' HUP INT TERM; echo $$ > $1/pid; echo held; while :; do sleep 0.02; done";
    let mut running = place.starts(&["--lock", "a", "--ttl", "1s"], script);
    let pid = place.read("pid");
    assert!(runs(pid.trim()));
    running.signal(Signal::KILL);
    assert_eq!(running.ends().status, -9);
    until("the command is dead", || !runs(pid.trim()));
    // Its lock goes when the TTL is over, and not before somebody could be sure that it is dead.
    assert_eq!(place.held().len(), 1);
    let since = Instant::now();
    let ended = place.runs(&["--lock", "a", "--wait", "10s"], "true");
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(
        since.elapsed() < Duration::from_secs(5),
        "{:?}",
        since.elapsed()
    );
}

/// Whoever starts it may have blocked signals, as programs do that wait for them by themselves.
#[test]
fn blocked_signals_are_heard_all_the_same() {
    let place = Place::new();
    for (signal, status, printed) in [(None, 0, "end\n"), (Some(Signal::TERM), 143, "")] {
        let mut command = std::process::Command::new("env");
        command
            .args(["--block-signal=CHLD,TERM", env!("CARGO_BIN_EXE_lockkeeper")])
            .args(["run", "--lock", "a", "-c", "echo held; cat; echo end"])
            .env("LOCKKEEPER_URL", place.url())
            .stdin(Stdio::piped());
        let mut running = Running::new(&mut command);
        assert_eq!(running.line(), "held");
        if let Some(signal) = signal {
            running.signal(signal);
            until("the command has ended", || place.held().is_empty());
        }
        let ended = running.ends();
        assert_eq!((ended.status, ended.stdout.as_str()), (status, printed));
    }
}
