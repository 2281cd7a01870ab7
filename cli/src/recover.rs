//! Handing what dead holders left unfinished to a command, and settling it.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::{AcquireError, ErrorKind, Locks, Recovery, SessionId};
use tokio::io::AsyncWriteExt;

use crate::args::{Common, RecoverArgs};
use crate::failure::{Failure, chain, say, status, tell};
use crate::job::{self, Job};
use crate::run::{close, environment, status_of};
use crate::signals::{Signal, Signals};
use crate::store::{self, Store};
use crate::supervise::{Ending, supervise};
use crate::{describe, intent};

/// An answer of the store that takes longer is slow.
const SLOW: Duration = Duration::from_secs(5);

/// `lockkeeper recover`.
pub(crate) async fn recover(common: &Common, args: RecoverArgs) -> Result<u8, Failure> {
    job::find(&args.command[0])?;
    let mut signals = Signals::listen()?;
    let store = store::open_unless(&mut signals, common).await?;
    let locks = store.locks(args.ttl, "lockkeeper recover")?;
    let done = recover_all(&store, &locks, &args, &mut signals).await;
    close(&locks).await;
    done
}

async fn recover_all(
    store: &Store,
    locks: &Locks,
    args: &RecoverArgs,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut abandoned = locks.abandoned().await?;
    if let Some(session) = args.session {
        abandoned.retain(|state| state.session == session);
        if abandoned.is_empty() {
            return Err(Failure::usage(format!(
                "session {session} is not abandoned: see lockkeeper sessions"
            )));
        }
    }
    if abandoned.is_empty() {
        tell("nothing is abandoned");
        return Ok(0);
    }
    let (adopted, failed) = adopt(locks, abandoned.iter().map(|state| state.session)).await;
    if adopted.is_empty()
        && let Some(failed) = failed
    {
        return Err(failed);
    }
    if adopted.is_empty() {
        let others: Vec<String> = abandoned.iter().map(describe::session).collect();
        return Err(Failure::new(
            status::BUSY,
            format!("somebody else recovers {}: wait for it", others.join(", ")),
        ));
    }
    if adopted.len() < abandoned.len() && failed.is_none() {
        tell("some abandoned sessions are left out: somebody else recovers them");
    }
    let done = hand_over(store, adopted, &args.command, signals, args.ttl).await?;
    if let Some(failed) = failed {
        return Err(failed);
    }
    match done {
        (0, false) => Err(Failure::new(
            status::LOST,
            "the command ended well, and not all of the work was its own to settle: check what it did",
        )),
        (ended, _) => Ok(ended),
    }
}

/// Adopts those of the sessions that are abandoned and that no living process has adopted. One whose record cannot be read
/// keeps nobody from the others; any other failure is of the store, which is asked no further. The first one is returned.
pub(crate) async fn adopt(
    locks: &Locks,
    sessions: impl Iterator<Item = SessionId>,
) -> (Vec<Recovery>, Option<Failure>) {
    let (mut adopted, mut failed) = (Vec::new(), None);
    for session in sessions {
        match locks.adopt(session).await {
            Ok(recovery) => adopted.extend(recovery),
            Err(error) => {
                say(&format!(
                    "session {session} could not be adopted: {}",
                    chain(&error)
                ));
                let is_unreadable = matches!(&error, AcquireError::Store(error) if error.kind() == ErrorKind::Corrupt);
                failed.get_or_insert_with(|| error.into());
                if !is_unreadable {
                    break;
                }
            }
        }
    }
    (adopted, failed)
}

/// Gives the intents to a command and waits for it. Everything is settled if it ends with 0, and given up otherwise. Returns
/// its status, and whether it has settled everything.
pub(crate) async fn hand_over(
    store: &Store,
    adopted: Vec<Recovery>,
    command: &[OsString],
    signals: &mut Signals,
    ttl: Duration,
) -> Result<(u8, bool), Failure> {
    let ended = with_intents(store, &adopted, command, signals, ttl).await;
    if !matches!(ended, Ok(0)) {
        for recovery in adopted {
            let session = recovery.session().session;
            if let Err(error) = answered(signals, recovery.give_up()).await? {
                let error = chain(&error);
                say(&format!(
                    "session {session} is free to be adopted when the TTL is over: {error}"
                ));
            }
        }
        return ended.map(|status| (status, false));
    }
    let (mut settled, mut failed) = (true, None);
    for recovery in adopted {
        let session = recovery.session().session;
        match answered(signals, recovery.settle()).await? {
            Ok(true) => {}
            Ok(false) => {
                settled = false;
                say(&format!(
                    "session {session} was not settled by this command: its adoption was lost, or it was discarded"
                ));
            }
            // The others are finished, too.
            Err(error) => {
                let why = chain(&error);
                say(&format!("session {session} was not settled: {why}"));
                failed.get_or_insert(error);
            }
        }
    }
    match failed {
        None => Ok((0, settled)),
        Some(error) => Err(error.into()),
    }
}

/// Waits for the store, and says so if that takes long. The second signal ends the wait.
pub(crate) async fn answered<T>(
    signals: &mut Signals,
    asked: impl Future<Output = T>,
) -> Result<T, Failure> {
    let mut asked = std::pin::pin!(asked);
    let mut slow = std::pin::pin!(tokio::time::sleep(SLOW));
    let (mut told, mut signalled) = (false, false);
    loop {
        tokio::select! {
            biased;
            answer = &mut asked => return Ok(answer),
            _ = signals.ending() => {
                if signalled {
                    return Err(Failure::new(
                        status::UNAVAILABLE,
                        "the store does not answer: it is not known whether the change is settled; see lockkeeper sessions \
                         when it does",
                    ));
                }
                signalled = true;
                say("waiting for the store, which is to hear how the command ended; another signal ends that");
            }
            () = &mut slow, if !told => {
                told = true;
                say(
                    "the store does not answer: waiting until it hears how the command ended, or the TTL is over; two \
                     signals end that",
                );
            }
        }
    }
}

async fn with_intents(
    store: &Store,
    adopted: &Vec<Recovery>,
    command: &[OsString],
    signals: &mut Signals,
    ttl: Duration,
) -> Result<u8, Failure> {
    let lines: String = adopted.iter().map(line).collect();
    let newest = adopted.iter().max_by_key(|recovery| recovery.token());
    let newest = newest.expect("something was adopted");
    // With one change these are its own; with several, each line has them.
    let environment = environment(store, newest.token(), newest.session().session);
    let mut job = Job::start(command, &environment, Stdio::piped(), false)?;
    // Whoever is told nothing must not seem to have done it all.
    let stdin = job.take_stdin().map(tokio::process::ChildStdin::from_std);
    let stdin = match stdin.transpose() {
        Ok(stdin) => stdin,
        Err(error) => {
            job.end(Signal::KILL);
            job.reap()?;
            let what = format!("the command cannot be told what there is to do: {error}");
            return Err(Failure::new(status::UNAVAILABLE, what));
        }
    };
    let write = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read to the end has its reasons; its status tells.
            let _ = stdin.write_all(lines.as_bytes()).await;
        }
    };
    let ending = Ending {
        left: ttl / 4,
        kill_after: None,
        on_asked: None,
    };
    let supervised = supervise(job, signals, adopted, ending);
    let (mut write, mut supervised) = (std::pin::pin!(write), std::pin::pin!(supervised));
    let ended = tokio::select! {
        ended = &mut supervised => ended?,
        () = &mut write => supervised.await?,
    };
    if ended.by_us.is_some() {
        return Err(Failure::new(
            status::LOST,
            match ended.reached {
                true => {
                    "the adoption was lost and the command was ended: lockkeeper sessions shows what is left to recover"
                }
                false => {
                    "the adoption was lost and the command could not be ended: end it; lockkeeper sessions shows what is left \
                     to recover"
                }
            },
        ));
    }
    Ok(status_of(ended.status))
}

fn line(recovery: &Recovery) -> String {
    intent::line(
        recovery.session(),
        recovery.token(),
        recovery.old_token(),
        recovery.intent(),
    )
}
