//! Redis, alone or as one node of several.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Process, Server, apt, docker, quiet};

/// The image that stands for the program where only Docker is there.
const IMAGE: &str = "redis:7";
/// Longest time from the start of a server to its first answer.
const START: Duration = Duration::from_secs(30);
/// Starts the server without our standard input, says its process id, and ends it when that input ends, which it does
/// when this process ends, however it does.
const WATCH: &str = r#""$@" <&- >&2 & echo $!; read -r _; kill -9 $!; wait"#;

/// Starts a server: of the installed program, else in a container, else of Debian's package.
///
/// # Errors
///
/// None of them is possible here; the text says what is missing.
pub fn start() -> Result<Server, String> {
    let server = if installed() {
        node(&[])?
    } else {
        match docker::start(IMAGE, 6379, &[]) {
            Some(server) => {
                let server = server?;
                await_answer(server.url(), &["+PONG"])?;
                server
            }
            None => node(&[])?,
        }
    };
    println!("redis at {}, from {}", server.url(), server.how());
    Ok(server)
}

/// Starts the program with these settings besides, each as in `redis.conf`. Without `port` and `tls-port` among them it
/// takes a free port, without `dir` it has its data in a temporary folder. Debian's package is installed where the
/// program is missing and that is allowed.
///
/// # Errors
///
/// The program is missing, or does not start; the text says why.
pub fn node(settings: &[(&str, &str)]) -> Result<Server, String> {
    if !installed() {
        apt::update();
        apt::install("redis-server").map_err(|error| {
            format!("redis-server is missing: install Redis 7, or start Docker ({error})")
        })?;
    }
    let data = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let given = |name: &str| {
        let mut found = settings.iter().filter(|(setting, _)| *setting == name);
        found.next().map(|(_, value)| (*value).to_owned())
    };
    let secure = given("tls-port");
    let port = match (given("port").filter(|port| port != "0"), &secure) {
        (Some(port), _) => port,
        (None, Some(port)) => port.clone(),
        (None, None) => free_port()?.to_string(),
    };
    let log = data.path().join("redis.log");
    let mut command = Command::new("sh");
    command
        .args(["-c", WATCH, "sh", "redis-server"])
        .args(["--bind", "127.0.0.1", "--logfile"])
        .arg(&log)
        .args(["--save", "", "--dir"])
        .arg(given("dir").map_or_else(|| data.path().to_owned(), Into::into));
    if secure.is_none() {
        command.args(["--port", &port]);
    }
    for (name, value) in settings {
        if !matches!(*name, "dir" | "port") || (*name == "port" && secure.is_some()) {
            command.arg(format!("--{name}")).args(value.split(' '));
        }
    }
    let mut shell = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("sh cannot be run: {error}"))?;
    let mut line = String::new();
    let said = BufReader::new(shell.stdout.take().ok_or("the shell says nothing")?);
    let read = said.take(32).read_line(&mut line);
    let pid = read.ok().and_then(|_| line.trim().parse().ok());
    let server = Server {
        url: format!("http://127.0.0.1:{port}"),
        how: "the program redis-server".to_owned(),
        process: Process::Watched {
            shell,
            pid: pid.ok_or_else(|| format!("the shell says {line:?}"))?,
        },
        _data: Some(data),
    };
    let answers: &[&str] = if secure.is_some() {
        &[""]
    } else {
        &["+PONG", "-NOAUTH"]
    };
    await_answer(&server.url, answers).map_err(|error| {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        format!("{error}: {said}")
    })?;
    Ok(server)
}

/// A port of this machine that nobody listens on.
///
/// # Errors
///
/// There is none.
pub fn free_port() -> Result<u16, String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    port.map(|address| address.port())
        .map_err(|error| format!("no free port: {error}"))
}

fn installed() -> bool {
    quiet("redis-server", &["--version"]).is_some()
}

/// Waits until the server answers a PING in one of these ways; an empty one is a connection alone.
fn await_answer(url: &str, answers: &[&str]) -> Result<(), String> {
    let address = url.strip_prefix("http://").unwrap_or(url);
    let since = Instant::now();
    loop {
        let said = match ask(address, answers == [""]) {
            Ok(said) if answers.iter().any(|answer| said.starts_with(answer)) => return Ok(()),
            Ok(said) => said,
            Err(error) => error.to_string(),
        };
        if since.elapsed() > START {
            return Err(format!("redis-server at {address} does not start ({said})"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ask(address: &str, connection_alone: bool) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    if connection_alone {
        return Ok(String::new());
    }
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 64];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}
