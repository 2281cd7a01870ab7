//! The changelog has a section for the version.

use std::fs;
use std::path::Path;

use super::Findings;

pub(super) fn check(root: &Path, version: &str, findings: &mut Findings) {
    match fs::read_to_string(root.join("CHANGELOG.md")) {
        Ok(text) => {
            if let Some(problem) = problem(&text, version) {
                findings.problem(problem);
            }
        }
        Err(error) => findings.problem(format!("CHANGELOG.md: {error}")),
    }
}

/// What is wrong with the section of a version.
fn problem(text: &str, version: &str) -> Option<String> {
    let mut lines = text.lines();
    let is_ours = |line: &str| {
        let heading = line
            .strip_prefix("## ")
            .map(|it| it.trim_start_matches('['));
        let behind = heading.and_then(|it| it.strip_prefix(version));
        behind.is_some_and(|it| it.is_empty() || it.starts_with([' ', ']']))
    };
    if !lines.any(is_ours) {
        return Some(format!("CHANGELOG.md has no section `## {version}`"));
    }
    let says = lines.take_while(|line| !line.starts_with("## "));
    let says_something = says.into_iter().any(|line| line.starts_with("- "));
    (!says_something).then(|| format!("CHANGELOG.md says nothing about {version}"))
}

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn a_section_is_of_one_version_and_says_something() {
        let text = "# Changelog\n\n## [0.2.0] - soon\n\n## 0.1.0\n\n- Locks.\n";
        assert_eq!(problem(text, "0.1.0"), None);
        let empty = problem(text, "0.2.0").unwrap();
        assert!(empty.contains("says nothing"), "{empty}");
        for missing in ["0.1", "0.1.00", "1.0", "0.3.0"] {
            let none = problem(text, missing).unwrap();
            assert!(none.contains("no section"), "{missing}: {none}");
        }
    }
}
