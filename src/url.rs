//! What a URL says before its store reads it: the scheme, and whether its ports can be ports.

/// The scheme and what stands behind its colon; `None` for a text that has no scheme.
pub(crate) fn split(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    let letter = scheme.starts_with(|c: char| c.is_ascii_lowercase());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    (letter && scheme.chars().all(plain)).then_some((scheme, rest))
}

/// Whether an `@` stands behind the hosts. Then what was meant as a user or a password has a `/`, `?` or `#` in it, and
/// nobody could tell where it ends.
pub(crate) fn user_is_cut_short(rest: &str) -> bool {
    rest.strip_prefix("//")
        .and_then(|rest| rest.split_once(['/', '?', '#']))
        .is_some_and(|(_, behind)| behind.contains('@'))
}

/// Whether every port between `//` and the path, of several hosts separated by commas, is a number from 1 to 65535.
pub(crate) fn ports_are_valid(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix("//") else {
        return true;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    hosts.split(',').all(|host| {
        // The colons inside the brackets of an IPv6 address are its own.
        let behind = host.rsplit(']').next().unwrap_or_default();
        match behind.rsplit_once(':') {
            None => true,
            Some((_, port)) => {
                port.bytes().all(|byte| byte.is_ascii_digit())
                    && port.parse::<u16>().is_ok_and(|port| port != 0)
            }
        }
    })
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
    fn users() {
        for whole in ["", "//h", "//me:p@ss@h/d", "//h/d?a=%40", "/no/authority@x"] {
            assert!(!user_is_cut_short(whole), "{whole:?}");
        }
        for cut in ["//me:p/ss@h", "//me:p?ss@h/d", "//me:#@h", "//h/d?a=@"] {
            assert!(user_is_cut_short(cut), "{cut:?}");
        }
    }

    #[test]
    fn ports() {
        for good in [
            "",
            "//host",
            "//host:1",
            "//user:secret@host:65535/0",
            "//[::1]",
            "//[::1]:80?a=b:c",
            "//a:1,b:2",
            "/no/authority:x",
        ] {
            assert!(ports_are_valid(good), "{good:?}");
        }
        for bad in [
            "//host:",
            "//host:0",
            "//host:65536",
            "//host:+1",
            "//a:1,b:x",
            "//[::1]:x",
        ] {
            assert!(!ports_are_valid(bad), "{bad:?}");
        }
    }
}
