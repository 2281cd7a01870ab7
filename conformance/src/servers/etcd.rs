//! etcd, alone or as a cluster.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::redis::free_port;
use super::{Process, Server, apt, quiet, run};

/// Longest time from the start of a member to its first answer.
const START: Duration = Duration::from_secs(60);
/// Starts the server without our standard input, says its process id, and ends it when that input ends, which it does
/// when this process ends, however it does.
const WATCH: &str = r#""$@" <&- >&2 & echo $!; read -r _; kill -9 $!; wait"#;
/// The Go module of the newer version.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/servers/etcd-3.6");

/// A version of etcd.
#[derive(Debug)]
pub struct Etcd {
    /// Its name, as the tests say it.
    pub name: &'static str,
    /// What the program says of itself, if it is this one.
    says: &'static str,
    /// Debian's package has it; else it is built from its Go module.
    packaged: bool,
}

/// The oldest version that has what is needed.
pub const ETCD_3_4: Etcd = Etcd {
    name: "etcd-3.4",
    says: "etcd Version: 3.4.",
    packaged: true,
};

/// A newer one.
pub const ETCD_3_6: Etcd = Etcd {
    name: "etcd-3.6",
    says: "etcd Version: 3.6.",
    packaged: false,
};

impl Etcd {
    /// Starts a single member: of an installed program of that version, else of Debian's package, or of a program that is
    /// built from its Go module. Either is kept below `artefacts` for the next time.
    ///
    /// # Errors
    ///
    /// None of them is possible here; the text says what is missing.
    pub fn start(&self, artefacts: &Path) -> Result<Server, String> {
        let program = self.program(artefacts)?;
        let member = Member::new(program, &[])?;
        let how = format!("the program {}", member.program.display());
        println!("{} at {}, from {how}", self.name, member.url());
        let Member {
            url,
            shell,
            pid,
            data,
            ..
        } = member;
        Ok(Server {
            url,
            how,
            process: Process::Watched { shell, pid },
            _data: Some(data),
        })
    }

    /// Starts a cluster of three members, as one server that has several hosts.
    ///
    /// # Errors
    ///
    /// As one member alone.
    pub fn start_cluster(&self, artefacts: &Path) -> Result<Server, String> {
        let members = self.cluster(artefacts)?;
        let hosts: Vec<&str> = members
            .iter()
            .filter_map(|member| member.url.split_once("//"))
            .map(|(_, host)| host)
            .collect();
        let url = format!("http://{}", hosts.join(","));
        let how = format!("three of the program {}", members[0].program.display());
        println!("{} as a cluster at {url}, from {how}", self.name);
        let servers = members.into_iter().map(|member| Server {
            url: member.url,
            how: how.clone(),
            process: Process::Watched {
                shell: member.shell,
                pid: member.pid,
            },
            _data: Some(member.data),
        });
        Ok(Server {
            url,
            how: how.clone(),
            process: Process::Several(servers.collect()),
            _data: None,
        })
    }

    /// Starts the members of a cluster of three, each of which can be killed and started again.
    ///
    /// # Errors
    ///
    /// As one member alone.
    pub fn cluster(&self, artefacts: &Path) -> Result<Vec<Member>, String> {
        let program = self.program(artefacts)?;
        let mut ports = Vec::new();
        for _ in 0..3 {
            ports.push(free_port()?);
        }
        let peers: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(at, port)| format!("m{at}=http://127.0.0.1:{port}"))
            .collect();
        let peers = peers.join(",");
        let mut members = Vec::new();
        for (at, port) in ports.iter().enumerate() {
            let settings = [
                ("name", format!("m{at}")),
                ("listen-peer-urls", format!("http://127.0.0.1:{port}")),
                (
                    "initial-advertise-peer-urls",
                    format!("http://127.0.0.1:{port}"),
                ),
                ("initial-cluster", peers.clone()),
            ];
            let settings: Vec<(&str, &str)> = settings
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            members.push(Member::spawned(program.clone(), &settings)?);
        }
        for member in &members {
            member.await_health()?;
        }
        Ok(members)
    }

    /// The program.
    ///
    /// # Errors
    ///
    /// It is not installed and cannot be had; the text says what is missing.
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
            build(&home)?;
        }
        if quiet(&program.display().to_string(), &["--version"]).is_some() {
            Ok(program)
        } else {
            Err(format!("{} does not run", program.display()))
        }
    }
}

/// Gets protoc, with which the driver for Rust is built, where it is missing: Debian's packages.
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

/// Builds the program from its Go module.
fn build(home: &Path) -> Result<(), String> {
    if quiet("go", &["version"]).is_none() {
        return Err("etcd 3.6 is built with Go: install Go 1.26 or newer, or etcd 3.6".to_owned());
    }
    println!("+ go build, of etcd 3.6");
    // Beside it, and put in its place when it is whole: another run may do the same.
    let made = tempfile::tempdir_in(home).map_err(|error| format!("no folder: {error}"))?;
    let program = made.path().join("etcd");
    run(Command::new("go")
        .args(["build", "-trimpath", "-mod=readonly", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(SOURCES))?;
    fs::rename(&program, home.join("etcd")).map_err(|error| format!("{error}"))
}

/// A member of a cluster, or a server alone. Dropping it stops it and removes its data.
#[derive(Debug)]
pub struct Member {
    program: PathBuf,
    arguments: Vec<String>,
    url: String,
    log: PathBuf,
    shell: Child,
    pid: u32,
    data: TempDir,
}

impl Member {
    /// Starts a server with these settings, each without its dashes; with `cert-file` among them by TLS. Without
    /// `listen-peer-urls` among them it is alone.
    ///
    /// # Errors
    ///
    /// It does not start; the text says why.
    pub fn new(program: PathBuf, settings: &[(&str, &str)]) -> Result<Self, String> {
        let member = Self::spawned(program, settings)?;
        member.await_health()?;
        Ok(member)
    }

    fn spawned(program: PathBuf, settings: &[(&str, &str)]) -> Result<Self, String> {
        let data = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
        let tls = settings.iter().any(|(name, _)| *name == "cert-file");
        let scheme = if tls { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{}", free_port()?);
        let home = data.path().join("data").display().to_string();
        let mut all = vec![
            ("data-dir", home.as_str()),
            ("listen-client-urls", &url),
            ("advertise-client-urls", &url),
            ("log-level", "warn"),
            // Room for millions of keys that are not compacted yet.
            ("quota-backend-bytes", "8589934592"),
        ];
        if !settings.iter().any(|(name, _)| *name == "listen-peer-urls") {
            // Any port will do: nobody comes there.
            all.push(("listen-peer-urls", "http://127.0.0.1:0"));
        }
        all.extend(settings);
        let arguments = all.iter().map(|(name, value)| format!("--{name}={value}"));
        let arguments: Vec<String> = arguments.collect();
        let log = data.path().join("etcd.log");
        let (shell, pid) = spawn(&program, &arguments, &log)?;
        Ok(Self {
            program,
            arguments,
            url,
            log,
            shell,
            pid,
            data,
        })
    }

    /// How it is reached: `http://127.0.0.1:PORT`, or `https`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process, to stop it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills it.
    pub fn stop(&mut self) {
        end(&mut self.shell);
    }

    /// Copies the data of a member that is stopped into a folder.
    ///
    /// # Errors
    ///
    /// It cannot be copied.
    pub fn keep(&self, folder: &Path) -> Result<(), String> {
        copy(&self.data.path().join("data"), folder)
    }

    /// Gives a member that is stopped the data of such a copy, and no other.
    ///
    /// # Errors
    ///
    /// It cannot be copied.
    pub fn put_back(&self, folder: &Path) -> Result<(), String> {
        let data = self.data.path().join("data");
        fs::remove_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        copy(&folder.join("data"), self.data.path())
    }

    /// Kills it, if it runs, and starts it again on the same data. It may not answer yet.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn restart(&mut self) -> Result<(), String> {
        end(&mut self.shell);
        (self.shell, self.pid) = spawn(&self.program, &self.arguments, &self.log)?;
        Ok(())
    }

    /// Whether it answers.
    #[must_use]
    pub fn answers(&self) -> bool {
        answers(&self.url)
    }

    /// Waits until it answers.
    ///
    /// # Errors
    ///
    /// It does not within a minute; the text is what it has said.
    pub fn await_health(&self) -> Result<(), String> {
        let since = Instant::now();
        loop {
            if self.answers() {
                return Ok(());
            }
            if since.elapsed() > START {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("etcd at {} does not start: {said}", self.url));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a server answers; by TLS, whether it listens.
fn answers(url: &str) -> bool {
    match url.strip_prefix("https://") {
        Some(address) => TcpStream::connect(address).is_ok(),
        None => {
            let asked = ureq::get(format!("{url}/health")).call();
            let said = asked
                .ok()
                .and_then(|mut answer| answer.body_mut().read_to_string().ok());
            said.is_some_and(|said| said.contains("\"true\""))
        }
    }
}

fn spawn(program: &Path, arguments: &[String], log: &Path) -> Result<(Child, u32), String> {
    let said = fs::OpenOptions::new().create(true).append(true).open(log);
    let said = said.map_err(|error| format!("{}: {error}", log.display()))?;
    let mut shell = Command::new("sh")
        .args(["-c", WATCH, "sh"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(said)
        .spawn()
        .map_err(|error| format!("sh cannot be run: {error}"))?;
    let mut line = String::new();
    let first = BufReader::new(shell.stdout.take().ok_or("the shell says nothing")?);
    let read = first.take(32).read_line(&mut line);
    let pid = read.ok().and_then(|_| line.trim().parse().ok());
    Ok((
        shell,
        pid.ok_or_else(|| format!("the shell says {line:?}"))?,
    ))
}

fn copy(what: &Path, into: &Path) -> Result<(), String> {
    run(Command::new("cp").arg("-r").args([what, into]))
}

/// Ends a program by the shell that watches it.
fn end(shell: &mut Child) {
    drop(shell.stdin.take());
    let _ = shell.wait();
}
