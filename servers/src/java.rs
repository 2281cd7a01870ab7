//! A JDK and Maven: found, or installed where that is possible.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::apt::{install, update};
use super::quiet;

/// Where systems keep their JDKs.
const JDKS: &str = "/usr/lib/jvm";
/// What Debian and those who make packages for it call them, the best first.
const PACKAGES: [(u32, &str); 6] = [
    (17, "openjdk-17-jdk-headless"),
    (17, "temurin-17-jdk"),
    (25, "openjdk-25-jdk-headless"),
    (25, "temurin-25-jdk"),
    (21, "openjdk-21-jdk-headless"),
    (21, "temurin-21-jdk"),
];

/// The options of a server's virtual machine: how much memory it may take, which is `LOCKKEEPER_TEST_HEAP`, as `2g`, else what
/// is said here; and those in `LOCKKEEPER_TEST_JAVA`, with spaces between them.
pub(super) fn options(heap: &str) -> Vec<String> {
    let heap = std::env::var("LOCKKEEPER_TEST_HEAP").unwrap_or_else(|_| heap.to_owned());
    let more = std::env::var("LOCKKEEPER_TEST_JAVA").unwrap_or_default();
    let mut options = vec![format!("-Xms{heap}"), format!("-Xmx{heap}")];
    options.extend(more.split_whitespace().map(str::to_owned));
    options
}

/// The home of a JDK of one of these versions.
pub(super) fn jdk(versions: &RangeInclusive<u32>) -> Result<PathBuf, String> {
    if let Some(home) = find(versions) {
        return Ok(home);
    }
    let (from, to) = (versions.start(), versions.end());
    update();
    let known = |package: &str| quiet("apt-cache", &["show", package]).is_some();
    let package = PACKAGES
        .iter()
        .find(|(version, package)| versions.contains(version) && known(package));
    let missing =
        format!("a JDK of version {from} to {to} is missing: install one, or set JAVA_HOME to it");
    let (_, package) = package.ok_or_else(|| missing.clone())?;
    install(package).map_err(|error| format!("{missing} ({error})"))?;
    find(versions).ok_or(missing)
}

/// Makes sure that `mvn` can be run.
pub(super) fn maven() -> Result<(), String> {
    if quiet("mvn", &["--version"]).is_some() {
        return Ok(());
    }
    update();
    install("maven").map_err(|error| format!("mvn is missing: install Maven ({error})"))
}

fn find(versions: &RangeInclusive<u32>) -> Option<PathBuf> {
    let given = std::env::var_os("JAVA_HOME").map(PathBuf::from);
    let on_path = quiet("sh", &["-c", "readlink -f \"$(command -v javac)\""])
        .and_then(|javac| Some(Path::new(&javac).parent()?.parent()?.to_owned()));
    let installed = std::fs::read_dir(JDKS).into_iter().flatten();
    let installed = installed.flatten().map(|entry| entry.path());
    given
        .into_iter()
        .chain(on_path)
        .chain(installed)
        .find(|home| version(home).is_some_and(|version| versions.contains(&version)))
}

/// The version of the JDK in that directory, if there is one.
fn version(home: &Path) -> Option<u32> {
    let javac = home.join("bin/javac");
    let text = quiet(javac.to_str()?, &["-version"])?;
    feature(&text)
}

/// The first number of `javac 17.0.15`.
fn feature(text: &str) -> Option<u32> {
    let number = text.strip_prefix("javac ")?;
    number.split(['.', '-', '+']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (text, version) in [
            ("javac 17.0.15", Some(17)),
            ("javac 25", Some(25)),
            ("javac 21-ea", Some(21)),
            ("javac 1.8.0_292", Some(1)),
            ("openjdk 17", None),
            ("", None),
        ] {
            assert_eq!(feature(text), version, "{text}");
        }
    }
}
