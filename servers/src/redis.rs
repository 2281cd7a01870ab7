//! Redis, alone or as one node of several.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::process::{Log, Process};
use super::{Port, Server, apt, docker, folder, ports, quiet};

/// The image that replaces the program if only Docker is available.
const IMAGE: &str = "redis:7";
/// The longest time from the start of a server to its first answer.
const START: Duration = Duration::from_secs(30);
/// The longest time for an answer to one question, from a server that may be stopped.
const ANSWER: Duration = Duration::from_secs(2);

/// Starts a server: from the installed program, else in a container, else from Debian's package.
///
/// # Errors
///
/// None of these is possible here; the text says what is missing.
pub fn start() -> Result<Server, String> {
    let server = if installed() {
        node(&[])?
    } else {
        match docker::start(IMAGE, 6379, &[]) {
            Some(server) => {
                let server = server?;
                server.await_answer(START, || ping(server.url(), &["+PONG"]))?;
                server
            }
            None => node(&[])?,
        }
    };
    println!("redis at {}, from {}", server.url(), server.how());
    Ok(server)
}

/// Starts the program with these additional settings, each as in `redis.conf`, on a port of its own. With
/// `tls-cert-file` among them, that port is for TLS, and there is no other. A cluster node has its bus on the second
/// port. Without `dir` its data is in a temporary folder. Installs Debian's package if the program is missing and that
/// is permitted.
///
/// # Errors
///
/// The program is missing, or does not start; the text says why.
pub fn node(settings: &[(&str, &str)]) -> Result<Server, String> {
    ports::on_free(1, |ports| node_at(&ports[0], settings))
}

/// As [`node`], on this port, which a former server had.
///
/// # Errors
///
/// The program is missing, or does not start, or the port is taken; the text says why.
pub fn node_at(port: &Port, settings: &[(&str, &str)]) -> Result<Server, String> {
    node_under(port, settings, &[])
}

/// As [`node_at`], with this environment besides.
pub(crate) fn node_under(
    port: &Port,
    settings: &[(&str, &str)],
    environment: &[(&str, String)],
) -> Result<Server, String> {
    if !installed() {
        apt::update();
        apt::install("redis-server")
            .map_err(|error| format!("redis-server is missing: install Redis 7 ({error})"))?;
    }
    let data = folder()?;
    let given = |name: &str| {
        let mut found = settings.iter().filter(|(setting, _)| *setting == name);
        found.next().map(|(_, value)| *value)
    };
    let number = port.number().to_string();
    let log = Log::new(data.path().join("redis.log"));
    let mut command = Command::new("redis-server");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
        .args(["--bind", "127.0.0.1", "--save", ""])
        // A replica's copy is not put off for others to come.
        .args(["--repl-diskless-sync-delay", "0", "--dir"])
        .arg(given("dir").map_or_else(|| data.path().to_owned(), PathBuf::from));
    if given("tls-cert-file").is_some() {
        command.args(["--port", "0", "--tls-port", &number]);
    } else {
        command.args(["--port", &number]);
    }
    for (name, value) in settings {
        if *name != "dir" {
            command.arg(format!("--{name}")).args(value.split(' '));
        }
    }
    let process = Process::watched(&command, "KILL", &log)?;
    let url = format!("http://127.0.0.1:{number}");
    let mut server = Server::new(url, "the program redis-server".to_owned(), process).with_log(log);
    server.data = Some(data);
    server.port = Some(port.clone());
    server.says = says;
    // By TLS it is enough that somebody listens; one that wants a password is there, too.
    let answers: &[&str] = if given("tls-cert-file").is_some() {
        &[""]
    } else {
        &["+PONG", "-NOAUTH"]
    };
    server.await_answer(START, || ping(server.url(), answers))?;
    Ok(server)
}

/// Starts a sentinel that watches the primary on this port of this machine under this name, and takes it for down after
/// this time; two must agree. `lines` are further lines of its file.
///
/// # Errors
///
/// The program is missing, or does not start; the text says why.
pub fn sentinel(
    name: &str,
    primary: u16,
    down_after: Duration,
    lines: &[&str],
) -> Result<Server, String> {
    ports::on_free(1, |ports| {
        let data = folder()?;
        let log = Log::new(data.path().join("sentinel.log"));
        let file = data.path().join("sentinel.conf");
        let number = ports[0].number();
        let text = format!(
            "port {number}\nbind 127.0.0.1\ndir {}\nsentinel monitor {name} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {name} {}\nsentinel failover-timeout {name} 30000\n{}\n",
            data.path().display(),
            down_after.as_millis(),
            lines.join("\n"),
        );
        std::fs::write(&file, text).map_err(|error| error.to_string())?;
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel");
        let process = Process::watched(&command, "KILL", &log)?;
        let url = format!("http://127.0.0.1:{number}");
        let how = "the program redis-server, as a sentinel".to_owned();
        let mut server = Server::new(url, how, process).with_log(log);
        server.data = Some(data);
        server.port = Some(ports[0].clone());
        server.await_answer(START, || ping(server.url(), &["+PONG", "-NOAUTH"]))?;
        Ok(server)
    })
}

fn installed() -> bool {
    quiet("redis-server", &["--version"]).is_some()
}

/// Whether the server answers a PING in one of these ways; an empty one is a connection alone.
fn ping(url: &str, answers: &[&str]) -> Result<(), String> {
    let question = if answers == [""] { "" } else { "PING\r\n" };
    let mut answer = [0; 64];
    let asked = connect(url, question).and_then(|mut stream| match question {
        "" => Ok(0),
        _ => stream.read(&mut answer),
    });
    let length = asked.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&answer[..length]).into_owned();
    let is_one = answers.iter().any(|answer| said.starts_with(answer));
    is_one.then_some(()).ok_or(said)
}

/// A node's view of its cluster, and of who follows whom.
fn says(url: &str) -> String {
    let mut said = String::new();
    for question in ["CLUSTER NODES", "INFO replication"] {
        let mut answer = Vec::new();
        let asked = connect(url, &format!("{question}\r\nQUIT\r\n"))
            .and_then(|mut stream| stream.read_to_end(&mut answer));
        let answer = String::from_utf8_lossy(&answer);
        let error = asked.err().map(|error| error.to_string());
        // Strings never fail to be written.
        let _ = writeln!(said, "{question}: {answer}{}", error.unwrap_or_default());
    }
    said
}

/// Gives a server an order, and returns its answer.
///
/// # Errors
///
/// It does not answer, or with an error.
#[cfg(target_os = "linux")]
pub(crate) fn order(url: &str, words: &str) -> Result<String, String> {
    let mut answer = Vec::new();
    let asked = connect(url, &format!("{words}\r\nQUIT\r\n"))
        .and_then(|mut stream| stream.read_to_end(&mut answer));
    asked.map_err(|error| format!("{url}: {error}"))?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    match answer.starts_with('-') {
        true => Err(format!("{url}: {answer}")),
        false => Ok(answer),
    }
}

fn connect(url: &str, question: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap_or(url))?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(question.as_bytes())?;
    Ok(stream)
}
