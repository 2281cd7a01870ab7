//! `cargo xtask release`: what can be checked before a release, and what only the project's owner can fill in.

mod build;
mod changelog;
mod links;
mod packages;
mod pages;

use std::path::Path;

use crate::builds::root;

/// What was found. A problem fails the command; what only the owner can fill in does not.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    problems: Vec<String>,
    owner: Vec<String>,
}

impl Findings {
    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    fn owner(&mut self, text: impl Into<String>) {
        self.owner.push(text.into());
    }
}

/// Checks metadata, packages, the changelog, the links of the pages, and the book. With `build`, a program outside the
/// workspace is built from the packages and run; that takes minutes.
pub(crate) fn run(build: bool) -> Result<(), String> {
    let root = root();
    let mut findings = Findings::default();
    let packages = packages::read()?;
    let published = packages.published()?;
    packages.check(&published, &mut findings);
    let version = packages::version(&published, &mut findings);
    changelog::check(root, &version, &mut findings);
    links::check(root, &mut findings)?;
    owner(root, &mut findings);
    if findings.problems.is_empty() {
        let folder = packages::package(&published)?;
        packages::look_into(&folder, &published, &mut findings);
        pages::build(root)?;
        if build {
            build::run(root, &folder, &published)?;
        }
    }
    let order: Vec<&str> = published.iter().map(|it| it.name.as_str()).collect();
    println!("Published in this order: {}", order.join(", "));
    if !findings.owner.is_empty() {
        println!("Only the project's owner can fill in:");
        for text in &findings.owner {
            println!("  - {text}");
        }
    }
    if findings.problems.is_empty() {
        println!("{} packages of version {version} are ready.", order.len());
        return Ok(());
    }
    for problem in &findings.problems {
        println!("  ✗ {problem}");
    }
    Err(format!("{} problems", findings.problems.len()))
}

/// What is nobody else's decision.
fn owner(root: &Path, findings: &mut Findings) {
    if !root.join("CODE_OF_CONDUCT.md").exists() {
        findings.owner("CODE_OF_CONDUCT.md: whether there is one, and who is asked");
    }
    let security = std::fs::read_to_string(root.join("SECURITY.md")).unwrap_or_default();
    if !security.contains('@') && !security.contains("https://") {
        findings.owner(
            "SECURITY.md: an address for private reports, where the hosting has no form for them",
        );
    }
    findings
        .owner("the account on crates.io that publishes, and its token in the hosted CI's secrets");
}
