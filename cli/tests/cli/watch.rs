//! `lockkeeper watch`.

use rustix::process::Signal;
use serde_json::Value;
use std::process::Stdio;

use crate::harness::{Place, Running};

/// The next lines, without time and session.
fn next(watching: &mut Running) -> Vec<String> {
    let line = watching.line();
    let fields = line.trim_end().split('\t').map(ToOwned::to_owned);
    let mut fields: Vec<String> = fields.skip(1).collect();
    fields.remove(3);
    fields
}

#[test]
fn changes_are_told_with_who_and_why() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a", "--label", "first"]);
    let args = ["watch", "--every", "100ms"];
    let mut watching = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    assert_eq!(next(&mut watching), ["held", "a", "exclusive", "first"]);
    let script = place.sh("echo go; read x");
    let args = ["run", "--lock", "a", "--label", "second", "--"];
    let mut waiter = Running::new(
        place
            .lockkeeper(args.iter().chain(&script))
            .stdin(Stdio::piped()),
    );
    assert_eq!(next(&mut watching), ["waiting", "a", "exclusive", "second"]);
    let broken = place.ends(&["break", "a", "--reason", "it hangs", "--label", "ops"]);
    assert_eq!(broken.status, 0, "{}", broken.stderr);
    let told = next(&mut watching);
    assert_eq!(told[..4], ["broken", "a", "exclusive", "first"]);
    assert_eq!(told[4], "by ops: it hangs");
    assert_eq!(next(&mut watching), ["granted", "a", "exclusive", "second"]);
    assert_eq!(waiter.line().trim_end(), "go");
    waiter.write("\n");
    assert_eq!(waiter.ends().status, 0);
    let told = next(&mut watching);
    // The command closes its session, sometimes between two looks.
    assert!(
        ["released", "ended"].contains(&told[0].as_str()),
        "{told:?}"
    );
    assert_ne!(holder.ends().status, 0);
    watching.signal(Signal::TERM);
    assert_eq!(watching.ends().status, 143);
}

#[test]
fn json_for_programs_and_one_key_alone() {
    let place = Place::new();
    let _others = place.holds(&["--lock", "b"]);
    let mut holder = place.holds(&["--lock", "a"]);
    let args = ["watch", "a", "--json"];
    let mut watching = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    let told: Value = serde_json::from_str(&watching.line()).unwrap();
    assert_eq!(
        (&told["change"], &told["key"]),
        (&"held".into(), &"a".into())
    );
    assert_eq!(told["holder"]["state"], "living");
    holder.write("\n");
    holder.ends();
    let told: Value = serde_json::from_str(&watching.line()).unwrap();
    assert_eq!((&told["key"], &told["by"]), (&"a".into(), &Value::Null));
    watching.signal(Signal::INT);
    watching.ends();
}

#[test]
fn bad_input() {
    let place = Place::new();
    for args in [
        &["watch", "--every", "1ms"][..],
        &["watch", "a", "--prefix", "b"],
        &["watch", ""],
    ] {
        let ended = place.ends(args);
        assert_eq!(ended.status, 64, "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    #[cfg(feature = "top")]
    {
        let ended = place.ends(&["top"]);
        assert_eq!(ended.status, 64);
        assert!(
            ended.stderr.contains("lockkeeper watch"),
            "{}",
            ended.stderr
        );
    }
}
