//! A server in a container, where a Docker daemon answers.

use super::{Process, Server, quiet};

/// Starts a container that listens on this port, and stops with this process or after it.
pub(super) fn start(
    image: &str,
    port: u16,
    environment: &[&str],
) -> Option<Result<Server, String>> {
    quiet("docker", &["info"])?;
    let publish = format!("127.0.0.1:0:{port}");
    let mut args = vec!["run", "--detach", "--rm", "--publish", &publish];
    args.extend(environment.iter().flat_map(|setting| ["--env", setting]));
    args.push(image);
    let id = quiet("docker", &args)?;
    let published = quiet("docker", &["port", &id, &port.to_string()]);
    let mut server = Server {
        url: String::new(),
        how: format!("the image {image}"),
        process: Process::Container(id),
        _data: None,
    };
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
