//! The namespace: an alias and the one index behind it, which is made once, and checked.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use elasticsearch::http::Method;
use serde_json::{Map, Value, json};

use crate::config::EsConfig;
use crate::error::{Failure, Outcome};
use crate::fit;
use crate::http::{Lane, Nodes, Request};
use crate::record::{MARK, VERSION};

/// The base of the tokens is the time of the namespace's creation in milliseconds, shifted by so many bits.
const BASE_SHIFT: u32 = 10;
/// So often the namespace is looked for again, where others make or remove it meanwhile.
const ATTEMPTS: u32 = 5;
/// So long at most the server waits for the copies of a new index before it answers without them.
const COPIES_BEGIN: Duration = Duration::from_secs(2);

/// The index behind the alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) index: String,
    pub(crate) uuid: String,
    /// Tokens begin above this.
    pub(crate) base: u64,
    pub(crate) replicas: u64,
    pub(crate) durable: bool,
}

/// The index behind the alias, after it was made if need be.
pub(crate) async fn find_or_make(nodes: &Nodes, config: &EsConfig) -> Outcome<Place> {
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        if let Some(place) = look(nodes, config.namespace.as_str(), Lane::Others).await? {
            return Ok(place);
        }
        match make(nodes, config).await {
            Ok(()) => {}
            // Whoever else has just made it is found by the next look; if nobody has, it is told.
            Err(Failure::Server(refusal)) => {
                if refused.is_some() {
                    return Err(Failure::Unmade(refusal));
                }
                refused = Some(Failure::Unmade(refusal));
            }
            Err(failure) => return Err(failure),
        }
    }
    let what = "the namespace's alias is made and removed again and again";
    Err(refused.unwrap_or_else(|| Failure::config(what)))
}

/// Makes the index with its alias, in one step; fails if the alias is there.
async fn make(nodes: &Nodes, config: &EsConfig) -> Outcome<()> {
    let created_ms = unix_ms();
    let mut index = index_as_made();
    index["settings"]["index"]["number_of_replicas"] = config.replicas.into();
    // Only one index can have it as its write index: of two who make it at once, one is refused.
    index["aliases"][config.namespace.as_str()]["is_write_index"] = true.into();
    index["mappings"]["_meta"]["lockkeeper"] = VERSION.into();
    index["mappings"]["_meta"]["base"] = (created_ms << BASE_SHIFT).into();
    // A name of its own: who is connected sees by it that the namespace was made anew.
    let path = format!("/{}-{created_ms}", config.namespace);
    // Else the first who connects would be told that there is no copy, for it is made a moment later.
    let copies = (config.replicas + 1).to_string();
    let begin = format!("{}ms", COPIES_BEGIN.min(nodes.timeout() / 2).as_millis());
    let query = [
        ("wait_for_active_shards", copies.as_str()),
        ("timeout", begin.as_str()),
    ];
    let _: Map<String, Value> = nodes
        .send(Request {
            method: Method::Put,
            path: &path,
            query: if config.replicas > 0 { &query } else { &[] },
            body: Bytes::from(index.to_string()),
        })
        .await?;
    Ok(())
}

/// The time of this machine, in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "a new namespace's tokens begin above an older one's, and people read since when a lock is held; no lease \
                  depends on it"
    )]
    let now = SystemTime::now();
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// The index, without what is different in each namespace.
pub(crate) fn index_as_made() -> Value {
    serde_json::from_str(include_str!("../server/index.json"))
        .expect("the file is part of this package")
}

/// How many copies of the index have what is written, the primary among them; 0 where that is not told. The replicas of the
/// settings may have no node.
pub(crate) async fn copies(nodes: &Nodes, alias: &str) -> u64 {
    // By a write, which every role may do that uses locks.
    let path = format!("/{alias}/_bulk");
    let lines = [json!({"index": {"_id": MARK}}), json!({"session": ""})];
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let request = Request {
        method: Method::Post,
        path: &path,
        query: &[("require_alias", "true"), ("pipeline", "_none")],
        body: body.into(),
    };
    let answer = nodes.send::<Value>(request).await.unwrap_or_default();
    let written = &answer["items"][0]["index"]["_shards"]["successful"];
    written.as_u64().unwrap_or(0)
}

/// What the alias stands for, if it can be used; `None` if there is no such alias.
pub(crate) async fn look(nodes: &Nodes, alias: &str, lane: Lane) -> Outcome<Option<Place>> {
    let Some(found) = indices(nodes, alias, lane).await? else {
        return Ok(None);
    };
    let place = place(alias, &found)?;
    fit::check(alias, &place.index, &found[&place.index])?;
    Ok(Some(place))
}

/// The index of ours that the alias stands for, whether it can be used or not.
pub(crate) async fn find(nodes: &Nodes, alias: &str) -> Outcome<Option<Place>> {
    let found = indices(nodes, alias, Lane::Others).await?;
    found.map(|found| place(alias, &found)).transpose()
}

async fn indices(nodes: &Nodes, alias: &str, lane: Lane) -> Outcome<Option<Map<String, Value>>> {
    let path = format!("/{alias}");
    let mut others = nodes.len() - 1;
    loop {
        let request = Request {
            method: Method::Get,
            path: &path,
            query: &[("flat_settings", "true")],
            body: Bytes::new(),
        };
        match nodes.send_to(None, lane, request).await {
            Ok((indices, _)) => return Ok(Some(indices)),
            Err(failure) if failure.comes_of("index_not_found_exception") => return Ok(None),
            // A node that is cut off waits for a master. It is left, and reading does no harm.
            Err(failure) if failure.is_the_nodes() && others > 0 => others -= 1,
            Err(failure) => return Err(failure),
        }
    }
}

fn place(alias: &str, indices: &Map<String, Value>) -> Outcome<Place> {
    let mut all = indices.iter();
    let (Some((index, about)), None) = (all.next(), all.next()) else {
        let what = format!("the alias {alias} stands for several indices: let it stand for one");
        return Err(Failure::config(what));
    };
    if index == alias {
        let what = format!(
            "{alias} is an index and not an alias: choose another namespace, or put it behind an alias"
        );
        return Err(Failure::config(what));
    }
    let meta = &about["mappings"]["_meta"];
    let (version, base) = (meta["lockkeeper"].as_u64(), meta["base"].as_u64());
    let (Some(version), Some(base)) = (version, base) else {
        let what = format!(
            "the index {index} behind {alias} was not made for locks: choose another namespace"
        );
        return Err(Failure::config(what));
    };
    if version < VERSION {
        let what = format!(
            "the index {index} has version {version} of the stored shape, and this program knows {VERSION}: use another \
             namespace, or remove the index when no program uses it any more"
        );
        return Err(Failure::config(what));
    }
    if version > VERSION {
        let what = format!(
            "the index {index} has version {version} of the stored shape, and this program knows {VERSION}: use a \
             version of it that knows that one"
        );
        return Err(Failure::config(what));
    }
    // Who uses a copy is not told that there is another one.
    let made = format!("{alias}-{}", base >> BASE_SHIFT);
    if *index != made {
        let what = format!(
            "the index {index} behind {alias} is a copy of {made} (a reindex, a clone, or a restore under another name), whose \
             tokens would begin anew: take the alias off it, and the next who connects makes the namespace anew"
        );
        return Err(Failure::config(what));
    }
    let ours = index_as_made();
    let properties = ours["mappings"]["properties"].as_object();
    for (name, property) in properties.into_iter().flatten() {
        if about["mappings"]["properties"][name]["type"] != property["type"] {
            let what = format!("the index {index} has another mapping of {name}: make it anew");
            return Err(Failure::config(what));
        }
    }
    let options = ["filter", "index_routing", "search_routing"];
    let given = |option: &&str| !about["aliases"][alias][*option].is_null();
    if let Some(option) = options.into_iter().find(given) {
        let what = format!("the alias {alias} has a {option}: remove that");
        return Err(Failure::config(what));
    }
    let setting = |name: &str| about["settings"][format!("index.{name}")].as_str();
    if setting("number_of_shards") != Some("1") {
        let what =
            format!("the index {index} has several shards: tokens come from the numbers of one");
        return Err(Failure::config(what));
    }
    // The clock of whoever made the index may have been behind, so that its tokens would not be above those of an older one.
    let created_ms = setting("creation_date").and_then(|text| text.parse::<u64>().ok());
    let base = base.max(created_ms.map_or(0, |created_ms| created_ms << BASE_SHIFT));
    let uuid = setting("uuid").ok_or_else(|| Failure::Answer("an index without a uuid".into()))?;
    Ok(Place {
        index: index.clone(),
        uuid: uuid.to_owned(),
        base,
        replicas: setting("number_of_replicas")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        durable: setting("translog.durability")
            .is_none_or(|text| text.eq_ignore_ascii_case("request")),
    })
}
