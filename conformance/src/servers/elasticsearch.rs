//! Elasticsearch and OpenSearch.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Process, Server, docker, java, local, run};

/// Longest time from the start of a node to its first answer.
const START: Duration = Duration::from_secs(120);

/// An engine in one version.
#[derive(Debug)]
pub struct Engine {
    /// Its name, as the tests say it.
    pub name: &'static str,
    /// Its program's name.
    program: &'static str,
    version: &'static str,
    image: &'static str,
    /// Versions of the JDK that run it.
    jdk: RangeInclusive<u32>,
    /// Arguments of the JVM that the others do not have.
    jvm: &'static [&'static str],
    /// Where its `pom.xml` and `Server.java` are.
    source: &'static str,
}

/// The last version of Elasticsearch under the Apache licence.
pub const ELASTICSEARCH_7: Engine = Engine {
    name: "elasticsearch-7",
    program: "elasticsearch",
    version: "7.10.2",
    image: "elasticsearch:7.10.2",
    jdk: 11..=21,
    jvm: &["-Des.set.netty.runtime.available.processors=false"],
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/servers/elasticsearch-7"),
};

/// OpenSearch 2.
pub const OPENSEARCH_2: Engine = Engine {
    name: "opensearch-2",
    program: "opensearch",
    version: "2.19.5",
    image: "opensearchproject/opensearch:2.19.5",
    jdk: 11..=21,
    jvm: &["-Dopensearch.set.netty.runtime.available.processors=false"],
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/servers/opensearch-2"),
};

/// OpenSearch 3.
pub const OPENSEARCH_3: Engine = Engine {
    name: "opensearch-3",
    program: "opensearch",
    version: "3.8.0",
    image: "opensearchproject/opensearch:3.8.0",
    jdk: 21..=25,
    jvm: &[
        "-Dopensearch.set.netty.runtime.available.processors=false",
        "--enable-native-access=ALL-UNNAMED",
    ],
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/servers/opensearch-3"),
};

/// The engines that the backend for Elasticsearch is tested on.
pub const ENGINES: [&Engine; 3] = [&ELASTICSEARCH_7, &OPENSEARCH_2, &OPENSEARCH_3];

impl Engine {
    /// Starts a single node: of an installed program of that version, else in a container, else from Maven artefacts,
    /// which are kept below `artefacts` for the next time.
    ///
    /// # Errors
    ///
    /// None of them is possible here; the text says what is missing.
    pub fn start(&self, artefacts: &Path) -> Result<Server, String> {
        let environment = [
            "discovery.type=single-node",
            "DISABLE_SECURITY_PLUGIN=true",
            "ES_JAVA_OPTS=-Xms512m -Xmx512m",
            "OPENSEARCH_JAVA_OPTS=-Xms512m -Xmx512m",
        ];
        let started = local::start(self.program, self.version)
            .or_else(|| docker::start(self.image, 9200, &environment));
        let server = match started {
            Some(server) => server?,
            None => {
                let single = ("discovery.type".to_owned(), "single-node".to_owned());
                self.node(artefacts, &[single])?
            }
        };
        await_health(&server)?;
        println!(
            "{} {} at {}, from {}",
            self.program, self.version, server.url, server.how
        );
        Ok(server)
    }

    /// Starts one node from Maven artefacts, with these settings besides; without `http.port` or `transport.port` among
    /// them it takes free ones. For a cluster of several processes.
    ///
    /// # Errors
    ///
    /// A JDK or Maven is missing, or the node does not start; the text says why.
    pub fn node(&self, artefacts: &Path, settings: &[(String, String)]) -> Result<Server, String> {
        let jdk = java::jdk(&self.jdk)?;
        let artefacts = self.prepared(artefacts, &jdk)?;
        let data = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let log = data.path().join("out.log");
        let out = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let err = out.try_clone().map_err(|error| error.to_string())?;
        let home = data.path();
        let at = |folder: &str| home.join(folder).display().to_string();
        let mut command = Command::new(jdk.join("bin/java"));
        command
            .args(["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC"])
            .args(["-Djava.awt.headless=true", "-Dlog4j2.disable.jmx=true"])
            .args(self.jvm)
            .arg("-cp")
            .arg(format!("{0}/classes:{0}/lib/*", artefacts.display()))
            .arg("Server")
            .args([
                "cluster.name=lockkeeper",
                "node.name=node",
                "network.host=127.0.0.1",
            ])
            .args(["http.port=0", "transport.port=0"])
            .args([
                "node.store.allow_mmap=false",
                "action.auto_create_index=false",
            ])
            .arg("cluster.routing.allocation.disk.threshold_enabled=false")
            .arg("indices.breaker.total.use_real_memory=false")
            .arg(format!("path.home={}", home.display()))
            .arg(format!("path.data={}", at("data")))
            .arg(format!("path.logs={}", at("logs")))
            .args(
                settings
                    .iter()
                    .map(|(name, value)| format!("{name}={value}")),
            )
            // It ends when this process does, however that ends.
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err);
        let child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", jdk.display()))?;
        let mut server = Server {
            url: String::new(),
            how: format!("Maven artefacts, with the JDK in {}", jdk.display()),
            process: Process::Child(child),
            _data: Some(data),
        };
        let port = await_port(&mut server, &log)?;
        server.url = format!("http://127.0.0.1:{port}");
        Ok(server)
    }

    /// Copies the artefacts and compiles the class, unless that was done before from the same sources.
    fn prepared(&self, artefacts: &Path, jdk: &Path) -> Result<PathBuf, String> {
        let source = Path::new(self.source);
        let folder = artefacts.join(self.name);
        let read = |name: &str| {
            let path = source.join(name);
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let made_from = read("pom.xml")? + &read("Server.java")? + &jdk.display().to_string();
        let stamp = folder.join("made-from");
        if fs::read_to_string(&stamp).is_ok_and(|text| text == made_from) {
            return Ok(folder);
        }
        java::maven()?;
        let _ = fs::remove_dir_all(&folder);
        let classes = folder.join("classes");
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&classes).map_err(failed)?;
        println!("+ Maven artefacts of {}", self.name);
        run(Command::new("mvn")
            .current_dir(source)
            .args([
                "-q",
                "-B",
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
            ])
            .arg(format!(
                "-DoutputDirectory={}",
                folder.join("lib").display()
            )))?;
        run(Command::new(jdk.join("bin/javac"))
            .args(["-nowarn", "-cp"])
            .arg(folder.join("lib/*"))
            .arg("-d")
            .arg(&classes)
            .arg(source.join("Server.java")))?;
        let log = source.with_file_name("log4j2.properties");
        fs::copy(&log, classes.join("log4j2.properties")).map_err(failed)?;
        fs::write(&stamp, made_from).map_err(failed)?;
        Ok(folder)
    }
}

/// Waits until the node says on which port it answers.
fn await_port(server: &mut Server, log: &Path) -> Result<u16, String> {
    let since = Instant::now();
    loop {
        let said = fs::read_to_string(log).unwrap_or_default();
        let ready = said.lines().find_map(|line| line.strip_prefix("READY "));
        if let Some(port) = ready.and_then(|port| port.parse().ok()) {
            return Ok(port);
        }
        let ended = match &mut server.process {
            Process::Child(child) => child.try_wait().ok().flatten(),
            Process::Watched { .. } | Process::Container(_) => None,
        };
        if ended.is_some() || since.elapsed() > START {
            let from = said.len().saturating_sub(4_000);
            let last = said.get(from..).unwrap_or(&said);
            return Err(format!("the node does not start ({ended:?}):\n{last}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the node has a master and takes requests.
fn await_health(server: &Server) -> Result<(), String> {
    let since = Instant::now();
    while !healthy(&server.url) {
        if since.elapsed() > START {
            return Err(format!("{} does not answer", server.url));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn healthy(url: &str) -> bool {
    let Some(address) = url.strip_prefix("http://") else {
        return false;
    };
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let request = "GET /_cluster/health HTTP/1.0\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\"green\"") || answer.contains("\"yellow\""))
}
