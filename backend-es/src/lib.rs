//! Locks in an index of Elasticsearch or OpenSearch: the backend of lockkeeper for applications that already use it.
//!
//! Tested on Elasticsearch 7.10.2 and 9.2.0 and on OpenSearch 2.19, 3.4 and 3.8: [how far](#versions).
//!
//! # What it promises
//!
//! All laws of [`lockcore`]'s traits. The store's largest atomic unit is one document: every claim is a document, every
//! ancestor of a path is one too, and a batch is one `_bulk` request. If a part of it is refused, all of it is given
//! back. Every decision is a write by the primary shard that every copy in sync has acknowledged, never a read.
//! Acquiring, renewing and releasing need no refresh. Small requests that come while others are under way go together
//! in one `_bulk`, each with an answer of its own; renewals go separately.
//!
//! A namespace is an alias, and one index with one primary shard behind it. Tokens are the sequence numbers of that
//! shard's writes, above a base. The base begins anew, at the node's time, with every primary that takes over. So
//! tokens rise over deletions, over failover, and over the return of an older state. Acknowledged grants survive the
//! end of every node as long as one copy in sync is left. They do not survive a loss of power with
//! `translog.durability: async`, the loss of all copies, a stale or empty primary that an operator forces, or an index
//! that is restored from a snapshot.
//!
//! All of these are known by the term of the primary or the uuid of the index, which is part of every answer that
//! grants or renews. Then each client asks for everything that it holds, at its next renewal or acquisition. Whatever
//! is missing is reported as lost.
//!
//! If the index is removed under a running program, its guards are lost at the next renewal, or at their deadline if
//! nobody recreates the namespace.
//!
//! # Its clock
//!
//! The clock of the node with the primary shard. The scripts read it when they run: the time that a server passes to
//! its scripts stands still while the server does, and would begin a lease before its renewal was sent. A session is
//! due after its lease plus the allowed difference between the nodes' clocks ([`EsConfig::clock_skew`] of the program
//! that opened or last renewed it, 1 s by default). Nodes whose clocks are farther apart can end a session early when the primary
//! moves; tokens still rise.
//!
//! # What is in the index
//!
//! | id | document |
//! |---|---|
//! | the key, or `~sha256/<hex>` for one of more than 512 bytes or with a `~` in front | `{"key", "lock_type": "exclusive" or "shared", "lock_count", "process_id": owner, "processes": [session…], "holders": {grant: {"owner", "session", "mode", "since", "of": records of the request, "again" (of one that was sent again)}}}`; of a waiter also `"waits"`: the key of its claim, `"place"`, `"passed"` |
//! | `~session/<id>` | a session: its label, lease, number of the last renewal, retired numbers, intent, adoption |
//! | `~intent/<session>/<n>` | the payload of an intent, before the session names it |
//! | `~store` | the base of the tokens of the last primary that a program has met |
//! | `~mark` | nothing: it is written before a listing and read together with it, so that a copy that was left behind is recognised |
//!
//! A lock record is the document that *Elasticsearch: The Definitive Guide* locks with, plus three fields. Clients that
//! follow the book by hand may share the index. Their records (`{}`, `{"process_id"}`, `{"lock_type": "exclusive"}`,
//! `{"lock_type": "shared", "lock_count"}`) hold until they remove them, or an operator evicts them. The book's scripts
//! are refused by the records of this library, or count with them.
//!
//! A waiter is an entry among the holders: in the record that it needs, or in each of them for a path. `lock_count` counts
//! holders only. A record with waiters alone stays, so the book's clients find it locked until the last of them has gone;
//! while somebody waits for it exclusively, `lock_type` is `exclusive`, so that no more shares of the book's clients come
//! before it. If a client of the book removes such a record, its waiters stand in line again with their next request, at
//! the end. `process_id` is there only while nobody waits.
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
//! Give only one of the credentials. They are never part of an error, of a `Debug` or of a log. Requests go only to the
//! named nodes; the server is not asked for others, and a node that fails is left for the next. The proxy variables in
//! the environment are not used. A token in a file is read again when the server answers that it does not know the
//! token that was read before.
//!
//! A domain of Amazon OpenSearch Service is `opensearchs://NAME.REGION.es.amazonaws.com:443/?aws_region=REGION`. The
//! credentials are those that AWS' tools find, in the environment, a profile, the container or the machine, or those of
//! an `SdkConfig` of the program. They are requested again a minute before they expire. A signature is good for five
//! minutes by AWS' clock: if this machine's clock is farther off, requests are refused. OpenSearch Serverless is not
//! supported: it is another service with other rules, and nothing has been tested there.
//!
//! The program's own transport keeps its nodes, proxy, certificates and credentials. It chooses the node of each
//! request, and the backend cannot see which: after a node that takes no connection, two more are tried. There, each
//! connection that a silent network has forgotten costs a time-out; with the backend's own transport, all of them are
//! given up together.
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
//! On a server with security a program needs one role to use a namespace, and another one to create it, once. A program
//! with only the first role connects to a namespace that exists. To [remove](EsBackend::remove) a namespace takes one
//! right more. Both roles are shipped in the form that the server takes, for the namespace `lockkeeper`; replace the
//! name with yours. They contain nothing that can be spared. A user with only these rights cannot remove the index,
//! close it, or change its mapping or its settings; moving the alias away takes the role that creates the namespace.
//!
//! | | Elasticsearch: `PUT _security/role/NAME` | OpenSearch: `PUT _plugins/_security/api/roles/NAME` |
//! |---|---|---|
//! | to use it | `server/role-use.json` | `server/opensearch-role-use.json` |
//! | to create it | `server/role-init.json` | `server/opensearch-role-init.json` |
//!
//! To use it:
//!
//! ```json
#![doc = include_str!("../server/role-use.json")]
//! ```
//!
//! To create it:
//!
//! ```json
#![doc = include_str!("../server/role-init.json")]
//! ```
//!
//! Some privileges are single actions, because the server's own groups grant more: its `write` also permits a change of
//! the mapping, which contains the base of the tokens.
//!
//! An API key gets them as its `role_descriptors`. Inline scripts in Painless must be allowed. A program whose
//! password, key or role is taken away gets an error that says so. It can neither acquire nor renew, and loses its
//! guards at their deadline; if the right is given back before that, everything goes on. If a single privilege is
//! missing, the error names the action. Connecting needs only the right to read the index's settings; the first call
//! that needs another missing right reports it.
//!
//! # Versions
//!
//! | server | run in every change | run now and then | not run |
//! |---|---|---|---|
//! | Elasticsearch 9.2.0 | the whole suite; clients of the book beside it; processes that are killed and stopped | a cluster of three, whose nodes are killed, stopped and cut off from each other | |
//! | Elasticsearch 9.2.0 with users, roles, API keys and TLS | every request with the roles above, and with less; bearer tokens that the server issues; a path prefix, a proxy, several nodes and a transport of the program's own; the groups of the suite that together make every request | the whole suite with these roles | a cluster |
//! | Elasticsearch 7.10.2 | records, requests, namespaces, an index that fails under a program; clients of the book | the whole suite; a cluster of three under these faults | users and roles |
//! | OpenSearch 3.8.0 | the same, and the groups of the suite that the server decides | the same | the same |
//! | OpenSearch 3.4.0 with users, roles and TLS | every request with the roles above, and with less; namespaces and ways to connect | the whole suite with these roles | a cluster |
//! | OpenSearch 2.19.5 | records, namespaces, an index that fails under a program; a path prefix, a proxy, tokens and several nodes; requests signed for AWS, by a verifier of the tests that takes AWS' published signatures; a cluster of three, whose nodes are killed and stopped | the whole suite; nodes of a cluster that are cut off | users and roles |
//! | Elasticsearch 8, other versions, Elastic's serverless, Amazon OpenSearch Service itself | nothing | nothing | everything |
//!
//! The hosted workflow runs the suite on images of Elasticsearch 8.19 and 9.2; until it has run, they are unchecked. What is
//! not run is a claim. So is one thing about Elasticsearch 9.2: the tested archive is the real server, but it
//! lacks Elastic's own Painless. Its scripts run in OpenSearch's Painless, whose classes are renamed for it. So the
//! server's handling of an update is tested, but not whether Elastic's own compiler takes the scripts as that of 7.10.2
//! does. Serverless does not take all settings that a namespace is created with.
//!
//! # Its limits
//!
//! - No process is notified of a release in another one: a waiter polls by reading. Who comes next in line polls 1 ms after
//!   it has learnt that, then after 2, 4 and so on, up to 60 ms; any other after 4 ms for each waiter before it, then less
//!   and less often, down to twice a second. Waiters in a process that poll at about the same time share a request.
//! - A waiter adds some 200 bytes to its record, which is written again with each change: a line of a thousand makes each
//!   hand-over of that key read and write some 200 kB.
//! - A record with thousands of holders is slow: each of them is written again with every change.
//! - The index contains only locks, but its disk is shared. When the disk is full, nothing can be locked, renewed or
//!   released, and leases run out.
//! - The server compiles only some scripts in five minutes. This crate sends sixteen, each once for each node. Another
//!   program that keeps generating scripts can use up the limit; then requests fail without effect.
//! - A request of more than one record has at most 1 MiB, which proxies accept by default. A request that the server
//!   (`http.max_content_length`) or a proxy finds too large is sent in halves, each a request of its own. If a single
//!   record is refused, the request fails without effect.
//! - An index with an ingest pipeline, a lifecycle policy among its settings, or a mapping that a template has changed
//!   is refused when a program connects; the error says what to remove. An ISM policy that matches the index by its
//!   name is not in its settings: let none match `NAMESPACE-*`.
//! - A later block or a closed index makes requests fail until it is lifted. What is held stays held until its
//!   deadline.
//! - A default pipeline that is added later is bypassed. A final one cannot be: if it fails or drops documents,
//!   requests fail and say so; if it changes fields, nobody notices until the next program connects.
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
mod namespace;
mod polls;
mod primary;
mod proxy;
mod read;
mod record;
mod scripts;
mod sessions;
mod sweep;
mod wakeups;

pub use auth::BearerToken;
/// The version whose types [`EsConfig::aws`] takes.
#[cfg(feature = "aws")]
pub use aws_config;
pub use backend::EsBackend;
pub use config::{ActiveShards, EsConfig};
/// The version whose types [`EsConfig::with_transport`] takes.
pub use elasticsearch;

/// The least rights of a program that uses the namespace `lockkeeper`: a role of Elasticsearch.
pub const ROLE_USE: &str = include_str!("../server/role-use.json");
/// The rights that creating the namespace `lockkeeper` takes besides: a role of Elasticsearch.
pub const ROLE_INIT: &str = include_str!("../server/role-init.json");
/// The least rights of a program that uses the namespace `lockkeeper`: a role of OpenSearch.
pub const OPENSEARCH_ROLE_USE: &str = include_str!("../server/opensearch-role-use.json");
/// The rights that creating the namespace `lockkeeper` takes besides: a role of OpenSearch.
pub const OPENSEARCH_ROLE_INIT: &str = include_str!("../server/opensearch-role-init.json");
