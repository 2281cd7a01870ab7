//! Which store: its URL, with a default, and as it may be shown to the command.

use std::env;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::limits::MAX_LABEL_BYTES;
use lockkeeper::{Label, LockBackend, Locks};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::args::Common;
use crate::failure::{Failure, one_line, tell};
use crate::signals::Signals;

/// The longest file that is read for a URL or a password.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// A store that is connected.
pub(crate) struct Store {
    pub(crate) backend: Arc<dyn LockBackend>,
    /// Its URL for others: without a password, and not relative to where this process is.
    pub(crate) url: String,
    label: Option<Label>,
}

/// The URL of the store, or of the file of this user; it is not relative to where this process is.
pub(crate) fn url(common: &Common) -> Result<String, Failure> {
    let given = match (&common.url, &common.url_file) {
        (Some(_), Some(_)) => return Err(Failure::usage("give one of --url and --url-file")),
        (Some(url), None) => Some(url.clone()),
        (None, Some(file)) => Some(line("--url-file", file)?),
        (None, None) => match variable("LOCKKEEPER_URL")? {
            Some(url) => Some(url),
            None => variable("LOCKKEEPER_URL_FILE")?
                .map(|file| line("LOCKKEEPER_URL_FILE", Path::new(&file)))
                .transpose()?,
        },
    };
    let url = match given {
        Some(url) => absolute(url)?,
        None => default_url()?,
    };
    if let Some(file) = &common.password_file {
        let password = line("--password-file", file)?;
        return match user(&url) {
            Some((_, Some(_))) => Err(Failure::usage(
                "the URL has a password: remove it there, or leave out --password-file",
            )),
            _ => with_password(&url, &password).ok_or_else(|| {
                Failure::usage(
                    "the URL names no user for --password-file: write it as SCHEME://USER@HOST",
                )
            }),
        };
    }
    // What suits several stores is no error where one has no users.
    let password = variable("LOCKKEEPER_PASSWORD")?;
    let ours = password.filter(|_| !matches!(user(&url), Some((_, Some(_)))));
    Ok(ours
        .and_then(|password| with_password(&url, &password))
        .unwrap_or(url))
}

/// A variable of the environment.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Failure> {
    let value = env::var_os(name).map(OsString::into_string).transpose();
    value.map_err(|_| Failure::usage(format!("{name} is not UTF-8")))
}

/// The only line of a file.
pub(crate) fn line(place: &str, file: &Path) -> Result<String, Failure> {
    let bad = |why: &str| Failure::usage(format!("{place} {}: {why}", file.display()));
    let mut text = String::new();
    File::open(file)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| bad(&format!("it cannot be read: {error}")))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || line.contains('\n') || text.len() as u64 > MAX_FILE_BYTES {
        return Err(bad("it has to contain one line"));
    }
    Ok(line.to_owned())
}

/// Connects to the store of the URL, or to the file of this user.
pub(crate) async fn open(common: &Common) -> Result<Store, Failure> {
    let url = self::url(common)?;
    let backend = lockkeeper::backend(&url).await?;
    warn(common);
    Ok(Store {
        backend,
        url: without_password(&url),
        label: common.label.clone(),
    })
}

/// As [`open`], until a signal ends it: a host that swallows what it is sent takes some seconds.
pub(crate) async fn open_unless(signals: &mut Signals, common: &Common) -> Result<Store, Failure> {
    tokio::select! {
        biased;
        signal = signals.ending() => Err(Failure::signal(signal.as_raw())),
        store = open(common) => store,
    }
}

/// Says that a password of the arguments can be read by others.
pub(crate) fn warn(common: &Common) {
    let shown = |url: &&String| without_password(url) != **url;
    if common.url.as_ref().filter(shown).is_some() {
        tell(
            "everybody on this machine can read the password of --url in the list of processes: use LOCKKEEPER_URL, --url-file or \
             --password-file",
        );
    }
}

impl Store {
    /// A client, labelled for people: as asked, or host, process id, and what it runs.
    pub(crate) fn locks(&self, ttl: Duration, program: &str) -> Result<Locks, Failure> {
        let label = self.label.clone().unwrap_or_else(|| label(program));
        Ok(Locks::builder(Arc::clone(&self.backend))
            .ttl(ttl)
            .label(label)
            .when_late(|late| {
                let by = late.by.as_secs_f64();
                tell(&format!(
                    "a renewal came {by:.1} s late: this machine is busy, or the process was stopped"
                ));
            })
            .build()?)
    }

    /// Who is noted for what an operator does.
    pub(crate) fn author(&self) -> Label {
        self.label.clone().unwrap_or_else(Label::of_this_process)
    }
}

fn label(program: &str) -> Label {
    let host = host();
    let mut text = one_line(&format!("{host} {} {program}", std::process::id()));
    text.truncate(text.floor_char_boundary(MAX_LABEL_BYTES));
    Label::parse(text).expect("one short line is a label")
}

#[cfg(unix)]
fn host() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    env::var("COMPUTERNAME").unwrap_or_default()
}

/// A file in the user's state directory, which is made if it is not there.
fn default_url() -> Result<String, Failure> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = match cfg!(windows) {
        true => absolute("LOCALAPPDATA"),
        false => absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state"))),
    };
    let state = state.ok_or_else(|| {
        let variable = if cfg!(windows) {
            "LOCALAPPDATA"
        } else {
            "HOME"
        };
        Failure::usage(format!(
            "no state directory, {variable} is not set: give --url sqlite:PATH"
        ))
    })?;
    let directory = state.join("lockkeeper");
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&directory).map_err(|error| {
        let directory = directory.display();
        Failure::usage(format!(
            "{directory} cannot be made: {error}; give --url sqlite:PATH"
        ))
    })?;
    match directory.join("locks.db").to_str() {
        Some(path) if !path.contains('?') => Ok(format!("sqlite:{path}")),
        _ => Err(Failure::usage(
            "the state directory has a name that no URL can say: give --url sqlite:PATH",
        )),
    }
}

/// The command may go to another directory, and must find the same file from there.
fn absolute(url: String) -> Result<String, Failure> {
    let Some(rest) = url.strip_prefix("sqlite:") else {
        return Ok(url);
    };
    let (path, options) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    // What is no path is the store's to refuse.
    if matches!(path, "" | ":memory:") || Path::new(path).is_absolute() {
        return Ok(url);
    }
    let here = env::current_dir()
        .map_err(|error| Failure::usage(format!("no current directory: {error}")))?;
    match here.join(path).to_str() {
        Some(path) if path.split('?').count() == 1 => Ok(format!("sqlite:{path}{options}")),
        _ => Err(Failure::usage(
            "the current directory has a name that no URL can say: give --url sqlite:PATH with an absolute path",
        )),
    }
}

/// The user of a URL that names hosts, and the password; the user may be empty.
fn user(url: &str) -> Option<(&str, Option<&str>)> {
    let (_, rest) = url
        .split_once("://")
        .filter(|(scheme, _)| *scheme != "sqlite")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let (user, _) = authority.rsplit_once('@').unwrap_or(("", authority));
    match user.split_once(':') {
        Some((user, password)) => Some((user, Some(password))),
        None => Some((user, None)),
    }
}

/// The URL with the password of its user. A Redis may have one without a user; elsewhere it needs one.
fn with_password(url: &str, password: &str) -> Option<String> {
    let (user, _) = user(url)?;
    let is_redis = ["redis", "valkey"].iter().any(|it| url.starts_with(it));
    if user.is_empty() && !is_redis {
        return None;
    }
    let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
    let (scheme, rest) = url.split_once("://")?;
    let hosts = rest.strip_prefix(user).unwrap_or(rest);
    let hosts = hosts.strip_prefix('@').unwrap_or(hosts);
    Some(format!("{scheme}://{user}:{password}@{hosts}"))
}

/// The URL without the password of `user:password@`, and without options that are named like a secret.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    if scheme == "sqlite" {
        return url.to_owned();
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let authority = match authority.rsplit_once('@') {
        None => authority.to_owned(),
        Some((user, hosts)) => match user.split(':').next() {
            None | Some("") => hosts.to_owned(),
            Some(user) => format!("{user}@{hosts}"),
        },
    };
    let (path, fragment) = path.split_at(path.find('#').unwrap_or(path.len()));
    let (path, options) = path.split_once('?').unwrap_or((path, ""));
    let told: Vec<&str> = options
        .split('&')
        .filter(|option| !option.is_empty() && !is_secret(option))
        .collect();
    let mark = if told.is_empty() { "" } else { "?" };
    format!(
        "{scheme}://{authority}{path}{mark}{}{fragment}",
        told.join("&")
    )
}

fn is_secret(option: &str) -> bool {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    let name = name.to_lowercase();
    let secret = ["pass", "secret", "token", "key", "credential"];
    // A proxy's URL may have a user and a password.
    let user = name == "proxy" && ["@", "%40"].iter().any(|at| value.contains(at));
    // The file of a client's key is named so.
    user || (name != "key" && secret.iter().any(|word| name.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_stay_here() {
        for (url, shown) in [
            ("memory:", "memory:"),
            (
                "sqlite:/a:b@c?synchronous=full",
                "sqlite:/a:b@c?synchronous=full",
            ),
            ("sqlite:///x:y@z", "sqlite:///x:y@z"),
            ("redis://h:1/0", "redis://h:1/0"),
            ("redis://:pw@h:1/0", "redis://h:1/0"),
            ("redis://me:p@ss:w@h:1,g:2", "redis://me@h:1,g:2"),
            (
                "postgres://me@h/d?a=1&sslPassword=s&b=2#f",
                "postgres://me@h/d?a=1&b=2#f",
            ),
            ("postgres://h?password=s", "postgres://h"),
            ("rediss://h?cert=c&key=k", "rediss://h?cert=c&key=k"),
            ("elasticsearch://h/?api_key=s", "elasticsearch://h/"),
            (
                "elasticsearch://h/x/?bearer_token=s",
                "elasticsearch://h/x/",
            ),
            (
                "elasticsearch://h?proxy=http://p:1&aws_region=r",
                "elasticsearch://h?proxy=http://p:1&aws_region=r",
            ),
            (
                "elasticsearch://h?proxy=http://me:s%40p:1&ca=/f",
                "elasticsearch://h?ca=/f",
            ),
            ("elasticsearch://h?proxy=http://me:s@p", "elasticsearch://h"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn passwords_are_put_where_they_belong() {
        for (url, with) in [
            ("redis://h:1/0", Some("redis://:a%2F%40b@h:1/0")),
            ("rediss://me@h,g", Some("rediss://me:a%2F%40b@h,g")),
            (
                "postgres://me@h/d?a=1",
                Some("postgres://me:a%2F%40b@h/d?a=1"),
            ),
            ("valkey://h", Some("valkey://:a%2F%40b@h")),
            ("postgres://h/d", None),
            ("elasticsearch://h?api_key=x", None),
            ("sqlite:///x", None),
            ("sqlite:x", None),
            ("memory:", None),
        ] {
            assert_eq!(with_password(url, "a/@b").as_deref(), with, "{url}");
            if let Some(with) = with {
                assert_eq!(without_password(with), url);
            }
        }
        assert_eq!(user("redis://me:x@h"), Some(("me", Some("x"))));
        assert_eq!(user("redis://h"), Some(("", None)));
    }

    #[test]
    fn files_are_named_from_the_root() {
        let here = env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        let named = |url: &str| absolute(url.to_owned()).unwrap();
        assert_eq!(named("sqlite:/a?b=c"), "sqlite:/a?b=c");
        assert_eq!(named("sqlite:a?b=c"), format!("sqlite:{here}/a?b=c"));
        assert_eq!(named("memory:"), "memory:");
    }

    #[test]
    fn labels_are_short_lines() {
        let text = label(&format!("a\tb{}", "é".repeat(300)));
        assert!(text.as_str().contains("a\\tb"));
        assert!(text.as_str().len() <= MAX_LABEL_BYTES);
    }
}
