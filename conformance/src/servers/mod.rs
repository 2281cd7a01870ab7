//! Servers for the tests, started where none is given: behind the feature `servers`.

mod apt;
mod docker;
mod elasticsearch;
pub mod etcd;
mod java;
mod local;
pub mod postgres;
pub mod redis;
mod secured;

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

pub use elasticsearch::{
    ELASTICSEARCH_7, ELASTICSEARCH_9_SECURED, ENGINES, Engine, Node, OPENSEARCH_2, OPENSEARCH_3,
    OPENSEARCH_3_SECURED,
};

/// A server that runs; dropping it stops it and removes its data.
#[derive(Debug)]
pub struct Server {
    url: String,
    how: String,
    // Stopped before its data is removed.
    process: Process,
    _data: Option<TempDir>,
}

#[derive(Debug)]
enum Process {
    Child(Child),
    /// A program that ends with its standard input: a shell which ends the server then.
    Watched {
        shell: Child,
        pid: u32,
    },
    /// Several of them.
    Several(Vec<Server>),
    /// A container that ends with its standard input: a shell which removes it then.
    Container(Child),
}

impl Server {
    /// How it is reached: `http://127.0.0.1:PORT`, or `https://USER:PASSWORD@localhost:PORT/?ca=FILE`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What it was started from, in a few words.
    #[must_use]
    pub fn how(&self) -> &str {
        &self.how
    }

    /// The process, to stop or to kill it; `None` of a container, and of several.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::Child(child) => Some(child.id()),
            Process::Watched { pid, .. } => Some(*pid),
            Process::Several(_) | Process::Container(_) => None,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to stop.
        match &mut self.process {
            Process::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Process::Several(servers) => servers.clear(),
            Process::Watched { shell, .. } | Process::Container(shell) => {
                drop(shell.stdin.take());
                let _ = shell.wait();
            }
        }
    }
}

/// Gets OpenSSL's headers, which a driver of the measurements is built with, where they are missing: Debian's packages.
///
/// # Errors
///
/// They cannot be installed here; the text says what is missing.
pub fn openssl() -> Result<(), String> {
    if quiet("pkg-config", &["--exists", "openssl"]).is_some() {
        return Ok(());
    }
    apt::update();
    let installed = ["pkg-config", "libssl-dev"]
        .into_iter()
        .try_for_each(apt::install);
    installed.map_err(|error| format!("OpenSSL's headers are missing: install them ({error})"))
}

/// The output of a program; `None` if it is not there or fails.
fn quiet(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    output.status.success().then_some(text)
}

/// Runs a program whose output people see.
fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}
