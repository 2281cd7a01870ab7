//! What stands before the real server: a reverse proxy or a forward proxy that looks at every request.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

use std::sync::{Arc, Mutex};

use lockcore_es::EsBackend;
use reqwest::{Certificate, Client};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};
use url::Url;

use crate::support::access::{Access, PASSWORD};
use crate::support::{granted, open, request, server};

/// A request, as it came.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub target: String,
    /// With names in small letters.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn authorization(&self) -> &str {
        self.header("authorization").unwrap_or_default()
    }

    /// Says something else of who asks.
    pub fn is_by(&mut self, authorization: Option<String>) {
        self.headers.retain(|(name, _)| name != "authorization");
        let header = authorization.map(|value| ("authorization".to_owned(), value));
        self.headers.extend(header);
    }
}

/// An answer in place of the server's.
pub type Instead = Option<(u16, String)>;
/// Changes a request before it goes on, or answers it.
type Gate = Arc<dyn Fn(&mut Asked) -> Instead + Send + Sync>;

/// A proxy of this test. Nobody listens there any more when it is dropped.
pub struct Front {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

impl Front {
    pub async fn new(gate: impl Fn(&mut Asked) -> Instead + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (kept, gate): (_, Gate) = (Arc::clone(&asked), Arc::new(gate));
        let real = Arc::new(Real::new());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (gate, kept, real) = (gate.clone(), kept.clone(), real.clone());
                tokio::spawn(async move { serve(stream, gate, kept, real).await });
            }
        });
        Self { port, asked, task }
    }

    /// Until that is aborted, it takes connections.
    pub fn takes_more(&self) -> AbortHandle {
        self.task.abort_handle()
    }

    /// What was asked until now.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The server behind.
struct Real {
    client: Client,
    base: String,
    host: String,
}

impl Real {
    fn new() -> Self {
        let url = Url::parse(&server()).unwrap();
        let mut client = Client::builder().no_proxy();
        if let Some((_, ca)) = url.query_pairs().find(|(name, _)| name == "ca") {
            let pem = std::fs::read(&*ca).unwrap();
            client = client.add_root_certificate(Certificate::from_pem(&pem).unwrap());
        }
        let host = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(9200));
        let scheme = if has_tls() { "https" } else { "http" };
        Self {
            client: client.build().unwrap(),
            base: format!("{scheme}://{host}"),
            host,
        }
    }
}

/// Whether the server is reached by TLS.
pub fn has_tls() -> bool {
    let server = server();
    server.starts_with("elasticsearchs:") || server.starts_with("opensearchs:")
}

/// Who may make a namespace, as a URL says it: `USER:PASSWORD@`, or nothing.
pub fn who() -> String {
    let access = Access::get();
    match access.is_asked_for() {
        true => format!("{}:{PASSWORD}@", access.to_make.name()),
        false => String::new(),
    }
}

/// The same as a request says it.
pub fn authorization() -> Option<String> {
    use base64::Engine;
    let access = Access::get();
    let both = format!("{}:{PASSWORD}", access.to_make.name());
    let both = base64::prelude::BASE64_STANDARD.encode(both);
    access.is_asked_for().then(|| format!("Basic {both}"))
}

async fn serve(
    mut stream: TcpStream,
    gate: Gate,
    kept: Arc<Mutex<Vec<Asked>>>,
    real: Arc<Real>,
) -> Option<()> {
    let mut asked = read(&mut stream).await?;
    kept.lock().unwrap().push(asked.clone());
    if let Some((status, body)) = gate(&mut asked) {
        return answer(&mut stream, status, body.as_bytes()).await;
    }
    if asked.method == "CONNECT" {
        let mut server = TcpStream::connect(&real.host).await.ok()?;
        stream.write_all(b"HTTP/1.1 200 Go on\r\n\r\n").await.ok()?;
        copy_bidirectional(&mut stream, &mut server).await.ok()?;
        return Some(());
    }
    // A forward proxy is told the whole URL.
    let path = match asked.target.strip_prefix("http://") {
        Some(rest) => &rest[rest.find('/')?..],
        None => &asked.target,
    };
    let method = asked.method.parse().ok()?;
    let mut request = real.client.request(method, format!("{}{path}", real.base));
    for name in ["content-type", "authorization"] {
        if let Some(value) = asked.header(name) {
            request = request.header(name, value);
        }
    }
    let got = request.body(asked.body).send().await.ok()?;
    let status = got.status().as_u16();
    answer(&mut stream, status, &got.bytes().await.ok()?).await
}

async fn answer(stream: &mut TcpStream, status: u16, body: &[u8]) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream
        .write_all(&[head.as_bytes(), body].concat())
        .await
        .ok()?;
    stream.shutdown().await.ok()
}

/// The next request, with its body.
pub async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let mut asked = Asked {
        method,
        target,
        headers: lines.filter_map(header).collect(),
        body: bytes.split_off(end + 4),
    };
    let length = asked
        .header("content-length")
        .map_or(0, |it| it.parse().unwrap());
    while asked.body.len() < length {
        if stream.read_buf(&mut asked.body).await.ok()? == 0 {
            return None;
        }
    }
    Some(asked)
}

/// Acquires and releases, and so reads, writes and runs scripts.
pub async fn locks_once(backend: &EsBackend, number: u128) {
    use lockcore::backend::ClaimStore;
    let session = open(backend, number).await;
    let wanted = request(session, 1, &["create k", "write /a/b"]);
    granted(backend, &wanted).await;
    backend.release(wanted.grant, &wanted.claims).await.unwrap();
}
