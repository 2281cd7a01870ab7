//! `ClaimStore`: one script for each operation.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{
    Acquire, Acquired, ClaimStore, SmallBatches, SmallLimits, Standing, Stood, Sweep, Swept,
};
use lockcore::{Busy, Claim, ErrorKind, Grant, Operation, Refused, Result, Waiting};
use redis::Value;

use crate::RedisBackend;
use crate::error::{NAME, found, odd_answer};
use crate::link::Link;
use crate::record::{Answer, Parts, holders, name, want_letter};
use crate::scripts;

/// So many holders are removed by one script at most, so that others are not held up.
const SWEPT_AT_ONCE: usize = 1_000;
/// So many sessions are looked at in one script, to be ended or forgotten.
const FORGOTTEN_AT_ONCE: usize = 200;
/// So many requests go together at most, and so many of these are under way at once.
const TOGETHER: usize = 64;
const AT_ONCE: usize = 4;
/// How often an attempt goes on after a script that only removed what was in its way and did not count.
const CLEARINGS: usize = 100;

#[async_trait]
impl ClaimStore for RedisBackend {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        self.asking.iter().for_each(Standing::stands);
        if !SmallBatches::fits(&request.claims) {
            return self.acquire_alone(request).await;
        }
        let alone = |request| async move { self.acquire_alone(&request).await };
        self.small.acquire(request, alone).await
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        if !SmallBatches::fits(claims) {
            return self.release_alone(grant, claims).await;
        }
        let alone = |(grant, claim)| async move { self.release_alone(grant, &[claim]).await };
        self.small.release(grant, &claims[0], alone).await
    }

    async fn confirm(&self, grant: Grant, claims: &[Claim]) -> Result<bool> {
        let (session, n) = (grant.session.to_string(), grant.n.to_string());
        let mut arguments = vec![session.as_bytes(), n.as_bytes()];
        for claim in claims {
            arguments.push(want_letter(claim.want()).as_bytes());
            arguments.push(claim.key().as_str().as_bytes());
        }
        let holds = |answer: &Value| *answer == Value::Int(1);
        let answer = self
            .link
            .call_durably(Operation::Confirm, &scripts::CONFIRM, &arguments, holds)
            .await?;
        answer.yes()
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let limit = limit.max(1);
        let session = match which {
            Sweep::Session(session) => session.to_string(),
            Sweep::All => String::new(),
        };
        let (mut removed, mut sessions) = (0, 0);
        let mut after = Vec::new();
        while removed < limit {
            let at_once = (limit - removed).min(SWEPT_AT_ONCE).to_string();
            let arguments = [session.as_bytes(), &after, at_once.as_bytes()];
            let mut parts = self.sweep_with(&scripts::SWEEP, &arguments).await?;
            removed += count(parts.part()?)?;
            after = parts.part()?.bytes()?;
            sessions += count(parts.part()?)?;
            if after.is_empty() {
                break;
            }
        }
        while which == Sweep::All && removed < limit {
            let at_once = (limit - removed).min(FORGOTTEN_AT_ONCE).to_string();
            let mut parts = self
                .sweep_with(&scripts::FORGET, &[at_once.as_bytes()])
                .await?;
            removed += count(parts.part()?)?;
            if !parts.part()?.yes()? {
                break;
            }
        }
        Ok(Swept::new(removed, removed >= limit).of_sessions(sessions))
    }
}

impl RedisBackend {
    async fn acquire_alone(&self, request: &Acquire) -> Result<Acquired> {
        let operation = Operation::Acquire;
        let [session, n, m, incarnation] = [
            request.grant.session.to_string(),
            request.grant.n.to_string(),
            request.owner.m.to_string(),
            name(request.incarnation),
        ];
        let line = line(request);
        let wants: Vec<String> = request.claims.iter().map(want).collect();
        let mut arguments = vec![
            session.as_bytes(),
            n.as_bytes(),
            m.as_bytes(),
            incarnation.as_bytes(),
            line.as_bytes(),
        ];
        for (claim, want) in request.claims.iter().zip(&wants) {
            arguments.push(want.as_bytes());
            arguments.push(claim.key().as_str().as_bytes());
        }
        for _ in 0..CLEARINGS {
            let answer = self
                .link
                .call_durably(operation, &scripts::ACQUIRE, &arguments, is_granted)
                .await?;
            if answer.is_text() {
                return Ok(Acquired::Acquired(answer.token()?));
            }
            let mut parts = answer.parts()?;
            match parts.part()?.text()?.as_str() {
                "busy" => return Ok(Acquired::Busy(self.busy(request, parts)?)),
                "void" => return Ok(Acquired::Void),
                "moved" => return Ok(Acquired::Moved),
                "again" => {}
                _ => return Err(odd_answer(operation)),
            }
        }
        Err(found(
            ErrorKind::Unavailable,
            operation,
            "too many holders that do not count are in the way: sweep the namespace",
        ))
    }

    async fn release_alone(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let (session, n) = (grant.session.to_string(), grant.n.to_string());
        let mut arguments = vec![session.as_bytes(), n.as_bytes()];
        arguments.extend(claims.iter().map(|claim| claim.key().as_str().as_bytes()));
        let answer = self
            .link
            .call(Operation::Release, &scripts::RELEASE, &arguments)
            .await?;
        match answer.number()? {
            2 => Ok(Stood::Held),
            1 => Ok(Stood::Fallen),
            0 => Ok(Stood::Absent),
            _ => Err(odd_answer(Operation::Release)),
        }
    }
}

/// Requests of one flat key each, sent together.
pub(crate) fn small(link: &Arc<Link>) -> SmallBatches {
    let limits = SmallLimits {
        together: TOGETHER,
        at_once: AT_ONCE,
        timeout: link.config.timeout,
    };
    SmallBatches::new(
        link,
        NAME,
        limits,
        |link, requests| Box::pin(async move { acquire_many(&link, &requests).await }),
        |link, releases| Box::pin(async move { release_many(&link, &releases).await }),
    )
}

async fn acquire_many(link: &Arc<Link>, requests: &[Acquire]) -> Result<Vec<Option<Acquired>>> {
    let first = &requests[0];
    let mut arguments = vec![first.grant.session.to_string(), name(first.incarnation)];
    for Acquire {
        grant,
        owner,
        claims,
        ..
    } in requests
    {
        let key = claims[0].key().as_str().to_owned();
        arguments.extend([
            grant.n.to_string(),
            owner.m.to_string(),
            want(&claims[0]),
            key,
        ]);
    }
    let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
    let is_granted =
        |answer: &Value| matches!(answer, Value::Array(all) if all.iter().any(is_granted));
    let answer = link.call_durably(
        Operation::Acquire,
        &scripts::ACQUIRE_MANY,
        &arguments,
        is_granted,
    );
    let acquired = |token: Answer| token.token().map(Acquired::Acquired);
    some_of(answer.await?, requests.len(), acquired)
}

async fn release_many(link: &Arc<Link>, releases: &[(Grant, Claim)]) -> Result<Vec<Option<Stood>>> {
    let mut arguments = vec![releases[0].0.session.to_string()];
    for (grant, claim) in releases {
        arguments.extend([grant.n.to_string(), claim.key().as_str().to_owned()]);
    }
    let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
    let answer = link.call(Operation::Release, &scripts::RELEASE_MANY, &arguments);
    let stood = |answer: Answer| match answer.number()? {
        2 => Ok(Stood::Held),
        _ => Err(odd_answer(Operation::Release)),
    };
    some_of(answer.await?, releases.len(), stood)
}

/// The answers to so many, of which some have none.
fn some_of<T>(
    answer: Answer,
    many: usize,
    read: impl Fn(Answer) -> Result<T>,
) -> Result<Vec<Option<T>>> {
    let odd = answer.odd();
    let parts = answer.parts()?;
    let some = parts.map(|part| (!part.is_nothing()).then(|| read(part)).transpose());
    let some: Vec<_> = some.collect::<Result<_>>()?;
    if some.len() == many {
        Ok(some)
    } else {
        Err(odd)
    }
}

impl RedisBackend {
    /// Reads a refusal, and lets those who watch its keys know when somebody in the way is due.
    fn busy(&self, request: &Acquire, mut parts: Parts) -> Result<Busy> {
        let more = parts.part()?.yes()?;
        let mut refused = Vec::new();
        for part in parts {
            let odd = part.odd();
            let mut part = part.parts()?;
            let claim = count(part.part()?)?;
            let claim = request.claims.get(claim).cloned().ok_or(odd)?;
            let more = part.part()?.yes()?;
            let due = part.part()?;
            let odd = due.odd();
            let due_ms: i64 = due.text()?.parse().map_err(|_| odd)?;
            if let Ok(due_ms) = u64::try_from(due_ms) {
                let due = Duration::from_millis(due_ms.saturating_add(1));
                self.watches.due(claim.key(), due);
            }
            refused.push(Refused {
                claim,
                holders: holders(part.part()?)?,
                more,
            });
        }
        if refused.is_empty() {
            return Err(odd_answer(Operation::Acquire));
        }
        Ok(Busy::new(refused, more))
    }

    async fn sweep_with(&self, script: &redis::Script, arguments: &[&[u8]]) -> Result<Parts> {
        let answer = self.link.call(Operation::Sweep, script, arguments).await?;
        answer.parts()
    }
}

fn count(answer: Answer) -> Result<usize> {
    let odd = answer.odd();
    usize::try_from(answer.number()?).map_err(|_| odd)
}

/// How a request stands in line: nothing if it does not, else that it waits, and the waiters that it may pass.
fn line(request: &Acquire) -> String {
    if !request.waits || request.claims.len() != 1 {
        return String::new();
    }
    let mut line = "waits".to_owned();
    for past in &request.past {
        let Grant { session, n } = past.grant;
        let Waiting {
            place,
            passed,
            may_go,
        } = past.waiting;
        let may_go = u8::from(may_go);
        line += &format!("\n{session}/{n}/{place}/{passed}/{may_go}");
    }
    line
}

/// The letter of the want, and the limit of a share behind it.
fn want(claim: &Claim) -> String {
    let letter = want_letter(claim.want());
    match claim.want().limit() {
        Some(limit) => format!("{letter}{limit}"),
        None => letter.to_owned(),
    }
}

/// A token alone.
fn is_granted(answer: &Value) -> bool {
    matches!(answer, Value::BulkString(_))
}
