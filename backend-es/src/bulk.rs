//! `_bulk`: everything that decides goes through it. Ids are in the body, and an answer counts only if it is the
//! item's own.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use elasticsearch::http::Method;
use lockcore::backend::{Batch, Incarnation};
use lockcore::{ErrorKind, FencingToken};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::EsBackend;
use crate::error::{Cause, Failure, Outcome, Refusal};
use crate::http::{At, Lane, Request};
use crate::primary::{Primary, STORE};
use crate::record::MARK;
use crate::scripts::READ;

/// So many items are sent in one request at most, where a script runs for each: that takes a busy server long. Five hundred
/// records, and a session.
const PART: usize = 501;
/// So many bytes are sent in one request at most, where it has more than one item: a proxy takes no more, unless it is told
/// to.
const PART_BYTES: usize = 1 << 20;
/// So many items, and bytes, are a small request; so many of those go together at most, and so many of these are under way at
/// once.
const SMALL: usize = 4;
const SMALL_BYTES: usize = 32 << 10;
const TOGETHER: usize = 64;
const AT_ONCE: usize = 4;
/// Asks who answers: no write has this number, so that whoever wants to remove what it wrote is refused, and told the uuid
/// of the index.
static BY_WHOM: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let never = Seen {
        seq_no: i64::MAX.unsigned_abs() - 1,
        primary_term: 1,
    };
    let mut bulk = Bulk::default();
    bulk.delete_seen(STORE, never);
    bulk.body
});
/// Conflicts with others that the server settles by itself, for one item.
const RETRY_ON_CONFLICT: u32 = 8;

/// Items, which are executed in order, each by itself.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    body: Vec<u8>,
    asked: Vec<Asked>,
    /// Each request asks who answers it.
    by_whom: bool,
}

#[derive(Debug)]
struct Asked {
    verb: Verb,
    id: String,
    /// It changes nothing.
    looks: bool,
    /// Where its part of the body ends.
    end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Create,
    Delete,
    Index,
    Update,
}

/// A write of a document. What depends on it is not done if there was another one since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) primary_term: u64,
    pub(crate) seq_no: u64,
}

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It was written, and acknowledged.
    Written,
    /// The script refused, and changed nothing.
    Refused,
    /// There is no such document.
    Absent,
    /// There is a document already, or another one since.
    Conflict,
    /// The script could not understand what it found.
    Unreadable,
    /// Everything else.
    Failed,
}

/// The answer to one item.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Item {
    #[serde(rename = "_index")]
    index: Option<String>,
    #[serde(rename = "_id")]
    id: Option<String>,
    #[serde(rename = "_seq_no")]
    seq_no: Option<u64>,
    #[serde(rename = "_primary_term")]
    primary_term: Option<u64>,
    /// Who has written it, where that was asked.
    #[serde(skip)]
    primary: Option<Arc<Primary>>,
    /// 0 where it was not asked for.
    #[serde(default)]
    status: u16,
    result: Option<String>,
    error: Option<Cause>,
    get: Option<Get>,
}

#[derive(Debug, Clone, Deserialize)]
struct Get {
    #[serde(rename = "_source")]
    source: Option<Value>,
}

#[derive(Deserialize)]
struct Answer {
    items: Vec<One>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum One {
    Create(Item),
    Delete(Item),
    Index(Item),
    Update(Item),
}

impl One {
    fn item(&self) -> &Item {
        let (Self::Create(item) | Self::Delete(item) | Self::Index(item) | Self::Update(item)) =
            self;
        item
    }

    fn parts(self) -> (Verb, Item) {
        match self {
            One::Create(item) => (Verb::Create, item),
            One::Delete(item) => (Verb::Delete, item),
            One::Index(item) => (Verb::Index, item),
            One::Update(item) => (Verb::Update, item),
        }
    }
}

#[derive(Serialize)]
struct Action<'a> {
    #[serde(rename = "_id")]
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_on_conflict: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    if_seq_no: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    if_primary_term: Option<u64>,
}

impl<'a> Action<'a> {
    fn on(id: &'a str) -> Self {
        Self {
            id,
            retry_on_conflict: None,
            if_seq_no: None,
            if_primary_term: None,
        }
    }

    fn seen(id: &'a str, seen: Seen) -> Self {
        Self {
            if_seq_no: Some(seen.seq_no),
            if_primary_term: Some(seen.primary_term),
            ..Self::on(id)
        }
    }
}

#[derive(Serialize)]
struct Update<'a, P, U> {
    script: Run<'a, P>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scripted_upsert: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upsert: Option<U>,
    #[serde(rename = "_source", skip_serializing_if = "Option::is_none")]
    source: Option<bool>,
}

#[derive(Serialize)]
struct Run<'a, P> {
    lang: &'static str,
    source: &'a str,
    params: P,
}

/// For an update without a document to begin with.
const NO_UPSERT: Option<()> = None;

impl Bulk {
    /// One of which the answer says who has written it, and with which token.
    pub(crate) fn by_whom() -> Self {
        Self {
            by_whom: true,
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// All of these, one after the other, and which items are those of each. What several look at is looked at once, before
    /// what follows the first look, if all of it is one request.
    fn joined(bulks: Vec<Bulk>) -> (Self, Vec<Vec<usize>>) {
        let mut all = Self::default();
        let is_one = bulks.iter().map(|bulk| bulk.body.len()).sum::<usize>() <= PART_BYTES / 2;
        let mut looks: HashMap<String, usize> = HashMap::new();
        let mut own = Vec::with_capacity(bulks.len());
        for bulk in bulks {
            all.by_whom |= bulk.by_whom;
            let mut items = Vec::with_capacity(bulk.asked.len());
            let mut begin = 0;
            for asked in bulk.asked {
                let line = &bulk.body[begin..asked.end];
                begin = asked.end;
                let at = all.asked.len();
                let same = match asked.looks && is_one {
                    true => *looks.entry(asked.id.clone()).or_insert(at),
                    false => at,
                };
                if same == at {
                    all.body.extend_from_slice(line);
                    let end = all.body.len();
                    all.asked.push(Asked { end, ..asked });
                }
                items.push(same);
            }
            own.push(items);
        }
        (all, own)
    }

    /// Runs a script on a document that is there.
    pub(crate) fn run(&mut self, id: &str, script: &str, params: impl Serialize) {
        self.update(id, script, params, NO_UPSERT, None, None);
    }

    /// Looks at a document as the primary has it, among the other items.
    pub(crate) fn look(&mut self, id: &str) {
        self.run_and_read(id, &READ, json!({}));
        self.asked.last_mut().expect("it was just added").looks = true;
    }

    /// Runs a script on a document that is as it was seen; the answer holds the document.
    pub(crate) fn run_seen(&mut self, id: &str, seen: Seen, script: &str, params: impl Serialize) {
        let action = Action::seen(id, seen);
        self.scripted(&action, script, params, NO_UPSERT, None, Some(true));
    }

    /// Runs a script on a document that is there; the answer holds the document.
    pub(crate) fn run_and_read(&mut self, id: &str, script: &str, params: impl Serialize) {
        self.update(id, script, params, NO_UPSERT, None, Some(true));
    }

    /// Runs a script on a document, or on this one where there is none; the answer holds the document.
    pub(crate) fn upsert(
        &mut self,
        id: &str,
        script: &str,
        params: impl Serialize,
        document: impl Serialize,
    ) {
        self.update(id, script, params, Some(document), Some(true), Some(true));
    }

    /// Writes a document where there is none, else runs a script on what is there; the answer holds the document.
    pub(crate) fn create_or_run(
        &mut self,
        id: &str,
        document: &impl Serialize,
        script: &str,
        params: impl Serialize,
    ) {
        // Never a filter: it would show what a refused script made of the document.
        self.update(id, script, params, Some(document), None, Some(true));
    }

    /// Writes a document where there is none, else runs a script on what is there.
    pub(crate) fn put_or_run(
        &mut self,
        id: &str,
        document: &impl Serialize,
        script: &str,
        params: impl Serialize,
    ) {
        self.update(id, script, params, Some(document), None, None);
    }

    fn update(
        &mut self,
        id: &str,
        script: &str,
        params: impl Serialize,
        upsert: Option<impl Serialize>,
        scripted_upsert: Option<bool>,
        source: Option<bool>,
    ) {
        let action = Action {
            retry_on_conflict: Some(RETRY_ON_CONFLICT),
            ..Action::on(id)
        };
        self.scripted(&action, script, params, upsert, scripted_upsert, source);
    }

    fn scripted(
        &mut self,
        action: &Action<'_>,
        script: &str,
        params: impl Serialize,
        upsert: Option<impl Serialize>,
        scripted_upsert: Option<bool>,
        source: Option<bool>,
    ) {
        self.action(Verb::Update, action);
        self.line(&Update {
            script: Run {
                lang: "painless",
                source: script,
                params,
            },
            scripted_upsert,
            upsert,
            source,
        });
    }

    /// Writes a document where there is none: for [`bulk_of_new`](EsBackend::bulk_of_new).
    pub(crate) fn create(&mut self, id: &str, document: &impl Serialize) {
        self.action(Verb::Create, &Action::on(id));
        self.line(document);
    }

    /// Writes a document.
    pub(crate) fn put(&mut self, id: &str, document: &impl Serialize) {
        self.action(Verb::Index, &Action::on(id));
        self.line(document);
    }

    /// Removes a document.
    pub(crate) fn delete(&mut self, id: &str) {
        self.action(Verb::Delete, &Action::on(id));
    }

    /// Removes a document that is as it was seen.
    pub(crate) fn delete_seen(&mut self, id: &str, seen: Seen) {
        self.action(Verb::Delete, &Action::seen(id, seen));
    }

    /// Replaces a document that is as it was seen.
    pub(crate) fn replace_seen(&mut self, id: &str, seen: Seen, document: &impl Serialize) {
        self.action(Verb::Index, &Action::seen(id, seen));
        self.line(document);
    }

    fn action(&mut self, verb: Verb, action: &Action<'_>) {
        self.asked.push(Asked {
            verb,
            id: action.id.to_owned(),
            looks: false,
            end: 0,
        });
        let name: &[u8] = match verb {
            Verb::Create => b"{\"create\":",
            Verb::Delete => b"{\"delete\":",
            Verb::Index => b"{\"index\":",
            Verb::Update => b"{\"update\":",
        };
        self.body.extend_from_slice(name);
        self.json(action);
        self.body.extend_from_slice(b"}");
        self.ends_line();
    }

    fn line(&mut self, value: &impl Serialize) {
        self.json(value);
        self.ends_line();
    }

    fn ends_line(&mut self) {
        self.body.push(b'\n');
        let end = self.body.len();
        self.asked.last_mut().expect("a line is of an item").end = end;
    }

    /// What is sent for some of the items.
    fn body(&self, items: &Range<usize>) -> Bytes {
        let some = &self.body[self.begin(items.start)..self.begin(items.end)];
        [self.head(), some].concat().into()
    }

    /// Where the part of an item begins in the body.
    fn begin(&self, item: usize) -> usize {
        item.checked_sub(1).map_or(0, |at| self.asked[at].end)
    }

    /// What each request begins with.
    fn head(&self) -> &[u8] {
        if self.by_whom { &BY_WHOM } else { b"" }
    }

    /// As many items as one request takes, from this one on: at least that.
    fn part(&self, from: usize, at_once: usize) -> Range<usize> {
        let (begin, rest) = (self.begin(from), &self.asked[from..]);
        let fits = |asked: &Asked| self.head().len() + asked.end - begin <= PART_BYTES;
        let most = at_once.min(rest.len());
        from..from + rest.partition_point(fits).clamp(1, most)
    }

    fn json(&mut self, value: &impl Serialize) {
        serde_json::to_writer(&mut self.body, value)
            .expect("what is stored has a form in JSON, and memory does not fail");
    }
}

impl Item {
    pub(crate) fn reply(&self) -> Reply {
        match (&self.error, self.result.as_deref(), self.status) {
            (None, Some("created" | "updated" | "deleted"), 200 | 201) => Reply::Written,
            (None, Some("noop"), 200) => Reply::Refused,
            (None, Some("not_found"), 404) => Reply::Absent,
            (Some(cause), _, 404) if cause.is("document_missing_exception") => Reply::Absent,
            (Some(cause), _, 409) if cause.is("version_conflict_engine_exception") => {
                Reply::Conflict
            }
            (Some(cause), _, 400) if cause.is_of_the_record() => Reply::Unreadable,
            _ => Reply::Failed,
        }
    }

    /// The document, where it was asked for.
    pub(crate) fn document(&self) -> Option<&Value> {
        self.get.as_ref()?.source.as_ref()
    }

    /// The last write of the document.
    pub(crate) fn seen(&self) -> Option<Seen> {
        Some(Seen {
            seq_no: self.seq_no?,
            primary_term: self.primary_term?,
        })
    }

    /// The write that it is, if it is one.
    fn write(&self) -> Option<Seen> {
        // With a filter on the answer there is no result; only a document that was created answers so.
        let written = matches!(
            self.result.as_deref(),
            None | Some("created" | "updated" | "deleted")
        );
        self.seen().filter(|_| written && self.error.is_none())
    }

    /// Whether it is a write.
    pub(crate) fn is_written(&self) -> bool {
        self.write().is_some()
    }

    /// Which incarnation has written it, where that was asked.
    pub(crate) fn incarnation(&self) -> Incarnation {
        let primary = self.primary.as_ref();
        primary.map_or(Incarnation::UNKNOWN, |primary| primary.incarnation)
    }

    /// The token of a write.
    pub(crate) fn token(&self) -> Outcome<FencingToken> {
        let by = self.write().zip(self.primary.as_ref());
        let (write, primary) = by.ok_or_else(|| not_ours("no write where there is one"))?;
        let number = primary.token(write.seq_no);
        let number = number.ok_or_else(|| not_ours("a write before tokens began"))?;
        FencingToken::new(number).ok_or_else(|| {
            let what = "the sequence numbers of the index are used up: make the namespace anew";
            Failure::Found(ErrorKind::Corrupt, what.into())
        })
    }

    fn into_refusal(self) -> Refusal {
        Refusal {
            status: self.status,
            cause: self.error,
        }
    }
}

/// Fails with the first item whose reply is none of these.
pub(crate) fn expect(items: Vec<Item>, expected: &[Reply]) -> Outcome<Vec<Item>> {
    let is_expected = |item: &Item| expected.contains(&item.reply());
    if items.iter().all(is_expected) {
        return Ok(items);
    }
    let in_part = items.iter().any(|item| item.reply() == Reply::Written);
    let failed = items.into_iter().find(|item| !is_expected(item));
    let refusal = failed.expect("one of them is not expected").into_refusal();
    let failure = Failure::Server(refusal);
    Err(if in_part { failure.in_part() } else { failure })
}

/// Requests of a few items each, sent together.
pub(crate) type Together = Batch<Bulk, Outcome<Vec<Item>>>;

/// Those that come while others are under way share a request.
pub(crate) fn together(backend: EsBackend) -> Together {
    Batch::new(
        TOGETHER,
        AT_ONCE,
        |_, _| true,
        move |bulks: Vec<Bulk>| {
            let backend = backend.clone();
            Box::pin(async move {
                let (all, own) = Bulk::joined(bulks);
                match backend.in_parts(&all, PART, None).await {
                    Ok(items) => {
                        let of = |own: Vec<usize>| own.into_iter().map(|at| items[at].clone());
                        own.into_iter().map(|own| Ok(of(own).collect())).collect()
                    }
                    Err(failure) => own.iter().map(|_| Err(failure.copy())).collect(),
                }
            })
        },
    )
}

impl EsBackend {
    /// Sends the items, and answers each of them.
    pub(crate) async fn bulk(&self, bulk: Bulk) -> Outcome<Vec<Item>> {
        let alone = |bulk: Bulk| async move { self.in_parts(&bulk, PART, None).await };
        let is_small = bulk.asked.len() <= SMALL && bulk.body.len() <= SMALL_BYTES;
        // Renewals stand behind nothing.
        let together = self
            .together
            .as_ref()
            .filter(|_| is_small && self.lane == Lane::Others);
        let Some(together) = together else {
            return alone(bulk).await;
        };
        // The runtime in which it is sent with others may hang.
        match timeout(2 * self.nodes.timeout(), together.ask(bulk, alone)).await {
            Ok(Some(answered)) => answered,
            Ok(None) => Err(Failure::Answer("the runtime that sent it is gone".into())),
            Err(_) => Err(Failure::Answer("no answer in time".into())),
        }
    }

    /// Sends new documents, perhaps a look at others behind them, and answers each of them. Of a document that was not
    /// written no more is told than that: what the server says of so many takes longer than the look at those that are there.
    pub(crate) async fn bulk_of_new(&self, bulk: Bulk) -> Outcome<Vec<Item>> {
        let fields = "items.create._seq_no,items.create._primary_term,items.*.error.type,items.update,items.delete.error";
        self.in_parts(&bulk, usize::MAX, Some(fields)).await
    }

    /// Sends removals, and answers each of them.
    pub(crate) async fn bulk_of_removals(&self, bulk: Bulk) -> Outcome<Vec<Item>> {
        let fields = "items.delete.status,items.delete.result,items.delete.error";
        self.in_parts(&bulk, usize::MAX, Some(fields)).await
    }

    /// Sends so many items at once, or fewer where these are too large, or half of what the server or a proxy takes for too
    /// large.
    async fn in_parts(
        &self,
        bulk: &Bulk,
        mut at_once: usize,
        fields: Option<&str>,
    ) -> Outcome<Vec<Item>> {
        let all = bulk.asked.len();
        let mut items = Vec::with_capacity(all);
        while items.len() < all {
            let part = bulk.part(items.len(), at_once);
            let answer = async {
                let active = self.active.map(|active| active.to_string());
                let active = active.as_deref();
                let more = [("filter_path", fields), ("wait_for_active_shards", active)];
                let (answer, _) = self.answer(bulk.body(&part), &more).await?;
                self.items(bulk, part.clone(), answer).await
            };
            match answer.await {
                Ok(answered) => items.extend(answered),
                Err(failure) if failure.is_too_large() && part.len() > 1 => {
                    at_once = part.len().div_ceil(2);
                }
                Err(failure) if items.is_empty() => return Err(failure),
                Err(failure) => return Err(failure.in_part()),
            }
        }
        Ok(items)
    }

    /// Writes the mark, which every copy in sync has then, and if it refreshes, lets searches see what was written before it.
    /// Says at which node.
    pub(crate) async fn mark(&self, refreshes: bool) -> Outcome<(Seen, At)> {
        let mut bulk = Bulk::default();
        // It is no record of a lock, nor one of somebody else's.
        bulk.put(MARK, &json!({"session": ""}));
        let more = [("refresh", refreshes.then_some("true"))];
        let (answer, at) = self.answer(bulk.body(&(0..1)), &more).await?;
        let items = self.items(&bulk, 0..1, answer).await?;
        let seen = one(expect(items, &[Reply::Written])?).seen();
        Ok((
            seen.ok_or_else(|| not_ours("no write where there is one"))?,
            at,
        ))
    }

    /// Sends a body, with these parameters besides.
    async fn answer(&self, body: Bytes, more: &[(&str, Option<&str>)]) -> Outcome<(Answer, At)> {
        let path = format!("/{}/_bulk", self.alias);
        // The server gives up before we do, so that its answer arrives.
        let timeout = format!("{}ms", self.nodes.timeout().as_millis() * 4 / 5);
        // A default pipeline of the index is passed by; a final one cannot be.
        let mut query = vec![
            ("require_alias", "true"),
            ("pipeline", "_none"),
            ("timeout", timeout.as_str()),
        ];
        query.extend(
            more.iter()
                .filter_map(|(name, value)| Some((*name, (*value)?))),
        );
        let request = Request {
            method: Method::Post,
            path: &path,
            query: &query,
            body,
        };
        let sent = self.nodes.send_to(None, self.lane, request).await;
        let (answer, at): (Answer, At) = sent?;
        // A node that is cut off takes a request, and can do nothing for its items.
        if answer.items.iter().any(|one| one.item().status >= 500) {
            self.nodes.leave(at);
        }
        Ok((answer, at))
    }

    /// The items of an answer, if they are those that were asked for, and who has written them, if that was asked.
    async fn items(&self, bulk: &Bulk, part: Range<usize>, answer: Answer) -> Outcome<Vec<Item>> {
        let asked = &bulk.asked[part];
        let mut answered = answer.items.into_iter().map(One::parts);
        let by_whom = match bulk.by_whom.then(|| answered.next()) {
            None => None,
            Some(Some((Verb::Delete, item))) => Some(item),
            Some(_) => return Err(not_ours("not first who it is by")),
        };
        if answered.len() != asked.len() {
            return Err(not_ours("another number of items than was sent"));
        }
        let mut items = Vec::with_capacity(asked.len());
        for (asked, (verb, item)) in asked.iter().zip(answered) {
            // What a pipeline refuses, OpenSearch 2 answers as another kind of item.
            let is_asked = item.error.as_ref().is_some_and(Cause::is_of_a_pipeline)
                || verb == asked.verb && item.id.as_ref().is_none_or(|id| *id == asked.id);
            if !is_asked {
                return Err(not_ours("an item that was not sent"));
            }
            items.push(item);
        }
        // An item that failed names the alias.
        let answered = items.iter().filter(|item| item.error.is_none());
        let indices: Vec<&str> = answered.filter_map(|item| item.index.as_deref()).collect();
        // They are written, whatever becomes of the look at who has done so.
        let after_writing = |failure| match failure {
            Failure::Answer(_) | Failure::Found(ErrorKind::Config | ErrorKind::Corrupt, _) => {
                failure
            }
            failure => failure.in_part(),
        };
        self.answered_by(&indices).await.map_err(after_writing)?;
        let writes: Vec<Seen> = items.iter().filter_map(Item::write).collect();
        let Some(by_whom) = by_whom.filter(|_| !writes.is_empty()) else {
            return Ok(items);
        };
        let uuid = by_whom.error.as_ref().and_then(Cause::index_uuid);
        let uuid = uuid.ok_or_else(|| not_ours("not who it is by"))?;
        let primary = self.primary_of(uuid, &writes).await;
        let primary = primary.map_err(after_writing)?;
        items
            .iter_mut()
            .for_each(|item| item.primary.clone_from(&primary));
        Ok(items)
    }
}

/// The one item of a bulk of one.
pub(crate) fn one(items: Vec<Item>) -> Item {
    let mut items = items.into_iter();
    items.next().expect("as many are answered as were sent")
}

fn not_ours(what: &'static str) -> Failure {
    Failure::Answer(Cow::Borrowed(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(text: &str) -> Item {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn an_answer_counts_only_if_it_is_the_items_own() {
        let error = |kind: &str, status: u16| {
            format!(r#"{{"status":{status},"error":{{"type":"{kind}","reason":"r"}}}}"#)
        };
        for (text, reply) in [
            (r#"{"status":201,"result":"created","_seq_no":1}"#.to_owned(), Reply::Written),
            (r#"{"status":200,"result":"updated","_seq_no":2}"#.to_owned(), Reply::Written),
            (r#"{"status":200,"result":"deleted","_seq_no":2}"#.to_owned(), Reply::Written),
            (r#"{"status":201}"#.to_owned(), Reply::Failed),
            (r#"{"status":200,"result":"noop","_seq_no":2}"#.to_owned(), Reply::Refused),
            (r#"{"status":404,"result":"not_found"}"#.to_owned(), Reply::Absent),
            (error("document_missing_exception", 404), Reply::Absent),
            (error("index_not_found_exception", 404), Reply::Failed),
            (error("shard_not_found_exception", 404), Reply::Failed),
            (error("version_conflict_engine_exception", 409), Reply::Conflict),
            (error("es_rejected_execution_exception", 429), Reply::Failed),
            (error("unavailable_shards_exception", 503), Reply::Failed),
            (error("illegal_argument_exception", 400), Reply::Failed),
            (
                r#"{"status":400,"error":{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"script_exception","reason":"runtime error"}}}"#.to_owned(),
                Reply::Unreadable,
            ),
            (
                r#"{"status":400,"error":{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"circuit_breaking_exception","reason":"x"}}}"#.to_owned(),
                Reply::Failed,
            ),
        ] {
            assert_eq!(item(&text).reply(), reply, "{text}");
        }
    }

    #[test]
    fn what_fails_beside_something_written_is_of_unknown_outcome() {
        let refused = || {
            item(
                r#"{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"r"}}"#,
            )
        };
        let written = || item(r#"{"status":200,"result":"updated"}"#);
        let alone = expect(vec![refused()], &[Reply::Written]);
        assert!(matches!(alone, Err(Failure::Server(_))));
        let beside = expect(vec![written(), refused()], &[Reply::Written]);
        assert!(matches!(beside, Err(Failure::InPart(_))));
        assert!(expect(vec![written()], &[Reply::Written]).is_ok());
    }

    #[test]
    fn what_several_look_at_is_looked_at_once() {
        let release = |session: &str, key: &str| {
            let mut bulk = Bulk::default();
            bulk.look(session);
            bulk.run(key, "release", ());
            bulk
        };
        let bulks = vec![release("s", "a"), release("t", "b"), release("s", "c")];
        let lines: Vec<usize> = bulks.iter().map(|bulk| bulk.body.len()).collect();
        let look = bulks[2].begin(1);
        let (all, own) = Bulk::joined(bulks);
        let ids: Vec<&str> = all.asked.iter().map(|asked| asked.id.as_str()).collect();
        assert_eq!(ids, ["s", "a", "t", "b", "c"]);
        assert_eq!(own, [vec![0, 1], vec![2, 3], vec![0, 4]]);
        assert_eq!(all.body.len(), lines.iter().sum::<usize>() - look);
        let last = String::from_utf8(all.body(&(4..5)).to_vec()).unwrap();
        assert!(last.contains(r#"{"_id":"c","#), "{last}");
    }

    #[test]
    fn items_are_lines() {
        let mut bulk = Bulk::default();
        bulk.run("a\"b", "s", [1]);
        bulk.upsert("k", "s", (), serde_json::json!({}));
        bulk.delete("d");
        bulk.put("p", &"x");
        let text = String::from_utf8(bulk.body).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"update":{"_id":"a\"b","retry_on_conflict":8}}"#,
                "\n",
                r#"{"script":{"lang":"painless","source":"s","params":[1]}}"#,
                "\n",
                r#"{"update":{"_id":"k","retry_on_conflict":8}}"#,
                "\n",
                r#"{"script":{"lang":"painless","source":"s","params":null},"scripted_upsert":true,"upsert":{},"_source":true}"#,
                "\n",
                r#"{"delete":{"_id":"d"}}"#,
                "\n",
                r#"{"index":{"_id":"p"}}"#,
                "\n",
                "\"x\"\n",
            )
        );
    }
}
