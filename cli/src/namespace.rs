//! `lockkeeper ping`, `init`, `remove` and `grants`: a store and its namespace.

use std::time::Instant;

use lockkeeper::Life;
use lockkeeper::backend::End;
use serde::Serialize;

use crate::args::{Common, GrantsArgs, InitArgs, RemoveArgs, StoreName};
use crate::describe;
use crate::failure::{Failure, status, tell};
use crate::operate::result;
use crate::output::Output;
use crate::store;

/// An answer of a store, as JSON.
#[derive(Serialize)]
struct PingJson<'a> {
    store: &'a str,
    url: &'a str,
    connected_ms: f64,
    answered_ms: f64,
}

/// `lockkeeper ping`.
pub(crate) async fn ping(common: &Common) -> Result<u8, Failure> {
    let since = Instant::now();
    let store = store::open(common).await?;
    let connected = since.elapsed();
    let since = Instant::now();
    store.backend.sessions(None, 1).await?;
    let answered = since.elapsed();
    let name = store.backend.info().name;
    if common.json {
        let milliseconds = 1_000.0;
        return result(
            common,
            &PingJson {
                store: name,
                url: &store.url,
                connected_ms: connected.as_secs_f64() * milliseconds,
                answered_ms: answered.as_secs_f64() * milliseconds,
            },
        );
    }
    let mut output = Output::new();
    output.line(&format!(
        "{name} answers: connected in {connected:.1?}, answered in {answered:.1?}"
    ))?;
    output.finish()
}

/// A namespace that was created or removed, as JSON.
#[derive(Serialize)]
struct NamespaceJson<'a> {
    url: &'a str,
    done: &'a str,
}

/// `lockkeeper init`.
pub(crate) async fn init(common: &Common, args: InitArgs) -> Result<u8, Failure> {
    let url = store::url(common)?;
    if args.role.is_empty() {
        lockkeeper::backend(&url).await?;
    } else {
        let roles: Vec<&str> = args.role.iter().map(String::as_str).collect();
        init_with_roles(&url, &roles).await?;
    }
    store::warn(common);
    let url = &store::without_password(&url);
    tell(&format!("the namespace of {url} is ready"));
    result(common, &NamespaceJson { url, done: "init" })
}

#[cfg(feature = "postgres")]
async fn init_with_roles(url: &str, roles: &[&str]) -> Result<(), Failure> {
    use lockkeeper::postgres::{PostgresBackend, PostgresConfig};

    if !url.starts_with("postgres") {
        return Err(no_roles());
    }
    let config = PostgresConfig::parse(url).map_err(lockkeeper::ConnectError::from)?;
    Ok(PostgresBackend::init(config, roles).await?)
}

#[cfg(not(feature = "postgres"))]
async fn init_with_roles(_: &str, _: &[&str]) -> Result<(), Failure> {
    Err(no_roles())
}

fn no_roles() -> Failure {
    Failure::usage("--role is for PostgreSQL: see lockkeeper grants for the rights in other stores")
}

/// `lockkeeper remove`.
pub(crate) async fn remove(common: &Common, args: RemoveArgs) -> Result<u8, Failure> {
    let url = store::url(common)?;
    if !args.force {
        idle(&url).await?;
    }
    lockkeeper::remove(&url).await?;
    store::warn(common);
    let url = &store::without_password(&url);
    tell(&format!("the namespace of {url} is removed"));
    result(
        common,
        &NamespaceJson {
            url,
            done: "remove",
        },
    )
}

/// Refuses a namespace that is used, or that contains unfinished work.
async fn idle(url: &str) -> Result<(), Failure> {
    let backend = lockkeeper::backend(url).await?;
    let mut next = None;
    loop {
        let page = backend.sessions(next.as_deref(), 500).await?;
        for state in page.items {
            let state = match state.life {
                // One whose lease is over dies when somebody asks.
                Life::Living => backend.end(&[state.session], End::IfDue).await?.remove(0),
                Life::Abandoned | Life::Dead => state,
            };
            let session = describe::session(&state);
            match state.life {
                Life::Living => {
                    let why = format!(
                        "{session} lives: end its program first, or wait for the end of its lease; --force removes the namespace all the same"
                    );
                    return Err(Failure::new(status::BUSY, why));
                }
                Life::Abandoned => {
                    let why = format!(
                        "{session} has left unfinished work: lockkeeper recover or discard it first; --force removes it with the namespace"
                    );
                    return Err(Failure::new(status::ABANDONED, why));
                }
                Life::Dead => {}
            }
        }
        next = page.next;
        if next.is_none() {
            return Ok(());
        }
    }
}

/// A file of rights, as JSON.
#[derive(Serialize)]
struct GrantsJson<'a> {
    title: &'a str,
    text: &'a str,
}

/// `lockkeeper grants`.
pub(crate) fn grants(common: &Common, args: &GrantsArgs) -> Result<u8, Failure> {
    let files = files(args.store, &args.namespace)?;
    let mut output = Output::new();
    for File { title, mark, text } in &files {
        let text = text.trim_end();
        if common.json {
            output.json(&GrantsJson { title, text })?;
            continue;
        }
        // Several files need their titles. One by itself is printed as it is, to be fed to a program.
        if !mark.is_empty() {
            output.line(&format!("{mark} {title}"))?;
        }
        output.line(text)?;
    }
    output.finish()
}

/// A file of rights.
struct File {
    title: String,
    /// What begins the line with the title; none if it is not printed.
    mark: &'static str,
    text: String,
}

fn files(
    store: StoreName,
    namespace: &lockkeeper::backend::Namespace,
) -> Result<Vec<File>, Failure> {
    let name = namespace.as_str();
    #[cfg_attr(
        not(any(feature = "elasticsearch", feature = "etcd", feature = "redis")),
        expect(unused_variables, reason = "for the stores that are left out")
    )]
    let file = |title: &str, mark: &'static str, text: &str| File {
        title: title.to_owned(),
        mark,
        text: text.replace("lockkeeper", name),
    };
    match store {
        #[cfg(feature = "elasticsearch")]
        StoreName::Elasticsearch => {
            use lockkeeper::elasticsearch::{ROLE_INIT, ROLE_USE};
            Ok(vec![
                file(
                    "PUT _security/role/ROLE, to use the namespace:",
                    "#",
                    ROLE_USE,
                ),
                file("PUT _security/role/ROLE, to create it:", "#", ROLE_INIT),
            ])
        }
        #[cfg(feature = "elasticsearch")]
        StoreName::Opensearch => {
            use lockkeeper::elasticsearch::{OPENSEARCH_ROLE_INIT, OPENSEARCH_ROLE_USE};
            let put = "PUT _plugins/_security/api/roles/ROLE";
            Ok(vec![
                file(
                    &format!("{put}, to use the namespace:"),
                    "#",
                    OPENSEARCH_ROLE_USE,
                ),
                file(&format!("{put}, to create it:"), "#", OPENSEARCH_ROLE_INIT),
            ])
        }
        #[cfg(feature = "etcd")]
        StoreName::Etcd => Ok(vec![file("commands", "", lockkeeper::etcd::LEAST_ROLE)]),
        #[cfg(feature = "postgres")]
        StoreName::Postgres => {
            use lockkeeper::postgres::PostgresBackend;
            // The names in it are not only the namespace's.
            let text = PostgresBackend::sql(namespace, &[name]);
            let title = "SQL".to_owned();
            Ok(vec![File {
                title,
                mark: "",
                text: format!("BEGIN;\n{text}\nCOMMIT;"),
            }])
        }
        #[cfg(feature = "redis")]
        StoreName::Redis => Ok(vec![file("ACL", "", lockkeeper::redis::LEAST_ACL)]),
        #[allow(unreachable_patterns, reason = "of all stores together")]
        _ => Err(Failure::usage(
            "this build has not that store: install lockkeeper with its feature",
        )),
    }
}
