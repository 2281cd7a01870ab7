//! TLS: a server whose certificate was signed by an authority of its own.
#![allow(clippy::unwrap_used, reason = "it is a test")]

use std::sync::Arc;

use lockcore::{ErrorKind, LockBackend};
use lockcore_es::{EsBackend, EsConfig};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A namespace, as the server describes it.
const NAMESPACE: &str = r#"{"lockkeeper-1":{"mappings":{"dynamic":"false","_meta":{"lockkeeper":4,"base":1024},"properties":{"key":{"type":"keyword"},"process_id":{"type":"keyword"},"processes":{"type":"keyword"},"session":{"type":"keyword"},"state":{"type":"keyword"},"expires":{"type":"date"},"ended":{"type":"date"}}},"settings":{"index.uuid":"u","index.number_of_shards":"1"}}}"#;

/// A server for this name; says its port and the certificate of its authority.
async fn server(name: &str) -> (u16, String) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(
        clippy::disallowed_methods,
        reason = "the server of a test belongs to nobody else"
    )]
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let length = NAMESPACE.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{NAMESPACE}"
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    (port, ca.pem())
}

#[tokio::test]
async fn the_authority_is_the_one_that_is_given() {
    let (port, ca) = server("localhost").await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    std::fs::write(&path, ca).unwrap();
    let ours = |host: &str| {
        let path = path.display();
        EsConfig::parse(&format!("elasticsearchs://{host}:{port}/?ca={path}")).unwrap()
    };
    let backend = EsBackend::connect(ours("localhost")).await.unwrap();
    assert_eq!(backend.info().name, "elasticsearch");

    let error = EsBackend::connect(ours("127.0.0.1")).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Unavailable,
        "another name: {error:?}"
    );
    let unknown = EsConfig::parse(&format!("opensearchs://localhost:{port}")).unwrap();
    let error = EsBackend::connect(unknown).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Unavailable,
        "nobody known has signed it: {error:?}"
    );
    let plain = EsConfig::parse(&format!("elasticsearch://localhost:{port}")).unwrap();
    let error = EsBackend::connect(plain).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Indeterminate,
        "without TLS: {error:?}"
    );
}
