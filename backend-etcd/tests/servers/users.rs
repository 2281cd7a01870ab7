//! Users, rights and certificates, by a URL and by a client of the program.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockcore::ErrorKind;
use lockcore::backend::{ClaimStore as _, Namespace, Renewed, SessionStore as _, Wakeups as _};
use lockcore_etcd::{EtcdBackend, EtcdConfig};
use lockkeeper_servers::etcd::{ETCD_3_4, ETCD_3_6};
use tokio::task::JoinSet;

use crate::steps::{ask, connect, keep, opened, refused, renewed, token, url};
use crate::support::{Secured, certificates, client, given, member, restarted};

#[tokio::test]
async fn users_are_known_and_held_to_their_rights() {
    let server = Secured::start().await;
    for (user, kind) in [
        ("lockkeeper:other", ErrorKind::Unauthorized),
        ("nobody:s3cret", ErrorKind::Unauthorized),
    ] {
        let error = refused(&format!("{}&namespace=t1", server.url(user))).await;
        assert_eq!(error.kind(), kind, "{error}");
    }
    let host = server.member.url().replacen("https", "etcds", 1);
    let nobody = format!("{host}/?ca={}&namespace=t1", server.ca);
    assert_eq!(refused(&nobody).await.kind(), ErrorKind::Unauthorized);
    // Another namespace than those that begin as it may.
    let elsewhere = refused(&format!("{}&namespace=other", server.least())).await;
    assert_eq!(elsewhere.kind(), ErrorKind::Unauthorized, "{elsewhere}");

    let backend = connect(&format!("{}&namespace=t1", server.least()))
        .await
        .unwrap();
    let session = opened(&backend).await;
    let held = ask(session, 1, "a");
    token(&backend, &held).await;
    let mut admin = server.admin().await;
    admin
        .user_revoke_role("lockkeeper", "lockkeeper")
        .await
        .unwrap();
    let errors = [
        backend
            .acquire(&ask(session, 2, "b"))
            .await
            .map(drop)
            .unwrap_err(),
        backend
            .renew(session, &keep(1))
            .await
            .map(drop)
            .unwrap_err(),
        backend.release(held.grant, &held.claims).await.unwrap_err(),
        backend
            .confirm(held.grant, &held.claims)
            .await
            .map(drop)
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    }
    admin
        .user_grant_role("lockkeeper", "lockkeeper")
        .await
        .unwrap();
    assert_eq!(
        backend.renew(session, &keep(2)).await.unwrap(),
        Renewed::Living
    );
    assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
}

#[tokio::test]
async fn a_server_that_forgets_who_we_are_is_told_again() {
    let mut server = Secured::start().await;
    let [by_url, by_client] = both_ways(&server).await;
    let sessions = [opened(&by_url).await, opened(&by_client).await];
    // The names by which it knows us are in its memory.
    server.member = restarted(server.member).await;
    renewed(&by_url, sessions[0], 1).await;
    renewed(&by_client, sessions[1], 1).await;
}

/// A backend of the user with the least rights by its URL, and one by a client that the program has; each with a namespace
/// of its own.
async fn both_ways(server: &Secured) -> [Arc<EtcdBackend>; 2] {
    let by_url = connect(&format!("{}&namespace=t1", server.least())).await;
    let own = EtcdConfig::with_client(&client(&server.least()).await);
    let own = own.namespace(Namespace::parse("t2").unwrap());
    [by_url.unwrap(), EtcdBackend::connect(own).await.unwrap()]
}

#[tokio::test]
async fn a_client_of_the_program_has_its_own_credentials() {
    let own = client(&given()).await;
    let config = || EtcdConfig::with_client(&own);
    for config in [
        config().password("u", "secret"),
        config().ca("/ca.pem"),
        config().certificate("/cert.pem", "/key.pem"),
    ] {
        let error = EtcdBackend::connect(config.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(!format!("{error:?} {config:?}").contains("secret"));
    }
}

/// Where the server signs the names that it gives out, none of them is good any more after a change of users or roles.
#[tokio::test]
async fn a_change_of_users_cuts_nobody_off() {
    for version in [&ETCD_3_6, &ETCD_3_4] {
        let server = Secured::signing(version).await;
        let mut changes = 0;
        // Each by a client of its own: the administrator's name is as old afterwards.
        let mut changed = async || {
            changes += 1;
            let role = format!("role{changes}");
            server.admin().await.role_add(role).await.unwrap();
        };
        for backend in both_ways(&server).await {
            is_not_cut_off(backend, &mut changed).await;
        }
    }
}

async fn is_not_cut_off(backend: Arc<EtcdBackend>, changed: &mut impl AsyncFnMut()) {
    let session = opened(&backend).await;
    let held = ask(session, 1, "a");
    token(&backend, &held).await;
    for seq in 1..4 {
        changed().await;
        let renewed = backend.renew(session, &keep(seq)).await.unwrap();
        assert_eq!(renewed, Renewed::Living);
    }
    changed().await;
    assert!(backend.confirm(held.grant, &held.claims).await.unwrap());
    changed().await;
    let watch = backend.watch(&held.claims).await.unwrap();
    changed().await;
    backend.release(held.grant, &held.claims).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(5), watch).await;
    told.expect("it is told");
    changed().await;
    token(&backend, &ask(session, 2, "a")).await;
    // And many at once.
    changed().await;
    let many = (3..40).map(|n| {
        let (backend, request) = (Arc::clone(&backend), ask(session, n, &format!("k{n}")));
        async move { token(&backend, &request).await }
    });
    many.collect::<JoinSet<_>>().join_all().await;
}

#[tokio::test]
async fn tls_takes_the_authority_that_is_named_and_no_other() {
    let server = Secured::start().await;
    let other = tempfile::tempdir().unwrap();
    let [ca, ..] = certificates(other.path(), 1);
    let named = server.least().replace(&server.ca, &ca);
    for url in [named, server.least().split('?').next().unwrap().to_owned()] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let missing = server.least().replace(&server.ca, "/nonexistent");
    assert_eq!(refused(&missing).await.kind(), ErrorKind::Config);
    let plain = server.member.url().replacen("https", "etcd", 1);
    let error = refused(&format!("{plain}/?timeout_ms=2000")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_certificate_that_is_over_is_refused_on_either_side() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(folder.path(), -1);
    let server = member(&[("cert-file", &cert), ("key-file", &key)]).await;
    let url = server.url().replacen("https", "etcds", 1);
    let error = refused(&format!("{url}/?ca={ca}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // And one of ours, by a server that asks for it.
    let (good, bad) = (tempfile::tempdir().unwrap(), folder);
    let [ca, cert, key] = certificates(good.path(), 1);
    let server = member(&[
        ("cert-file", &cert),
        ("key-file", &key),
        ("trusted-ca-file", &ca),
        ("client-cert-auth", "true"),
    ])
    .await;
    let url = server.url().replacen("https", "etcds", 1);
    let ours = |folder: &Path| {
        let at = |name: &str| folder.join(name).display().to_string();
        format!(
            "{url}/?ca={ca}&cert={}&key={}&timeout_ms=2000",
            at("cert.pem"),
            at("key.pem")
        )
    };
    let error = refused(&ours(bad.path())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = refused(&format!("{url}/?ca={ca}&timeout_ms=2000")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // As long as a slow machine needs.
    let patient = ours(good.path()).replace("&timeout_ms=2000", "&timeout_ms=30000");
    connect(&patient).await.unwrap();
}

#[tokio::test]
async fn a_user_where_the_server_has_none() {
    let server = member(&[]).await;
    let url = url(&server).replacen("etcd://", "etcd://me:secret@", 1);
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(
        !format!("{error} {error:?}").contains("secret"),
        "{error:?}"
    );
}
