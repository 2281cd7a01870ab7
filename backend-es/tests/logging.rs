//! Nothing that says who we are comes into the program's log, at whatever level. Needs a server.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod front;
mod support;

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, PoisonError};

use front::{Asked, Front, authorization, locks_once};
use lockcore_es::{EsBackend, EsConfig};
use log::{LevelFilter, Log, Record};
use support::Space;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};

/// All that was logged.
static KEPT: Mutex<String> = Mutex::new(String::new());

fn keep(text: &str) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push_str(text);
    kept.push('\n');
}

struct Kept;

impl Log for Kept {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        keep(&format!("{} {}", record.target(), record.args()));
    }

    fn flush(&self) {}
}

/// The fields of an event or a span.
#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Kept {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        keep(&format!("{}{}", span.metadata().name(), fields.0));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &tracing::span::Record<'_>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        keep(&fields.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        keep(&format!("{}{}", event.metadata().target(), fields.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

const SECRET: &str = "Zq7-correct-horse";
/// The same, as a user `me` has it in a header.
const ENCODED: &str = "bWU6WnE3LWNvcnJlY3QtaG9yc2U";

/// Says itself who that is to the server.
fn passes(asked: &mut Asked) -> front::Instead {
    asked.is_by(authorization());
    None
}

fn refuses(_: &mut Asked) -> front::Instead {
    Some((401, String::new()))
}

#[tokio::test]
async fn no_secret_comes_into_the_log() {
    log::set_logger(&Kept).unwrap();
    log::set_max_level(LevelFilter::Trace);
    tracing::subscriber::set_global_default(Kept).unwrap();
    let space = Space::new();
    for front in [Front::new(passes).await, Front::new(refuses).await] {
        let port = front.port;
        let url = space.url_at(&format!("elasticsearch://127.0.0.1:{port}"));
        let plain = || EsConfig::parse(&url).unwrap();
        let proxy = format!("http://me:{SECRET}@127.0.0.1:{port}");
        #[cfg_attr(not(feature = "aws"), expect(unused_mut, reason = "AWS is one more"))]
        let mut ways = vec![
            plain().password("me", SECRET),
            plain().api_key(SECRET),
            plain().bearer(SECRET),
            plain().proxy(&proxy).unwrap(),
        ];
        #[cfg(feature = "aws")]
        ways.push(plain().aws(&aws()));
        for (number, config) in (1..).zip(ways) {
            keep(&format!("{config:?}"));
            match EsBackend::connect(config).await {
                Ok(backend) => {
                    locks_once(&backend, number).await;
                    keep(&format!("{backend:?}"));
                }
                Err(error) => keep(&format!("{error} {error:?}")),
            }
        }
    }
    let kept = KEPT.lock().unwrap();
    assert!(kept.contains("hyper") || kept.contains("reqwest"), "{kept}");
    #[cfg(feature = "aws")]
    assert!(kept.contains("aws_sigv4"), "{kept}");
    for secret in [SECRET, ENCODED] {
        let line = kept.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}

#[cfg(feature = "aws")]
fn aws() -> aws_config::SdkConfig {
    use aws_credential_types::Credentials;
    use aws_credential_types::provider::SharedCredentialsProvider;
    let token = Some(format!("{SECRET}-token"));
    let credentials = Credentials::new("AKIDEXAMPLE", SECRET, token, None, "test");
    aws_config::SdkConfig::builder()
        .region(aws_config::Region::new("eu-central-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build()
}
