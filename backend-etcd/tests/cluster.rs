//! Processes that lock on a cluster of three members, while the leader is killed, stopped and paused.
//!
//! It starts the members itself. `cargo xtask test` runs it with one fault of each kind; a long run is
//! `cargo test --release -p lockcore-etcd --test cluster -- --faults 36`.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use libtest_mimic::{Arguments, Failed, Trial};
use lockcore::{LockBackend, LockKey, async_trait};
use lockcore_conformance::processes::{self, Plan};
use lockcore_conformance::servers::etcd::{ETCD_3_6, Member, answers};
use lockcore_conformance::{BoxError, Space, World};
use lockcore_etcd::{EtcdBackend, EtcdConfig};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

/// Sessions outlive the loss of a leader, so that their guards have to be there after it.
const TTL: Duration = Duration::from_secs(5);
/// Less than the time between two renewals: a member that does not answer is left for the next.
const TIMEOUT_MS: u64 = 1_000;
/// Longest time until there is another leader, and until a process finds a member that serves it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a leader is stopped: the others elect another one after a second or two.
const STOPPED: Duration = Duration::from_secs(6);
/// How long it is stopped so that nobody notices.
const PAUSED: Duration = Duration::from_millis(600);
const LOOK: Duration = Duration::from_millis(50);

/// What is done to the leader.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// SIGKILL; it is started again when another one leads.
    Killed,
    /// SIGSTOP, until long after another one leads.
    Stopped,
    /// SIGSTOP, for a time that the others do not notice.
    Paused,
}

const FAULTS: [Fault; 3] = [Fault::Killed, Fault::Stopped, Fault::Paused];

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    test: Arguments,
    /// One run in place of the tests, with so many faults.
    #[arg(long, value_name = "N")]
    faults: Option<usize>,
    /// Processes at a time.
    #[arg(long, value_name = "N", default_value_t = 6)]
    processes: usize,
    /// What chance in the processes follows from; a new one every time, if it is not given.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    if let Some(code) = processes::child(&Cluster::default()) {
        return code;
    }
    let args = Args::parse();
    let mut plan = Plan::new(args.seed.unwrap_or_else(rand::random));
    plan.processes = args.processes;
    plan.ttl = Some(TTL);
    if let Some(faults) = args.faults {
        return match keeps_the_laws(&plan, faults) {
            Ok(()) => ExitCode::SUCCESS,
            Err(what) => {
                println!("{what}");
                ExitCode::FAILURE
            }
        };
    }
    let name = "etcd::cluster::one_fault_of_each_kind";
    let trial = Trial::test(name, move || {
        keeps_the_laws(&plan, FAULTS.len()).map_err(|what| Failed::from(what.to_string()))
    });
    libtest_mimic::run(&args.test, vec![trial]).exit_code()
}

/// The laws, while so many faults meet the leader.
fn keeps_the_laws(plan: &Plan, faults: usize) -> Result<(), BoxError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let started = support::waited(|| ETCD_3_6.cluster(&support::artefacts()));
        let mut members = started.await?;
        let kept = keeps_the_laws_on(&mut members, plan, faults).await;
        if kept.is_err() {
            eprintln!("{}", members.explains());
        }
        kept
    })
}

async fn keeps_the_laws_on(
    members: &mut [Member],
    plan: &Plan,
    faults: usize,
) -> Result<(), BoxError> {
    let hosts: Vec<String> = members
        .iter()
        .map(|member| member.url().replacen("http://", "", 1))
        .collect();
    let namespace = format!("cluster-{:016x}", rand::random::<u64>());
    let options = format!("namespace={namespace}&timeout_ms={TIMEOUT_MS}");
    let url = format!("etcd://{}/?{options}", hosts.join(","));
    let mut times = Vec::new();
    let trouble = async {
        for fault in FAULTS.into_iter().cycle().take(faults) {
            work_goes_on().await;
            times.extend(strike(members, fault).await?);
        }
        work_goes_on().await;
        Ok(())
    };
    let run = Box::pin(processes::run_beside(&Cluster { url }, plan, trouble)).await?;
    times.sort_unstable();
    println!("{faults} faults, another leader after {times:?}");
    let (report, signals) = (&run.report, run.signals);
    println!(
        "seed {}, {} processes: {} SIGKILL and {} SIGSTOP of them, {} events, {} guards, {} refusals, {} adoptions, \
             {} stale writes refused, {} unfenced writes lost (explained), {} violations",
        plan.seed,
        plan.processes,
        signals.kills,
        signals.stops,
        report.events,
        report.guards,
        report.refused,
        report.adoptions,
        report.stale,
        report.losses,
        report.violations.len(),
    );
    match report.violations.first() {
        Some(first) => {
            let all = report.violations.iter().map(|found| format!("{found}\n"));
            let all: String = all.collect();
            Err(format!("{all}{}", first.around(&run.history, 40, 5)).into())
        }
        None if report.guards == 0 => Err("nobody held anything".into()),
        None => Ok(()),
    }
}

/// A random time of work between two faults.
async fn work_goes_on() {
    sleep(Duration::from_millis(rand::random_range(1_000..3_000))).await;
}

/// Does that to the leader. Says how long it took until there was another one, if there has to be.
async fn strike(members: &mut [Member], fault: Fault) -> Result<Option<Duration>, BoxError> {
    let leader = another_leader(members, None).await?;
    let pid = i32::try_from(members[leader].pid())
        .ok()
        .and_then(Pid::from_raw);
    let pid = pid.ok_or("no process")?;
    let since = Instant::now();
    match fault {
        Fault::Killed => {
            kill_process(pid, Signal::KILL)?;
            another_leader(members, Some(leader)).await?;
            let time = since.elapsed();
            members[leader].restart()?;
            let url = members[leader].url().to_owned();
            let asks = || {
                let url = url.clone();
                support::waited(move || answers(&url))
            };
            while asks().await.is_err() {
                if since.elapsed() > PATIENCE {
                    return Err("the member does not come back".into());
                }
                sleep(LOOK).await;
            }
            Ok(Some(time))
        }
        Fault::Stopped => {
            kill_process(pid, Signal::STOP)?;
            another_leader(members, Some(leader)).await?;
            let time = since.elapsed();
            sleep(STOPPED).await;
            kill_process(pid, Signal::CONT)?;
            Ok(Some(time))
        }
        Fault::Paused => {
            kill_process(pid, Signal::STOP)?;
            sleep(PAUSED).await;
            kill_process(pid, Signal::CONT)?;
            Ok(None)
        }
    }
}

/// Who leads, by what the others than this one say.
async fn another_leader(members: &[Member], than: Option<usize>) -> Result<usize, BoxError> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        for (at, member) in members.iter().enumerate() {
            if than != Some(at) && leads(member.url()).await.unwrap_or(false) {
                return Ok(at);
            }
        }
        sleep(LOOK).await;
    }
    Err("there is no leader".into())
}

async fn leads(url: &str) -> Result<bool, BoxError> {
    let asked = async {
        let mut client = support::client(url).await;
        client.status().await
    };
    let status = tokio::time::timeout(Duration::from_secs(1), asked).await??;
    let member = status.header().map(etcd_client::ResponseHeader::member_id);
    Ok(member == Some(status.leader()))
}

/// The namespace of one run, as the kit sees it.
#[derive(Clone, Default)]
struct Cluster {
    url: String,
}

#[async_trait]
impl World for Cluster {
    fn name(&self) -> String {
        "cluster".into()
    }

    fn paused(&self) -> bool {
        false
    }

    fn processes(&self) -> bool {
        true
    }

    async fn fresh(&self) -> Result<Arc<dyn Space>, BoxError> {
        Ok(Arc::new(self.clone()))
    }

    /// Each begins with another member; one that is there may be stopped just now.
    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        let (scheme, rest) = url.split_once("://").ok_or("no URL")?;
        let (hosts, options) = rest.split_once('/').ok_or("no options")?;
        let mut hosts: Vec<&str> = hosts.split(',').collect();
        let until = Instant::now() + PATIENCE;
        loop {
            let first = rand::random_range(0..hosts.len());
            hosts.rotate_left(first);
            let config = EtcdConfig::parse(&format!("{scheme}://{}/{options}", hosts.join(",")))?;
            match EtcdBackend::connect(config).await {
                Ok(backend) => return Ok(backend),
                Err(error) if Instant::now() > until => return Err(error.into()),
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }
}

#[async_trait]
impl Space for Cluster {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        self.reopen(&self.url).await
    }

    async fn pass(&self, time: Duration) {
        sleep(time).await;
    }

    fn allowance(&self) -> Duration {
        // Every leader begins every lease anew.
        TTL + Duration::from_secs(2)
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        Err(format!("nobody plants {key} here").into())
    }

    fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }
}
