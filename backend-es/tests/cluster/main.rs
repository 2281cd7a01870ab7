//! Processes that lock on a cluster of three nodes, while the node that has the primary is killed, stopped and paused, and
//! this one and the master are cut off from the others.
//!
//! It starts the nodes itself. `cargo xtask test` runs it with OpenSearch 2 and some faults; a long run, also with
//! `--engine elasticsearch-9`, `elasticsearch-7` or `opensearch-3`, is
//! `cargo test --release -p lockcore-es --test cluster -- --faults 36`.

mod apart;
mod copies;
mod nodes;
mod stale;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use clap::Parser;
use futures_util::future::join_all;
use libtest_mimic::{Arguments, Failed, Trial};
use lockcore::backend::{IntentChange, Opened, Ranges, Renewal, Renewed, SessionStore};
use lockcore::{Label, LockBackend, LockKey, SessionId};
use lockcore_conformance::{BoxError, Law};
use lockcore_es::{EsBackend, EsConfig};
use lockcore_trial::faults::NetworkFault;
use lockcore_trial::processes::cluster::{
    ClusterArgs, Hosts, Members, TIMEOUT_MS, apart, strike_members, work_goes_on,
};
use lockcore_trial::processes::{self, Plan, Witness};
use lockkeeper_servers::{ENGINES, Engine, OPENSEARCH_2};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use nodes::{Cluster, NODES, Nodes};

/// How long an operator tries what the cluster does not take yet.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a request may take of whoever is not under faults.
const PATIENT_MS: u64 = 3_000;
/// So many faults are one of each kind of a process.
const SHORT: usize = 3;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    test: Arguments,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Which engine.
    #[arg(long, value_name = "ENGINE", value_parser = engine, default_value = OPENSEARCH_2.name)]
    engine: &'static Engine,
    /// How far the clocks of the nodes are apart; needs libfaketime.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    skew_ms: u64,
    /// How far the clients allow them to be apart.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    clock_skew_ms: u64,
}

fn engine(name: &str) -> Result<&'static Engine, String> {
    let found = ENGINES.into_iter().find(|engine| engine.name == name);
    found.ok_or_else(|| "no engine of that name".to_owned())
}

/// The cluster of this run, started by the first that needs it, and used by one at a time.
struct Shared {
    engine: &'static Engine,
    skew: Duration,
    clock_skew_ms: u64,
    cluster: Mutex<Option<Cluster>>,
}

impl Shared {
    /// Does something with the whole cluster.
    fn with<T>(
        &self,
        work: impl AsyncFnOnce(&mut Cluster) -> Result<T, BoxError>,
    ) -> Result<T, BoxError> {
        let mut shared = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cluster = match shared.take() {
            Some(cluster) => cluster,
            None => Cluster::start(self.engine, self.skew)?,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let done = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                cluster.whole().await?;
                work(&mut cluster).await
            })
        }));
        match done {
            Ok(Ok(_)) => *shared = Some(cluster),
            // Whatever has failed may have left it broken: the next starts its own.
            _ => eprintln!("{}", cluster.explains()),
        }
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn options(&self, namespace: &str) -> String {
        self.options_within(namespace, TIMEOUT_MS)
    }

    fn options_within(&self, namespace: &str, timeout_ms: u64) -> String {
        let skew = self.clock_skew_ms;
        format!("namespace={namespace}&replicas=2&timeout_ms={timeout_ms}&clock_skew_ms={skew}")
    }
}

fn main() -> ExitCode {
    if let Some(code) = processes::child(&hosts(String::new())) {
        return code;
    }
    let mut args = Args::parse();
    let plan = args.cluster.plan();
    let shared = Arc::new(Shared {
        engine: args.engine,
        skew: Duration::from_millis(args.skew_ms),
        clock_skew_ms: args.clock_skew_ms,
        cluster: Mutex::default(),
    });
    if let Some(faults) = args.cluster.faults {
        return match keeps_the_laws(&shared, &plan, faults) {
            Ok(()) => ExitCode::SUCCESS,
            Err(what) => {
                println!("{what}");
                ExitCode::FAILURE
            }
        };
    }
    args.test.test_threads = Some(1);
    let trial = |name: &str, test: fn(&Shared, &Plan) -> Result<(), BoxError>| {
        let (shared, plan) = (Arc::clone(&shared), plan.clone());
        let name = format!("{}::cluster::{name}", shared.engine.name);
        Trial::test(name, move || {
            test(&shared, &plan).map_err(|what| Failed::from(what.to_string()))
        })
    };
    let trials = vec![
        trial("a_lease_begins_when_it_is_renewed", |shared, _| {
            shared.with(a_lease_begins_when_it_is_renewed)
        }),
        trial(
            "a_stale_primary_is_told_from_the_one_before",
            |shared, _| {
                let namespace = namespace();
                let options = shared.options_within(&namespace, PATIENT_MS);
                shared.with(async |cluster| {
                    let url = cluster.url_of(0..NODES, &options);
                    stale::is_told_from_the_one_before(cluster, &namespace, &url).await
                })
            },
        ),
        trial("copies_decide_what_is_written", |shared, _| {
            let namespace = namespace();
            let options = shared.options_within(&namespace, PATIENT_MS);
            shared.with(async |cluster| {
                let url = cluster.url_of(0..NODES, &options);
                copies::decide(cluster, &namespace, &url).await
            })
        })
        .with_ignored_flag(true),
        trial("a_node_that_is_cut_off_lists_nothing", |shared, _| {
            let namespace = namespace();
            let options = shared.options_within(&namespace, PATIENT_MS);
            shared.with(async |cluster| apart::lists_nothing(cluster, &namespace, &options).await)
        })
        .with_ignored_flag(true),
        trial("one_fault_of_each_kind", |shared, plan| {
            keeps_the_laws(shared, plan, SHORT)
        }),
        trial(
            "finds_a_primary_that_is_forced",
            finds_a_primary_that_is_forced,
        )
        .with_ignored_flag(true),
    ];
    libtest_mimic::run(&args.test, trials).exit_code()
}

/// The namespace of one run.
fn hosts(url: String) -> Hosts {
    Hosts::new(url, Duration::from_secs(1), |url| {
        Box::pin(async move {
            let backend = EsBackend::connect(EsConfig::parse(&url)?).await?;
            Ok(backend as Arc<dyn LockBackend>)
        })
    })
}

fn namespace() -> String {
    format!("cluster-{:016x}", rand::random::<u64>())
}

/// The laws, while so many faults meet the node with the primary.
fn keeps_the_laws(shared: &Shared, plan: &Plan, faults: usize) -> Result<(), BoxError> {
    let namespace = namespace();
    let mut times = Vec::new();
    let run = shared.with(async |cluster| {
        let hosts = hosts(cluster.url_of(0..NODES, &shared.options(&namespace)));
        let mut nodes = Nodes {
            cluster,
            namespace: &namespace,
        };
        let run = processes::run_beside(&hosts, plan, async |witness| {
            times = strike_members(&mut nodes, faults, witness).await?;
            Ok(())
        });
        run.await
    })?;
    println!("{faults} faults, the primary moved after {times:?}");
    processes::report(plan, &run)
}

/// Longer than a primary is missed before it can be forced: the guards that were handed out by the lost one outlive it.
const LONG_TTL: Duration = Duration::from_secs(60);
/// What a store breaks that forgets what it has acknowledged.
const LOST: &[Law] = &[
    Law::AtMostOneHolder,
    Law::SharedAreASet,
    Law::IntentHasItsLocks,
    Law::IntentStays,
];

/// An operator who gives the part of a primary that is cut off to an empty one loses what was acknowledged, and the checker
/// sees it.
fn finds_a_primary_that_is_forced(shared: &Shared, plan: &Plan) -> Result<(), BoxError> {
    let namespace = namespace();
    let run = shared.with(async |cluster| {
        let url = cluster.url_of(0..NODES, &shared.options(&namespace));
        let hosts = hosts(url.clone());
        let trouble = async |witness: &Witness| {
            let settings = json!({"index": {"number_of_replicas": 0}});
            let path = format!("/{namespace}/_settings");
            cluster.ask(0, Method::PUT, &path, Some(settings)).await?;
            cluster.whole().await?;
            work_goes_on().await;
            let primary = cluster.some_primary(&namespace).await?;
            let other = (primary + 1) % NODES;
            let path = format!("/{namespace}");
            let about = cluster.ask(other, Method::GET, &path, None).await?;
            let index = about.as_object().and_then(|all| all.keys().next());
            let command = json!({"commands": [{"allocate_empty_primary": {
                "index": index, "shard": 0, "node": format!("n{other}"), "accept_data_loss": true,
            }}]});
            let key = LockKey::flat("witness")?;
            let hold = async || {
                let store = EsBackend::connect(EsConfig::parse(&url)?).await?;
                witness.hold(store, &key, PATIENCE).await
            };
            let held = hold().await?;
            let mut nodes = Nodes {
                cluster,
                namespace: &namespace,
            };
            nodes.cut_off(primary, NetworkFault::Cut)?;
            println!("{}", apart(&nodes, primary).await?);
            let cluster = &*nodes.cluster;
            let until = Instant::now() + PATIENCE;
            let forced = async || {
                let path = "/_cluster/reroute";
                cluster
                    .ask(other, Method::POST, path, Some(command.clone()))
                    .await
            };
            // Until the others have noticed, there is nothing to be forced.
            while let Err(refused) = forced().await {
                if Instant::now() > until {
                    return Err(refused);
                }
                sleep(Duration::from_millis(200)).await;
            }
            // The run is over as soon as it has seen that both hold it.
            let both = (held, hold().await?);
            sleep(LONG_TTL).await;
            drop(both);
            Ok(())
        };
        let mut plan = plan.clone();
        plan.ttl = Some(LONG_TTL);
        plan.until_found = LOST;
        let run = processes::run_beside(&hosts, &plan, trouble).await?;
        let mut nodes = Nodes {
            cluster,
            namespace: &namespace,
        };
        nodes.rejoin()?;
        Ok(run)
    })?;
    match run.report.breach_of(LOST) {
        Some(first) => {
            println!("found: {first}");
            Ok(())
        }
        None => Err(format!("none of {LOST:?}, of {} guards", run.report.guards).into()),
    }
}

/// A node that is stopped for a moment, and answers what it finds when it goes on, does so on its clock of then. A
/// lease that began before its renewal was sent would end before its guards expect it.
async fn a_lease_begins_when_it_is_renewed(cluster: &mut Cluster) -> Result<(), BoxError> {
    const ROUNDS: u64 = 5;
    let namespace = namespace();
    let url = cluster.url_of(0..NODES, &format!("namespace={namespace}&replicas=2"));
    drop(copies::reach(&url).await?);
    cluster.whole().await?;
    let primary = cluster.some_primary(&namespace).await?;
    let url = cluster.url_of([primary], &format!("namespace={namespace}&clock_skew_ms=0"));
    let ttl = Duration::from_secs(30);
    // Each has a connection of its own.
    let mut sessions = Vec::new();
    for number in 1..=8 {
        let (backend, session) = (
            EsBackend::connect(EsConfig::parse(&url)?).await?,
            SessionId::new(number),
        );
        let opened = backend.open(session, &Label::parse("paused")?, ttl).await?;
        assert_ne!(opened, Opened::Used);
        sessions.push((backend, session));
    }
    for seq in 1..=ROUNDS {
        cluster.signal(primary, Signal::STOP)?;
        sleep(Duration::from_millis(600)).await;
        let sent_ms = unix_ms();
        let renewals = sessions.iter().map(async |(backend, session)| {
            let renewal = Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep);
            backend.renew(*session, &renewal).await
        });
        let goes_on = async {
            sleep(Duration::from_millis(200)).await;
            cluster.signal(primary, Signal::CONT)
        };
        let (renewed, gone_on) = tokio::join!(join_all(renewals), goes_on);
        gone_on?;
        for renewed in renewed {
            assert_eq!(renewed?, Renewed::Living);
        }
        let ids: Vec<String> = sessions
            .iter()
            .map(|(_, session)| format!("~session/{session}"))
            .collect();
        let path = format!("/{namespace}/_mget");
        let got = cluster
            .ask(primary, Method::POST, &path, Some(json!({"ids": ids})))
            .await?;
        for document in got["docs"].as_array().into_iter().flatten() {
            let expires = document["_source"]["expires"].as_u64().ok_or("no lease")?;
            let began = i128::from(expires) - i128::try_from(ttl.as_millis())?;
            let late = began - i128::from(sent_ms);
            if late < 0 {
                return Err(
                    format!("a lease began {} ms before its renewal was sent", -late).into(),
                );
            }
        }
    }
    Ok(())
}

fn unix_ms() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "the nodes are on this machine, and have its clock"
    )]
    let now = SystemTime::now();
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
