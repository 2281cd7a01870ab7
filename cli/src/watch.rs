//! `lockkeeper watch`: a line for each change.

use std::time::Duration;

use lockkeeper::backend::Filter;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior};

use crate::args::{Common, WatchArgs};
use crate::changes::{Change, Look, Looks};
use crate::describe::{self, HolderJson};
use crate::failure::{Failure, one_line, say};
use crate::list::Left;
use crate::output::Output;
use crate::signals::Signals;
use crate::store;

/// A store that does not answer is asked for so long.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn watch(common: &Common, args: WatchArgs) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let store = store::open_unless(&mut signals, common).await?;
    let filter = match args.key {
        Some(key) => Filter::Key(key),
        None => Filter::Prefix(args.prefix),
    };
    let mut looks = Looks::new(&*store.backend, filter);
    let mut output = Output::new();
    let mut timer = tokio::time::interval(args.every);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = Failing::default();
    loop {
        let look = tokio::select! {
            biased;
            number = signals.ending() => return Err(Failure::signal(number.as_raw())),
            look = async { timer.tick().await; looks.again().await } => look,
        };
        match look {
            Ok(look) => {
                failing.answered();
                write(&look, common.json, &mut output)?;
            }
            Err(failure) => match failing.again(Instant::now()) {
                Next::First => say(&format!(
                    "{}; asking again",
                    failure.message().unwrap_or_default()
                )),
                Next::Another => {}
                Next::Over => return Err(failure),
            },
        }
    }
}

/// Since when the store does not answer, if it does not.
#[derive(Default)]
struct Failing(Option<Instant>);

/// What a failure comes to.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    First,
    Another,
    /// It has lasted too long.
    Over,
}

impl Failing {
    fn answered(&mut self) {
        self.0 = None;
    }

    fn again(&mut self, now: Instant) -> Next {
        match self.0 {
            None => {
                self.0 = Some(now);
                Next::First
            }
            Some(since) if now - since < PATIENCE => Next::Another,
            Some(_) => Next::Over,
        }
    }
}

fn write(look: &Look, json: bool, output: &mut Output) -> Result<(), Failure> {
    let at = describe::time(look.at);
    for change in &look.changes {
        if json {
            output.json(&ChangeJson::new(&at, change))?;
        } else {
            output.line(&line(&at, change))?;
        }
    }
    output.flush()
}

/// Fields with tabs between them: when, what, key, mode, session, label, and by whom and why.
pub(crate) fn line(at: &str, change: &Change) -> String {
    let holder = &change.holder;
    let session = holder
        .grant
        .map_or_else(|| "foreign".to_owned(), |grant| grant.session.to_string());
    let mode = describe::mode(&holder.key, holder.mode);
    let label = one_line(&holder.label);
    let (kind, key) = (change.kind.as_str(), holder.key.as_str());
    let mut line = format!("{at}\t{kind}\t{key}\t{mode}\t{session}\t{label}");
    if let Some((by, reason)) = &change.note {
        line += &format!("\tby {}: {}", one_line(by), one_line(reason));
    }
    line
}

#[derive(Serialize)]
struct ChangeJson<'a> {
    at: &'a str,
    change: &'static str,
    key: &'a str,
    holder: HolderJson<'a>,
    by: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> ChangeJson<'a> {
    fn new(at: &'a str, change: &'a Change) -> Self {
        let note = change.note.as_ref();
        Self {
            at,
            change: change.kind.as_str(),
            key: change.holder.key.as_str(),
            holder: HolderJson::of(&change.holder, &Left::default()),
            by: note.map(|(by, _)| by.as_str()),
            reason: note.map(|(_, reason)| reason.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_has_answered_again_has_all_the_time_anew() {
        let begun = Instant::now();
        let (mut failing, later) = (Failing::default(), begun + PATIENCE);
        assert_eq!(failing.again(begun), Next::First);
        assert_eq!(failing.again(later - Duration::from_secs(1)), Next::Another);
        assert_eq!(failing.again(later), Next::Over);
        failing.answered();
        assert_eq!(failing.again(later), Next::First);
        assert_eq!(failing.again(later + Duration::from_secs(1)), Next::Another);
    }
}
