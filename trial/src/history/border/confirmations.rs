//! Confirmations: a grant is confirmed only if it may hold, and always if it certainly does. A release says the same of the
//! grant that it ends.

use lockcore::{Claim, Grant};

use super::grants::Gone;
use super::{Border, Sent};
use crate::history::check::{Findings, Subject, Violation};
use crate::history::index::{Keys, Pos};
use crate::history::{Call, Law, Reply};

pub(super) fn check(border: &Border<'_>, keys: &Keys, findings: &mut Findings) {
    for call in &border.sent {
        let (Call::Confirm { grant, claims } | Call::Release { grant, claims }) = call.request
        else {
            continue;
        };
        if let Some((at, Reply::Confirmed(held) | Reply::Released(held))) = call.answer {
            let is_release = matches!(call.request, Call::Release { .. });
            let wrong = match held {
                true => cannot_hold(border, keys, call, at, *grant, claims),
                // Perhaps an earlier copy of the release was told otherwise.
                false if border.setting.repeats => None,
                // Or was executed, and the answer is that of the second.
                false if border.setting.doubles && is_release => None,
                false => holds(border, call, at, *grant).then(|| {
                    let wrong = "does not hold any more, and nobody has ended or released it";
                    (Law::ConfirmationsAreTrue, wrong.to_owned(), None)
                }),
            };
            findings.judged(Law::ConfirmationsAreTrue, 1);
            if let Some((law, wrong, other)) = wrong {
                let mut about = vec![Subject::Grant(*grant)];
                about.extend(other.map(Subject::Grant));
                about.extend(claims.iter().map(|claim| Subject::Key(claim.key().clone())));
                let what = format!("confirmation: {grant} {wrong}");
                let violation = Violation::new(law, at, what);
                findings.add(violation.about(about));
            }
        }
    }
}

/// It certainly holds from before the call until after the answer, in a session that lives.
fn holds(border: &Border<'_>, call: &Sent<'_>, at: Pos, grant: Grant) -> bool {
    let (Some(asked), Some(life)) = (
        border.asked.get(&grant),
        border.sessions.get(&grant.session),
    ) else {
        return false;
    };
    let (from, until) = asked.certain_but_for(border, call.begun);
    let (_, lives) = life.lives(&border.setting);
    from < call.begun && at < until.min(lives)
}

/// Why it certainly did not hold at any time of the call, and which law that breaks: a store that may lose a release has
/// nothing to say for a dead session or a number that is over.
fn cannot_hold(
    border: &Border<'_>,
    keys: &Keys,
    call: &Sent<'_>,
    at: Pos,
    grant: Grant,
    claims: &[Claim],
) -> Option<(Law, String, Option<Grant>)> {
    let wrong = |why: &str| Some((Law::ConfirmationsAreTrue, why.to_owned(), None));
    let Some(asked) = border.asked.get(&grant).filter(|asked| asked.begun < at) else {
        return wrong("holds, and nobody asked for it");
    };
    let life = border.sessions.get(&grant.session)?;
    if life.dead < call.begun {
        let why = "holds, and its session is dead";
        return Some((Law::DeadStaysDead, why.to_owned(), None));
    }
    if life.retired(grant.n).1 < call.begun {
        let why = "holds, and its number is over";
        return Some((Law::UnknownIsSettled, why.to_owned(), None));
    }
    for claim in claims {
        let key = keys.find(claim.key())?;
        // A session that is due may hold for as long as nobody has ended it.
        let (until, gone) = asked.possible(border, key);
        if gone == Gone::Released && until < call.begun {
            return wrong("holds, and was released");
        }
        // Somebody else who is incompatible held all that time.
        let cast = asked.cast(key)?;
        let others = &border.by_key[key];
        // Those that asked before, the last ones first: of these few hold at a time.
        let before = others.partition_point(|other| border.asked[other].begun < call.begun);
        for other in others[..before].iter().rev().take(16) {
            let other = &border.asked[other];
            let own = other.owner == asked.owner;
            let Some(held) = other
                .cast(key)
                .filter(|held| !own && !held.mode.beside(cast.mode))
            else {
                continue;
            };
            let (from, until) = other.certain(border);
            if from < call.begun && at < until {
                let why = format!(
                    "holds {}, and {} certainly held it in mode {} all the time",
                    claim.key(),
                    other.grant,
                    held.mode
                );
                return Some((Law::ConfirmationsAreTrue, why, Some(other.grant)));
            }
        }
    }
    None
}
