//! MariaDB.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::process::{Log, Process};
use super::{Port, Server, apt, ports, quiet};

/// Debian puts the server and its tables here.
const PROGRAM: &str = "/usr/sbin/mariadbd";
const TABLES: [&str; 2] = [
    "/usr/share/mysql/mysql_system_tables.sql",
    "/usr/share/mysql/mysql_system_tables_data.sql",
];
/// The longest time from the start of a server to its first answer.
const START: Duration = Duration::from_secs(60);

/// Starts a server on a port of its own, with its data in a temporary folder. Its URL contains the name and the
/// password of an account with all rights. Installs Debian's package if the program is missing and that is permitted.
///
/// # Errors
///
/// The program is missing, or does not start; the text says why.
pub fn start() -> Result<Server, String> {
    if !Path::new(PROGRAM).exists() {
        apt::update();
        // Of the server no more than its program: nothing is set up, and nothing starts.
        apt::install("mariadb-server-core").map_err(|error| {
            format!("MariaDB is missing: install it, or set LOCKKEEPER_TEST_MARIADB to the URL of one ({error})")
        })?;
    }
    let server = ports::on_free(1, |ports| start_at(&ports[0]))?;
    println!("mariadb, from {}", server.how());
    Ok(server)
}

fn start_at(port: &Port) -> Result<Server, String> {
    let folder = super::folder()?;
    let data = folder.path().join("data");
    fs::create_dir(&data).map_err(|error| format!("{}: {error}", data.display()))?;
    set_up(&data)?;
    let number = port.number().to_string();
    let log = Log::new(folder.path().join("mariadb.log"));
    let mut command = program(&data);
    command
        .arg(format!("--port={number}"))
        .arg(format!(
            "--socket={}",
            folder.path().join("socket").display()
        ))
        .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
        .args(["--max-connections=2000", "--table-open-cache=4000"]);
    let process = Process::watched(&command, "TERM", &log)?;
    let url = format!("http://app:secret@127.0.0.1:{number}");
    let mut server = Server::new(url, format!("the program {PROGRAM}"), process).with_log(log);
    server.data = Some(folder);
    server.port = Some(port.clone());
    server.await_answer(START, || answers(port.number()))?;
    Ok(server)
}

fn program(data: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .arg("--no-defaults")
        .arg(format!("--datadir={}", data.display()));
    if quiet("id", &["-u"]).as_deref() == Some("0") {
        command.arg("--user=root");
    }
    command
}

/// Makes the tables that every server has, and the account.
fn set_up(data: &Path) -> Result<(), String> {
    let mut text = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n".to_owned();
    for file in TABLES {
        text += &fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    }
    text += "FLUSH PRIVILEGES;\nCREATE USER 'app'@'127.0.0.1' IDENTIFIED BY 'secret';\n\
             GRANT ALL ON *.* TO 'app'@'127.0.0.1';\n";
    let failed = |error: std::io::Error| format!("{PROGRAM}: {error}");
    let mut child = program(data)
        .args(["--bootstrap", "--max-allowed-packet=8M"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // It says little before it has read everything.
    let mut input = child.stdin.take().ok_or("it has no input")?;
    let written = input.write_all(text.as_bytes());
    drop(input);
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return written.map_err(failed);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{PROGRAM} makes no tables: {}\n{said}",
        output.status
    ))
}

/// Whether the server greets who connects.
fn answers(port: u16) -> Result<(), String> {
    let greeting = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        std::io::Result::Ok(head[4])
    };
    match greeting() {
        // The version of the protocol; an error begins with another byte.
        Ok(10) => Ok(()),
        Ok(said) => Err(format!("it says {said}")),
        Err(error) => Err(error.to_string()),
    }
}
