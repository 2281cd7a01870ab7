//! The line of a key: whoever waits there is in the way of all who come later.

use super::Border;
use super::grants::Asked;
use crate::history::Law;
use crate::history::check::{Findings, Subject, Violation};
use crate::history::index::{Cast, Keys, Pos};

/// A waiter on one of its keys.
struct Waiter<'a> {
    asked: &'a Asked,
    cast: Cast,
    from: Pos,
    until: Pos,
}

/// Where something happens to the store, a waiter may lose its place and is entered anew; so only other runs are judged.
pub(super) fn check(border: &Border<'_>, keys: &Keys, findings: &mut Findings) {
    if !border.setting.steady {
        return;
    }
    for (key, grants) in border.by_key.iter().enumerate() {
        let asked = || grants.iter().map(|grant| &border.asked[grant]);
        let waiters = asked().filter_map(|asked| {
            let (from, until) = asked.in_line(border)?;
            let cast = asked.cast(key)?;
            (from < until).then_some(Waiter {
                asked,
                cast,
                from,
                until,
            })
        });
        let mut waiters: Vec<Waiter<'_>> = waiters.collect();
        waiters.sort_by_key(|waiter| waiter.from);
        for later in asked() {
            let (Some((_, granted)), Some(cast)) = (later.granted(), later.cast(key)) else {
                continue;
            };
            let earlier = waiters.partition_point(|waiter| waiter.from < later.begun);
            let mut in_the_way = waiters[..earlier].iter().filter(|waiter| {
                let own = waiter.asked.owner == later.owner;
                !own && !waiter.cast.mode.beside(cast.mode)
            });
            let judged = in_the_way.clone().any(|waiter| later.begun < waiter.until);
            findings.judged(Law::InTurn, usize::from(judged));
            if let Some(waiter) = in_the_way.find(|waiter| granted < waiter.until) {
                let (key, waiter) = (keys.key(key), waiter.asked.grant);
                let what = format!(
                    "{key}: {} was granted although {waiter} had stood in line before",
                    later.grant
                );
                let about = [waiter, later.grant].map(Subject::Grant);
                let about = about.into_iter().chain([Subject::Key(key.clone())]);
                findings.add(Violation::new(Law::InTurn, granted, what).about(about));
            }
        }
    }
}
