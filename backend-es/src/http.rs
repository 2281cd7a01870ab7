//! The way to the server: its nodes, and one request to the first of them that takes a connection.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use elasticsearch::auth::Credentials;
use elasticsearch::cert::{Certificate, CertificateValidation};
use elasticsearch::http::Method;
use elasticsearch::http::headers::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use elasticsearch::http::transport::{
    BuildError, SingleNodeConnectionPool, Transport, TransportBuilder,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::config::{Auth, EsConfig};
use crate::error::{Cause, Failure, Outcome, Refusal};

/// The nodes. Requests go to one of them until it fails, then to the next.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    current: AtomicUsize,
    timeout: Duration,
}

/// A node, and the connections to it.
#[derive(Debug)]
struct Node {
    url: Url,
    auth: Option<Auth>,
    certificate: Option<Vec<u8>>,
    connections: Mutex<Connections>,
}

/// Connections of which none is older than this.
#[derive(Debug, Clone)]
struct Connections {
    since: Instant,
    transport: Transport,
}

/// One request. The path is ours alone: no key is ever part of it.
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) query: &'a [(&'a str, &'a str)],
    pub(crate) body: Bytes,
}

#[derive(Deserialize)]
struct Refused {
    error: Cause,
}

impl Nodes {
    pub(crate) fn new(config: &EsConfig) -> Outcome<Self> {
        let nodes = config.nodes.iter().map(|url| Node::new(config, url));
        Ok(Self {
            nodes: nodes.collect::<Outcome<_>>()?,
            current: AtomicUsize::new(0),
            timeout: config.timeout,
        })
    }

    /// How long a request may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a request, and reads the answer if the server took it.
    pub(crate) async fn send<T: DeserializeOwned>(&self, request: Request<'_>) -> Outcome<T> {
        let (status, body) = self.exchange(&request).await?;
        if !(200..300).contains(&status) {
            let refused: Option<Refused> = serde_json::from_slice(&body).ok();
            return Err(Failure::Server(Refusal {
                status,
                cause: refused.map(|refused| refused.error),
            }));
        }
        serde_json::from_slice(&body).map_err(|error| {
            // Its text may repeat what a proxy said.
            let place = (error.line(), error.column());
            let what = format!(
                "an answer that cannot be read, at {place:?} of {} bytes",
                body.len()
            );
            Failure::Answer(what.into())
        })
    }

    async fn exchange(&self, request: &Request<'_>) -> Outcome<(u16, Bytes)> {
        let first = self.current.load(Ordering::Relaxed);
        let mut failure = None;
        for tried in 0..self.nodes.len() {
            let at = (first + tried) % self.nodes.len();
            let (begun, transport) = (Instant::now(), self.nodes[at].transport());
            let sent = transport.send(
                request.method,
                request.path,
                HeaderMap::new(),
                Some(request.query),
                Some(request.body.clone()),
                Some(self.timeout),
            );
            let answer = match sent.await {
                Ok(response) => {
                    let status = response.status_code().as_u16();
                    response.bytes().await.map(|body| (status, body))
                }
                Err(error) => Err(error),
            };
            match answer {
                Ok((status, body)) => {
                    if status >= 500 {
                        self.leave(at);
                    }
                    return Ok((status, body));
                }
                Err(error) if was_not_sent(&error) => {
                    self.leave(at);
                    failure = Some(Failure::Unreachable(error));
                }
                Err(error) => {
                    self.leave(at);
                    if error.is_timeout() {
                        self.nodes[at].distrust(begun);
                    }
                    return Err(Failure::Broken(error));
                }
            }
        }
        Err(failure.expect("a configuration has at least one node"))
    }

    /// The next request goes to the node behind this one.
    fn leave(&self, at: usize) {
        let next = (at + 1) % self.nodes.len();
        self.current.store(next, Ordering::Relaxed);
    }
}

/// No connection was made, so the server has nothing of the request.
fn was_not_sent(error: &elasticsearch::Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<reqwest::Error>())
        .is_some_and(|error| error.is_connect() || error.is_builder())
}

impl Node {
    fn new(config: &EsConfig, url: &Url) -> Outcome<Self> {
        let read = |ca: &PathBuf| {
            let pem = std::fs::read(ca).map_err(|error| {
                Failure::config(format!("the CA certificate {}: {error}", ca.display()))
            })?;
            Certificate::from_pem(&pem).map_err(|_| {
                Failure::config(format!("{} holds no PEM certificate", ca.display()))
            })?;
            Ok(pem)
        };
        let certificate = config.ca.as_ref().map(read).transpose()?;
        let transport = transport(url, config.auth.as_ref(), certificate.as_deref())?;
        Ok(Self {
            url: url.clone(),
            auth: config.auth.clone(),
            certificate,
            connections: Mutex::new(Connections {
                since: Instant::now(),
                transport,
            }),
        })
    }

    fn transport(&self) -> Transport {
        let connections = self.connections.lock();
        let connections = connections.unwrap_or_else(PoisonError::into_inner);
        connections.transport.clone()
    }

    /// What was idle when a request began that was not answered may have ended with its connection, so that each would cost a
    /// time-out: none of these is used any more. What is under way on them goes on.
    fn distrust(&self, begun: Instant) {
        let connections = self.connections.lock();
        let mut connections = connections.unwrap_or_else(PoisonError::into_inner);
        if connections.since > begun {
            return;
        }
        let auth = self.auth.as_ref();
        if let Ok(transport) = transport(&self.url, auth, self.certificate.as_deref()) {
            *connections = Connections {
                since: Instant::now(),
                transport,
            };
        }
    }
}

/// Connections of their own to a node.
fn transport(url: &Url, auth: Option<&Auth>, certificate: Option<&[u8]>) -> Outcome<Transport> {
    let pool = SingleNodeConnectionPool::new(url.clone());
    let mut builder = TransportBuilder::new(pool)
        .disable_proxy()
        .enable_meta_header(false)
        // Compressing takes longer than sending.
        .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(auth) = auth {
        builder = builder.auth(match auth {
            Auth::Basic { user, password } => Credentials::Basic(user.clone(), password.clone()),
            Auth::ApiKey(key) => Credentials::EncodedApiKey(key.clone()),
        });
    }
    if let Some(pem) = certificate {
        let certificate = Certificate::from_pem(pem)
            .map_err(|_| Failure::config("the CA certificate is not one"))?;
        builder = builder.cert_validation(CertificateValidation::Full(certificate));
    }
    builder.build().map_err(|error| match error {
        BuildError::Io(error) => Failure::config(format!("no client can be made: {error}")),
        BuildError::Cert(error) => {
            Failure::config(format!("the CA certificate is not one: {error}"))
        }
        BuildError::Config(what) => Failure::config(what),
    })
}
