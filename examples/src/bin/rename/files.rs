//! The documents: one for each file, with its path and the token of whoever wrote it last.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use elasticsearch::auth::Credentials;
use elasticsearch::http::Method;
use elasticsearch::http::headers::HeaderMap;
use elasticsearch::http::transport::{SingleNodeConnectionPool, Transport, TransportBuilder};
use serde_json::{Value, json};
use url::Url;

use crate::{BoxError, Options};

/// Documents of a request.
const PAGE: usize = 1_000;
/// Moves a file, unless somebody with a greater token was there, or it is not where it was. The server keeps and compares all
/// 64 bits; whoever reads the documents with JavaScript or jq sees rounded tokens.
const MOVE: &str = "if (ctx._source.fence > params.token) { throw new IllegalStateException('fenced') } \
     if (ctx._source.path == params.from) { ctx._source.putAll(params.file) } else { ctx.op = 'none' }";
/// Deletes a file in the same way.
const DELETE: &str = "if (ctx._source.fence > params.token) { throw new IllegalStateException('fenced') } \
     ctx.op = ctx._source.path == params.from ? 'delete' : 'none'";

/// The index of the files.
pub(crate) struct Files {
    transport: Transport,
    index: String,
}

/// A document, by its id: the number of the file.
pub(crate) type Paths = BTreeMap<String, String>;

impl Files {
    pub(crate) fn new(options: &Options) -> Result<Self, BoxError> {
        let (_, rest) = options
            .url
            .split_once("://")
            .ok_or("the URL has no scheme")?;
        let secure = options
            .url
            .split("://")
            .next()
            .is_some_and(|scheme| scheme.ends_with("hs"));
        let mut url = Url::parse(&format!("http{}://{rest}", if secure { "s" } else { "" }))?;
        let password = url.password().map(str::to_owned);
        let user = url.username().to_owned();
        url.set_query(None);
        let cleared = url.set_username("").and_then(|()| url.set_password(None));
        cleared.map_err(|()| "the URL has no host")?;
        let mut builder = TransportBuilder::new(SingleNodeConnectionPool::new(url));
        if let Some(password) = password {
            builder = builder.auth(Credentials::Basic(user, password));
        }
        Ok(Self {
            transport: builder.disable_proxy().build()?,
            index: options.index.clone(),
        })
    }

    async fn send(&self, method: Method, path: &str, body: String) -> Result<Value, BoxError> {
        let path = format!("/{}{path}", self.index);
        let headers = HeaderMap::new();
        let answer = self
            .transport
            .send(method, &path, headers, None::<&()>, Some(body), None);
        let answer = answer.await?;
        let status = answer.status_code();
        let text = answer.text().await?;
        if !status.is_success() {
            return Err(format!("{path}: {status}: {text}").into());
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// Sends actions, each of one line or two. The answers' items, as far as they are no successes.
    async fn bulk(&self, actions: &[String]) -> Result<Vec<Value>, BoxError> {
        let mut failed = Vec::new();
        for page in actions.chunks(PAGE) {
            let answer = self.send(Method::Post, "/_bulk", page.concat()).await?;
            let items = answer["items"].as_array().ok_or("a bulk has items")?;
            let outcomes = items
                .iter()
                .filter_map(|item| item.as_object()?.values().next());
            failed.extend(outcomes.filter(|item| !item["error"].is_null()).cloned());
        }
        Ok(failed)
    }

    /// Makes the index, with the names of up to so many files of a real tree. The paths, in the order of the ids.
    pub(crate) async fn lay_out(&self, tree: &Path, most: usize) -> Result<Vec<String>, BoxError> {
        let mut names = Vec::new();
        list_names(tree, "", &mut names, most)?;
        let index = json!({
            "settings": {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"},
            "mappings": {"properties": {
                "path": {"type": "keyword"},
                "directory": {"type": "keyword"},
                "fence": {"type": "long"},
            }},
        });
        self.send(Method::Put, "", index.to_string()).await?;
        let numbered = names.iter().enumerate();
        let actions: Vec<String> = numbered
            .map(|(id, path)| create(&id.to_string(), path, 0))
            .collect();
        let failed = self.bulk(&actions).await?;
        self.send(Method::Post, "/_refresh", String::new()).await?;
        if failed.is_empty() {
            return Ok(names);
        }
        Err(format!("the files cannot be laid out: {}", failed[0]).into())
    }

    /// Removes the index, or the one behind an alias.
    pub(crate) async fn remove(mut self) -> Result<(), BoxError> {
        let found = self.send(Method::Get, "", String::new()).await?;
        let names = found.as_object().into_iter().flat_map(|found| found.keys());
        for name in names {
            self.index.clone_from(name);
            self.send(Method::Delete, "", String::new()).await?;
        }
        Ok(())
    }

    async fn search(&self, query: &Value) -> Result<Vec<(String, String)>, BoxError> {
        let answer = self
            .send(Method::Post, "/_search", query.to_string())
            .await?;
        let hits = answer["hits"]["hits"]
            .as_array()
            .ok_or("a search has hits")?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let found = hits
            .iter()
            .filter_map(|hit| Some((text(&hit["_id"])?, text(&hit["_source"]["path"])?)));
        Ok(found.collect())
    }

    /// Every file at or below a path, as it is now; all files for the empty path.
    pub(crate) async fn below(&self, path: &str) -> Result<Paths, BoxError> {
        self.send(Method::Post, "/_refresh", String::new()).await?;
        let query = json!({"bool": {"should": [
            {"term": {"path": path}},
            {"prefix": {"path": format!("{path}/")}},
        ]}});
        let mut found = Paths::new();
        let mut after = json!(null);
        loop {
            let mut page = json!({"size": PAGE, "sort": [{"path": "asc"}], "query": query});
            if !after.is_null() {
                // Paths are unique, or something was lost.
                page["search_after"] = json!([after]);
            }
            let hits = self.search(&page).await?;
            let Some((_, last)) = hits.last() else {
                return Ok(found);
            };
            after = json!(last);
            found.extend(hits);
        }
    }

    /// Whether a directory has files of its own.
    pub(crate) async fn is_directory(&self, path: &str) -> Result<bool, BoxError> {
        self.send(Method::Post, "/_refresh", String::new()).await?;
        let query = json!({"size": 1, "query": {"term": {"directory": path}}});
        Ok(!self.search(&query).await?.is_empty())
    }

    /// A file that is there, or was a moment ago.
    pub(crate) async fn any(&self, seed: u64) -> Result<Option<String>, BoxError> {
        let random = json!({"random_score": {"seed": seed >> 1, "field": "_seq_no"}});
        let query = json!({"size": 1, "query": {"function_score": random}});
        Ok(self.search(&query).await?.pop().map(|(_, path)| path))
    }

    /// Moves files of which each is known by its id, under a token.
    pub(crate) async fn rename(
        &self,
        moves: &[(String, String, String)],
        token: u64,
    ) -> Result<(), BoxError> {
        let script = |(id, from, to): &(String, String, String)| {
            let params = json!({"from": from, "token": token, "file": file(to, token)});
            scripted(id, MOVE, &params)
        };
        accept(
            self.bulk(&moves.iter().map(script).collect::<Vec<_>>())
                .await?,
        )
    }

    /// As somebody does it who takes no locks: writes each document again as it was read, at its new place.
    pub(crate) async fn overwrite(
        &self,
        moves: &[(String, String, String)],
    ) -> Result<(), BoxError> {
        let index = |(id, _, to): &(String, String, String)| {
            let action = json!({"index": {"_id": id}});
            format!("{action}\n{}\n", file(to, 0))
        };
        accept(
            self.bulk(&moves.iter().map(index).collect::<Vec<_>>())
                .await?,
        )
    }

    /// Adds a file, unless it is there.
    pub(crate) async fn add(&self, id: &str, path: &str, token: u64) -> Result<(), BoxError> {
        let failed = self.bulk(&[create(id, path, token)]).await?;
        accept(
            failed
                .into_iter()
                .filter(|item| item["status"] != 409)
                .collect(),
        )
    }

    /// Deletes files.
    pub(crate) async fn delete(&self, files: &Paths, token: u64) -> Result<(), BoxError> {
        let script = |(id, from): (&String, &String)| {
            scripted(id, DELETE, &json!({"from": from, "token": token}))
        };
        accept(
            self.bulk(&files.iter().map(script).collect::<Vec<_>>())
                .await?,
        )
    }
}

/// Whoever is gone needs nothing any more.
fn accept(failed: Vec<Value>) -> Result<(), BoxError> {
    match failed.iter().find(|item| item["status"] != 404) {
        None => Ok(()),
        Some(item) => Err(item.to_string().into()),
    }
}

fn create(id: &str, path: &str, token: u64) -> String {
    let action = json!({"create": {"_id": id}});
    format!("{action}\n{}\n", file(path, token))
}

fn file(path: &str, token: u64) -> Value {
    json!({"path": path, "directory": parent(path), "fence": token})
}

/// The directory of a path.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn scripted(id: &str, source: &str, params: &Value) -> String {
    let action = json!({"update": {"_id": id, "retry_on_conflict": 5}});
    let script = json!({"script": {"source": source, "params": params}});
    format!("{action}\n{script}\n")
}

fn list_names(tree: &Path, prefix: &str, names: &mut Vec<String>, most: usize) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(tree)?.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        // Names that are no keys (control characters, other encodings) are left out.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = format!("{prefix}/{name}");
        // Renamed ones are longer.
        if names.len() >= most || path.len() > 300 || lockkeeper::LockPath::parse(&path).is_err() {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list_names(&entry.path(), &path, names, most)?;
        } else if kind.is_file() {
            names.push(path);
        }
    }
    Ok(())
}
