//! Interactive commands, on a terminal of their own.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::harness::{Place, must_not_be_ignored};

/// Repeats what it reads, without starting anything: a shell that is stopped while it does is not seen to stop.
const REPEAT: &str = "echo ready; while read x; do echo \"got <$x>\"; done";

/// A shell script on a new terminal, which is its controlling terminal.
struct Session {
    keyboard: File,
    screen: mpsc::Receiver<Vec<u8>>,
    seen: String,
    shell: Child,
}

impl Session {
    fn start(place: &Place, script: &str) -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap().into_string().unwrap();
        // The leader of a new session that opens a terminal controls it.
        let script = format!("exec <>{name} >&0 2>&0; {script}");
        let shell = Command::new("setsid")
            .args(["--wait", "bash", "-c", &script])
            .env("LOCKKEEPER_URL", place.url())
            .env("LK", env!("CARGO_BIN_EXE_lockkeeper"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let keyboard = File::from(main);
        let mut output = keyboard.try_clone().unwrap();
        let (send, screen) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails when the last process has closed the terminal.
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                if send.send(bytes[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keyboard,
            screen,
            seen: String::new(),
            shell,
        }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen has shown this, after everything that was waited for before.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        let since = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let left = Duration::from_secs(60).saturating_sub(since.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} is not shown: {:?}", self.seen),
            }
        }
    }

    #[track_caller]
    fn ends_well(mut self) {
        let status = self.shell.wait().unwrap();
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_secs(10)) {
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        assert!(status.success(), "{status}: {:?}", self.seen);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.shell.kill();
    }
}

#[test]
fn a_command_reads_from_the_terminal_and_gives_it_back() {
    let place = Place::new();
    let script =
        "$LK run --lock a -- sh -c 'read x; echo \"got <$x>\"'; read y; echo \"then <$y>\"";
    let mut session = Session::start(&place, script);
    session.types("one\n");
    session.shows("got <one>");
    session.types("two\n");
    session.shows("then <two>");
    session.ends_well();
}

#[test]
fn a_command_behind_a_pipe_reads_from_the_terminal_and_gives_it_back() {
    let place = Place::new();
    for claims in ["--lock a", "--documents-from -"] {
        let script = format!(
            "echo x | $LK run {claims} -- sh -c 'echo ready; read p </dev/tty; echo \"got <$p>\"'; \
             echo \"status <$?>\"; read y; echo \"then <$y>\""
        );
        let mut session = Session::start(&place, &script);
        session.shows("ready");
        session.types("secret\n");
        session.shows("got <secret>");
        session.shows("status <0>");
        session.types("two\n");
        session.shows("then <two>");
        session.ends_well();
    }
}

#[test]
fn an_interrupt_ends_a_command_behind_a_pipe_that_waits_for_the_terminal() {
    must_not_be_ignored(&[Signal::INT]);
    let place = Place::new();
    let script =
        "echo x | $LK run --lock a -- sh -c 'read p </dev/tty; echo over'; echo \"status <$?>\"";
    let mut session = Session::start(&place, script);
    crate::harness::until("it is held", || {
        place.path("locks.db").exists() && !place.held().is_empty()
    });
    thread::sleep(Duration::from_millis(300));
    session.types("\x03");
    session.shows("status <130>");
    session.ends_well();
}

/// A shell's job in the background stops when it wants the terminal, and has it in the foreground.
#[test]
fn a_command_in_the_background_that_wants_the_terminal() {
    let place = Place::new();
    let script = "set -m; $LK run --lock a -- sh -c 'read p </dev/tty; echo \"got <$p>\"' </dev/null & \
                  wait -n; echo \"stopped <$?>\"; fg; echo \"status <$?>\"";
    let mut session = Session::start(&place, script);
    session.shows("stopped <");
    session.types("late\n");
    session.shows("got <late>");
    session.shows("status <0>");
    session.ends_well();
}

#[test]
fn an_interrupt_from_the_keyboard_is_the_commands() {
    must_not_be_ignored(&[Signal::INT]);
    let place = Place::new();
    let script = "$LK run --lock a -- sh -c 'trap \"echo interrupted; exit 5\" INT; echo ready; \
                  while :; do sleep 0.02; done'; echo \"status <$?>\"";
    let mut session = Session::start(&place, script);
    session.shows("ready");
    session.types("\x03");
    session.shows("interrupted");
    session.shows("status <5>");
    session.ends_well();
}

#[test]
fn a_shell_stops_and_continues_the_command() {
    let place = Place::new();
    let script = format!(
        "set -m; $LK run --lock a -- sh -c '{REPEAT}'; echo \"stopped <$?>\"; fg; echo \"status <$?>\""
    );
    let mut session = Session::start(&place, &script);
    session.shows("ready");
    session.types("\x1a");
    session.shows("stopped <147>");
    session.types("two\n");
    session.shows("got <two>");
    session.types("\x04");
    session.shows("status <0>");
    session.ends_well();
}

/// Alone on its terminal; and as `ssh -t HOST 'lockkeeper run …; …'` has it, in a shell without job control, where nobody
/// waits for what stops.
#[test]
fn a_command_that_nobody_could_continue_goes_on() {
    for (begins, ends) in [("exec ", ""), ("", "; echo \"status <$?>\"")] {
        let place = Place::new();
        let script = format!("{begins}$LK run --lock a -- sh -c '{REPEAT}'{ends}");
        let mut session = Session::start(&place, &script);
        session.shows("ready");
        session.types("\x1a");
        session.types("two\n");
        session.shows("got <two>");
        session.types("\x04");
        if !ends.is_empty() {
            session.shows("status <0>");
        }
        session.ends_well();
    }
}

#[test]
fn a_command_that_is_killed_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let modes = "stty -a | tr ' ;' '\\n\\n' | grep -x -e -echo -e echo";
    let script = format!(
        "$LK run --lock a -- sh -c 'stty -echo; {}; kill -KILL $$'; echo \"then <$({modes})>\"",
        "echo ready"
    );
    let mut session = Session::start(&place, &script);
    session.shows("ready");
    session.shows("then <echo>");
    session.ends_well();
}

#[test]
fn a_terminal_that_stops_who_writes_from_the_background_stops_no_renewal() {
    let place = Place::new();
    let script = "stty tostop; $LK run --lock a --ttl 2s -- sh -c 'echo ready; read x'; echo \"status <$?>\"";
    let mut session = Session::start(&place, script);
    session.shows("ready");
    let asked = place.ends(&["ask", "a", "--reason", "test"]);
    assert_eq!(asked.status, 0, "{asked:?}");
    session.shows("asks for the lock: test");
    let next = place.runs(&["--lock", "a", "--wait", "4s"], "true");
    assert_eq!(next.status, 75, "{next:?}");
    session.types("x\n");
    session.shows("status <0>");
    session.ends_well();
}

#[test]
fn a_lost_lock_ends_an_interactive_command() {
    let place = Place::new();
    let script = "$LK run --lock a --ttl 1s -- sh -c 'echo ready; cat'; echo \"status <$?>\"; read y; echo \"then <$y>\"";
    let mut session = Session::start(&place, script);
    session.shows("ready");
    assert_eq!(
        place
            .ends(&["break", "a", "--session", "--reason", "test"])
            .status,
        0
    );
    session.shows("status <76>");
    session.types("two\n");
    session.shows("then <two>");
    session.ends_well();
}

#[test]
fn a_long_acquisition_shows_how_far_it_is() {
    let place = Place::new();
    let ids: String = (0..200_000).map(|n| format!("{n}\n")).collect();
    let file = place.file("ids", ids);
    let script = format!("$LK run --documents-from {file} -- echo ready");
    let mut session = Session::start(&place, &script);
    session.shows("locking ");
    session.shows("of 200,000");
    session.shows("ready");
    session.ends_well();
}

#[test]
fn listings_have_headings_and_ages() {
    let place = Place::new();
    let mut holder = place.holds(&["--lock", "a/long/name", "--label", "me"]);
    let mut session = Session::start(&place, "$LK ls; $LK inspect b; echo done");
    session.shows("KEY          MODE       AGE");
    session.shows("a/long/name  exclusive  ");
    session.shows("living  me");
    session.shows("nobody holds it");
    session.shows("done");
    session.ends_well();
    assert_eq!(holder.ends().status, 0);
}
