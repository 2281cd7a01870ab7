//! What users know from other tools: where the URL comes from, messages, tables, completions, namespaces.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Place, Running, ends, json};

#[test]
fn the_url_is_taken_from_where_it_is_safe() {
    let place = Place::new();
    let url = place.file("url", format!("{}\n", place.url()));
    let elsewhere = format!("sqlite:{}", place.path("elsewhere.db").display());
    let mut holder = place.holds(&["--lock", "a"]);
    let held = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = place.lockkeeper([args, &["ls"]].concat());
        command.env_remove("LOCKKEEPER_URL");
        let ended = ends(command.envs(variables.iter().copied()));
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{args:?}");
        ended.stdout.lines().count()
    };
    assert_eq!(held(&[], &[]), 0, "the file of this user");
    assert_eq!(held(&["--url-file", &url], &[]), 1);
    assert_eq!(held(&[], &[("LOCKKEEPER_URL_FILE", &url)]), 1);
    // What is given comes before what is in the environment, and a URL before a file there.
    assert_eq!(
        held(&["--url-file", &url], &[("LOCKKEEPER_URL", &elsewhere)]),
        1
    );
    let both = [
        ("LOCKKEEPER_URL", elsewhere.as_str()),
        ("LOCKKEEPER_URL_FILE", &url),
    ];
    assert_eq!(held(&[], &both), 0);
    // A password for a store that has none is no error where it may be meant for another one.
    assert_eq!(
        held(&["--url-file", &url], &[("LOCKKEEPER_PASSWORD", "x")]),
        1
    );
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn files_that_say_no_url() {
    let place = Place::new();
    let url = place.file("url", place.url());
    let two = place.file("two", "redis://h\nredis://g\n");
    let empty = place.file("empty", "\n");
    let secret = place.file("secret", "redis://me:secret@h\n");
    let long = place.file("long", "x".repeat(70_000));
    for (args, says) in [
        (&["--url-file", "/nonexistent"][..], "cannot be read"),
        (&["--url-file", &two], "one line"),
        (&["--url-file", &empty], "one line"),
        (&["--url-file", &long], "one line"),
        (&["--url-file", &url, "--url", "memory:"], "one of --url"),
        (
            &["--url-file", &url, "--password-file", &secret],
            "names no user",
        ),
        (
            &["--url-file", &secret, "--password-file", &secret],
            "has a password",
        ),
        (
            &["--url", "postgres://h/d", "--password-file", &secret],
            "names no user",
        ),
    ] {
        let ended = place.ends(&[args, &["ls"]].concat());
        assert_eq!(ended.status, 64, "{ended:?}");
        assert!(ended.stderr.contains(says), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        assert!(!ended.stderr.contains("me:secret"), "{ended:?}");
        assert!(!place.path("locks.db").exists());
    }
}

#[test]
fn messages_are_left_out_or_json() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a"]);
    let loud = place.ends(&["break", "b", "--reason", "x"]);
    assert!(loud.stderr.contains("nobody holds \"b\""), "{loud:?}");
    let quiet = place.ends(&["-q", "break", "b", "--reason", "x"]);
    assert_eq!((quiet.status, quiet.stderr.as_str()), (0, ""));
    // An error is said all the same.
    let args = [
        "run", "--quiet", "--lock", "a", "--wait", "300ms", "--", "true",
    ];
    let quiet = place.ends(&args);
    assert_eq!(
        (quiet.status, quiet.stderr.lines().count()),
        (75, 1),
        "{quiet:?}"
    );
    assert!(quiet.stderr.contains("(exclusive since"), "{quiet:?}");
    let args = [
        "run", "--json", "--lock", "a", "--wait", "300ms", "--", "true",
    ];
    let ended = place.ends(&args);
    let messages = json(&ended.stderr);
    assert_eq!(messages.len(), 2, "{ended:?}");
    assert!(
        messages[0]["message"]
            .as_str()
            .unwrap()
            .starts_with("waiting: ")
    );
    assert_eq!(
        (&messages[0]["status"], &messages[1]["status"]),
        (&().into(), &75.into())
    );
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn results_are_json_everywhere() {
    let place = Place::new();
    let result = |args: &[&str]| {
        let ended = place.ends(&[args, &["--json"]].concat());
        assert_eq!(ended.status, 0, "{ended:?}");
        let mut values = json(&ended.stdout);
        assert_eq!(values.len(), 1, "{ended:?}");
        values.remove(0)
    };
    assert_eq!(result(&["init"])["done"], "init");
    let ping = result(&["ping"]);
    assert_eq!(
        (&ping["store"], &ping["url"]),
        (&"sqlite".into(), &place.url().into())
    );
    assert!(ping["answered_ms"].as_f64().unwrap() > 0.0);
    let mut holder = place.holds(&["--lock", "a"]);
    let broken = result(&["break", "a", "--reason", "x"]);
    assert_eq!(broken["given_up"].as_array().unwrap().len(), 1);
    assert_eq!(holder.ends().status, 76);
    assert_eq!(
        result(&["break", "a", "--reason", "x"])["given_up"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    assert_eq!(result(&["sweep"])["removed"], 0);
    let session = place.ends(&["sessions", "--all", "--json"]).stdout;
    let session = json(&session)[0]["session"].as_str().unwrap().to_owned();
    let discarded = result(&["discard", &session, "--reason", "x"]);
    assert_eq!(
        (&discarded["session"], &discarded["discarded"]),
        (&session.into(), &false.into())
    );
    assert_eq!(result(&["remove"])["done"], "remove");
}

#[test]
fn others_are_shown_the_label() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a", "--label", "nightly on web-1"]);
    assert!(
        place.held()[0].ends_with("\tnightly on web-1"),
        "{:?}",
        place.held()
    );
    let ended = place.ends(&["break", "a", "--reason", "stuck", "--label", "the operator"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    let ended = holder.ends();
    assert!(ended.stderr.contains("the operator"), "{ended:?}");
    let ended = place.ends(&["run", "--lock", "a", "--label", "two\nlines", "--", "true"]);
    assert_eq!(ended.status, 64, "{ended:?}");
}

#[test]
fn a_status_for_busy_locks() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a"]);
    for (status, wait) in [
        ("0", "--no-wait"),
        ("1", "--no-wait"),
        ("200", "--wait=100ms"),
    ] {
        let args = [
            "run",
            "--busy-status",
            status,
            "--lock",
            "a",
            wait,
            "--",
            "true",
        ];
        assert_eq!(place.ends(&args).status.to_string(), status);
    }
    // As quiet as flock, where that is none of a failure.
    for (status, silent) in [("0", true), ("1", false)] {
        let busy = ["run", "-q", "--no-wait", "--busy-status", status];
        let ended = place.ends(&[&busy[..], &["--lock", "a", "--", "true"]].concat());
        assert_eq!(ended.status.to_string(), status);
        assert_eq!(ended.stderr.is_empty(), silent, "{ended:?}");
    }
    let args = ["run", "--busy-status", "256", "--lock", "a", "--", "true"];
    assert_eq!(place.ends(&args).status, 64);
    // The command's own status is no matter of ours.
    let args = ["run", "--busy-status", "3", "--lock", "b", "-c", "exit 75"];
    assert_eq!(place.ends(&args).status, 75);
    assert_eq!(holder.ends().status, 0);
}

#[test]
fn a_line_for_the_shell() {
    let place = Place::new();
    let ended = place.ends(&["run", "--lock", "a", "-c", "echo $((1 + 1)); exit 3"]);
    assert_eq!((ended.status, ended.stdout.as_str()), (3, "2\n"));
    let ended = place.ends(&["run", "--lock", "a", "-c", "true", "--", "true"]);
    assert_eq!(ended.status, 64, "{ended:?}");
}

#[test]
fn a_lockkeeper_inside_finds_the_store() {
    let place = Place::new();
    let lockkeeper = env!("CARGO_BIN_EXE_lockkeeper");
    let inner = format!("{lockkeeper} run --lock b -c '{lockkeeper} ls'");
    let ended = place.runs(&["--lock", "a"], &inner);
    assert_eq!(ended.status, 0, "{ended:?}");
    let keys: Vec<&str> = ended
        .stdout
        .lines()
        .filter_map(|it| it.split('\t').next())
        .collect();
    assert_eq!(keys, ["a", "b"]);
}

#[test]
fn a_namespace_is_created_and_removed() {
    let place = Place::new();
    let ended = place.ends(&["init"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(place.path("locks.db").exists());
    let ended = place.ends(&["init", "--role", "app"]);
    assert_eq!(ended.status, 64, "{ended:?}");
    let mut holder = place.holds(&["--lock", "a", "--intent", "{}"]);
    let ended = place.ends(&["remove"]);
    assert_eq!(ended.status, 75, "{ended:?}");
    assert!(ended.stderr.contains("lives: end its program"), "{ended:?}");
    holder.signal(Signal::KILL);
    holder.ends();
    // Nobody has to want the lock for its lease to be over.
    let until = Instant::now() + Duration::from_secs(60);
    let ended = loop {
        let ended = place.ends(&["remove"]);
        if ended.status != 75 || Instant::now() > until {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(ended.status, 77, "{ended:?}");
    assert!(place.path("locks.db").exists());
    let ended = place.ends(&["remove", "--force"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(!place.path("locks.db").exists());
}

#[test]
fn rights_are_printed() {
    let place = Place::new();
    #[cfg(any(feature = "redis", feature = "postgres", feature = "elasticsearch"))]
    let printed = |store: &str, args: &[&str]| {
        let ended = place.ends(&[&["grants", store], args].concat());
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended:?}");
        ended.stdout
    };
    #[cfg(feature = "redis")]
    {
        let acl = printed("redis", &["--namespace", "jobs"]);
        assert!(acl.starts_with("user jobs on >CHANGE-ME") && acl.contains("~{jobs}:*"));
        assert_eq!(acl.lines().count(), 1, "an ACL file has nothing but rules");
    }
    #[cfg(feature = "postgres")]
    {
        let sql = printed("postgres", &[]);
        assert!(
            sql.starts_with("BEGIN;") && sql.trim_end().ends_with("COMMIT;"),
            "{sql}"
        );
        assert!(sql.contains("GRANT USAGE ON SCHEMA \"lockkeeper\" TO \"lockkeeper\";"));
        assert!(!sql.contains("{ns}") && !sql.contains("{role}"));
    }
    #[cfg(feature = "elasticsearch")]
    for store in ["elasticsearch", "opensearch"] {
        let roles = json(&printed(store, &["--json", "--namespace", "jobs"]));
        assert_eq!(roles.len(), 2);
        for role in roles {
            let text = role["text"].as_str().unwrap();
            let text: serde_json::Value = serde_json::from_str(text).unwrap();
            assert!(text.to_string().contains("\"jobs\""), "{text}");
        }
    }
    for args in [
        &["grants", "mysql"][..],
        &["grants", "redis", "--namespace", "A"],
    ] {
        assert_eq!(place.ends(args).status, 64);
    }
}

#[test]
fn shells_complete_and_the_manual_is_there() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let ended = place.ends(&["completions", shell]);
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        assert!(ended.stdout.contains("busy-status"), "{shell}");
    }
    let page = place.ends(&["man"]).stdout;
    assert!(
        page.contains(".TH lockkeeper") && page.contains("75 busy"),
        "{page}"
    );
    let page = place.ends(&["man", "run"]).stdout;
    assert!(
        page.contains("busy\\-status") && page.contains(".TH lockkeeper-run"),
        "{page}"
    );
    assert_eq!(place.ends(&["man", "walk"]).status, 64);
}

#[test]
fn who_waits_says_it_again() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a", "--label", "the holder"]);
    let mut waiter = Running::new(
        place
            .lockkeeper(["run", "--lock", "a", "--", "true"])
            .stdin(Stdio::null()),
    );
    let first = waiter.error_line();
    assert!(
        first.contains("waiting: \"a\" is held by the holder (exclusive since"),
        "{first}"
    );
    let second = waiter.error_line();
    assert!(
        second.contains("waiting for 30s: \"a\" is held by the holder"),
        "{second}"
    );
    assert_eq!(holder.ends().status, 0);
    assert_eq!(waiter.ends().status, 0);
}
