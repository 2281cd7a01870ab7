//! Intents: what a holder that died or failed leaves, and who finishes it.

use std::process::Stdio;

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Ended, Place, Running, until};

const INTENT: [&str; 4] = ["--lock", "a", "--intent", "{\"rename\": [\"/a\", \"/b\"]}"];

/// Leaves an intent by a command that fails, and says whose.
fn leave(place: &Place, claims: &[&str]) -> String {
    let ended = place.runs(
        &[claims, &["--no-wait"]].concat(),
        "echo $LOCKKEEPER_SESSION; exit 3",
    );
    assert_eq!(ended.status, 3, "{ended:?}");
    assert!(
        ended.stderr.contains("left to the next holder"),
        "{ended:?}"
    );
    ended.stdout.trim().to_owned()
}

#[test]
fn unfinished_work_hears_nothing_that_is_asked_of_it() {
    let place = Place::new();
    let session = leave(&place, &INTENT);
    let asked = place.ends(&["ask", "a", "--reason", "test"]);
    assert_eq!(asked.status, 77, "{asked:?}");
    let unfinished = format!("held by unfinished work of session {session}");
    assert!(asked.stderr.contains(&unfinished), "{asked:?}");
    assert!(!asked.stderr.contains("nobody holds"), "{asked:?}");
}

#[test]
fn a_command_that_succeeds_leaves_no_intent() {
    let place = Place::new();
    assert_eq!(place.runs(&INTENT, "true").status, 0);
    assert_eq!(place.runs(&["--lock", "a", "--no-wait"], "true").status, 0);
    assert_eq!(place.sessions(), []);
}

#[test]
fn a_command_that_fails_leaves_its_intent() {
    let place = Place::new();
    let session = leave(&place, &INTENT);
    assert_eq!(
        place.sessions(),
        [(session.clone(), "abandoned".to_owned())]
    );
    for wait in [&["--no-wait"][..], &["--wait", "10s"], &[]] {
        let ended = place.runs(&[&["--lock", "a"], wait].concat(), "true");
        assert_eq!(ended.status, 77, "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        assert!(ended.stderr.contains(&session), "{ended:?}");
        assert!(ended.stderr.contains("lockkeeper recover"), "{ended:?}");
    }
    assert_eq!(place.runs(&["--lock", "b", "--no-wait"], "true").status, 0);
}

#[test]
fn a_command_that_is_ended_by_a_signal_leaves_its_intent() {
    let place = Place::new();
    let mut running = place.starts(&INTENT, "echo held; while :; do sleep 0.02; done");
    running.signal(Signal::TERM);
    assert_eq!(running.ends().status, 143);
    assert_eq!(place.sessions()[0].1, "abandoned");
}

#[test]
fn recovery_comes_first() {
    let place = Place::new();
    let session = leave(&place, &INTENT);
    let recover = format!(
        "cat > {0}/lines; echo $LOCKKEEPER_TOKEN $LOCKKEEPER_SESSION $LOCKKEEPER_STORE > {0}/env; echo recovered",
        place.path("").display()
    );
    let claims = ["--lock", "a", "--no-wait", "--recover", &recover];
    let ended = place.runs(&claims, "echo $LOCKKEEPER_TOKEN; echo ran");
    assert_eq!(ended.status, 0, "{ended:?}");
    let [first, token, last] = ended.stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("{ended:?}");
    };
    assert_eq!((first, last), ("recovered", "ran"));
    let lines = place.read("lines");
    assert_eq!(lines.lines().count(), 1);
    let line: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!(line["session"], session);
    assert!(line["label"].as_str().unwrap().ends_with(" sh"), "{line}");
    assert_eq!(line["intent"]["rename"][1], "/b");
    let number = |token: &str| token.parse::<u64>().unwrap();
    let text = |name: &str| line[name].as_str().unwrap().to_owned();
    assert!(number(&text("old_token")) < number(&text("token")));
    assert!(number(&text("token")) < number(token));
    let environment = format!("{} {session} {}\n", text("token"), place.url());
    assert_eq!(place.read("env"), environment);
    assert_eq!(place.sessions(), [], "settled, and everything is closed");
}

#[test]
fn nothing_to_recover_is_not_recovered() {
    let place = Place::new();
    let ended = place.runs(&["--lock", "a", "--recover", "echo recovered"], "echo ran");
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "ran\n"));
}

#[test]
fn a_recovery_that_fails_leaves_the_work() {
    let place = Place::new();
    let session = leave(&place, &INTENT);
    for recover in [
        "exit 1",
        "cat > /dev/null; exit 1",
        "kill -9 $$",
        "no-such-command",
    ] {
        let ended = place.runs(&["--lock", "a", "--recover", recover], "echo ran");
        assert_eq!((ended.status, ended.stdout.as_str()), (77, ""), "{ended:?}");
        assert!(ended.stderr.contains("stays abandoned"), "{ended:?}");
        assert_eq!(
            place.sessions(),
            [(session.clone(), "abandoned".to_owned())]
        );
    }
    let ended = place.runs(&["--lock", "a", "--recover", "true"], "echo ran");
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "ran\n"),
        "{ended:?}"
    );
}

#[test]
fn several_intents_in_the_way() {
    let place = Place::new();
    for path in ["/a/1", "/a/2", "/a/3"] {
        leave(&place, &["--write", path, "--intent", &format!("{path:?}")]);
    }
    let recover = format!("cat >> {}/lines", place.path("").display());
    let ended = place.runs(&["--write", "/a", "--recover", &recover], "echo ran");
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "ran\n"),
        "{ended:?}"
    );
    let mut intents: Vec<String> = place
        .read("lines")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["intent"].to_string())
        .collect();
    intents.sort();
    assert_eq!(intents, ["\"/a/1\"", "\"/a/2\"", "\"/a/3\""]);
    assert_eq!(place.sessions(), []);
}

#[test]
fn after_kill_9_the_next_holder_finishes_the_work() {
    let place = Place::new();
    let claims = [&INTENT[..], &["--ttl", "1s"]].concat();
    let mut running = place.starts(&claims, "echo held; while :; do sleep 0.02; done");
    running.signal(Signal::KILL);
    assert_eq!(running.ends().status, -9);
    let busy = place.runs(&["--lock", "a", "--no-wait", "--recover", "true"], "true");
    assert_eq!(busy.status, 75, "it may still live: {busy:?}");
    let recover = "sed 's/.*intent\":/intent: /'";
    let ended = place.runs(
        &["--lock", "a", "--wait", "20s", "--recover", recover],
        "echo ran",
    );
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(
        ended.stdout,
        "intent: {\"rename\": [\"/a\", \"/b\"]}}\nran\n"
    );
}

#[test]
fn after_kill_9_recover_finishes_what_nobody_asks_for() {
    let place = Place::new();
    let killed = |intent| {
        let claims = ["--lock", intent, "--intent", intent, "--ttl", "1s"];
        let mut running = place.starts(&claims, "echo held; while :; do sleep 0.02; done");
        running.signal(Signal::KILL);
        assert_eq!(running.ends().status, -9);
    };
    killed("1");
    until("it is due, and found", || {
        let ended = place.ends(&["recover", "--", "cat"]);
        assert_eq!(ended.status, 0, "{ended:?}");
        ended.stdout.contains("\"intent\":1")
    });
    killed("2");
    let [(session, state)] = &place.sessions()[..] else {
        panic!("{:?}", place.sessions());
    };
    assert_eq!(state, "living", "nobody has noticed it");
    until("it is due, and discarded", || {
        let ended = place.ends(&["discard", session, "--reason", "test"]);
        assert!([0, 75].contains(&ended.status), "{ended:?}");
        ended.stderr.contains("discarded the unfinished work")
    });
}

#[test]
fn after_kill_9_of_who_recovers_the_next_one_does() {
    let place = Place::new();
    leave(&place, &INTENT);
    let recover = "cat > /dev/null; echo recovering; while :; do sleep 0.02; done";
    let args = [
        "run",
        "--lock",
        "a",
        "--ttl",
        "1s",
        "--recover",
        recover,
        "--",
        "true",
    ];
    let mut first = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    assert_eq!(first.line(), "recovering");
    let ended = place.runs(&["--lock", "a", "--no-wait", "--recover", "true"], "true");
    assert_eq!(ended.status, 75, "somebody recovers it: {ended:?}");
    let ended = place.ends(&["recover", "--", "true"]);
    assert_eq!(ended.status, 75, "somebody recovers it: {ended:?}");
    first.signal(Signal::KILL);
    assert_eq!(first.ends().status, -9);
    let claims = [
        "--lock",
        "a",
        "--wait",
        "20s",
        "--recover",
        "echo recovered",
    ];
    let ended = place.runs(&claims, "echo ran");
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "recovered\nran\n"),
        "{ended:?}"
    );
}

/// How a command ends whose recovery is sent a signal, and what is left of the dead session.
fn told_while_it_recovers(recover: &str) -> (Ended, Place) {
    let place = Place::new();
    leave(&place, &INTENT);
    let args = ["run", "--lock", "a", "--recover", recover];
    let args = [&args[..], &["--", "echo", "ran"]].concat();
    let mut running = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    assert_eq!(running.line(), "recovering");
    running.signal(Signal::TERM);
    (running.ends(), place)
}

#[test]
fn a_signal_ends_the_recovery() {
    let (ended, place) = told_while_it_recovers("echo recovering; while :; do sleep 0.02; done");
    assert_eq!((ended.status, ended.stdout.as_str()), (77, ""), "{ended:?}");
    assert_eq!(place.sessions()[0].1, "abandoned");
}

/// It has heard the signal, and has finished all the same.
#[test]
fn a_command_is_not_begun_after_a_signal_that_its_recovery_heard() {
    let (ended, place) = told_while_it_recovers(
        "trap 'heard=1' TERM; echo recovering; while [ -z \"$heard\" ]; do sleep 0.02; done; :",
    );
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (143, ""),
        "{ended:?}"
    );
    assert_eq!(place.sessions(), [], "it is settled");
}

/// Nobody has to finish what never began.
#[test]
fn a_command_that_cannot_be_executed_leaves_no_intent() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    let place = Place::new();
    let script = place.file("script", "#!/nowhere/interpreter\n");
    set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let ended = place.ends(&["run", "--lock", "a", "--intent", "1", "--", &script]);
    assert!([126, 127].contains(&ended.status), "{ended:?}");
    assert!(!ended.stderr.contains("intent"), "{ended:?}");
    assert_eq!(place.runs(&["--lock", "a", "--no-wait"], "true").status, 0);
}

#[test]
fn an_operator_recovers() {
    let place = Place::new();
    assert_eq!(
        place.ends(&["recover", "--", "false"]).status,
        0,
        "nothing is abandoned"
    );
    let first = leave(&place, &["--document", "1", "--intent", "1"]);
    let second = leave(&place, &["--document", "2", "--intent", "2"]);
    let third = leave(&place, &["--document", "3", "--intent", "3"]);
    let ended = place.ends(&["recover", &second, "--", "cat"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    let line: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&line["session"], &line["intent"]),
        (&Value::from(second.clone()), &Value::from(2))
    );
    let ended = place.ends(&["recover", &second, "--", "cat"]);
    assert_eq!((ended.status, ended.stdout.as_str()), (64, ""), "{ended:?}");
    let ended = place.ends(&["recover", "--", "sh", "-c", "exit 5"]);
    assert_eq!(ended.status, 5, "{ended:?}");
    let mut left: Vec<String> = place
        .sessions()
        .into_iter()
        .map(|(session, _)| session)
        .collect();
    left.sort();
    let mut both = [first, third];
    both.sort();
    assert_eq!(left, both);
    let ended = place.ends(&["recover", "--", "cat"]);
    assert_eq!(ended.stdout.lines().count(), 2, "{ended:?}");
    assert_eq!(place.sessions(), []);
    assert_eq!(
        place.ends(&["recover", "--", "no-such-command"]).status,
        127
    );
}

/// The others are recovered, and it is said which is left.
#[test]
fn an_intent_that_cannot_be_read_keeps_nobody_from_the_others() {
    let place = Place::new();
    let left: Vec<String> = ["1", "2", "3"]
        .iter()
        .map(|n| leave(&place, &["--document", n, "--intent", n]))
        .collect();
    let store = Connection::open(place.path("locks.db")).unwrap();
    let change = "UPDATE intents SET payload = zeroblob(70000) WHERE session = unhex(?)";
    assert_eq!(store.execute(change, [&left[1]]).unwrap(), 1);
    drop(store);
    let ended = place.ends(&["recover", "--", "cat"]);
    assert_eq!(ended.status, 69, "{ended:?}");
    assert!(ended.stderr.contains(&left[1]), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 2, "{ended:?}");
    let still: Vec<String> = place.sessions().into_iter().map(|it| it.0).collect();
    assert_eq!(still, left[1..2]);
}

#[test]
fn discarded_work_is_gone() {
    let place = Place::new();
    let session = leave(&place, &INTENT);
    let ended = place.ends(&["discard", &session, "--reason", "done by hand"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(
        ended.stderr.contains(&session) && ended.stderr.contains("done by hand"),
        "{ended:?}"
    );
    assert_eq!(place.runs(&["--lock", "a", "--no-wait"], "true").status, 0);
    let told = place.ends(&["sessions", "--ended"]).stdout;
    assert!(
        told.contains(": discard by ") && told.contains(": done by hand"),
        "{told}"
    );
    let ended = place.ends(&["discard", &session, "--reason", "again"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(ended.stderr.contains("has left nothing"), "{ended:?}");
    let unknown = "00000000000000000000000000000001";
    let ended = place.ends(&["discard", unknown, "--reason", "x"]);
    assert_eq!(ended.status, 64, "{ended:?}");
    let all = place.ends(&["sessions", "--all"]).stdout;
    assert!(!all.contains(unknown), "asking leaves no trace: {all}");
}

#[test]
fn living_work_is_not_discarded() {
    let place = Place::new();
    let mut holder = place.holds(&INTENT);
    let session = place.sessions()[0].0.clone();
    let ended = place.ends(&["discard", &session, "--reason", "x"]);
    assert_eq!(ended.status, 75, "{ended:?}");
    assert!(ended.stderr.contains("is alive"), "{ended:?}");
    assert_eq!(holder.ends().status, 0);
    assert_eq!(place.sessions(), []);
}

#[test]
fn work_that_is_discarded_under_who_recovers_it() {
    let place = Place::new();
    let session = leave(&place, &INTENT);
    let go = place.path("go").display().to_string();
    let recover = format!("echo recovering; while [ ! -e {go} ]; do sleep 0.02; done");
    let args = ["recover", "--", "sh", "-c", &recover];
    let mut running = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    assert_eq!(running.line(), "recovering");
    let ended = place.ends(&["discard", &session, "--reason", "x"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    place.file("go", "");
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.contains("was not settled"), "{ended:?}");
}

/// For longer than it takes to see it.
#[test]
fn work_of_which_a_part_is_discarded_goes_on() {
    let place = Place::new();
    let other = ["--lock", "b", "--intent", "{}"];
    let (discarded, kept) = (leave(&place, &INTENT), leave(&place, &other));
    let go = place.path("go").display().to_string();
    let recover = format!("echo recovering; while [ ! -e {go} ]; do sleep 0.02; done");
    let args = ["recover", "--", "sh", "-c", &recover];
    let mut running = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    assert_eq!(running.line(), "recovering");
    let ended = place.ends(&["discard", &discarded, "--reason", "x"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    std::thread::sleep(std::time::Duration::from_secs(6));
    place.file("go", "");
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.contains(&discarded), "{ended:?}");
    assert!(!ended.stderr.contains(&kept), "{ended:?}");
    assert_eq!(place.sessions(), []);
}

/// All of it was discarded: nobody works on it for nothing.
#[test]
fn who_recovers_what_was_discarded_is_ended() {
    let place = Place::new();
    let session = leave(&place, &INTENT);
    let args = ["recover", "--", "sh", "-c", "echo recovering; sleep 60"];
    let mut running = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    assert_eq!(running.line(), "recovering");
    let ended = place.ends(&["discard", &session, "--reason", "x"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.contains("lockkeeper sessions"), "{ended:?}");
}

#[test]
fn a_second_signal_ends_the_wait_for_a_store_that_does_not_answer() {
    let place = Place::new();
    let claims = [&INTENT[..], &["--ttl", "1h"]].concat();
    let mut running = place.holds(&claims);
    let store = rusqlite::Connection::open(place.path("locks.db")).unwrap();
    store
        .busy_timeout(std::time::Duration::from_secs(10))
        .unwrap();
    store.execute_batch("BEGIN IMMEDIATE").unwrap();
    running.close();
    assert!(running.error_line().contains("does not answer: waiting"));
    running.signal(Signal::TERM);
    assert!(running.error_line().contains("another signal ends that"));
    running.signal(Signal::TERM);
    let ended = running.ends();
    assert_eq!(ended.status, 69, "{ended:?}");
    drop(store);
}

#[test]
fn many_processes_one_recovery() {
    let place = Place::new();
    leave(&place, &INTENT);
    let recover = format!("echo x >> {}/recoveries", place.path("").display());
    let args = [
        "run",
        "--lock",
        "a",
        "--wait",
        "60s",
        "--recover",
        &recover,
        "--",
        "echo",
        "ran",
    ];
    let mut all: Vec<Running> = (0..6)
        .map(|_| Running::new(place.lockkeeper(args).stdin(Stdio::null())))
        .collect();
    for running in &mut all {
        let ended = running.ends();
        assert_eq!(
            (ended.status, ended.stdout.as_str()),
            (0, "ran\n"),
            "{ended:?}"
        );
    }
    assert_eq!(place.read("recoveries"), "x\n");
    until("all sessions are closed", || place.sessions().is_empty());
}
