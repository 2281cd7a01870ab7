//! Requests signed for AWS: Signature Version 4, with the credentials that AWS' tools find.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{
    PayloadChecksumKind, SignableBody, SignableRequest, SigningSettings, sign,
};
use aws_sigv4::sign::v4;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use elasticsearch::http::Method;
use elasticsearch::http::headers::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use lockcore::ErrorKind;
use tokio::sync::Mutex;
use tokio::time::timeout;
use url::Url;

use crate::error::{Failure, Outcome};
use crate::http::Request;

/// What Amazon OpenSearch Service is called in a signature.
const SERVICE: &str = "es";
/// So long before their end credentials are asked for again.
const EARLY: Duration = Duration::from_secs(60);
/// After this time credentials without an end are.
const ONCE_IN: Duration = Duration::from_secs(15 * 60);
/// What the body of every request is.
const JSON: &str = "application/json";

/// For which region, and with which credentials.
#[derive(Clone)]
pub(crate) struct Aws {
    region: Option<String>,
    source: Source,
}

#[derive(Clone)]
enum Source {
    /// Where AWS' tools look: the environment, the profile, the container, the machine.
    Usual,
    /// Those of the program's own configuration, if it has any.
    Given(Option<Arc<SharedCredentialsProvider>>),
}

impl Aws {
    pub(crate) fn usual(region: String) -> Self {
        Self {
            region: Some(region),
            source: Source::Usual,
        }
    }

    pub(crate) fn given(config: &SdkConfig) -> Self {
        Self {
            region: config.region().map(ToString::to_string),
            source: Source::Given(config.credentials_provider().map(Arc::new)),
        }
    }
}

impl PartialEq for Aws {
    fn eq(&self, other: &Self) -> bool {
        let source = match (&self.source, &other.source) {
            (Source::Usual, Source::Usual) | (Source::Given(None), Source::Given(None)) => true,
            (Source::Given(Some(one)), Source::Given(Some(other))) => Arc::ptr_eq(one, other),
            _ => false,
        };
        source && self.region == other.region
    }
}

impl Eq for Aws {}

/// Signs requests.
pub(crate) struct Signer {
    region: String,
    provider: SharedCredentialsProvider,
    /// How long the provider may take.
    timeout: Duration,
    kept: RwLock<Option<Kept>>,
    /// Of many requests at once, one asks the provider.
    asking: Mutex<()>,
}

struct Kept {
    credentials: Credentials,
    /// From then on they are asked for again.
    until: SystemTime,
}

impl Signer {
    pub(crate) async fn new(aws: &Aws, timeout: Duration) -> Outcome<Self> {
        let region = aws.region.clone().ok_or_else(|| {
            Failure::config(
                "the AWS configuration has no region: set AWS_REGION, or give it a region",
            )
        })?;
        let provider = match &aws.source {
            Source::Given(given) => given.as_deref().cloned(),
            Source::Usual => {
                let client = aws_smithy_http_client::Builder::new()
                    .tls_provider(Provider::Rustls(CryptoMode::Ring))
                    .build_https();
                let loader = aws_config::defaults(BehaviorVersion::latest())
                    .region(Region::new(region.clone()))
                    .http_client(client);
                loader.load().await.credentials_provider()
            }
        };
        let provider = provider.ok_or_else(|| {
            Failure::config("the AWS configuration has no credentials: give it a provider of them")
        })?;
        Ok(Self {
            region,
            provider,
            timeout,
            kept: RwLock::default(),
            asking: Mutex::default(),
        })
    }

    /// The headers of a request, with its signature.
    pub(crate) async fn sign(&self, node: &Url, request: &Request<'_>) -> Outcome<HeaderMap> {
        let now = now();
        let credentials = self.credentials(now).await?;
        signed(&self.region, credentials, now, node, request)
            .ok_or_else(|| Failure::config("the AWS credentials have characters that none have"))
    }

    async fn credentials(&self, now: SystemTime) -> Outcome<Credentials> {
        if let Some(fresh) = self.fresh(now) {
            return Ok(fresh);
        }
        let valid = self.valid(now);
        // Somebody is asking already.
        if let (Some(valid), Err(_)) = (&valid, self.asking.try_lock()) {
            return Ok(valid.clone());
        }
        let asked = timeout(self.timeout, self.ask(now)).await;
        let late = |_| Err(CredentialsError::provider_timed_out(self.timeout));
        match asked.unwrap_or_else(late) {
            Ok(credentials) => Ok(credentials),
            Err(error) => valid.ok_or_else(|| without(&error)),
        }
    }

    /// Asks the provider, unless another request has done so meanwhile.
    async fn ask(&self, now: SystemTime) -> Result<Credentials, CredentialsError> {
        let _one = self.asking.lock().await;
        if let Some(fresh) = self.fresh(now) {
            return Ok(fresh);
        }
        let credentials = self.provider.provide_credentials().await?;
        let until = match credentials.expiry() {
            Some(end) => end.checked_sub(EARLY).unwrap_or(end),
            None => now + ONCE_IN,
        };
        let kept = Kept {
            credentials: credentials.clone(),
            until,
        };
        *self.kept.write().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        Ok(credentials)
    }

    /// Those that need not be asked for again.
    fn fresh(&self, now: SystemTime) -> Option<Credentials> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let fresh = kept.as_ref().filter(|kept| now < kept.until);
        fresh.map(|kept| kept.credentials.clone())
    }

    /// Those that have not ended.
    fn valid(&self, now: SystemTime) -> Option<Credentials> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let credentials = kept.as_ref().map(|kept| kept.credentials.clone());
        credentials.filter(|it| it.expiry().is_none_or(|end| now < end))
    }
}

/// Why there are no credentials. The causes of the error may repeat what a program or a server said, with secrets.
fn without(error: &CredentialsError) -> Failure {
    let (kind, what) = match error {
        CredentialsError::CredentialsNotLoaded(_) => (
            ErrorKind::Unauthorized,
            "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role of the machine",
        ),
        CredentialsError::InvalidConfiguration(_) => (
            ErrorKind::Unauthorized,
            "the AWS credentials cannot be read: check the profile in ~/.aws and the AWS_ variables",
        ),
        CredentialsError::ProviderTimedOut(_) => (
            ErrorKind::Unavailable,
            "the AWS credentials did not come in time: check what issues them",
        ),
        _ => (
            ErrorKind::Unavailable,
            "the AWS credentials cannot be had: check what issues them, as `aws sts get-caller-identity` does",
        ),
    };
    Failure::Found(kind, what.into())
}

fn signed(
    region: &str,
    credentials: Credentials,
    now: SystemTime,
    node: &Url,
    request: &Request<'_>,
) -> Option<HeaderMap> {
    let target = request.target(node)?;
    let mut settings = SigningSettings::default();
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(SERVICE)
        .time(now)
        .settings(settings)
        .build()
        .ok()?
        .into();
    let headers = [(CONTENT_TYPE.as_str(), JSON)];
    let body = SignableBody::Bytes(&request.body);
    let method = name(request.method);
    let signable = SignableRequest::new(method, target.as_str(), headers.into_iter(), body).ok()?;
    let (instructions, _) = sign(signable, &params).ok()?.into_parts();
    let mut all = HeaderMap::new();
    all.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    for (name, value) in instructions.headers() {
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        all.insert(HeaderName::try_from(name).ok()?, value);
    }
    Some(all)
}

fn name(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Put => "PUT",
        Method::Post => "POST",
        Method::Delete => "DELETE",
        Method::Head => "HEAD",
    }
}

fn now() -> SystemTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "a signature says when it was made, and credentials when they end; no lease depends on it"
    )]
    SystemTime::now()
}
