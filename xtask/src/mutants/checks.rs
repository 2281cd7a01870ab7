//! Whether a server takes a text: what it cannot read is no mutant.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A whole text of what is sent to the server, in its place among the others of the store.
pub(super) type Sources<'a> = &'a dyn Fn(&str) -> String;

const PATIENCE: Duration = Duration::from_secs(20);

/// Redis: whether a script with that file in it can be loaded.
pub(super) fn redis(url: &str, file: &str, source: Sources<'_>) -> Result<bool, String> {
    let stem = file.trim_end_matches(".lua");
    let script = match stem {
        "short" | "acquire_free" => {
            let files = ["short", "acquire_free", "common", "line", "acquire"];
            files.map(source).concat()
        }
        "acquire_many" => source("short") + &source("acquire_many"),
        "release_many" => source("release_many"),
        "release_alone" => ["release_alone", "common", "release"].map(source).concat(),
        "common" => source("common") + &source("renew"),
        "fenced_set" => source("fenced_set"),
        "record" => ["common", "record", "record_of_key"].map(source).concat(),
        "record_of_key" | "records" | "records_of_session" => {
            source("common") + &source("record") + &source(stem)
        }
        _ => source("common") + &source(stem),
    };
    let address = url.split("://").nth(1).unwrap_or(url);
    let broken = |error: std::io::Error| format!("{address}: {error}");
    let mut stream = TcpStream::connect(address).map_err(broken)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
    let mut command = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n", script.len());
    command += &script;
    command += "\r\n";
    stream.write_all(command.as_bytes()).map_err(broken)?;
    let mut answer = String::new();
    let read = BufReader::new(stream).read_line(&mut answer);
    read.map_err(broken)?;
    match answer.as_bytes().first() {
        Some(b'$') => Ok(true),
        Some(b'-') if answer.contains("ompiling script") => Ok(false),
        _ => Err(format!("{address} answers {answer:?} to SCRIPT LOAD")),
    }
}

/// PostgreSQL: whether a namespace can be made of the files.
pub(super) fn postgres(url: &str, source: Sources<'_>) -> Result<bool, String> {
    let mut text = "SET client_min_messages = error; BEGIN; CREATE SCHEMA {ns};\n".to_owned();
    for file in [
        "schema", "common", "wakeups", "sessions", "claims", "inspect", "revoke", "grant",
    ] {
        text += &source(file);
        text.push('\n');
    }
    text += "ROLLBACK;";
    let settings = "SET search_path = pg_catalog, {ns}, pg_temp";
    let text = text
        .replace("{settings}", settings)
        .replace("{fewer_settings}", settings)
        .replace("{ns}", "\"mutant\"")
        .replace("{name}", "mutant")
        .replace("{role}", "CURRENT_USER");
    run(
        Command::new("psql").args(["-qXv", "ON_ERROR_STOP=1", url]),
        &text,
        3,
    )
}

/// SQLite: whether the statement can be prepared where the tables are.
pub(super) fn sqlite(file: &str, source: Sources<'_>) -> Result<bool, String> {
    let mut text = source("schema");
    if file != "schema.sql" {
        let _ = write!(text, "\nEXPLAIN {}", source(file.trim_end_matches(".sql")));
    }
    run(
        Command::new("sqlite3").args(["-bail", ":memory:"]),
        &text,
        1,
    )
}

/// Elasticsearch: whether the script can be stored.
pub(super) fn elasticsearch(url: &str, file: &str, source: Sources<'_>) -> Result<bool, String> {
    let stem = file.trim_end_matches(".painless");
    let text = source(stem);
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    let script = serde_json::json!({
        "script": { "lang": "painless", "source": lines.join(" ").trim() }
    });
    // All of them run in updates.
    let (status, answer) = put(url, "/_scripts/mutant/update", &script.to_string())?;
    match status {
        200 => Ok(true),
        400 if answer.contains("compile error") || answer.contains("script_exception") => Ok(false),
        _ => Err(format!("{url} answers {status}: {answer}")),
    }
}

/// Feeds a program; `refused` is how it ends where the text is refused.
fn run(command: &mut Command, text: &str, refused: i32) -> Result<bool, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("{program} cannot be run: {error}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // It may stop reading at the first error.
        let _ = input.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    match output.status.code() {
        Some(0) => Ok(true),
        Some(code) if code == refused => Ok(false),
        _ => Err(format!(
            "{program}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Sends a document, and says the status and the answer.
fn put(url: &str, path: &str, body: &str) -> Result<(u16, String), String> {
    let address = url.split("://").nth(1).unwrap_or(url).trim_end_matches('/');
    let broken = |error: std::io::Error| format!("{address}: {error}");
    let mut stream = TcpStream::connect(address).map_err(broken)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
    let request = format!(
        "PUT {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).map_err(broken)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(broken)?;
    let status = answer.split(' ').nth(1).and_then(|it| it.parse().ok());
    Ok((status.ok_or("no HTTP answer")?, answer))
}

/// Whether a program that a check needs is there.
pub(super) fn needs(program: &str, package: &str) -> Result<(), String> {
    let found = Command::new(program).arg("--version").output();
    match found {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(format!("{program} is missing: install {package}")),
    }
}
