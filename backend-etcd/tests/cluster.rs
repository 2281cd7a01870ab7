//! Processes that lock on a cluster of three members, while the leader is killed, stopped and paused.
//!
//! It starts the members itself. `cargo xtask test` runs it with one fault of each kind; a long run is
//! `cargo test --release -p lockcore-etcd --test cluster -- --faults 36`.

mod support;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use libtest_mimic::{Arguments, Failed, Trial};
use lockcore::LockBackend;
use lockcore_conformance::BoxError;
use lockcore_etcd::{EtcdBackend, EtcdConfig};
use lockcore_trial::faults::{NetworkFault, ServerFault};
use lockcore_trial::processes::cluster::{
    ClusterArgs, Hosts, Members, Part, TIMEOUT_MS, TTL, strike_members,
};
use lockcore_trial::processes::{self, Plan};
use lockkeeper_servers::Cluster;
use lockkeeper_servers::etcd::{ETCD_3_6, Member, answers};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    test: Arguments,
    #[command(flatten)]
    cluster: ClusterArgs,
}

fn main() -> ExitCode {
    if let Some(code) = processes::child(&hosts(String::new())) {
        return code;
    }
    let args = Args::parse();
    let plan = args.cluster.plan();
    if let Some(faults) = args.cluster.faults {
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
        let kept = keeps_the_laws(&plan, Etcd::STRIKES.len());
        kept.map_err(|what| Failed::from(what.to_string()))
    });
    libtest_mimic::run(&args.test, vec![trial]).exit_code()
}

/// The namespace of one run. Every leader begins every lease anew.
fn hosts(url: String) -> Hosts {
    Hosts::new(url, TTL + Duration::from_secs(2), |url| {
        Box::pin(async move {
            let backend = EtcdBackend::connect(EtcdConfig::parse(&url)?).await?;
            Ok(backend as std::sync::Arc<dyn LockBackend>)
        })
    })
}

/// The laws, while so many faults meet the leader.
fn keeps_the_laws(plan: &Plan, faults: usize) -> Result<(), BoxError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let started = support::waited(|| ETCD_3_6.cluster(&support::artefacts()));
        let mut members = Etcd(started.await?);
        let kept = keeps_the_laws_on(&mut members, plan, faults).await;
        if kept.is_err() {
            eprintln!("{}", members.0.explains());
        }
        kept
    })
}

async fn keeps_the_laws_on(members: &mut Etcd, plan: &Plan, faults: usize) -> Result<(), BoxError> {
    let names = members.0.iter().map(|member| member.url());
    let names: Vec<String> = names.map(|url| url.replacen("http://", "", 1)).collect();
    let namespace = format!("cluster-{:016x}", rand::random::<u64>());
    let options = format!("namespace={namespace}&timeout_ms={TIMEOUT_MS}");
    let hosts = hosts(format!("etcd://{}/?{options}", names.join(",")));
    let mut times = Vec::new();
    let run = Box::pin(processes::run_beside(&hosts, plan, async |witness| {
        times = strike_members(members, faults, witness).await?;
        Ok(())
    }));
    let run = run.await?;
    println!("{faults} faults, another leader after {times:?}");
    processes::report(plan, &run)
}

struct Etcd(Cluster<Member>);

const NO_PROXIES: &str = "there are no proxies between the members of etcd";

impl Members for Etcd {
    const PAUSED: Duration = Duration::from_millis(600);
    const PATIENCE: Duration = Duration::from_secs(60);
    const STRIKES: &'static [(ServerFault, Part)] = &[
        (ServerFault::Killed, Part::Leads),
        (ServerFault::Stopped, Part::Leads),
        (ServerFault::Paused, Part::Leads),
    ];

    fn pid(&self, member: usize) -> Option<u32> {
        Some(self.0[member].pid())
    }

    fn restart(&mut self, member: usize) -> Result<(), BoxError> {
        Ok(self.0[member].restart()?)
    }

    fn cut_off(&mut self, _: usize, _: NetworkFault) -> Result<(), BoxError> {
        Err(NO_PROXIES.into())
    }

    fn rejoin(&mut self) -> Result<(), BoxError> {
        Err(NO_PROXIES.into())
    }

    async fn apart(&self, _: usize) -> Result<String, BoxError> {
        Err(NO_PROXIES.into())
    }

    /// Who says so of itself.
    async fn who(&self, _: Part, other_than: Option<usize>) -> Option<usize> {
        for (at, member) in self.0.iter().enumerate() {
            if other_than != Some(at) && leads(member.url()).await.unwrap_or(false) {
                return Some(at);
            }
        }
        None
    }

    async fn is_whole(&self) -> Result<(), BoxError> {
        for member in self.0.iter() {
            let url = member.url().to_owned();
            support::waited(move || answers(&url)).await?;
        }
        Ok(())
    }
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
