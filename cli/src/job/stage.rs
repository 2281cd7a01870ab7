//! The stage between this program and the command, for what only a process can say of itself: it is to die with its
//! parent. `lockkeeper __exec PARENT fg|bg json|text FD COMMAND…` says so and becomes the command.

use std::env;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::failure::{Failure, Voice, status};
use crate::terminal::Terminal;

const STAGE: &str = "__exec";
const FOREGROUND: &str = "fg";
const JSON: &str = "json";
/// How long a command for the terminal's foreground waits to be put there.
const PATIENCE: Duration = Duration::from_secs(1);

/// The stage for a command; `None` where `/proc` is not there to name this program, however it was started.
///
/// What is written into the pipe of that number says that the command could not be executed.
pub(super) fn command(command: &[OsString], foreground: bool, pipe: RawFd) -> Option<Command> {
    let program = Path::new("/proc/self/exe");
    if !program.exists() {
        return None;
    }
    let mut stage = Command::new(program);
    stage
        .arg0("lockkeeper")
        .arg(STAGE)
        .arg(Pid::as_raw(Some(getpid())).to_string())
        .arg(if foreground { FOREGROUND } else { "bg" })
        .arg(if Voice::get().json { JSON } else { "text" })
        .arg(pipe.to_string())
        .args(command);
    Some(stage)
}

/// Becomes the command, if this process was started as the stage; returns only if that fails.
pub(crate) fn requested() -> Option<ExitCode> {
    let mut args = env::args_os().skip(1);
    if args.next()? != STAGE {
        return None;
    }
    Some(exec(args.collect()).report())
}

fn exec(args: Vec<OsString>) -> Failure {
    let [parent, ground, voice, pipe, command, args @ ..] = args.as_slice() else {
        return Failure::usage("this is for lockkeeper itself: use lockkeeper run");
    };
    Voice {
        quiet: false,
        json: voice == JSON,
    }
    .set();
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        let message = format!("the command cannot be bound to lockkeeper's life: {error}");
        return Failure::new(status::NOT_EXECUTABLE, message);
    }
    // A parent that died before that is not reported.
    if Pid::as_raw(getppid()).to_string().as_str() != parent {
        return Failure::signal(Signal::KILL.as_raw());
    }
    if ground == FOREGROUND {
        // To read from the terminal any earlier would stop the command.
        let terminal = Terminal::controlling();
        let since = Instant::now();
        while terminal
            .as_ref()
            .is_some_and(|terminal| !terminal.is_ours())
            && since.elapsed() < PATIENCE
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
    let error = Command::new(command).args(args).exec();
    let pipe = format!("/proc/{}/fd/{}", parent.display(), pipe.display());
    // Without it the status alone tells.
    if let Ok(mut pipe) = OpenOptions::new().write(true).open(pipe) {
        let _ = pipe.write_all(b"!");
    }
    super::not_started(command, &error)
}
