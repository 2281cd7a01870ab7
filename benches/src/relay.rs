//! A relay before a server, which counts round trips.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use url::Url;

/// Counts how often a connection's client speaks after its server did: one for each request of a protocol in which a
/// connection has one request under way, without TLS. Of HTTP/2 it counts the requests themselves: there either side
/// speaks for the connection's own sake, too (a gRPC server of Go's asks for a sign of life after each request).
pub(crate) struct Relay {
    url: String,
    round_trips: Arc<AtomicU64>,
}

impl Relay {
    /// Stands before the server of a URL; `None` for a store that is not a server.
    pub(crate) fn before(url: &str) -> Option<Self> {
        let mut url = Url::parse(url).ok()?;
        let server = (url.host_str()?.to_owned(), url.port()?);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        url.set_host(Some("127.0.0.1")).ok()?;
        url.set_port(Some(port)).ok()?;
        let round_trips = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&round_trips);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Ok(server) = TcpStream::connect((server.0.as_str(), server.1)) {
                    relay(client, server, &counted);
                }
            }
        });
        Some(Self {
            url: url.into(),
            round_trips,
        })
    }

    /// The server's URL, through this.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }
}

fn relay(client: TcpStream, server: TcpStream, round_trips: &Arc<AtomicU64>) {
    let server_spoke = Arc::new(AtomicBool::new(true));
    let (from_client, from_server) = (
        client.try_clone().expect("a second handle"),
        server.try_clone().expect("a second handle"),
    );
    let (counted, spoke) = (Arc::clone(round_trips), Arc::clone(&server_spoke));
    thread::spawn(move || {
        let mut frames = None;
        pass(from_client, server, |bytes| {
            if frames.is_none() && bytes.starts_with(HTTP2) {
                frames = Some(Frames::new());
            }
            let requests = match &mut frames {
                Some(frames) => frames.requests(bytes),
                None => u64::from(spoke.swap(false, Ordering::AcqRel)),
            };
            counted.fetch_add(requests, Ordering::Relaxed);
        });
    });
    thread::spawn(move || {
        pass(from_server, client, |_| {
            server_spoke.store(true, Ordering::Release);
        });
    });
}

/// What a client of HTTP/2 says first.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame's head, and the type of the frame that begins a request.
const HEAD: usize = 9;
const HEADERS: u8 = 1;

/// The frames that a client sends, which come in parts of any length.
struct Frames {
    /// So much is passed over until the next one.
    rest: usize,
    /// What is known of the next one's head.
    head: Vec<u8>,
}

impl Frames {
    fn new() -> Self {
        Self {
            rest: HTTP2.len(),
            head: Vec::new(),
        }
    }

    /// How many requests begin in these bytes.
    fn requests(&mut self, mut bytes: &[u8]) -> u64 {
        let mut requests = 0;
        while !bytes.is_empty() {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = &bytes[passed..];
            let more = (HEAD - self.head.len()).min(bytes.len());
            self.head.extend(&bytes[..more]);
            bytes = &bytes[more..];
            if let [a, b, c, kind, _, _, _, _, _] = self.head[..] {
                self.rest = u32::from_be_bytes([0, a, b, c]) as usize;
                self.head.clear();
                requests += u64::from(kind == HEADERS);
            }
        }
        requests
    }
}

/// Passes on what comes until one side ends.
fn pass(mut from: TcpStream, mut to: TcpStream, mut on_bytes: impl FnMut(&[u8])) {
    let _ = to.set_nodelay(true);
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        on_bytes(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
