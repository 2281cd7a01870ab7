//! `Inspect`: what is there, for people. Listing changes nothing: a session that is due is shown as it is recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::judge::Listed;
use lockcore::backend::{Filter, Inspect, Page, Record};
use lockcore::{Error, ErrorKind, LockKey, Operation, Result, SessionId, SessionState};
use tokio::time::Instant;

use crate::PostgresBackend;
use crate::claims::row_key;
use crate::connections::Link;
use crate::error::{Failure, NAME, Outcome};
use crate::record::{Entry, broken, column, id_bytes, listed, only};
use crate::sql::{Call, Value};

#[async_trait]
impl Inspect for PostgresBackend {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let place = match (filter, after) {
            (Filter::Session(_), Some(after)) => Some(place(after).ok_or_else(not_ours)?),
            _ => None,
        };
        let (link, deadline) = self.begin();
        let outcome = async {
            match filter {
                Filter::Key(key) => Ok(Page {
                    items: records(link, deadline, std::slice::from_ref(key), key.is_path())
                        .await?,
                    next: None,
                }),
                Filter::Prefix(prefix) => by_prefix(link, deadline, prefix, after, limit).await,
                Filter::Session(session) => {
                    let (n, key) = place.clone().unwrap_or((i64::MIN, String::new()));
                    by_session(link, deadline, *session, (n, key), limit).await
                }
            }
        }
        .await;
        outcome.map_err(Failure::of(Operation::Inspect))
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let after = match after {
            Some(after) => id_bytes(after.parse().map_err(|_| not_ours())?),
            None => Vec::new(),
        };
        let values = [Value::Bytes(after), Value::Int(one_more(limit))];
        let call = Call::new("list_sessions", values);
        let (link, deadline) = self.begin();
        let outcome = async {
            let rows = link.call(deadline, &call).await?;
            let mut items: Vec<SessionState> = rows.iter().map(listed).collect::<Outcome<_>>()?;
            let next = cut(&mut items, limit).map(|last| last.session.to_string());
            Ok(Page { items, next })
        }
        .await;
        outcome.map_err(Failure::of(Operation::Inspect))
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        let ids = sessions.iter().copied().map(id_bytes).collect();
        let call = Call::new("these_sessions", [Value::ManyBytes(ids)]);
        let (link, deadline) = self.begin();
        let outcome = async {
            let rows = link.call(deadline, &call).await?;
            let named = |row| listed(row).map(|state| (state.session, state));
            let found: BTreeMap<_, _> = rows.iter().map(named).collect::<Outcome<_>>()?;
            Ok(sessions.iter().map(|id| found.get(id).cloned()).collect())
        }
        .await;
        outcome.map_err(Failure::of(Operation::Inspect))
    }

    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        let ids = sessions.iter().copied().map(id_bytes).collect();
        let call = Call::new("leases", [Value::ManyBytes(ids)]);
        let (link, deadline) = self.begin();
        let outcome = async {
            let mut left = vec![None; sessions.len()];
            for row in link.call(deadline, &call).await? {
                let place: i64 = column(&row, "r_place")?;
                let place = usize::try_from(place).unwrap_or(0).wrapping_sub(1);
                let left_ms = u64::try_from(column::<i64>(&row, "r_left_ms")?).unwrap_or(0);
                let slot = left.get_mut(place);
                *slot.ok_or_else(|| broken("a session has no place"))? =
                    Some(Duration::from_millis(left_ms));
            }
            Ok(left)
        }
        .await;
        outcome.map_err(Failure::of(Operation::Inspect))
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let values = [
            Value::Text(Some(seen.key.as_str().to_owned())),
            Value::Text(Some(seen.version.clone())),
        ];
        let call = Call::new("evict", values);
        let (link, deadline) = self.begin();
        let outcome = async { only(&link.call(deadline, &call).await?, "evict") }.await;
        outcome.map_err(Failure::of(Operation::Inspect))
    }
}

fn not_ours() -> Error {
    let what = "the place to go on from was not given out by this store";
    Error::new(ErrorKind::Config, NAME, Operation::Inspect, what)
}

fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

/// Cuts off what is more than a page, and says what is the last on it if something was.
fn cut<T>(items: &mut Vec<T>, limit: usize) -> Option<&T> {
    let more = items.len() > limit;
    items.truncate(limit);
    items.last().filter(|_| more)
}

async fn by_prefix(
    link: &Link,
    deadline: Instant,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Outcome<Page<Record>> {
    let values = [
        Value::Text(Some(prefix.to_owned())),
        Value::Text(Some(after.unwrap_or_default().to_owned())),
        Value::Text(behind(prefix)),
        Value::Int(one_more(limit)),
    ];
    let rows = link.call(deadline, &Call::new("keys", values)).await?;
    let mut keys: Vec<String> = rows.iter().map(row_key).collect::<Outcome<_>>()?;
    let next = cut(&mut keys, limit).cloned();
    // A key that is none cannot be listed.
    let keys: Vec<LockKey> = keys
        .iter()
        .filter_map(|key| LockKey::parse(key).ok())
        .collect();
    Ok(Page {
        items: records(link, deadline, &keys, false).await?,
        next,
    })
}

/// The first text, in order of bytes, behind all that begin with this one.
fn behind(prefix: &str) -> Option<String> {
    let mut text: Vec<char> = prefix.chars().collect();
    while let Some(last) = text.pop() {
        let next = match last {
            // The characters go on there.
            '\u{d7ff}' => Some('\u{e000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            text.push(next);
            return Some(text.into_iter().collect());
        }
    }
    None
}

async fn by_session(
    link: &Link,
    deadline: Instant,
    session: SessionId,
    (n, key): (i64, String),
    limit: usize,
) -> Outcome<Page<Record>> {
    let values = [
        Value::Bytes(id_bytes(session)),
        Value::Int(n),
        Value::Text(Some(key)),
        Value::Int(one_more(limit)),
    ];
    let rows = link.call(deadline, &Call::new("keys_of", values)).await?;
    let place = |row| Ok((column::<i64>(row, "r_n")?, row_key(row)?));
    let mut places: Vec<(i64, String)> = rows.iter().map(place).collect::<Outcome<_>>()?;
    let next = cut(&mut places, limit).map(|(n, key)| format!("{n}:{key}"));
    let keys = places
        .iter()
        .filter_map(|(_, key)| LockKey::parse(key).ok());
    let keys: Vec<LockKey> = keys.collect();
    Ok(Page {
        items: records(link, deadline, &keys, false).await?,
        next,
    })
}

fn place(after: &str) -> Option<(i64, String)> {
    let (n, key) = after.split_once(':')?;
    Some((n.parse().ok()?, key.to_owned()))
}

/// The records of these keys that somebody holds, in their order.
async fn records(
    link: &Link,
    deadline: Instant,
    keys: &[LockKey],
    with_below: bool,
) -> Outcome<Vec<Record>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let texts = keys.iter().map(|key| key.as_str().to_owned());
    let values = [Value::Texts(texts.collect()), Value::Flag(with_below)];
    let rows = link.call(deadline, &Call::new("records", values)).await?;
    let mut found: BTreeMap<usize, (Listed, String)> = BTreeMap::new();
    for row in &rows {
        let entry = Entry::read(row)?;
        let Some(key) = keys.get(entry.place.wrapping_sub(1)) else {
            continue;
        };
        let (listed, version) = found.entry(entry.place).or_default();
        listed.add(entry.holder(key));
        *version = column(row, "r_version")?;
    }
    let records = found
        .into_iter()
        .filter_map(|(place, (listed, version))| listed.record(&keys[place - 1], version));
    Ok(records.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_a_prefix() {
        for (prefix, next) in [
            ("a", Some("b")),
            ("a/", Some("a0")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
            ("", None),
        ] {
            assert_eq!(behind(prefix).as_deref(), next, "{prefix:?}");
        }
    }

    #[test]
    fn places_to_go_on_from_are_read_or_refused() {
        assert_eq!(place("-3:a:b"), Some((-3, "a:b".into())));
        assert_eq!(place("a"), None);
        assert_eq!(place("x:a"), None);
    }
}
