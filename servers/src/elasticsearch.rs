//! Elasticsearch and OpenSearch.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::process::{Log, Process};
use super::{Port, Server, archive, docker, folder, java, local, ports, run, scratch, secured};

/// The longest time from the start of a node to its first answer.
const START: Duration = Duration::from_secs(120);

/// Where a `pom.xml` for each engine is, and what else its node is made of.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/sources");

/// Enough for the tests.
const HEAP: &str = "512m";

/// An engine in one version.
#[derive(Debug)]
pub struct Engine {
    /// Its name in the tests.
    pub name: &'static str,
    /// Its program's name.
    program: &'static str,
    version: &'static str,
    made: Made,
    /// Versions of the JDK that run it.
    jdk: RangeInclusive<u32>,
    /// Arguments of the JVM that the others do not have.
    jvm: &'static [&'static str],
    secured: bool,
    /// Its memory limit, if the environment does not set one.
    heap: &'static str,
}

/// What a node is made of.
#[derive(Debug)]
enum Made {
    /// Of the engine's classes and of plugins, below a package; there is an image of the same.
    Classes {
        image: Option<&'static str>,
        package: &'static str,
        plugins: &'static [&'static str],
    },
    /// Of the archive that its makers test with, with a module of ours: one for all that are made so.
    Archive,
}

/// The last version of Elasticsearch under the Apache licence.
pub const ELASTICSEARCH_7: Engine = Engine {
    name: "elasticsearch-7",
    program: "elasticsearch",
    version: "7.10.2",
    made: Made::Classes {
        image: Some("elasticsearch:7.10.2"),
        package: "org.elasticsearch",
        plugins: &[
            "painless.PainlessPlugin",
            "index.reindex.ReindexPlugin",
            "transport.Netty4Plugin",
            "analysis.common.CommonAnalysisPlugin",
        ],
    },
    jdk: 11..=21,
    jvm: &["-Des.set.netty.runtime.available.processors=false"],
    secured: false,
    heap: HEAP,
};

/// OpenSearch 2.
pub const OPENSEARCH_2: Engine = Engine {
    name: "opensearch-2",
    program: "opensearch",
    version: "2.19.5",
    made: Made::Classes {
        image: Some("opensearchproject/opensearch:2.19.5"),
        package: "org.opensearch",
        plugins: &[
            "painless.PainlessPlugin",
            "index.reindex.ReindexPlugin",
            "transport.Netty4Plugin",
            "analysis.common.CommonAnalysisPlugin",
            "index.mapper.MapperExtrasPlugin",
        ],
    },
    jdk: 11..=21,
    jvm: &["-Dopensearch.set.netty.runtime.available.processors=false"],
    secured: false,
    heap: HEAP,
};

/// OpenSearch 3.
pub const OPENSEARCH_3: Engine = Engine {
    name: "opensearch-3",
    program: "opensearch",
    version: "3.8.0",
    made: Made::Classes {
        image: Some("opensearchproject/opensearch:3.8.0"),
        package: "org.opensearch",
        plugins: &[
            "painless.PainlessModulePlugin",
            "index.reindex.ReindexModulePlugin",
            "transport.Netty4ModulePlugin",
            "analysis.common.CommonAnalysisModulePlugin",
            "index.mapper.MapperExtrasModulePlugin",
        ],
    },
    jdk: 21..=25,
    jvm: &[
        "-Dopensearch.set.netty.runtime.available.processors=false",
        "--enable-native-access=ALL-UNNAMED",
    ],
    secured: false,
    heap: HEAP,
};

/// OpenSearch 3 with users, roles and TLS, in the newest version whose security plugin is on Central.
pub const OPENSEARCH_3_SECURED: Engine = Engine {
    name: "opensearch-3-secured",
    program: "opensearch",
    version: "3.4.0",
    made: Made::Classes {
        image: None,
        package: "org.opensearch",
        plugins: &[
            "painless.PainlessModulePlugin",
            "index.reindex.ReindexModulePlugin",
            "transport.Netty4ModulePlugin",
            "analysis.common.CommonAnalysisModulePlugin",
            "index.mapper.MapperExtrasModulePlugin",
            "security.OpenSearchSecurityPlugin",
        ],
    },
    jdk: 21..=25,
    jvm: &[
        "-Dopensearch.set.netty.runtime.available.processors=false",
        "--enable-native-access=ALL-UNNAMED",
    ],
    secured: true,
    heap: HEAP,
};

/// Elasticsearch 9. Its scripts run in OpenSearch's Painless, and its delete by query is OpenSearch's too: the archive
/// on Central lacks Elastic's own.
pub const ELASTICSEARCH_9: Engine = Engine {
    name: "elasticsearch-9",
    program: "elasticsearch",
    version: "9.2.0",
    made: Made::Archive,
    jdk: 21..=25,
    jvm: &[],
    secured: false,
    heap: HEAP,
};

/// Elasticsearch 9 with users, roles, API keys and TLS.
pub const ELASTICSEARCH_9_SECURED: Engine = Engine {
    name: "elasticsearch-9-secured",
    secured: true,
    ..ELASTICSEARCH_9
};

/// All engines.
pub const ENGINES: [&Engine; 6] = [
    &ELASTICSEARCH_7,
    &ELASTICSEARCH_9,
    &OPENSEARCH_2,
    &OPENSEARCH_3,
    &OPENSEARCH_3_SECURED,
    &ELASTICSEARCH_9_SECURED,
];

impl Engine {
    /// The same engine with this memory limit, such as `2g`, if the environment does not set one.
    #[must_use]
    pub const fn with_heap(mut self, heap: &'static str) -> Self {
        self.heap = heap;
        self
    }

    /// Starts a single node: from an installed program of that version, else in a container, else from Maven artefacts,
    /// which are kept below `artefacts` for the next time. A secured engine is always started from artefacts; its URL
    /// names a user with all rights, and the file with the certificate of its authority.
    ///
    /// # Errors
    ///
    /// None of these is possible here; the text says what is missing.
    pub fn start(&self, artefacts: &Path) -> Result<Server, String> {
        let single = ("discovery.type".to_owned(), "single-node".to_owned());
        let image = match &self.made {
            Made::Classes { image, .. } => *image,
            Made::Archive => None,
        };
        let server = match image.and_then(|image| self.found(image)) {
            Some(server) => server?,
            None => self.node(artefacts, &[single], &[])?.server,
        };
        await_health(&server)?;
        println!(
            "{} {} at {}, from {}",
            self.program, self.version, server.url, server.how
        );
        Ok(server)
    }

    /// Starts what is there already.
    fn found(&self, image: &str) -> Option<Result<Server, String>> {
        let options = java::options(self.heap).join(" ");
        let (elastic, open) = (
            format!("ES_JAVA_OPTS={options}"),
            format!("OPENSEARCH_JAVA_OPTS={options}"),
        );
        let environment = [
            "discovery.type=single-node",
            "DISABLE_SECURITY_PLUGIN=true",
            &elastic,
            &open,
        ];
        local::start(self.program, self.version, self.heap)
            .or_else(|| docker::start(image, 9200, &environment))
    }

    /// Starts one node from Maven artefacts, with these additional settings and this environment, on a port of its own.
    ///
    /// # Errors
    ///
    /// A JDK or Maven is missing, or the node does not start; the text says why.
    pub fn node(
        &self,
        artefacts: &Path,
        settings: &[(String, String)],
        environment: &[(String, String)],
    ) -> Result<Node, String> {
        ports::on_free(1, |ports| {
            self.node_at(&ports[0], artefacts, settings, environment)
        })
    }

    /// As [`node`](Self::node), on this port, and with the second port for the other nodes. For a cluster of several
    /// processes; [`on_free`](super::on_free) finds their ports.
    ///
    /// # Errors
    ///
    /// As `node`, or the port is taken; the text says why.
    pub fn node_at(
        &self,
        port: &Port,
        artefacts: &Path,
        settings: &[(String, String)],
        environment: &[(String, String)],
    ) -> Result<Node, String> {
        let jdk = java::jdk(&self.jdk)?;
        let artefacts = self.prepared(artefacts, &jdk)?;
        let Start {
            data,
            config,
            mut command,
            spawn,
            is_ready,
        } = match &self.made {
            Made::Classes {
                package, plugins, ..
            } => self.of_classes(package, plugins, port, &artefacts, &jdk, settings)?,
            Made::Archive => self.unpacked(port, &artefacts, &jdk, settings)?,
        };
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let log = Log::new(data.path().join("out.log"));
        let process = spawn(&mut command, &log)?;
        let how = format!("Maven artefacts, with the JDK in {}", jdk.display());
        let mut server = Server::new(self.url(port, &config), how, process).with_log(log);
        server.data = Some(data);
        server.port = Some(port.clone());
        server.says = says;
        await_line(&mut server, is_ready)?;
        Ok(Node {
            server,
            command,
            spawn,
        })
    }

    /// What starts a node of the engine's classes.
    fn of_classes(
        &self,
        package: &str,
        plugins: &[&str],
        port: &Port,
        artefacts: &Path,
        jdk: &Path,
        settings: &[(String, String)],
    ) -> Result<Start, String> {
        let data = folder()?;
        let home = data.path().to_owned();
        let config = home.join("config");
        let at = |folder: &str| home.join(folder).display().to_string();
        let security = if self.secured {
            secured::opensearch(&config)?
        } else {
            Vec::new()
        };
        let mut command = Command::new(jdk.join("bin/java"));
        command
            .args(java::options(self.heap))
            .arg("-XX:+UseSerialGC")
            .args(["-Djava.awt.headless=true", "-Dlog4j2.disable.jmx=true"])
            .args(self.jvm)
            .arg("-cp")
            .arg(format!(
                "{0}/classes:{0}/lib/*:{0}/unpacked/*",
                artefacts.display()
            ))
            .args(["Server", package, &plugins.join(",")])
            .args([
                "cluster.name=lockkeeper",
                "node.name=node",
                "network.host=127.0.0.1",
            ])
            .arg(format!("http.port={}", port.number()))
            .arg(format!("transport.port={}", port.beside()))
            .args([
                "node.store.allow_mmap=false",
                "action.auto_create_index=false",
            ])
            .arg("cluster.routing.allocation.disk.threshold_enabled=false")
            // As often as it takes, for a test that lets the server look at its disk.
            .arg("cluster.info.update.interval=10s")
            .arg("indices.breaker.total.use_real_memory=false")
            .arg(format!("path.home={}", home.display()))
            .arg(format!("path.repo={}", home.join("snapshots").display()))
            .arg(format!("path.data={}", at("data")))
            .arg(format!("path.logs={}", at("logs")))
            .args(security)
            .args(
                settings
                    .iter()
                    .map(|(name, value)| format!("{name}={value}")),
            )
            // It ends when this process does, however that ends.
            .stdin(Stdio::piped());
        // Even if it is stopped then: the system wakes a group that nobody is there to wake.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(Start {
            data,
            config,
            command,
            spawn: |command, log| Ok(Process::Child(spawn(command, log)?)),
            is_ready: |line| line.starts_with("READY "),
        })
    }

    /// What starts a node from the archive.
    fn unpacked(
        &self,
        port: &Port,
        artefacts: &Path,
        jdk: &Path,
        settings: &[(String, String)],
    ) -> Result<Start, String> {
        let data = scratch()?;
        let program = format!("{}-{}", self.program, self.version);
        // A copy of its own, which its user can read wherever we are.
        run(Command::new("cp")
            .arg("-r")
            .arg(artefacts.join("unpacked").join(&program))
            .arg(data.path()))?;
        let home = data.path().join(program);
        let config = home.join("config");
        secured::elasticsearch(&config, self.secured)?;
        let ports = [port.number(), port.beside()];
        let java = java::options(self.heap);
        let mut command = archive::command(data.path(), &home, ports, &java, settings)?;
        command.env("ES_JAVA_HOME", jdk);
        Ok(Start {
            data,
            config,
            command,
            spawn: Process::launched,
            is_ready: |line| {
                line.contains("HttpServerTransport") && line.contains("publish_address")
            },
        })
    }

    /// How a node on this port is reached that has this configuration.
    fn url(&self, port: &Port, config: &Path) -> String {
        if self.secured {
            secured::url(port.number(), config)
        } else {
            format!("http://127.0.0.1:{}", port.number())
        }
    }

    /// Copies the artefacts, unpacks those that are archives and compiles our classes, unless that was done before from
    /// the same sources.
    fn prepared(&self, artefacts: &Path, jdk: &Path) -> Result<PathBuf, String> {
        let (name, class) = match self.made {
            Made::Classes { .. } => (self.name, Some("Server.java")),
            Made::Archive => (ELASTICSEARCH_9.name, None),
        };
        let all = Path::new(SOURCES);
        let (sources, folder) = (all.join(name), artefacts.join(name));
        let class = class.map(|class| all.join(class));
        let mut made_from = jdk.display().to_string();
        for (_, text) in archive::files(&sources)? {
            made_from += &text;
        }
        if let Some(class) = &class {
            let text = fs::read_to_string(class);
            made_from += &text.map_err(|error| format!("{}: {error}", class.display()))?;
        }
        let stamp = folder.join("made-from");
        if fs::read_to_string(&stamp).is_ok_and(|text| text == made_from) {
            return Ok(folder);
        }
        java::maven()?;
        let _ = fs::remove_dir_all(&folder);
        let (lib, unpacked, classes) = (
            folder.join("lib"),
            folder.join("unpacked"),
            folder.join("classes"),
        );
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&classes).map_err(failed)?;
        fs::create_dir_all(&unpacked).map_err(failed)?;
        println!("+ Maven artefacts of {name}");
        run(Command::new("mvn")
            .arg("--file")
            .arg(sources.join("pom.xml"))
            // What has come is checked below: Central does not have a checksum of everything.
            .args([
                "-q",
                "-B",
                "--lax-checksums",
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
            ])
            .arg(format!("-DoutputDirectory={}", lib.display())))?;
        archive::check(&lib, &sources.join("artefacts.sha256"))?;
        let is_zip = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "zip");
        let found = fs::read_dir(&lib).map_err(failed)?.flatten();
        for archive in found.map(|entry| entry.path()).filter(is_zip) {
            run(Command::new(jdk.join("bin/jar"))
                .current_dir(&unpacked)
                .arg("xf")
                .arg(archive))?;
        }
        if let Some(class) = class {
            run(Command::new(jdk.join("bin/javac"))
                .args(["-nowarn", "-cp"])
                .arg(lib.join("*"))
                .arg("-d")
                .arg(&classes)
                .arg(class))?;
            let log = all.join("log4j2.properties");
            fs::copy(&log, classes.join("log4j2.properties")).map_err(failed)?;
        } else {
            let home = unpacked.join(format!("{}-{}", self.program, self.version));
            archive::add_module(&sources, &lib, &home, &classes, jdk)?;
        }
        fs::write(&stamp, made_from).map_err(failed)?;
        Ok(folder)
    }
}

/// Waits until the node says such a line.
fn await_line(server: &mut Server, is_it: impl Fn(&str) -> bool) -> Result<(), String> {
    let since = Instant::now();
    loop {
        let said = server.log.as_ref().map(Log::since_start);
        let said = said.unwrap_or_default();
        if said.lines().any(&is_it) {
            return Ok(());
        }
        let ended = match &mut server.process {
            Process::Child(child)
            | Process::Watched { shell: child, .. }
            | Process::Launched { shell: child, .. } => child.try_wait().ok().flatten(),
            Process::Several(_) => None,
            #[cfg(feature = "containers")]
            Process::Container(_) => None,
        };
        if ended.is_some() || ports::is_taken(&said) || since.elapsed() > START {
            let tail = server.log_tail();
            // Whether its port is taken stands before the stack of calls.
            let taken = said.lines().find(|line| ports::is_taken(line));
            let taken = taken.unwrap_or_default();
            return Err(format!(
                "the node does not start ({ended:?}): {taken}\n{tail}"
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a node sees of its cluster.
fn says(url: &str) -> String {
    let ask = |path: &str| {
        let said = secured::get(url, path).unwrap_or_else(|error| error);
        format!("{path}: {said}\n")
    };
    [
        "/_cluster/health?local=true",
        "/_cat/nodes?v",
        "/_cat/shards?v",
    ]
    .map(ask)
    .concat()
}

/// What starts a node, and with what it says that it is there.
struct Start {
    data: TempDir,
    config: PathBuf,
    command: Command,
    spawn: Spawn,
    is_ready: fn(&str) -> bool,
}

/// Starts the process of a node, as often as that is asked for.
type Spawn = fn(&mut Command, &Log) -> Result<Process, String>;

/// One node of a cluster. It can be started again on the same data. Dropping it stops it and removes the data.
#[derive(Debug)]
pub struct Node {
    server: Server,
    command: Command,
    spawn: Spawn,
}

impl AsRef<Server> for Node {
    fn as_ref(&self) -> &Server {
        &self.server
    }
}

impl Node {
    /// Its URL and process.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Kills it if it runs, and starts it again. Does not wait until it answers.
    ///
    /// # Errors
    ///
    /// The process cannot be started.
    pub fn restart(&mut self) -> Result<(), String> {
        self.server.process.kill();
        let log = self.server.log.as_ref().ok_or("it has no log")?;
        let log = Log::new(log.path().to_owned());
        self.server.process = (self.spawn)(&mut self.command, &log)?;
        self.server.log = Some(log);
        Ok(())
    }
}

/// Starts a process that says everything in its log.
fn spawn(command: &mut Command, log: &Log) -> Result<Child, String> {
    let spawned = command.stdout(log.open()?).stderr(log.open()?).spawn();
    spawned.map_err(|error| format!("{}: {error}", command.get_program().display()))
}

/// Waits until the node has a master, takes requests and knows its users.
fn await_health(server: &Server) -> Result<(), String> {
    server.await_answer(START, || {
        match secured::get(&server.url, "/_cluster/health") {
            Ok(said) if said.contains("\"green\"") || said.contains("\"yellow\"") => Ok(()),
            Ok(said) | Err(said) => Err(said),
        }
    })
}
