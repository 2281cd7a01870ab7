//! Resources that locks protect: a counter for each key that checks tokens, and one that does not. Each is a file
//! whose lines are what it answered: a line that is written has happened, whoever is killed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::breach::Breach;
use super::log::{now, whole_lines};
use crate::history::{Event, History, What};
use crate::programs::Access;

/// More than one line takes.
const TAIL: i64 = 2_048;

/// What a resource answered, and what it was then.
#[derive(Serialize, Deserialize)]
struct Answer {
    value: u64,
    greatest: u64,
    event: Event,
}

/// A counter. It is used by one at a time, as long as that one runs: who is stopped meanwhile keeps it.
#[derive(Debug)]
struct Counter {
    file: File,
    value: u64,
    greatest: u64,
}

impl Counter {
    async fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).open(path)?;
        // The session of this process is renewed meanwhile.
        while let Err(refused) = file.try_lock() {
            match refused {
                TryLockError::WouldBlock => sleep(Duration::from_millis(1)).await,
                TryLockError::Error(error) => return Err(error),
            }
        }
        let length = file.seek(SeekFrom::End(0))?;
        let whole = i64::try_from(length).unwrap_or(i64::MAX);
        file.seek(SeekFrom::End(-whole.min(TAIL)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        // Half a line, of somebody who was killed, has not happened.
        let lines = whole_lines(tail.as_slice())?;
        file.set_len(length - (tail.len() - lines.len()) as u64)?;
        let last = lines.trim_ascii_end().rsplit(|byte| *byte == b'\n').next();
        let (value, greatest) = match last {
            None | Some([]) => (0, 0),
            Some(line) => {
                let last: Answer = serde_json::from_slice(line)?;
                (last.value, last.greatest)
            }
        };
        Ok(Self {
            file,
            value,
            greatest,
        })
    }

    /// Whether the token is taken. Where tokens are checked, a read counts like a write: whoever reads shuts out those
    /// before.
    fn admits(&mut self, access: &Access, breach: Option<Breach>) -> bool {
        let token = access.token.get();
        let admitted = !access.fenced
            || match breach {
                Some(Breach::TokensIgnored) => true,
                Some(Breach::ValidRefused) if token.is_multiple_of(5) => false,
                _ => token >= self.greatest,
            };
        self.greatest = self.greatest.max(token);
        admitted
    }

    /// What it answers is what it does.
    fn answer(mut self, process: u32, what: What) -> io::Result<()> {
        let answer = Answer {
            value: self.value,
            greatest: self.greatest,
            event: Event {
                at: now(),
                process,
                what,
            },
        };
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

/// The resources of a run, as one process sees them.
#[derive(Debug, Clone)]
pub(super) struct Resources {
    pub(super) dir: PathBuf,
    pub(super) process: u32,
    /// What they do wrong.
    pub(super) breach: Option<Breach>,
}

impl Resources {
    async fn counter(&self, access: &Access) -> io::Result<Counter> {
        let kind = if access.fenced { "fenced" } else { "open" };
        // No key of a run has this character.
        let name = access.resource.as_str().replace('/', "%");
        Counter::open(&self.dir.join(format!("resource-{kind}-{name}"))).await
    }

    pub(super) async fn read(&self, access: &Access) -> io::Result<Option<u64>> {
        let mut counter = self.counter(access).await?;
        let admitted = counter.admits(access, self.breach);
        let forgets = self.breach == Some(Breach::LosesWrites) && !access.fenced;
        let value = admitted.then_some(counter.value / if forgets { 2 } else { 1 });
        let what = What::Read {
            resource: access.resource.clone(),
            fenced: access.fenced,
            attempt: access.attempt,
            value,
        };
        counter.answer(self.process, what)?;
        Ok(value)
    }

    /// Writes once more, if somebody with a greater token came meanwhile: what a resource that checks tokens refuses.
    pub(super) async fn write_stale(&self, access: Access, read: u64) -> io::Result<()> {
        let counter = self.counter(&access).await?;
        match access.token.get() < counter.greatest {
            true => self.write_to(counter, access, read),
            false => Ok(()),
        }
    }

    pub(super) async fn write(&self, access: Access, read: u64) -> io::Result<()> {
        let counter = self.counter(&access).await?;
        self.write_to(counter, access, read)
    }

    fn write_to(&self, mut counter: Counter, access: Access, read: u64) -> io::Result<()> {
        let taken = counter.admits(&access, self.breach);
        if taken {
            counter.value = read + 1;
        }
        let what = What::Wrote {
            resource: access.resource,
            fenced: access.fenced,
            attempt: access.attempt,
            read,
            taken,
        };
        counter.answer(self.process, what)
    }
}

/// Adds what a resource answered to a history.
pub(super) fn events(from: impl Read, history: &mut History) -> io::Result<()> {
    for line in whole_lines(from)?.split(|byte| *byte == b'\n') {
        if !line.is_empty() {
            let answer: Answer = serde_json::from_slice(line)?;
            history.events.push(answer.event);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockcore::{FencingToken, LockKey};

    use super::*;
    use lockcore_conformance::parts::Shared;

    fn access(token: u64, fenced: bool) -> Access {
        Access {
            resource: LockKey::parse("/a/b").unwrap(),
            fenced,
            attempt: token,
            token: FencingToken::new(token).unwrap(),
        }
    }

    fn resources(dir: &Shared) -> Resources {
        Resources {
            dir: dir.path().to_owned(),
            process: 1,
            breach: None,
        }
    }

    #[tokio::test]
    async fn who_checks_tokens_refuses_the_stale() {
        let dir = Shared::new().unwrap();
        let all = resources(&dir);
        let (old, new) = (access(1, true), access(2, true));
        assert_eq!(all.read(&old).await.unwrap(), Some(0));
        assert_eq!(all.read(&new).await.unwrap(), Some(0));
        all.write(new.clone(), 0).await.unwrap();
        all.write(old.clone(), 0).await.unwrap();
        assert_eq!(all.read(&old).await.unwrap(), None);
        assert_eq!(all.read(&new).await.unwrap(), Some(1));
        // The other kind takes them all.
        all.write(access(2, false), 0).await.unwrap();
        all.write(access(1, false), 4).await.unwrap();
        assert_eq!(all.read(&access(1, false)).await.unwrap(), Some(5));
    }

    #[tokio::test]
    async fn half_a_line_has_not_happened() {
        let dir = Shared::new().unwrap();
        let all = resources(&dir);
        for value in 0..100 {
            all.write(access(1, true), value).await.unwrap();
        }
        let path = dir.path().join("resource-fenced-%a%b");
        let whole = std::fs::metadata(&path).unwrap().len();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"value\":7,").unwrap();
        assert_eq!(all.read(&access(2, true)).await.unwrap(), Some(100));
        assert!(whole > u64::try_from(TAIL).unwrap(), "only the end is read");
        let mut history = History::default();
        events(File::open(&path).unwrap(), &mut history).unwrap();
        assert_eq!(history.events.len(), 101);
    }

    #[tokio::test]
    async fn one_at_a_time() {
        let dir = Shared::new().unwrap();
        let all = resources(&dir);
        let held = all.counter(&access(1, true)).await.unwrap();
        let later = access(2, true);
        let mut read = std::pin::pin!(all.read(&later));
        let waits = tokio::time::timeout(Duration::from_millis(50), &mut read).await;
        assert!(waits.is_err(), "somebody else uses it");
        drop(held);
        assert_eq!(read.await.unwrap(), Some(0));
    }
}
