//! Credentials, and how requests carry them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use elasticsearch::http::headers::{AUTHORIZATION, HeaderMap, HeaderValue};
use url::Url;

#[cfg(feature = "aws")]
use crate::aws::{Aws, Signer};
use crate::config::EsConfig;
use crate::error::{Failure, Outcome};
use crate::http::Request;

/// The configured credentials.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Auth {
    Basic {
        user: String,
        password: String,
    },
    ApiKey(String),
    Bearer(BearerToken),
    BearerFile(PathBuf),
    #[cfg(feature = "aws")]
    Aws(Aws),
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Auth::Basic { .. } => "a user and a password",
            Auth::ApiKey(_) => "an API key",
            Auth::Bearer(_) => "a bearer token",
            Auth::BearerFile(_) => "a bearer token in a file",
            #[cfg(feature = "aws")]
            Auth::Aws(_) => "signatures for AWS",
        })
    }
}

/// A bearer token that the program may replace at run time. Clones are the same token. `Debug` does not show it.
///
/// # Examples
///
/// ```
/// use lockcore_es::{BearerToken, EsConfig};
///
/// let token = BearerToken::new("first");
/// let config = EsConfig::parse("elasticsearchs://h")?.bearer(token.clone());
/// // Every request from now on has this one.
/// token.replace("second");
/// assert!(!format!("{config:?} {token:?}").contains("second"));
/// # Ok::<(), lockcore::backend::UrlError>(())
/// ```
#[derive(Clone)]
pub struct BearerToken(Arc<RwLock<String>>);

impl BearerToken {
    /// A token: the text after `Bearer`.
    #[must_use]
    pub fn new(token: impl Into<String>) -> Self {
        Self(Arc::new(RwLock::new(token.into())))
    }

    /// Replaces the token in all requests that begin from now on.
    pub fn replace(&self, token: impl Into<String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = token.into();
    }

    fn text(&self) -> String {
        let token = self.0.read().unwrap_or_else(PoisonError::into_inner);
        token.clone()
    }
}

impl PartialEq for BearerToken {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for BearerToken {}

impl From<&str> for BearerToken {
    fn from(token: &str) -> Self {
        Self::new(token)
    }
}

impl From<String> for BearerToken {
    fn from(token: String) -> Self {
        Self::new(token)
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BearerToken").finish_non_exhaustive()
    }
}

/// The credentials as they go into requests.
pub(crate) enum Identity {
    /// None, or those of the program's own transport.
    None,
    Fixed(HeaderValue),
    Bearer(BearerToken),
    File {
        path: PathBuf,
        token: RwLock<HeaderValue>,
    },
    #[cfg(feature = "aws")]
    Aws(Box<Signer>),
}

impl Identity {
    pub(crate) async fn new(config: &EsConfig) -> Outcome<Self> {
        Ok(match &config.auth {
            None => Self::None,
            Some(Auth::Basic { user, password }) => {
                let both = BASE64_STANDARD.encode(format!("{user}:{password}"));
                Self::Fixed(value("Basic", &both)?)
            }
            Some(Auth::ApiKey(key)) => Self::Fixed(value("ApiKey", key)?),
            Some(Auth::Bearer(token)) => Self::Bearer(token.clone()),
            Some(Auth::BearerFile(path)) => {
                let text = std::fs::read_to_string(path);
                Self::File {
                    path: path.clone(),
                    token: RwLock::new(in_file(path, text)?),
                }
            }
            #[cfg(feature = "aws")]
            Some(Auth::Aws(aws)) => Self::Aws(Box::new(Signer::new(aws, config.timeout).await?)),
        })
    }

    /// The credentials in a request to any node.
    pub(crate) fn authorization(&self) -> Outcome<Option<HeaderValue>> {
        Ok(match self {
            Self::None => None,
            Self::Fixed(value) => Some(value.clone()),
            Self::Bearer(token) => Some(value("Bearer", &token.text())?),
            Self::File { token, .. } => {
                let token = token.read().unwrap_or_else(PoisonError::into_inner);
                Some(token.clone())
            }
            #[cfg(feature = "aws")]
            Self::Aws(_) => None,
        })
    }

    /// The credentials, if they differ from those that the server has just refused.
    pub(crate) async fn other_than(&self, refused: &HeaderValue) -> Option<HeaderValue> {
        if let Self::File { path, token } = self {
            let text = tokio::fs::read_to_string(path).await;
            // A file that is being replaced is read again at the next refusal.
            let read = in_file(path, text).ok()?;
            *token.write().unwrap_or_else(PoisonError::into_inner) = read;
        }
        let now = self.authorization().ok().flatten();
        now.filter(|now| now != refused)
    }

    /// The headers of a request to this node.
    #[cfg_attr(
        not(feature = "aws"),
        expect(unused_variables, reason = "only AWS wants every request signed")
    )]
    pub(crate) async fn headers(
        &self,
        authorization: Option<&HeaderValue>,
        node: Option<&Url>,
        request: &Request<'_>,
    ) -> Outcome<HeaderMap> {
        #[cfg(feature = "aws")]
        if let (Self::Aws(signer), Some(node)) = (self, node) {
            return signer.sign(node, request).await;
        }
        let said = authorization.map(|value| (AUTHORIZATION, value.clone()));
        Ok(said.into_iter().collect())
    }
}

/// The token in a file, without surrounding blanks.
fn in_file(path: &Path, text: std::io::Result<String>) -> Outcome<HeaderValue> {
    let text = text.map_err(|error| {
        Failure::config(format!("the bearer token in {}: {error}", path.display()))
    })?;
    value("Bearer", text.trim())
}

/// The value of a header, which is not shown.
fn value(scheme: &'static str, secret: &str) -> Outcome<HeaderValue> {
    let plain = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::try_from(format!("{scheme} {secret}")).ok();
    let mut value = value.filter(|_| plain).ok_or_else(|| {
        let what = match scheme {
            "Bearer" => "the bearer token is empty or has blanks in it: give it as it was issued",
            _ => "the API key is empty or has blanks in it: give it as the server has encoded it",
        };
        Failure::config(what)
    })?;
    value.set_sensitive(true);
    Ok(value)
}
