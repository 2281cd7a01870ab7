//! [`Struck`]: how often each fault has met something.

use std::collections::BTreeMap;
use std::fmt;

use crate::faults::Fault;
use crate::history::{History, What};

/// How often each fault occurred. A network fault that met no connection and no data does not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Struck(BTreeMap<Fault, usize>);

impl Struck {
    pub(super) fn add(&mut self, fault: Fault) {
        *self.0.entry(fault).or_default() += 1;
    }

    /// Adds the faults that the processes themselves, and the tests that apply faults to servers, have recorded.
    pub(super) fn add_those_of(&mut self, history: &History) {
        for event in &history.events {
            if let What::Struck { fault } = &event.what
                && !matches!(fault, Fault::Network(_))
            {
                self.add(*fault);
            }
        }
    }

    /// How often this fault occurred.
    #[must_use]
    pub fn of(&self, fault: Fault) -> usize {
        self.0.get(&fault).copied().unwrap_or(0)
    }

    /// Every fault that occurred, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Fault, usize)> {
        self.0.iter().map(|(fault, count)| (*fault, *count))
    }

    /// How often any network fault occurred.
    #[must_use]
    pub fn of_network(&self) -> usize {
        self.of_those(|fault| matches!(fault, Fault::Network(_)))
    }

    /// How often any fault of single requests occurred.
    #[must_use]
    pub fn of_requests(&self) -> usize {
        self.of_those(|fault| matches!(fault, Fault::Request(_)))
    }

    fn of_those(&self, which: impl Fn(&Fault) -> bool) -> usize {
        let those = self.0.iter().filter(|(fault, _)| which(fault));
        those.map(|(_, count)| count).sum()
    }

    /// How often any fault of a process occurred.
    #[must_use]
    pub fn of_processes(&self) -> usize {
        self.of_those(|fault| matches!(fault, Fault::Process(_)))
    }
}

impl fmt::Display for Struck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no faults");
        }
        for (at, (fault, count)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {fault}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{NetworkFault, ProcessFault, RequestFault, ServerFault};
    use crate::history::Event;

    #[test]
    fn each_kind_is_counted_once() {
        let mut struck = Struck::default();
        assert_eq!(struck.to_string(), "no faults");
        let faults = [
            Fault::Request(RequestFault::Lost),
            Fault::Request(RequestFault::Repeated),
            Fault::Server(ServerFault::Paused),
            // Whoever has struck knows whether it met something.
            Fault::Network(NetworkFault::Cut),
        ];
        let events = faults.map(|fault| Event {
            at: 1,
            process: 1,
            what: What::Struck { fault },
        });
        struck.add_those_of(&History {
            events: events.into(),
            real_time: true,
        });
        struck.add(Fault::Network(NetworkFault::Slow));
        for _ in 0..3 {
            struck.add(Fault::Process(ProcessFault::Killed));
        }
        let counts = [
            struck.of_processes(),
            struck.of_network(),
            struck.of_requests(),
            struck.of(Fault::Server(ServerFault::Paused)),
        ];
        assert_eq!(counts, [3, 1, 2, 1]);
        assert_eq!(
            struck.to_string(),
            "3 SIGKILL, 1 slow ways, 1 requests lost, 1 requests repeated, 1 servers paused"
        );
    }
}
