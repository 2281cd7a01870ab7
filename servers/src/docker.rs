//! A server in a container, where a Docker daemon answers.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use testcontainers::bollard::models::{HostConfig, PortBinding};
use testcontainers::core::IntoContainerPort;
use testcontainers::runners::SyncRunner as _;
use testcontainers::{GenericImage, ImageExt as _};

use super::process::Process;
use super::{Server, quiet};

/// Reads a line from a container's owner. If its input ends first, as it does when the owner is killed, removes the
/// container; once more for one that the daemon was just creating.
const GUARD: &str = r#"trap "" PIPE INT TERM
read -r _ && exit
docker rm --force --volumes "$1"; sleep 5; docker rm --force --volumes "$1""#;
/// The containers listen on this address of the host, and on no other one.
const HOST: &str = "127.0.0.1";
/// The last lines of a log are shown.
const TAIL_LINES: usize = 60;

/// A running container. It is removed when this process ends, however it ends.
#[derive(Debug)]
pub(super) struct Container {
    name: String,
    container: Option<testcontainers::Container<GenericImage>>,
    guard: Child,
}

/// Starts a container whose server listens on this port. `None` if no daemon answers, or if it cannot get the image.
pub(super) fn start(
    image: &str,
    port: u16,
    environment: &[&str],
) -> Option<Result<Server, String>> {
    quiet("docker", &["info"])?;
    let container = match Container::start(image, port, environment) {
        Ok(container) => container,
        Err(error) => {
            // There are other ways.
            println!("no container of the image {image}: {error}");
            return None;
        }
    };
    let published = container.published(port);
    let process = Process::Container(Box::new(container));
    let mut server = Server::new(String::new(), format!("the image {image}"), process);
    Some(published.map(|port| {
        server.url = format!("http://{HOST}:{port}");
        server
    }))
}

impl Container {
    fn start(image: &str, port: u16, environment: &[&str]) -> Result<Self, String> {
        let name = format!("lockkeeper-{:032x}", rand::random::<u128>());
        let guard = guard(&name)?;
        let mut started = Self {
            name: name.clone(),
            container: None,
            guard,
        };
        let (image, tag) = image.split_once(':').unwrap_or((image, "latest"));
        let port = port.tcp();
        let image = GenericImage::new(image, tag).with_exposed_port(port);
        let on_loopback = move |host: &mut HostConfig| {
            let binding = PortBinding {
                host_ip: Some(HOST.to_owned()),
                host_port: Some("0".to_owned()),
            };
            host.publish_all_ports = Some(false);
            host.port_bindings = Some(HashMap::from([(port.to_string(), Some(vec![binding]))]));
        };
        let mut request = image
            .with_container_name(name)
            .with_host_config_modifier(on_loopback);
        for setting in environment {
            let (variable, value) = setting.split_once('=').unwrap_or((setting, ""));
            request = request.with_env_var(variable, value);
        }
        let container = apart(|| request.start()).map_err(|error| error.to_string());
        started.container = Some(container.inspect_err(|_| started.end())?);
        Ok(started)
    }

    /// The port of this machine that leads to this one of the container.
    fn published(&self, port: u16) -> Result<u16, String> {
        let container = self.container.as_ref().ok_or("it has ended")?;
        let published = apart(|| container.get_host_port_ipv4(port.tcp()));
        published.map_err(|error| format!("{}: its port is not published: {error}", self.name))
    }

    /// Removes it.
    pub(super) fn end(&mut self) {
        let removed = self.container.take().map(|it| apart(|| it.rm()));
        let mut input = self.guard.stdin.take();
        if matches!(removed, Some(Ok(())))
            && let Some(input) = &mut input
        {
            // The guard has nothing to do any more.
            let _ = input.write_all(b"\n");
        }
        drop(input);
        if matches!(removed, Some(Ok(()))) {
            let _ = self.guard.wait();
        }
    }

    /// The last lines that it has said.
    pub(super) fn log_tail(&self) -> String {
        let Some(container) = &self.container else {
            return String::new();
        };
        let said = apart(|| [container.stdout_to_vec(), container.stderr_to_vec()]);
        let said = said.map(|said| match said {
            Ok(said) => tail(&String::from_utf8_lossy(&said)),
            Err(error) => error.to_string(),
        });
        format!(
            "---- the log of the container {}\n{}\n",
            self.name,
            said.join("\n")
        )
    }
}

/// Starts what removes the container of this name if this process ends without doing so.
fn guard(name: &str) -> Result<Child, String> {
    let mut guard = Command::new("sh");
    guard
        .args(["-c", GUARD, "sh", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Signals from a terminal are for the run, not for it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut guard, 0);
    guard
        .spawn()
        .map_err(|error| format!("sh cannot be run: {error}"))
}

/// Runs something on a thread of its own: it blocks on a runtime, which a thread of another runtime must not do.
fn apart<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(what).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
