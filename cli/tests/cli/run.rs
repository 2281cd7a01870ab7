//! `lockkeeper run`: claims, options, what the command gets, and the exit status.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Place, Running, ends, json};

#[test]
fn help_and_version() {
    let place = Place::new();
    for args in [
        &["--help"][..],
        &["--version"],
        &["-h"],
        &["run", "--help"],
        &["recover", "--help"],
    ] {
        let ended = place.ends(args);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{args:?}");
        assert!(!ended.stdout.is_empty(), "{args:?}");
    }
    let secret = "redis://me:secret@h";
    let help = ends(
        place
            .lockkeeper(["run", "--help"])
            .env("LOCKKEEPER_URL", secret),
    );
    assert!(!help.stdout.contains("secret"));
}

#[test]
fn the_status_is_the_commands() {
    let place = Place::new();
    for status in [0, 1, 3, 64, 75, 255] {
        let ended = place.runs(&["--lock", "a"], &format!("exit {status}"));
        assert_eq!((ended.status, ended.stderr.as_str()), (status, ""));
    }
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("USR1", 10)] {
        let ended = place.runs(&["--lock", "a"], &format!("kill -{signal} $$"));
        assert_eq!((ended.status, ended.stderr.as_str()), (128 + number, ""));
    }
    assert_eq!(place.held(), [""; 0]);
}

#[test]
fn a_command_that_cannot_be_run_takes_no_lock() {
    let place = Place::new();
    let plain = place.file("plain", "true");
    let directory = place.path("").display().to_string();
    for (command, status, says) in [
        ("no-such-command", 127, "no such command"),
        ("./no-such-command", 127, "no such command"),
        ("", 127, "no such command"),
        (&plain, 126, "cannot be run"),
        (&directory, 126, "cannot be run"),
    ] {
        let ended = place.ends(&["run", "--lock", "a", "--intent", "{}", "--", command]);
        assert_eq!(ended.status, status, "{ended:?}");
        assert!(ended.stderr.contains(says), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        assert!(!place.path("locks.db").exists());
    }
}

#[test]
fn a_command_that_only_fails_when_it_is_run() {
    let place = Place::new();
    let script = place.file("script", "#!/nonexistent/interpreter\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ended = place.ends(&["run", "--lock", "a", "--", &script]);
    assert_eq!(ended.status, 127, "{ended:?}");
    assert!(ended.stderr.contains("no such command"), "{ended:?}");
    assert_eq!(place.held(), [""; 0]);
    let ended = place.ends(&["--json", "run", "--lock", "a", "--", &script]);
    let lines = json(&ended.stderr);
    assert_eq!(lines.last().unwrap()["status"], 127, "{ended:?}");
    // There is no run to keep the lock for; one that ends with that status has run.
    let args = ["run", "--lock", "a", "--at-least", "1h", "--"];
    let ended = place.ends(&[&args[..], &[&script]].concat());
    assert_eq!(ended.status, 127, "{ended:?}");
    if cfg!(target_os = "linux") {
        assert_eq!(place.held(), [""; 0]);
    }
    let ended = place.ends(&[&args[..], &["sh", "-c", "exit 127"]].concat());
    assert_eq!(ended.status, 127, "{ended:?}");
    assert_eq!(place.held().len(), 1);
}

#[test]
fn the_environment() {
    let place = Place::new();
    let script = "echo $LOCKKEEPER_TOKEN; echo $LOCKKEEPER_SESSION; echo $LOCKKEEPER_STORE";
    let first = place.runs(&["--lock", "a"], script).stdout;
    let second = place.runs(&["--lock", "a"], script).stdout;
    let token = |output: &str| output.lines().next().unwrap().parse::<u64>().unwrap();
    assert!(token(&first) < token(&second));
    let session = first.lines().nth(1).unwrap();
    assert_eq!(session.len(), 32);
    assert_ne!(Some(session), second.lines().nth(1));
    assert_eq!(first.lines().nth(2), Some(place.url().as_str()));
}

/// With whatever a password would be, for a `lockkeeper` inside the command.
#[test]
fn the_callers_url_stays_as_it_is() {
    let place = Place::new();
    let script = "echo ${LOCKKEEPER_URL-none}; echo $LOCKKEEPER_STORE";
    let elsewhere = format!("sqlite:{}", place.path("elsewhere.db").display());
    let args = [
        "--url", &elsewhere, "run", "--lock", "a", "--", "sh", "-c", script,
    ];
    for theirs in [None, Some("redis://me:secret@host")] {
        let mut command = place.lockkeeper(args);
        match theirs {
            Some(url) => command.env("LOCKKEEPER_URL", url),
            None => command.env_remove("LOCKKEEPER_URL"),
        };
        let ended = ends(&mut command);
        let expected = format!("{}\n{elsewhere}\n", theirs.unwrap_or("none"));
        assert_eq!((ended.status, ended.stdout), (0, expected));
    }
}

#[test]
fn the_url_is_good_from_elsewhere() {
    let place = Place::new();
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let script = format!("cd /; {lockkeeper} --url $LOCKKEEPER_STORE inspect a");
    let args = [
        "--url",
        "sqlite:relative.db",
        "run",
        "--lock",
        "a",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let ended = place.ends(&args);
    assert!(ended.stdout.starts_with("exclusive\t"), "{ended:?}");
    assert!(place.path("relative.db").exists());
}

#[test]
fn without_a_url() {
    let place = Place::new();
    let home = place.path("home");
    std::fs::create_dir(&home).unwrap();
    let run = |state: Option<&str>, home: Option<&str>| {
        let mut command = place.lockkeeper([
            "run",
            "--lock",
            "a",
            "--",
            "sh",
            "-c",
            "echo $LOCKKEEPER_STORE",
        ]);
        for (name, value) in [
            ("XDG_STATE_HOME", state),
            ("HOME", home),
            ("LOCKKEEPER_URL", None),
        ] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        ends(&mut command)
    };
    let home = home.to_str().unwrap();
    let state = format!("{home}/elsewhere");
    let file = format!("{state}/lockkeeper/locks.db");
    assert_eq!(
        run(Some(&state), Some(home)).stdout,
        format!("sqlite:{file}\n")
    );
    let mode = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(&format!("{state}/lockkeeper")), 0o700);
    let file = format!("{home}/.local/state/lockkeeper/locks.db");
    for state in [None, Some("relative/is/ignored")] {
        assert_eq!(run(state, Some(home)).stdout, format!("sqlite:{file}\n"));
    }
    let ended = run(None, None);
    assert_eq!(ended.status, 64);
    assert!(ended.stderr.contains("--url"), "{ended:?}");
}

#[test]
fn the_command_leads_its_own_process_group() {
    let place = Place::new();
    let ended = place.runs(&["--lock", "a"], "cut -d' ' -f1,5 /proc/$$/stat");
    let (pid, group) = ended.stdout.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
}

#[test]
fn standard_input_is_the_commands() {
    let place = Place::new();
    let input = place.file("input", "hello\n");
    let input = || Stdio::from(std::fs::File::open(&input).unwrap());
    let args = ["run", "--lock", "a", "--", "cat"];
    let ended = Running::new(place.lockkeeper(args).stdin(input())).ends();
    assert_eq!(ended.stdout, "hello\n");
    // Unless the ids came from there.
    let args = [
        "run",
        "--documents-from",
        "-",
        "--",
        "sh",
        "-c",
        "wc -c; readlink /proc/$$/fd/0",
    ];
    let ended = Running::new(place.lockkeeper(args).stdin(input())).ends();
    assert_eq!(ended.stdout, "0\n/dev/null\n");
}

#[test]
fn busy_says_who_holds_it() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a"]);
    let ended = place.runs(&["--lock", "a", "--no-wait"], "true");
    assert_eq!(ended.status, 75);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    // The label has the process and its command.
    let label = format!(" {} sh (exclusive since 2", holder.pid());
    assert!(ended.stderr.contains("\"a\" is held by "), "{ended:?}");
    assert!(ended.stderr.contains(&label), "{ended:?}");
    assert_eq!(holder.ends().status, 0);
    assert_eq!(place.runs(&["--lock", "a", "--no-wait"], "true").status, 0);
}

#[test]
fn a_wait_that_is_over() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a"]);
    let since = Instant::now();
    let ended = place.runs(&["--lock", "a", "--wait", "300ms"], "true");
    assert_eq!(ended.status, 75, "{ended:?}");
    assert!(since.elapsed() >= Duration::from_millis(300));
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{ended:?}");
    assert!(
        lines[0].starts_with("lockkeeper: waiting: \"a\" is held by "),
        "{ended:?}"
    );
    assert!(
        lines[1].starts_with("lockkeeper: \"a\" is held by "),
        "{ended:?}"
    );
    assert_eq!(
        place.runs(&["--lock", "a", "--wait", "0s"], "true").status,
        75
    );
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn a_wait_that_is_rewarded() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a"]);
    let args = ["run", "--lock", "a", "--", "echo", "got it"];
    let mut waiter = Running::new(place.lockkeeper(args).stdin(Stdio::null()));
    assert!(waiter.error_line().contains("waiting: \"a\" is held by "));
    assert_eq!(holder.ends().status, 0);
    let ended = waiter.ends();
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "got it\n"),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.lines().count(), 1, "said once: {ended:?}");
}

#[test]
fn documents() {
    let place = Place::new();
    let file = place.file("ids", "c\nd\nno end of line");
    let mut holder = place.holds(&[
        "--document",
        "a",
        "--document",
        "b",
        "--documents-from",
        &file,
    ]);
    for id in ["a", "b", "c", "d", "no end of line"] {
        let ended = place.runs(
            &["--document", "free", "--document", id, "--no-wait"],
            "true",
        );
        assert_eq!(ended.status, 75, "{id}");
    }
    assert_eq!(
        place
            .runs(&["--document", "free", "--no-wait"], "true")
            .status,
        0
    );
    assert_eq!(place.held().len(), 5);
    assert_eq!(holder.ends().status, 0);
    assert_eq!(place.held(), [""; 0]);
}

#[test]
fn hundreds_of_thousands_of_documents() {
    let place = Place::new();
    let ids: String = (0..200_000)
        .map(|n| format!("usr/share/doc/{n}\n"))
        .collect();
    let file = place.file("ids", ids);
    let mut holder = place.holds(&["--documents-from", &file]);
    let last = ["--document", "usr/share/doc/199999", "--no-wait"];
    assert_eq!(place.runs(&last, "true").status, 75);
    assert_eq!(holder.ends().status, 0);
    assert_eq!(place.runs(&last, "true").status, 0);
    assert_eq!(place.held(), [""; 0]);
}

#[test]
fn trees() {
    let place = Place::new();
    let mut reader = place.holds(&["--read", "/a/b", "--write", "/c"]);
    for (claims, status) in [
        (&["--read", "/a/b"][..], 0),
        (&["--read", "/a"], 0),
        (&["--write", "/a/c"], 0),
        (&["--write", "/a!"], 0),
        (&["--write", "/a"], 75),
        (&["--write", "/a/b/c"], 75),
        (&["--read", "/c/d"], 75),
        (&["--read", "/x", "--write", "/y", "--write", "/c/d"], 75),
        (&["--read", "/x", "--write", "/y"], 0),
    ] {
        let ended = place.runs(&[claims, &["--no-wait"]].concat(), "true");
        assert_eq!(ended.status, status, "{claims:?}: {ended:?}");
    }
    assert_eq!(reader.ends().status, 0);
}

#[test]
fn shares() {
    let place = Place::new();
    let share = ["--share", "s", "--limit", "2", "--no-wait"];
    let mut first = place.holds(&share);
    let mut second = place.holds(&share);
    assert_eq!(place.runs(&share, "true").status, 75);
    assert_eq!(place.runs(&["--share", "s", "--no-wait"], "true").status, 0);
    assert_eq!(place.runs(&["--lock", "s", "--no-wait"], "true").status, 75);
    assert_eq!(first.ends().status, 0);
    assert_eq!(place.runs(&share, "true").status, 0);
    assert_eq!(second.ends().status, 0);
}

#[test]
fn a_lock_outlives_several_ttls() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a", "--ttl", "1s"]);
    // Expiry is the subject: the lock would be free after one second.
    let ended = place.runs(&["--lock", "a", "--wait", "2500ms"], "true");
    assert_eq!(ended.status, 75, "{ended:?}");
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn what_the_command_leaves_behind_is_not_waited_for() {
    let place = Place::new();
    // It would keep the outputs of the test open.
    let script = "sleep 60 >/dev/null 2>&1 & echo $!";
    let ended = place.runs(&["--lock", "a"], script);
    assert_eq!(ended.status, 0, "{ended:?}");
    let pid = ended.stdout.trim();
    assert!(
        crate::harness::runs(pid),
        "it is not ended with the command"
    );
    let kill = std::process::Command::new("kill").arg(pid).status();
    assert!(kill.unwrap().success());
}

/// The book's word for it.
#[test]
fn a_lock_is_a_global_lock_too() {
    let place = Place::new();
    let mut holder = place.holds(&["--global", "a"]);
    let other = place.runs(&["--lock", "a", "--no-wait"], "true");
    assert_eq!(other.status, 75, "{other:?}");
    holder.signal(Signal::TERM);
    drop(holder.ends());
    let other = place.runs(&["--lock", "a", "--no-wait"], "true");
    assert_eq!(other.status, 0, "{other:?}");
}
