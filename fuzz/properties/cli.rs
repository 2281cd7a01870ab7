//! The command's input: the whole of it as a file of ids and as an intent, each line as an argument, a duration and a
//! URL's password.
//!
//! - ids that are taken are the file's lines as they stand, in order, and each is a flat key;
//! - keys that are taken from arguments are among the arguments, and each is a key;
//! - a time to live that is taken is from 1 s to 24 h;
//! - an intent that is taken is the argument as it stands, and JSON;
//! - something is said about bad input;
//! - a URL is shown without its password.

use lockkeeper::LockKey;
use lockkeeper::limits::{MAX_TTL, MIN_TTL};
use lockkeeper_cli::input;

/// What no message has by itself.
const PASSWORD: &str = "Zq7!correct";

pub(crate) fn hold(data: &[u8]) {
    ids(data);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // These would read a file of that name.
    if !text.starts_with('@') {
        match input::intent(text) {
            Ok(intent) => {
                assert_eq!(intent, text.as_bytes());
                let json = serde_json::from_slice::<serde::de::IgnoredAny>(&intent);
                assert!(json.is_ok(), "{text:?}");
            }
            Err(said) => assert!(!said.is_empty()),
        }
    }
    let lines: Vec<&str> = text.split('\n').take(16).collect();
    if !lines.iter().any(|line| line.contains("from")) {
        arguments(&[&["run"], lines.as_slice(), &["--", "true"]].concat());
        arguments(&lines);
    }
    for line in &lines {
        let wait = [
            "run", "--lock=g", "--ttl", line, "--wait", line, "--", "true",
        ];
        arguments(&wait);
        shown(line);
    }
}

fn ids(file: &[u8]) {
    match input::ids(file) {
        Ok(ids) => {
            let lines = ids.join("\n").into_bytes();
            assert!(file == lines || file == [lines, b"\n".to_vec()].concat());
            for id in &ids {
                assert!(LockKey::flat(id).is_ok(), "{id:?}");
            }
        }
        Err(said) => assert!(!said.is_empty()),
    }
}

fn arguments(arguments: &[&str]) {
    match input::arguments(arguments) {
        Ok(None) => {}
        Ok(Some(run)) => {
            assert!((MIN_TTL..=MAX_TTL).contains(&run.ttl), "{arguments:?}");
            assert!(!run.keys.is_empty());
            for key in &run.keys {
                assert!(LockKey::parse(key).is_ok(), "{key:?}");
                assert!(
                    arguments
                        .iter()
                        .any(|argument| argument.ends_with(key.as_str())),
                    "{key:?} of {arguments:?}"
                );
            }
        }
        Err(said) => assert!(!said.is_empty()),
    }
}

fn shown(text: &str) {
    if text.contains(PASSWORD) {
        return;
    }
    // What ends the part of a URL that may have a password.
    let user = text.replace(['/', '?', '#'], "");
    for url in [
        format!("redis://{user}:{PASSWORD}@{text}"),
        format!("postgres://h/d?a={user}&password={PASSWORD}&b=1#{text}"),
    ] {
        let shown = input::shown(&url);
        assert!(!shown.contains(PASSWORD), "{shown:?}");
    }
}
