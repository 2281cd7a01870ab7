//! [`connect`]: from a URL to [`Locks`]; and its error.

use std::sync::Arc;

use lockcore::backend::UrlError;
use lockcore::{Error, InputError, LockBackend, Locks, LocksBuilder, OwnThread};

use crate::store::Store;

/// Connects to the store that the URL names, with the client's defaults. Creates the namespace if it does not exist
/// yet.
///
/// # Errors
///
/// [`ConnectError`]: no store of this build takes the URL, or the store cannot be used.
///
/// # Cancel safety
///
/// Dropping the future leaves no lock and no session. The namespace may have been created.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = lockkeeper::connect("memory:").await?;
/// assert_eq!(locks.info().name, "memory");
/// # Ok(())
/// # }
/// ```
pub async fn connect(url: &str) -> Result<Locks, ConnectError> {
    Ok(Locks::builder(backend(url).await?).build()?)
}

/// As [`connect`], on a thread of the library's own: locks outlive a block of the program's runtime, by a long computation
/// in an async function, say. The function chooses [options](LocksBuilder) of the client.
///
/// # Errors
///
/// [`ConnectError`]: no store of this build takes the URL, the store cannot be used, the client does not take an option, or
/// no thread can be started.
///
/// # Cancel safety
///
/// Dropping the future leaves no lock and no session. The namespace may have been created.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let ttl = Duration::from_secs(1);
/// let locks = lockkeeper::connect_on_own_thread("memory:", |builder| builder.ttl(ttl)).await?;
/// let guard = locks.lock("reindex").acquire().await?;
/// std::thread::sleep(2 * ttl); // this blocks the program's only runtime
/// assert!(guard.is_valid() && guard.confirm().await?);
/// # Ok(())
/// # }
/// ```
pub async fn connect_on_own_thread(
    url: &str,
    options: impl FnOnce(LocksBuilder) -> LocksBuilder,
) -> Result<Locks, ConnectError> {
    let thread = OwnThread::start()?;
    let connecting = {
        let url = url.to_owned();
        async move { backend(&url).await }
    };
    let backend = thread.run(connecting).await?;
    let builder = Locks::builder(backend).own_thread(&thread);
    Ok(options(builder).build()?)
}

/// Connects to the store that the URL names, for [`Locks::builder`]. Creates the namespace if it does not exist yet.
///
/// # Errors
///
/// [`ConnectError`]: no store of this build takes the URL, or the store cannot be used.
///
/// # Cancel safety
///
/// Dropping the future leaves no lock and no session. The namespace may have been created.
///
/// # Examples
///
/// ```
/// use lockkeeper::ConnectError;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let backend = lockkeeper::backend("memory:").await.unwrap();
/// assert_eq!(backend.info().name, "memory");
/// let error = lockkeeper::backend("locks.db").await.err();
/// assert!(matches!(error, Some(ConnectError::MissingScheme)));
/// # }
/// ```
pub async fn backend(url: &str) -> Result<Arc<dyn LockBackend>, ConnectError> {
    Ok(Store::parse(url)?.connect().await?)
}

/// Removes the namespace that the URL names, with everything in it; of an SQLite file, the file. First shut down all
/// clients and end all processes that use it: a later request of theirs may create it again. It is no error if there is
/// no such namespace. What is not of this library is not removed.
///
/// This may take more rights than to use the namespace; see `remove` of each backend.
///
/// # Errors
///
/// [`ConnectError`]: no store of this build takes the URL, or the store failed; then all of it may remain, or a part.
///
/// # Cancel safety
///
/// Dropping the future leaves all of the namespace, a part, or nothing. Call it again.
pub async fn remove(url: &str) -> Result<(), ConnectError> {
    Ok(Store::parse(url)?.remove().await?)
}

/// Why there is no connection. The URL may contain a password, so the text repeats only its scheme.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL does not begin with a scheme.
    #[error(
        "the URL has no scheme: write it as sqlite:PATH, redis://HOST, postgres://HOST/DATABASE, elasticsearch://HOST, etcd://HOST or memory:"
    )]
    MissingScheme,
    /// No store has this scheme.
    #[error(
        "no store has the scheme {scheme:?}: use sqlite:PATH, redis://HOST, postgres://HOST/DATABASE, elasticsearch://HOST, etcd://HOST or memory:"
    )]
    UnknownScheme {
        /// The scheme.
        scheme: String,
    },
    /// This build does not include the store of that scheme.
    #[error("this build has no {scheme:?} store: switch on the feature {feature:?} of lockkeeper")]
    NotCompiledIn {
        /// The scheme.
        scheme: &'static str,
        /// The feature to enable.
        feature: &'static str,
    },
    /// `memory:` followed by something.
    #[error("memory: takes nothing behind the colon: each connection is a store of its own")]
    MemoryTakesNothing,
    /// The store cannot use the rest of the URL.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The store rejects a default of the client. Use [`backend`] and [`Locks::builder`] to choose another value.
    #[error(transparent)]
    Defaults(#[from] InputError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(url: &str) -> ConnectError {
        backend(url).await.err().expect("no backend")
    }

    #[tokio::test]
    async fn what_no_store_takes() {
        assert!(matches!(refused("").await, ConnectError::MissingScheme));
        assert!(matches!(
            refused("memory:x").await,
            ConnectError::MemoryTakesNothing
        ));
        for url in ["mysql://h", "file:locks.db", "sqlite3:x"] {
            let error = refused(url).await;
            assert!(matches!(error, ConnectError::UnknownScheme { .. }), "{url}");
        }
    }

    #[tokio::test]
    async fn no_password_is_repeated() {
        for url in [
            "redis://me:secret@h:0/",
            "redis://h/?password=secret",
            "postgres://me:secret@h/",
            "postgres://me:secret@h:0/",
            "redis://me:12/secret@h/",
            "etcd://me:secret@h:0/",
            "etcds://h/?ca=secret&x=1",
            "unknown://me:secret@h/",
            "elasticsearch://me:secret@h:0/",
            "opensearchs://h/?api_key=secret&x=1",
            "opensearchs://me:secret@h/?bearer_token=secret",
            "opensearchs://h/?bearer_token=secret%20",
            "opensearchs://h/?proxy=ftp://me:secret%40p",
            "me:secret@h",
        ] {
            let error = refused(url).await;
            assert!(
                !format!("{error} {error:?}").contains("secret"),
                "{error:?}"
            );
        }
    }

    #[cfg(not(feature = "sqlite"))]
    #[tokio::test]
    async fn a_store_that_was_left_out_is_named() {
        let error = refused("sqlite:locks.db").await;
        assert!(error.to_string().contains("feature \"sqlite\""), "{error}");
    }

    #[cfg(all(feature = "elasticsearch", not(feature = "aws")))]
    #[tokio::test]
    async fn what_signs_for_aws_and_was_left_out_is_named() {
        let error = refused("opensearchs://h?aws_region=eu-central-1").await;
        assert!(error.to_string().contains("feature \"aws\""), "{error}");
    }

    #[cfg(not(feature = "elasticsearch"))]
    #[tokio::test]
    async fn a_server_that_was_left_out_is_named() {
        for url in ["elasticsearch://h", "opensearchs://h"] {
            let error = refused(url).await;
            assert!(
                error.to_string().contains("feature \"elasticsearch\""),
                "{error}"
            );
        }
    }

    #[cfg(not(feature = "etcd"))]
    #[tokio::test]
    async fn an_etcd_that_was_left_out_is_named() {
        for url in ["etcd://h", "etcds://h"] {
            let error = refused(url).await;
            assert!(error.to_string().contains("feature \"etcd\""), "{error}");
        }
    }

    #[cfg(feature = "etcd")]
    #[tokio::test]
    async fn an_etcd_that_is_not_there() {
        for scheme in ["etcd", "etcds"] {
            // Nobody listens on the port of a socket that listens no more.
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            drop(socket);
            let error = refused(&format!("{scheme}://me:secret@127.0.0.1:{port}")).await;
            let ConnectError::Store(error) = error else {
                panic!("{error}");
            };
            assert_eq!(error.kind(), lockcore::ErrorKind::Unavailable, "{error}");
            assert!(
                !format!("{error} {error:?}").contains("secret"),
                "{error:?}"
            );
        }
        let error = refused("etcd://h/path").await;
        assert!(matches!(error, ConnectError::Url(_)));
    }

    #[cfg(not(feature = "redis"))]
    #[tokio::test]
    async fn a_redis_that_was_left_out_is_named() {
        for url in ["redis://h", "rediss://h", "redis+sentinel://h/m"] {
            let error = refused(url).await;
            assert!(error.to_string().contains("feature \"redis\""), "{error}");
        }
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_redis_that_is_not_there() {
        for scheme in ["redis", "rediss"] {
            // Nobody listens on the port of a socket that listens no more.
            let port = std::net::TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let error = refused(&format!("{scheme}://me:secret@127.0.0.1:{port}")).await;
            let ConnectError::Store(error) = error else {
                panic!("{error}");
            };
            assert_eq!(error.kind(), lockcore::ErrorKind::Unavailable, "{error}");
            assert!(
                !format!("{error} {error:?}").contains("secret"),
                "{error:?}"
            );
        }
        for url in [
            "redis://h/path",
            "redis+sentinel://h",
            "rediss+sentinel://h",
        ] {
            let error = refused(url).await;
            assert!(matches!(error, ConnectError::Url(_)), "{url}");
        }
    }

    #[cfg(feature = "elasticsearch")]
    #[tokio::test]
    async fn a_server_that_is_not_there() {
        for scheme in [
            "elasticsearch",
            "opensearch",
            "elasticsearchs",
            "opensearchs",
        ] {
            // Nobody listens on the port of a socket that listens no more.
            let port = std::net::TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let error = refused(&format!("{scheme}://me:secret@127.0.0.1:{port}")).await;
            let ConnectError::Store(error) = error else {
                panic!("{error}");
            };
            assert_eq!(error.kind(), lockcore::ErrorKind::Unavailable, "{error}");
            assert!(
                !format!("{error} {error:?}").contains("secret"),
                "{error:?}"
            );
        }
        assert!(matches!(
            refused("elasticsearch://h/a//path").await,
            ConnectError::Url(_)
        ));
    }

    #[cfg(not(feature = "postgres"))]
    #[tokio::test]
    async fn a_database_that_was_left_out_is_named() {
        for url in ["postgres://h", "postgresql://h/d"] {
            let error = refused(url).await;
            assert!(
                error.to_string().contains("feature \"postgres\""),
                "{error}"
            );
        }
    }

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn a_database_that_is_not_there() {
        for scheme in ["postgres", "postgresql"] {
            // Nobody listens on the port of a socket that listens no more.
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            drop(socket);
            let error = refused(&format!("{scheme}://me:secret@127.0.0.1:{port}/d")).await;
            let ConnectError::Store(error) = error else {
                panic!("{error}");
            };
            assert_eq!(error.kind(), lockcore::ErrorKind::Unavailable, "{error}");
            assert!(
                !format!("{error} {error:?}").contains("secret"),
                "{error:?}"
            );
        }
        for url in [
            "postgres://me:secret@h:0x/d",
            "postgres://me:secret@h/d?x=1",
        ] {
            let error = refused(url).await;
            assert!(matches!(error, ConnectError::Url(_)), "{url}");
            assert!(
                !format!("{error} {error:?}").contains("secret"),
                "{error:?}"
            );
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn a_file() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("locks.db").display());
        let guard = connect(&url).await.unwrap().lock("a").acquire().await;
        let busy = connect(&url).await.unwrap().lock("a").try_acquire().await;
        assert!(matches!(busy, Ok(lockcore::Attempt::Busy(_))));
        drop(guard);
        assert!(matches!(refused("sqlite:").await, ConnectError::Url(_)));
        assert!(matches!(
            refused("sqlite:/nonexistent/locks.db").await,
            ConnectError::Store(_)
        ));
    }
}
