//! A program outside the workspace that is built from the packages, as one from a registry would be.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::packages::Package;
use crate::builds::cargo;
use crate::stores;

/// The page whose first program a newcomer types.
const PAGE: &str = "docs/book/src/start.md";

/// Builds that program with every feature, and runs it on a file and on a Redis; builds the command and the kit, too.
pub(super) fn run(root: &Path, packages: &Path, published: &[Package]) -> Result<(), String> {
    let outside = packages.with_file_name("outside");
    let failed = |error| format!("{}: {error}", outside.display());
    let page = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let program = program(&page).ok_or_else(|| format!("{PAGE} has no program"))?;
    if outside.exists() {
        // But not what was built there before.
        fs::remove_dir_all(outside.join("src")).map_err(failed)?;
    }
    fs::create_dir_all(outside.join("src")).map_err(failed)?;
    fs::write(outside.join("src/main.rs"), program).map_err(failed)?;
    // It begins with our versions of the dependencies; cargo adds what is missing.
    fs::copy(root.join("Cargo.lock"), outside.join("Cargo.lock")).map_err(failed)?;
    let manifest = manifest(packages, published);
    fs::write(outside.join("Cargo.toml"), manifest).map_err(failed)?;
    said(&outside, &["build"], None)?;
    let locks = outside.join("locks.db");
    let url = format!("sqlite:{}", locks.display());
    said(&outside, &["run", "--quiet"], Some(&url))?;
    let manifest = outside.join("Cargo.toml").display().to_string();
    let command = ["cargo", "run", "--quiet", "--manifest-path", &manifest].map(str::to_owned);
    stores::with(stores::find_server("redis")?, &command)?;
    said(&outside, &["build", "--package", "lockkeeper-cli"], None)
}

/// The first program of a page.
fn program(page: &str) -> Option<String> {
    let mut lines = page.lines();
    lines.find(|line| line.starts_with("```rust"))?;
    let lines = lines.take_while(|line| !line.starts_with("```"));
    Some(lines.flat_map(|line| [line, "\n"]).collect())
}

/// A manifest as a newcomer has it, with the packages in the place of the registry.
fn manifest(packages: &Path, published: &[Package]) -> String {
    let version = published.first().map_or("", |it| it.version.as_str());
    let mut manifest = format!(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n\
         [dependencies]\n\
         lockkeeper = {{ version = \"{version}\", features = [\"elasticsearch\", \"etcd\", \"postgres\", \"redis\"] }}\n\
         lockkeeper-cli = \"{version}\"\n\
         lockcore-conformance = \"{version}\"\n\
         lockcore-trial = \"{version}\"\n\
         tokio = {{ version = \"1\", features = [\"macros\", \"rt\"] }}\n\n[patch.crates-io]\n"
    );
    for package in published {
        let path = packages.join(package.versioned());
        let path = path.display().to_string();
        let _ = writeln!(manifest, "{} = {{ path = {path:?} }}", package.name);
    }
    manifest
}

fn said(folder: &Path, args: &[&str], url: Option<&str>) -> Result<(), String> {
    println!("+ cargo {} (in {})", args.join(" "), folder.display());
    let mut command = cargo(args);
    command.current_dir(folder);
    if let Some(url) = url {
        command.env("LOCKKEEPER_URL", url);
    }
    let status = command.status();
    let status = status.map_err(|error| format!("cargo cannot be run: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {}: {status}", args.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::program;

    #[test]
    fn the_program_is_what_the_page_shows() {
        let page = "```toml\nno\n```\n\n```rust,no_run\nfn main() {\n}\n```\n```rust\nno\n```\n";
        assert_eq!(program(page).unwrap(), "fn main() {\n}\n");
        assert_eq!(program("```toml\n```\n"), None);
    }
}
