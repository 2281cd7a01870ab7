//! Tokens on each key, and on each key above it: what is asked for after an answer gets a greater one.

use super::Border;
use crate::history::Law;
use crate::history::check::{Findings, Subject, Violation};
use crate::history::index::{Keys, Pos};

pub(super) fn check(border: &Border<'_>, keys: &Keys, findings: &mut Findings) {
    for (key, grants) in border.by_key.iter().enumerate() {
        let answers = grants.iter().flat_map(|grant| {
            let asked = &border.asked[grant];
            let answers = asked.answers.iter();
            answers
                .map(move |(begun, answer, token)| (*answer, asked.drawn(*begun), *token, *grant))
        });
        let mut answers: Vec<_> = answers.collect();
        answers.sort_unstable();
        // The greatest until then.
        let mut greatest: Vec<(Pos, u64, lockcore::Grant)> = Vec::with_capacity(answers.len());
        for (answer, _, token, grant) in &answers {
            let most = greatest.last().filter(|(_, most, _)| most > token);
            let (most, who) = most.map_or((*token, *grant), |(_, most, who)| (*most, *who));
            greatest.push((*answer, most, who));
        }
        for (answer, begun, token, grant) in answers {
            let before = greatest.partition_point(|(answer, ..)| *answer < begun);
            let Some((_, most, who)) = before.checked_sub(1).map(|last| greatest[last]) else {
                continue;
            };
            if who == grant {
                continue; // A copy may be answered with the same.
            }
            findings.judged(Law::TokensOnlyRise, 1);
            if most >= token {
                let key = keys.key(key);
                let what = format!(
                    "{key}: {grant} has token {token}, and {who} had {most} before it was asked for"
                );
                let about = [
                    Subject::Key(key.clone()),
                    Subject::Grant(grant),
                    Subject::Grant(who),
                ];
                findings.add(Violation::new(Law::TokensOnlyRise, answer, what).about(about));
            }
        }
    }
}
