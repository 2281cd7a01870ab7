//! [`Failure`]: one line on standard error and an exit status; the table of which error has which.

use std::error::Error as StdError;
use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use lockkeeper::{AcquireError, ConnectError, Error, ErrorKind, InputError, KeepError};
use serde::Serialize;

use crate::describe;

/// Exit statuses that are not the command's own.
pub(crate) mod status {
    /// Bad usage or bad input.
    pub(crate) const USAGE: u8 = 64;
    /// The store cannot be used, or it is not known what it did.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// A law is broken.
    #[cfg(all(feature = "verify", unix))]
    pub(crate) const BROKEN: u8 = 70;
    /// Busy, or the wait is over.
    pub(crate) const BUSY: u8 = 75;
    /// The lock was lost.
    pub(crate) const LOST: u8 = 76;
    /// Abandoned work is in the way.
    pub(crate) const ABANDONED: u8 = 77;
    /// The command cannot be executed.
    pub(crate) const NOT_EXECUTABLE: u8 = 126;
    /// There is no such command.
    pub(crate) const NOT_FOUND: u8 = 127;

    /// After a signal.
    pub(crate) fn of_signal(number: i32) -> u8 {
        u8::try_from(128 + number).unwrap_or(u8::MAX)
    }
}

/// Why `lockkeeper` ends early.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: Option<String>,
}

impl Failure {
    pub(crate) fn new(status: u8, message: impl Into<String>) -> Self {
        Self {
            status,
            message: Some(message.into()),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(status::USAGE, message)
    }

    /// Ended by a signal: who sent it knows.
    pub(crate) fn signal(number: i32) -> Self {
        Self {
            status: status::of_signal(number),
            message: None,
        }
    }

    /// The same, with that status where it is [`BUSY`](status::BUSY). Quietly, if that is none of a failure.
    pub(crate) fn busy_as(self, status: u8) -> Self {
        match self.status {
            status::BUSY if status == 0 && Voice::get().quiet => Self {
                status,
                message: None,
            },
            status::BUSY => Self { status, ..self },
            _ => self,
        }
    }

    pub(crate) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Prints the line, if there is one.
    pub(crate) fn report(&self) -> ExitCode {
        if let Some(message) = &self.message {
            write(message, Some(self.status));
        }
        ExitCode::from(self.status)
    }
}

/// How messages are written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Voice {
    /// Only what went wrong.
    pub(crate) quiet: bool,
    /// As JSON.
    pub(crate) json: bool,
}

static VOICE: OnceLock<Voice> = OnceLock::new();

impl Voice {
    /// How messages are written from now on; told once.
    pub(crate) fn set(self) {
        let _ = VOICE.set(self);
    }

    pub(crate) fn get() -> Self {
        VOICE.get().copied().unwrap_or_default()
    }
}

/// A message about something that went wrong: one line on standard error, whatever the message contains. A standard error
/// that is gone is no reason to fail.
pub(crate) fn say(message: &str) {
    write(message, None);
}

/// A message that may be left out.
pub(crate) fn tell(message: &str) {
    if !Voice::get().quiet {
        write(message, None);
    }
}

fn write(message: &str, status: Option<u8>) {
    let line = match Voice::get().json {
        true => {
            let message = MessageJson { message, status };
            serde_json::to_string(&message).expect("strings and numbers are JSON") + "\n"
        }
        false => format!("lockkeeper: {}\n", one_line(message)),
    };
    match &*locked() {
        // Whom nobody reads has lost nothing.
        Some((lines, _)) => drop(lines.try_send(line)),
        None => print(&line),
    }
}

fn print(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Lines that wait for a standard error that does not take them; later ones are left out.
const WAITING_LINES: usize = 1_000;

/// The thread that writes the lines, where nobody may wait for them.
static WRITER: Mutex<Option<(SyncSender<String>, JoinHandle<()>)>> = Mutex::new(None);

fn locked() -> std::sync::MutexGuard<'static, Option<(SyncSender<String>, JoinHandle<()>)>> {
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on nobody waits for standard error, which may be a terminal that was stopped or a pipe that is full: who renews a
/// lock has no time for that.
pub(crate) fn never_wait() {
    let mut writer = locked();
    if writer.is_none() {
        let (lines, waiting) = sync_channel::<String>(WAITING_LINES);
        let thread = thread::Builder::new().spawn(move || {
            for line in waiting {
                print(&line);
            }
        });
        // Without a thread it is as before.
        *writer = thread.ok().map(|thread| (lines, thread));
    }
}

/// Waits until all lines are written.
pub(crate) fn finish() {
    let writer = locked().take();
    if let Some((lines, thread)) = writer {
        drop(lines);
        let _ = thread.join();
    }
}

/// A message as JSON; with the exit status where it is the last one.
#[derive(Serialize)]
struct MessageJson<'a> {
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u8>,
}

/// A text from elsewhere, without what would move a terminal's cursor.
pub(crate) fn one_line(text: &str) -> String {
    let control = |c: char| c.is_control();
    if !text.contains(control) {
        return text.to_owned();
    }
    let escape = |c: char| {
        if control(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(escape).collect()
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Config | ErrorKind::Limit => status::USAGE,
            _ => status::UNAVAILABLE,
        };
        Self::new(status, chain(&error))
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Store(error) => error.into(),
            error => Self::usage(chain(&error)),
        }
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        Self::usage(chain(&error))
    }
}

impl From<KeepError> for Failure {
    fn from(error: KeepError) -> Self {
        match error {
            KeepError::Input(error) => error.into(),
            KeepError::Store(error) => error.into(),
            error => Self::new(status::LOST, chain(&error)),
        }
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Busy(busy) => Self::new(
                status::BUSY,
                format!(
                    "{}; wait longer, or see lockkeeper inspect",
                    describe::busy(&busy)
                ),
            ),
            AcquireError::Abandoned(abandoned) => {
                Self::new(status::ABANDONED, describe::abandoned(&abandoned))
            }
            AcquireError::Lost => Self::new(
                status::LOST,
                "the session died while it was waiting: run it again, with a longer --ttl if that happens often",
            ),
            AcquireError::Input(error) => error.into(),
            AcquireError::Store(error) => error.into(),
            error => Self::new(status::BUSY, chain(&error)),
        }
    }
}
