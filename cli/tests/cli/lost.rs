//! A command whose lock is lost is ended: 76.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::Signal;

use crate::harness::{Place, Running, json, runs, until};

/// Says its process id, tells of TERM, and goes on.
const STUBBORN: &str =
    "trap 'echo term' TERM; echo $$ > $1/pid; echo held; while :; do sleep 0.02; done";

/// Keeps every other process from writing to the store.
fn block(place: &Place) -> Connection {
    let store = Connection::open(place.path("locks.db")).unwrap();
    store.busy_timeout(Duration::from_secs(10)).unwrap();
    store.execute_batch("BEGIN IMMEDIATE").unwrap();
    store
}

#[test]
fn a_lock_that_is_broken() {
    let place = Place::new();
    let mut running = place.starts(&["--lock", "a", "--ttl", "2s"], STUBBORN);
    let since = Instant::now();
    let broken = place.ends(&["break", "a", "--session", "--reason", "test"]);
    assert_eq!(broken.status, 0, "{broken:?}");
    // Free for others at once, and ended by the next renewal.
    let next = place.runs(&["--lock", "a", "--no-wait"], "true");
    assert_eq!(next.status, 0, "{next:?}");
    let ended = running.ends();
    assert!(
        since.elapsed() < Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(ended.status, 76, "{ended:?}");
    let why = "its session was revoked by ";
    assert!(
        ended.stderr.contains(why) && ended.stderr.contains(": test"),
        "{ended:?}"
    );
    assert!(!runs(place.read("pid").trim()));
}

#[test]
fn a_lock_that_is_broken_and_the_others_of_its_process() {
    let place = Place::new();
    let mut running = place.starts(&["--lock", "a", "--ttl", "3s"], STUBBORN);
    let mut other = place.holds(&["--document", "b", "--document", "c", "--ttl", "3s"]);
    let broken = place.ends(&["break", "a", "--reason", "it is stuck"]);
    assert_eq!(broken.status, 0, "{broken:?}");
    assert!(
        broken.stderr.contains("is told to give it up: it is stuck"),
        "{broken:?}"
    );
    let next = place.runs(&["--lock", "a", "--no-wait"], "true");
    assert_eq!(next.status, 0, "{next:?}");
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    let why = "it was broken by ";
    assert!(
        ended.stderr.contains(why) && ended.stderr.contains(": it is stuck"),
        "{ended:?}"
    );
    assert!(!runs(place.read("pid").trim()));
    // Who broke it, and why, can be read afterwards.
    let told = place.ends(&["sessions", "--ended"]);
    assert!(
        told.stdout.contains("evict of grant 1 by ") && told.stdout.contains("it is stuck"),
        "{told:?}"
    );
    let told = place.ends(&["sessions", "--ended", "--json"]);
    let told = json(&told.stdout);
    let noted = told
        .iter()
        .find(|session| session["notes"][0]["kind"] == "evict");
    let noted = noted.expect("the session is among them");
    assert_eq!(noted["notes"][0]["reason"], "it is stuck");
    assert!(noted["ended"].is_string(), "{told:?}");
    assert_eq!(other.ends().status, 0);
}

#[test]
fn a_standard_error_that_takes_no_more_keeps_nothing_from_its_end() {
    let place = Place::new();
    let (mut unread, mut full) = std::io::pipe().unwrap();
    // As much as a pipe holds.
    full.write_all(&[b'x'; 65_536]).unwrap();
    let args = [
        &["run", "--lock", "a", "--ttl", "2s", "--"],
        &place.sh(STUBBORN)[..],
    ]
    .concat();
    let mut child = place
        .lockkeeper(args)
        .stdout(Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    until("it is held", || {
        place.path("pid").exists() && !place.read("pid").is_empty()
    });
    // It says something that it need not say, and renews all the same.
    let asked = place.ends(&["ask", "a", "--reason", "test"]);
    assert_eq!(asked.status, 0, "{asked:?}");
    let next = place.runs(&["--lock", "a", "--wait", "5s"], "true");
    assert_eq!(next.status, 75, "{next:?}");
    let blocked = block(&place);
    let pid = place.read("pid");
    until("the command is killed", || !runs(pid.trim()));
    drop(blocked);
    let reads = std::thread::spawn(move || {
        let mut text = Vec::new();
        unread.read_to_end(&mut text).map(|_| text)
    });
    assert_eq!(child.wait().unwrap().code(), Some(76));
    let text = reads.join().unwrap().unwrap();
    let text = String::from_utf8_lossy(&text[65_536..]).into_owned();
    assert!(text.contains("asks for the lock: test"), "{text}");
    assert!(text.contains("the command is killed"), "{text}");
}

#[test]
fn a_command_that_takes_too_long_is_ended() {
    let place = Place::new();
    let since = Instant::now();
    let mut running = place.starts(&["--lock", "a", "--max-hold", "2s"], STUBBORN);
    let ended = running.ends();
    assert!(since.elapsed() >= Duration::from_secs(2), "{ended:?}");
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stdout.contains("term"), "{ended:?}");
    for said in [
        "nine tenths of --max-hold",
        "it was held for as long as it may be",
        "as --max-hold allows",
    ] {
        assert!(ended.stderr.contains(said), "{said}: {ended:?}");
    }
    let next = place.runs(&["--lock", "a", "--no-wait"], "true");
    assert_eq!(next.status, 0, "{next:?}");
    // One that heeds the warning, and its lock was its own until then.
    let heeds = place.runs(&["--lock", "a", "--max-hold", "3s"], "sleep 60");
    assert_eq!(heeds.status, 76, "{heeds:?}");
    assert!(
        heeds.stderr.contains("nine tenths") && !heeds.stderr.contains("lost"),
        "{heeds:?}"
    );
    let refused = place.runs(&["--lock", "a", "--max-hold", "0s"], "true");
    assert_eq!(refused.status, 64, "{refused:?}");
}

#[test]
fn a_holder_that_is_dead_is_waited_for_until_it_is_due() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a", "--ttl", "2s"]);
    holder.signal(Signal::KILL);
    drop(holder.ends());
    let broken = place.ends(&["break", "a", "--reason", "test", "--wait", "60s"]);
    assert_eq!(broken.status, 0, "{broken:?}");
    assert_eq!(place.held().len(), 0);
}

#[test]
fn a_holder_that_does_not_renew_is_not_waited_for_longer_than_asked() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a", "--ttl", "10m"]);
    holder.signal(Signal::STOP);
    let since = Instant::now();
    let broken = place.ends(&["break", "a", "--reason", "test", "--wait", "200ms"]);
    assert!(
        since.elapsed() < Duration::from_secs(10),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(broken.status, 75, "{broken:?}");
    assert!(
        broken.stderr.contains("revoke it with --session"),
        "{broken:?}"
    );
    assert_eq!(
        place.held().len(),
        1,
        "it is held as long as it is believed in"
    );
    let broken = place.ends(&["break", "a", "--reason", "test", "--session"]);
    assert_eq!(broken.status, 0, "{broken:?}");
    assert_eq!(place.held().len(), 0);
    holder.signal(Signal::CONT);
    let ended = holder.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
}

#[test]
fn a_command_that_ends_when_it_is_told() {
    let place = Place::new();
    let script = "trap 'echo term; exit 0' TERM; echo held; while :; do sleep 0.02; done";
    let mut running = place.starts(&["--lock", "a", "--ttl", "2s"], script);
    let blocked = block(&place);
    assert_eq!(running.line(), "term");
    // It has ended before the lock could be anybody else's.
    drop(blocked);
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.contains("about to be lost"), "{ended:?}");
    assert!(!ended.stderr.contains("killed"), "{ended:?}");
}

#[test]
fn a_command_that_does_not_end_is_killed_at_the_deadline() {
    let place = Place::new();
    let mut running = place.starts(&["--lock", "a", "--ttl", "2s"], STUBBORN);
    let blocked = block(&place);
    let since = Instant::now();
    assert_eq!(running.line(), "term");
    let warned = since.elapsed();
    let pid = place.read("pid");
    assert!(runs(pid.trim()), "it is told first");
    until("the command is killed", || !runs(pid.trim()));
    let killed = since.elapsed();
    drop(blocked);
    // The last renewal was at most a third of the TTL before, and the deadline is 250 ms before the TTL is over. The
    // lock was nobody else's until then.
    assert!(killed < Duration::from_secs(2), "{killed:?}");
    // A quarter of the TTL, less what the timers of a busy machine are late.
    assert!(
        killed - warned > Duration::from_millis(250),
        "{warned:?}, {killed:?}"
    );
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.contains("killed"), "{ended:?}");
}

/// A command of nobody's, run under a lock, and a program that makes itself root's, as `sudo` does. Only root can make that.
#[cfg(target_os = "linux")]
fn nobodys(place: &Place, ttl: &str) -> Option<(std::process::Command, std::path::PathBuf)> {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    if !rustix::process::geteuid().is_root() {
        eprintln!("not tried: it takes root");
        return None;
    }
    let (lockkeeper, becomes) = (place.path("lockkeeper"), place.path("becomes"));
    fs::copy(env!("CARGO_BIN_EXE_lockkeeper"), &lockkeeper).unwrap();
    fs::copy("/usr/bin/setpriv", &becomes).unwrap();
    fs::set_permissions(&becomes, Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(place.path(""), Permissions::from_mode(0o777)).unwrap();
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = std::process::Command::new("setpriv");
    command.args(nobody).arg(&lockkeeper);
    command.args(["run", "--lock", "a", "--ttl", ttl, "--"]);
    command.env("LOCKKEEPER_URL", place.url());
    Some((command, becomes))
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_has_become_another_user_is_not_said_to_be_killed() {
    let place = Place::new();
    let Some((mut command, becomes)) = nobodys(&place, "2s") else {
        return;
    };
    command.arg(&becomes).args(["--reuid=0", "sh", "-c"]);
    command.args(["echo held; cat", "sh"]);
    let mut running = Running::new(command.stdin(std::process::Stdio::piped()));
    assert_eq!(running.line(), "held", "{}", running.stderr_now());
    let broken = place.ends(&["break", "a", "--session", "--reason", "test"]);
    assert_eq!(broken.status, 0, "{broken:?}");
    let said = running.error_line();
    assert!(said.contains("cannot be ended"), "{said}");
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.contains("could not be ended"), "{ended:?}");
    assert!(!ended.stderr.contains("killed"), "{ended:?}");
}

/// Nothing was lost, and nothing was ended.
#[cfg(target_os = "linux")]
#[test]
fn a_command_that_cannot_be_told_and_a_lock_that_is_not_lost_after_all() {
    let place = Place::new();
    let Some((mut command, becomes)) = nobodys(&place, "8s") else {
        return;
    };
    command.arg(&becomes).args(["--reuid=0", "sh", "-c"]);
    command.args(["echo held; cat", "sh"]);
    let mut running = Running::new(command.stdin(std::process::Stdio::piped()));
    assert_eq!(running.line(), "held", "{}", running.stderr_now());
    let blocked = block(&place);
    let said = running.error_line();
    drop(blocked);
    assert!(said.contains("cannot be ended"), "{said}");
    let ended = running.ends();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(!ended.stderr.contains("was lost"), "{ended:?}");
}

/// As in a script that calls `sudo`: what it has become is in the command's group.
#[cfg(target_os = "linux")]
#[test]
fn a_part_of_a_command_that_has_become_another_user_is_told() {
    let place = Place::new();
    let Some((mut command, becomes)) = nobodys(&place, "2s") else {
        return;
    };
    command.args([
        "sh",
        "-c",
        "\"$0\" --reuid=0 sh -c 'echo $$; exec sleep 60 >/dev/null 2>&1' & wait",
    ]);
    let mut running = Running::new(command.arg(&becomes));
    let other = running.line();
    let broken = place.ends(&["break", "a", "--session", "--reason", "test"]);
    assert_eq!(broken.status, 0, "{broken:?}");
    let ended = running.ends();
    let goes_on = runs(&other);
    let mut kill = std::process::Command::new("kill");
    let killed = kill.args(["-KILL", &other]).status();
    assert!(goes_on && killed.unwrap().success(), "{ended:?}");
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.contains("cannot be ended"), "{ended:?}");
    assert!(ended.stderr.contains("could not be ended"), "{ended:?}");
}

#[test]
fn what_the_command_has_started_goes_too() {
    let place = Place::new();
    let script = "sh -c 'trap \"\" TERM; echo $$ > $1/inner; echo held; while :; do sleep 0.02; done' sh $1 & wait";
    let mut running = place.starts(&["--lock", "a", "--ttl", "1s"], script);
    let inner = place.read("inner");
    let blocked = block(&place);
    until("the inner one is killed", || !runs(inner.trim()));
    drop(blocked);
    assert_eq!(running.ends().status, 76);
}

#[test]
fn a_lockkeeper_that_slept_too_long() {
    let place = Place::new();
    let mut running = place.starts(&["--lock", "a", "--ttl", "1s"], STUBBORN);
    running.signal(Signal::STOP);
    let next = place.runs(&["--lock", "a", "--wait", "10s"], "true");
    assert_eq!(next.status, 0, "{next:?}");
    let pid = place.read("pid");
    assert!(
        runs(pid.trim()),
        "nobody was there to end it: only a token that is checked helps"
    );
    running.signal(Signal::CONT);
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(!runs(pid.trim()));
}

#[test]
fn a_store_that_was_replaced() {
    let place = Place::new();
    let mut running = place.starts(&["--lock", "a", "--ttl", "1s"], STUBBORN);
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(place.path(&format!("locks.db{suffix}"))).unwrap();
    }
    let ended = running.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.contains("its session died"), "{ended:?}");
}

#[test]
fn a_command_that_ends_by_itself_after_its_lock_was_lost() {
    let place = Place::new();
    // The TTL is so long that nothing notices before the command ends.
    let mut holder = place.holds(&["--lock", "a", "--ttl", "1h"]);
    assert_eq!(
        place
            .ends(&["break", "a", "--session", "--reason", "test"])
            .status,
        0
    );
    // Somebody else was there meanwhile.
    assert_eq!(place.runs(&["--lock", "a", "--no-wait"], "true").status, 0);
    let ended = holder.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    let why = "lost before the command ended, its session was revoked by ";
    assert!(
        ended.stderr.contains(why) && ended.stderr.contains(": test: check what it did"),
        "{ended:?}"
    );
    // Of a command that has failed, too.
    let mut holder = place.starts(
        &["--lock", "a", "--ttl", "1h"],
        "echo held; read line; exit 3",
    );
    assert_eq!(
        place
            .ends(&["break", "a", "--session", "--reason", "test"])
            .status,
        0
    );
    let ended = holder.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    // And of one that has failed with an intent, which an operator has discarded.
    let mut holder = place.starts(
        &["--lock", "a", "--ttl", "1h", "--intent", "{}"],
        "echo held; echo $LOCKKEEPER_SESSION > $1/session; read line; exit 3",
    );
    until("it has said its session", || {
        place.path("session").exists() && !place.read("session").is_empty()
    });
    let broken = place.ends(&["break", "a", "--session", "--reason", "test"]);
    assert_eq!(broken.status, 77, "{broken:?}");
    let session = place.read("session");
    let discarded = place.ends(&["discard", session.trim(), "--reason", "test"]);
    assert_eq!(discarded.status, 0, "{discarded:?}");
    let ended = holder.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(
        !ended.stderr.contains("is left to the next holder"),
        "{ended:?}"
    );
    let mut holder = place.holds(&["--lock", "a", "--ttl", "1h", "--intent", "{}"]);
    assert_eq!(
        place
            .ends(&["break", "a", "--session", "--reason", "test"])
            .status,
        77
    );
    let ended = holder.ends();
    assert_eq!(ended.status, 76, "{ended:?}");
    assert_eq!(
        place.sessions()[0].1,
        "abandoned",
        "its change is not known to be finished"
    );
}
