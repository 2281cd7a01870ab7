//! etcd, alone or as a cluster.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ureq::Agent;

use super::process::{Log, Process};
use super::{Cluster, Port, Server, apt, folder, ports, quiet, run};

/// The longest time from the start of a member to its first answer.
const START: Duration = Duration::from_secs(60);
/// The longest time for an answer to one question, from a member that may be stopped.
const ANSWER: Duration = Duration::from_secs(2);
/// The Go modules of the newer versions, each in a folder of the version's name.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/sources");

/// A version of etcd.
#[derive(Debug)]
pub struct Etcd {
    /// Its name in the tests.
    pub name: &'static str,
    /// How the program of this version identifies itself.
    says: &'static str,
    /// Whether Debian's package has it; else it is built from its Go module.
    packaged: bool,
}

/// The oldest version with everything that is needed.
pub const ETCD_3_4: Etcd = Etcd {
    name: "etcd-3.4",
    says: "etcd Version: 3.4.",
    packaged: true,
};

/// The one between.
pub const ETCD_3_5: Etcd = Etcd {
    name: "etcd-3.5",
    says: "etcd Version: 3.5.",
    packaged: false,
};

/// The newest version.
pub const ETCD_3_6: Etcd = Etcd {
    name: "etcd-3.6",
    says: "etcd Version: 3.6.",
    packaged: false,
};

impl Etcd {
    /// Starts a single member: from an installed program of that version, else from Debian's package, or from a program
    /// built from its Go module. Both are kept below `artefacts` for the next time.
    ///
    /// # Errors
    ///
    /// None of these is possible here; the text says what is missing.
    pub fn start(&self, artefacts: &Path) -> Result<Server, String> {
        let program = self.program(artefacts)?;
        let Member { server, .. } = Member::new(program, &[])?;
        println!("{} at {}, from {}", self.name, server.url, server.how);
        Ok(server)
    }

    /// Starts a cluster of three members, as one server with several hosts.
    ///
    /// # Errors
    ///
    /// As one member alone.
    pub fn start_cluster(&self, artefacts: &Path) -> Result<Server, String> {
        let members = self.members(artefacts)?;
        let servers: Vec<Server> = members.into_iter().map(|member| member.server).collect();
        let hosts: Vec<&str> = servers
            .iter()
            .filter_map(|server| server.url.split_once("//"))
            .map(|(_, host)| host)
            .collect();
        let url = format!("http://{}", hosts.join(","));
        let how = format!("three, each from {}", servers[0].how);
        println!("{} as a cluster at {url}, from {how}", self.name);
        Ok(Server::new(url, how, Process::Several(servers)))
    }

    /// Starts a cluster of three members, each of which can be killed and started again.
    ///
    /// # Errors
    ///
    /// As one member alone.
    pub fn cluster(&self, artefacts: &Path) -> Result<Cluster<Member>, String> {
        self.members(artefacts).map(Cluster::new)
    }

    fn members(&self, artefacts: &Path) -> Result<Vec<Member>, String> {
        let program = self.program(artefacts)?;
        ports::on_free(3, |ports| {
            let peer = |port: &Port| format!("http://127.0.0.1:{}", port.beside());
            let peers = ports.iter().enumerate();
            let peers = peers.map(|(at, port)| format!("m{at}={}", peer(port)));
            let peers = peers.collect::<Vec<_>>().join(",");
            let mut members = Vec::new();
            for (at, port) in ports.iter().enumerate() {
                let (name, peer) = (format!("m{at}"), peer(port));
                let settings = [
                    ("name", name.as_str()),
                    ("initial-advertise-peer-urls", &peer),
                    ("initial-cluster", &peers),
                ];
                members.push(Member::spawned(port, program.clone(), &settings)?);
            }
            for member in &members {
                member.await_health()?;
            }
            Ok(members)
        })
    }

    /// The program.
    ///
    /// # Errors
    ///
    /// The program is not installed and not available; the text says what is missing.
    pub fn program(&self, artefacts: &Path) -> Result<PathBuf, String> {
        let is_it = |program: &str| {
            quiet(program, &["--version"]).is_some_and(|said| said.starts_with(self.says))
        };
        if is_it("etcd") {
            return Ok("etcd".into());
        }
        let home = artefacts.join(self.name);
        let program = home.join(if self.packaged {
            "usr/bin/etcd"
        } else {
            "etcd"
        });
        if is_it(&program.display().to_string()) {
            return Ok(program);
        }
        fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
        if self.packaged {
            apt::unpack("etcd-server", &home)?;
        } else {
            self.build(&home)?;
        }
        if quiet(&program.display().to_string(), &["--version"]).is_some() {
            Ok(program)
        } else {
            Err(format!("{} does not run", program.display()))
        }
    }

    /// Builds the program from its Go module.
    fn build(&self, home: &Path) -> Result<(), String> {
        let name = self.name;
        if quiet("go", &["version"]).is_none() {
            return Err(format!(
                "{name} is built with Go: install Go 1.26 or newer, or {name}"
            ));
        }
        println!("+ go build, of {name}");
        // Beside it, and put in its place when it is whole: another run may do the same.
        let made = tempfile::tempdir_in(home).map_err(|error| format!("no folder: {error}"))?;
        let program = made.path().join("etcd");
        run(Command::new("go")
            .args(["build", "-trimpath", "-mod=readonly", "-o"])
            .arg(&program)
            .arg(".")
            .current_dir(Path::new(SOURCES).join(name)))?;
        fs::rename(&program, home.join("etcd")).map_err(|error| format!("{error}"))
    }
}

/// Installs protoc from Debian's packages if it is missing. The Rust driver is built with it.
///
/// # Errors
///
/// It cannot be installed here; the text says what is missing.
pub fn protoc() -> Result<(), String> {
    let named = std::env::var_os("PROTOC").is_some();
    if named || quiet("protoc", &["--version"]).is_some() {
        return Ok(());
    }
    apt::update();
    let installed = ["protobuf-compiler", "libprotobuf-dev"]
        .into_iter()
        .try_for_each(apt::install);
    installed.map_err(|error| {
        format!("protoc is missing, which etcd's driver is built with: install it ({error})")
    })
}

/// A member of a cluster, or a single server. Dropping it stops it and removes its data.
#[derive(Debug)]
pub struct Member {
    program: PathBuf,
    arguments: Vec<String>,
    home: PathBuf,
    server: Server,
}

impl AsRef<Server> for Member {
    fn as_ref(&self) -> &Server {
        &self.server
    }
}

impl Member {
    /// Starts a single server with these settings, each without its dashes; with TLS if `cert-file` is among them.
    ///
    /// # Errors
    ///
    /// It does not start; the text says why.
    pub fn new(program: PathBuf, settings: &[(&str, &str)]) -> Result<Self, String> {
        ports::on_free(1, |ports| {
            let member = Self::spawned(&ports[0], program.clone(), settings)?;
            member.await_health()?;
            Ok(member)
        })
    }

    fn spawned(port: &Port, program: PathBuf, settings: &[(&str, &str)]) -> Result<Self, String> {
        let data = folder()?;
        let tls = settings.iter().any(|(name, _)| *name == "cert-file");
        let scheme = if tls { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{}", port.number());
        let peer = format!("http://127.0.0.1:{}", port.beside());
        let home = data.path().join("data");
        let home_text = home.display().to_string();
        let mut all = vec![
            ("data-dir", home_text.as_str()),
            ("listen-client-urls", &url),
            ("advertise-client-urls", &url),
            ("listen-peer-urls", &peer),
            ("log-level", "warn"),
            // Room for millions of keys that are not compacted yet.
            ("quota-backend-bytes", "8589934592"),
        ];
        all.extend(settings);
        let arguments = all.iter().map(|(name, value)| format!("--{name}={value}"));
        let arguments: Vec<String> = arguments.collect();
        let path = data.path().join("etcd.log");
        let (process, log) = spawn(&program, &arguments, path)?;
        let how = format!("the program {}", program.display());
        let mut server = Server::new(url, how, process).with_log(log);
        server.data = Some(data);
        server.port = Some(port.clone());
        server.says = says;
        Ok(Self {
            program,
            arguments,
            home,
            server,
        })
    }

    /// Its URL: `http://127.0.0.1:PORT`, or `https`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Its process, to stop it; 0 if there is none.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid().unwrap_or_default()
    }

    /// Kills it.
    pub fn stop(&mut self) {
        self.server.process.end();
    }

    /// Where its data are.
    #[cfg(target_os = "linux")]
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Copies the data of a stopped member into a folder.
    ///
    /// # Errors
    ///
    /// It cannot be copied.
    pub fn keep(&self, folder: &Path) -> Result<(), String> {
        copy(&self.home, folder)
    }

    /// Replaces the data of a stopped member with such a copy.
    ///
    /// # Errors
    ///
    /// It cannot be copied.
    pub fn put_back(&self, folder: &Path) -> Result<(), String> {
        let home = &self.home;
        fs::remove_dir_all(home).map_err(|error| format!("{}: {error}", home.display()))?;
        copy(&folder.join("data"), home)
    }

    /// Kills it if it runs, and starts it again on the same data. It may not answer yet.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn restart(&mut self) -> Result<(), String> {
        let server = &mut self.server;
        server.process.end();
        let path = server.log.as_ref().map(|log| log.path().to_owned());
        let path = path.ok_or("it has no log")?;
        let (process, log) = spawn(&self.program, &self.arguments, path)?;
        (server.process, server.log) = (process, Some(log));
        Ok(())
    }

    /// Waits until it answers.
    ///
    /// # Errors
    ///
    /// It does not answer within a minute; the text is its output.
    pub fn await_health(&self) -> Result<(), String> {
        let url = &self.server.url;
        self.server.await_answer(START, || answers(url))
    }
}

/// Asks a server whether it takes requests, or, with TLS, whether it listens. Blocks for seconds at most.
///
/// # Errors
///
/// It does not; the text says what it does instead.
pub fn answers(url: &str) -> Result<(), String> {
    if let Some(address) = url.strip_prefix("https://") {
        let listens = TcpStream::connect(address);
        return listens.map(drop).map_err(|error| error.to_string());
    }
    let asked = agent().get(format!("{url}/health")).call();
    let said = asked.and_then(|mut answer| answer.body_mut().read_to_string());
    match said {
        Ok(said) if said.contains("\"true\"") => Ok(()),
        Ok(said) => Err(said),
        Err(error) => Err(error.to_string()),
    }
}

/// A member's list of members, and its state. One by TLS does not know us.
fn says(url: &str) -> String {
    if url.starts_with("https") {
        return String::new();
    }
    let ask = |path: &str| {
        let asked = agent().post(format!("{url}{path}")).send("{}");
        let said = asked.and_then(|mut answer| answer.body_mut().read_to_string());
        let said = said.unwrap_or_else(|error| error.to_string());
        format!("{path}: {said}\n")
    };
    ["/v3/cluster/member/list", "/v3/maintenance/status"]
        .map(ask)
        .concat()
}

/// A member's id, and the id of its leader, as it says.
#[cfg(target_os = "linux")]
pub(crate) fn leader(url: &str) -> Result<(String, String), String> {
    let asked = agent()
        .post(format!("{url}/v3/maintenance/status"))
        .send("{}");
    let said = asked.and_then(|mut answer| answer.body_mut().read_to_string());
    let said = said.map_err(|error| error.to_string())?;
    let field = |name: &str| {
        let (_, rest) = said.split_once(&format!("\"{name}\":\""))?;
        Some(rest.split('"').next()?.to_owned())
    };
    field("member_id")
        .zip(field("leader"))
        .ok_or_else(|| format!("{url}: {said}"))
}

/// Has a leader hand its part to the member of this id.
#[cfg(target_os = "linux")]
pub(crate) fn hand_over(url: &str, to: &str) -> Result<(), String> {
    let body = format!("{{\"targetID\": \"{to}\"}}");
    let asked = agent()
        .post(format!("{url}/v3/maintenance/transfer-leadership"))
        .send(body);
    asked.map(drop).map_err(|error| error.to_string())
}

fn agent() -> Agent {
    let config = Agent::config_builder().timeout_global(Some(ANSWER));
    Agent::new_with_config(config.build())
}

fn spawn(program: &Path, arguments: &[String], log: PathBuf) -> Result<(Process, Log), String> {
    let log = Log::new(log);
    let mut command = Command::new(program);
    command.args(arguments);
    let process = Process::watched(&command, "KILL", &log)?;
    Ok((process, log))
}

fn copy(what: &Path, into: &Path) -> Result<(), String> {
    run(Command::new("cp").arg("-r").args([what, into]))
}
