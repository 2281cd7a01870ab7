//! Bad usage and bad input: status 64 and one line that says what to do, before anything is written.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use crate::harness::{Ended, Place, Running, ends};

/// Refused with 64, in one line, without a store having been made.
#[track_caller]
fn refused(place: &Place, ended: &Ended, says: &str) {
    assert_eq!(ended.status, 64, "{ended:?}");
    assert_eq!(ended.stdout, "", "{ended:?}");
    assert!(ended.stderr.starts_with("lockkeeper: "), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert!(ended.stderr.contains(says), "{says:?} is not in {ended:?}");
    assert!(!place.path("locks.db").exists(), "a store was made");
    assert!(!place.path("state").exists(), "a state directory was made");
}

#[test]
fn usage() {
    let place = Place::new();
    for (args, says) in [
        (&[][..], "requires a subcommand"),
        (&["lock"], "unrecognized subcommand"),
        (&["run", "--lock", "a"], "COMMAND"),
        (
            &["run", "--lock", "a", "true"],
            "unexpected argument 'true'",
        ),
        (&["run", "--", "true"], "nothing to lock"),
        (
            &["run", "--lock", "a", "--nowait", "--", "true"],
            "--nowait",
        ),
        (
            &[
                "run",
                "--lock",
                "a",
                "--wait",
                "1s",
                "--no-wait",
                "--",
                "true",
            ],
            "--no-wait",
        ),
        (
            &["run", "--lock", "a", "--lock", "b", "--", "true"],
            "--lock",
        ),
        (&["inspect"], "KEY"),
        (&["break", "a"], "--reason"),
        (&["break", "a", "--reason", " "], "reason"),
        (&["break", "a", "--reason", "two\nlines"], "reason"),
        (&["discard", "00000000000000000000000000000001"], "--reason"),
        (
            &["discard", "1", "--reason", "x"],
            "32 lower-case hexadecimal digits",
        ),
        (
            &["recover", "x", "--", "true"],
            "32 lower-case hexadecimal digits",
        ),
        (&["recover"], "COMMAND"),
        (&["ls", "a"], "unexpected argument 'a'"),
    ] {
        refused(&place, &place.ends(args), says);
        let as_json = place.ends(&[&["--json"][..], args].concat());
        let said: serde_json::Value = serde_json::from_str(&as_json.stderr).unwrap();
        assert_eq!((as_json.status, &said["status"]), (64, &64.into()));
        let message = said["message"].as_str().unwrap();
        assert!(message.contains(says), "{says:?} is not in {as_json:?}");
    }
}

#[test]
fn one_scheme_at_a_time() {
    let place = Place::new();
    let claims = [
        &["--lock", "a"][..],
        &["--document", "a"],
        &["--documents-from", "/dev/null"],
        &["--write", "/a"],
        &["--read", "/a"],
        &["--share", "a"],
    ];
    for (at, one) in claims.iter().enumerate() {
        for (behind, other) in claims.iter().enumerate() {
            let together = matches!((at, behind), (1, 2) | (2, 1) | (3, 4) | (4, 3));
            if at == behind || together {
                continue;
            }
            refused(
                &place,
                &place.runs(&[*one, *other].concat(), "true"),
                "of one kind",
            );
        }
    }
    for other in ["--lock", "--document"] {
        let ended = place.runs(&[other, "a", "--limit", "2"], "true");
        refused(&place, &ended, "--limit goes with --share");
    }
}

#[test]
fn keys_and_paths() {
    let place = Place::new();
    let long = "x".repeat(1_025);
    let deep = "/a".repeat(65);
    for (option, key, says) in [
        ("--lock", "", "at least one byte"),
        ("--lock", &long, "at most 1024 bytes"),
        ("--lock", "a\tb", "control characters"),
        ("--lock", "/a", "is a path"),
        ("--share", "", "at least one byte"),
        ("--share", "/a", "is a path"),
        ("--document", "", "at least one byte"),
        ("--document", "a\nb", "control characters"),
        ("--document", "/a", "is a path"),
        ("--write", "", "at least one byte"),
        ("--write", "a", "begins with '/'"),
        ("--write", "/", "'/' alone is no path"),
        ("--write", "/a/", "no '/' at its end"),
        ("--write", "/a//b", "no empty component"),
        ("--write", "/a/../b", "no component '.' or '..'"),
        ("--read", "/a/./b", "no component '.' or '..'"),
        ("--read", "a/b", "begins with '/'"),
        ("--read", &deep, "at most 64 components"),
    ] {
        refused(&place, &place.runs(&[option, key], "true"), says);
    }
    for key in ["", "/a/", "a\u{7}b"] {
        refused(&place, &place.ends(&["inspect", key]), "");
        refused(&place, &place.ends(&["break", key, "--reason", "x"]), "");
    }
}

#[test]
fn keys_at_the_limits_are_taken() {
    let place = Place::new();
    let long = "x".repeat(1_024);
    assert_eq!(place.runs(&["--lock", &long], "true").status, 0);
    let deep = "/a".repeat(64);
    assert_eq!(place.runs(&["--write", &deep], "true").status, 0);
}

#[test]
fn files_of_ids() {
    let place = Place::new();
    let bad = [
        (
            &b"a\nb\n\nd\n"[..],
            "line 3: \"\": a key has at least one byte",
        ),
        (
            b"a\r\nb\r\n",
            "line 1: \"a\\r\": a key has no control characters",
        ),
        (b"a\nb\n/c\n", "line 3: \"/c\": a key that begins with '/'"),
        (b"a\n\xff\xfe\nc\n", "line 2: an id is not UTF-8"),
        (b"", "at least one key"),
    ];
    for (content, says) in bad {
        let file = place.file("ids", content);
        let ended = place.runs(&["--documents-from", &file], "true");
        refused(&place, &ended, says);
        let input = std::fs::File::open(&file).unwrap();
        let args = ["run", "--documents-from", "-", "--", "true"];
        let ended = Running::new(place.lockkeeper(args).stdin(Stdio::from(input))).ends();
        refused(&place, &ended, says);
    }
    let ended = place.runs(&["--documents-from", "/nonexistent"], "true");
    refused(&place, &ended, "cannot be read");
}

#[test]
fn more_ids_than_one_acquisition_takes() {
    let place = Place::new();
    let file = place.file("ids", "x\n".repeat(1_000_001));
    let ended = place.runs(&["--documents-from", &file], "true");
    refused(&place, &ended, "at most 1000000 keys");
    let file = place.file("ids", "x\n".repeat(1_000_000));
    let ended = place.runs(&["--documents-from", &file, "--document", "y"], "true");
    refused(&place, &ended, "at most 1000000 keys");
    let line = "x".repeat(1_024) + "\n";
    let file = place.file("ids", line.repeat(64 * 1_024 + 1));
    let ended = place.runs(&["--documents-from", &file], "true");
    refused(&place, &ended, "at most 67108864 bytes");
}

#[test]
fn arguments_that_are_not_utf8() {
    let place = Place::new();
    let bad = OsStr::from_bytes(b"\xff");
    for option in [
        "--lock",
        "--document",
        "--write",
        "--share",
        "--intent",
        "--recover",
    ] {
        let args = ["run", option].map(OsStr::new);
        let command = ["--", "true"].map(OsStr::new);
        let ended = ends(&mut place.lockkeeper([&args[..], &[bad], &command].concat()));
        refused(&place, &ended, "UTF-8");
    }
    // The command's own arguments are its business.
    let args = ["run", "--lock", "a", "--", "printf", "%s"].map(OsStr::new);
    let mut command = place.lockkeeper([&args[..], &[bad]].concat());
    assert_eq!(command.output().unwrap().stdout, b"\xff");
}

#[test]
fn options() {
    let place = Place::new();
    for (options, says) in [
        (&["--ttl", "999ms"][..], "from 1s to 24h"),
        (&["--ttl", "86401s"], "from 1s to 24h"),
        (&["--ttl", "0"], "from 1s to 24h"),
        (&["--ttl", "soon"], "--ttl"),
        (&["--ttl=-1s"], "--ttl"),
        (&["--wait", "5"], "--wait"),
        (&["--wait", "1 fortnight"], "--wait"),
        (&["--recover", ""], "--recover"),
        (&["--recover", " "], "--recover"),
    ] {
        let ended = place.runs(&[&["--lock", "a"], options].concat(), "true");
        refused(&place, &ended, says);
    }
    for limit in ["0", "-1", "4294967296", "x"] {
        let ended = place.runs(&["--share", "a", &format!("--limit={limit}")], "true");
        refused(&place, &ended, "a limit is a number from 1");
    }
    for fine in ["1s", "24h"] {
        assert_eq!(
            place.runs(&["--lock", "a", "--ttl", fine], "true").status,
            0
        );
    }
}

#[test]
fn intents() {
    let place = Place::new();
    let bad = place.file("bad", "{oops");
    let empty = place.file("empty", "");
    let large = place.file("large", format!("\"{}\"", "x".repeat(65_535)));
    for (intent, says) in [
        ("", "no JSON"),
        ("{oops", "no JSON"),
        ("{} {}", "no JSON"),
        (&format!("@{bad}"), "no JSON"),
        (&format!("@{empty}"), "no JSON"),
        (&format!("@{large}"), "at most 65536 bytes"),
        ("@/nonexistent", "cannot be read"),
    ] {
        let ended = place.runs(&["--lock", "a", "--intent", intent], "true");
        refused(&place, &ended, says);
    }
    let largest = place.file("largest", format!("\"{}\"", "x".repeat(65_534)));
    let ended = place.runs(&["--lock", "a", "--intent", &format!("@{largest}")], "true");
    assert_eq!(ended.status, 0, "{ended:?}");
}

#[test]
fn urls() {
    let place = Place::new();
    let region = if cfg!(feature = "aws") {
        ("opensearchs://h?aws_region=EU", "as in eu-central-1")
    } else {
        ("opensearchs://h?aws_region=eu-west-1", "feature \"aws\"")
    };
    let etcd = if cfg!(feature = "etcd") {
        ("etcd://h/path", "no path")
    } else {
        ("etcd://h", "feature \"etcd\"")
    };
    for (url, says) in [
        etcd,
        region,
        ("", "no scheme"),
        ("locks.db", "no scheme"),
        ("mysql://h", "no store has the scheme \"mysql\""),
        ("memory:x", "nothing behind the colon"),
        ("redis://me:secret@h/x", "number of the database"),
        ("postgres://me:secret@h/d?x=1", "option 1 in the URL"),
        ("opensearch://me:secret@h:0", "HOST:PORT"),
        (
            "elasticsearch://h/a//b",
            "the prefix at which a reverse proxy",
        ),
        (
            "elasticsearch://me:secret@h?api_key=secret",
            "give one of USER:PASSWORD@",
        ),
        (
            "elasticsearch://h?bearer_token=secret%20x",
            "as it was issued",
        ),
        (
            "elasticsearch://h?proxy=me:secret%40h",
            "the URL of a proxy",
        ),
        (
            "elasticsearchs://h?api_key=secret&x=1",
            "option 2 in the URL",
        ),
        ("redis://me:secret@h:65536", "HOST:PORT"),
        ("redis://me:12/secret@h", "write / as %2F"),
        ("redis://me:12?secret@h", "? as %3F"),
        ("postgres://me:12?secret@h/d", "? as %3F"),
        (
            "redis+sentinel://h/m?sentinel_password=12&secret",
            "option 2 in the URL",
        ),
        ("sqlite:", "names no file"),
        ("sqlite::memory:", "memory:"),
        ("sqlite://host/locks.db", "no host"),
        ("sqlite:locks.db?mode=ro", "option 1 in the URL"),
        ("sqlite:locks.db?synchronous=off", "synchronous"),
        ("sqlite:/nonexistent/locks.db", "directory is not there"),
    ] {
        let ended = place.ends(&["--url", url, "ls"]);
        refused(&place, &ended, says);
        assert!(!ended.stderr.contains("secret"), "{ended:?}");
        let ended = ends(
            place
                .lockkeeper(["run", "--lock", "a", "--", "true"])
                .env("LOCKKEEPER_URL", url),
        );
        refused(&place, &ended, says);
    }
}

#[test]
fn files_that_are_no_store() {
    let place = Place::new();
    let text = place.file("text", "Dear reader,\n".repeat(100));
    let directory = place.path("directory");
    std::fs::create_dir(&directory).unwrap();
    let newer = place.path("newer.db").display().to_string();
    let url = format!("sqlite:{newer}");
    assert_eq!(place.ends(&["--url", &url, "ls"]).status, 0);
    let store = rusqlite::Connection::open(&newer).unwrap();
    store.pragma_update(None, "user_version", 1_000).unwrap();
    drop(store);
    let other = place.path("other.db").display().to_string();
    let database = rusqlite::Connection::open(&other).unwrap();
    database.execute("CREATE TABLE t (a)", ()).unwrap();
    drop(database);
    for file in [
        &text,
        directory.to_str().unwrap(),
        &newer,
        &other,
        "/proc/version",
    ] {
        let ended = place.ends(&["--url", &format!("sqlite:{file}"), "ls"]);
        refused(&place, &ended, "");
    }
}
