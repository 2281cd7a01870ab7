//! Who the tests are to the server, and what each may do.

use std::sync::OnceLock;

use elasticsearch::auth::Credentials;
use elasticsearch::cert::{Certificate, CertificateValidation};
use elasticsearch::http::Method;
use elasticsearch::http::headers::HeaderMap;
use elasticsearch::http::transport::{SingleNodeConnectionPool, TransportBuilder};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use url::Url;

use super::server;

/// The password of the users that the tests make.
pub const PASSWORD: &str = "of-a-test-of-locks";

/// Somebody, as the server knows them.
#[derive(Debug, Clone)]
pub struct User {
    url: Url,
}

impl User {
    /// Who is given to the tests: who may do everything.
    pub fn given() -> Self {
        let url = Url::parse(&server()).unwrap();
        Self { url }
    }

    /// Another user of the same server.
    pub fn named(name: &str) -> Self {
        let mut user = Self::given();
        user.url.set_username(name).unwrap();
        user.url.set_password(Some(PASSWORD)).unwrap();
        user
    }

    /// Nobody in particular.
    pub fn nobody() -> Self {
        let mut user = Self::given();
        user.url.set_username("").unwrap();
        user.url.set_password(None).unwrap();
        user
    }

    pub fn name(&self) -> &str {
        self.url.username()
    }

    /// The URL, with options besides.
    pub fn url(&self, options: &str) -> String {
        let mut url = self.url.clone();
        let given = url.query().map(|given| format!("{given}&"));
        url.set_query(Some(&(given.unwrap_or_default() + options)));
        url.to_string()
    }

    /// A request to the server.
    pub async fn send(&self, method: Method, path: &str, body: String) -> (u16, Value) {
        let (status, answer) = self.send_text(method, path, body).await;
        (status, serde_json::from_str(&answer).unwrap_or_default())
    }

    /// A request to the server, and its answer as it came.
    pub async fn send_text(&self, method: Method, path: &str, body: String) -> (u16, String) {
        let scheme = match self.url.scheme() {
            "elasticsearchs" | "opensearchs" => "https",
            _ => "http",
        };
        let (host, port) = (
            self.url.host_str().unwrap(),
            self.url.port().unwrap_or(9200),
        );
        let url = Url::parse(&format!("{scheme}://{host}:{port}/")).unwrap();
        let mut builder = TransportBuilder::new(SingleNodeConnectionPool::new(url)).disable_proxy();
        if let Some(password) = self.url.password() {
            builder = builder.auth(Credentials::Basic(self.name().into(), password.into()));
        }
        if let Some((_, ca)) = self.url.query_pairs().find(|(name, _)| name == "ca") {
            let pem = std::fs::read(&*ca).unwrap();
            let certificate = Certificate::from_pem(&pem).unwrap();
            builder = builder.cert_validation(CertificateValidation::Full(certificate));
        }
        let transport = builder.build().unwrap();
        let body = Some(body);
        let sent = transport.send(method, path, HeaderMap::new(), None::<&str>, body, None);
        let answer = sent.await.unwrap();
        let status = answer.status_code().as_u16();
        (status, answer.text().await.unwrap_or_default())
    }
}

/// Those who use the namespaces of the tests.
#[derive(Debug)]
pub struct Access {
    engine: Option<Security>,
    /// Has the role for use.
    pub to_use: User,
    /// Has the role for making a namespace, too.
    pub to_make: User,
}

/// How a server keeps its users.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Security {
    Elasticsearch,
    OpenSearch,
}

impl Access {
    /// Makes the roles and the users in the first call.
    pub fn get() -> &'static Self {
        static ACCESS: OnceLock<Access> = OnceLock::new();
        ACCESS.get_or_init(|| {
            server();
            // Not on this thread, which may be in a runtime.
            let runtime = || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.unwrap().block_on(Self::make())
            };
            std::thread::spawn(runtime).join().unwrap()
        })
    }

    /// Whether the server asks who we are.
    pub fn is_asked_for(&self) -> bool {
        self.engine.is_some()
    }

    pub fn engine(&self) -> Option<Security> {
        self.engine
    }

    async fn make() -> Self {
        let Some(security) = Security::of_server().await else {
            return Self {
                engine: None,
                to_use: User::given(),
                to_make: User::given(),
            };
        };
        // Their namespaces, and not the indices behind them: who may use one has no rights there.
        let namespaces = format!("test-{}", "?".repeat(16));
        let [to_use, to_init] = ["use", "init"].map(|which| security.role(which, &namespaces));
        security.put_role("lockkeeper-test-use", &to_use).await;
        security.put_role("lockkeeper-test-init", &to_init).await;
        let (for_use, for_init) = ("lockkeeper-test-use", "lockkeeper-test-init");
        Self {
            engine: Some(security),
            to_use: security.put_user("test-user", &[for_use]).await,
            to_make: security.put_user("test-maker", &[for_use, for_init]).await,
        }
    }
}

impl Security {
    /// That of the server; `None` if whoever reaches it may do everything.
    async fn of_server() -> Option<Self> {
        let given = User::given();
        if given.name().is_empty() {
            return None;
        }
        for (path, security) in [
            ("/_security/_authenticate", Self::Elasticsearch),
            ("/_plugins/_security/authinfo", Self::OpenSearch),
        ] {
            let (status, about) = given.send(Method::Get, path, String::new()).await;
            if status == 200 && about.is_object() {
                return Some(security);
            }
        }
        panic!("the server does not know the user {}", given.name());
    }

    /// A role as it is shipped, for this namespace.
    pub fn role(self, which: &str, namespace: &str) -> Value {
        let text = match (self, which) {
            (Self::Elasticsearch, "use") => include_str!("../../server/role-use.json"),
            (Self::Elasticsearch, "init") => include_str!("../../server/role-init.json"),
            (Self::OpenSearch, "use") => include_str!("../../server/opensearch-role-use.json"),
            (Self::OpenSearch, "init") => include_str!("../../server/opensearch-role-init.json"),
            (_, other) => panic!("there is no role {other}"),
        };
        serde_json::from_str(&text.replace("lockkeeper", namespace)).unwrap()
    }

    pub async fn put_role(self, name: &str, role: &Value) {
        let path = match self {
            Self::Elasticsearch => format!("/_security/role/{name}"),
            Self::OpenSearch => format!("/_plugins/_security/api/roles/{name}"),
        };
        self.put(&path, role).await;
    }

    pub async fn put_user(self, name: &str, roles: &[&str]) -> User {
        self.put_who(name, PASSWORD, roles).await;
        User::named(name)
    }

    /// Gives a user another password, and takes the roles away.
    pub async fn put_password(self, name: &str, password: &str) {
        self.put_who(name, password, &[]).await;
    }

    async fn put_who(self, name: &str, password: &str, roles: &[&str]) {
        let (path, roles_are) = match self {
            Self::Elasticsearch => (format!("/_security/user/{name}"), "roles"),
            Self::OpenSearch => (
                format!("/_plugins/_security/api/internalusers/{name}"),
                "opendistro_security_roles",
            ),
        };
        let user = json!({"password": password, roles_are: roles});
        self.put(&path, &user).await;
    }

    async fn put(self, path: &str, what: &Value) {
        // OpenSearch keeps all users in one document, and all roles in another.
        static ONE_BY_ONE: Mutex<()> = Mutex::const_new(());
        let _one = ONE_BY_ONE.lock().await;
        let given = User::given();
        let (status, answer) = given.send(Method::Put, path, what.to_string()).await;
        assert!(matches!(status, 200 | 201), "{path}: {status} {answer}");
    }
}
