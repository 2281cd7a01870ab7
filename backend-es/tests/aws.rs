//! Requests signed for AWS, before a real server: a proxy of this test lets through what AWS would. Needs a server.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod front;
mod signature;
mod support;

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use aws_config::{Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, SharedCredentialsProvider, future};
use elasticsearch::http::transport::Transport;
use front::{Asked, Front, authorization, locks_once};
use futures_util::future::join_all;
use lockcore::backend::{Filter, Inspect};
use lockcore::{Error, ErrorKind};
use lockcore_es::{EsBackend, EsConfig};
use signature::{Account, verify};
use support::{Space, connect_to, said};

const KEY_ID: &str = "AKIDEXAMPLE";
/// What is no part of anything that is said.
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const TOKEN: &str = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";
const REGION: &str = "eu-central-1";
/// In these variables another process of this test finds what it has to do.
const URL: &str = "LOCKKEEPER_TEST_AWS_URL";
const SAYS: &str = "LOCKKEEPER_TEST_AWS_SAYS";

fn account() -> Account {
    Account {
        key_id: KEY_ID.to_owned(),
        secret: SECRET.to_owned(),
        token: Some(TOKEN.to_owned()),
        region: REGION,
        service: "es",
    }
}

/// Of AWS' published test suite: method, target, headers, body, token, signed headers, and the signature.
type Vector = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    Option<&'static str>,
    &'static str,
    &'static str,
);
const VECTORS: &[Vector] = &[
    (
        "GET",
        "/",
        &[],
        "",
        None,
        "host;x-amz-date",
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ),
    (
        "POST",
        "/?Param1=value1",
        &[],
        "",
        None,
        "host;x-amz-date",
        "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
    ),
    (
        "GET",
        "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
        &[],
        "",
        None,
        "host;x-amz-date",
        "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
    ),
    (
        "GET",
        "/ሴ",
        &[],
        "",
        None,
        "host;x-amz-date",
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
    ),
    (
        "GET",
        "/",
        &[("my-header1", "value1"), ("my-header2", "\"a   b   c\"")],
        "",
        None,
        "host;my-header1;my-header2;x-amz-date",
        "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
    ),
    (
        "POST",
        "/",
        &[
            ("content-length", "13"),
            ("content-type", "application/x-www-form-urlencoded"),
            (
                "x-amz-content-sha256",
                "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e",
            ),
        ],
        "Param1=value1",
        None,
        "content-length;content-type;host;x-amz-content-sha256;x-amz-date",
        "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
    ),
    (
        "GET",
        "/",
        &[],
        "",
        Some("6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"),
        "host;x-amz-date;x-amz-security-token",
        "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
    ),
    (
        "POST",
        "/",
        &[],
        "",
        Some(TOKEN),
        "host;x-amz-date;x-amz-security-token",
        "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
    ),
];
/// 2015-08-30, 12:36.
const PUBLISHED_AT: i64 = 1_440_938_160;

#[test]
fn the_verifier_takes_what_aws_has_published() {
    for (method, target, headers, body, token, names, signature) in VECTORS {
        let account = Account {
            token: token.map(str::to_owned),
            region: "us-east-1",
            service: "service",
            ..account()
        };
        let text = |text: &str| text.to_owned();
        let mut all = vec![
            (text("host"), text("example.amazonaws.com")),
            (text("x-amz-date"), text("20150830T123600Z")),
        ];
        all.extend(token.map(|token| (text("x-amz-security-token"), text(token))));
        all.extend(
            headers
                .iter()
                .map(|(name, value)| (text(name), text(value))),
        );
        let mut asked = Asked {
            method: text(method),
            target: text(target),
            headers: all,
            body: body.as_bytes().to_vec(),
        };
        let signed = |signature: &str| {
            Some(format!(
                "AWS4-HMAC-SHA256 Credential={KEY_ID}/20150830/us-east-1/service/aws4_request, SignedHeaders={names}, Signature={signature}"
            ))
        };
        asked.is_by(signed(&signature.replace('f', "e")));
        assert!(verify(&asked, &account, PUBLISHED_AT).is_err(), "{target}");
        asked.is_by(signed(signature));
        assert_eq!(
            verify(&asked, &account, PUBLISHED_AT),
            Ok(()),
            "{method} {target} {names}"
        );
        for later in [-301, 301] {
            let late = verify(&asked, &account, PUBLISHED_AT + later);
            assert_eq!(late, Err("Signature expired"));
        }
        for now in [PUBLISHED_AT - 300, PUBLISHED_AT + 300] {
            assert_eq!(verify(&asked, &account, now), Ok(()));
        }
        let mut other = account.clone();
        other.secret.push('x');
        assert!(verify(&asked, &other, PUBLISHED_AT).is_err(), "{target}");
        let mut other = asked.clone();
        other.target.push_str("?x=1");
        assert!(verify(&other, &account, PUBLISHED_AT).is_err(), "{target}");
    }
}

/// A domain of Amazon OpenSearch Service: it knows an account, and has a clock.
struct Domain {
    front: Front,
    account: Arc<Mutex<Account>>,
    /// So many seconds it is ahead.
    ahead: Arc<AtomicI64>,
}

impl Domain {
    async fn new() -> Self {
        let account = Arc::new(Mutex::new(account()));
        let ahead = Arc::new(AtomicI64::new(0));
        let (known, clock) = (Arc::clone(&account), Arc::clone(&ahead));
        let front = Front::new(move |asked| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = i64::try_from(now.unwrap().as_secs()).unwrap();
            let now = now + clock.load(Ordering::Relaxed);
            let judged = verify(asked, &known.lock().unwrap(), now);
            asked.is_by(authorization());
            // A reverse proxy behind it, so that the path is signed as it was sent.
            if let Some(rest) = asked.target.strip_prefix("/a/prefix~1/") {
                asked.target = format!("/{rest}");
            }
            let refused = |why: &str| (403, format!(r#"{{"message":"{why}"}}"#));
            judged.err().map(refused)
        })
        .await;
        Self {
            front,
            account,
            ahead,
        }
    }

    fn url(&self, space: &Space) -> String {
        space.url_at(&format!("opensearch://127.0.0.1:{}", self.front.port))
    }

    fn config(&self, space: &Space) -> EsConfig {
        EsConfig::parse(&self.url(space)).unwrap()
    }

    /// A request as it was sent before, and changed; says what it is answered.
    async fn send(&self, asked: &Asked) -> u16 {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://127.0.0.1:{}{}", self.front.port, asked.target);
        let mut request = client.request(asked.method.parse().unwrap(), url);
        for (name, value) in &asked.headers {
            if name != "content-length" {
                request = request.header(name, value);
            }
        }
        let answer = request.body(asked.body.clone()).send().await.unwrap();
        answer.status().as_u16()
    }
}

/// Credentials that this test changes.
#[derive(Debug, Clone)]
struct Issuer {
    now: Arc<Mutex<Option<Credentials>>>,
    asked: Arc<AtomicUsize>,
    /// It does not answer any more.
    hangs: Arc<AtomicBool>,
}

impl Issuer {
    fn new(credentials: Credentials) -> Self {
        Self {
            now: Arc::new(Mutex::new(Some(credentials))),
            asked: Arc::default(),
            hangs: Arc::default(),
        }
    }

    fn issues(&self, credentials: Option<Credentials>) {
        *self.now.lock().unwrap() = credentials;
    }

    fn config(&self) -> SdkConfig {
        SdkConfig::builder()
            .region(Region::new(REGION))
            .credentials_provider(SharedCredentialsProvider::new(self.clone()))
            .build()
    }
}

impl ProvideCredentials for Issuer {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.hangs.load(Ordering::Relaxed) {
            return future::ProvideCredentials::new(std::future::pending());
        }
        let now: provider::Result =
            self.now.lock().unwrap().clone().ok_or_else(|| {
                CredentialsError::provider_error(format!("the answer was {SECRET}"))
            });
        future::ProvideCredentials::ready(now)
    }
}

/// Credentials that end after this time.
fn credentials(key_id: &str, secret: &str, ends: Option<Duration>) -> Credentials {
    let ends = ends.map(|ends| SystemTime::now() + ends);
    Credentials::new(key_id, secret, Some(TOKEN.to_owned()), ends, "test")
}

fn usual() -> Issuer {
    Issuer::new(credentials(KEY_ID, SECRET, None))
}

fn is(error: &Error, kind: ErrorKind, told: &str) {
    let said = said(error);
    assert_eq!(error.kind(), kind, "{said}");
    assert!(said.contains(told), "{said}");
    assert!(!said.contains(SECRET) && !said.contains(TOKEN), "{said}");
}

async fn reads(backend: &EsBackend) -> Result<(), Error> {
    let everything = Filter::Prefix(String::new());
    backend.records(&everything, None, 1).await.map(drop)
}

#[tokio::test]
async fn signed_requests_are_taken_and_others_are_not() {
    let (space, domain) = (Space::new(), Domain::new().await);
    let config = domain.config(&space).aws(&usual().config());
    assert!(!format!("{config:?}").contains(SECRET), "{config:?}");
    let backend = EsBackend::connect(config).await.unwrap();
    assert!(!format!("{backend:?}").contains(SECRET), "{backend:?}");
    locks_once(&backend, 1).await;
    let prefix = format!("opensearch://127.0.0.1:{}/a/prefix~1", domain.front.port);
    let below = EsConfig::parse(&space.url_at(&prefix)).unwrap();
    let below = EsBackend::connect(below.aws(&usual().config()))
        .await
        .unwrap();
    locks_once(&below, 2).await;

    let asked = domain.front.asked();
    let write = asked
        .iter()
        .rfind(|it| it.target.contains("/_bulk") && !it.target.contains('~'));
    let write = write.unwrap();
    assert_eq!(domain.send(write).await, 200, "the same again");
    let changed = |change: fn(&mut Asked)| {
        let mut changed = write.clone();
        change(&mut changed);
        changed
    };
    fn set(asked: &mut Asked, name: &str, value: &str) {
        asked.headers.retain(|(other, _)| other != name);
        asked.headers.push((name.to_owned(), value.to_owned()));
    }
    for (what, changed) in [
        ("not signed", changed(|it| it.is_by(None))),
        ("another body", changed(|it| it.body.push(b'\n'))),
        (
            "another query",
            changed(|it| it.target.push_str("&refresh=true")),
        ),
        ("another method", changed(|it| it.method = "PUT".to_owned())),
        (
            "another date",
            changed(|it| set(it, "x-amz-date", "20150830T123600Z")),
        ),
        (
            "another token",
            changed(|it| set(it, "x-amz-security-token", "x")),
        ),
        (
            "another type",
            changed(|it| set(it, "content-type", "text/plain")),
        ),
    ] {
        assert_eq!(domain.send(&changed).await, 403, "{what}");
    }
    let nobody = EsBackend::connect(domain.config(&space)).await.unwrap_err();
    is(&nobody, ErrorKind::Unauthorized, "access policy");

    for seconds in [-310, 310] {
        domain.ahead.store(seconds, Ordering::Relaxed);
        assert_eq!(domain.send(write).await, 403, "signed at another time");
        let error = reads(&backend).await.unwrap_err();
        is(&error, ErrorKind::Unauthorized, "this machine's clock");
    }
    domain.ahead.store(290, Ordering::Relaxed);
    reads(&backend).await.unwrap();
}

#[tokio::test]
async fn wrong_keys_and_regions_are_refused() {
    let (space, domain) = (Space::new(), Domain::new().await);
    for (key_id, secret) in [("AKIDOTHER", SECRET), (KEY_ID, "another")] {
        let issuer = Issuer::new(credentials(key_id, secret, None));
        let config = domain.config(&space).aws(&issuer.config());
        let error = EsBackend::connect(config).await.unwrap_err();
        is(&error, ErrorKind::Unauthorized, "the credentials");
    }
    let elsewhere = usual().config().into_builder();
    let elsewhere = elsewhere.region(Region::new("eu-west-1")).build();
    let error = EsBackend::connect(domain.config(&space).aws(&elsewhere)).await;
    is(
        &error.unwrap_err(),
        ErrorKind::Unauthorized,
        "the credentials",
    );

    let before = domain.front.asked().len();
    let nowhere = usual().config().into_builder().region(None).build();
    let error = EsBackend::connect(domain.config(&space).aws(&nowhere)).await;
    is(&error.unwrap_err(), ErrorKind::Config, "set AWS_REGION");
    let nobody = SdkConfig::builder().region(Region::new(REGION)).build();
    let error = EsBackend::connect(domain.config(&space).aws(&nobody)).await;
    is(&error.unwrap_err(), ErrorKind::Config, "no credentials");
    let odd = Issuer::new(credentials("A\n", SECRET, None));
    let error = EsBackend::connect(domain.config(&space).aws(&odd.config())).await;
    is(&error.unwrap_err(), ErrorKind::Config, "characters");
    let transport = Transport::single_node(&format!("http://127.0.0.1:{}", domain.front.port));
    let config = EsConfig::with_transport(transport.unwrap()).aws(&usual().config());
    let error = EsBackend::connect(config).await.unwrap_err();
    is(&error, ErrorKind::Config, "give a URL");
    assert_eq!(domain.front.asked().len(), before, "nothing was sent");
}

#[tokio::test]
async fn credentials_are_asked_for_again_before_they_end() {
    const HOUR: Duration = Duration::from_secs(3600);
    let (space, domain) = (Space::new(), Domain::new().await);
    let issuer = Issuer::new(credentials(KEY_ID, SECRET, Some(HOUR)));
    let config = domain.config(&space).aws(&issuer.config());
    let backend = EsBackend::connect(config).await.unwrap();
    locks_once(&backend, 1).await;
    assert_eq!(issuer.asked.load(Ordering::Relaxed), 1, "they are kept");

    // These end soon: each request asks for others.
    let soon = credentials(KEY_ID, SECRET, Some(Duration::from_secs(30)));
    let issuer = Issuer::new(soon);
    let config = domain.config(&space).aws(&issuer.config());
    let backend = EsBackend::connect(config).await.unwrap();
    issuer.issues(None);
    reads(&backend).await.unwrap();
    let (key_id, secret) = ("AKIDNEXT", "the next secret");
    let next = Account {
        key_id: key_id.to_owned(),
        secret: secret.to_owned(),
        ..account()
    };
    *domain.account.lock().unwrap() = next;
    issuer.issues(Some(credentials(key_id, secret, Some(Duration::ZERO))));
    locks_once(&backend, 2).await;
    // Over, and there are no others.
    issuer.issues(None);
    let error = reads(&backend).await.unwrap_err();
    is(&error, ErrorKind::Unavailable, "check what issues them");
    assert!(error.is_certainly_without_effect());
    issuer.issues(Some(credentials(key_id, secret, Some(HOUR))));
    reads(&backend).await.unwrap();
}

#[tokio::test]
async fn who_issues_credentials_and_hangs_costs_one_time_out() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let (space, domain) = (Space::new(), Domain::new().await);
    let soon = credentials(KEY_ID, SECRET, Some(Duration::from_secs(30)));
    let issuer = Issuer::new(soon);
    let config = domain.config(&space).aws(&issuer.config());
    let backend = EsBackend::connect(config.timeout(TIMEOUT)).await.unwrap();
    let many = || async {
        let since = Instant::now();
        let all = join_all((0..20).map(|_| reads(&backend))).await;
        // One after the other they would take more than twice this.
        assert!(since.elapsed() < 8 * TIMEOUT, "{:?}", since.elapsed());
        all
    };
    issuer.hangs.store(true, Ordering::Relaxed);
    for read in many().await {
        read.unwrap();
    }
    // Those that it answers with are over, and it does not answer again.
    issuer.hangs.store(false, Ordering::Relaxed);
    issuer.issues(Some(credentials(KEY_ID, SECRET, Some(Duration::ZERO))));
    reads(&backend).await.unwrap();
    issuer.hangs.store(true, Ordering::Relaxed);
    for read in many().await {
        is(
            &read.unwrap_err(),
            ErrorKind::Unavailable,
            "did not come in time",
        );
    }
}

/// What the other process says of a URL, in an environment where there is nothing else of AWS.
async fn in_another_process(url: &str, environment: &[(&str, String)]) -> String {
    let home = tempfile::tempdir().unwrap();
    let says = home.path().join("says");
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        let name = name.into_string().unwrap();
        if name.starts_with("AWS_") || name.to_lowercase().ends_with("_proxy") {
            command.env_remove(name);
        }
    }
    let status = command
        .args(["--exact", "the_other_process", "--include-ignored"])
        .env("HOME", home.path())
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env(URL, url)
        .env(SAYS, &says)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .status()
        .await
        .unwrap();
    assert!(status.success());
    std::fs::read_to_string(says).unwrap()
}

#[tokio::test]
#[ignore = "it is what other tests run in another environment"]
async fn the_other_process() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let says = match connect_to(&url).await {
        Ok(backend) => {
            locks_once(&backend, rand::random()).await;
            "locks".to_owned()
        }
        Err(error) => format!("{:?} {}", error.kind(), said(&error)),
    };
    std::fs::write(std::env::var(SAYS).unwrap(), says).unwrap();
}

#[tokio::test]
async fn credentials_are_found_where_aws_tools_find_them() {
    let (space, domain) = (Space::new(), Domain::new().await);
    let url = format!("{}&aws_region={REGION}", domain.url(&space));
    let is_set = |name: &'static str, value: &str| (name, value.to_owned());
    let environment = [
        is_set("AWS_ACCESS_KEY_ID", KEY_ID),
        is_set("AWS_SECRET_ACCESS_KEY", SECRET),
        is_set("AWS_SESSION_TOKEN", TOKEN),
    ];
    assert_eq!(in_another_process(&url, &environment).await, "locks");

    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("credentials");
    let text = format!(
        "[work]\naws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET}\naws_session_token={TOKEN}\n"
    );
    std::fs::write(&profile, text).unwrap();
    let environment = [
        is_set("AWS_SHARED_CREDENTIALS_FILE", profile.to_str().unwrap()),
        is_set("AWS_PROFILE", "work"),
    ];
    assert_eq!(in_another_process(&url, &environment).await, "locks");

    // As a container asks for its role.
    let role = Front::new(|_| {
        let answer = serde_json::json!({
            "AccessKeyId": KEY_ID, "SecretAccessKey": SECRET, "Token": TOKEN,
            "Expiration": "2099-01-01T00:00:00Z",
        });
        Some((200, answer.to_string()))
    })
    .await;
    let from = format!("http://127.0.0.1:{}/role", role.port);
    let environment = [is_set("AWS_CONTAINER_CREDENTIALS_FULL_URI", &from)];
    assert_eq!(in_another_process(&url, &environment).await, "locks");
    assert_eq!(role.asked().len(), 1, "once for all requests");

    let none = in_another_process(&url, &[]).await;
    assert!(none.starts_with("Unauthorized"), "{none}");
    assert!(none.contains("set AWS_ACCESS_KEY_ID"), "{none}");
}
