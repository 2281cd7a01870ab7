//! A server program that is installed on the machine.

use std::fs::{create_dir_all, read_dir};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::process::{Log, Process};
use super::{Port, Server, folder, java, ports, quiet};

/// Starts an installed Elasticsearch or OpenSearch of that version, if there is one. It refuses to be started by root.
pub(super) fn start(name: &str, version: &str, heap: &str) -> Option<Result<Server, String>> {
    let places = [
        name.to_owned(),
        format!("/usr/share/{name}/bin/{name}"),
        format!("/opt/{name}/bin/{name}"),
    ];
    let is_that = |program: &&String| {
        quiet(program, &["--version"]).is_some_and(|said| said.contains(version))
    };
    let program = places.iter().find(is_that)?;
    if quiet("id", &["-u"]).as_deref() == Some("0") {
        println!("{program} refuses to be started by root, so it is not used");
        return None;
    }
    let started = ports::on_free(1, |ports| start_program(&ports[0], program, heap));
    Some(started.map_err(|error| format!("{program}: {error}")))
}

fn start_program(port: &Port, program: &str, heap: &str) -> Result<Server, String> {
    let failed = |error: std::io::Error| error.to_string();
    let data = folder()?;
    let log = Log::new(data.path().join("out.log"));
    let config = configuration(&data, program).map_err(failed)?;
    let options = java::options(heap).join(" ");
    let child = Command::new(program)
        .env("ES_PATH_CONF", &config)
        .env("OPENSEARCH_PATH_CONF", &config)
        .env("ES_JAVA_OPTS", &options)
        .env("OPENSEARCH_JAVA_OPTS", &options)
        .arg(format!(
            "-Epath.data={}",
            data.path().join("data").display()
        ))
        .arg(format!(
            "-Epath.logs={}",
            data.path().join("logs").display()
        ))
        .arg(format!("-Ehttp.port={}", port.number()))
        .arg(format!("-Etransport.port={}", port.beside()))
        .arg("-Ediscovery.type=single-node")
        .stdin(Stdio::null())
        .stdout(log.open()?)
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let url = format!("http://127.0.0.1:{}", port.number());
    let how = format!("the program {program}");
    let mut server = Server::new(url, how, Process::Child(child)).with_log(log);
    server.data = Some(data);
    server.port = Some(port.clone());
    Ok(server)
}

/// A configuration of its own, with the JVM's options of the installed one.
fn configuration(data: &TempDir, program: &str) -> std::io::Result<std::path::PathBuf> {
    let config = data.path().join("config");
    create_dir_all(&config)?;
    let home = Path::new(program).parent().and_then(Path::parent);
    for file in home
        .into_iter()
        .flat_map(|home| read_dir(home.join("config")))
    {
        for file in file.flatten().filter(|file| file.path().is_file()) {
            if file.file_name() != "elasticsearch.yml" && file.file_name() != "opensearch.yml" {
                std::fs::copy(file.path(), config.join(file.file_name()))?;
            }
        }
    }
    Ok(config)
}
