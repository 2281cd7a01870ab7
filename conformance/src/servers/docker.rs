//! A server in a container, where a Docker daemon answers.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::{Process, Server, quiet};

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
    let mut server = Server {
        url: String::new(),
        how: format!("the image {image}"),
        process: Process::Container(shell),
        _data: None,
    };
    let id = id.trim();
    if id.is_empty() {
        // Docker has said why: mostly that it cannot get the image. There are other ways.
        return None;
    }
    let published = quiet("docker", &["port", id, &port.to_string()]);
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
