//! The way to the server: its nodes, and one request to the first of them that takes a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use elasticsearch::cert::{Certificate, CertificateValidation};
use elasticsearch::http::Method;
use elasticsearch::http::headers::{ACCEPT_ENCODING, HeaderValue};
use elasticsearch::http::transport::{
    BuildError, SingleNodeConnectionPool, Transport, TransportBuilder,
};
use lockcore::ErrorKind;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use url::Url;

use crate::auth::Identity;
use crate::config::EsConfig;
use crate::error::{Cause, Failure, Outcome, Refusal};
use crate::proxy::Proxy;

/// So many nodes of the program's own transport, which chooses them, are tried while none takes a connection.
const GIVEN_TRIES: usize = 3;

/// The nodes. Requests go to one of them until it fails, then to the next.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    current: AtomicUsize,
    timeout: Duration,
    identity: Identity,
    connections: Semaphore,
    /// One more, for renewals: however many wait for something else, a lease does not end by it.
    one_more: Semaphore,
}

/// The place of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At(usize);

/// Whose request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Renewals,
    Others,
}

/// A node, and the connections to it.
struct Node {
    /// How its connections are made; `None` for the program's own transport.
    way: Option<Way>,
    connections: Mutex<Connections>,
}

/// How connections are made.
struct Way {
    url: Url,
    certificate: Option<Arc<[u8]>>,
    proxy: Option<Proxy>,
}

/// Connections of which none is older than this.
#[derive(Clone)]
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

#[cfg(feature = "aws")]
impl Request<'_> {
    /// What is sent to this node, as the transport makes it.
    pub(crate) fn target(&self, node: &Url) -> Option<Url> {
        let mut target = node.join(self.path.trim_start_matches('/')).ok()?;
        if !self.query.is_empty() {
            target.query_pairs_mut().extend_pairs(self.query);
        }
        Some(target)
    }
}

#[derive(Deserialize)]
struct Refused {
    error: Cause,
}

impl Nodes {
    pub(crate) async fn new(config: &EsConfig) -> Outcome<Self> {
        let nodes = match &config.transport {
            Some(given) => {
                config.goes_with_a_transport()?;
                vec![Node::new(None, Transport::clone(&given.0))]
            }
            None => {
                let certificate = certificate(config)?;
                let way = |url: &Url| Way {
                    url: url.clone(),
                    certificate: certificate.clone(),
                    proxy: config.proxy.clone(),
                };
                let made = |way: Way| {
                    let transport = way.transport()?;
                    Ok(Node::new(Some(way), transport))
                };
                config
                    .nodes
                    .iter()
                    .map(way)
                    .map(made)
                    .collect::<Outcome<_>>()?
            }
        };
        Ok(Self {
            nodes,
            current: AtomicUsize::new(0),
            timeout: config.timeout,
            identity: Identity::new(config).await?,
            connections: Semaphore::new(config.connections),
            one_more: Semaphore::new(1),
        })
    }

    /// How long a request may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a request that is no renewal, and reads the answer if the server took it.
    pub(crate) async fn send<T: DeserializeOwned>(&self, request: Request<'_>) -> Outcome<T> {
        Ok(self.send_to(None, Lane::Others, request).await?.0)
    }

    /// Sends a request, to this node alone where one is named; with the node that has answered. A transport of the program's
    /// own chooses by itself.
    pub(crate) async fn send_to<T: DeserializeOwned>(
        &self,
        only: Option<At>,
        lane: Lane,
        request: Request<'_>,
    ) -> Outcome<(T, At)> {
        let place = self.place(lane).await?;
        let (status, body, at) = self.exchange(only, &request).await?;
        drop(place);
        if !(200..300).contains(&status) {
            let refused: Option<Refused> = serde_json::from_slice(&body).ok();
            return Err(Failure::Server(Refusal {
                status,
                cause: refused.map(|refused| refused.error),
            }));
        }
        let answer = serde_json::from_slice(&body).map_err(|error| {
            // Its text may repeat what a proxy said.
            let place = (error.line(), error.column());
            let what = format!(
                "an answer that cannot be read, at {place:?} of {} bytes",
                body.len()
            );
            Failure::Answer(what.into())
        })?;
        Ok((answer, at))
    }

    /// A connection's place; while one is held, it may be open.
    async fn place(&self, lane: Lane) -> Outcome<SemaphorePermit<'_>> {
        let place = async {
            tokio::select! {
                biased;
                place = self.connections.acquire() => place,
                place = self.one_more.acquire(), if lane == Lane::Renewals => place,
            }
        };
        let place = timeout(self.timeout, place).await;
        place.ok().and_then(Result::ok).ok_or_else(|| {
            let what = "all connections were busy for as long as a request may take: raise the option `connections`";
            Failure::Found(ErrorKind::Unavailable, what.into())
        })
    }

    async fn exchange(&self, only: Option<At>, request: &Request<'_>) -> Outcome<(u16, Bytes, At)> {
        let who = self.identity.authorization()?;
        let answer = self.exchange_as(who.as_ref(), only, request).await?;
        // What is refused so has no effect, and a token may have been replaced meanwhile.
        if let (401, Some(refused)) = (answer.0, &who)
            && let Some(other) = self.identity.other_than(refused).await
        {
            return self.exchange_as(Some(&other), only, request).await;
        }
        Ok(answer)
    }

    async fn exchange_as(
        &self,
        who: Option<&HeaderValue>,
        only: Option<At>,
        request: &Request<'_>,
    ) -> Outcome<(u16, Bytes, At)> {
        let given = self.nodes[0].way.is_none();
        let (first, tries) = match only {
            Some(At(only)) => (only, 1),
            None if given => (0, GIVEN_TRIES),
            None => (self.current.load(Ordering::Relaxed), self.nodes.len()),
        };
        let mut failure = None;
        for tried in 0..tries {
            let at = (first + tried) % self.nodes.len();
            let node = &self.nodes[at];
            let url = node.way.as_ref().map(|way| &way.url);
            let headers = self.identity.headers(who, url, request).await?;
            let (begun, transport) = (Instant::now(), node.transport());
            let sent = transport.send(
                request.method,
                request.path,
                headers,
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
                        self.leave(At(at));
                    }
                    return Ok((status, body, At(at)));
                }
                Err(error) if was_not_sent(&error) => {
                    self.leave(At(at));
                    failure = Some(Failure::Unreachable(error));
                }
                Err(error) => {
                    self.leave(At(at));
                    if error.is_timeout() {
                        node.distrust(begun);
                    }
                    return Err(Failure::Broken(error));
                }
            }
        }
        Err(failure.expect("a configuration has at least one node"))
    }

    /// How many nodes it knows.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The next request goes to the node behind this one.
    pub(crate) fn leave(&self, At(at): At) {
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
    fn new(way: Option<Way>, transport: Transport) -> Self {
        Self {
            way,
            connections: Mutex::new(Connections {
                since: Instant::now(),
                transport,
            }),
        }
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
        // Of the program's own transport, the connections are its own business.
        if let Some(Ok(transport)) = self.way.as_ref().map(Way::transport) {
            *connections = Connections {
                since: Instant::now(),
                transport,
            };
        }
    }
}

/// The certificate that is configured, once it is known to be one.
fn certificate(config: &EsConfig) -> Outcome<Option<Arc<[u8]>>> {
    let Some(ca) = &config.ca else {
        return Ok(None);
    };
    let pem = std::fs::read(ca).map_err(|error| {
        Failure::config(format!("the CA certificate {}: {error}", ca.display()))
    })?;
    Certificate::from_pem(&pem)
        .map_err(|_| Failure::config(format!("{} holds no PEM certificate", ca.display())))?;
    Ok(Some(pem.into()))
}

impl Way {
    /// Connections of their own to a node. Who we are is said by each request.
    fn transport(&self) -> Outcome<Transport> {
        let pool = SingleNodeConnectionPool::new(self.url.clone());
        let mut builder = TransportBuilder::new(pool)
            .enable_meta_header(false)
            // Compressing takes longer than sending.
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        builder = match &self.proxy {
            None => builder.disable_proxy(),
            Some(Proxy { url, user }) => {
                let user = user
                    .as_ref()
                    .map(|(user, password)| (user.as_str(), password.as_str()));
                builder.proxy(url.clone(), user.map(|it| it.0), user.map(|it| it.1))
            }
        };
        if let Some(pem) = &self.certificate {
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
}
