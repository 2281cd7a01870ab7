//! Locks in an index of Elasticsearch or OpenSearch: the backend of lockkeeper for programs whose documents are there.
//!
//! Tested on Elasticsearch 7.10.2 and 9.2.0 and on OpenSearch 2.19, 3.4 and 3.8: [how far](#versions).
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. The largest atomic thing of the store is one document: every claim is a document,
//! every ancestor of a path is one too, and a step is one `_bulk` request, of which everything is given back if a part
//! is refused. Everything that decides is a write by the primary shard that every copy in sync has acknowledged, never
//! a read. Nothing is refreshed to acquire, to renew or to release. Small requests that come while others are under way go
//! together in one `_bulk`, each with an answer of its own; renewals go by themselves.
//!
//! A namespace is an alias, and one index with one primary shard behind it. Tokens are the sequence numbers of that
//! shard's writes, above a base that begins anew with every primary that takes over, at its node's time: they rise over
//! deletions, over failover, and over whatever brings an older state back. Acknowledged grants survive the end of every node
//! as long as one copy in sync is left. They do not survive `translog.durability: async` with a loss of power, the loss of
//! all copies, a stale or empty primary that an operator forces, or an index that is restored from a snapshot.
//!
//! All of these are known by the term of the primary or the uuid of the index, which every answer that grants or renews
//! says. Then each client asks for everything that it holds, at its next renewal or acquisition; what is not there is told
//! as lost.
//!
//! If the index is removed under a running program, its guards are lost at the next renewal, or at their deadline if
//! nobody makes the namespace anew.
//!
//! # Its clock
//!
//! That of the node with the primary shard, which the scripts read when they run; the time that a server gives its
//! scripts stands still while the server does, and would begin a lease before its renewal was sent. A session is due the
//! difference between the nodes' clocks ([`EsConfig::clock_skew`] of whoever opened it, 1 s by default) after its lease.
//! Nodes whose clocks are farther apart can end a session early when the primary moves; tokens still rise.
//!
//! # What is in the index
//!
//! | id | document |
//! |---|---|
//! | the key, or `~sha256/<hex>` for one of more than 512 bytes or with a `~` in front | `{"key", "lock_type": "exclusive" or "shared", "lock_count", "process_id": owner, "processes": [session…], "holders": {grant: {"owner", "session", "mode", "since", "of": records of the request, "again" (of one that was sent again)}}}` |
//! | `~session/<id>` | a session: its label, lease, number of the last renewal, numbers that are over, intent, adoption |
//! | `~intent/<session>/<n>` | the payload of an intent, before the session names it |
//! | `~store` | where the tokens of the last primary begin that somebody has met |
//! | `~mark` | nothing: it is written before something is listed, and read with it, so that a copy that was left behind is told |
//!
//! A lock record is the document that *Elasticsearch: The Definitive Guide* locks with, and three fields more. Clients
//! that follow the book by hand may share the index: what they write (`{}`, `{"process_id"}`, `{"lock_type":
//! "exclusive"}`, `{"lock_type": "shared", "lock_count"}`) holds until they remove it, or an operator evicts it; what
//! this library writes, the book's scripts are refused by or counted with.
//!
//! # How it is reached
//!
//! | by | in a URL | in a program |
//! |---|---|---|
//! | a user and a password | `elasticsearchs://USER:PASSWORD@HOST` | [`password`](EsConfig::password) |
//! | an API key, as the server has encoded it | `?api_key=KEY` | [`api_key`](EsConfig::api_key) |
//! | a bearer token | `?bearer_token=TOKEN` | [`bearer`](EsConfig::bearer), with a [`BearerToken`] that the program replaces |
//! | a bearer token that others replace, in a file | `?bearer_token_file=PATH` | [`bearer_file`](EsConfig::bearer_file) |
//! | a signature for AWS, with the feature `aws` | `?aws_region=REGION` | `EsConfig::aws`, `EsConfig::aws_region` |
//! | several nodes | `elasticsearchs://A,B,C` | |
//! | a reverse proxy that has the server below a path | `elasticsearchs://HOST/PATH/` | |
//! | a proxy | `?proxy=http://USER:PASSWORD%40HOST:PORT` | [`proxy`](EsConfig::proxy) |
//! | the program's own client | | [`with_client`](EsConfig::with_client), [`with_transport`](EsConfig::with_transport) |
//!
//! Of what says who we are, one is given. None of it is part of an error, of a `Debug` or of a log. Requests go to the nodes
//! that are named, and nobody asks the server for others; a node that fails is left for the next. The variables for proxies
//! in the environment are not used. A token in a file is read again when the server answers that it does not know the one
//! that was read before.
//!
//! A domain of Amazon OpenSearch Service is `opensearchs://NAME.REGION.es.amazonaws.com:443/?aws_region=REGION`. The
//! credentials are those that AWS' tools find, in the environment, a profile, the container or the machine, or those of an
//! `SdkConfig` of the program; they are asked for again a minute before they end. A signature is good for five minutes by
//! AWS' clock: where this machine's is farther off, requests are refused. OpenSearch Serverless is not taken: it is another
//! service with other rules, and nothing has been tested there.
//!
//! The program's own transport keeps its nodes, proxy, certificates and credentials. It chooses the node of each request,
//! and we cannot see which: after one that takes no connection two more are tried. Connections that a silent network has
//! forgotten cost a time-out each there, where ours are left together.
//!
//! ```
//! use lockcore_es::{BearerToken, EsConfig};
//!
//! let token = BearerToken::new("of today");
//! let config = EsConfig::parse("elasticsearchs://a.example,b.example/search/")?
//!     .bearer(token.clone())
//!     .proxy("http://proxy.example:3128")?;
//! // Later, and as often as need be.
//! token.replace("of tomorrow");
//! # drop(config);
//! # Ok::<(), lockcore::backend::UrlError>(())
//! ```
//!
//! # Privileges
//!
//! On a server with security a program needs one role to use a namespace, and another to make it, once: whoever only has
//! the first connects to a namespace that is there. To [remove](EsBackend::remove) it takes one right more. Both are shipped in the form that the server takes, for the namespace
//! `lockkeeper`; put yours in its place. Nothing in them can be spared, and nobody who has only these can remove the
//! index, close it, or change its mapping or its settings; to move the alias away takes the role that makes it.
//!
//! | | Elasticsearch: `PUT _security/role/NAME` | OpenSearch: `PUT _plugins/_security/api/roles/NAME` |
//! |---|---|---|
//! | to use it | `server/role-use.json` | `server/opensearch-role-use.json` |
//! | to make it | `server/role-init.json` | `server/opensearch-role-init.json` |
//!
//! To use it:
//!
//! ```json
#![doc = include_str!("../server/role-use.json")]
//! ```
//!
//! To make it:
//!
//! ```json
#![doc = include_str!("../server/role-init.json")]
//! ```
//!
//! Some privileges are single actions, where the server's own groups give more: its `write` also lets one change the
//! mapping, where the base of the tokens is.
//!
//! An API key gets them as its `role_descriptors`. Scripts must be allowed inline, in Painless. A program whose password,
//! key or role is taken away is told so, can neither acquire nor renew, and loses its guards at their deadline; given back
//! before that, everything goes on. Of a single privilege that is missing, the error names the action. Connecting takes no
//! other right than to read the index's settings: what else is missing is told by the first call that needs it.
//!
//! # Versions
//!
//! | server | run in every change | run now and then | not run |
//! |---|---|---|---|
//! | Elasticsearch 9.2.0 | the whole suite; clients of the book beside it; processes that are killed and stopped | a cluster of three, whose nodes are killed, stopped and cut off from each other | |
//! | Elasticsearch 9.2.0 with users, roles, API keys and TLS | every request with the roles above, and with less; bearer tokens that the server issues; a path prefix, a proxy, several nodes and a transport of the program's own; the groups of the suite that together make every request | the whole suite with these roles | a cluster |
//! | Elasticsearch 7.10.2 | the groups of the suite that the server decides; clients of the book | the whole suite; a cluster of three under these faults | users and roles |
//! | OpenSearch 3.8.0 | the same | the same | the same |
//! | OpenSearch 3.4.0 with users, roles and TLS | as Elasticsearch with users | the whole suite with these roles | a cluster |
//! | OpenSearch 2.19.5 | records, namespaces, an index that fails under a program; a path prefix, a proxy, tokens and several nodes; requests signed for AWS, by a verifier of the tests that takes AWS' published signatures; a cluster of three, whose nodes are killed and stopped | the whole suite; nodes of a cluster that are cut off | users and roles |
//! | Elasticsearch 8, other versions, Elastic's serverless, Amazon OpenSearch Service itself | nothing | nothing | everything |
//!
//! What is not run is a claim. So is one thing of Elasticsearch 9.2: the archive that is tested is the real server, but it
//! lacks Elastic's own Painless. Its scripts run in OpenSearch's, whose classes are renamed for it: what the server does
//! with an update is tested, and not that Elastic's own compiler takes the scripts as that of 7.10.2 does. Serverless does
//! not take all settings that a namespace is made with.
//!
//! # Its limits
//!
//! - Nobody is told of a release in another process: who waits looks, some twenty times a second,
//!   by reading. All who wait in a process look together: a request reads what a thousand of them need.
//! - A record with thousands of holders is slow: each of them is written again with every change.
//! - The index holds nothing but locks, but its disk is shared: when it is full, nothing can be locked, renewed or
//!   released, and leases run out.
//! - The server compiles only some scripts in five minutes. This crate sends fifteen, each once for each node; another
//!   program that makes up scripts all the time can use the limit up, and then requests fail without effect.
//! - A request of more than one record has 1 MiB at most, which a proxy takes unless it is told otherwise. One that the server
//!   (`http.max_content_length`) or a proxy takes for too large is sent in halves, each of them a request of its own. What it
//!   refuses for a single record fails without effect.
//! - An index with an ingest pipeline, a lifecycle policy among its settings, or a mapping that a template has changed is
//!   refused when a program connects, and the error says what to remove. An ISM policy that takes the index by its name is not
//!   in its settings: let none match `NAMESPACE-*`.
//! - A block or a closed index that comes later fails requests until it is lifted. What is held stays held until its
//!   deadline.
//! - A default pipeline that comes later is passed by. A final one cannot be: where it fails or drops documents, requests
//!   fail and say so; where it changes fields, nobody notices until the next program connects.
//! - A key that another writer has put under an id of its own cannot be listed by prefix if its `key` says otherwise.
//!
//! # Examples
//!
//! Compiled and not run, because it needs a server; the conformance suite does the same with one.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use lockcore::backend::{Acquire, Acquired, ClaimStore, SessionStore};
//! use lockcore::{Claim, Grant, Label, LockKey, OwnerId, SessionId, Want};
//! use lockcore_es::{EsBackend, EsConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = EsConfig::parse("elasticsearchs://me:secret@a.example,b.example/?namespace=fs&ca=/etc/ca.pem")?;
//! let backend = EsBackend::connect(config).await?;
//! let session = SessionId::new(7);
//! backend.open(session, &Label::parse("example")?, Duration::from_secs(30)).await?;
//! let claims = vec![Claim::new(LockKey::parse("reindex")?, Want::Create).unwrap()];
//! let request = Acquire::new(Grant { session, n: 1 }, OwnerId { session, m: 1 }, claims);
//! assert!(matches!(backend.acquire(&request).await?, Acquired::Acquired(_)));
//! backend.release(request.grant, &request.claims).await?;
//! # Ok(())
//! # }
//! ```

mod auth;
#[cfg(feature = "aws")]
mod aws;
mod backend;
mod bulk;
mod claims;
mod config;
mod error;
mod fit;
mod held;
mod http;
mod inspect;
mod looks;
mod namespace;
mod primary;
mod proxy;
mod read;
mod record;
mod scripts;
mod sessions;
mod sweep;
mod wakeups;

pub use auth::BearerToken;
/// What [`EsConfig::aws`] takes is of this version.
#[cfg(feature = "aws")]
pub use aws_config;
pub use backend::EsBackend;
pub use config::{ActiveShards, EsConfig};
/// What [`EsConfig::with_transport`] takes is of this version.
pub use elasticsearch;
