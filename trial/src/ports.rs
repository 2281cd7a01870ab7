//! Ports for servers and proxies that no other process takes: claimed by a lock on a file, and outside the kernel's
//! ephemeral range.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The ports that are claimed. With the second port [`BESIDE`] each, the range ends below 32768, where Linux begins to
/// give ports to clients.
const PORTS: RangeInclusive<u16> = 12_000..=21_999;
/// The distance of the second port from the first, as Redis requires for its cluster's bus.
const BESIDE: u16 = 10_000;

/// A port of this machine, and a second one, for one server. Nobody else who claims a port gets it, in this process or
/// another one of the same user, until the last copy is dropped or the process ends in any way.
#[derive(Debug, Clone)]
pub struct Port {
    number: u16,
    _claim: Arc<Claim>,
}

/// A locked file.
#[derive(Debug)]
struct Claim(File);

impl Drop for Claim {
    fn drop(&mut self) {
        // By itself it would be held until a process that is just being started has closed its copy, too.
        let _ = self.0.unlock();
    }
}

impl Port {
    /// Claims a port on which nobody listens.
    ///
    /// # Errors
    ///
    /// There is none, or the folder for the locks cannot be written; the text says which.
    pub fn claim() -> Result<Self, String> {
        Ok(Self::listen()?.0)
    }

    /// Claims a port on which nobody listens, and listens on it.
    ///
    /// To bind it again would fail now and then: a process that is started meanwhile by another thread has a copy of the
    /// listener until it executes its program.
    pub(crate) fn listen() -> Result<(Self, TcpListener), String> {
        Self::listen_on(&quiet_ports(), &locks()?)
    }

    /// Claims one of these ports, by locks in this folder.
    fn listen_on(ports: &[u16], locks: &Path) -> Result<(Self, TcpListener), String> {
        let first = rand::random_range(0..ports.len().max(1));
        for number in ports[first..].iter().chain(&ports[..first]) {
            let path = locks.join(number.to_string());
            // It stays: to remove it would let two hold a lock, each on a file of that name.
            let file = File::options().create(true).append(true).open(&path);
            let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => {
                    return Err(format!("{} cannot be locked: {error}", path.display()));
                }
            }
            if let Ok(listener) = bind(*number)
                && bind(number + BESIDE).is_ok()
            {
                let port = Self {
                    number: *number,
                    _claim: Arc::new(Claim(file)),
                };
                return Ok((port, listener));
            }
        }
        Err("no port is free".to_owned())
    }

    /// The port.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The second port, for the communication between servers of a kind.
    #[must_use]
    pub fn beside(&self) -> u16 {
        self.number + BESIDE
    }
}

fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

/// The ports that the kernel does not give to clients; all of them if it gives all.
fn quiet_ports() -> Vec<u16> {
    let said = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut bounds = said.split_whitespace().filter_map(|text| text.parse().ok());
    let (Some(least), Some(most)) = (bounds.next(), bounds.next()) else {
        return PORTS.collect();
    };
    let ephemeral: RangeInclusive<u16> = least..=most;
    let given = |port: u16| ephemeral.contains(&port) || ephemeral.contains(&(port + BESIDE));
    let quiet: Vec<u16> = PORTS.filter(|port| !given(*port)).collect();
    if quiet.is_empty() {
        PORTS.collect()
    } else {
        quiet
    }
}

/// The folder of the locks, the same for all processes of a user, whatever their temporary folder is.
fn locks() -> Result<PathBuf, String> {
    #[cfg(unix)]
    let (place, user) = (PathBuf::from("/tmp"), rustix::process::getuid().as_raw());
    #[cfg(not(unix))]
    let (place, user) = (std::env::temp_dir(), "of-tests");
    let folder = place.join(format!("lockkeeper-ports-{user}"));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Where the child of a test finds the folder of the locks and the ports.
    const CHILD: &str = "LOCKKEEPER_TEST_PORTS";

    /// A process that is just being started has a copy of every socket, also of one that a claim tries its port with.
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());

    /// So many that nobody else claims meanwhile, and a guard to keep.
    fn some(count: usize) -> (Vec<Port>, MutexGuard<'static, ()>) {
        let alone = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let ports = (0..count).map(|_| Port::claim().unwrap()).collect();
        (ports, alone)
    }

    fn claim_of(ports: &[u16], locks: &Path) -> Result<Port, String> {
        Ok(Port::listen_on(ports, locks)?.0)
    }

    fn numbers(ports: &[Port]) -> Vec<u16> {
        ports.iter().map(Port::number).collect()
    }

    #[test]
    fn no_port_is_claimed_twice() {
        let (kept, _alone) = some(40);
        let (all, locks) = (numbers(&kept), tempfile::tempdir().unwrap());
        let claimed: Vec<Port> = std::thread::scope(|scope| {
            let claim = || scope.spawn(|| [(); 5].map(|()| claim_of(&all, locks.path())));
            let threads: Vec<_> = (0..8).map(|_| claim()).collect();
            let claims = threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap());
            claims.map(|claim| claim.unwrap()).collect()
        });
        let different: BTreeSet<u16> = numbers(&claimed).into_iter().collect();
        assert_eq!(different.len(), 40, "{claimed:?}");
        assert!(claim_of(&all, locks.path()).is_err(), "none is left");
    }

    #[test]
    fn a_claim_ends_with_its_last_copy() {
        let (kept, _alone) = some(1);
        let (all, locks) = (numbers(&kept), tempfile::tempdir().unwrap());
        let claim = || claim_of(&all, locks.path());
        let port = claim().unwrap();
        let copy = port.clone();
        drop(port);
        assert!(claim().is_err(), "{copy:?} is there");
        drop(copy);
        claim().unwrap();
    }

    #[test]
    fn another_process_claims_others_until_it_is_killed() {
        if let Ok(child) = std::env::var(CHILD) {
            let (locks, ports) = child.rsplit_once(':').unwrap();
            let ports: Vec<u16> = ports.split(',').map(|port| port.parse().unwrap()).collect();
            let port = claim_of(&ports, Path::new(locks));
            println!("\nclaimed {}", port.as_ref().unwrap().number());
            // Until it is killed, or nobody is there to do so.
            std::io::stdin().read_line(&mut String::new()).unwrap();
            return;
        }
        let (kept, _alone) = some(2);
        let (all, locks) = (numbers(&kept), tempfile::tempdir().unwrap());
        let ours = claim_of(&all, locks.path()).unwrap();
        let list: Vec<String> = all.iter().map(u16::to_string).collect();
        let name = "another_process_claims_others_until_it_is_killed";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--nocapture"])
            .env(
                CHILD,
                format!("{}:{}", locks.path().display(), list.join(",")),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let theirs: u16 = said
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("claimed ")?.parse().ok())
            .expect("the child claims one");
        assert_ne!(theirs, ours.number());
        assert!(all.contains(&theirs));
        assert!(claim_of(&all, locks.path()).is_err(), "both are held");
        child.kill().unwrap();
        child.wait().unwrap();
        let again = claim_of(&all, locks.path()).unwrap();
        assert_eq!(again.number(), theirs);
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_passed_by() {
        let (kept, _alone) = some(3);
        let (all, locks) = (numbers(&kept), tempfile::tempdir().unwrap());
        let _first = TcpListener::bind(("127.0.0.1", all[0])).unwrap();
        let _beside = TcpListener::bind(("127.0.0.1", kept[1].beside())).unwrap();
        for _ in 0..20 {
            let port = claim_of(&all, locks.path()).unwrap();
            assert_eq!(port.number(), all[2]);
        }
    }

    #[test]
    fn a_port_is_listened_on_while_processes_are_started() {
        let (_kept, _alone) = some(0);
        let retired = AtomicBool::new(false);
        let start = || {
            while !retired.load(Ordering::Relaxed) {
                let mut program = Command::new(std::env::current_exe().unwrap());
                let child = program.arg("--help").stdout(Stdio::null()).spawn();
                child.unwrap().wait().unwrap();
            }
        };
        let failed = std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(start);
            }
            let failed = (0..2_000).find_map(|_| Port::listen().err());
            retired.store(true, Ordering::Relaxed);
            failed
        });
        assert_eq!(failed, None);
    }

    #[test]
    fn no_client_is_given_one() {
        let said = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        if said.split_whitespace().eq(["32768", "60999"]) {
            assert_eq!(quiet_ports(), PORTS.collect::<Vec<_>>());
        }
        let port = Port::claim().unwrap();
        assert!(PORTS.contains(&port.number()));
        assert_eq!(port.beside() - port.number(), BESIDE);
    }
}
