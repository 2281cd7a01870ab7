//! What the tests share: servers, fresh namespaces on them, and the servers' own view of those.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "it is part of tests, and each test program uses a part of it"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, ConnectOptions, DeleteOptions, GetOptions, Permission, PermissionType,
    PutOptions, TlsOptions,
};
use lockcore::limits::TOMBSTONE_KEPT;
use lockcore::{LockBackend, LockKey, SessionId, async_trait};
use lockcore_conformance::{BoxError, Feature, Fixture};
use lockcore_etcd::{EtcdBackend, EtcdConfig};
use lockkeeper_servers::etcd::{ETCD_3_4, ETCD_3_6, Etcd as Version, Member};
use tempfile::TempDir;

/// How long a test waits for what has to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again until there is an answer, and panics where there is none in time: what it waits for is said.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(since.elapsed() < PATIENCE, "not in time: {what}");
        // From one look to the next.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Where servers' programs are kept.
pub fn artefacts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .with_file_name("target")
        .join("servers")
}

/// The server whose URL is in the environment, or one that is started.
pub fn given() -> String {
    static GIVEN: LazyLock<String> = LazyLock::new(|| {
        std::env::var("LOCKKEEPER_TEST_ETCD").unwrap_or_else(|_| {
            let server = ETCD_3_4.start(&artefacts()).expect("an etcd");
            Box::leak(Box::new(server))
                .url()
                .replacen("http", "etcd", 1)
        })
    });
    GIVEN.clone()
}

/// The program of the newer version that restores snapshots: an installed one, else built from the server's Go module.
pub fn etcdutl() -> PathBuf {
    let runs = |program: &Path| Command::new(program).arg("version").output().is_ok();
    let installed = PathBuf::from("etcdutl");
    if runs(&installed) {
        return installed;
    }
    let home = artefacts().join(ETCD_3_6.name);
    let program = home.join("etcdutl");
    if !runs(&program) {
        // Beside it, and put in its place when it is whole: another run may do the same.
        std::fs::create_dir_all(&home).unwrap();
        let made = tempfile::tempdir_in(&home).unwrap();
        let built = made.path().join("etcdutl");
        let mut go = Command::new("go");
        go.args(["build", "-trimpath", "-mod=readonly", "-o"])
            .arg(&built);
        go.arg("go.etcd.io/etcd/etcdutl/v3");
        go.current_dir(artefacts().join("../../servers/sources/etcd-3.6"));
        let status = go
            .status()
            .expect("Go, which the server is built with, too");
        assert!(status.success(), "{go:?}");
        std::fs::rename(&built, &program).unwrap();
    }
    program
}

/// A server of the newer version with these settings.
pub async fn member(settings: &[(&str, &str)]) -> Member {
    member_of(&ETCD_3_6, settings).await
}

/// A server of that version.
pub async fn member_of(version: &'static Version, settings: &[(&str, &str)]) -> Member {
    let settings = settings.iter();
    let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let settings: Vec<(String, String)> = settings.collect();
    waited(move || {
        let program = version.program(&artefacts()).expect("an etcd");
        let settings = settings.iter();
        let settings = settings.map(|(name, value)| (name.as_str(), value.as_str()));
        Member::new(program, &settings.collect::<Vec<_>>()).expect("it starts")
    })
    .await
}

/// Does what waits for a process, on a thread that may.
pub async fn waited<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Starts a member again, and waits until it answers.
pub async fn restarted(mut member: Member) -> Member {
    waited(move || {
        member.restart().expect("it starts");
        member.await_health().expect("it answers");
        member
    })
    .await
}

/// A driver's client, by a URL of ours with no options but `ca`.
pub async fn client(url: &str) -> Client {
    let (_, rest) = url.split_once("://").unwrap();
    let (hosts, options) = rest.split_once(['/', '?']).unwrap_or((rest, ""));
    let mut settings = ConnectOptions::new();
    let hosts = match hosts.split_once('@') {
        Some((user, hosts)) => {
            let (name, password) = user.split_once(':').unwrap();
            settings = settings.with_user(name, password);
            hosts
        }
        None => hosts,
    };
    let scheme = match options.split_once("ca=") {
        Some((_, ca)) => {
            let ca = std::fs::read(ca.split('&').next().unwrap()).unwrap();
            let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
            settings = settings.with_tls(tls);
            "https"
        }
        None => "http",
    };
    let urls: Vec<String> = hosts
        .split(',')
        .map(|host| format!("{scheme}://{host}"))
        .collect();
    Client::connect(urls, Some(settings)).await.unwrap()
}

/// Writes an authority's certificate, one for this machine that it has signed and that is good for so many days, and the
/// key of that. Says where they are.
pub fn certificates(folder: &Path, days: i64) -> [String; 3] {
    let mut authority = rcgen::CertificateParams::new([]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertifiedIssuer::self_signed(authority, key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let mut certificate = rcgen::CertificateParams::new(names).unwrap();
    if days < 0 {
        certificate.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let certificate = certificate.signed_by(&key, &authority).unwrap();
    [
        ("ca.pem", authority.pem()),
        ("cert.pem", certificate.pem()),
        ("key.pem", key.serialize_pem()),
    ]
    .map(|(name, pem)| {
        let path = folder.join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    })
}

/// A server with users and TLS. Of the users one may do everything, and one what `server/least.sh` allows, for the
/// namespaces of tests.
pub struct Secured {
    pub member: Member,
    pub ca: String,
    folder: TempDir,
}

impl Secured {
    pub async fn start() -> Self {
        Self::of(&ETCD_3_6, false).await
    }

    /// One that signs the names that it gives out, and remembers none.
    pub async fn signing(version: &'static Version) -> Self {
        Self::of(version, true).await
    }

    async fn of(version: &'static Version, signs: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, [7; 32]).unwrap();
        let names = match signs {
            true => format!("jwt,sign-method=HS256,priv-key={}", secret.display()),
            false => "simple".to_owned(),
        };
        let [ca, cert, key] = certificates(folder.path(), 1);
        let member = member_of(
            version,
            &[
                ("cert-file", &cert),
                ("key-file", &key),
                ("auth-token", &names),
                // Whoever connects is asked for the password, many times.
                ("bcrypt-cost", "4"),
            ],
        )
        .await;
        let secured = Self { member, ca, folder };
        let hosts = secured.member.url().replacen("https", "etcds", 1);
        let mut admin = client(&format!("{hosts}/?ca={}", secured.ca)).await;
        admin.user_add("root", "secret", None).await.unwrap();
        admin.user_grant_role("root", "root").await.unwrap();
        admin.role_add("lockkeeper").await.unwrap();
        let below = Permission::new(PermissionType::Readwrite, "t").with_prefix();
        admin
            .role_grant_permission("lockkeeper", below)
            .await
            .unwrap();
        admin.user_add("lockkeeper", "s3cret", None).await.unwrap();
        admin
            .user_grant_role("lockkeeper", "lockkeeper")
            .await
            .unwrap();
        admin.auth_enable().await.unwrap();
        secured
    }

    /// The URL of a user.
    pub fn url(&self, user: &str) -> String {
        let host = self.member.url().replacen("https://", "", 1);
        format!("etcds://{user}@{host}/?ca={}", self.ca)
    }

    pub fn least(&self) -> String {
        self.url("lockkeeper:s3cret")
    }

    pub async fn admin(&self) -> Client {
        client(&self.url("root:secret")).await
    }
}

/// A fresh namespace.
pub struct Space {
    pub server: String,
    pub namespace: String,
}

impl Space {
    /// On the server of the tests.
    pub fn new() -> Self {
        Self::at(given())
    }

    pub fn at(server: String) -> Self {
        Self {
            server,
            namespace: format!("t{:x}", rand::random::<u64>()),
        }
    }

    pub fn url(&self) -> String {
        let sign = if self.server.contains('?') { '&' } else { '?' };
        format!("{}{sign}namespace={}", self.server, self.namespace)
    }

    pub fn config(&self) -> EtcdConfig {
        EtcdConfig::parse(&self.url()).unwrap()
    }

    pub async fn connect(&self) -> Arc<EtcdBackend> {
        EtcdBackend::connect(self.config()).await.unwrap()
    }

    /// A key of the namespace, as it is stored.
    pub fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.namespace).into_bytes()
    }

    /// Removes everything of the namespace.
    pub async fn clear(&self) {
        let all = DeleteOptions::new().with_prefix();
        let mut client = client(&self.server).await;
        client.delete(self.key(""), Some(all)).await.unwrap();
    }
}

/// One server as the kit sees it.
pub struct Etcd {
    pub name: &'static str,
    pub server: fn() -> String,
}

impl Etcd {
    /// The server of the tests.
    pub fn given() -> Self {
        Self {
            name: "etcd",
            server: given,
        }
    }
}

#[async_trait]
impl Fixture for Etcd {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn paused(&self) -> bool {
        false
    }

    fn lacks(&self) -> Vec<Feature> {
        vec![Feature::TurnWatch, Feature::Restart]
    }

    async fn fresh(&self) -> Result<Arc<dyn lockcore_conformance::Space>, BoxError> {
        // It may have to be started.
        let server = tokio::task::spawn_blocking(self.server).await?;
        Ok(Arc::new(Space::at(server)))
    }

    async fn reopen(&self, url: &str) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(EtcdBackend::connect(EtcdConfig::parse(url)?).await?)
    }
}

#[async_trait]
impl lockcore_conformance::Space for Space {
    async fn connect(&self) -> Result<Arc<dyn LockBackend>, BoxError> {
        Ok(EtcdBackend::connect(self.config()).await?)
    }

    fn allowance(&self) -> Duration {
        // Whole seconds, and the half second in which the server looks for leases that have ended.
        Duration::from_millis(1_900)
    }

    async fn recreate(&self) -> Result<bool, BoxError> {
        EtcdBackend::remove(self.config()).await?;
        Ok(true)
    }

    async fn plant(&self, key: &LockKey) -> Result<(), BoxError> {
        lockcore_conformance::Space::connect(self).await?;
        let stored = key.as_str().replace('/', "\u{1}");
        let name = self.key(&format!("lock/{stored}\0v2"));
        client(&self.server)
            .await
            .put(name, "{\"holder\":\"somebody\"}", None)
            .await?;
        Ok(())
    }

    /// What is left of a dead session is on a lease, which ends so much earlier.
    async fn age(&self, session: SessionId, by: Duration) -> Result<bool, BoxError> {
        let mut client = client(&self.server).await;
        let all = GetOptions::new().with_prefix();
        let record = client
            .get(self.key(&format!("session/{session}/")), Some(all))
            .await?;
        let rest = TOMBSTONE_KEPT.saturating_sub(by);
        let lease = client
            .lease_grant(rest.as_secs().max(1).cast_signed(), None)
            .await?
            .id();
        for part in record.kvs().iter().filter(|part| part.lease() != 0) {
            let on_lease = PutOptions::new().with_ignore_value().with_lease(lease);
            client.put(part.key(), "", Some(on_lease)).await?;
        }
        if rest.is_zero() {
            client.lease_revoke(lease).await?;
        }
        Ok(true)
    }

    fn url(&self) -> Option<String> {
        Some(Space::url(self))
    }
}
