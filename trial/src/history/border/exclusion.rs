//! Of two grants that are incompatible, at most one certainly holds at a time, and none is granted while another one
//! certainly holds.

use std::collections::BTreeSet;

use lockcore::{LockKey, Mode};

use super::Border;
use super::grants::Asked;
use crate::history::Law;
use crate::history::check::{Findings, Subject, Violation};
use crate::history::index::{Cast, Keys, Pos};

/// One key of a grant that was handed out.
#[derive(Clone, Copy)]
struct Entry<'a> {
    asked: &'a Asked,
    cast: Cast,
    /// The request that was granted.
    call: (Pos, Pos),
    certain: (Pos, Pos),
}

impl Entry<'_> {
    fn excludes(&self, other: &Self) -> bool {
        let reenters =
            self.asked.owner == other.asked.owner && (self.cast.reenters || other.cast.reenters);
        !self.cast.mode.beside(other.cast.mode) && !reenters
    }

    /// It certainly holds the key all that time.
    fn holds(&self, (from, until): (Pos, Pos)) -> bool {
        self.certain.0 < from && until < self.certain.1
    }
}

pub(super) fn check(border: &Border<'_>, keys: &Keys, findings: &mut Findings) {
    for (key, grants) in border.by_key.iter().enumerate() {
        let entries = grants.iter().filter_map(|grant| {
            let asked = &border.asked[grant];
            Some(Entry {
                asked,
                cast: asked.cast(key)?,
                call: asked.granted()?,
                certain: asked.certain(border),
            })
        });
        let mut entries: Vec<Entry<'_>> = entries.collect();
        // By the answers that granted them: whoever certainly holds before another one's answer comes before it.
        entries.sort_by_key(|entry| entry.call.1);
        on_key(keys.key(key), &entries, findings);
    }
}

fn on_key(key: &LockKey, entries: &[Entry<'_>], findings: &mut Findings) {
    // Those that may hold when a later one is granted.
    let mut holding: Vec<Entry<'_>> = Vec::new();
    let mut modes = BTreeSet::new();
    for entry in entries {
        let excluded = |mode: &Mode| !mode.beside(entry.cast.mode);
        let contended = modes.iter().any(excluded);
        findings.judged(Law::AtMostOneHolder, usize::from(contended));
        modes.insert(entry.cast.mode);
        let mut shares = Vec::new();
        for other in &holding {
            if other.asked.grant == entry.asked.grant {
                continue;
            }
            // Others may have joined it since an earlier copy of its request was granted, whose answer was lost.
            let joined = other.cast.share && other.holds((entry.asked.begun, entry.call.1));
            if joined && entry.cast.share {
                shares.push(*other);
            }
            if !entry.excludes(other) {
                continue;
            }
            let beside = other.holds(entry.call);
            let from = entry.certain.0.max(other.certain.0);
            let both = from < entry.certain.1.min(other.certain.1);
            if both || beside {
                let at = entry.call.1;
                let what = format!(
                    "{key}: {} was granted {} while {} certainly held {}",
                    entry.asked.grant, entry.cast.mode, other.asked.grant, other.cast.mode
                );
                found(
                    Law::AtMostOneHolder,
                    at,
                    what,
                    key,
                    [entry, other],
                    findings,
                );
            }
        }
        if let Some(limit) = entry.cast.limit.filter(|_| entry.cast.share) {
            findings.judged(Law::SharedAreASet, 1);
            if u32::try_from(shares.len()).is_ok_and(|shares| shares >= limit) {
                let what = format!(
                    "{key}: {} was granted beside {} shares, and asked for at most {limit}",
                    entry.asked.grant,
                    shares.len()
                );
                let at = entry.call.1;
                let all = [entry].into_iter().chain(&shares);
                found(Law::SharedAreASet, at, what, key, all, findings);
            }
        }
        // What has ended before this call has ended before every later answer.
        holding.retain(|other| entry.call.0 < other.certain.1);
        if entry.certain.0 < entry.certain.1 {
            holding.push(*entry);
        }
    }
}

fn found<'a, 'b: 'a>(
    law: Law,
    at: Pos,
    what: String,
    key: &LockKey,
    entries: impl IntoIterator<Item = &'a Entry<'b>>,
    findings: &mut Findings,
) {
    let mut about = vec![Subject::Key(key.clone())];
    let grants = entries.into_iter().map(|entry| entry.asked.grant);
    about.extend(grants.map(Subject::Grant));
    findings.add(Violation::new(law, at, what).about(about));
}
