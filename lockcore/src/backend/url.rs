//! The URL of a store: one parser, and options taken by name and type.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::namespace::{Namespace, NamespaceError};

/// The longest time that an option takes.
const MAX_MS: u64 = 600_000;

/// The form of a store's URLs.
#[derive(Debug, Clone, Copy)]
pub struct Grammar {
    /// The text before `://`.
    pub schemes: &'static [&'static str],
    /// An example.
    pub example: &'static str,
    /// How a user and a password are written. The text of an error about them.
    pub user: &'static str,
    /// What the path is. The text of an error about the path or a fragment.
    pub path: &'static str,
}

/// A URL of a store, `SCHEME://[USER:PASSWORD@]HOST[:PORT][,…][/PATH][?OPTION=VALUE&…]`. User, password and values are
/// percent-encoded. `Debug` shows no secret.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use lockcore::backend::{Grammar, StoreUrl};
///
/// const GRAMMAR: Grammar = Grammar {
///     schemes: &["mystore", "mystores"],
///     example: "mystore://localhost",
///     user: "who we are is written as USER:PASSWORD@ before the hosts",
///     path: "the URL has no path",
/// };
/// let mut url = StoreUrl::parse("mystore://me:p%40ss@a,b:7/?timeout_ms=250", GRAMMAR)?;
/// assert_eq!(url.user, Some(("me".to_owned(), "p@ss".to_owned())));
/// assert_eq!(url.hosts(5)?[0].to_string(), "a:5");
/// let timeout = url.options.millis("timeout_ms", 1)?;
/// url.options.end()?;
/// assert_eq!(timeout, Some(Duration::from_millis(250)));
/// # Ok::<(), lockcore::backend::UrlError>(())
/// ```
pub struct StoreUrl<'a> {
    /// The text before `://`.
    pub scheme: &'a str,
    /// User and password.
    pub user: Option<(String, String)>,
    /// The path without its leading `/`; not decoded.
    pub path: &'a str,
    /// The options after the `?`.
    pub options: Options,
    hosts: &'a str,
}

impl<'a> StoreUrl<'a> {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// The text is no URL of that grammar.
    pub fn parse(url: &'a str, grammar: Grammar) -> Result<Self, UrlError> {
        let (scheme, rest) = split(url, grammar)?;
        let (rest, options) = match rest.split_once('?') {
            Some((rest, options)) => (rest, Some(options)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let user = match user {
            Some(user) => {
                let (user, password) = user.split_once(':').ok_or(UrlError::User(grammar.user))?;
                Some((decoded(user)?, decoded(password)?))
            }
            None => None,
        };
        Ok(Self {
            scheme,
            user,
            path: path.strip_prefix('/').unwrap_or(path),
            options: Options::parse(options)?,
            hosts,
        })
    }

    /// The hosts. `port` is the port of those that name none.
    ///
    /// # Errors
    ///
    /// A host is invalid.
    pub fn hosts(&self, port: u16) -> Result<Vec<Host>, UrlError> {
        let hosts = self.hosts.split(',');
        hosts.map(|host| Host::parse(host, port)).collect()
    }
}

/// The scheme, and the text after `://`.
///
/// # Errors
///
/// Another scheme, a fragment, or an `@` behind the hosts: then the intended user or password contains a `/`, `?` or `#`, and
/// nobody knows where it ends.
pub fn split(url: &str, grammar: Grammar) -> Result<(&str, &str), UrlError> {
    let wrong = || UrlError::Scheme {
        schemes: grammar.schemes,
        example: grammar.example,
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    if !grammar.schemes.contains(&scheme) {
        return Err(wrong());
    }
    let behind = rest.split_once(['/', '?', '#']).map_or("", |(_, it)| it);
    if behind.contains('@') {
        return Err(UrlError::UserCutShort);
    }
    if rest.contains('#') {
        return Err(UrlError::Path(grammar.path));
    }
    Ok((scheme, rest))
}

impl fmt::Debug for StoreUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreUrl")
            .field("scheme", &self.scheme)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// A host, without brackets, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// A name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Host {
    fn parse(text: &str, port: u16) -> Result<Self, UrlError> {
        // The colons in the brackets of an IPv6 address are its own.
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => {
                let port = number(port).and_then(|port| u16::try_from(port).ok());
                let port = port.filter(|port| *port > 0);
                (name, port.ok_or(UrlError::Host)?)
            }
            _ => (text, port),
        };
        let bare = name
            .strip_prefix('[')
            .map_or(Some(name), |name| name.strip_suffix(']'))
            .ok_or(UrlError::Host)?;
        let colons = name.starts_with('[');
        let plain =
            |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || (colons && c == ':');
        if bare.is_empty() || !bare.chars().all(plain) {
            return Err(UrlError::Host);
        }
        let host = bare.to_owned();
        Ok(Self { host, port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The options of a URL. Each is taken once, by its name; [`end`](Self::end) finds those that nobody took.
#[derive(Default)]
pub struct Options {
    given: Vec<Given>,
    /// All names that were asked for, for the error that lists them.
    known: Vec<String>,
}

/// An option as it is written, and which one it is, from 1. Errors name it by its number: where a password contains a `&`, what
/// stands behind that looks like a name.
struct Given {
    number: usize,
    name: String,
    value: String,
}

impl Options {
    /// Parses `OPTION=VALUE&…`.
    ///
    /// # Errors
    ///
    /// An option is given twice.
    pub fn parse(text: Option<&str>) -> Result<Self, UrlError> {
        let mut given: Vec<Given> = Vec::new();
        let options = text.into_iter().flat_map(|options| options.split('&'));
        for (number, option) in (1..).zip(options) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if given.iter().any(|other| other.name == name) {
                return Err(UrlError::Twice { number });
            }
            let (name, value) = (name.into(), value.into());
            given.push(Given {
                number,
                name,
                value,
            });
        }
        let known = Vec::new();
        Ok(Self { given, known })
    }

    /// The value as written, not decoded. `means` stands for the value in the error that lists all options.
    pub fn raw(&mut self, name: &str, means: &str) -> Option<String> {
        self.known.push(format!("{name}={means}"));
        let at = self.given.iter().position(|given| given.name == name)?;
        Some(self.given.remove(at).value)
    }

    /// A value that `read` accepts; `takes` describes such values in the error.
    ///
    /// # Errors
    ///
    /// `read` does not accept the value, or its encoding is invalid.
    pub fn read<T>(
        &mut self,
        name: &str,
        means: &str,
        takes: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, UrlError> {
        let Some(raw) = self.raw(name, means) else {
            return Ok(None);
        };
        let bad = || UrlError::Value {
            name: name.into(),
            takes,
        };
        read(&decoded(&raw)?).map(Some).ok_or_else(bad)
    }

    /// `namespace=NAME`, or the default namespace.
    ///
    /// # Errors
    ///
    /// The name is no namespace.
    pub fn namespace(&mut self) -> Result<Namespace, UrlError> {
        match self.raw("namespace", "NAME") {
            Some(raw) => Ok(Namespace::parse(&decoded(&raw)?)?),
            None => Ok(Namespace::default()),
        }
    }

    /// The path of a file.
    ///
    /// # Errors
    ///
    /// The path is empty.
    pub fn file(&mut self, name: &str) -> Result<Option<PathBuf>, UrlError> {
        self.read(name, "PATH", "the path of a file", |path| {
            (!path.is_empty()).then(|| path.into())
        })
    }

    /// A time in milliseconds, from `least` to ten minutes.
    ///
    /// # Errors
    ///
    /// The value is outside this range, or no number.
    pub fn millis(&mut self, name: &str, least: u64) -> Result<Option<Duration>, UrlError> {
        let takes = "a number of milliseconds up to 600000";
        let ms = self.number(name, least..=MAX_MS, takes)?;
        Ok(ms.map(Duration::from_millis))
    }

    /// A number in `range`; `takes` describes the range in the error.
    ///
    /// # Errors
    ///
    /// The value is outside this range, or no number.
    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
        takes: &'static str,
    ) -> Result<Option<u64>, UrlError> {
        self.read(name, "NUMBER", takes, |text| {
            number(text).filter(|number| range.contains(number))
        })
    }

    /// Checks that nobody left an option untaken.
    ///
    /// # Errors
    ///
    /// An option does not exist.
    pub fn end(self) -> Result<(), UrlError> {
        match self.given.into_iter().next() {
            None => Ok(()),
            Some(Given { number, .. }) => Err(UrlError::Option {
                number,
                options: self.known.join(", "),
            }),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.len();
        write!(
            f,
            "Options({} of {known} known ones are left)",
            self.given.len()
        )
    }
}

fn decoded(text: &str) -> Result<String, UrlError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| UrlError::Encoding)
}

/// Parses digits only: no sign and no blanks.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Why a text is no URL of a store. It repeats no part of the URL that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Another scheme.
    #[error("the URL begins with {}:, as in {example}", schemes.join(": or "))]
    Scheme {
        /// The schemes that exist.
        schemes: &'static [&'static str],
        /// An example.
        example: &'static str,
    },
    /// No host, or an invalid one.
    #[error(
        "a host is written as HOST, HOST:PORT or [ADDRESS]:PORT, several with commas between them"
    )]
    Host,
    /// An invalid path, or a fragment.
    #[error("{0}")]
    Path(&'static str),
    /// An invalid user.
    #[error("{0}")]
    User(&'static str),
    /// An `@` behind the hosts.
    #[error(
        "an @ stands behind the host of the URL: in a user name or password write / as %2F, ? as %3F and # as %23; \
         elsewhere write @ as %40"
    )]
    UserCutShort,
    /// A `%` that does not encode UTF-8.
    #[error("the URL has a % that is no character: write the bytes of UTF-8, as in %40 for @")]
    Encoding,
    /// A name that is no namespace.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The option does not exist.
    #[error(
        "option {number} in the URL does not exist, or a & in a value is not written as %26: the options are {options}"
    )]
    Option {
        /// Which one it is, from 1.
        number: usize,
        /// The options that exist.
        options: String,
    },
    /// The option is given twice.
    #[error(
        "option {number} in the URL has the name of an earlier one: give it once, and write & in a value as %26"
    )]
    Twice {
        /// Which one it is, from 1.
        number: usize,
    },
    /// The option does not accept the value.
    #[error("the option {name:?} is {takes}")]
    Value {
        /// The option.
        name: String,
        /// The values that it accepts.
        takes: &'static str,
    },
    /// Parts that exclude each other.
    #[error("{0}")]
    Together(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAMMAR: Grammar = Grammar {
        schemes: &["s", "ss"],
        example: "s://localhost",
        user: "user",
        path: "path",
    };

    fn parse(url: &str) -> Result<StoreUrl<'_>, UrlError> {
        StoreUrl::parse(url, GRAMMAR)
    }

    fn hosts(url: &str) -> Result<Vec<String>, UrlError> {
        let hosts = parse(url)?.hosts(5)?;
        Ok(hosts.iter().map(Host::to_string).collect())
    }

    #[test]
    fn hosts_are_read() {
        for (url, expected) in [
            ("s://h", vec!["h:5"]),
            ("ss://h:1/", vec!["h:1"]),
            ("s://u:p@127.0.0.1:9/3?namespace=a", vec!["127.0.0.1:9"]),
            (
                "s://a,b:9201,[::1],[::1]:1",
                vec!["a:5", "b:9201", "[::1]:5", "[::1]:1"],
            ),
        ] {
            assert_eq!(hosts(url).unwrap(), expected, "{url}");
        }
        for url in [
            "s://",
            "s://:6379",
            "s://a,",
            "s://a:0",
            "s://a:65536",
            "s://a:+1",
            "s://a b",
            "s://u:p@",
            "s://a:",
            "s://[::1]x",
            "s://[]",
            "s://::1",
        ] {
            assert_eq!(hosts(url), Err(UrlError::Host), "{url}");
        }
    }

    #[test]
    fn users_are_decoded_and_paths_are_not() {
        let url = parse("ss://a%3Ab:c%40:d@h/x%20?y=1").unwrap();
        assert_eq!((url.scheme, url.path), ("ss", "x%20"));
        assert_eq!(url.user, Some(("a:b".into(), "c@:d".into())));
        for (url, error) in [
            ("s://u@h", UrlError::User("user")),
            ("s://u:%ff@h", UrlError::Encoding),
            ("s://h/#f", UrlError::Path("path")),
            ("s://h?a=1&a=1", UrlError::Twice { number: 2 }),
            ("s://u:p?q@h", UrlError::UserCutShort),
            ("s://u:p/q@h", UrlError::UserCutShort),
            ("s://u:p#q@h", UrlError::UserCutShort),
            ("s://h/d?a=@", UrlError::UserCutShort),
        ] {
            assert_eq!(parse(url).err(), Some(error), "{url}");
        }
        for url in ["s:h", "http://h", "S://h", ""] {
            let error = parse(url).unwrap_err();
            assert!(matches!(error, UrlError::Scheme { .. }), "{url}");
            assert!(error.to_string().contains("s: or ss:"), "{error}");
        }
    }

    #[test]
    fn options_are_taken_by_name_and_type() {
        let url = "s://h?namespace=fs-1_a&ca=/a%20b&timeout_ms=250&n=7&x=%2B";
        let mut options = parse(url).unwrap().options;
        assert_eq!(options.namespace().unwrap().as_str(), "fs-1_a");
        assert_eq!(options.file("ca").unwrap(), Some("/a b".into()));
        let timeout = options.millis("timeout_ms", 1).unwrap();
        assert_eq!(timeout, Some(Duration::from_millis(250)));
        assert_eq!(options.number("n", 0..=7, "").unwrap(), Some(7));
        assert_eq!(options.number("m", 0..=7, "").unwrap(), None);
        let text = options.end().unwrap_err().to_string();
        assert_eq!(
            text,
            "option 5 in the URL does not exist, or a & in a value is not written as %26: the options are namespace=NAME, ca=PATH, timeout_ms=NUMBER, n=NUMBER, m=NUMBER"
        );
    }

    #[test]
    fn values_have_bounds() {
        let ms = |text: &str| Options::parse(Some(text)).unwrap().millis("ms", 1);
        for good in ["ms=1", "ms=600000"] {
            assert!(ms(good).unwrap().is_some(), "{good}");
        }
        for bad in ["ms=0", "ms=600001", "ms=+5", "ms=", "ms", "ms=1.5", "ms=-1"] {
            assert!(matches!(ms(bad), Err(UrlError::Value { .. })), "{bad}");
        }
        let file = Options::parse(Some("ca=")).unwrap().file("ca");
        assert!(matches!(file, Err(UrlError::Value { .. })));
        for (bad, error) in [
            ("namespace=A", UrlError::Namespace(NamespaceError)),
            ("namespace=", UrlError::Namespace(NamespaceError)),
            ("namespace=%ff", UrlError::Encoding),
        ] {
            let namespace = Options::parse(Some(bad)).unwrap().namespace();
            assert_eq!(namespace, Err(error), "{bad}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let url = parse("s://u:secret@h?api_key=secret").unwrap();
        assert!(!format!("{url:?} {:?}", url.options).contains("secret"));
        let error = url.options.end().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        // A password that is not encoded.
        for cut in [
            "s://u:12?secret@h",
            "s://h?p=ab&secret",
            "s://h?p=ab&secret=9",
            "s://h?secret&secret",
        ] {
            let error = parse(cut).and_then(|url| url.options.end()).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}
