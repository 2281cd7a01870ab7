//! [`Between`]: the network between the servers of a cluster, on which one is cut off from the others.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::owners::Owners;
use super::{AGAIN, NetworkFault, Proxies, Way, connection};
use crate::ports::Port;

/// A proxy before each server of a cluster, by which the others reach it. Which of them has opened a connection follows
/// from the process that has its socket, so one server is cut off in both directions.
#[derive(Debug)]
pub struct Between {
    ports: Vec<Port>,
    network: Arc<Network>,
    tasks: Vec<AbortHandle>,
}

impl Proxies {
    /// Starts a proxy for each of these servers, which are at `HOST:PORT`.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub fn between(&self, servers: &[String]) -> io::Result<Between> {
        let network = Arc::new(Network::default());
        let (mut ports, mut tasks) = (Vec::new(), Vec::new());
        for (server, address) in servers.iter().enumerate() {
            let (port, listener) = Port::listen().map_err(io::Error::other)?;
            listener.set_nonblocking(true)?;
            let (network, address) = (Arc::clone(&network), address.clone());
            let serving = serve(network, server, address, port.number(), listener);
            tasks.push(self.handle.spawn(serving).abort_handle());
            ports.push(port);
        }
        Ok(Between {
            ports,
            network,
            tasks,
        })
    }
}

impl Between {
    /// The port of this machine on which the others reach a server.
    #[must_use]
    pub fn port(&self, server: usize) -> u16 {
        self.ports[server].number()
    }

    /// From now on there is this fault on every connection between a server and the others, whoever opens it. A cut is a
    /// reset, also of each connection that is made then. `processes` are those of all the servers, in their order.
    ///
    /// # Errors
    ///
    /// The system does not say whose a connection is: it is not Linux, or a process is not there or not ours.
    pub fn strike(&self, server: usize, fault: NetworkFault, processes: &[u32]) -> io::Result<()> {
        let mut state = self.network.state();
        let struck = Struck {
            server,
            fault,
            processes: processes.to_vec(),
        };
        let owners = Owners::look(processes)?;
        state.made.retain(Made::is_open);
        for made in &state.made {
            if struck.meets(&owners, made) {
                made.way.strike(fault);
            }
        }
        state.struck = Some(struck);
        Ok(())
    }

    /// Ends the fault, and says how many connections it has met.
    pub fn mend(&self) -> usize {
        let mut state = self.network.state();
        let met = state.made.iter().filter(|made| made.was_met()).count();
        for made in &state.made {
            made.way.fault.send_replace(None);
        }
        state.struck = None;
        met
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[derive(Debug, Default)]
struct Network(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    struck: Option<Struck>,
    /// The connections, and those that have ended since the fault met them.
    made: Vec<Made>,
}

/// A connection to a server, from one port of this machine to another one.
#[derive(Debug)]
struct Made {
    server: usize,
    ports: (u16, u16),
    way: Arc<Way>,
}

impl Made {
    fn is_open(&self) -> bool {
        Arc::strong_count(&self.way) > 1
    }

    fn was_met(&self) -> bool {
        self.way.met.load(Ordering::Relaxed)
    }
}

/// What is done to one server.
#[derive(Debug)]
struct Struck {
    server: usize,
    fault: NetworkFault,
    processes: Vec<u32>,
}

impl Struck {
    /// What a server says to itself passes.
    fn meets(&self, owners: &Owners, made: &Made) -> bool {
        let from = owners.of(made.ports.0, made.ports.1);
        (made.server == self.server) != (from == Some(self.server))
    }
}

impl Network {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection is made, and meets the fault that is there.
    fn made(&self, server: usize, ports: (u16, u16), way: Way) -> Arc<Way> {
        let mut state = self.state();
        let way = Arc::new(way);
        let made = Made {
            server,
            ports,
            way: Arc::clone(&way),
        };
        // Of a process that is gone nobody knows what it had; neither does it matter.
        if let Some(struck) = &state.struck
            && struck.meets(&Owners::look(&struck.processes).unwrap_or_default(), &made)
        {
            way.strike(struck.fault);
        }
        state.made.retain(|made| made.is_open() || made.was_met());
        state.made.push(made);
        way
    }
}

/// Takes the connections of the others to a server.
async fn serve(
    network: Arc<Network>,
    server: usize,
    address: String,
    port: u16,
    listener: std::net::TcpListener,
) {
    let mut connections = JoinSet::new();
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((client, from)) => {
                    let way = Way { resets: true, ..Way::new(&address, 0) };
                    let way = network.made(server, (from.port(), port), way);
                    connections.spawn(connection::serve(way, client));
                }
                Err(_) => sleep(AGAIN).await,
            },
        }
    }
}
