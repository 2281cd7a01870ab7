//! The published packages: their metadata, and what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::Findings;
use crate::builds::{cargo, root};

/// What cargo says about the workspace and all that it is built with.
#[derive(Deserialize)]
pub(super) struct Workspace {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    target_directory: PathBuf,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

/// A package and what it is built with.
#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Needs>,
}

#[derive(Deserialize)]
struct Needs {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `dev`, `build`, or none for an ordinary one.
    kind: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Package {
    id: String,
    pub(super) name: String,
    pub(super) version: String,
    manifest_path: PathBuf,
    publish: Option<Vec<String>>,
    description: Option<String>,
    license: Option<String>,
    readme: Option<PathBuf>,
    repository: Option<String>,
    rust_version: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    metadata: Option<serde_json::Value>,
    dependencies: Vec<Dependency>,
    features: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    kind: Option<String>,
    path: Option<PathBuf>,
    optional: bool,
}

/// The categories of crates.io that we use. A name that is not there is dropped without an error.
const CATEGORIES: &[&str] = &[
    "asynchronous",
    "command-line-utilities",
    "concurrency",
    "database",
    "development-tools::profiling",
    "development-tools::testing",
];

/// Asks cargo.
pub(super) fn read() -> Result<Workspace, String> {
    let mut command = cargo(&["metadata", "--format-version", "1", "--locked"]);
    let answer = command.current_dir(root()).output();
    let answer = answer.map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !answer.status.success() {
        return Err(String::from_utf8_lossy(&answer.stderr).into_owned());
    }
    serde_json::from_slice(&answer.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

impl Workspace {
    /// The packages to be published, each behind those that it needs, for its tests, too: a registry has to have them.
    pub(super) fn published(&self) -> Result<Vec<Package>, String> {
        let members = self
            .packages
            .iter()
            .filter(|it| self.workspace_members.contains(&it.id));
        let mut left: Vec<&Package> = members.filter(|it| it.is_published()).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            let names: BTreeSet<&str> = left.iter().map(|it| it.name.as_str()).collect();
            let is_ready = |it: &&Package| {
                let mut needs = it.dependencies.iter();
                !needs.any(|needed| needed.path.is_some() && names.contains(needed.name.as_str()))
            };
            let (ready, waits): (Vec<_>, Vec<_>) = left.iter().copied().partition(is_ready);
            if ready.is_empty() {
                return Err(format!("these packages need each other: {names:?}"));
            }
            order.extend(ready.into_iter().cloned());
            left = waits;
        }
        Ok(order)
    }

    pub(super) fn check(&self, published: &[Package], findings: &mut Findings) {
        let names: BTreeSet<&str> = published.iter().map(|it| it.name.as_str()).collect();
        let mut without_repository = 0;
        for package in published {
            for problem in package.problems(&names) {
                findings.problem(format!("{}: {problem}", package.name));
            }
            self.check_rust(package, findings);
            without_repository += u32::from(package.repository.is_none());
        }
        if without_repository > 0 {
            findings.owner(format!(
                "`repository` in the manifests of {without_repository} packages; until then links from README.md to other \
                 files lead nowhere on crates.io"
            ));
        }
    }

    /// A package declares a Rust version, and no lower one than what it is built with by default.
    fn check_rust(&self, package: &Package, findings: &mut Findings) {
        let name = &package.name;
        let Some(ours) = package.rust_version.as_deref().map(number) else {
            findings.problem(format!("{name}: no `rust-version`"));
            return;
        };
        for id in self.built_with(package) {
            let Some(needed) = self.packages.iter().find(|it| it.id == id) else {
                continue;
            };
            let theirs = needed.rust_version.as_deref().map(number);
            if theirs.is_some_and(|theirs| theirs > ours) {
                findings.problem(format!(
                    "{name} declares Rust {}, but {} {} needs {}",
                    package.rust_version.as_deref().unwrap_or_default(),
                    needed.name,
                    needed.version,
                    needed.rust_version.as_deref().unwrap_or_default()
                ));
            }
        }
    }

    /// What a package is built with: what its default features bring, directly and through others.
    fn built_with(&self, package: &Package) -> BTreeSet<String> {
        let off = package.off_by_default();
        let mut found = BTreeSet::from([package.id.clone()]);
        let mut next = vec![package.id.clone()];
        while let Some(id) = next.pop() {
            let node = self.resolve.nodes.iter().find(|it| it.id == id);
            for needed in node.iter().flat_map(|it| &it.deps) {
                let is_built = needed
                    .dep_kinds
                    .iter()
                    .any(|it| it.kind.as_deref() != Some("dev"));
                let other = self.packages.iter().find(|it| it.id == needed.pkg);
                let is_off = id == package.id && other.is_some_and(|it| off.contains(&it.name));
                if is_built && !is_off && found.insert(needed.pkg.clone()) {
                    next.push(needed.pkg.clone());
                }
            }
        }
        found
    }
}

impl Package {
    fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|to| !to.is_empty())
    }

    /// Its optional dependencies that no default feature switches on.
    fn off_by_default(&self) -> BTreeSet<String> {
        let mut on = BTreeSet::new();
        let mut next = vec!["default".to_owned()];
        while let Some(feature) = next.pop() {
            for it in self.features.get(&feature).into_iter().flatten() {
                if on.insert(it.clone()) {
                    next.push(it.clone());
                }
            }
        }
        let optional = self.dependencies.iter().filter(|it| it.optional);
        let off = optional.filter(|it| !on.contains(&format!("dep:{}", it.name)));
        off.map(|it| it.name.clone()).collect()
    }

    fn problems(&self, published: &BTreeSet<&str>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut no = |is_wrong: bool, text: &str| {
            if is_wrong {
                problems.push(text.to_owned());
            }
        };
        let description = self.description.as_deref().unwrap_or_default();
        no(description.is_empty(), "no `description`");
        no(
            description.ends_with('.'),
            "the description ends with a full stop",
        );
        no(self.license.is_none(), "no `license`");
        no(self.readme.is_none(), "no `readme`");
        no(
            self.keywords.is_empty() || self.keywords.len() > 5,
            "one to five keywords are needed",
        );
        let is_word = |it: &String| {
            let letters = it
                .bytes()
                .all(|it| it.is_ascii_alphanumeric() || b"_-+".contains(&it));
            letters && it.len() <= 20
        };
        no(
            !self.keywords.iter().all(is_word),
            "a keyword has at most 20 ASCII letters, digits, _, - and +",
        );
        no(
            self.categories.is_empty() || self.categories.len() > 5,
            "one to five categories are needed",
        );
        let docs = self
            .metadata
            .as_ref()
            .and_then(|it| it.pointer("/docs/rs/all-features"));
        no(
            docs.and_then(serde_json::Value::as_bool) != Some(true),
            "no `package.metadata.docs.rs.all-features`",
        );
        for category in self
            .categories
            .iter()
            .filter(|it| !CATEGORIES.contains(&it.as_str()))
        {
            problems.push(format!(
                "{category:?} is not in the list of categories in xtask"
            ));
        }
        let manifest = fs::read_to_string(&self.manifest_path).unwrap_or_default();
        if !manifest.lines().any(|line| line.starts_with("include = ")) {
            problems.push("no `include`".to_owned());
        }
        for file in [
            self.readme.as_deref().unwrap_or(Path::new("README.md")),
            Path::new("LICENSE-MIT"),
            Path::new("LICENSE-APACHE"),
        ] {
            if !self.folder().join(file).is_file() {
                problems.push(format!("{} is missing", file.display()));
            }
        }
        for needed in &self.dependencies {
            problems.extend(needed.problem(published));
        }
        problems
    }

    fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    /// Its file and its folder in a registry.
    pub(super) fn versioned(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

impl Dependency {
    fn problem(&self, published: &BTreeSet<&str>) -> Option<String> {
        let name = &self.name;
        if self.path.is_some() {
            let is_dev = self.kind.as_deref() == Some("dev");
            return match self.req.as_str() {
                // Cargo leaves such a development dependency out.
                "*" if is_dev => None,
                "*" => Some(format!("{name} has a path and no version")),
                _ if !published.contains(name.as_str()) => Some(format!("{name} is not published")),
                _ => None,
            };
        }
        let is_pre_release = self.req.split(',').any(|it| it.contains('-'));
        (is_pre_release && !self.req.starts_with('=')).then(|| {
            format!(
                "{name} {} is a pre-release: pin it exactly, with the reason",
                self.req
            )
        })
    }
}

/// The version that all of them have.
pub(super) fn version(published: &[Package], findings: &mut Findings) -> String {
    let versions: BTreeSet<&str> = published.iter().map(|it| it.version.as_str()).collect();
    if versions.len() != 1 {
        findings.problem(format!(
            "the packages have different versions: {versions:?}"
        ));
    }
    versions.first().copied().unwrap_or_default().to_owned()
}

/// A Rust version to compare.
fn number(text: &str) -> Vec<u32> {
    text.split('.')
        .take(2)
        .filter_map(|it| it.parse().ok())
        .collect()
}

/// Packs them, as they would be uploaded, and unpacks them; the folder.
pub(super) fn package(published: &[Package]) -> Result<PathBuf, String> {
    let target = read()?.target_directory;
    let mut said = String::new();
    // Without the network first: with what is known of the registry it takes a second.
    for network in [&["--offline"][..], &[]] {
        let mut command = cargo(&["package", "--no-verify", "--allow-dirty", "--locked"]);
        command.args(network);
        command.args(published.iter().map(|it| format!("--package={}", it.name)));
        let done = command.current_dir(root()).output();
        let done = done.map_err(|error| format!("cargo cannot be run: {error}"))?;
        if done.status.success() {
            return unpack(&target, published);
        }
        said = String::from_utf8_lossy(&done.stderr).into_owned();
    }
    Err(format!("cargo package: {said}"))
}

/// Unpacks them; the folder.
fn unpack(target: &Path, published: &[Package]) -> Result<PathBuf, String> {
    let folder = target.join("packages");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for package in published {
        let file = target
            .join("package")
            .join(format!("{}.crate", package.versioned()));
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(&file).arg("-C").arg(&folder);
        let status = unpack.status().map_err(|error| format!("tar: {error}"))?;
        if !status.success() {
            return Err(format!("tar of {}: {status}", file.display()));
        }
    }
    Ok(folder)
}

/// What is in the packages, as they were unpacked.
pub(super) fn look_into(folder: &Path, published: &[Package], findings: &mut Findings) {
    for package in published {
        let within = folder.join(package.versioned());
        for file in [
            "Cargo.toml",
            "README.md",
            "LICENSE-MIT",
            "LICENSE-APACHE",
            "src",
        ] {
            let is_there =
                fs::metadata(within.join(file)).is_ok_and(|it| it.is_dir() || it.len() > 0);
            if !is_there {
                findings.problem(format!("the package {} has no {file}", package.name));
            }
        }
        let manifest = fs::read_to_string(within.join("Cargo.toml")).unwrap_or_default();
        if manifest
            .lines()
            .any(|line| line.trim_start().starts_with("path = \".."))
        {
            findings.problem(format!(
                "the package {} names a path outside it",
                package.name
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(req: &str, kind: Option<&str>, path: Option<&str>) -> Dependency {
        Dependency {
            name: "other".to_owned(),
            req: req.to_owned(),
            kind: kind.map(str::to_owned),
            path: path.map(PathBuf::from),
            optional: false,
        }
    }

    #[test]
    fn pre_releases_are_pinned_and_what_is_not_published_is_not_needed() {
        let published = BTreeSet::from(["other"]);
        let none = BTreeSet::new();
        let problem = |it: Dependency, published| it.problem(published);
        assert!(problem(dependency("^9.1.0-alpha.1", None, None), &none).is_some());
        assert!(problem(dependency("=9.1.0-alpha.1", None, None), &none).is_none());
        assert!(problem(dependency("^9.1.0", None, None), &none).is_none());
        assert!(problem(dependency("^0.1.0", None, Some("/other")), &published).is_none());
        assert!(problem(dependency("^0.1.0", None, Some("/other")), &none).is_some());
        assert!(problem(dependency("*", None, Some("/other")), &published).is_some());
        assert!(problem(dependency("*", Some("dev"), Some("/other")), &none).is_none());
    }

    #[test]
    fn versions_of_rust_are_compared_by_number() {
        assert!(number("1.100") > number("1.94.0"));
        assert_eq!(number("1.94.1"), number("1.94"));
    }

    #[test]
    fn the_workspace_is_read_and_a_package_stands_behind_what_it_needs() {
        let workspace = read().unwrap();
        let published = workspace.published().unwrap();
        let names: Vec<&str> = published.iter().map(|it| it.name.as_str()).collect();
        let place = |name| names.iter().position(|it| *it == name).unwrap();
        assert!(place("lockcore") < place("lockcore-conformance"));
        assert!(place("lockcore-conformance") < place("lockcore-sqlite"));
        assert!(place("lockcore-conformance") < place("lockcore-trial"));
        assert!(place("lockcore-trial") < place("lockkeeper-cli"));
        assert!(place("lockcore-sqlite") < place("lockkeeper"));
        assert!(place("lockkeeper") < place("lockkeeper-cli"));
        assert!(!names.contains(&"xtask") && !names.contains(&"lockkeeper-model"));
        let facade = &published[place("lockkeeper")];
        let off = facade.off_by_default();
        assert!(
            off.contains("lockcore-postgres") && !off.contains("lockcore-sqlite"),
            "{off:?}"
        );
    }

    #[test]
    fn a_lower_rust_version_than_that_of_a_dependency_is_a_problem() {
        let workspace = read().unwrap();
        let published = workspace.published().unwrap();
        let mut facade = published
            .into_iter()
            .find(|it| it.name == "lockkeeper")
            .unwrap();
        facade.rust_version = Some("1.56".to_owned());
        let mut findings = Findings::default();
        workspace.check_rust(&facade, &mut findings);
        let about = |name: &str| findings.problems.iter().any(|it| it.contains(name));
        // Of what it has by default, but not of what it leaves out.
        assert!(
            about("rusqlite") && !about("sqlx"),
            "{:?}",
            findings.problems
        );
    }
}
