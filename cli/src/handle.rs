//! `lockkeeper acquire`, `renew`, `release` and `status`: locks of several steps, which no process holds.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use futures_util::FutureExt;
use lockkeeper::backend::End;
use lockkeeper::limits::DEFAULT_TTL;
use lockkeeper::{KeepError, Kept, KeptState, Locks};
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::args::{AcquireArgs, Common, HandleArgs, RenewArgs};
use crate::claims::Claims;
use crate::describe;
use crate::failure::{Failure, chain, say, status, tell};
use crate::operate::result;
use crate::output::Output;
use crate::run::{Ask, close};
use crate::signals::Signals;
use crate::store;

/// A handle, as JSON. The token is a text, which nobody rounds.
#[derive(Serialize)]
struct HandleJson {
    handle: String,
    session: String,
    token: String,
}

/// What is held, as JSON.
#[derive(Serialize)]
struct StatusJson {
    held: bool,
    session: String,
    token: String,
    /// Of `status`, while it is held.
    lease_left_ms: Option<u64>,
}

/// `lockkeeper acquire`.
pub(crate) async fn acquire(common: &Common, mut args: AcquireArgs) -> Result<u8, Failure> {
    let claims = Claims::parse(&mut args.claims)?;
    let mut signals = Signals::listen()?;
    let store = store::open_unless(&mut signals, common).await?;
    // While it waits and takes them, they outlive this process by the usual time only.
    let locks = store.locks(DEFAULT_TTL, "lockkeeper acquire")?;
    let done = match &args.handle_file {
        None => take(common, &args, &claims, &locks, &mut signals, None).await,
        Some(name) => {
            let file = Some(HandleFile::find(name)?);
            take(common, &args, &claims, &locks, &mut signals, file).await
        }
    };
    close(&locks).await;
    done.map_err(|failure| failure.busy_as(args.busy_status))
}

async fn take(
    common: &Common,
    args: &AcquireArgs,
    claims: &Claims,
    locks: &Locks,
    signals: &mut Signals,
    file: Option<HandleFile<'_>>,
) -> Result<u8, Failure> {
    let ask = Ask {
        intent: None,
        max_hold: None,
        own_session: true,
        waits: !args.no_wait,
        limit: args.wait,
    };
    let guard = tokio::select! {
        biased;
        signal = signals.ending() => return Err(Failure::signal(signal.as_raw())),
        guard = Box::pin(ask.acquire(claims, locks)) => guard?,
    };
    let session = guard.session();
    let kept = match guard.keep_for(args.ttl).await {
        Ok(kept) => kept,
        Err(error) => {
            // The store may have kept it without saying so, and nobody has its handle.
            if matches!(error, KeepError::Store(_)) {
                let what = match locks.backend().end(&[session], End::Close).await {
                    Ok(_) => "they are given back".to_owned(),
                    Err(_) => format!(
                        "they may be held until the end of --ttl, by session {session}: lockkeeper break ends that"
                    ),
                };
                let error = chain(&error);
                let why = format!("the locks were taken and cannot be kept, {what} ({error})");
                return Err(Failure::new(status::UNAVAILABLE, why));
            }
            return Err(error.into());
        }
    };
    let printed = match signals.ending().now_or_never() {
        Some(signal) => Err(Failure::signal(signal.as_raw())),
        None => print(common, file, &kept),
    };
    if printed.is_err() {
        // Nobody could release it, or wants it.
        if let Err(error) = locks.release_kept(&kept).await {
            say(&format!(
                "the locks are held until the end of --ttl: {}",
                chain(&error)
            ));
        }
    }
    printed
}

/// Where a handle is written: found before anybody waits for a lock of which nobody could have the handle.
struct HandleFile<'a> {
    name: &'a Path,
    /// As it was before; `None` if there was none. A new one appears with its handle, so that no other program's is
    /// touched.
    file: Option<File>,
}

impl<'a> HandleFile<'a> {
    /// Changes nothing.
    fn find(name: &'a Path) -> Result<Self, Failure> {
        let file = match fs::symlink_metadata(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => beside(name).map(|_| None),
            _ => opened(name).map(Some),
        };
        let file = file.map_err(|error| unwritten(name, &error))?;
        Ok(Self { name, file })
    }

    fn write(self, handle: &Kept) -> Result<(), Failure> {
        let line = format!("{handle}\n");
        let write = || match self.file {
            Some(mut file) if is_at(&file, self.name) => {
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                    // It may be open to others.
                    #[cfg(unix)]
                    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
                }
                file.write_all(line.as_bytes())
            }
            // It may have gone while the lock was waited for.
            _ => {
                let mut new = beside(self.name)?;
                new.write_all(line.as_bytes())?;
                new.persist(self.name)?;
                Ok(())
            }
        };
        write().map_err(|error| unwritten(self.name, &error))
    }
}

/// Whether the path still leads to the file.
#[cfg(unix)]
fn is_at(file: &File, name: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let inode = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let (file, there) = (file.metadata(), fs::metadata(name));
    file.is_ok_and(|file| there.is_ok_and(|there| inode(file) == inode(there)))
}

#[cfg(not(unix))]
fn is_at(_: &File, name: &Path) -> bool {
    name.exists()
}

/// The file, or the one that a link leads to.
fn opened(name: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(name)
}

/// A file in the same directory, for its owner alone, which is gone unless it is made that one.
fn beside(name: &Path) -> io::Result<NamedTempFile> {
    let directory = name.parent().filter(|path| !path.as_os_str().is_empty());
    tempfile::Builder::new()
        .prefix(".lockkeeper")
        .tempfile_in(directory.unwrap_or(Path::new(".")))
}

fn unwritten(file: &Path, error: &io::Error) -> Failure {
    let file = file.display();
    Failure::usage(format!("--handle-file {file} cannot be written: {error}"))
}

fn print(common: &Common, file: Option<HandleFile<'_>>, kept: &Kept) -> Result<u8, Failure> {
    if let Some(file) = file {
        file.write(kept)?;
        return Ok(0);
    }
    let handle = kept.to_string();
    let mut output = Output::new();
    match common.json {
        true => output.json(&HandleJson {
            session: kept.session().to_string(),
            token: kept.token().to_string(),
            handle,
        })?,
        false => output.line(&handle)?,
    }
    output.finish()
}

impl HandleArgs {
    fn kept(&self) -> Result<Kept, Failure> {
        let text = match (&self.handle, &self.handle_file) {
            (Some(handle), _) => handle.clone(),
            (None, Some(file)) => store::line("--handle-file", file)?,
            (None, None) => store::variable("LOCKKEEPER_HANDLE")?.ok_or_else(|| {
                Failure::usage("no handle: give it, or --handle-file, or LOCKKEEPER_HANDLE")
            })?,
        };
        text.parse()
            .map_err(|error: lockkeeper::HandleError| Failure::usage(error.to_string()))
    }
}

/// `lockkeeper renew`.
pub(crate) async fn renew(common: &Common, args: RenewArgs) -> Result<u8, Failure> {
    let kept = args.handle.kept()?;
    let locks = store::open(common)
        .await?
        .locks(DEFAULT_TTL, "lockkeeper renew")?;
    let state = locks.renew_kept(&kept, args.ttl).await?;
    told(
        common,
        &kept,
        state,
        "the locks are no longer held: acquire them again, and check what was done meanwhile",
    )
}

/// `lockkeeper release`.
pub(crate) async fn release(common: &Common, args: HandleArgs) -> Result<u8, Failure> {
    let kept = args.kept()?;
    let locks = store::open(common)
        .await?
        .locks(DEFAULT_TTL, "lockkeeper release")?;
    let state = locks.release_kept(&kept).await?;
    told(
        common,
        &kept,
        state,
        "the locks were no longer held: check what was done meanwhile",
    )
}

/// `lockkeeper status`.
pub(crate) async fn status(common: &Common, args: HandleArgs) -> Result<u8, Failure> {
    let kept = args.kept()?;
    let store = store::open(common).await?;
    let locks = store.locks(DEFAULT_TTL, "lockkeeper status")?;
    let state = locks.kept_state(&kept).await?;
    if state == KeptState::Held {
        let left = store.backend.lease_left(&[kept.session()]).await?;
        let left = left.into_iter().next().flatten();
        tell(&format!(
            "session {} holds the locks, token {}{}",
            kept.session(),
            kept.token(),
            left.map_or_else(String::new, |left| format!(
                ", {} left",
                describe::duration(left)
            )),
        ));
        let lease_left_ms = left.map(describe::ms);
        return told_left(common, &kept, state, "", lease_left_ms);
    }
    told(common, &kept, state, "the locks are no longer held")
}

fn told(common: &Common, kept: &Kept, state: KeptState, if_not: &str) -> Result<u8, Failure> {
    told_left(common, kept, state, if_not, None)
}

fn told_left(
    common: &Common,
    kept: &Kept,
    state: KeptState,
    if_not: &str,
    lease_left_ms: Option<u64>,
) -> Result<u8, Failure> {
    let held = state == KeptState::Held;
    let (session, token) = (kept.session().to_string(), kept.token().to_string());
    result(
        common,
        &StatusJson {
            held,
            session,
            token,
            lease_left_ms,
        },
    )?;
    match held {
        true => Ok(0),
        false => Err(Failure::new(crate::failure::status::LOST, if_not)),
    }
}
