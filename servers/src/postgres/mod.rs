//! PostgreSQL, and a PgBouncer before it.

mod versions;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

pub use self::versions::{POSTGRES_14, POSTGRES_16, POSTGRES_17, POSTGRES_18, Version};
use super::process::{Log, Process};
use super::{Port, Server, apt, docker, ports, quiet, run};

/// The image that replaces the program if only Docker is available.
const IMAGE: &str = "postgres:15";
/// Where systems keep the programs of each version.
const PROGRAMS: &str = "/usr/lib/postgresql";
const PGBOUNCER: &str = "/usr/sbin/pgbouncer";
/// The owner of a server's data if root, which PostgreSQL refuses, starts it.
const ACCOUNT: &str = "postgres";
/// The superuser's password. It contains characters that a URL must encode.
const PASSWORD: &str = "p@ss/word";
const ENCODED: &str = "p%40ss%2Fword";
/// What the server stores of that password. It names one round of hashing in place of the 4,096 of the default: those take
/// tests, whose code is not optimised, a tenth of a second for each connection.
const VERIFIER: &str = "SCRAM-SHA-256$1:bG9ja2tlZXBlci10ZXN0cw==$\
    wDOgs4Qh1+lnR0nzL79oXsthp1jE0LCFog8Tc/lpYi4=:WFxj6oVH7LqxvqJJFiYDqZImT4HqTGD8N72CvppGr4o=";
/// The longest time from the start of a server to its first answer.
const START: Duration = Duration::from_secs(60);

/// Starts a server: from the installed program, else in a container, else from Debian's package. Its URL contains the
/// name and the password of a superuser.
///
/// # Errors
///
/// None of these is possible here; the text says what is missing.
pub fn start() -> Result<Server, String> {
    let server = if programs().is_some() {
        node(&[])?
    } else {
        let password = format!("POSTGRES_PASSWORD={PASSWORD}");
        match docker::start(IMAGE, 5432, &[&password]) {
            Some(server) => {
                let mut server = server?;
                let port = server.url.rsplit(':').next().unwrap_or_default();
                server.url = url(port);
                server.await_answer(START, || answers(&server.url))?;
                server
            }
            None => node(&[])?,
        }
    };
    println!("postgres, from {}", server.how());
    Ok(server)
}

/// Starts the program with these additional settings, each as in `postgresql.conf`, on a port of its own, with its data
/// in a temporary folder. Installs Debian's package if the program is missing and that is permitted.
///
/// # Errors
///
/// The program is missing, or does not start; the text says why.
pub fn node(settings: &[(&str, &str)]) -> Result<Server, String> {
    let data = data()?;
    let mut server = run_in(data.path(), settings)?;
    server.data = Some(data);
    Ok(server)
}

/// A temporary folder with the data of a new server.
///
/// # Errors
///
/// The program is missing, or fails; the text says why.
pub fn data() -> Result<TempDir, String> {
    data_by(&installed()?)
}

fn data_by(programs: &Path) -> Result<TempDir, String> {
    let (data, folder) = owned_folder()?;
    let password = data.path().join("password");
    fs::write(&password, VERIFIER).map_err(|error| format!("{}: {error}", password.display()))?;
    give(&password)?;
    run(as_account(&programs.join("initdb"))
        .args(["--username=postgres", "--auth=scram-sha-256"])
        .args(["--encoding=UTF8", "--locale=C", "--no-sync"])
        .arg(format!("--pwfile={}", password.display()))
        .arg(format!("--pgdata={}", folder.display()))
        .stdout(Stdio::null()))?;
    Ok(data)
}

/// A temporary folder with a copy of the data of the server with this URL, for a standby of it.
///
/// # Errors
///
/// The program is missing, or fails; the text says why.
pub fn copy_of(url: &str) -> Result<TempDir, String> {
    let programs = installed()?;
    let (data, folder) = owned_folder()?;
    let url = url.replacen("http", "postgres", 1);
    run(as_account(&programs.join("pg_basebackup"))
        .args(["--write-recovery-conf", "--no-sync", "--checkpoint=fast"])
        .arg(format!("--dbname={url}"))
        .arg(format!("--pgdata={}", folder.display())))?;
    Ok(data)
}

/// A temporary folder with a copy of these data, as a disk has them after its server has died.
///
/// # Errors
///
/// The program fails; the text says why.
pub fn snapshot_of(data: &Path) -> Result<TempDir, String> {
    let (copy, folder) = owned_folder()?;
    run(Command::new("cp")
        .arg("-a")
        .arg(data.join("data"))
        .arg(&folder))?;
    // What the server that is gone has left is not another one's.
    let _ = fs::remove_file(folder.join("postmaster.pid"));
    Ok(copy)
}

/// A temporary folder with the result of `pg_upgrade` on these data. This stops their server.
///
/// # Errors
///
/// A program is missing, or fails; the text says why.
pub fn upgraded(old: &Path) -> Result<TempDir, String> {
    let programs = installed()?;
    let new = data()?;
    run(as_account(&programs.join("pg_ctl"))
        .args(["stop", "--mode=fast", "--wait", "--silent"])
        .arg("-D")
        .arg(old.join("data")))?;
    run(as_account(&programs.join("pg_upgrade"))
        .arg("--username=postgres")
        .arg("--no-sync")
        .arg("--old-bindir")
        .arg(&programs)
        .arg("--old-datadir")
        .arg(old.join("data"))
        .arg("--new-datadir")
        .arg(new.path().join("data"))
        .arg("--socketdir")
        .arg(new.path())
        .current_dir(new.path())
        .env("PGPASSWORD", PASSWORD)
        .stdout(Stdio::null()))?;
    Ok(new)
}

/// Makes the standby of these data a primary.
///
/// # Errors
///
/// The program is missing, or fails; the text says why.
#[cfg(target_os = "linux")]
pub(crate) fn promote(data: &Path) -> Result<(), String> {
    run(as_account(&installed()?.join("pg_ctl"))
        .args(["promote", "--wait", "--silent", "-D"])
        .arg(data.join("data")))
}

/// How many standbys the server with this URL streams to.
///
/// # Errors
///
/// The program is missing, or fails; the text says why.
#[cfg(target_os = "linux")]
pub(crate) fn standbys(url: &str) -> Result<u32, String> {
    let mut command = as_account(&installed()?.join("psql"));
    let said = command
        .args(["--no-psqlrc", "--tuples-only", "--no-align"])
        .arg(format!("--dbname={}", url.replacen("http", "postgres", 1)))
        .arg("--command=SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
        .output()
        .map_err(|error| format!("psql: {error}"))?;
    let [text, error] = [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text));
    text.trim()
        .parse()
        .map_err(|_| format!("psql: {text}{error}"))
}

/// The output of `pg_dump` for the server with this URL.
///
/// # Errors
///
/// The program is missing, or fails; the text says why.
pub fn dump_of(url: &str) -> Result<String, String> {
    let (folder, _) = owned_folder()?;
    let file = folder.path().join("dump.sql");
    run(as_account(&installed()?.join("pg_dump"))
        .arg(format!("--dbname={}", url.replacen("http", "postgres", 1)))
        .arg(format!("--file={}", file.display())))?;
    fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Applies a dump to the server with this URL.
///
/// # Errors
///
/// The program is missing, or fails; the text says why.
pub fn restore(url: &str, dump: &str) -> Result<(), String> {
    let (folder, _) = owned_folder()?;
    let file = folder.path().join("dump.sql");
    fs::write(&file, dump).map_err(|error| format!("{}: {error}", file.display()))?;
    give(&file)?;
    run(as_account(&installed()?.join("psql"))
        .args(["--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction"])
        .arg(format!("--dbname={}", url.replacen("http", "postgres", 1)))
        .arg(format!("--file={}", file.display()))
        .stdout(Stdio::null()))
}

/// The account that it is given to comes with the programs.
fn owned_folder() -> Result<(TempDir, PathBuf), String> {
    let data = super::folder()?;
    give(data.path())?;
    let folder = data.path().join("data");
    Ok((data, folder))
}

/// Starts the program on [data] that stays when it ends, on a port of its own.
///
/// # Errors
///
/// The program is missing, or does not start; the text says why.
pub fn run_in(data: &Path, settings: &[(&str, &str)]) -> Result<Server, String> {
    ports::on_free(1, |ports| run_at(&ports[0], data, settings))
}

/// As [`run_in`], on this port, which a former server had.
///
/// # Errors
///
/// The program is missing, or does not start, or the port is taken; the text says why.
pub fn run_at(port: &Port, data: &Path, settings: &[(&str, &str)]) -> Result<Server, String> {
    run_under(port, data, settings, &[])
}

/// As [`run_at`], with this environment besides.
pub(crate) fn run_under(
    port: &Port,
    data: &Path,
    settings: &[(&str, &str)],
    environment: &[(&str, String)],
) -> Result<Server, String> {
    run_by(&installed()?, port, data, settings, environment)
}

fn run_by(
    programs: &Path,
    port: &Port,
    data: &Path,
    settings: &[(&str, &str)],
    environment: &[(&str, String)],
) -> Result<Server, String> {
    let number = port.number().to_string();
    let log = Log::new(data.join("postgres.log"));
    let mut command = as_account(&programs.join("postgres"));
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command
        .arg("-D")
        .arg(data.join("data"))
        .args(["-p", &number, "-c", "listen_addresses=127.0.0.1"])
        .args(["-c", "unix_socket_directories="])
        .args(["-c", "max_connections=400", "-c", "shared_buffers=64MB"])
        .args(
            settings
                .iter()
                .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]),
        );
    let process = Process::watched(&command, "QUIT", &log)?;
    let how = format!("the programs in {}", programs.display());
    let mut server = Server::new(url(&number), how, process).with_log(log);
    server.port = Some(port.clone());
    server.await_answer(START, || answers(&server.url))?;
    Ok(server)
}

/// Starts a PgBouncer in transaction mode before the server with this URL, for the superuser and these other users with
/// what the server stores of their passwords. Installs Debian's package if the program is missing and that is permitted.
///
/// # Errors
///
/// The program is missing, or does not start; the text says why.
pub fn pgbouncer(url: &str, users: &[(&str, &str)]) -> Result<Server, String> {
    if !Path::new(PGBOUNCER).exists() {
        apt::update();
        apt::install("pgbouncer").map_err(|error| format!("pgbouncer is missing ({error})"))?;
    }
    let address = address(url).ok_or("the URL has no port")?;
    let (host, port) = address.split_once(':').ok_or("the URL has no port")?;
    ports::on_free(1, |ports| pgbouncer_at(&ports[0], host, port, users))
}

fn pgbouncer_at(
    own: &Port,
    host: &str,
    port: &str,
    users: &[(&str, &str)],
) -> Result<Server, String> {
    let data = super::folder()?;
    let number = own.number().to_string();
    let mut list = format!("\"postgres\" \"{VERIFIER}\"\n");
    for (user, password) in users {
        list += &format!("\"{user}\" \"{password}\"\n");
    }
    let at = |name: &str| data.path().join(name);
    // Without a file of its own it writes its log to where its errors go.
    let config = format!(
        "[databases]\n* = host={host} port={port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {number}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {}\n\
         pool_mode = transaction\ndefault_pool_size = 20\nserver_round_robin = 1\nmax_client_conn = 1000\n",
        at("users.txt").display(),
    );
    let written = fs::write(at("users.txt"), list).and(fs::write(at("pgbouncer.ini"), config));
    written.map_err(|error| format!("{}: {error}", data.path().display()))?;
    for path in [data.path(), &at("users.txt"), &at("pgbouncer.ini")] {
        give(path)?;
    }
    let log = Log::new(at("pgbouncer.log"));
    let mut command = as_account(Path::new(PGBOUNCER));
    command.arg(at("pgbouncer.ini"));
    let process = Process::watched(&command, "TERM", &log)?;
    let how = format!("the program {PGBOUNCER}");
    let mut server = Server::new(url(&number), how, process).with_log(log);
    server.data = Some(data);
    server.port = Some(own.clone());
    server.await_answer(START, || answers(&server.url))?;
    Ok(server)
}

fn url(port: &str) -> String {
    format!("http://postgres:{ENCODED}@127.0.0.1:{port}/postgres")
}

/// `HOST:PORT` of a URL.
fn address(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?']).next()?;
    Some(authority.rsplit('@').next().unwrap_or(authority))
}

/// The programs of the newest version on this machine.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(PROGRAMS).ok()?.flatten();
    let version = |name: &str| name.parse::<u32>().ok();
    versions
        .filter_map(|entry| Some((version(entry.file_name().to_str()?)?, entry.path())))
        .filter(|(_, path)| path.join("bin/initdb").exists())
        .max()
        .map(|(_, path)| path.join("bin"))
}

fn installed() -> Result<PathBuf, String> {
    if let Some(programs) = programs() {
        return Ok(programs);
    }
    let missing =
        "PostgreSQL is missing: install it, or set LOCKKEEPER_TEST_POSTGRES to the URL of one";
    apt::update();
    // The package is not to make and start a server of its own.
    apt::install("postgresql-common").map_err(|error| format!("{missing} ({error})"))?;
    let config = Path::new("/etc/postgresql-common/createcluster.conf");
    let text = fs::read_to_string(config).unwrap_or_default();
    if !text.contains("\ncreate_main_cluster = false") {
        fs::write(config, text + "\ncreate_main_cluster = false\n")
            .map_err(|error| format!("{missing} ({}: {error})", config.display()))?;
    }
    apt::install("postgresql").map_err(|error| format!("{missing} ({error})"))?;
    programs().ok_or_else(|| missing.to_owned())
}

/// A command that runs the program as the account that may run it.
fn as_account(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", ACCOUNT, "--regid", ACCOUNT, "--clear-groups"])
        .arg(program)
        .current_dir("/");
    command
}

fn is_root() -> bool {
    quiet("id", &["-u"]).as_deref() == Some("0")
}

/// Gives a file or folder to the account that runs the program.
///
/// # Errors
///
/// It cannot be given; the text says why.
pub fn give(path: &Path) -> Result<(), String> {
    if !is_root() {
        return Ok(());
    }
    run(Command::new("chown").arg(format!("{ACCOUNT}:")).arg(path))
}

/// Whether the server asks who we are.
fn answers(url: &str) -> Result<(), String> {
    match ask(address(url).ok_or("the URL has no port")?) {
        Ok(b'R') => Ok(()),
        Ok(said) => Err(format!("it says {:?}", char::from(said))),
        Err(error) => Err(error.to_string()),
    }
}

/// Begins to connect, and returns the kind of the first message that comes back.
fn ask(address: &str) -> std::io::Result<u8> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let words = b"user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(words.len() + 8).unwrap_or_default();
    let mut message = length.to_be_bytes().to_vec();
    message.extend(196_608_u32.to_be_bytes());
    message.extend(words);
    stream.write_all(&message)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    Ok(kind[0])
}
