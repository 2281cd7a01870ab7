//! [`Log`]: what one process writes down, so that it survives a SIGKILL.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::history::{Event, History, What};
use crate::programs::Scribe;

/// A clock that all processes of this machine share, and that never steps.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Nanoseconds on the clock of the history.
pub(super) fn now() -> u64 {
    let time = clock_gettime(CLOCK);
    let (secs, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    secs.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0)
}

/// A file of events of one process, each a line that is written at once.
#[derive(Debug, Clone)]
pub(super) struct Log {
    file: Arc<File>,
    process: u32,
    calls: Arc<AtomicU64>,
}

impl Scribe for Log {
    fn write_down(&self, what: What) {
        self.record(what);
    }

    fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }
}

impl Log {
    pub(super) fn create(dir: &Path, process: u32) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(dir.join(format!("log-{process}")))?;
        Ok(Self {
            file: Arc::new(file),
            process,
            calls: Arc::default(),
        })
    }

    /// Writes down that something happened then.
    pub(super) fn record_at(&self, at: u64, what: What) {
        self.line(&Event {
            at,
            process: self.process,
            what,
        });
    }

    /// Writes down that something happens now.
    pub(super) fn record(&self, what: What) {
        self.record_at(now(), what);
    }

    /// Writes down that something happens now to another process.
    pub(super) fn record_of(&self, process: u32, what: What) {
        let at = now();
        self.line(&Event { at, process, what });
    }

    fn line(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("events are JSON");
        line.push(b'\n');
        // Whoever cannot write down what it does must not go on.
        (&*self.file)
            .write_all(&line)
            .expect("the log takes a line");
    }
}

/// All that the processes of a run have written down until now, in the order of their clock. They may go on: whatever
/// led to an event that is there is there too.
pub(super) fn collect(dir: &Path) -> io::Result<History> {
    let (mut history, _) = read(dir)?;
    history.events.sort_by_key(|event| event.at);
    Ok(history)
}

/// All that the processes of a run have written down, which have ended. Half a line is at the end of what a killed
/// process wrote, and nowhere else.
pub(super) fn collect_all(dir: &Path) -> io::Result<History> {
    let (mut history, torn) = read(dir)?;
    for process in torn {
        let killed = |event: &Event| event.process == process && event.what == What::Killed;
        if !history.events.iter().any(killed) {
            let what = format!("the log of process {process} is torn, and nobody killed it");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
    }
    history.events.sort_by_key(|event| event.at);
    Ok(history)
}

/// The whole lines that are there until now, and whose logs end in half a line.
fn read(dir: &Path) -> io::Result<(History, Vec<u32>)> {
    let until = now();
    let mut torn = Vec::new();
    let mut history = History {
        real_time: true,
        ..History::default()
    };
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut file = BufReader::new(File::open(&path)?);
        if let Some(process) = name.strip_prefix("log-") {
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let lines = whole_lines(text.as_slice())?;
            if lines.len() < text.len() {
                torn.extend(process.parse::<u32>());
            }
            for line in lines
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                history.events.push(serde_json::from_slice(line)?);
            }
        } else if name.starts_with("resource-") {
            super::resource::events(file, &mut history)?;
        }
    }
    history.events.retain(|event| event.at <= until);
    Ok((history, torn))
}

/// A process that was killed in the middle of a line has not begun what the line says.
pub(super) fn whole_lines(mut from: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    from.read_to_end(&mut text)?;
    let end = text.iter().rposition(|byte| *byte == b'\n');
    text.truncate(end.map_or(0, |end| end + 1));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockcore_conformance::parts::Shared;

    #[test]
    fn half_a_line_is_a_killed_processs() {
        let dir = Shared::new().unwrap();
        let log = Log::create(dir.path(), 7).unwrap();
        log.record(What::Calm);
        (&*log.file).write_all(b"{\"at\":1,\"proc").unwrap();
        assert_eq!(collect(dir.path()).unwrap().events.len(), 1);
        assert!(collect_all(dir.path()).is_err());
        let outside = Log::create(dir.path(), 0).unwrap();
        outside.record_of(7, What::Killed);
        assert_eq!(collect_all(dir.path()).unwrap().events.len(), 2);
    }
}
