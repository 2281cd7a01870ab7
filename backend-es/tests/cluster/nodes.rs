//! Three nodes of one cluster, each a process of its own that can be killed, stopped and started again, and cut off from
//! the others: these reach it through a proxy.

use std::path::Path;
use std::time::Duration;

use lockcore_conformance::BoxError;
use lockcore_trial::faults::{Between, NetworkFault, Proxies, ServerFault};
use lockcore_trial::processes::cluster::{Members, Part, whole};
use lockkeeper_servers::{Cluster as Servers, Engine, Node, Port, on_free};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Nodes of the cluster: the fewest of which one may fail.
pub(crate) const NODES: usize = 3;

pub(crate) struct Cluster {
    nodes: Servers<Node>,
    between: Between,
    _proxies: Proxies,
    urls: Vec<String>,
    client: reqwest::Client,
}

impl Cluster {
    /// Starts the nodes. Their clocks are apart by so much: one is behind, one is ahead.
    pub(crate) fn start(engine: &Engine, skew: Duration) -> Result<Self, String> {
        let artefacts = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target/servers");
        let proxies = Proxies::new().map_err(|error| error.to_string())?;
        let (nodes, between) = on_free(NODES, |ports| {
            let servers = ports.iter().map(Port::beside);
            let servers = servers.map(|port| format!("127.0.0.1:{port}"));
            let between = proxies.between(&servers.collect::<Vec<_>>());
            let between = between.map_err(|error| error.to_string())?;
            let nodes = Self::nodes(engine, skew, &artefacts, ports, &between)?;
            Ok((nodes, between))
        })?;
        let urls = nodes.iter().map(|node| node.server().url().to_owned());
        Ok(Self {
            urls: urls.collect(),
            nodes,
            between,
            _proxies: proxies,
            client: reqwest::Client::builder()
                .no_proxy()
                .timeout(Duration::from_secs(5))
                .build()
                .map_err(|error| error.to_string())?,
        })
    }

    fn nodes(
        engine: &Engine,
        skew: Duration,
        artefacts: &Path,
        ports: &[Port],
        between: &Between,
    ) -> Result<Servers<Node>, String> {
        let addresses = (0..NODES).map(|node| format!("127.0.0.1:{}", between.port(node)));
        let seeds = addresses.collect::<Vec<_>>().join(",");
        let first = match engine.name.starts_with("elasticsearch") {
            true => "cluster.initial_master_nodes",
            false => "cluster.initial_cluster_manager_nodes",
        };
        let start = |number: usize| {
            let mut settings = vec![
                ("node.name", format!("n{number}")),
                ("discovery.seed_hosts", seeds.clone()),
                ("transport.publish_port", between.port(number).to_string()),
                // A change of the cluster does not wait for a node that is stopped.
                ("cluster.publish.timeout", "1s".to_owned()),
            ];
            if number == 0 {
                settings.push((first, "n0".to_owned()));
            }
            // Else it takes half a minute until a node that is stopped is missed.
            for check in ["follower_check", "leader_check"] {
                for (name, value) in [
                    ("interval", "500ms"),
                    ("timeout", "1500ms"),
                    ("retry_count", "2"),
                ] {
                    let name = format!("cluster.fault_detection.{check}.{name}");
                    settings.push((Box::leak(name.into_boxed_str()), value.to_owned()));
                }
            }
            let settings: Vec<(String, String)> = settings
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            let environment = environment(number, skew)?;
            engine.node_at(&ports[number], artefacts, &settings, &environment)
        };
        // The others join the first, both at once.
        let mut nodes = vec![start(0)?];
        let others = std::thread::scope(|scope| {
            let others = [1, 2].map(|number| scope.spawn(move || start(number)));
            others.map(|other| {
                other
                    .join()
                    .unwrap_or_else(|_| Err("it has panicked".to_owned()))
            })
        });
        for other in others {
            nodes.push(other?);
        }
        Ok(Servers::new(nodes))
    }

    /// What each node sees of the cluster, and the end of its log.
    pub(crate) fn explains(&self) -> String {
        self.nodes.explains()
    }

    /// How a backend reaches these nodes.
    pub(crate) fn url_of(&self, nodes: impl IntoIterator<Item = usize>, options: &str) -> String {
        let hosts = nodes
            .into_iter()
            .map(|node| self.urls[node].trim_start_matches("http://"));
        let hosts: Vec<&str> = hosts.collect();
        format!("elasticsearch://{}/?{options}", hosts.join(","))
    }

    /// A request to one node.
    pub(crate) async fn ask(
        &self,
        node: usize,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, BoxError> {
        let url = format!("{}{path}", self.urls[node]);
        let mut request = self.client.request(method, url);
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let answer = request.send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            return Err(format!("{path}: {status}: {text}").into());
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// The node that has the primary of the namespace's index, as the first that answers says, but for this one.
    async fn primary(&self, namespace: &str, other_than: Option<usize>) -> Option<usize> {
        let path = format!("/_cat/shards/{namespace}?format=json&h=prirep,state,node");
        for node in (0..NODES).filter(|node| other_than != Some(*node)) {
            let Ok(shards) = self.ask(node, Method::GET, &path, None).await else {
                continue;
            };
            let mut shards = shards.as_array().into_iter().flatten();
            let primary =
                shards.find(|shard| shard["prirep"] == "p" && shard["state"] == "STARTED");
            let name = primary.and_then(|shard| shard["node"].as_str());
            if let Some(number) = name.and_then(|name| name.strip_prefix('n')) {
                return number.parse().ok();
            }
        }
        None
    }

    /// What a node sees by itself: the names of the nodes, and of the master if there is one.
    async fn view(&self, node: usize) -> Result<(Vec<String>, Option<String>), BoxError> {
        let path = "/_cluster/state/master_node,nodes?local=true";
        let state = self.ask(node, Method::GET, path, None).await?;
        let nodes = state["nodes"].as_object().ok_or("it sees no nodes")?;
        let name = |node: &Value| node["name"].as_str().unwrap_or_default().to_owned();
        let master = state["master_node"].as_str();
        let master = master.and_then(|master| nodes.get(master)).map(name);
        let mut names: Vec<String> = nodes.values().map(name).collect();
        names.sort_unstable();
        Ok((names, master))
    }

    /// The master, as the first that answers says, but for this one.
    async fn master(&self, other_than: Option<usize>) -> Option<usize> {
        for node in (0..NODES).filter(|node| other_than != Some(*node)) {
            if let Ok((_, Some(master))) = self.view(node).await {
                return master.strip_prefix('n')?.parse().ok();
            }
        }
        None
    }

    /// The node that has the primary.
    pub(crate) async fn some_primary(&self, namespace: &str) -> Result<usize, BoxError> {
        let primary = self.primary(namespace, None).await;
        primary.ok_or_else(|| "there is no primary".into())
    }

    /// Waits until every node says that all of them are there, and all copies in sync.
    pub(crate) async fn whole(&mut self) -> Result<(), BoxError> {
        let namespace = "";
        let nodes = Nodes {
            cluster: self,
            namespace,
        };
        whole(&nodes).await
    }

    pub(crate) fn signal(&self, node: usize, signal: Signal) -> Result<(), BoxError> {
        let id = self.nodes[node].server().pid();
        let id = id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(kill_process(id.ok_or("it is no process")?, signal)?)
    }
}

/// The nodes, of which one has the primary of this namespace's index.
pub(crate) struct Nodes<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) namespace: &'a str,
}

impl Members for Nodes<'_> {
    const PAUSED: Duration = Duration::from_millis(1_500);
    const PATIENCE: Duration = Duration::from_secs(300);
    const STRIKES: &'static [(ServerFault, Part)] = &[
        (ServerFault::Killed, Part::Decides),
        (ServerFault::Stopped, Part::Decides),
        (ServerFault::Paused, Part::Decides),
        (ServerFault::CutOff, Part::Decides),
        (ServerFault::Silenced, Part::Decides),
        (ServerFault::CutOff, Part::Leads),
        (ServerFault::Silenced, Part::Leads),
    ];

    fn pid(&self, member: usize) -> Option<u32> {
        self.cluster.nodes[member].server().pid()
    }

    fn restart(&mut self, member: usize) -> Result<(), BoxError> {
        Ok(self.cluster.nodes[member].restart()?)
    }

    fn cut_off(&mut self, member: usize, how: NetworkFault) -> Result<(), BoxError> {
        let pids = self.cluster.nodes.iter().map(|node| node.server().pid());
        let pids: Option<Vec<u32>> = pids.collect();
        let pids = pids.ok_or("a node is no process")?;
        Ok(self.cluster.between.strike(member, how, &pids)?)
    }

    fn rejoin(&mut self) -> Result<(), BoxError> {
        match self.cluster.between.mend() {
            0 => Err("no connection was cut".into()),
            _ => Ok(()),
        }
    }

    async fn apart(&self, member: usize) -> Result<String, BoxError> {
        let (mut seen, mut apart) = (Vec::new(), true);
        for node in 0..NODES {
            let (nodes, master) = self.cluster.view(node).await?;
            let name = format!("n{member}");
            apart &= match &master {
                Some(master) => node != member && *master != name && !nodes.contains(&name),
                None => node == member,
            };
            let master = master.unwrap_or_else(|| "none".to_owned());
            seen.push(format!("n{node} sees {}, master {master}", nodes.join(" ")));
        }
        let seen = seen.join("; ");
        if apart { Ok(seen) } else { Err(seen.into()) }
    }

    async fn who(&self, part: Part, other_than: Option<usize>) -> Option<usize> {
        match part {
            Part::Leads => self.cluster.master(other_than).await,
            _ => self.cluster.primary(self.namespace, other_than).await,
        }
    }

    async fn is_whole(&self) -> Result<(), BoxError> {
        for node in 0..NODES {
            let path = "/_cluster/health";
            let health = self.cluster.ask(node, Method::GET, path, None).await?;
            if health["status"] != "green" || health["number_of_nodes"] != json!(NODES) {
                return Err(format!("the cluster is not whole: {health}").into());
            }
        }
        Ok(())
    }
}

/// The environment of a node: its clock is behind or ahead.
fn environment(node: usize, skew: Duration) -> Result<Vec<(String, String)>, String> {
    let of = |name: &str, value: String| (name.to_owned(), value);
    // It starts often, and never runs for long enough to be worth more.
    let quick = ["JAVA_TOOL_OPTIONS", "ES_JAVA_OPTS"];
    let mut environment: Vec<(String, String)> = quick
        .map(|name| of(name, "-XX:TieredStopAtLevel=1".to_owned()))
        .into();
    let offset = match node {
        _ if skew.is_zero() => return Ok(environment),
        0 => return Ok(environment),
        1 => format!("-{}", skew.as_secs_f64() / 2.0),
        _ => format!("+{}", skew.as_secs_f64() / 2.0),
    };
    let library = ["x86_64", "aarch64"]
        .map(|machine| format!("/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1"))
        .into_iter()
        .find(|library| Path::new(library).exists());
    let library = library.ok_or("libfaketime is missing: install it")?;
    environment.extend([
        of("LD_PRELOAD", library),
        of("FAKETIME", offset),
        of("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        // Else a JVM waits for ever.
        of("FAKETIME_FORCE_MONOTONIC_FIX", "0".to_owned()),
    ]);
    Ok(environment)
}
