//! Survivors that were looked at, each with the reason why no test can see it: in a file beside the server's texts,
//! in blocks like
//!
//! ```text
//! renew.lua
//! - the line as it is
//! + the line as it is changed
//! Why nobody can tell.
//! ```
//!
//! Where the line stands in the file more than once, `renew.lua 2` is its second place. Of a line that is removed
//! nothing stands behind the plus. Several `+` lines have one reason.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// A change that a test need not see.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Change {
    pub(super) file: String,
    /// Which of the lines that say the same, from 1.
    pub(super) place: usize,
    pub(super) line: String,
    pub(super) by: String,
}

/// The reasons in a file; none where it is missing.
pub(super) fn read(path: &Path) -> Result<HashMap<Change, String>, String> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text).map_err(|error| format!("{}: {error}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(HashMap::new()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn parse(text: &str) -> Result<HashMap<Change, String>, String> {
    let mut reasons = HashMap::new();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for block in lines.split(|line| line.trim().is_empty()) {
        let [head, line, rest @ ..] = block else {
            if block.is_empty() {
                continue;
            }
            return Err(format!("{block:?} is no change"));
        };
        let (file, place) = head.split_once(' ').unwrap_or((head, "1"));
        let place = place
            .parse()
            .map_err(|_| format!("{head:?}: which line?"))?;
        let line = line.strip_prefix('-');
        let line = line.ok_or_else(|| format!("{head}: no line that is changed"))?;
        let by: Vec<&str> = rest
            .iter()
            .map_while(|line| line.strip_prefix('+'))
            .collect();
        let reason = rest[by.len()..].join(" ");
        if by.is_empty() || reason.is_empty() {
            return Err(format!("{head}: no change, or no reason"));
        }
        for by in by {
            let change = Change {
                file: file.to_owned(),
                place,
                line: line.trim().to_owned(),
                by: by.trim().to_owned(),
            };
            if reasons.insert(change.clone(), reason.clone()).is_some() {
                return Err(format!("twice: {change:?}"));
            }
        }
    }
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_belongs_to_its_changes() {
        let text = "# About.\n\na.lua 2\n- x == 1\n+ x ~= 1\n+\nNobody\ncan tell.\n\n\nb.lua\n- y\n+ z\nNor this.\n";
        let reasons = parse(text).unwrap();
        let change = |place, file: &str, line: &str, by: &str| Change {
            file: file.to_owned(),
            place,
            line: line.to_owned(),
            by: by.to_owned(),
        };
        assert_eq!(reasons.len(), 3);
        assert_eq!(
            reasons[&change(2, "a.lua", "x == 1", "x ~= 1")],
            "Nobody can tell."
        );
        assert_eq!(
            reasons[&change(2, "a.lua", "x == 1", "")],
            "Nobody can tell."
        );
        assert_eq!(reasons[&change(1, "b.lua", "y", "z")], "Nor this.");
        for broken in [
            "a.lua\n",
            "a.lua\n- x\n+ y\n",
            "a.lua\n- x\nwhy\n",
            "a x\n- x\n+ y\nwhy\n",
        ] {
            assert!(parse(broken).is_err(), "{broken:?}");
        }
    }
}
