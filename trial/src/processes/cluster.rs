//! Trials on a cluster whose members this program has started: what is done to a member, beside the rest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::Args;
use futures_util::future::BoxFuture;
use lockcore::{LockBackend, LockKey};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::{Also, Plan, Witness};
use crate::faults::{NetworkFault, ServerFault};
use lockcore_conformance::{BoxError, Fixture, Space};

/// Sessions of such a trial outlive the loss of a member, so that their guards have to be there after it.
pub const TTL: Duration = Duration::from_secs(5);
/// How long a request of such a trial may take: less than the time between two renewals. A member that does not answer is
/// left for the next.
pub const TIMEOUT_MS: u64 = 1_000;
/// How long a process looks for a member that serves it.
const CONNECTS: Duration = Duration::from_secs(60);
/// How long a member is stopped: the others notice after a few seconds.
const STOPPED: Duration = Duration::from_secs(6);
const LOOK: Duration = Duration::from_millis(50);

/// The arguments of such a trial, beside those of the tests.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct ClusterArgs {
    /// One run in place of the tests, with so many faults of members.
    #[arg(long, value_name = "N")]
    pub faults: Option<usize>,
    /// Processes at a time.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub processes: usize,
    /// What chance in the processes follows from; a new one every time, if it is not given.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// What else goes wrong: `network`, `requests`, or both with a comma between them.
    #[arg(long, value_name = "WHAT", requires = "faults")]
    pub also: Option<Also>,
    /// Writes the history to a file, as lines, which `--check` of a trial reads.
    #[arg(long, value_name = "FILE", requires = "faults")]
    pub history: Option<PathBuf>,
}

impl ClusterArgs {
    /// The run that they ask for.
    #[must_use]
    pub fn plan(&self) -> Plan {
        Plan {
            processes: self.processes.max(1),
            ttl: Some(TTL),
            also: self.also.unwrap_or_default(),
            history: self.history.clone(),
            ..Plan::new(self.seed.unwrap_or_else(rand::random))
        }
    }
}

/// What one member of a cluster does for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// It decides who gets a lock.
    Decides,
    /// It says who is a member, and who decides. Where the leader decides, that is the same.
    Leads,
}

/// The members of a cluster, of which one has a part that the others wait for.
pub trait Members {
    /// How long a member is stopped so that nobody notices.
    const PAUSED: Duration;
    /// Longest time until another member has the part, or all are there again.
    const PATIENCE: Duration;
    /// What is done, one after the other, and to whoever has which part.
    const STRIKES: &'static [(ServerFault, Part)];

    /// The process of a member.
    fn pid(&self, member: usize) -> Option<u32>;

    /// Starts a member again that was killed.
    ///
    /// # Errors
    ///
    /// It does not start.
    fn restart(&mut self, member: usize) -> Result<(), BoxError>;

    /// Cuts a member off from the others.
    ///
    /// # Errors
    ///
    /// Nobody can do that here.
    fn cut_off(&mut self, member: usize, how: NetworkFault) -> Result<(), BoxError>;

    /// Lets it reach the others again.
    ///
    /// # Errors
    ///
    /// It had been cut off from nobody.
    fn rejoin(&mut self) -> Result<(), BoxError>;

    /// What both sides see of each other, when each sees that they are apart.
    fn apart(&self, member: usize) -> impl Future<Output = Result<String, BoxError>>;

    /// Who has the part, as the first says that answers and is not this one.
    fn who(&self, part: Part, other_than: Option<usize>) -> impl Future<Output = Option<usize>>;

    /// Whether all are there, and have everything.
    fn is_whole(&self) -> impl Future<Output = Result<(), BoxError>>;
}

/// Does so many things to the member that has a part, one kind after the other, while the processes of a run work; then
/// all members are there. Says how long it took each time until another one had the part.
///
/// # Errors
///
/// Nobody takes the part, a member does not start, one that is cut off reaches others, or not all are there in time.
pub async fn strike_members<M: Members>(
    members: &mut M,
    faults: usize,
    witness: &Witness,
) -> Result<Vec<Duration>, BoxError> {
    let mut times = Vec::new();
    for (fault, part) in M::STRIKES.iter().copied().cycle().take(faults) {
        work_goes_on().await;
        witness.begins(fault);
        times.extend(strike(members, fault, part).await?);
        witness.ends(fault);
    }
    work_goes_on().await;
    times.sort_unstable();
    Ok(times)
}

/// A random time of work between two faults.
pub async fn work_goes_on() {
    sleep(Duration::from_millis(rand::random_range(1_000..3_000))).await;
}

async fn strike<M: Members>(
    members: &mut M,
    fault: ServerFault,
    part: Part,
) -> Result<Option<Duration>, BoxError> {
    whole(members).await?;
    let member = another(members, part, None).await?;
    let since = Instant::now();
    let moved = match fault {
        ServerFault::Killed => {
            signal(members, member, Signal::KILL)?;
            another(members, part, Some(member)).await?;
            let moved = since.elapsed();
            members.restart(member)?;
            Some(moved)
        }
        ServerFault::Stopped => {
            signal(members, member, Signal::STOP)?;
            another(members, part, Some(member)).await?;
            let moved = since.elapsed();
            sleep(STOPPED.saturating_sub(moved)).await;
            signal(members, member, Signal::CONT)?;
            Some(moved)
        }
        ServerFault::Paused => {
            signal(members, member, Signal::STOP)?;
            sleep(M::PAUSED).await;
            signal(members, member, Signal::CONT)?;
            None
        }
        ServerFault::CutOff | ServerFault::Silenced => {
            let how = match fault {
                ServerFault::CutOff => NetworkFault::Cut,
                _ => NetworkFault::Silent,
            };
            members.cut_off(member, how)?;
            another(members, part, Some(member)).await?;
            let moved = since.elapsed();
            println!("{}", apart(members, member).await?);
            sleep(STOPPED.saturating_sub(since.elapsed())).await;
            members.rejoin()?;
            Some(moved)
        }
        _ => return Err(format!("{fault:?} is nothing that a member is struck with").into()),
    };
    whole(members).await?;
    println!(
        "{fault:?}: member {member}, which {part:?}, another one does after {moved:?}, all are there after {:?}",
        since.elapsed()
    );
    Ok(moved)
}

fn signal(members: &impl Members, member: usize, signal: Signal) -> Result<(), BoxError> {
    let pid = members.pid(member);
    let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    Ok(kill_process(pid.ok_or("it is no process")?, signal)?)
}

/// Who has the part, when it is another one than this.
async fn another<M: Members>(
    members: &M,
    part: Part,
    than: Option<usize>,
) -> Result<usize, BoxError> {
    let since = Instant::now();
    loop {
        match members.who(part, than).await {
            Some(member) if than != Some(member) => return Ok(member),
            _ if since.elapsed() > M::PATIENCE => return Err("nobody takes its part".into()),
            _ => sleep(LOOK).await,
        }
    }
}

/// Waits until both sides of a cut have noticed it; says what they see.
///
/// # Errors
///
/// They do not in time; the text says what they see.
pub async fn apart<M: Members>(members: &M, member: usize) -> Result<String, BoxError> {
    let since = Instant::now();
    loop {
        match members.apart(member).await {
            Err(seen) if since.elapsed() > M::PATIENCE => return Err(seen),
            Err(_) => sleep(LOOK).await,
            seen => return seen,
        }
    }
}

/// Waits until all are there.
///
/// # Errors
///
/// They are not in time; the text says what is missing.
pub async fn whole<M: Members>(members: &M) -> Result<(), BoxError> {
    let since = Instant::now();
    while let Err(missing) = members.is_whole().await {
        if since.elapsed() > M::PATIENCE {
            return Err(missing);
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Connects to the store of a URL.
pub type Connect = fn(String) -> BoxFuture<'static, Result<Arc<dyn LockBackend>, BoxError>>;

/// One namespace on a cluster, whose URL names all members. Each process begins with another one.
#[derive(Debug, Clone)]
pub struct Hosts {
    url: String,
    allowance: Duration,
    connect: Connect,
}

impl Hosts {
    /// The namespace of this URL, with the [allowance](Space::allowance) of its store. A process of a run, which is told
    /// its URL later, has any.
    #[must_use]
    pub fn new(url: impl Into<String>, allowance: Duration, connect: Connect) -> Self {
        Self {
            url: url.into(),
            allowance,
            connect,
        }
    }
}

#[async_trait]
impl Fixture for Hosts {
    fn name(&self) -> String {
        "cluster".to_owned()
    }

    fn paused(&self) -> bool {
        false
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        Ok(Arc::new(self.clone()))
    }

    /// A member that is there may be stopped just now.
    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        let (scheme, rest) = url.split_once("://").ok_or("no URL")?;
        let (hosts, options) = rest.split_once('/').ok_or("no options")?;
        let mut hosts: Vec<&str> = hosts.split(',').collect();
        let since = Instant::now();
        loop {
            let first = rand::random_range(0..hosts.len());
            hosts.rotate_left(first);
            let url = format!("{scheme}://{}/{options}", hosts.join(","));
            match (self.connect)(url).await {
                Ok(backend) => return Ok(backend),
                Err(error) if since.elapsed() > CONNECTS => return Err(error),
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }
}

#[async_trait]
impl Space for Hosts {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        self.reopen(&self.url).await
    }

    fn allowance(&self) -> Duration {
        self.allowance
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        Err(format!("nobody plants {key} here").into())
    }

    fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }
}
