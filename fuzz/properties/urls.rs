//! URLs. The lines of the input are a whole URL, and the parts of another one that has a password.
//!
//! - no text makes the parsing panic;
//! - a password is no part of what is said about the URL, neither in an error nor in the causes of it;
//! - a URL of a store that is taken is taken alike the next time.

use std::error::Error;
use std::fmt::Debug;

use futures_util::FutureExt;
use lockcore_es::EsConfig;
use lockcore_postgres::PostgresConfig;
use lockcore_redis::RedisConfig;
use lockcore_sqlite::SqliteConfig;

/// What no message has by itself.
const PASSWORD: &str = "Zq7!correct";

/// `besides` is whether a store takes the URL that not every build has.
pub(crate) fn hold(data: &[u8], besides: fn(&str) -> bool) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if text.contains(PASSWORD) {
        return;
    }
    let lines: Vec<&str> = text.split('\n').collect();
    refuse(lines[0], besides);
    let part = |at: usize, without: &[char]| {
        let part = lines.get(at).copied().unwrap_or_default();
        part.replace(without, "")
    };
    let scheme = part(0, &[':']);
    // Behind a / stands the path of a file, which is no secret.
    let (user, more, rest) = (part(1, &['/']), part(2, &[]), part(3, &[]));
    for scheme in [
        scheme.as_str(),
        "etcd",
        "redis",
        "postgres",
        "elasticsearchs",
        "sqlite",
    ] {
        refuse(
            &format!("{scheme}://{user}:{PASSWORD}{more}@{rest}"),
            besides,
        );
    }
}

/// Everything that is said about a URL, as far as it goes without touching a file or a server.
fn refuse(url: &str, besides: fn(&str) -> bool) {
    let shown =
        |one: &PostgresConfig, other: &PostgresConfig| format!("{one:?}") == format!("{other:?}");
    let taken = is_taken(url, SqliteConfig::parse, SqliteConfig::eq)
        || is_taken(url, EsConfig::parse, EsConfig::eq)
        || is_taken(url, PostgresConfig::parse, shown)
        || is_taken(url, RedisConfig::parse, RedisConfig::eq)
        || besides(url);
    if taken {
        return;
    }
    let answer = lockkeeper::backend(url)
        .now_or_never()
        .expect("without a store there is nothing to wait for");
    match answer {
        Ok(backend) => assert_eq!((url, backend.info().name), ("memory:", "memory")),
        Err(error) => keeps_secret(&error),
    }
}

pub(crate) fn is_taken<C: Debug, E: Error + 'static>(
    url: &str,
    parse: impl Fn(&str) -> Result<C, E>,
    alike: impl Fn(&C, &C) -> bool,
) -> bool {
    match parse(url) {
        Ok(config) => {
            assert!(!format!("{config:?}").contains(PASSWORD), "{config:?}");
            let again = parse(url).expect("it was taken");
            assert!(alike(&config, &again), "{config:?} {again:?}");
            true
        }
        Err(error) => {
            keeps_secret(&error);
            false
        }
    }
}

fn keeps_secret(error: &(dyn Error + 'static)) {
    let mut next = Some(error);
    while let Some(error) = next {
        let said = format!("{error} {error:?}");
        assert!(!said.contains(PASSWORD), "{said}");
        next = error.source();
    }
}
