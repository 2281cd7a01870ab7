//! Whether an index of ours can be used: nothing that is set on it changes what is written, loses it, or takes the index away.
//!
//! Most of it comes from an index template that matches the namespace's indices, and is there before the first lock is. It
//! is looked at where the namespace is, and not with every request.

use lockcore::ErrorKind;
use serde_json::Value;

use crate::error::{Failure, Outcome};
use crate::namespace::index_as_made;

/// Pipelines through which the server sends what is written.
const PIPELINES: [&str; 2] = ["index.default_pipeline", "index.final_pipeline"];
/// What has a policy look after the index, of either engine.
const POLICIES: [&str; 3] = [
    "index.lifecycle.name",
    "index.plugins.index_state_management.policy_id",
    "index.opendistro.index_state_management.policy_id",
];

/// Fails with the first thing that is in the way, and says what to do about it.
pub(crate) fn check(alias: &str, index: &str, about: &Value) -> Outcome<()> {
    let setting = |name: &str| about["settings"][name].as_str().filter(|it| !it.is_empty());
    let is = |name, value| setting(name) == Some(value);
    if is("index.verified_before_close", "true") {
        let what = format!("the index {index} is closed: open it (POST {index}/_open)");
        return Err(Failure::Found(ErrorKind::Unavailable, what.into()));
    }
    for name in PIPELINES {
        if let Some(pipeline) = setting(name).filter(|it| *it != "_none") {
            return Err(Failure::config(format!(
                "the index {index} has the ingest pipeline {pipeline}, which may change or drop what is written: set its \
                 {name} to _none"
            )));
        }
    }
    for name in POLICIES {
        if let Some(policy) = setting(name) {
            return Err(Failure::config(format!(
                "the index {index} is managed by the policy {policy}, which may close, replace or delete it: take it off \
                 (POST {index}/_ilm/remove, or _plugins/_ism/remove/{index}), and let no policy and no template match {alias}-*"
            )));
        }
    }
    if is("index.frozen", "true") {
        let what = format!("the index {index} is frozen: unfreeze it (POST {index}/_unfreeze)");
        return Err(Failure::config(what));
    }
    if let Some(store) = setting("index.store.type").filter(|it| it.ends_with("snapshot")) {
        return Err(Failure::config(format!(
            "the index {index} is mounted from a snapshot ({store}), so that nothing can be written: restore it instead, or \
             take the alias off it and connect again to make another"
        )));
    }
    if about["aliases"][alias]["is_write_index"] == false {
        return Err(Failure::config(format!(
            "the alias {alias} is not to be written by: set its is_write_index for {index} to true"
        )));
    }
    if let Some(what) = template(about) {
        return Err(Failure::config(format!(
            "the index {index} has {what}: let no index template that says so match {alias}-*, remove the index unless \
             a program holds locks there, and connect again to make it anew"
        )));
    }
    Ok(())
}

/// What a template may have put into the index that does not fit.
fn template(about: &Value) -> Option<String> {
    let setting = |name: &str| about["settings"][name].as_str();
    let mappings = &about["mappings"];
    if let Some(mode) = setting("index.mode").filter(|mode| *mode != "standard") {
        return Some(format!("the mode {mode}"));
    }
    let source = &mappings["_source"];
    let kept = [
        setting("index.mapping.source.mode"),
        source["mode"].as_str(),
    ];
    let whole = kept.into_iter().flatten().all(|mode| mode == "stored")
        && source["enabled"] != false
        && source["includes"].is_null()
        && source["excludes"].is_null();
    if !whole {
        return Some("documents that are not kept whole (_source)".to_owned());
    }
    if mappings["_routing"]["required"] == true {
        return Some("a routing that each document has to say".to_owned());
    }
    let dynamic = &mappings["dynamic"];
    if *dynamic != false && *dynamic != "false" {
        return Some("a mapping that is not \"dynamic\": false".to_owned());
    }
    let ours = index_as_made();
    let fields = |of: &str| mappings[of].as_object().into_iter().flatten();
    let mapped =
        fields("properties").find(|(name, _)| ours["mappings"]["properties"][name].is_null());
    let field = mapped.or_else(|| fields("runtime").next());
    field.map(|(name, _)| format!("a field {name} in its mapping that is none of ours"))
}
