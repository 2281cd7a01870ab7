//! `ClaimStore`: one call of one function for each operation; more where a session in the way is due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use lockcore::backend::judge::{Met, Place, needed, refusal};
use lockcore::backend::{
    Acquire, Acquired, ClaimStore, End, SmallBatches, SmallLimits, Stood, Sweep, Swept,
};
use lockcore::{Busy, Claim, Grant, Life, LockKey, Operation, OwnerId, Result, SessionId};
use sqlx::postgres::PgRow;
use tokio::time::Instant;

use crate::PostgresBackend;
use crate::connections::Link;
use crate::error::{Failure, NAME, Outcome};
use crate::record::{
    Entry, broken, column, id_bytes, name, only, seen, session_id, stored, want_name,
};
use crate::sessions::{end, token};
use crate::sql::{Call, Value};

/// So many rows are removed in one transaction at most. While somebody's old snapshot keeps them, each finds its way past
/// what the ones before have removed.
pub(crate) const SWEPT_AT_ONCE: usize = 20_000;
/// So many requests go together at most: of more keys at once everybody would be told who waits for any. And so many of these
/// are under way at once.
const TOGETHER: usize = 16;
const AT_ONCE: usize = 4;
/// The server names no more of those in the way.
const NAMED: usize = 1_000;

#[async_trait]
impl ClaimStore for PostgresBackend {
    async fn acquire(&self, request: &Acquire) -> Result<Acquired> {
        // Who passes somebody does so by a transaction of its own; and whoever holds something already is looked at again.
        let alone = request.joined || !request.past.is_empty();
        if alone || !SmallBatches::fits(&request.claims) {
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
        let call = confirmation(grant, claims);
        let (link, deadline) = self.begin();
        let outcome = async {
            if only(&link.call(deadline, &call).await?, "confirm")? {
                return Ok(true);
            }
            // A session that is due may yet be renewed: whoever is told that it is not confirmed, is told for good.
            let states = end(link, deadline, &[grant.session], End::IfDue).await?;
            if states[0].life != Life::Living {
                return Ok(false);
            }
            only(&link.call(deadline, &call).await?, "confirm")
        }
        .await;
        outcome.map_err(Failure::of(Operation::Confirm))
    }

    async fn sweep(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let limit = limit.clamp(1, SWEPT_AT_ONCE);
        let swept = match which {
            Sweep::Session(id) => self.sweep_session(id, limit).await,
            Sweep::All => self.sweep_all(limit).await,
        };
        swept.map_err(Failure::of(Operation::Sweep))
    }
}

impl PostgresBackend {
    async fn sweep_session(&self, id: SessionId, limit: usize) -> Outcome<Swept> {
        let values = vec![Value::Bytes(id_bytes(id)), most(limit)];
        let removed = self.swept(Call::new("sweep", values)).await?;
        let removed = count(&removed, "sweep")?;
        Ok(Swept::new(removed, removed >= limit).of_sessions(1))
    }

    async fn sweep_all(&self, limit: usize) -> Outcome<Swept> {
        let due = self
            .swept(Call::new("end_due", Vec::<Value>::new()))
            .await?;
        let due: bool = only(&due, "end_due")?;
        let (mut removed, mut sessions, mut after) = (0, 0, Some(Vec::new()));
        while let Some(from) = after
            && removed < limit
        {
            let values = vec![Value::Bytes(from), most(limit - removed)];
            let rows = self.swept(Call::new("sweep_page", values)).await?;
            removed += count(&rows, "r_removed")?;
            sessions += count(&rows, "r_sessions")?;
            after = only(&rows, "r_next")?;
        }
        if removed < limit {
            let rows = self
                .swept(Call::new("forget", [most(limit - removed)]))
                .await?;
            removed += count(&rows, "forget")?;
        }
        Ok(Swept::new(removed, due || removed >= limit).of_sessions(sessions))
    }

    /// A part of a sweep, which has as much time as any request.
    async fn swept(&self, call: Call) -> Outcome<Vec<PgRow>> {
        let (link, deadline) = self.begin();
        link.call(deadline, &call).await
    }

    async fn acquire_alone(&self, request: &Acquire) -> Result<Acquired> {
        let (link, deadline) = self.begin();
        let outcome = async { acquire(link, deadline, request).await }.await;
        outcome.map_err(Failure::of(Operation::Acquire))
    }

    async fn release_alone(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let (session, n) = (id_bytes(grant.session), stored(grant.n));
        let (function, keys) = match claims {
            [claim] if SmallBatches::fits(claims) => ("release_one", text(claim.key().as_str())),
            claims => ("release", Value::Texts(keys(claims))),
        };
        let call = Call::new(function, [Value::Bytes(session), Value::Int(n), keys]);
        let (link, deadline) = self.begin();
        let outcome = async { stood(only(&link.call(deadline, &call).await?, function)?) }.await;
        outcome.map_err(Failure::of(Operation::Release))
    }
}

fn most(limit: usize) -> Value {
    Value::Int(i64::try_from(limit).unwrap_or(i64::MAX))
}

fn count(rows: &[PgRow], name: &'static str) -> Outcome<usize> {
    let number: i64 = only(rows, name)?;
    usize::try_from(number).map_err(|_| broken("a count is none"))
}

fn stood(said: &str) -> Outcome<Stood> {
    match said {
        "held" => Ok(Stood::Held),
        "fallen" => Ok(Stood::Fallen),
        "absent" => Ok(Stood::Absent),
        _ => Err(broken("a release has an answer that is none")),
    }
}

/// Requests of one flat key each, sent together.
pub(crate) fn small(link: &Arc<Link>) -> SmallBatches {
    let limits = SmallLimits {
        together: TOGETHER,
        at_once: AT_ONCE,
        timeout: link.timeout,
    };
    SmallBatches::new(
        link,
        NAME,
        limits,
        |link, requests| {
            Box::pin(async move {
                let acquired = acquire_many(&link, &requests).await;
                acquired.map_err(Failure::of(Operation::Acquire))
            })
        },
        |link, releases| {
            Box::pin(async move {
                let stood = release_many(&link, &releases).await;
                stood.map_err(Failure::of(Operation::Release))
            })
        },
    )
}

async fn acquire_many(link: &Link, requests: &[Acquire]) -> Outcome<Vec<Option<Acquired>>> {
    let claims = requests.iter().map(|request| &request.claims[0]);
    let first = &requests[0];
    let values = [
        Value::Bytes(id_bytes(first.grant.session)),
        Value::Ints(
            requests
                .iter()
                .map(|request| Some(stored(request.grant.n)))
                .collect(),
        ),
        Value::Ints(
            requests
                .iter()
                .map(|request| Some(stored(request.owner.m)))
                .collect(),
        ),
        Value::Texts(
            claims
                .clone()
                .map(|claim| claim.key().as_str().to_owned())
                .collect(),
        ),
        Value::Texts(
            claims
                .map(|claim| want_name(claim.want()).to_owned())
                .collect(),
        ),
        Value::Int(name(first.incarnation)),
    ];
    let rows = link
        .call(link.deadline(), &Call::new("acquire_many", values))
        .await?;
    let asked = requests
        .iter()
        .map(|request| (request.grant, &request.claims[0]));
    each(&rows, asked, |row| {
        Ok(Acquired::Acquired(token(column(row, "r_token")?)?))
    })
}

async fn release_many(link: &Link, releases: &[(Grant, Claim)]) -> Outcome<Vec<Option<Stood>>> {
    let values = [
        Value::Bytes(id_bytes(releases[0].0.session)),
        Value::Ints(
            releases
                .iter()
                .map(|(grant, _)| Some(stored(grant.n)))
                .collect(),
        ),
        Value::Texts(
            releases
                .iter()
                .map(|(_, claim)| claim.key().as_str().to_owned())
                .collect(),
        ),
    ];
    let rows = link
        .call(link.deadline(), &Call::new("release_many", values))
        .await?;
    let asked = releases.iter().map(|(grant, claim)| (*grant, claim));
    each(&rows, asked, |row| stood(column(row, "r_stood")?))
}

/// What each row says of the key and the number of one of those asked.
fn each<'a, T>(
    rows: &[PgRow],
    asked: impl Iterator<Item = (Grant, &'a Claim)>,
    read: impl Fn(&PgRow) -> Outcome<T>,
) -> Outcome<Vec<Option<T>>> {
    let mut said = BTreeMap::new();
    for row in rows {
        let (key, n): (&str, i64) = (column(row, "r_key")?, column(row, "r_n")?);
        said.insert((key, n), read(row)?);
    }
    let answers = asked.map(|(grant, claim)| said.remove(&(claim.key().as_str(), stored(grant.n))));
    Ok(answers.collect())
}

pub(crate) fn keys(claims: &[Claim]) -> Vec<String> {
    claims
        .iter()
        .map(|claim| claim.key().as_str().to_owned())
        .collect()
}

fn text(text: &str) -> Value {
    Value::Text(Some(text.to_owned()))
}

/// The call that says whether the grant holds all of these, and keeps it so until its transaction ends.
pub(crate) fn confirmation(grant: Grant, claims: &[Claim]) -> Call {
    let wants = claims
        .iter()
        .map(|claim| want_name(claim.want()).to_owned());
    let values = [
        Value::Bytes(id_bytes(grant.session)),
        Value::Int(stored(grant.n)),
        Value::Texts(keys(claims)),
        Value::Texts(wants.collect()),
    ];
    Call::new("confirm", values)
}

/// What is asked of the server: every key and ancestor that the claims need, and how.
pub(crate) struct Asks {
    pub(crate) keys: Vec<LockKey>,
    asks: Vec<String>,
    limits: Vec<Option<i64>>,
}

impl Asks {
    pub(crate) fn of(claims: &[Claim], asker: Option<(Grant, OwnerId)>) -> Self {
        let mut asks = Self {
            keys: Vec::new(),
            asks: Vec::new(),
            limits: Vec::new(),
        };
        for (key, ask) in needed(claims, asker) {
            asks.keys.push(key);
            let want = ask.claim.want();
            let (name, limit) = match ask.place {
                Place::Key => (want_name(want), want.limit()),
                Place::Above | Place::Below => (ask.mode().as_str(), None),
            };
            asks.asks.push(name.to_owned());
            asks.limits.push(limit.map(|limit| i64::from(limit.get())));
        }
        asks
    }

    /// Of one flat key alone, its own functions are quicker.
    fn one(&self) -> Option<[Value; 3]> {
        match (&*self.keys, &*self.asks, &*self.limits) {
            ([key], [ask], [limit]) if !key.is_path() => {
                Some([text(key.as_str()), text(ask), Value::MaybeInt(*limit)])
            }
            _ => None,
        }
    }

    pub(crate) fn values(&self) -> [Value; 3] {
        let keys = self.keys.iter().map(|key| key.as_str().to_owned());
        [
            Value::Texts(keys.collect()),
            Value::Texts(self.asks.clone()),
            Value::Ints(self.limits.clone()),
        ]
    }
}

async fn acquire(link: &Link, deadline: Instant, request: &Acquire) -> Outcome<Acquired> {
    let own = request.grant.session;
    let asks = Asks::of(&request.claims, Some((request.grant, request.owner)));
    let waits = request.waits && request.claims.len() == 1;
    let past: Vec<String> = request.past.iter().filter(|_| waits).map(seen).collect();
    let mut though_due = false;
    // It may have a place in line by then, so that what fails later is not without effect.
    let mut stands = false;
    let after = |stands: bool, failure: Failure| match stands {
        true => {
            let why = failure.into_error(Operation::Acquire);
            Failure::Answer(format!("it waits, and then: {why}").into())
        }
        false => failure,
    };
    // Each round but the last has made somebody dead, or has found that nobody may do that to who asks.
    loop {
        let mut values = vec![
            Value::Bytes(id_bytes(own)),
            Value::Int(stored(request.grant.n)),
            Value::Int(stored(request.owner.m)),
        ];
        let one = asks.one().filter(|_| past.is_empty());
        let is_one = one.is_some();
        let function = if is_one { "acquire_one" } else { "acquire" };
        values.extend(one.unwrap_or_else(|| asks.values()));
        values.push(Value::Flag(though_due));
        values.push(Value::Int(name(request.incarnation)));
        values.push(Value::Flag(waits));
        if !is_one {
            values.push(Value::Texts(past.clone()));
        }
        let rows = link.call(deadline, &Call::new(function, values)).await;
        let rows = rows.map_err(|failure| after(stands, failure))?;
        let what: &str = only(&rows, "r_what")?;
        match what {
            "acquired" => {
                let token = token(only(&rows, "r_token")?)?;
                // Nothing keeps a session alive between two statements of a function: one that was revoked there has lost
                // what it held before, perhaps to somebody with a smaller token than this one.
                if request.joined {
                    let look = end(link, deadline, &[own], End::IfDue).await;
                    // Whatever has failed, it is granted.
                    let states = look.map_err(|failure| {
                        let why = failure.into_error(Operation::End);
                        Failure::Answer(format!("it is granted, and then: {why}").into())
                    })?;
                    if states[0].life != Life::Living {
                        return Ok(Acquired::Void);
                    }
                }
                return Ok(Acquired::Acquired(token));
            }
            "void" => return Ok(Acquired::Void),
            "moved" => return Ok(Acquired::Moved),
            "due" => {
                let states = end(link, deadline, &[own], End::IfDue).await?;
                though_due = states[0].life == Life::Living;
            }
            "busy" => {
                stands = waits;
                let entries = entries(&rows)?;
                let ends = any_ends(link, deadline, &entries).await;
                if !ends.map_err(|failure| after(stands, failure))? {
                    return Ok(Acquired::Busy(busy(request, &asks, entries)?));
                }
            }
            _ => return Err(broken("an acquisition has an answer that is none")),
        }
    }
}

pub(crate) fn entries(rows: &[PgRow]) -> Outcome<Vec<Entry>> {
    rows.iter().map(Entry::read).collect()
}

/// Ends the sessions that are due, of those in the way and of those who alone keep somebody that waits there, and says whether
/// one has ended.
async fn any_ends(link: &Link, deadline: Instant, entries: &[Entry]) -> Outcome<bool> {
    let due = entries.iter().filter(|entry| entry.due);
    let mut due: BTreeSet<SessionId> = due.filter_map(|entry| session_id(&entry.session)).collect();
    due.extend(entries.iter().flat_map(|entry| &entry.kept_by));
    if due.is_empty() {
        return Ok(false);
    }
    let due: Vec<SessionId> = due.into_iter().collect();
    let states = end(link, deadline, &due, End::IfDue).await?;
    Ok(states.iter().any(|state| state.life != Life::Living))
}

fn busy(request: &Acquire, asks: &Asks, entries: Vec<Entry>) -> Outcome<Busy> {
    let all = entries.len() < NAMED;
    let mut met: Met<Entry> = Met::new();
    for entry in entries {
        let key = asks.keys.get(entry.place.wrapping_sub(1));
        let key = key.ok_or_else(|| broken("a place is none"))?;
        met.entry(key.clone()).or_default().push(entry);
    }
    let mut busy = refusal(request, &met, |key, entry| entry.holder(key));
    busy.more |= !all;
    Ok(busy)
}

/// A row's key, as text.
pub(crate) fn row_key(row: &PgRow) -> Outcome<String> {
    column(row, "r_key")
}
