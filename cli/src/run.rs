//! `lockkeeper run`: acquire, run the command, release.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use std::path::Path;

use lockkeeper::{
    AcquireError, Acquisition, Attempt, FencingToken, Guard, Held, Intent, KeepError, Locks,
    Released, SessionId,
};

use crate::args::{Common, OnAsked, RunArgs};
use crate::claims::Claims;
use crate::failure::{Failure, chain, say, status};
use crate::job::{self, Job};
use crate::progress::Display;
use crate::signals::{Signal, Signals};
use crate::store::{self, Store};
use crate::supervise::{ByUs, Ending, supervise};
use crate::{intent, recover, terminal};

/// How long it is asked why a lock was lost.
const WHY: Duration = Duration::from_secs(1);
/// How long the end waits for the store; after that the TTL frees what is held.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command under its locks, and says its exit status.
pub(crate) async fn run(common: &Common, mut args: RunArgs) -> Result<u8, Failure> {
    if let Some(line) = args.shell.take() {
        let [shell, option] = job::SHELL.map(Into::into);
        args.command = vec![shell, option, line];
    }
    let busy_status = args.busy_status;
    let done = run_command(common, args).await;
    done.map_err(|failure| failure.busy_as(busy_status))
}

async fn run_command(common: &Common, mut args: RunArgs) -> Result<u8, Failure> {
    let claims = Claims::parse(&mut args.claims)?;
    let intent = args.intent.as_deref().map(intent::parse).transpose()?;
    if args
        .recover
        .as_ref()
        .is_some_and(|command| command.trim().is_empty())
    {
        return Err(Failure::usage(
            "--recover has no command: it would settle what nobody finished",
        ));
    }
    job::find(&args.command[0])?;
    let mut signals = Signals::listen()?;
    let store = store::open_unless(&mut signals, common).await?;
    let program = Path::new(&args.command[0]).file_name().unwrap_or_default();
    let locks = store.locks(args.ttl, &program.to_string_lossy())?;
    let asked = Asked {
        claims,
        intent,
        args,
    };
    let done = asked.run(&store, &locks, &mut signals).await;
    close(&locks).await;
    done
}

/// Ends the client: what is still given back or removed in the background is waited for, but not for ever.
pub(crate) async fn close(locks: &Locks) {
    if !locks.shutdown(PATIENCE).await {
        say(&format!(
            "not tidied up after {PATIENCE:?}: what is still held goes free when the TTL is over, or with an intent waits to be recovered; lockkeeper sweep removes the rest"
        ));
    }
}

/// What the command finds in its environment, beside the caller's own `LOCKKEEPER_URL`, which may have a password: that is
/// for a `lockkeeper` inside the command.
pub(crate) fn environment(
    store: &Store,
    token: FencingToken,
    session: SessionId,
) -> [(&'static str, String); 3] {
    [
        ("LOCKKEEPER_TOKEN", token.to_string()),
        ("LOCKKEEPER_SESSION", session.to_string()),
        ("LOCKKEEPER_STORE", store.url.clone()),
    ]
}

/// The status that a shell would report.
pub(crate) fn status_of(ended: ExitStatus) -> u8 {
    match (ended.code(), job::signal_of(ended)) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(number)) => status::of_signal(number),
        (None, None) => u8::MAX,
    }
}

fn signal_of(on_asked: OnAsked) -> Signal {
    match on_asked {
        OnAsked::Hup => Signal::HUP,
        OnAsked::Int => Signal::INT,
        OnAsked::Quit => Signal::QUIT,
        OnAsked::Term => Signal::TERM,
        OnAsked::Usr1 => Signal::USR1,
        OnAsked::Usr2 => Signal::USR2,
    }
}

/// Leaves the lock held for that time.
async fn keep(guard: Guard, left: Duration) -> Result<(), Failure> {
    match guard.keep_for(left).await {
        Ok(_) => Ok(()),
        Err(KeepError::Lost) => Err(Failure::new(
            status::LOST,
            "the lock was lost before the command ended: check what it did",
        )),
        Err(error) => {
            let error = chain(&error);
            say(&format!(
                "the lock may go free before --at-least is over, and the command may be run again: {error}"
            ));
            Ok(())
        }
    }
}

async fn lost_before_the_end(held: &Held) -> Failure {
    let why = tokio::time::timeout(WHY, held.lost()).await;
    let why = why.map_or_else(|_| String::new(), |why| format!(", {why}"));
    let what = "the lock was lost before the command ended";
    Failure::new(status::LOST, format!("{what}{why}: check what it did"))
}

/// What the arguments ask for.
struct Asked {
    claims: Claims,
    intent: Option<Intent>,
    args: RunArgs,
}

impl Asked {
    async fn run(
        &self,
        store: &Store,
        locks: &Locks,
        signals: &mut Signals,
    ) -> Result<u8, Failure> {
        let guard = self.acquire(store, locks, signals).await?;
        let since = Instant::now();
        let ended = {
            let environment = environment(store, guard.token(), guard.session());
            let (stdin, interactive) = match &self.args.claims.documents_from {
                Some(file) if file.as_os_str() == "-" => (Stdio::null(), false),
                _ => (Stdio::inherit(), terminal::is_stdin()),
            };
            let job = match Job::start(&self.args.command, &environment, stdin, interactive) {
                Ok(job) => job,
                Err(failure) => {
                    // Nothing has begun that somebody would have to finish.
                    self.release(guard, signals).await?;
                    return Err(failure);
                }
            };
            supervise(job, signals, &*guard, self.ending()).await?
        };
        let left = self
            .args
            .at_least
            .map(|time| time.saturating_sub(since.elapsed()));
        // Where nothing was executed there is nothing to keep others from.
        let left = left.filter(|left| !left.is_zero() && ended.executed);
        if let Some(by_us) = ended.by_us {
            let is_valid = guard.is_valid();
            match left {
                Some(left) if is_valid => keep(guard, left).await?,
                Some(_) => say(
                    "--at-least is not over, and the lock is lost: the command may be run again",
                ),
                None => {}
            }
            let why = match by_us {
                ByUs::Lost if is_valid => "the lock was about to be lost",
                ByUs::Lost => "the lock was lost",
                ByUs::TooLong => "the lock was held for as long as --max-hold allows",
            };
            let what = match (ended.reached, &self.intent) {
                (true, None) => "the command was ended: check what it did, and run it again",
                (true, Some(_)) => {
                    "the command was ended: its intent is left, lockkeeper recover hands it to a command that finishes it"
                }
                (false, _) => "the command could not be ended: check what it did since",
            };
            return Err(Failure::new(status::LOST, format!("{why}, and {what}")));
        }
        if self.intent.is_some() && !ended.status.success() && ended.executed {
            let session = guard.session();
            // A store that does not answer has not said that it is lost.
            if let Ok(Ok(false)) = tokio::time::timeout(WHY, guard.confirm()).await {
                return Err(lost_before_the_end(&guard.held()).await);
            }
            // Dropped, not released: the intent stays, with its locks.
            drop(guard);
            say(&format!(
                "the command failed: its intent is left to the next holder as that of session {session}"
            ));
            return Ok(status_of(ended.status));
        }
        match left {
            Some(left) => keep(guard, left).await?,
            None => self.release(guard, signals).await?,
        }
        Ok(status_of(ended.status))
    }

    async fn release(&self, guard: Guard, signals: &mut Signals) -> Result<(), Failure> {
        let held = guard.held();
        let released = match self.intent {
            Some(_) => recover::answered(signals, guard.release()).await?,
            None => guard.release().await,
        };
        match released {
            Ok(Released::Released | Released::HandedOn) => Ok(()),
            Ok(Released::NotHeld) => Err(lost_before_the_end(&held).await),
            Ok(Released::Unknown) => {
                say(
                    "the lock is released; whether it was held until the command ended is not known: an answer of the store \
                     was lost",
                );
                Ok(())
            }
            Err(error) if self.intent.is_some() => Err(error.into()),
            Err(error) => {
                // The work is done and was protected; the lock goes free with its session.
                say(&format!(
                    "the lock goes free when the TTL is over, and whether it was held until the command ended is not known: \
                     {error}"
                ));
                Ok(())
            }
        }
    }

    /// Acquires; what dead holders left in the way is recovered first, if there is a command for that.
    async fn acquire(
        &self,
        store: &Store,
        locks: &Locks,
        signals: &mut Signals,
    ) -> Result<Guard, Failure> {
        // Recovering is not waiting.
        let mut waited = Duration::ZERO;
        loop {
            let since = Instant::now();
            let limit = self.args.wait.map(|wait| wait.saturating_sub(waited));
            let asked = self.attempt(locks, limit);
            let result = tokio::select! {
                biased;
                signal = signals.ending() => return Err(Failure::signal(signal.as_raw())),
                result = asked => result,
            };
            waited += since.elapsed();
            let abandoned = match (result, &self.args.recover) {
                (Ok(guard), _) => return Ok(guard),
                (Err(AcquireError::Abandoned(abandoned)), Some(_)) => abandoned,
                (Err(error), _) => return Err(error.into()),
            };
            let command = self.args.recover.as_deref().unwrap_or_default();
            let [shell, option] = job::SHELL;
            let shell = [shell, option, command].map(Into::into);
            let sessions = abandoned.sessions.iter().map(|state| state.session);
            let (adopted, failed) = recover::adopt(locks, sessions).await;
            if adopted.is_empty() {
                if let Some(failed) = failed {
                    return Err(failed);
                }
                // Others were faster. They are waited for like any holder; that starts with another look.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            // What others have settled or discarded meanwhile is in nobody's way.
            let (ended, _) =
                recover::hand_over(store, adopted, &shell, signals, self.args.ttl).await?;
            if ended != 0 {
                return Err(Failure::new(
                    status::ABANDONED,
                    format!(
                        "--recover ended with {ended}: the work stays abandoned, the lock was not taken"
                    ),
                ));
            }
            // The recovery heard it, and has finished all the same. The command is not begun.
            if let Some(signal) = signals.ended_by() {
                return Err(Failure::signal(signal.as_raw()));
            }
        }
    }

    /// So much before the end of the lease the command is ended. The last tenth of its time is for that anyway.
    fn patience(&self) -> Duration {
        let quarter = self.args.ttl / 4;
        let tenth = self.args.max_hold.map(|longest| longest / 10);
        tenth.map_or(quarter, |tenth| tenth.min(quarter))
    }

    fn ending(&self) -> Ending {
        let (max_hold, at_least) = (self.args.max_hold, self.args.at_least);
        Ending {
            left: self.patience(),
            // A lock that is to be kept has to be held still when the command has ended.
            kill_after: at_least.and(max_hold).map(|longest| longest / 20),
            on_asked: self.args.on_asked.map(signal_of),
        }
    }

    async fn attempt(&self, locks: &Locks, limit: Option<Duration>) -> Result<Guard, AcquireError> {
        let args = &self.args;
        let asked = Ask {
            intent: self.intent.as_ref(),
            max_hold: args.max_hold,
            own_session: args.at_least.is_some(),
            waits: !args.no_wait && (args.at_least.is_none() || args.wait.is_some()),
            limit,
        };
        asked.acquire(&self.claims, locks).await
    }
}

/// How something is acquired.
pub(crate) struct Ask<'a> {
    pub(crate) intent: Option<&'a Intent>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) own_session: bool,
    pub(crate) waits: bool,
    pub(crate) limit: Option<Duration>,
}

impl Ask<'_> {
    pub(crate) async fn acquire(
        &self,
        claims: &Claims,
        locks: &Locks,
    ) -> Result<Guard, AcquireError> {
        match claims {
            Claims::Lock(name) => self.acquisition(locks.lock(name)).await,
            Claims::Documents(documents) => {
                self.acquisition(locks.documents(documents.ids())).await
            }
            Claims::Shared {
                name,
                limit: shares,
            } => {
                let share = match shares {
                    Some(permits) => locks.semaphore(name, permits.get()),
                    None => locks.rwlock(name).read(),
                };
                self.acquisition(share).await
            }
            Claims::Tree { write, read } => {
                let tree = write
                    .iter()
                    .fold(locks.tree(), |tree, path| tree.write(path.as_key()));
                let tree = read
                    .iter()
                    .fold(tree, |tree, path| tree.read(path.as_key()));
                self.acquisition(tree).await
            }
        }
    }

    async fn acquisition<S>(&self, acquisition: Acquisition<S>) -> Result<Guard, AcquireError> {
        let display = Arc::new(Display::new());
        let shown = Arc::clone(&display);
        let acquisition = acquisition.observe(move |progress| shown.show(&progress));
        let acquisition = match self.intent {
            Some(intent) => acquisition.intent_bytes(intent.clone()),
            None => acquisition,
        };
        let acquisition = match self.max_hold {
            Some(longest) => acquisition.max_hold(longest),
            None => acquisition,
        };
        let acquisition = match self.own_session {
            true => acquisition.own_session(),
            false => acquisition,
        };
        let acquires = async {
            if !self.waits {
                match acquisition.try_acquire().await {
                    Ok(Attempt::Acquired(guard)) => Ok(guard),
                    Ok(Attempt::Busy(busy)) => Err(AcquireError::Busy(busy)),
                    Err(error) => Err(error),
                }
            } else {
                match self.limit {
                    Some(limit) => acquisition.wait(limit).acquire().await,
                    None => acquisition.acquire().await,
                }
            }
        };
        let result = tokio::select! {
            biased;
            result = acquires => result,
            () = display.say_again() => unreachable!("it goes on for ever"),
        };
        display.clear();
        result
    }
}
