//! Whose a connection of this machine is, as Linux says it.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Which of some processes has which connections, by their own port and that of the other side.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<(u16, u16), usize>);

impl Owners {
    /// Looks at the sockets of these processes, which are known by their place in the list.
    pub(super) fn look(processes: &[u32]) -> io::Result<Self> {
        let mut sockets = BTreeMap::new();
        for (place, process) in processes.iter().enumerate() {
            let folder = format!("/proc/{process}/fd");
            let failed =
                |error: io::Error| io::Error::new(error.kind(), format!("{folder}: {error}"));
            for file in fs::read_dir(&folder).map_err(failed)? {
                // It may be closed by now.
                let Ok(target) = fs::read_link(file.map_err(failed)?.path()) else {
                    continue;
                };
                let inode = target.to_str().and_then(|target| {
                    target
                        .strip_prefix("socket:[")?
                        .strip_suffix(']')?
                        .parse()
                        .ok()
                });
                sockets.extend(inode.map(|inode: u64| (inode, place)));
            }
        }
        let mut owners = BTreeMap::new();
        // A socket of Java is one of IPv6 with an address of IPv4.
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let text = match fs::read_to_string(table) {
                // It is not there where there is no IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text?,
            };
            let all = text.lines().filter_map(connection);
            owners.extend(all.filter_map(|(ports, inode)| Some((ports, *sockets.get(&inode)?))));
        }
        Ok(Self(owners))
    }

    /// Who has the connection from one port of this machine to another one.
    pub(super) fn of(&self, from: u16, to: u16) -> Option<usize> {
        self.0.get(&(from, to)).copied()
    }
}

/// The ports and the socket of a line of the table.
fn connection(line: &str) -> Option<((u16, u16), u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let port = |field: usize| {
        let (_, port) = fields.get(field)?.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    Some(((port(1)?, port(2)?), fields.get(9)?.parse().ok()?))
}
