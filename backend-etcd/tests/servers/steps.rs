//! Single requests of a session, by the traits, and what a server counts of them.

use std::sync::Arc;
use std::time::Duration;

use lockcore::backend::{
    Acquire, Acquired, ClaimStore as _, IntentChange, Opened, Ranges, Renewal, Renewed,
    SessionStore as _,
};
use lockcore::{
    Claim, Error, ErrorKind, FencingToken, Grant, Label, LockKey, OwnerId, SessionId, Want,
};
use lockcore_etcd::{EtcdBackend, EtcdConfig};
use lockkeeper_servers::etcd::Member;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::until;

pub(crate) const TTL: Duration = Duration::from_secs(600);

pub(crate) fn url(member: &Member) -> String {
    member.url().replacen("http", "etcd", 1)
}

/// A session that lives.
pub(crate) async fn opened(backend: &EtcdBackend) -> SessionId {
    let session = SessionId::new(rand::random());
    let label = Label::parse("test").unwrap();
    let opened = backend.open(session, &label, TTL).await.unwrap();
    assert_ne!(opened, Opened::Used);
    session
}

pub(crate) fn asks(session: SessionId, n: u64, keys: &[String]) -> Acquire {
    let claim = |key: &String| Claim::new(LockKey::parse(key).unwrap(), Want::Upsert).unwrap();
    let mut claims: Vec<Claim> = keys.iter().map(claim).collect();
    claims.sort_by(|a, b| a.key().cmp(b.key()));
    Acquire::new(Grant { session, n }, OwnerId { session, m: n }, claims)
}

pub(crate) fn ask(session: SessionId, n: u64, key: &str) -> Acquire {
    asks(session, n, &[key.to_owned()])
}

pub(crate) fn keep(seq: u64) -> Renewal {
    Renewal::new(seq, Ranges::EMPTY, IntentChange::Keep)
}

pub(crate) async fn token(backend: &EtcdBackend, request: &Acquire) -> FencingToken {
    match backend.acquire(request).await.unwrap() {
        Acquired::Acquired(token) => token,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn connect(url: &str) -> Result<Arc<EtcdBackend>, Error> {
    EtcdBackend::connect(EtcdConfig::parse(url).unwrap()).await
}

pub(crate) async fn refused(url: &str) -> Error {
    connect(url).await.expect_err("it is refused")
}

/// Renews until there is an answer. Says the number of the renewal that was acknowledged.
pub(crate) async fn renewed(backend: &EtcdBackend, session: SessionId, mut seq: u64) -> u64 {
    until("a renewal is answered", async || {
        seq += 1;
        match backend.renew(session, &keep(seq)).await {
            Ok(renewed) => {
                assert_eq!(renewed, Renewed::Living);
                Some(seq)
            }
            Err(error) => {
                let kinds = [ErrorKind::Indeterminate, ErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind()), "{error}");
                None
            }
        }
    })
    .await
}

/// So many bytes a member has sent to clients.
pub(crate) async fn sent(member: &Member) -> f64 {
    told(member, "etcd_network_client_grpc_sent_bytes_total ").await
}

/// So many transactions a member was asked for.
pub(crate) async fn transactions(member: &Member) -> f64 {
    told(member, "grpc_server_started_total{grpc_method=\"Txn\",").await
}

/// What a member tells of itself, in the first line that begins so.
pub(crate) async fn told(member: &Member, name: &str) -> f64 {
    let place = member.url().trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(place).await.unwrap();
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {place}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let line = answer.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.unwrap().parse().unwrap()
}
