//! Servers that form a cluster.

use std::ops::{Deref, DerefMut};

use super::Server;

/// The servers of one cluster. If a panicking test drops them, each is first asked for its view of the cluster, before
/// any of them is stopped. The views are printed, and then the end of each log.
#[derive(Debug)]
pub struct Cluster<T: AsRef<Server>>(Vec<T>);

impl<T: AsRef<Server>> Cluster<T> {
    /// A cluster of these servers.
    #[must_use]
    pub fn new(servers: Vec<T>) -> Self {
        Self(servers)
    }

    /// Each server's view of the cluster, within seconds for each.
    #[must_use]
    pub fn says(&self) -> String {
        self.0.iter().map(|server| server.as_ref().says()).collect()
    }

    /// Each server's view of the cluster, and the end of each log.
    #[must_use]
    pub fn explains(&self) -> String {
        let logs = self.0.iter().map(|server| server.as_ref().log_tail());
        self.says() + &logs.collect::<String>()
    }
}

impl<T: AsRef<Server>> Deref for Cluster<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: AsRef<Server>> DerefMut for Cluster<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: AsRef<Server>> Drop for Cluster<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.says());
        }
    }
}
