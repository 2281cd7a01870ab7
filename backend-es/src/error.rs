//! The only place that maps errors of the server and of the connection to those of the library.

use std::borrow::Cow;
use std::fmt;

use lockcore::{Error, ErrorKind, Operation};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// The backend's name.
pub(crate) const NAME: &str = "elasticsearch";
/// The most bytes of a server's reason that are kept.
const REASON_BYTES: usize = 300;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No connection to any node: nothing was sent.
    Unreachable(elasticsearch::Error),
    /// The connection broke, or the time was up: the request may have been sent.
    Broken(elasticsearch::Error),
    /// The server refused, or failed.
    Server(Refusal),
    /// The server refused to create the missing namespace.
    Unmade(Refusal),
    /// It failed after a part of the same request was written, or may have been.
    InPart(Box<Failure>),
    /// The answer is none of the operation's.
    Answer(Cow<'static, str>),
    /// A condition that this backend detected, and what to do about it.
    Found(ErrorKind, Cow<'static, str>),
}

pub(crate) type Outcome<T> = Result<T, Failure>;

/// The server's answer: a status, and a cause if it could be read.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) cause: Option<Cause>,
}

/// An exception of the server, and what caused it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cause {
    kind: String,
    reason: String,
    index_uuid: Option<String>,
    caused_by: Option<Box<Cause>>,
}

impl Cause {
    /// The uuid of the index that it is about, if that is known.
    pub(crate) fn index_uuid(&self) -> Option<&str> {
        self.index_uuid.as_deref()
    }

    /// The type of the exception.
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }

    /// Whether the exception, or one that caused it, is of that type.
    pub(crate) fn comes_of(&self, kind: &str) -> bool {
        self.is(kind)
            || self
                .caused_by
                .as_ref()
                .is_some_and(|cause| cause.comes_of(kind))
    }

    fn says(&self, text: &str) -> bool {
        self.reason.contains(text)
            || self
                .caused_by
                .as_ref()
                .is_some_and(|cause| cause.says(text))
    }

    /// A script ran and could not understand what it found; not a script that could not be
    /// compiled.
    pub(crate) fn is_of_the_record(&self) -> bool {
        self.comes_of("script_exception")
            && !self.comes_of("circuit_breaking_exception")
            && !self.comes_of("general_script_exception")
            && !self.says("compile error")
    }

    /// The action that is not permitted, as Elasticsearch and OpenSearch name it.
    fn forbidden(&self) -> Option<&str> {
        let between = |before, after| Some(self.reason.split_once(before)?.1.split_once(after)?.0);
        between("action [", "] is unauthorized")
            .or_else(|| between("no permissions for [", "] and "))
    }

    /// An ingest pipeline of the index failed, or is missing.
    pub(crate) fn is_of_a_pipeline(&self) -> bool {
        self.comes_of("ingest_processor_exception") || self.missing_pipeline().is_some()
    }

    /// The ingest pipeline that the index names and that does not exist.
    fn missing_pipeline(&self) -> Option<&str> {
        let (_, name) = self.reason.split_once("pipeline with id [")?;
        name.split_once("] does not exist").map(|(name, _)| name)
    }
}

// An exception is an object with a type; a proxy in between may put a text, or anything else, in its place.
impl<'de> Deserialize<'de> for Cause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;

        impl<'de> Visitor<'de> for Visit {
            type Value = Cause;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an exception")
            }

            fn visit_str<E>(self, text: &str) -> Result<Cause, E> {
                Ok(Cause {
                    reason: shortened(text),
                    ..Cause::default()
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Cause, A::Error> {
                let mut cause = Cause::default();
                while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                    match &*name {
                        "type" => {
                            cause.kind = map.next_value::<Option<String>>()?.unwrap_or_default()
                        }
                        "reason" => {
                            let reason = map.next_value::<Option<String>>()?;
                            cause.reason = shortened(&reason.unwrap_or_default());
                        }
                        "index_uuid" => cause.index_uuid = map.next_value()?,
                        "caused_by" => cause.caused_by = map.next_value()?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(cause)
            }
        }

        deserializer.deserialize_any(Visit)
    }
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Refusal {
    /// What to do, with the name of the object, if the server has named it.
    fn named(&self) -> Option<Cow<'static, str>> {
        let cause = self.cause.as_ref()?;
        let named = match (cause.missing_pipeline(), cause.forbidden()) {
            (Some(name), _) => format!(
                "the index has the ingest pipeline {name}, which does not exist: set its index.final_pipeline to _none"
            ),
            (None, Some(action)) => format!(
                "not allowed to do {action}: give the role the privileges on the index that the documentation lists"
            ),
            (None, None) => return None,
        };
        Some(named.into())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.status)?;
        let mut cause = self.cause.as_ref();
        while let Some(this) = cause {
            write!(f, ": {}: {}", this.kind, this.reason)?;
            cause = this.caused_by.as_deref();
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

impl Failure {
    /// The configuration cannot work.
    pub(crate) fn config(what: impl Into<Cow<'static, str>>) -> Self {
        Failure::Found(ErrorKind::Config, what.into())
    }

    /// A copy of the failure, for another caller; without the cause of a connection's failure.
    pub(crate) fn copy(&self) -> Self {
        match self {
            Failure::Unreachable(_) => Failure::Found(ErrorKind::Unavailable, UNREACHABLE.into()),
            Failure::Broken(error) => {
                Failure::Found(ErrorKind::Indeterminate, broken(error).into())
            }
            Failure::Server(refusal) => Failure::Server(refusal.clone()),
            Failure::Unmade(refusal) => Failure::Unmade(refusal.clone()),
            Failure::InPart(failure) => failure.copy().in_part(),
            Failure::Answer(what) => Failure::Answer(what.clone()),
            Failure::Found(kind, what) => Failure::Found(*kind, what.clone()),
        }
    }

    /// The same failure, after something was written.
    pub(crate) fn in_part(self) -> Self {
        Failure::InPart(self.into())
    }

    /// Whether nothing may be written, to the index or by that user.
    pub(crate) fn is_of_no_right_to_write(&self) -> bool {
        let kinds = ["cluster_block_exception", "security_exception"];
        matches!(
            self,
            Failure::Server(Refusal {
                status: 403 | 429,
                ..
            })
        ) && kinds.iter().any(|kind| self.comes_of(kind))
    }

    /// Whether the server says that something of this type happened.
    pub(crate) fn comes_of(&self, kind: &str) -> bool {
        match self {
            Failure::Server(refusal) => {
                let cause = refusal.cause.as_ref();
                cause.is_some_and(|cause| cause.comes_of(kind))
            }
            _ => false,
        }
    }

    /// The server or a proxy rejected the request for its size.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, Failure::Server(refusal) if refusal.status == 413)
    }

    /// Another node may succeed where this one failed.
    pub(crate) fn is_the_nodes(&self) -> bool {
        match self {
            Failure::Broken(_) => true,
            Failure::Server(refusal) => refusal.status >= 500,
            _ => false,
        }
    }

    pub(crate) fn into_error(self, operation: Operation) -> Error {
        let of = |kind, what: Cow<'static, str>| Error::new(kind, NAME, operation, what);
        match self {
            Failure::Unreachable(error) => {
                of(ErrorKind::Unavailable, UNREACHABLE.into()).with_source(error)
            }
            Failure::Broken(error) => {
                of(ErrorKind::Indeterminate, broken(&error).into()).with_source(error)
            }
            Failure::Server(refusal) => {
                let (kind, what) = judge(&refusal);
                of(kind, refusal.named().unwrap_or(what.into())).with_source(refusal)
            }
            Failure::Unmade(refusal) => {
                let (kind, what) = match judge(&refusal) {
                    (ErrorKind::Unauthorized, _) => (
                        ErrorKind::Unauthorized,
                        "the namespace was not made yet, and we may not make it: connect once as somebody who may",
                    ),
                    (ErrorKind::Config, what) => (ErrorKind::Config, unmade(&refusal, what)),
                    judged => judged,
                };
                of(kind, what.into()).with_source(refusal)
            }
            Failure::InPart(failure) => {
                let what = "only a part was written".into();
                of(ErrorKind::Indeterminate, what).with_source(failure.into_error(operation))
            }
            Failure::Answer(what) => of(ErrorKind::Indeterminate, what),
            Failure::Found(kind, what) => of(kind, what),
        }
    }
}

const UNREACHABLE: &str = "no node can be reached: check that they run and that the URL names them";

fn broken(error: &elasticsearch::Error) -> &'static str {
    match error.is_timeout() {
        true => "no answer in time",
        false => "the connection broke",
    }
}

/// Why the server rejects the index as it is created.
fn unmade(refusal: &Refusal, otherwise: &'static str) -> &'static str {
    let says = |text| refusal.cause.as_ref().is_some_and(|it| it.says(text));
    if says("serverless") {
        "the server is Elastic's serverless, which does not take the settings of a namespace (one shard, durable writes): use \
         another deployment"
    } else if says("data stream") {
        "an index template takes the namespace's indices for data streams: let it not match NAMESPACE-*, or choose another \
         namespace"
    } else {
        otherwise
    }
}

/// The meaning of a block of an index or of the cluster. Its number is in the reason.
fn blocked(cause: &Cause) -> &'static str {
    let is = |number: &str| cause.says(&format!("/{number}/"));
    if is("5") || is("8") {
        "the index is blocked by a setting: set its index.blocks.write and index.blocks.read_only to null"
    } else if is("7") || is("9") {
        "the index is blocked by a setting: set its index.blocks.read and index.blocks.metadata to null"
    } else if is("6") || is("13") {
        "the cluster is blocked by a setting: set cluster.blocks.read_only and cluster.blocks.read_only_allow_delete to null"
    } else if is("10") {
        "the cluster makes no index: free the disk, then set its cluster.blocks.create_index to null"
    } else if is("4") {
        CLOSED
    } else {
        "the index may not be written: free the disk, then lift the index's block"
    }
}

const PIPELINE: &str =
    "the index has an ingest pipeline, which fails: set its index.final_pipeline to _none";
const CLOSED: &str = "the index is closed: open it (POST INDEX/_open)";

/// The table.
fn judge(refusal: &Refusal) -> (ErrorKind, &'static str) {
    use ErrorKind::{Config, Corrupt, Indeterminate, Limit, Unauthorized, Unavailable};
    let unread = Cause::default();
    let cause = refusal.cause.as_ref().unwrap_or(&unread);
    match refusal.status {
        // Also 400, where a script could not be compiled any more.
        400 | 429 if cause.comes_of("circuit_breaking_exception") => (
            Unavailable,
            "a circuit breaker of the server is open (memory, or script compilations): relieve the server",
        ),
        400 if cause.says("Too many dynamic script compilations") => (
            Unavailable,
            "the server compiles no more scripts for now: something else on it compiles too many",
        ),
        403 | 429
            if cause.is("cluster_block_exception") || cause.is("index_create_block_exception") =>
        {
            (Unavailable, blocked(cause))
        }
        400 | 403 if cause.is("index_closed_exception") => (Unavailable, CLOSED),
        429 => (Unavailable, "the server is overloaded"),
        401 => (
            Unauthorized,
            "the server does not know who we are: check user and password, or the key or token",
        ),
        407 => (
            Unauthorized,
            "the proxy does not know who we are: check the user and the password in the proxy's URL",
        ),
        403 if refusal.cause.is_none() => (
            Unauthorized,
            "not allowed by what stands before the server: check who we are to it; of AWS the domain's access policy, the \
             credentials and this machine's clock",
        ),
        403 => (
            Unauthorized,
            "not allowed: give the role the privileges on the index that the documentation lists",
        ),
        404 if cause.is("index_not_found_exception") => (
            Config,
            "the namespace's alias points nowhere, its index was removed: connect again to make it",
        ),
        413 => (
            Limit,
            "the request is too large: raise the server's `http.max_content_length`, or the limit of a proxy before it",
        ),
        400 if cause.is_of_the_record() => (Corrupt, "a record cannot be understood"),
        400 if cause.says("script_lang not supported") => (
            Config,
            "this server has no Painless: the module lang-painless is missing",
        ),
        400 | 405
            if cause.says("no handler found for uri")
                || cause.says("Incorrect HTTP method for uri") =>
        {
            (
                Config,
                "the server does not know the path: in the URL it is the prefix of a reverse proxy, which takes it off",
            )
        }
        400 if cause.says("no write index is defined") || cause.says("more than one index") => (
            Config,
            "the alias stands for several indices, or is not to be written by: let it stand for the namespace's index alone",
        ),
        400..=599 if cause.is_of_a_pipeline() => (Config, PIPELINE),
        400 if refusal.cause.is_some() => (
            Config,
            "the server does not take the request: check its version and the index's mapping",
        ),
        409 => (Indeterminate, "others changed the record again and again"),
        503 if cause.says("Not enough active copies") => (
            Indeterminate,
            "fewer copies of the index are active than `wait_for_active_shards` asks for: bring nodes back, or ask for fewer",
        ),
        500..=599 => (Indeterminate, "the server failed"),
        _ => (Indeterminate, "an answer that is not expected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, cause: &str) -> Refusal {
        let cause = Some(cause).filter(|cause| !cause.is_empty());
        Refusal {
            status,
            cause: cause.map(|cause| serde_json::from_str(cause).unwrap()),
        }
    }

    macro_rules! rows {
        ($($name:ident: $status:literal, $cause:literal => $kind:ident, $in_part:ident;)*) => {
            $(
                #[test]
                fn $name() {
                    for (failure, kind) in [
                        (Failure::Server(refusal($status, $cause)), ErrorKind::$kind),
                        (Failure::Server(refusal($status, $cause)).in_part(), ErrorKind::$in_part),
                    ] {
                        let error = failure.into_error(Operation::Acquire);
                        assert_eq!(error.kind(), kind, "{error}");
                        let mut source = std::error::Error::source(&error);
                        while let Some(deeper) = source.and_then(std::error::Error::source) {
                            source = Some(deeper);
                        }
                        let source = source.map(ToString::to_string);
                        let status = format!("status {}", $status);
                        assert!(source.is_some_and(|source| source.starts_with(&status)), "the cause is kept");
                    }
                }
            )*
        };
    }

    rows! {
        unauthenticated: 401, r#"{"type":"security_exception","reason":"missing authentication credentials"}"# => Unauthorized, Indeterminate;
        unauthenticated_by_a_proxy: 401, "" => Unauthorized, Indeterminate;
        forbidden: 403, r#"{"type":"security_exception","reason":"action [x] is unauthorized"}"# => Unauthorized, Indeterminate;
        forbidden_by_a_proxy: 403, "" => Unauthorized, Indeterminate;
        index_missing: 404, r#"{"type":"index_not_found_exception","reason":"no such index [a]"}"# => Config, Indeterminate;
        shard_missing: 404, r#"{"type":"shard_not_found_exception","reason":"no such shard"}"# => Indeterminate, Indeterminate;
        not_found_by_a_proxy: 404, "" => Indeterminate, Indeterminate;
        unknown_path: 400, r#""no handler found for uri [/x/lockkeeper] and method [GET]""# => Config, Indeterminate;
        unknown_path_older: 405, r#""Incorrect HTTP method for uri [/x/lockkeeper?flat_settings=true] and method [GET], allowed: [POST]""# => Config, Indeterminate;
        method_not_allowed_by_a_proxy: 405, "" => Indeterminate, Indeterminate;
        unauthenticated_to_the_proxy: 407, "" => Unauthorized, Indeterminate;
        conflict: 409, r#"{"type":"version_conflict_engine_exception","reason":"[k]: version conflict"}"# => Indeterminate, Indeterminate;
        too_large: 413, "" => Limit, Indeterminate;
        overloaded: 429, r#"{"type":"es_rejected_execution_exception","reason":"rejected execution"}"# => Unavailable, Indeterminate;
        overloaded_opensearch: 429, r#"{"type":"rejected_execution_exception","reason":"rejected execution"}"# => Unavailable, Indeterminate;
        overloaded_by_a_proxy: 429, "" => Unavailable, Indeterminate;
        circuit_breaker: 429, r#"{"type":"circuit_breaking_exception","reason":"[parent] Data too large"}"# => Unavailable, Indeterminate;
        read_only_allow_delete: 429, r#"{"type":"cluster_block_exception","reason":"index [a] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];"}"# => Unavailable, Indeterminate;
        read_only_allow_delete_older: 403, r#"{"type":"cluster_block_exception","reason":"index [a] blocked by: [FORBIDDEN/12/index read-only / allow delete (api)];"}"# => Unavailable, Indeterminate;
        blocked_for_writing: 403, r#"{"type":"cluster_block_exception","reason":"index [a] blocked by: [FORBIDDEN/8/index write (api)];"}"# => Unavailable, Indeterminate;
        blocked_cluster: 403, r#"{"type":"cluster_block_exception","reason":"blocked by: [FORBIDDEN/6/cluster read-only (api)];"}"# => Unavailable, Indeterminate;
        no_index_is_made: 403, r#"{"type":"index_create_block_exception","reason":"blocked by: [FORBIDDEN/10/cluster create-index blocked (api)];"}"# => Unavailable, Indeterminate;
        closed: 400, r#"{"type":"index_closed_exception","reason":"closed"}"# => Unavailable, Indeterminate;
        not_to_be_written: 400, r#"{"type":"illegal_argument_exception","reason":"no write index is defined for alias [a]. The write index may be explicitly disabled"}"# => Config, Indeterminate;
        several_indices: 400, r#"{"type":"illegal_argument_exception","reason":"alias [a] has more than one index associated with it [a-1, a-2], can't execute a single index op"}"# => Config, Indeterminate;
        pipeline_missing: 400, r#"{"type":"illegal_argument_exception","reason":"pipeline with id [x] does not exist"}"# => Config, Indeterminate;
        pipeline_failed: 500, r#"{"type":"ingest_processor_exception","reason":"java.lang.IllegalArgumentException: x"}"# => Config, Indeterminate;
        script_compilations: 400, r#"{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"circuit_breaking_exception","reason":"[script] Too many dynamic script compilations within, max: [75/5m]"}}"# => Unavailable, Indeterminate;
        script_compilations_older: 400, r#"{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"general_script_exception","reason":"Failed to compile inline script","caused_by":{"type":"circuit_breaking_exception","reason":"[script] Too many dynamic script compilations within, max: [75/5m]"}}}"# => Unavailable, Indeterminate;
        script_compilations_in_words: 400, r#"{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"general_script_exception","reason":"[script] Too many dynamic script compilations within, max: [75/5m]"}}"# => Unavailable, Indeterminate;
        no_painless: 400, r#"{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"illegal_argument_exception","reason":"script_lang not supported [painless]"}}"# => Config, Indeterminate;
        a_broken_record: 400, r#"{"type":"illegal_argument_exception","reason":"failed to execute script","caused_by":{"type":"script_exception","reason":"runtime error","caused_by":{"type":"null_pointer_exception","reason":null}}}"# => Corrupt, Indeterminate;
        a_refused_mapping: 400, r#"{"type":"mapper_parsing_exception","reason":"failed to parse field [lock_count]"}"# => Config, Indeterminate;
        bad_request_by_a_proxy: 400, "" => Indeterminate, Indeterminate;
        no_primary: 503, r#"{"type":"unavailable_shards_exception","reason":"primary shard is not active"}"# => Indeterminate, Indeterminate;
        no_master: 503, r#"{"type":"cluster_block_exception","reason":"blocked by: [SERVICE_UNAVAILABLE/2/no master];"}"# => Indeterminate, Indeterminate;
        server_error: 500, r#""a text where an exception is expected""# => Indeterminate, Indeterminate;
        bad_gateway: 502, "" => Indeterminate, Indeterminate;
        gateway_timeout: 504, "" => Indeterminate, Indeterminate;
        anything_else: 302, "" => Indeterminate, Indeterminate;
    }

    #[test]
    fn an_answer_that_is_none() {
        let error = Failure::Answer("x".into()).into_error(Operation::Renew);
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
    }

    #[test]
    fn who_may_not_make_a_namespace_is_told_so() {
        let refused = refusal(403, r#"{"type":"security_exception","reason":"no"}"#);
        let error = Failure::Unmade(refused).into_error(Operation::Connect);
        assert_eq!(error.kind(), ErrorKind::Unauthorized);
        assert!(error.to_string().contains("was not made yet"), "{error}");
        let error = Failure::Unmade(refusal(503, "")).into_error(Operation::Connect);
        assert_eq!(error.kind(), ErrorKind::Indeterminate);
        assert!(!error.to_string().contains("was not made yet"), "{error}");
    }

    #[test]
    fn who_cannot_make_a_namespace_is_told_why() {
        for (reason, says) in [
            (
                "Settings [index.hidden,index.number_of_shards] are not available when running in serverless mode",
                "serverless",
            ),
            (
                "cannot create index with name [a-1], because it matches with template [t] that creates data streams only",
                "data streams",
            ),
            ("anything else", "check its version"),
        ] {
            let cause = format!(r#"{{"type":"illegal_argument_exception","reason":"{reason}"}}"#);
            let error = Failure::Unmade(refusal(400, &cause)).into_error(Operation::Connect);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn each_block_says_what_lifts_it() {
        for (block, says) in [
            ("[FORBIDDEN/4/index closed]", "open it"),
            (
                "[FORBIDDEN/5/index read-only (api)]",
                "index.blocks.read_only",
            ),
            (
                "[FORBIDDEN/6/cluster read-only (api)]",
                "cluster.blocks.read_only",
            ),
            ("[FORBIDDEN/7/index read (api)]", "index.blocks.read "),
            ("[FORBIDDEN/8/index write (api)]", "index.blocks.write"),
            (
                "[FORBIDDEN/9/index metadata (api)]",
                "index.blocks.metadata",
            ),
            (
                "[FORBIDDEN/10/cluster create-index blocked (api)]",
                "cluster.blocks.create_index",
            ),
            (
                "[FORBIDDEN/12/index read-only / allow delete (api)]",
                "free the disk",
            ),
            (
                "[FORBIDDEN/13/cluster read-only / allow delete (api)]",
                "cluster.blocks.read_only_allow_delete",
            ),
        ] {
            let cause = format!(
                r#"{{"type":"cluster_block_exception","reason":"index [a-8] blocked by: {block};"}}"#
            );
            let error = Failure::Server(refusal(403, &cause)).into_error(Operation::Acquire);
            assert!(error.to_string().contains(says), "{block}: {error}");
        }
    }

    #[test]
    fn what_the_server_names_is_named() {
        for (status, kind, reason, says) in [
            (
                400,
                "illegal_argument_exception",
                "pipeline with id [x] does not exist",
                "the ingest pipeline x, which does not exist: set",
            ),
            (
                403,
                "security_exception",
                "action [indices:data/write/bulk[s]] is unauthorized for user [u] with effective roles [r]",
                "not allowed to do indices:data/write/bulk[s]: give",
            ),
            (
                403,
                "security_exception",
                "no permissions for [indices:data/write/bulk[s]] and User [name=u, backend_roles=[]]",
                "not allowed to do indices:data/write/bulk[s]: give",
            ),
            (403, "security_exception", "no", "not allowed: give"),
        ] {
            let cause = format!(r#"{{"type":"{kind}","reason":"{reason}"}}"#);
            let error = Failure::Server(refusal(status, &cause)).into_error(Operation::Acquire);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn our_own_findings_keep_their_kind_and_text() {
        let error = Failure::config("use another index").into_error(Operation::Connect);
        assert_eq!(
            error.to_string(),
            "elasticsearch: connect: cannot be used as configured: use another index"
        );
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let text = format!("\"a{}\"", "é".repeat(300));
        let cause: Cause = serde_json::from_str(&text).unwrap();
        assert_eq!(cause.reason.len(), 299);
    }
}
