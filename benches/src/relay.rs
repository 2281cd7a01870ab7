//! A relay before a server, which counts round trips.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use url::Url;

/// Counts how often a connection's client speaks after its server did: one for each request of a protocol in which a
/// connection has one request under way, without TLS.
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
        pass(from_client, server, || {
            if spoke.swap(false, Ordering::AcqRel) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
    });
    thread::spawn(move || {
        pass(from_server, client, || {
            server_spoke.store(true, Ordering::Release);
        });
    });
}

/// Passes on what comes until one side ends.
fn pass(mut from: TcpStream, mut to: TcpStream, on_bytes: impl Fn()) {
    let _ = to.set_nodelay(true);
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        on_bytes();
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
