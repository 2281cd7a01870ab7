//! What the store still has of a session, after another primary has taken over.

use std::collections::BTreeMap;

use lockcore::backend::{Ranges, Renewal};
use lockcore::{Life, SessionId, SessionState};
use serde_json::json;

use crate::EsBackend;
use crate::bulk::{Bulk, Item, Reply, expect, one};
use crate::error::Outcome;
use crate::primary::another;
use crate::record::{Session, held, key_of, session_id};
use crate::scripts::CONFIRM;
use crate::sweep::PAGE;

impl EsBackend {
    /// Whether the session lives, as the primary has it.
    pub(crate) async fn lives(&self, session: SessionId) -> Outcome<bool> {
        let mut bulk = Bulk::default();
        bulk.look(&session_id(session));
        let known = [Reply::Refused, Reply::Absent];
        let item = one(expect(self.bulk(bulk).await?, &known)?);
        let document = item.document();
        let found = document.and_then(|document| Session::read(session, document));
        Ok(found.is_some_and(|found| found.state.life == Life::Living))
    }

    /// Whether the store that a renewal is meant for has all the grants that it names, each with all of its records. A search
    /// finds them, which some copy may answer that is none any more; so each is written again.
    pub(crate) async fn has_granted(&self, session: SessionId, renewal: &Renewal) -> Outcome<bool> {
        let refreshed = self.refreshed().await?;
        let state = SessionState::new(session, Life::Living);
        let mut left: BTreeMap<u64, u64> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = refreshed.page_of_session(&state, after.as_deref()).await?;
            let mut bulk = Bulk::by_whom();
            for document in &page {
                let Some(key) = key_of(&document.id, &document.source) else {
                    continue;
                };
                for held in held(&key, &document.source) {
                    let asked = |n| renewal.granted.contains(n);
                    let known = held.known.filter(|it| it.grant.session == session);
                    let known = known.filter(|_| held.waits.is_none());
                    let Some(known) = known.filter(|it| asked(it.grant.n)) else {
                        continue;
                    };
                    let left = left.entry(known.grant.n).or_insert(known.of);
                    *left = left.saturating_sub(1);
                    let grant = known.grant.to_string();
                    let params = json!({"grant": grant, "mode": held.mode.as_str()});
                    bulk.run(&document.id, &CONFIRM, params);
                }
            }
            if !bulk.is_empty() {
                let known = [
                    Reply::Written,
                    Reply::Refused,
                    Reply::Absent,
                    Reply::Unreadable,
                ];
                let items = expect(self.bulk(bulk).await?, &known)?;
                if items.iter().any(|item| item.reply() != Reply::Written) {
                    return Ok(false);
                }
                let meant = renewal.incarnation;
                let elsewhere = |item: &Item| meant.is_known() && item.incarnation() != meant;
                if items.iter().any(elsewhere) {
                    return Err(another());
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.sort.clone()),
                _ => break,
            }
        }
        Ok(all(&renewal.granted, |n| left.get(&n) == Some(&0)))
    }
}

/// Whether that is true of all numbers; nobody has as many as a range may hold.
fn all(numbers: &Ranges, is: impl Fn(u64) -> bool) -> bool {
    let mut ranges = numbers.as_slice().iter();
    ranges.all(|(from, to)| (*from..=*to).all(&is))
}
