//! Listings, and what operators do.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::Value;

use crate::harness::{Place, Running, json, until};

#[test]
fn listings() {
    let place = Place::new();
    assert_eq!(place.held(), [""; 0]);
    let mut one = place.holds(&["--document", "doc/1", "--document", "doc/2"]);
    let mut two = place.holds(&["--share", "pool"]);
    let lines = place.held();
    assert_eq!(lines.len(), 3, "{lines:?}");
    let fields: Vec<&str> = lines[0].split('\t').collect();
    let [key, mode, since, left, session, life, label] = fields[..] else {
        panic!("{lines:?}");
    };
    // Of 30 seconds, and it has not been renewed long ago.
    let left: u64 = left.parse().unwrap();
    assert!((10..=30).contains(&left), "{left}");
    assert_eq!((key, mode, life), ("doc/1", "exclusive", "living"));
    assert!(since.starts_with('2') && since.ends_with('Z'), "{since}");
    assert_eq!(session.len(), 32);
    assert!(label.ends_with(&format!(" {} sh", one.pid())), "{label}");
    let listed = |prefix: &str| place.ends(&["ls", "--prefix", prefix]).stdout;
    assert_eq!(listed("doc/").lines().count(), 2);
    assert_eq!(listed("doc/2").lines().count(), 1);
    assert_eq!(listed("nothing"), "");
    let values = json(&place.ends(&["ls", "--json"]).stdout);
    assert_eq!(values.len(), 3);
    assert_eq!(values[2]["key"], "pool");
    assert_eq!(values[2]["more"], false);
    let holder = &values[2]["holders"][0];
    assert_eq!(
        (&holder["mode"], &holder["state"]),
        (&"shared".into(), &"living".into())
    );
    assert!(
        holder["grant"]
            .as_str()
            .unwrap()
            .starts_with(holder["session"].as_str().unwrap())
    );
    assert!(holder["owner"].is_string() && holder["since"].is_string());
    let left = holder["lease_left_ms"].as_u64().unwrap();
    assert!((10_000..=30_000).contains(&left), "{left}");
    assert_eq!((one.ends().status, two.ends().status), (0, 0));
}

#[test]
fn who_waits_is_listed_behind_who_holds() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a"]);
    let mut waiter =
        Running::new(&mut place.lockkeeper(["run", "--lock", "a", "--", "echo", "had it"]));
    // It says so once it was refused.
    while !waiter.stderr_now().contains("waiting") {
        sleep(Duration::from_millis(10));
    }
    let states = |text: &str| -> Vec<String> {
        let states = text.lines().map(|line| line.split('\t').rev().nth(1));
        states.map(|state| state.unwrap().to_owned()).collect()
    };
    for args in [&["ls"][..], &["inspect", "a"]] {
        let listed = place.ends(args).stdout;
        assert_eq!(states(&listed), ["living", "waiting"], "{listed}");
    }
    let values = json(&place.ends(&["ls", "--json"]).stdout);
    assert_eq!(values[0]["holders"][1]["state"], "waiting");
    // A waiter holds nothing that could be broken; whoever comes now is refused by both.
    let refused = place.runs(&["--lock", "a", "--no-wait"], "true");
    assert_eq!(refused.status, 75);
    assert!(refused.stderr.contains("waiting)"), "{}", refused.stderr);
    assert_eq!(holder.ends().status, 0);
    let ended = waiter.ends();
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "had it\n"));
    assert_eq!(place.held(), [""; 0]);
}

#[test]
fn a_key_is_inspected() {
    let place = Place::new();
    let mut holder = place.holds(&["--write", "/a/b/c"]);
    let inspected = |key: &str| place.ends(&["inspect", key]).stdout;
    assert!(inspected("/a/b/c").starts_with("write\t"));
    assert!(inspected("/a/b").starts_with("write below\t"));
    assert!(inspected("/a").starts_with("write below\t"));
    assert_eq!(inspected("/b"), "nobody holds it\n");
    let values = json(&place.ends(&["inspect", "/a", "--json"]).stdout);
    assert_eq!(values[0]["key"], "/a");
    assert_eq!(values[0]["holders"][0]["mode"], "write below");
    let values = json(&place.ends(&["inspect", "/b", "--json"]).stdout);
    assert_eq!(values[0]["holders"], Value::Array(Vec::new()));
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn sessions_are_listed() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a"]);
    assert_eq!(place.runs(&["--lock", "b"], "true").status, 0);
    let label = format!(" {} sh", holder.pid());
    let listed = place.ends(&["sessions"]).stdout;
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(
        listed.contains("\tliving\t") && listed.trim().ends_with(&label),
        "{listed}"
    );
    let fields: Vec<&str> = listed.trim().split('\t').collect();
    assert!(
        fields[2].parse::<u64>().unwrap() <= 30 && fields[3] == "-",
        "{listed}"
    );
    let all = json(&place.ends(&["sessions", "--all", "--json"]).stdout);
    assert_eq!(all.len(), 2);
    let dead = all.iter().find(|session| session["state"] == "dead");
    assert!(dead.unwrap()["lease_left_ms"].is_null());
    assert!(
        all.iter()
            .any(|session| session["label"].as_str().unwrap().ends_with(&label))
    );
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let place = Place::new();
    let ids: String = (0..20_000).map(|n| format!("{n}\n")).collect();
    let mut holder = place.holds(&["--documents-from", &place.file("ids", ids)]);
    let script = format!("{} ls | head -n 1", env!("CARGO_BIN_EXE_lockkeeper"));
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", &script])
        .env("LOCKKEEPER_URL", place.url())
        .stdin(Stdio::null());
    let ended = Running::new(&mut command).ends();
    assert_eq!(
        (ended.stdout.lines().count(), ended.stderr.as_str()),
        (1, "")
    );
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn breaking_says_what_else_goes() {
    let place = Place::new();
    let mut holder = place.holds(&["--document", "a", "--document", "b", "--document", "c"]);
    let mut other = place.holds(&["--document", "d"]);
    let session = place.held()[0].split('\t').nth(4).unwrap().to_owned();
    let ended = place.ends(&["break", "b", "--session", "--reason", "stuck since Monday"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{ended:?}");
    assert!(
        lines[0].contains("also holds \"a\", \"c\"") && lines[0].contains(&session),
        "{ended:?}"
    );
    assert!(
        lines[1].contains("revoked") && lines[1].contains("stuck since Monday"),
        "{ended:?}"
    );
    assert_eq!(place.held().len(), 1, "only the other holder's is left");
    assert_eq!(other.ends().status, 0);
    drop(holder.ends());
    let ended = place.ends(&["break", "b", "--session", "--reason", "again"]);
    assert_eq!(ended.status, 0);
    assert!(ended.stderr.contains("nobody holds \"b\""), "{ended:?}");
}

#[test]
fn all_holders_of_a_key_are_broken() {
    for (how, said) in [
        (&["--session"][..], "revoked session"),
        (&[], "is told to give it up"),
    ] {
        let place = Place::new();
        let share = ["--share", "s", "--ttl", "3s"];
        let mut holders: Vec<Running> = (0..20).map(|_| place.holds(&share)).collect();
        let ended = place.ends(&[&["break", "s", "--reason", "test"], how].concat());
        assert_eq!(ended.status, 0, "{ended:?}");
        assert_eq!(ended.stderr.matches(said).count(), 20, "{ended:?}");
        assert_eq!(place.runs(&["--lock", "s", "--no-wait"], "true").status, 0);
        for holder in &mut holders {
            assert_eq!(holder.ends().status, 76);
        }
    }
}

/// More wait than a list shows.
#[test]
fn who_waits_for_what_is_broken_has_it_next() {
    for (how, said) in [
        (&["--session"][..], "revoked session"),
        (&[], "is told to give it up"),
    ] {
        let place = Place::new();
        let mut holder = place.holds(&["--lock", "k", "--ttl", "3s"]);
        // So many processes may all come too late for a short one.
        let sleeps = ["run", "--lock", "k", "--ttl", "60s", "--", "sleep", "0.1"];
        let waits = |_| Running::new(place.lockkeeper(sleeps).stdin(Stdio::null()));
        let mut waiters: Vec<Running> = (0..20).map(waits).collect();
        let store = Connection::open(place.path("locks.db")).unwrap();
        until("they wait", || {
            let count = "SELECT count(*) FROM holders WHERE key <> ''";
            store.query_row(count, (), |row| row.get(0)).ok() == Some(21)
        });
        let ended = place.ends(&[&["break", "k", "--reason", "test"], how].concat());
        assert_eq!(ended.status, 0, "{ended:?}");
        assert_eq!(ended.stderr.matches(said).count(), 1, "{ended:?}");
        assert_eq!(holder.ends().status, 76);
        for waiter in &mut waiters {
            let ended = waiter.ends();
            assert_eq!(ended.status, 0, "{ended:?}");
        }
    }
}

#[test]
fn unfinished_work_is_not_broken() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a", "--intent", "{}"]);
    for _ in 0..2 {
        let ended = place.ends(&["break", "a", "--session", "--reason", "test"]);
        assert_eq!(ended.status, 77, "{ended:?}");
        assert!(ended.stderr.contains("recover or discard"), "{ended:?}");
        assert_eq!(place.held().len(), 1, "its locks stay");
    }
    assert_eq!(place.sessions()[0].1, "abandoned");
    assert_eq!(holder.ends().status, 76);
}

#[test]
fn a_foreign_record_is_evicted() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a"]);
    let store = Connection::open(place.path("locks.db")).unwrap();
    store
        .execute("UPDATE holders SET want = 'later' WHERE key <> ''", ())
        .unwrap();
    drop(store);
    let ended = holder.ends();
    assert_eq!(ended.status, 76, "it has lost what stood there: {ended:?}");
    let ended = place.runs(&["--lock", "a", "--no-wait"], "true");
    assert_eq!(ended.status, 75, "{ended:?}");
    assert!(
        place.held()[0].contains("\tforeign\t"),
        "{:?}",
        place.held()
    );
    let values = json(&place.ends(&["inspect", "a", "--json"]).stdout);
    assert_eq!(values[0]["holders"][0]["session"], Value::Null);
    let asked = place.ends(&["ask", "a", "--reason", "test"]);
    assert_eq!(asked.status, 0, "{asked:?}");
    assert!(
        asked.stderr.contains("a foreign record holds \"a\""),
        "{asked:?}"
    );
    let ended = place.ends(&["break", "a", "--session", "--reason", "test"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(
        ended.stderr.contains("evicted a foreign record"),
        "{ended:?}"
    );
    assert_eq!(place.runs(&["--lock", "a", "--no-wait"], "true").status, 0);
}

#[test]
fn a_sweep_removes_what_holds_nothing() {
    let place = Place::new();
    let mut holder = place.holds(&["--document", "a", "--document", "b"]);
    let mut other = place.holds(&["--document", "c"]);
    assert_eq!(
        place
            .ends(&["break", "a", "--session", "--reason", "test"])
            .status,
        0
    );
    let records = || {
        let store = Connection::open(place.path("locks.db")).unwrap();
        store
            .query_row("SELECT count(*) FROM holders WHERE key <> ''", (), |row| {
                row.get::<_, i64>(0)
            })
            .unwrap()
    };
    assert_eq!(records(), 3);
    let ended = place.ends(&["sweep"]);
    assert_eq!(
        (ended.status, ended.stderr.as_str()),
        (0, "lockkeeper: 2 records removed\n")
    );
    assert_eq!(records(), 1);
    assert_eq!(other.ends().status, 0);
    drop(holder.ends());
}

#[test]
fn a_store_that_does_not_answer() {
    let place = Place::new();
    assert_eq!(place.runs(&["--lock", "a"], "true").status, 0);
    let store = Connection::open(place.path("locks.db")).unwrap();
    store.execute_batch("BEGIN IMMEDIATE").unwrap();
    let url = format!("{}?timeout_ms=50", place.url());
    let ended = place.ends(&["--url", &url, "sweep"]);
    assert_eq!(ended.status, 69, "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    let ended = place.ends(&[
        "--url",
        &url,
        "run",
        "--lock",
        "a",
        "--no-wait",
        "--",
        "true",
    ]);
    assert_eq!(ended.status, 69, "{ended:?}");
}

#[test]
fn a_command_hears_that_it_is_asked_for_its_lock() {
    let place = Place::new();
    // It notes the first time, and obeys the second.
    let script = "n=0; trap 'echo asked; n=$((n+1)); [ $n = 1 ] || exit 5' USR1; echo held; while :; do sleep 0.05; done";
    let mut holder = place.starts(
        &["--lock", "a", "--ttl", "3s", "--on-asked", "usr1"],
        script,
    );
    let first = ["ask", "a", "--reason", "soon"];
    assert_eq!(place.ends(&first).status, 0);
    while !holder.error_line().contains(": soon") {}
    let args = [
        "ask",
        "a",
        "--reason",
        "maintenance",
        "--label",
        "the operator",
        "--json",
    ];
    let ended = place.ends(&args);
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(json(&ended.stdout)[0]["asked"], 1);
    let ended = holder.ends();
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (5, "asked\nasked\n"),
        "{ended:?}"
    );
    assert!(
        ended.stderr.contains("the operator asks for the lock")
            && ended.stderr.contains(": maintenance"),
        "{ended:?}"
    );
    let ended = place.ends(&["ask", "a", "--reason", "maintenance"]);
    assert!(ended.stderr.contains("nobody holds"), "{ended:?}");
    // Without a signal it is only said.
    let mut holder = place.holds(&["--lock", "a", "--ttl", "3s"]);
    assert_eq!(
        place.ends(&["ask", "a", "--reason", "maintenance"]).status,
        0
    );
    assert!(
        holder
            .error_line()
            .contains("asks for the lock: maintenance")
    );
    assert_eq!(holder.ends().status, 0);
}

/// A session has room for a few notes of that length: those that others have pushed out are written again.
#[test]
fn every_permit_of_one_session_is_broken() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let guards = runtime.block_on(async {
        let backend = lockkeeper::backend(&place.url()).await.unwrap();
        let locks = lockkeeper::Locks::builder(backend);
        let locks = locks.ttl(Duration::from_secs(3)).build().unwrap();
        let mut guards = Vec::new();
        for _ in 0..16 {
            let permit = locks.semaphore("s", 16);
            guards.push(permit.acquire().await.unwrap());
        }
        guards
    });
    let session = guards[0].session();
    assert!(guards.iter().all(|guard| guard.session() == session));
    let reason = "ю".repeat(120);
    let broken = place.ends(&["break", "s", "--reason", &reason, "--wait", "30s"]);
    assert_eq!(broken.status, 0, "{broken:?}");
    assert!(guards.iter().all(|guard| !guard.is_valid()));
    runtime.block_on(async { drop(guards) });
}
