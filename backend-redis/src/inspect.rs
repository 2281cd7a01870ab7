//! `Inspect`: what is there, for people. Listing changes nothing: a session that is due is shown as it is recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use lockcore::backend::{Filter, Inspect, Page, Record};
use lockcore::{Error, ErrorKind, LockKey, Operation, Result, SessionId, SessionState};

use crate::RedisBackend;
use crate::error::{found, odd_answer};
use crate::record::{Answer, Parts, record, state};
use crate::scripts;

/// So many pages of the store are looked at for one page at most; where few match it is short.
const LOOKED_AT: usize = 20;
/// The store is asked for so many at a time at most. It may give more, or fewer.
const AT_ONCE: usize = 300;

#[async_trait]
impl Inspect for RedisBackend {
    async fn records(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        match filter {
            Filter::Key(key) => self.record_of_key(key).await,
            Filter::Prefix(prefix) => self.records_by_prefix(prefix, after, limit).await,
            Filter::Session(session) => self.records_of_session(*session, after, limit).await,
        }
    }

    async fn sessions(&self, after: Option<&str>, limit: usize) -> Result<Page<SessionState>> {
        let mut list = List::new(after, limit)?;
        while list.goes_on() {
            let mut parts = self
                .ask(
                    &scripts::SESSIONS,
                    &[list.cursor.as_bytes(), list.count().as_bytes()],
                )
                .await?;
            let cursor = parts.part()?.text()?;
            let states = states(parts.part()?.parts()?)?.into_iter();
            let named = states.map(|state| (state.session.to_string(), state));
            list.take(named.collect(), cursor);
        }
        Ok(list.page())
    }

    async fn session_states(&self, sessions: &[SessionId]) -> Result<Vec<Option<SessionState>>> {
        let ids: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
        let arguments: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let found = states(self.ask(&scripts::STATES, &arguments).await?)?;
        let found: BTreeMap<_, _> = (found.into_iter())
            .map(|state| (state.session, state))
            .collect();
        Ok(sessions.iter().map(|id| found.get(id).cloned()).collect())
    }

    async fn lease_left(&self, sessions: &[SessionId]) -> Result<Vec<Option<Duration>>> {
        let ids: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
        let arguments: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let left = self.ask(&scripts::LEASES, &arguments).await?;
        let left = left.map(Answer::text).collect::<Result<Vec<_>>>()?;
        if left.len() != sessions.len() {
            return Err(odd_answer(Operation::Inspect));
        }
        let left = left.iter().map(|left| left.parse().ok());
        Ok(left.map(|left| left.map(Duration::from_millis)).collect())
    }

    async fn evict(&self, seen: &Record) -> Result<bool> {
        let arguments = [seen.key.as_str().as_bytes(), seen.version.as_bytes()];
        let answer = self
            .link
            .call(Operation::Inspect, &scripts::EVICT, &arguments)
            .await?;
        answer.yes()
    }
}

/// Ids, each with its record.
fn states(mut parts: Parts) -> Result<Vec<SessionState>> {
    let mut states = Vec::new();
    while let Some(id) = parts.next() {
        let stored = parts.part()?.bytes()?;
        // A session whose id is none cannot be named; whatever holds in its name is listed by key.
        if let Ok(id) = id.lossy()?.parse() {
            states.push(state(id, &stored));
        }
    }
    Ok(states)
}

impl RedisBackend {
    async fn record_of_key(&self, key: &LockKey) -> Result<Page<Record>> {
        let arguments = [key.as_str().as_bytes()];
        let parts = self.ask(&scripts::RECORD_OF_KEY, &arguments).await?;
        let records = parts.map(record).collect::<Result<Vec<_>>>()?;
        Ok(Page {
            items: records.into_iter().flatten().collect(),
            next: None,
        })
    }

    async fn records_by_prefix(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        let mut list = List::new(after, limit)?;
        let pattern = pattern(prefix);
        while list.goes_on() {
            let count = list.count();
            let arguments = [list.cursor.as_bytes(), pattern.as_bytes(), count.as_bytes()];
            let mut parts = self.ask(&scripts::RECORDS, &arguments).await?;
            let cursor = parts.part()?.text()?;
            let records = parts.part()?.parts()?.map(record);
            let records = records.collect::<Result<Vec<_>>>()?.into_iter().flatten();
            let named = records.map(|record| (record.key.to_string(), record));
            list.take(named.collect(), cursor);
        }
        Ok(list.page())
    }

    async fn records_of_session(
        &self,
        session: SessionId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Record>> {
        // The number of a grant, and how many of its keys were listed.
        let place = after.map_or(Some((String::new(), 0)), |after| {
            let (n, keys) = after.split_once(':')?;
            let n: u64 = n.parse().ok()?;
            Some((n.to_string(), keys.parse::<usize>().ok()?))
        });
        let (n, keys) = place.ok_or_else(not_ours)?;
        let (session, keys) = (session.to_string(), keys.to_string());
        let limit = limit.max(1).to_string();
        let arguments = [session.as_str(), &n, &keys, &limit].map(str::as_bytes);
        let mut parts = self.ask(&scripts::RECORDS_OF_SESSION, &arguments).await?;
        let n = parts.part()?.text()?;
        let keys = parts.part()?.number()?;
        let records = parts.part()?.parts()?.map(record);
        let records = records.collect::<Result<Vec<_>>>()?;
        Ok(Page {
            items: records.into_iter().flatten().collect(),
            next: (keys >= 0).then(|| format!("{n}:{keys}")),
        })
    }

    async fn ask(&self, script: &redis::Script, arguments: &[&[u8]]) -> Result<Parts> {
        let answer = self
            .link
            .call(Operation::Inspect, script, arguments)
            .await?;
        answer.parts()
    }
}

/// A page that is gathered from the pages of the store, of which each is of no certain size and in no order. One that does not
/// fit behind others comes next. One that is larger than the limit is cut: its part is the one in front by name, and it is looked
/// at again for the rest.
struct List<T> {
    cursor: String,
    /// The last name that was listed of the store's page at the cursor.
    after: Option<String>,
    limit: usize,
    items: Vec<T>,
    looked_at: usize,
    done: bool,
    /// The next page of the store does not fit.
    full: bool,
}

impl<T> List<T> {
    fn new(after: Option<&str>, limit: usize) -> Result<Self> {
        let (cursor, after) = match after.map(|after| after.split_once(':')) {
            None => ("0", None),
            Some(Some((cursor, ""))) => (cursor, None),
            Some(Some((cursor, name))) => (cursor, Some(name.to_owned())),
            Some(None) => return Err(not_ours()),
        };
        if cursor.is_empty() || !cursor.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(not_ours());
        }
        Ok(Self {
            cursor: cursor.to_owned(),
            after,
            limit: limit.max(1),
            items: Vec::new(),
            looked_at: 0,
            done: false,
            full: false,
        })
    }

    fn count(&self) -> String {
        self.limit.clamp(10, AT_ONCE).to_string()
    }

    fn goes_on(&self) -> bool {
        let room = self.limit - self.items.len();
        // The next one would not fit, and be asked for twice.
        let fits = room > 0 && (self.limit <= AT_ONCE || room >= AT_ONCE);
        !self.done && !self.full && fits && self.looked_at < LOOKED_AT
    }

    /// Takes what is still wanted of a page of the store, behind which `cursor` goes on.
    fn take(&mut self, mut named: Vec<(String, T)>, cursor: String) {
        self.looked_at += 1;
        named.sort_by(|one, other| one.0.cmp(&other.0));
        let after = self.after.take();
        if !self.items.is_empty() && self.items.len() + named.len() > self.limit {
            // Cut, its rest would be looked at again when others may have come to it: it comes next, whole.
            self.full = true;
            return;
        }
        for (name, item) in named {
            if after.as_ref().is_some_and(|after| name <= *after) {
                continue;
            }
            if self.items.len() == self.limit {
                return;
            }
            self.items.push(item);
            self.after = Some(name);
        }
        self.after = None;
        self.done = cursor == "0";
        self.cursor = cursor;
    }

    fn page(self) -> Page<T> {
        let after = self.after.unwrap_or_default();
        Page {
            items: self.items,
            next: (!self.done).then(|| format!("{}:{after}", self.cursor)),
        }
    }
}

/// What begins with the prefix, as a pattern of the server's.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for c in prefix.chars() {
        if "*?[]\\^".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

fn not_ours() -> Error {
    let what = "the place to go on from was not given out by this store";
    found(ErrorKind::Config, Operation::Inspect, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_the_store_that_is_cut_is_gone_on_with() {
        let page = |names: &[&str]| {
            names
                .iter()
                .map(|n| (n.to_string(), n.to_string()))
                .collect()
        };
        let mut list = List::new(None, 2).unwrap();
        list.take(page(&["c", "a", "b"]), "7".into());
        assert!(!list.goes_on());
        let first = list.page();
        assert_eq!(
            (first.items, first.next.as_deref()),
            (vec!["a".into(), "b".into()], Some("0:b"))
        );
        let mut list = List::new(Some("0:b"), 2).unwrap();
        list.take(page(&["b", "c", "a"]), "7".into());
        assert!(list.goes_on() && list.cursor == "7");
        list.take(page(&["a2"]), "0".into());
        let last = list.page();
        assert_eq!(
            (last.items, last.next),
            (vec!["c".into(), "a2".to_owned()], None)
        );
        for (listed, goes_on) in [(200, true), (201, false)] {
            let mut list = List::new(None, 500).unwrap();
            let names = (0..listed).map(|n| (n.to_string(), n)).collect();
            list.take(names, "5".into());
            assert_eq!(list.goes_on(), goes_on, "{listed}");
        }
        // One that does not fit is taken whole, next time: what goes and comes meanwhile leaves nothing out.
        let mut list = List::new(None, 3).unwrap();
        list.take(page(&["d", "e"]), "5".into());
        list.take(page(&["c", "a"]), "7".into());
        assert!(!list.goes_on());
        let first = list.page();
        assert_eq!(
            (first.items, first.next.as_deref()),
            (vec!["d".into(), "e".into()], Some("5:"))
        );
        let mut list = List::new(Some("5:"), 3).unwrap();
        list.take(page(&["c", "aa"]), "0".into());
        assert_eq!(list.page().items, ["aa".to_owned(), "c".into()]);
        let mut list = List::new(Some("7:"), 1).unwrap();
        list.take(page(&["b:c"]), "9".into());
        assert_eq!(list.page().next.as_deref(), Some("9:"));
        for after in ["", "a", ":", "x:1", "-1:", "1"] {
            assert!(List::<()>::new(Some(after), 1).is_err(), "{after}");
        }
    }

    #[test]
    fn a_prefix_matches_itself_alone() {
        assert_eq!(pattern("a*[b]?\\é"), "a\\*\\[b\\]\\?\\\\é*");
        assert_eq!(pattern(""), "*");
    }
}
