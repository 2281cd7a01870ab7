//! Which store: its URL, with a default, and as it may be shown to the command.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::limits::MAX_LABEL_BYTES;
use lockkeeper::{Label, LockBackend, Locks};

use crate::failure::{Failure, one_line};

/// A store that is connected.
pub(crate) struct Store {
    pub(crate) backend: Arc<dyn LockBackend>,
    /// Its URL for others: without a password, and not relative to where this process is.
    pub(crate) url: String,
}

/// The URL of the store, or of the file of this user; it is not relative to where this process is.
pub(crate) fn url(url: Option<&str>) -> Result<String, Failure> {
    let url = match url {
        Some(url) => url.to_owned(),
        None => default_url()?,
    };
    absolute(url)
}

/// Connects to the store of the URL, or to the file of this user.
pub(crate) async fn open(url: Option<&str>) -> Result<Store, Failure> {
    let url = self::url(url)?;
    let backend = lockkeeper::backend(&url).await?;
    Ok(Store {
        backend,
        url: without_password(&url),
    })
}

impl Store {
    /// A client, labelled for people: host, process id, and what it runs.
    pub(crate) fn locks(&self, ttl: Duration, program: &str) -> Result<Locks, Failure> {
        let label = label(program);
        Ok(Locks::builder(Arc::clone(&self.backend))
            .ttl(ttl)
            .label(label)
            .build()?)
    }
}

fn label(program: &str) -> Label {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let mut text = one_line(&format!("{host} {} {program}", std::process::id()));
    text.truncate(text.floor_char_boundary(MAX_LABEL_BYTES));
    Label::parse(text).expect("one short line is a label")
}

/// A file in the user's state directory, which is made if it is not there.
fn default_url() -> Result<String, Failure> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .ok_or_else(|| {
            Failure::usage("no state directory, HOME is not set: give --url sqlite:PATH")
        })?;
    let directory = state.join("lockkeeper");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(|error| {
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
    user || secret.iter().any(|word| name.contains(word))
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
