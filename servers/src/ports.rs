//! Other ports for a server whose port another process has taken.

use lockcore_trial::Port;

/// How often a server is started again because another process has taken its port.
const TRIES: usize = 5;
/// How every server reports that, in upper or lower case.
const TAKEN: &str = "address already in use";

/// Starts something on `count` ports of its own; on other ports if its error says that one of them is taken.
///
/// # Errors
///
/// It does not start, not even on a few other ports, or there are no ports.
pub fn on_free<T>(
    count: usize,
    mut start: impl FnMut(&[Port]) -> Result<T, String>,
) -> Result<T, String> {
    let mut tried = Vec::new();
    loop {
        let ports: Result<Vec<Port>, String> = (0..count).map(|_| Port::claim()).collect();
        let ports = ports?;
        match start(&ports) {
            Err(error) if is_taken(&error) && tried.len() + 1 < TRIES => {
                println!("a port of {ports:?} is taken, others are tried");
                // Kept until another one is found, or it would be claimed again.
                tried.push(ports);
            }
            started => return started,
        }
    }
}

/// Whether a server says that another process has its port.
pub(crate) fn is_taken(said: &str) -> bool {
    said.to_ascii_lowercase().contains(TAKEN)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_says_that_its_port_is_taken_gets_another_one() {
        let mut tried = Vec::new();
        let started = on_free(2, |ports| {
            tried.extend(ports.iter().map(Port::number));
            match tried.len() {
                2 => Err("bind: Address already in use".to_owned()),
                4 => Err("listen tcp 127.0.0.1:1: bind: address already in use".to_owned()),
                _ => Ok(ports[0].number()),
            }
        });
        assert_eq!(started, Ok(tried[4]));
        let different: BTreeSet<u16> = tried.iter().copied().collect();
        assert_eq!(different.len(), 6, "{tried:?}");
        let mut starts = 0;
        let failed: Result<(), String> = on_free(1, |_| {
            starts += 1;
            Err("out of memory".to_owned())
        });
        assert_eq!((failed, starts), (Err("out of memory".to_owned()), 1));
        let taken: Result<(), String> = on_free(1, |_| Err(TAKEN.to_owned()));
        assert_eq!(taken, Err(TAKEN.to_owned()), "not for ever");
    }
}
