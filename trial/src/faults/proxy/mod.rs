//! [`Proxy`]: a TCP proxy between a client and its store, with switchable network faults.

mod between;
mod connection;
mod owners;
#[cfg(test)]
mod tests;

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rand::distr::uniform::{SampleRange, SampleUniform};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::NetworkFault;
use crate::ports::Port;
pub use between::Between;

/// The pause before a call that the system refused is repeated.
const AGAIN: Duration = Duration::from_millis(10);

/// A thread for proxies, which end with it. So load on other threads delays no traffic.
#[derive(Debug)]
pub struct Proxies {
    handle: Handle,
    /// Nothing is ever sent: the thread ends when this is dropped.
    _end: oneshot::Sender<()>,
}

impl Proxies {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no more threads, or no more files.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let thread = thread::Builder::new().name("proxies".to_owned());
        thread.spawn(move || runtime.block_on(ended))?;
        Ok(Self { handle, _end: end })
    }

    /// Starts a proxy for a store at `HOST:PORT`, on a port of its own of this machine. Its random choices follow from
    /// the seed.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub fn start(&self, store: &str, seed: u64) -> io::Result<Proxy> {
        let (port, listener) = Port::listen().map_err(io::Error::other)?;
        listener.set_nonblocking(true)?;
        let way = Arc::new(Way::new(store, seed));
        let serving = serve(Arc::clone(&way), listener, port.number());
        Ok(Proxy {
            task: self.handle.spawn(serving).abort_handle(),
            way,
            port,
        })
    }
}

/// A proxy with one fault at a time. Its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    way: Arc<Way>,
    task: AbortHandle,
}

impl Proxy {
    /// The port of this machine on which it accepts connections.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Begins this fault.
    pub fn strike(&self, fault: NetworkFault) {
        self.way.strike(fault);
    }

    /// Ends the fault. Returns whether it has had an effect: there may have been no connection, or no data.
    pub fn mend(&self) -> bool {
        self.way.fault.send_replace(None);
        self.way.met.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State that the connections of a proxy share.
#[derive(Debug)]
struct Way {
    store: String,
    fault: watch::Sender<Option<NetworkFault>>,
    /// The fault has had an effect.
    met: AtomicBool,
    /// A cut is a reset; otherwise an orderly end.
    resets: bool,
    rng: Mutex<Xoshiro256PlusPlus>,
}

impl Way {
    fn new(store: &str, seed: u64) -> Self {
        Self {
            store: store.to_owned(),
            fault: watch::Sender::new(None),
            met: AtomicBool::new(false),
            resets: false,
            rng: Mutex::new(Xoshiro256PlusPlus::seed_from_u64(seed)),
        }
    }

    fn strike(&self, fault: NetworkFault) {
        self.met.store(false, Ordering::Relaxed);
        self.fault.send_replace(Some(fault));
    }

    fn met(&self) {
        self.met.store(true, Ordering::Relaxed);
    }

    /// Ends this fault if it is present. So it affects one connection.
    fn take(&self, fault: NetworkFault) -> bool {
        let taken = self.fault.send_if_modified(|now| {
            let is_there = *now == Some(fault);
            if is_there {
                *now = None;
            }
            is_there
        });
        if taken {
            self.met();
        }
        taken
    }

    fn random<T: SampleUniform, R: SampleRange<T>>(&self, range: R) -> T {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.random_range(range)
    }
}

fn is_cut(fault: &Option<NetworkFault>) -> bool {
    *fault == Some(NetworkFault::Cut)
}

/// Accepts connections, except while the way is cut: then the system refuses them.
async fn serve(way: Arc<Way>, listener: std::net::TcpListener, port: u16) {
    let mut fault = way.fault.subscribe();
    let mut connections = JoinSet::new();
    let mut listener = TcpListener::from_std(listener);
    loop {
        if let Ok(listener) = &listener {
            loop {
                tokio::select! {
                    biased;
                    _ = async { fault.wait_for(is_cut).await.is_ok() } => break,
                    Some(_) = connections.join_next() => {}
                    accepted = listener.accept() => match accepted {
                        Ok((client, _)) => {
                            connections.spawn(connection::serve(Arc::clone(&way), client));
                        }
                        Err(_) => sleep(AGAIN).await,
                    },
                }
            }
        }
        drop(listener);
        let _ = fault.wait_for(|fault| !is_cut(fault)).await;
        listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        if listener.is_err() {
            sleep(AGAIN).await;
        }
    }
}
