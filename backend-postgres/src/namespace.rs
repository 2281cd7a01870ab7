//! The namespace's schema: found, made, brought up to date, and what it and the server are like.

use std::borrow::Cow;

use lockcore::ErrorKind;
use lockcore::backend::Namespace;

use crate::connections::Link;
use crate::error::{Failure, Outcome};
use crate::record::{broken, column, only};
use crate::sql::{Call, VERSION, grant, migration};

/// The oldest server whose multiranges and functions are those that we use.
const OLDEST: i64 = 140_000;
/// Whoever makes or changes a schema holds this lock of the server's.
const ONE_AT_A_TIME: i64 = 0x6c6f_636b_6b65_6570;

/// What the server and the namespace are like.
#[derive(Debug)]
pub(crate) struct About {
    version: i64,
    /// So many latches there are at least for all who use the server.
    pub(crate) latches: i64,
    /// `synchronous_commit`.
    pub(crate) synchronous: String,
    pub(crate) fsync: bool,
    /// `synchronous_standby_names`.
    pub(crate) standbys: String,
    /// Standbys and replication slots, as far as the server knows now.
    pub(crate) copies: i64,
}

struct Found {
    schema: bool,
    /// Ours are in it.
    made: bool,
    /// Something else is in it.
    other: bool,
}

/// Finds the namespace, and makes it or brings it up to date where that is needed and allowed.
pub(crate) async fn find_or_make(link: &Link, namespace: &Namespace) -> Outcome<About> {
    let found = look(link, namespace).await?;
    if !found.made {
        if found.other {
            return Err(Failure::config(format!(
                "the schema {:?} holds something else: use another namespace",
                namespace.as_str()
            )));
        }
        make(link, namespace, None, found.schema).await?;
    }
    let about = about(link).await?;
    match about.version {
        VERSION => Ok(about),
        newer if newer > VERSION => Err(Failure::config(format!(
            "the namespace has version {newer} of the stored shape and this program knows {VERSION}: update the program"
        ))),
        older => {
            make(link, namespace, Some(older), true).await?;
            self::about(link).await
        }
    }
}

/// Gives these roles the rights that they need.
pub(crate) async fn let_in(link: &Link, namespace: &Namespace, roles: &[&str]) -> Outcome<()> {
    let text: String = roles.iter().map(|role| grant(namespace, role)).collect();
    if !text.is_empty() {
        link.raw(link.deadline(), text).await?;
    }
    Ok(())
}

async fn look(link: &Link, namespace: &Namespace) -> Outcome<Found> {
    let text = format!(
        "SELECT current_setting('server_version_num')::bigint AS r_server,
            current_setting('server_encoding') AS r_encoding,
            pg_is_in_recovery() AS r_standby,
            EXISTS (SELECT FROM pg_namespace WHERE nspname = '{namespace}') AS r_schema,
            EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                    WHERE n.nspname = '{namespace}' AND p.proname = 'about') AS r_made,
            EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname = '{namespace}') AS r_other"
    );
    let rows = link.raw(link.deadline(), text).await?;
    let row = rows.first().ok_or_else(|| broken("an answer has no row"))?;
    let (server, encoding): (i64, &str) = (column(row, "r_server")?, column(row, "r_encoding")?);
    if server < OLDEST {
        return Err(Failure::config(
            "the server is older than PostgreSQL 14: update it",
        ));
    }
    if encoding != "UTF8" {
        return Err(Failure::config(format!(
            "the database is in {encoding}, and keys are in UTF-8: make one with ENCODING 'UTF8'"
        )));
    }
    if column(row, "r_standby")? {
        let what = "the server is a standby: connect to the primary";
        return Err(Failure::Found(ErrorKind::Unavailable, what.into()));
    }
    if namespace.as_str().starts_with("pg_") {
        return Err(Failure::config(
            "the server keeps names that begin with pg_ to itself: use another namespace",
        ));
    }
    Ok(Found {
        schema: column(row, "r_schema")?,
        made: column(row, "r_made")?,
        other: column(row, "r_other")?,
    })
}

/// Makes the namespace, or changes it, in one transaction. Several processes may do so at once: one of them does it.
async fn make(link: &Link, namespace: &Namespace, from: Option<i64>, exists: bool) -> Outcome<()> {
    let text = format!(
        "SELECT pg_advisory_xact_lock({ONE_AT_A_TIME}); {}",
        migration(namespace, from, exists)
    );
    let Err(failure) = link.raw(link.deadline(), text).await else {
        return Ok(());
    };
    // Somebody else was first, or it is done though we were not told.
    let found = look(link, namespace).await?;
    if found.made && (from.is_none() || about(link).await?.version == VERSION) {
        return Ok(());
    }
    Err(match failure {
        Failure::Sent(error) if error.as_database_error().is_some_and(|e| e.code() == Some(Cow::Borrowed("42501"))) => {
            Failure::Found(
                ErrorKind::Unauthorized,
                "the namespace is not there or of an older version, and the user may not make it: have the owner call \
                 PostgresBackend::init"
                    .into(),
            )
        }
        failure => failure,
    })
}

/// Removes the namespace, if it is there and ours.
pub(crate) async fn remove(link: &Link, namespace: &Namespace) -> Outcome<()> {
    let found = look(link, namespace).await?;
    if !found.schema {
        return Ok(());
    }
    if !found.made {
        return Err(Failure::config(format!(
            "the schema {:?} holds no locks: remove it by hand",
            namespace.as_str()
        )));
    }
    // Whoever uses a table of it is waited for. The server stops waiting before we do: it would remove it later, when
    // nobody expects it any more.
    let text = format!(
        "SET LOCAL lock_timeout = {}; SET LOCAL client_min_messages = warning;
         SELECT pg_advisory_xact_lock({ONE_AT_A_TIME}); DROP SCHEMA IF EXISTS {} CASCADE",
        (link.timeout / 2).as_millis().clamp(1, 600_000),
        link.schema
    );
    link.raw(link.deadline(), text).await.map(drop)
}

async fn about(link: &Link) -> Outcome<About> {
    let rows = link.call(link.deadline(), &Call::new("about", [])).await?;
    Ok(About {
        version: only(&rows, "r_version")?,
        latches: only(&rows, "r_latches")?,
        synchronous: only(&rows, "r_synchronous")?,
        fsync: only(&rows, "r_fsync")?,
        standbys: only(&rows, "r_standbys")?,
        copies: only(&rows, "r_copies")?,
    })
}
