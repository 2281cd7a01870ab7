//! A user with the rights that `lockkeeper grants` prints, and no other, does with the command all that there is to do; on
//! the server whose URL is in the variable of its store. It is that of somebody who may make users.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const POSTGRES: &str = "LOCKKEEPER_TEST_POSTGRES";
const REDIS: &str = "LOCKKEEPER_TEST_REDIS";
/// Of the new users.
const PASSWORD: &str = "p%40ss";

fn lockkeeper(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.env("LOCKKEEPER_URL", url).args(args);
    command.stdin(Stdio::null());
    command
}

/// Runs it, which has to end with that status, and returns its output.
fn ends(url: &str, status: i32, args: &[&str]) -> String {
    let output = lockkeeper(url, args).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

/// A `lockkeeper run` that holds a lock, until it is ended.
struct Holder(Child);

impl Holder {
    fn new(url: &str, key: &str, args: &[&str]) -> Self {
        let args = [&["run", "--lock", key], args, &["--", "sleep", "60"]].concat();
        let holder = Self(
            lockkeeper(url, &args)
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        let since = Instant::now();
        while !ends(url, 0, &["ls", "--prefix", key]).contains("living") {
            assert!(since.elapsed() < Duration::from_secs(20), "{key} is held");
            sleep(Duration::from_millis(50));
        }
        holder
    }

    fn has_ended(mut self) {
        let since = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(since.elapsed() < Duration::from_secs(20), "it is told");
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All that the command does.
fn does_everything(url: &str) {
    let runs = |status, args: &[&str]| drop(ends(url, status, &[&["run"], args].concat()));
    ends(url, 0, &["ping"]);
    ends(url, 0, &["init"]);
    runs(0, &["--lock", "a", "--", "true"]);
    runs(0, &["--document", "a", "--document", "b", "--", "true"]);
    runs(0, &["--share", "s", "--limit", "2", "--", "true"]);
    runs(0, &["--read", "/a", "--write", "/b/c", "--", "true"]);
    runs(0, &["--lock", "job", "--at-least", "1m", "--", "true"]);
    runs(75, &["--lock", "job", "--no-wait", "--", "true"]);
    ends(url, 0, &["break", "job", "--reason", "again"]);

    let handle = ends(url, 0, &["acquire", "--lock", "deploy", "--ttl", "1h"]);
    let handle = handle.trim();
    ends(url, 0, &["renew", handle, "--ttl", "2h"]);
    ends(url, 0, &["status", handle]);
    assert!(ends(url, 0, &["ls"]).contains("deploy"));
    ends(url, 0, &["inspect", "deploy"]);
    ends(url, 0, &["sessions", "--all", "--json"]);
    ends(url, 0, &["release", handle]);

    let asked = Holder::new(url, "asked", &["--on-asked", "term"]);
    ends(url, 0, &["ask", "asked", "--reason", "please"]);
    asked.has_ended();
    let broken = Holder::new(url, "broken", &[]);
    let waiter = lockkeeper(url, &["run", "--lock", "broken", "--", "true"]).spawn();
    ends(url, 0, &["break", "broken", "--reason", "by hand"]);
    broken.has_ended();
    assert!(waiter.unwrap().wait().unwrap().success());
    let revoked = Holder::new(url, "revoked", &[]);
    ends(
        url,
        0,
        &["break", "revoked", "--session", "--reason", "now"],
    );
    revoked.has_ended();

    let leaves = || runs(1, &["--lock", "i", "--intent", "{}", "--", "false"]);
    leaves();
    runs(77, &["--lock", "i", "--no-wait", "--", "true"]);
    ends(url, 0, &["recover", "--", "cat"]);
    leaves();
    let session = ends(url, 0, &["sessions"]);
    let session = session.lines().find(|line| line.contains("abandoned"));
    let session = session.unwrap().split('\t').next().unwrap().to_owned();
    ends(url, 0, &["discard", &session, "--reason", "by hand"]);
    ends(url, 0, &["sweep"]);
    // That takes more rights.
    ends(url, 69, &["remove", "--force"]);
}

/// The URL in another user's name, with a namespace.
fn as_user(url: &str, user: &str, namespace: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let mark = if host.contains('?') { '&' } else { '?' };
    let slash = if host.contains('/') { "" } else { "/" };
    format!("{scheme}://{user}:{PASSWORD}@{host}{slash}{mark}namespace={namespace}")
}

/// The administrator's URL, with a namespace.
fn of_namespace(url: &str, namespace: &str) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    let slash = if url.split_once("://").unwrap().1.contains('/') {
        ""
    } else {
        "/"
    };
    format!("{url}{slash}{mark}namespace={namespace}")
}

fn fed(mut command: Command, input: &str) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let child = child.as_mut().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let mut told = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut told).unwrap();
    assert!(
        child.wait().unwrap().success() && !told.contains("ERR"),
        "{told}"
    );
}

fn postgres(url: &str) {
    let name = format!("rights-{}", std::process::id());
    let second = format!("{name}-second");
    let psql = |input: &str| {
        let mut psql = Command::new("psql");
        psql.args(["--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", url]);
        fed(psql, input);
    };
    for user in [&name, &second] {
        psql(&format!("CREATE ROLE \"{user}\" LOGIN PASSWORD 'p@ss';"));
    }
    psql(&ends(url, 0, &["grants", "postgres", "--namespace", &name]));
    does_everything(&as_user(url, &name, &name));
    // The same by who may create the namespace.
    let created = of_namespace(url, &second);
    ends(&created, 0, &["init", "--role", &second]);
    does_everything(&as_user(url, &second, &second));
    ends(&created, 0, &["remove"]);
    ends(&of_namespace(url, &name), 0, &["remove"]);
    for user in [&name, &second] {
        psql(&format!("DROP ROLE \"{user}\";"));
    }
}

fn redis(url: &str) {
    let name = format!("rights-{}", std::process::id());
    let cli = |input: &str| {
        let mut cli = Command::new("redis-cli");
        cli.args(["-u", url]);
        fed(cli, input);
    };
    let rule = ends(url, 0, &["grants", "redis", "--namespace", &name]);
    let rule = rule.trim().strip_prefix("user ").unwrap().to_owned();
    cli(&format!(
        "ACL SETUSER {}\n",
        rule.replace("CHANGE-ME", "p@ss")
    ));
    does_everything(&as_user(url, &name, &name));
    ends(&of_namespace(url, &name), 0, &["remove"]);
    cli(&format!("ACL DELUSER {name}\n"));
}

#[test]
fn the_printed_rights_are_enough() {
    match (std::env::var(POSTGRES), std::env::var(REDIS)) {
        (Ok(url), _) => postgres(&url),
        (_, Ok(url)) => redis(&url),
        _ => panic!("set {POSTGRES} or {REDIS} to the URL of a server"),
    }
}
