//! Locks of several steps, and locks that are kept when their command has ended.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::stat;

use crate::harness::{Place, Running, json, until};

fn handle(place: &Place, args: &[&str]) -> String {
    let ended = place.ends(&[&["acquire"], args].concat());
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended:?}");
    ended.stdout.trim().to_owned()
}

#[test]
fn a_lock_of_several_steps() {
    let place = Place::new();
    let handle = handle(
        &place,
        &["--lock", "deploy", "--ttl", "1h", "--label", "build 7"],
    );
    let listed = place.held();
    assert!(
        listed[0].starts_with("deploy\texclusive\t") && listed[0].ends_with("\tbuild 7"),
        "{listed:?}"
    );
    let busy = place.ends(&[
        "acquire",
        "--lock",
        "deploy",
        "--ttl",
        "1h",
        "--no-wait",
        "--busy-status",
        "9",
    ]);
    assert_eq!((busy.status, busy.stdout.as_str()), (9, ""), "{busy:?}");
    for args in [
        &["status", &handle][..],
        &["renew", &handle, "--ttl", "2h"],
        &["status", &handle],
    ] {
        assert_eq!(place.ends(args).status, 0);
    }
    let status = place.ends(&["status", &handle, "--json"]);
    let status = &json(&status.stdout)[0];
    assert_eq!(status["held"], true);
    let left = status["lease_left_ms"].as_u64().unwrap();
    assert!((7_100_000..=7_200_000).contains(&left), "{left}");
    assert!(status["token"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(place.ends(&["release", &handle]).status, 0);
    assert_eq!(place.held(), [""; 0]);
    for args in [
        &["status", &handle][..],
        &["renew", &handle, "--ttl", "2h"],
        &["release", &handle],
    ] {
        let ended = place.ends(args);
        assert_eq!(
            (ended.status, ended.stderr.lines().count()),
            (76, 1),
            "{ended:?}"
        );
    }
}

#[test]
fn a_kept_lock_is_broken_at_once() {
    let place = Place::new();
    let handle = handle(
        &place,
        &["--document", "a", "--document", "b", "--ttl", "1h"],
    );
    let mut other = place.holds(&["--lock", "other"]);
    let scheduled = place.runs(&["--lock", "job", "--at-least", "1h"], "true");
    assert_eq!(scheduled.status, 0, "{scheduled:?}");
    for key in ["a", "job"] {
        let since = Instant::now();
        let broken = place.ends(&["break", key, "--reason", "by hand", "--json"]);
        assert_eq!(broken.status, 0, "{broken:?}");
        // Else it would wait for 15 seconds.
        assert!(since.elapsed() < Duration::from_secs(8), "{broken:?}");
        assert!(broken.stderr.contains("revoked session"), "{broken:?}");
        let told = &json(&broken.stdout)[0];
        assert_eq!(told["revoked"].as_array().unwrap().len(), 1, "{told}");
        assert_eq!(told["given_up"].as_array().unwrap().len(), 0, "{told}");
    }
    let held = place.held();
    assert!(
        held.len() == 1 && held[0].starts_with("other\t"),
        "{held:?}"
    );
    assert_eq!(place.ends(&["renew", &handle, "--ttl", "1h"]).status, 76);
    let told = place.ends(&["sessions", "--ended"]).stdout;
    assert!(
        told.contains("revoke by ") && told.contains("by hand"),
        "{told}"
    );
    assert_eq!(other.ends().status, 0);
}

#[test]
fn nobody_hears_that_a_kept_lock_is_asked_for() {
    let place = Place::new();
    handle(&place, &["--lock", "a", "--ttl", "1m"]);
    let ended = place.ends(&["ask", "a", "--reason", "maintenance", "--json"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(ended.stderr.contains("no process hears that"), "{ended:?}");
    let told = &crate::harness::json(&ended.stdout)[0];
    assert_eq!((&told["asked"], &told["kept"]), (&1.into(), &1.into()));
}

#[test]
fn a_handle_in_a_file_or_in_the_environment() {
    let place = Place::new();
    let file = place.path("handle");
    let file = file.to_str().unwrap();
    let args = [
        "acquire",
        "--document",
        "a",
        "--document",
        "b",
        "--ttl",
        "1h",
        "--handle-file",
        file,
    ];
    let ended = place.ends(&args);
    assert_eq!((ended.status, ended.stdout.as_str()), (0, ""), "{ended:?}");
    assert_eq!(stat(file).unwrap().st_mode & 0o777, 0o600);
    assert_eq!(place.ends(&["status", "--handle-file", file]).status, 0);
    // A file that others could read.
    let open = place.file("open", "");
    set_permissions(&open, Permissions::from_mode(0o644)).unwrap();
    let args = [
        "acquire",
        "--lock",
        "open",
        "--ttl",
        "1h",
        "--handle-file",
        &open,
    ];
    assert_eq!(place.ends(&args).status, 0);
    assert_eq!(stat(&open).unwrap().st_mode & 0o777, 0o600);
    assert_eq!(place.ends(&["release", "--handle-file", &open]).status, 0);
    let handle = place.read("handle");
    let mut command = place.lockkeeper(["release"]);
    let ended = crate::harness::ends(command.env("LOCKKEEPER_HANDLE", handle.trim()));
    assert_eq!(ended.status, 0, "{ended:?}");
    // Where the handle cannot be written nothing stays held.
    let args = [
        "acquire",
        "--lock",
        "a",
        "--ttl",
        "1h",
        "--handle-file",
        "/nonexistent/handle",
    ];
    let ended = place.ends(&args);
    assert_eq!(ended.status, 64, "{ended:?}");
    assert_eq!(place.held(), [""; 0]);
    // Nor is anything waited for; and a lock that is not had leaves no file.
    let mut running = place.holds(&["--lock", "a"]);
    let ended = place.ends(&args);
    assert_eq!(ended.status, 64, "{ended:?}");
    let (new, wait) = (place.path("new"), ["--wait", "50ms", "--handle-file"]);
    let args = ["acquire", "--lock", "a", "--ttl", "1h"];
    let args = [&args[..], &wait, &[new.to_str().unwrap()]].concat();
    let ended = place.ends(&args);
    assert_eq!(ended.status, 75, "{ended:?}");
    assert!(!new.exists());
    // Nor does whoever waited in vain touch the handle that another program has written there meanwhile.
    let args = [
        "acquire",
        "--lock",
        "a",
        "--ttl",
        "1h",
        "--wait",
        "2s",
        "--handle-file",
    ];
    let mut waits = Running::new(
        place
            .lockkeeper([&args[..], &[new.to_str().unwrap()]].concat())
            .stdin(Stdio::null()),
    );
    until("it waits", || place.sessions().len() == 2);
    let args = [
        "acquire",
        "--lock",
        "b",
        "--ttl",
        "1h",
        "--handle-file",
        new.to_str().unwrap(),
    ];
    assert_eq!(place.ends(&args).status, 0);
    assert_eq!(waits.ends().status, 75);
    let ended = place.ends(&["release", "--handle-file", new.to_str().unwrap()]);
    assert_eq!(ended.status, 0, "{ended:?}");
    let others = std::fs::read_dir(new.parent().unwrap()).unwrap();
    let others = others.map(|it| it.unwrap().file_name().into_string().unwrap());
    assert_eq!(
        others
            .filter(|name| name.starts_with(".lockkeeper"))
            .count(),
        0
    );
    running.close();
    assert_eq!(running.ends().status, 0);
}

#[test]
fn a_wrong_handle_is_refused() {
    let place = Place::new();
    let mut running = place.holds(&["--lock", "r"]);
    let session = place.sessions()[0].0.clone();
    let (one, two) = (
        handle(&place, &["--lock", "a", "--ttl", "1h"]),
        handle(&place, &["--lock", "b", "--ttl", "1h"]),
    );
    let parts = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (mut other, mut of_running) = (parts(&one), parts(&one));
    other[2] = parts(&two)[2].clone();
    of_running[1] = session;
    for wrong in [other.join("."), "x".to_owned(), one[1..].to_owned()] {
        for args in [
            &["release", &wrong][..],
            &["status", &wrong],
            &["renew", &wrong, "--ttl", "1s"],
        ] {
            let ended = place.ends(args);
            assert_eq!(
                (ended.status, ended.stderr.lines().count()),
                (64, 1),
                "{ended:?}"
            );
            assert!(ended.stderr.contains("handle"), "{ended:?}");
        }
    }
    // That session keeps nothing.
    assert_eq!(place.ends(&["release", &of_running.join(".")]).status, 76);
    assert_eq!(place.ends(&["release"]).status, 64);
    assert_eq!(place.held().len(), 3);
    assert_eq!(running.ends().status, 0);
}

#[test]
fn a_lock_is_kept_when_its_command_has_ended() {
    let place = Place::new();
    let since = Instant::now();
    let run = |status: &str| {
        place.ends(&[
            "run",
            "--lock",
            "job",
            "--at-least",
            "4s",
            "-c",
            &format!("echo ran; exit {status}"),
        ])
    };
    let ended = run("3");
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (3, "ran\n"),
        "{ended:?}"
    );
    // It does not wait for the next period.
    let again = run("0");
    assert_eq!((again.status, again.stdout.as_str()), (75, ""), "{again:?}");
    assert!(since.elapsed() < Duration::from_secs(4));
    let args = [
        "run",
        "--lock",
        "job",
        "--at-least",
        "1s",
        "--wait",
        "60s",
        "-c",
        "sleep 1.2",
    ];
    let waited = place.ends(&args);
    assert_eq!(waited.status, 0, "{waited:?}");
    assert!(
        since.elapsed() >= Duration::from_secs(5),
        "{:?}",
        since.elapsed()
    );
    // Whoever is ended by --max-hold has run, too.
    let args = ["--at-least", "60s", "--max-hold", "2s"];
    let args = [&["run", "--lock", "long"], &args[..], &["-c", "sleep 60"]].concat();
    let apart = Place::new();
    assert_eq!(apart.ends(&args).status, 76);
    assert_eq!(apart.ends(&args).status, 75);
    let apart = Place::new();
    // Between its end and that of the lease there is half a second.
    let args = ["--at-least", "60s", "--max-hold", "5s"];
    let stubborn = ["-c", "trap '' TERM; while :; do sleep 0.02; done"];
    let args = [&["run", "--lock", "long"], &args[..], &stubborn].concat();
    let killed = apart.ends(&args);
    assert_eq!(killed.status, 76, "{killed:?}");
    assert!(
        killed.stderr.contains("the command is killed"),
        "{killed:?}"
    );
    assert_eq!(apart.ends(&args).status, 75);
    // The command took longer than that.
    assert_eq!(place.held(), [""; 0]);
    for (args, says) in [
        (&["--at-least", "25h"][..], "from 1s to 24h"),
        (&["--at-least", "1m", "--intent", "{}"], "--intent"),
    ] {
        let ended = place.runs(&[&["--lock", "a"], args].concat(), "true");
        assert_eq!(ended.status, 64, "{ended:?}");
        assert!(ended.stderr.contains(says), "{ended:?}");
    }
}

/// The file in which it is to be was there, and has gone while the lock was waited for.
#[test]
fn a_handle_is_written_where_it_is_looked_for() {
    for link in [false, true] {
        let place = Place::new();
        let file = place.file("handle", "");
        let name = match link {
            false => file.clone(),
            true => {
                let name = place.path("link").display().to_string();
                std::os::unix::fs::symlink(&file, &name).unwrap();
                name
            }
        };
        let mut holder = place.holds(&["--lock", "a"]);
        let args = [
            "acquire",
            "--lock",
            "a",
            "--ttl",
            "1h",
            "--handle-file",
            &name,
        ];
        let mut waits = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
        until("it waits", || place.sessions().len() == 2);
        std::fs::remove_file(&file).unwrap();
        holder.close();
        assert_eq!(holder.ends().status, 0);
        let ended = waits.ends();
        assert_eq!(ended.status, 0, "{ended:?}");
        assert_eq!(place.ends(&["status", "--handle-file", &name]).status, 0);
        assert_eq!(place.ends(&["release", "--handle-file", &name]).status, 0);
    }
}
