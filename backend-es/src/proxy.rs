//! A proxy on the way to the server.

use std::fmt;

use percent_encoding::percent_decode_str;
use url::Url;

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    /// Without the user.
    pub(crate) url: Url,
    pub(crate) user: Option<(String, String)>,
}

impl Proxy {
    /// What an option takes.
    pub(crate) const TAKES: &str = "the URL of a proxy, http://HOST:PORT or https://HOST:PORT, with USER:PASSWORD@ before the host";

    /// Takes such a URL.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut url = Url::parse(text).ok()?;
        let decoded = |text: &str| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
        let user = match (url.username(), url.password()) {
            ("", None) => None,
            ("", _) | (_, None) => return None,
            (user, Some(password)) => Some((decoded(user)?, decoded(password)?)),
        };
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let known = matches!(url.scheme(), "http" | "https");
        (known && bare && url.has_host()).then_some(Self { url, user })
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}
