//! A server in a container, where a Docker daemon answers.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::process::Process;
use super::{Server, quiet};

/// Runs a container, says its id, and removes it when our standard input ends, which it does when this process ends,
/// however it does.
const WATCH: &str = r#"trap "" PIPE INT TERM
id=$(docker run --detach --rm "$@") || exit
echo $id; read -r _; docker rm --force $id > /dev/null"#;

/// Starts a container that listens on this port, and is removed with this process.
pub(super) fn start(
    image: &str,
    port: u16,
    environment: &[&str],
) -> Option<Result<Server, String>> {
    quiet("docker", &["info"])?;
    let mut shell = Command::new("sh")
        .args(["-c", WATCH, "sh"])
        .args(["--publish", &format!("127.0.0.1:0:{port}")])
        .args(environment.iter().flat_map(|setting| ["--env", setting]))
        .arg(image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut id = String::new();
    let _ = BufReader::new(shell.stdout.take()?).read_line(&mut id);
    let id = id.trim().to_owned();
    if id.is_empty() {
        // Docker has said why: mostly that it cannot get the image. There are other ways.
        let _ = shell.wait();
        return None;
    }
    let published = quiet("docker", &["port", &id, &port.to_string()]);
    let process = Process::Container { shell, id };
    let mut server = Server::new(String::new(), format!("the image {image}"), process);
    let address = published
        .as_deref()
        .and_then(|ports| ports.lines().find(|line| line.starts_with("127.0.0.1:")));
    Some(match address {
        Some(address) => {
            server.url = format!("http://{address}");
            Ok(server)
        }
        None => Err(format!("{image}: its port was not published")),
    })
}

/// The last lines that a container has said.
pub(super) fn log_tail(id: &str) -> String {
    let output = Command::new("docker")
        .args(["logs", "--tail", "60", id])
        .output();
    output.map_or_else(
        |error| error.to_string(),
        |said| {
            format!(
                "---- the log of the container {id}\n{}{}\n",
                String::from_utf8_lossy(&said.stdout),
                String::from_utf8_lossy(&said.stderr)
            )
        },
    )
}
