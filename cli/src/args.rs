//! What the command line takes.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use lockkeeper::backend::Namespace;
use lockkeeper::{Label, LockKey, SessionId, limits};

use crate::failure::status;

const EXIT_STATUS: &str = "Exit status: the command's own (128 + n after signal n); 64 bad usage or input, \
69 store unavailable, 70 a law is broken (verify), 75 busy or the wait is over, 76 lock lost, 77 abandoned work in the way, 126 the command cannot \
be run, 127 there is no such command.";

/// Runs commands under locks, and shows and fixes the locks of a store.
#[derive(Parser)]
#[command(name = "lockkeeper", version, disable_help_subcommand = true)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,

    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What every action takes.
#[derive(Args, Debug, Default)]
pub(crate) struct Common {
    /// The store: sqlite:PATH, redis://HOST, postgres://HOST/DATABASE, elasticsearch://HOST or etcd://HOST. Without it LOCKKEEPER_URL, or what LOCKKEEPER_URL_FILE names, or a file in $XDG_STATE_HOME/lockkeeper or ~/.local/state/lockkeeper.
    #[arg(long, global = true, value_name = "URL", help_heading = GLOBAL)]
    pub(crate) url: Option<String>,
    /// A file that contains the URL. Unlike an argument, it keeps a password from everybody who sees the list of processes.
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) url_file: Option<PathBuf>,
    /// A file with the password of the URL's user. Without it LOCKKEEPER_PASSWORD, if the URL has none.
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) password_file: Option<PathBuf>,
    /// What others are shown of who holds a lock, or who breaks one; host, process id and program by default.
    #[arg(long, global = true, value_name = "TEXT", value_parser = parse_label, help_heading = GLOBAL)]
    pub(crate) label: Option<Label>,
    /// Says nothing but errors.
    #[arg(long, short, global = true, help_heading = GLOBAL)]
    pub(crate) quiet: bool,
    /// One JSON object a line: results on standard output, and messages on standard error. The output of a command that is
    /// run is its own.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
}

const GLOBAL: &str = "Everywhere";

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Runs a command while it holds locks.
    ///
    /// Claims are of one kind: --lock, --document with --documents-from, --write with --read, or --share.
    ///
    /// The command runs in its own process group, gets HUP, INT, QUIT, TERM, USR1, USR2, WINCH, TSTP and CONT from lockkeeper,
    /// and finds LOCKKEEPER_TOKEN, LOCKKEEPER_SESSION and LOCKKEEPER_STORE (the URL, without a password) in its environment;
    /// LOCKKEEPER_URL stays as it is, for a lockkeeper inside the command.
    /// The token is a decimal number below 2^63; jq and JavaScript round it, so keep it as text there.
    ///
    /// When the lock is lost, the command's process group is ended (what leaves the group, or changes its user, is not): TERM
    /// when a quarter of the TTL is left without an acknowledged renewal, KILL at the end. The lock is released when the
    /// command ends; what it leaves running in the background is not protected. While a shell has stopped it, the lock is not
    /// renewed.
    Run(Box<RunArgs>),
    /// Takes locks that no process holds, for several steps: prints a handle, by which any process renews and releases them.
    ///
    /// Whoever has the handle can release the locks. They end by themselves at the end of --ttl. Two steps may use the handle at
    /// the same time, on any machine: its clock does not matter.
    Acquire(Box<AcquireArgs>),
    /// Renews the locks of a handle. Exits with 76 if they are no longer held.
    Renew(RenewArgs),
    /// Releases the locks of a handle. Exits with 76 if they were no longer held.
    Release(HandleArgs),
    /// Says whether the locks of a handle are held; exits with 76 if not.
    Status(HandleArgs),
    /// Lists what is held, and who waits for it.
    ///
    /// One line for each holder and waiter; waiters stand in the order in which they come in turn. On a terminal a table with
    /// ages, and with what is left of the lease if it is not renewed: - where there is none, and on Elasticsearch and OpenSearch.
    /// Elsewhere with tabs, without headings: key, mode, since, seconds left, session, state, label. The mode of a name or document is
    /// exclusive or shared, that of a path read or write, or read below or write below where something below it is held. The
    /// state is living, abandoned or waiting.
    Ls(LsArgs),
    /// Shows who holds a key, and who waits for it.
    ///
    /// As ls, without the key.
    Inspect(InspectArgs),
    /// Prints a line for each change: granted, waiting, released, broken, and what else happens.
    ///
    /// At first what is there: held, waiting or abandoned. Then granted, waiting, released, gave up (a waiter), abandoned,
    /// broken, revoked, ended (the session was closed, or its process has died) and gone (a foreign record). Fields are
    /// separated by tabs: when, what, key, mode, session, label; and for what an operator has done, by whom and why.
    ///
    /// The store is asked every --every; what begins and ends in between is not seen. Ends with a signal, or when the store has not answered for a minute.
    Watch(WatchArgs),
    /// Shows on a screen who holds what, who waits for it, cycles of waits, and what changes.
    #[cfg(feature = "top")]
    Top(TopArgs),
    /// Lists the sessions of holders.
    ///
    /// One line for each session. Elsewhere than on a terminal with tabs, without headings: session, state, seconds left of
    /// the lease, adopter, label.
    Sessions(SessionsArgs),
    /// Frees a key: has its holders give it up, and evicts a foreign record.
    ///
    /// A holder hears of it within a second, or 10 where the store does not push, and its command is ended. What it has acquired together
    /// with the key goes, too; its other locks stay. One that
    /// renews and does not obey, or is not to be waited for, is revoked with --session. A lock that is kept without a process
    /// is free at once.
    Break(BreakArgs),
    /// Asks the holders of a key to give it up soon. Nobody is made to obey; see break.
    ///
    /// A holder hears of it within a second, or 10 where the store does not push. A lockkeeper run says so, and sends its command the
    /// signal of --on-asked. Of a lock that is kept without a process nobody hears it, which is said.
    Ask(AskArgs),
    /// Hands what dead holders left unfinished to a command, and settles it if that ends with 0.
    ///
    /// The command reads JSON lines as that of run --recover does, and its exit status is that of lockkeeper;
    /// or 76 if not all of it was settled, because others have discarded or adopted it meanwhile.
    Recover(RecoverArgs),
    /// Throws away what a dead holder left unfinished; its locks go free.
    Discard(DiscardArgs),
    /// Removes records that hold nothing any more.
    Sweep,
    /// Asks the store for an answer, and says how long it took. A namespace that does not exist is created.
    Ping,
    /// Creates the namespace of the URL, if it does not exist yet.
    ///
    /// Who creates it may need more rights than who uses it; lockkeeper grants prints both. What is there already stays.
    Init(InitArgs),
    /// Removes the namespace of the URL with all its records; of an SQLite file, the file.
    ///
    /// Refuses with 75 while anybody has a session there, and with 77 while unfinished work is left.
    Remove(RemoveArgs),
    /// Prints what gives a program the least rights that it needs: SQL, rules for an ACL, or roles.
    Grants(GrantsArgs),
    /// Prints the completions of a shell: lockkeeper completions bash > /etc/bash_completion.d/lockkeeper
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Prints the manual page: lockkeeper man | man -l -
    Man {
        /// The action that it is about; without it, the command as a whole.
        action: Option<String>,
    },
    /// Measures the store, in a namespace of its own that it removes.
    ///
    /// Tasks of one process take turns: one at a lock that nobody else wants, 16 at a lock each, 8 at one lock, 30 at the
    /// ten places of a semaphore, and one at a tree lock. Then many documents are locked at once. It shows how long each
    /// took: half of the turns took at most p50, all but one in a hundred p99. JSON has all times in microseconds.
    ///
    /// The namespace is called lockkeeper-scratch- and 16 hexadecimal digits; of an SQLite file it is a file beside it,
    /// whose name ends so. Where a lockkeeper that was killed has left one, remove it by the store's own means. To make
    /// and to remove it takes more rights than to use locks: with Redis UNLINK, with Elasticsearch delete_index.
    Bench(BenchArgs),
    /// Verifies that locks keep their promises in a deployment: with its servers, its settings, and everything between them and
    /// this machine.
    ///
    /// First the conformance cases run, each in a namespace of its own. Then processes work with locks while they are killed,
    /// stopped and continued, sessions are revoked and unfinished work is discarded; a checker holds what they saw against
    /// every law. The report says what was found, how many events each law has judged, and what was not tried. The exit
    /// status is 0 only if every law held and had something to judge, 70 if one is broken, and 69 if that could not be
    /// decided. Excepted are what somebody else has written into the store, which is not tried, and three laws about waiting,
    /// which few runs can judge: the last line counts those that judged nothing.
    ///
    /// The namespaces are called lockkeeper-scratch- and 16 hexadecimal digits; they are removed, also when it is
    /// interrupted. It takes the rights that bench takes. Other namespaces are not touched. The load is that of --jobs cases, or
    /// of --processes, at a time.
    #[cfg(all(feature = "verify", unix))]
    Verify(VerifyArgs),
}

#[derive(Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) claims: ClaimArgs,
    /// Waits at most this long, as in 90s or 5m; without it, for ever. While it waits, it says every 30 s who is in the way.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Does not wait.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The exit status if the locks are busy or the wait is over.
    #[arg(long, value_name = "N", default_value_t = status::BUSY)]
    pub(crate) busy_status: u8,
    /// How long the locks outlive a lockkeeper that was killed.
    #[arg(long, value_name = "DURATION", value_parser = parse_ttl, default_value = "30s")]
    pub(crate) ttl: Duration,
    /// The longest that the locks are held: the command gets TERM when nine tenths of it are over, and KILL at its end.
    #[arg(long, value_name = "DURATION", value_parser = parse_hold)]
    pub(crate) max_hold: Option<Duration>,
    /// The least time that the locks are held, from 1s to 24h: they are kept for the rest of it when the command has ended,
    /// also if it failed; not if it could not be run. With --max-hold, KILL comes half-way between TERM and the end. So a job that every host starts at the same time runs once. Does not wait, unless --wait is given.
    #[arg(long, value_name = "DURATION", value_parser = parse_ttl, conflicts_with = "intent")]
    pub(crate) at_least: Option<Duration>,
    /// The signal that the command gets when somebody asks for the locks (lockkeeper ask); without it, only a message says so.
    #[arg(long, value_name = "SIGNAL", ignore_case = true)]
    pub(crate) on_asked: Option<OnAsked>,
    /// What the command is about to do, as JSON or as a file of JSON. Until the command ends with 0 it stays in the
    /// store, and the locks with it.
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) intent: Option<String>,
    /// What to run first, by sh -c, when a dead holder's intent is in the way. It reads JSON lines with session,
    /// label, token, old_token (both decimal strings) and intent (intent_base64 if that is no JSON) on standard input, and finishes or
    /// undoes the changes; status 0 settles them, any other leaves them and the lock is not taken (77).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) recover: Option<String>,
    /// The command, as a line for sh.
    #[arg(short = 'c', value_name = "STRING", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,
    /// The command and its arguments.
    #[arg(last = true, required_unless_present = "shell", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What is locked.
#[derive(Args, Debug)]
pub(crate) struct ClaimArgs {
    /// Locks a name, exclusively: a global lock.
    #[arg(
        long,
        visible_alias = "global",
        value_name = "NAME",
        help_heading = "Claims"
    )]
    pub(crate) lock: Option<String>,
    /// Locks a document, exclusively; may be repeated.
    #[arg(long, value_name = "ID", help_heading = "Claims")]
    pub(crate) document: Vec<String>,
    /// Locks the documents of a file, one id a line; from standard input with -, the command's is then empty.
    #[arg(long, value_name = "FILE", help_heading = "Claims")]
    pub(crate) documents_from: Option<PathBuf>,
    /// Locks a path with everything below it, to change it; may be repeated, and mixed with --read.
    #[arg(long, value_name = "PATH", help_heading = "Claims")]
    pub(crate) write: Vec<String>,
    /// Locks a path with everything below it, to read it; may be repeated, and mixed with --write.
    #[arg(long, value_name = "PATH", help_heading = "Claims")]
    pub(crate) read: Vec<String>,
    /// Takes a share of a name.
    #[arg(long, value_name = "NAME", help_heading = "Claims")]
    pub(crate) share: Option<String>,
    /// Most shares of the name, this one included; callers of one name give one limit.
    #[arg(long, value_name = "N", value_parser = parse_limit, help_heading = "Claims")]
    pub(crate) limit: Option<NonZeroU32>,
}

#[derive(Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) claims: ClaimArgs,
    /// How long the locks are held, unless they are renewed or released before: from 1s (etcd, Elasticsearch: 2s) to 24h.
    #[arg(long, value_name = "DURATION", value_parser = parse_ttl)]
    pub(crate) ttl: Duration,
    /// Waits at most this long, as in 90s or 5m; without it, for ever.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Does not wait.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The exit status if the locks are busy or the wait is over.
    #[arg(long, value_name = "N", default_value_t = status::BUSY)]
    pub(crate) busy_status: u8,
    /// Where the handle is written, for its owner's eyes only; without it, to standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) handle_file: Option<PathBuf>,
}

/// Which lock.
#[derive(Args)]
pub(crate) struct HandleArgs {
    /// The handle that lockkeeper acquire has printed; without it, that of the file, or of LOCKKEEPER_HANDLE.
    pub(crate) handle: Option<String>,
    /// A file with the handle.
    #[arg(long, value_name = "FILE", conflicts_with = "handle")]
    pub(crate) handle_file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) handle: HandleArgs,
    /// How long the locks are held from now on, from 1s (etcd, Elasticsearch: 2s) to 24h; longer or shorter than before.
    #[arg(long, value_name = "DURATION", value_parser = parse_ttl)]
    pub(crate) ttl: Duration,
}

#[derive(Args)]
pub(crate) struct InitArgs {
    /// A role that may use the namespace; may be repeated. PostgreSQL only.
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Vec<String>,
}

#[derive(Args)]
pub(crate) struct RemoveArgs {
    /// Also while it is used; on PostgreSQL also a namespace of another version. Nobody is asked.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args)]
pub(crate) struct GrantsArgs {
    /// The store.
    pub(crate) store: StoreName,
    /// The namespace. The user or role is named like it.
    #[arg(long, value_name = "NAME", value_parser = parse_namespace, default_value = "lockkeeper")]
    pub(crate) namespace: Namespace,
}

/// The stores that have users.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StoreName {
    Elasticsearch,
    Opensearch,
    Etcd,
    Postgres,
    Redis,
}

#[derive(Args)]
pub(crate) struct LsArgs {
    /// Only keys that begin with this text.
    #[arg(long, value_name = "P", default_value = "")]
    pub(crate) prefix: String,
}

#[derive(Args)]
pub(crate) struct WatchArgs {
    /// Only this key; for a path, whoever holds something below it holds it in mode read below or write below.
    #[arg(value_parser = parse_key, conflicts_with = "prefix")]
    pub(crate) key: Option<LockKey>,
    /// Only keys that begin with this text.
    #[arg(long, value_name = "P", default_value = "")]
    pub(crate) prefix: String,
    /// How often the store is asked.
    #[arg(long, value_name = "DURATION", value_parser = parse_every, default_value = "1s")]
    pub(crate) every: Duration,
}

#[cfg(feature = "top")]
#[derive(Args)]
pub(crate) struct TopArgs {
    /// Only keys that begin with this text.
    #[arg(long, value_name = "P", default_value = "")]
    pub(crate) prefix: String,
    /// How often the store is asked.
    #[arg(long, value_name = "DURATION", value_parser = parse_every, default_value = "1s")]
    pub(crate) every: Duration,
}

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// The key; for a path, whoever holds something below it holds it in mode read below or write below.
    #[arg(value_parser = parse_key)]
    pub(crate) key: LockKey,
}

#[derive(Args)]
pub(crate) struct SessionsArgs {
    /// The dead ones that are still remembered as well.
    #[arg(long)]
    pub(crate) all: bool,
    /// Only those that have ended, each with when, if the store tells it, and with who broke, revoked or discarded something,
    /// when and why. They are remembered for a day.
    #[arg(long, conflicts_with = "all")]
    pub(crate) ended: bool,
}

#[derive(Args)]
pub(crate) struct BreakArgs {
    /// The key; for a path, those who hold something below it lose that as well.
    #[arg(value_parser = parse_key)]
    pub(crate) key: LockKey,
    /// Why; told to the holder, and kept for a day.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    pub(crate) reason: Label,
    /// Revokes the holders' sessions, at once, with all that they hold.
    #[arg(long)]
    pub(crate) session: bool,
    /// How long it is waited for the holders to give the key up.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "15s", conflicts_with = "session")]
    pub(crate) wait: Duration,
}

#[derive(Args)]
pub(crate) struct AskArgs {
    /// The key; for a path, those who hold something below it are asked as well.
    #[arg(value_parser = parse_key)]
    pub(crate) key: LockKey,
    /// Why; told to the holders, and kept for a day.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    pub(crate) reason: Label,
}

/// A signal that asks a command to end, or tells it something.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum OnAsked {
    Hup,
    Int,
    Quit,
    Term,
    Usr1,
    Usr2,
}

#[derive(Args)]
pub(crate) struct RecoverArgs {
    /// The session whose work is to be finished; without it, every abandoned one.
    pub(crate) session: Option<SessionId>,
    /// How long the adoption outlives a lockkeeper that was killed.
    #[arg(long, value_name = "DURATION", value_parser = parse_ttl, default_value = "30s")]
    pub(crate) ttl: Duration,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct DiscardArgs {
    /// The abandoned session.
    pub(crate) session: SessionId,
    /// Why; kept for a day.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    pub(crate) reason: Label,
}

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// How long tasks take turns in each of the five ways, in seconds.
    #[arg(long, value_name = "N", value_parser = parse_seconds, default_value = "2")]
    pub(crate) seconds: Duration,
    /// How many documents are locked at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), default_value_t = 1_000)]
    pub(crate) keys: u32,
}

#[cfg(all(feature = "verify", unix))]
#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// How long processes work under faults, in minutes.
    #[arg(long, value_name = "N", value_parser = parse_minutes, default_value = "2")]
    pub(crate) minutes: Duration,
    /// How many processes work at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=32), default_value_t = 4)]
    pub(crate) processes: u8,
    /// Which cases run: all, or the quick ones, which find nearly all mistakes.
    #[arg(long, value_name = "SET", default_value = "all")]
    pub(crate) cases: CaseSet,
    /// How many cases run at a time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32), default_value_t = 4)]
    pub(crate) jobs: u8,
    /// What random choices follow from; another one each time by default.
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Keeps everything that the processes saw and did, as JSON lines.
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
}

/// Which cases.
#[cfg(all(feature = "verify", unix))]
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CaseSet {
    All,
    Quick,
}

#[cfg(all(feature = "verify", unix))]
fn parse_minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse().ok().filter(|m| (0.1..=1_440.0).contains(m));
    let minutes = minutes.and_then(|minutes: f64| Duration::try_from_secs_f64(minutes * 60.0).ok());
    minutes.ok_or_else(|| "it is a number from 0.1 to 1440".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=600.0).contains(s));
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "it is a number from 0.1 to 600".to_owned())
}

fn parse_limit(text: &str) -> Result<NonZeroU32, String> {
    text.parse()
        .map_err(|_| format!("a limit is a number from 1 to {}", u32::MAX))
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (limits::MIN_TTL..=limits::MAX_TTL).contains(&ttl) {
        Ok(ttl)
    } else {
        Err("a time to live is from 1s to 24h".to_owned())
    }
}

fn parse_every(text: &str) -> Result<Duration, String> {
    let every = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let range = Duration::from_millis(100)..=Duration::from_secs(3_600);
    match range.contains(&every) {
        true => Ok(every),
        false => Err("it is from 100ms to 1h".to_owned()),
    }
}

fn parse_hold(text: &str) -> Result<Duration, String> {
    let longest = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match longest.is_zero() {
        true => Err("the command would be ended at once".to_owned()),
        false => Ok(longest),
    }
}

fn parse_key(text: &str) -> Result<LockKey, String> {
    LockKey::parse(text).map_err(|error| error.to_string())
}

fn parse_namespace(text: &str) -> Result<Namespace, String> {
    Namespace::parse(text).map_err(|error| error.to_string())
}

fn parse_label(text: &str) -> Result<Label, String> {
    Label::parse(text).map_err(|error| error.to_string())
}

fn parse_reason(text: &str) -> Result<Label, String> {
    let reason = Label::parse(text).ok().filter(|_| !text.trim().is_empty());
    reason.ok_or_else(|| "a reason is a line of text, of at most 256 bytes".to_owned())
}
