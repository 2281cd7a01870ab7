//! Reads the scheme of a URL before its store does.

/// The scheme and the text after its colon; `None` if the text has no scheme.
pub(crate) fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    let letter = scheme.starts_with(|c: char| c.is_ascii_lowercase());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    (letter && scheme.chars().all(plain)).then_some((scheme, rest))
}

/// The same URL with another namespace. For an SQLite file: another file beside it. The store of the URL takes the
/// result.
pub(crate) fn in_namespace(url: &str, namespace: &str) -> String {
    let (address, options) = match url.split_once('?') {
        Some((address, options)) => (address, Some(options)),
        None => (url, None),
    };
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("memory") => url.to_owned(),
        Some("sqlite") => {
            let options = options.map(|options| format!("?{options}"));
            format!("{address}.{namespace}{}", options.unwrap_or_default())
        }
        _ => {
            let options = options.into_iter().flat_map(|options| options.split('&'));
            let others = options.filter(|option| !option.starts_with("namespace="));
            let mut all: Vec<&str> = others.collect();
            let ours = format!("namespace={namespace}");
            all.push(&ours);
            format!("{address}?{}", all.join("&"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes() {
        assert_eq!(split("sqlite:a:b"), Some(("sqlite", "a:b")));
        assert_eq!(split("memory:"), Some(("memory", "")));
        for none in [
            "",
            "locks.db",
            "/var/lib/locks.db",
            ":x",
            "Redis://h",
            "a b:c",
            "1a:",
        ] {
            assert_eq!(split(none), None, "{none:?}");
        }
    }

    #[test]
    fn namespaces() {
        for (url, other) in [
            ("memory:", "memory:"),
            ("sqlite:/a/b.db", "sqlite:/a/b.db.n"),
            ("sqlite:b?x=1&y=2", "sqlite:b.n?x=1&y=2"),
            ("redis://h", "redis://h?namespace=n"),
            (
                "redis://u:p@h/0?namespace=m&ca=%2Fa",
                "redis://u:p@h/0?ca=%2Fa&namespace=n",
            ),
            ("etcd://h/?namespace=m", "etcd://h/?namespace=n"),
        ] {
            assert_eq!(in_namespace(url, "n"), other);
        }
    }
}
