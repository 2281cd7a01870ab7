//! Hostile keys: what a store's language, index or wire could take for something else.

use lockcore::backend::Filter;
use lockcore::limits::{MAX_KEY_BYTES, MAX_PATH_COMPONENTS};
use lockcore::{LockKey, Want};

use crate::actor::Actor;
use crate::case::{Case, Layer};

use crate::law::Law;
use crate::scene::{Scene, exclusive};
use crate::verdict::{Under, Verdict, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    let mut all = cases! { Backend "keys";
        Keys:
            all_hostile_keys_are_held_at_once,
            keys_of_the_greatest_length_differ_in_their_last_byte,
            prefixes_are_no_patterns;
        AtMostOneHolder:
            a_hostile_path_and_what_is_below_it_are_relatives;
        AllowedIsGranted:
            a_path_is_no_pattern_of_what_is_below_it;
    };
    let written = HOSTILE.iter().map(|(group, hostile)| {
        let hostile: Vec<Hostile> = hostile.iter().map(Hostile::from).collect();
        (*group, Law::Keys, hostile)
    });
    let built = ("the_longest_and_the_shortest", Law::Limits, built());
    for (group, law, hostile) in written.chain([built]) {
        let name = format!("{group}_are_held_by_exactly_their_bytes");
        all.push(Case::new(Layer::Backend, "keys", law, name, move |scene| {
            let hostile = hostile.clone();
            Box::pin(exactly(scene, hostile))
        }));
    }
    all
}

#[derive(Clone)]
struct Hostile {
    what: &'static str,
    key: String,
    /// Keys that a careless store could take for the same one.
    near: Vec<String>,
}

impl From<&Written> for Hostile {
    fn from((what, key, near): &Written) -> Self {
        Hostile {
            what,
            key: (*key).to_owned(),
            near: near.iter().map(ToString::to_string).collect(),
        }
    }
}

/// As [`Hostile`].
type Written = (&'static str, &'static str, &'static [&'static str]);

const HOSTILE: &[(&str, &[Written])] = &[
    (
        "quotes_and_patterns",
        &[
            (
                "single_quote",
                "o'clock",
                &["o''clock", "oclock", "o\\'clock"],
            ),
            (
                "double_quote",
                "say \"when\"",
                &["say when", "say \\\"when\\\""],
            ),
            ("sql", "k'; drop table holders; --", &["k"]),
            ("sql_comment", "k--", &["k", "k/**/"]),
            ("like_percent", "k%", &["k", "kk", "k1", "%"]),
            ("like_underscore", "k_1", &["kx1", "k1", "k__1"]),
            ("underscore_first", "_id", &["id", "__id"]),
            ("glob_star", "k*", &["k", "k1", "kk", "*"]),
            ("glob_question", "k?1", &["kx1", "k1"]),
            ("glob_class", "k[ab]", &["ka", "kb", "k[ab"]),
        ],
    ),
    (
        "escapes_and_separators",
        &[
            ("backslash", "k\\1", &["k1", "k\\\\1", "k/1"]),
            ("backslash_last", "k\\", &["k", "k\\\\"]),
            ("json", "{\"key\":[1,null]}", &["{\"key\": [1,null]}", "{}"]),
            ("json_escape", "k\\u0041", &["kA", "k\\u0061"]),
            ("not_a_nul", "k\\0", &["k", "k0", "k\\x00"]),
            ("percent_encoded", "k%2Fa", &["k/a", "k%2fa", "k%252Fa"]),
            ("tilde_first", "~session", &["session", "~~session"]),
            ("braces", "{ns}:k", &["k", "ns:k", "{ns}"]),
            ("colons", "a:b:c", &["a:b", "a", "a::b:c"]),
            (
                "slashes_in_a_flat_key",
                "a//b/../c",
                &["a/c", "a/b/../c", "a//b"],
            ),
            ("dots_in_a_flat_key", "..", &[".", "...", "./.."]),
            ("slash_last_in_a_flat_key", "a/", &["a", "a//"]),
        ],
    ),
    (
        "spaces_and_letters",
        &[
            ("leading_space", " k", &["k", "  k", "k "]),
            ("inner_spaces", "a  b", &["a b", "ab", "a\u{a0} b"]),
            ("no_break_space", "a\u{a0}b", &["a b", "ab"]),
            ("case", "Key", &["key", "KEY", "kEY"]),
            (
                "composed",
                "caf\u{e9}",
                &["cafe\u{301}", "cafe", "CAF\u{c9}"],
            ),
            ("decomposed", "cafe\u{301}", &["caf\u{e9}", "cafe"]),
            ("sharp_s", "stra\u{df}e", &["strasse", "STRASSE"]),
            ("dotless_i", "d\u{131}r", &["dir", "DIR", "d\u{130}r"]),
            ("ligature", "\u{fb01}le", &["file"]),
            ("emoji", "🦀", &["🐙", "🦀\u{fe0f}"]),
            ("joined_emoji", "👩\u{200d}💻", &["👩💻", "👩", "💻"]),
            ("zero_width", "k\u{200b}", &["k"]),
            ("right_to_left", "\u{202e}abc", &["abc", "cba"]),
            ("byte_order_mark", "\u{feff}k", &["k"]),
            (
                "greatest_character",
                "\u{10ffff}",
                &["\u{10fffe}", "\u{ffff}"],
            ),
            ("line_separator", "a\u{2028}b", &["a b", "ab"]),
        ],
    ),
    (
        "words_and_numbers",
        &[
            ("digits", "007", &["7", "07", "7.0", "0x7"]),
            ("float", "1e3", &["1000", "1E3", "1e03"]),
            ("null_word", "null", &["NULL", "undefined", "nil"]),
            ("option", "--help", &["-h", "help"]),
            ("template", "${k} {{k}} $1 %s", &["k", "${k}"]),
        ],
    ),
    (
        "paths",
        &[
            ("path_percent", "/a%/b_", &["/ax/b1", "/a/b", "/a%/b_/c_"]),
            (
                "path_dots",
                "/a.b/...",
                &["/a.b/....", "/a/b/...", "/a.b/..c"],
            ),
            ("path_spaces", "/ /  ", &["/  / ", "/ ", "/   "]),
            ("path_low_bytes", "/a /b", &["/a!/b", "/a", "/a/b"]),
            (
                "path_quote",
                "/o'clock/\"x\"",
                &["/o''clock/x", "/oclock/x"],
            ),
            (
                "path_unicode",
                "/caf\u{e9}/🦀",
                &["/cafe\u{301}/🦀", "/caf\u{e9}/🐙"],
            ),
            ("path_zero", "/a0/b", &["/a/b", "/a/0/b", "/a"]),
            ("path_backslash", "/a\\/b", &["/a/b", "/a\\"]),
            ("path_brackets", "/[a]/{b}", &["/a/b", "/[a]", "/a/{b}"]),
        ],
    ),
];

/// Keys at the limits, which are too long to write down.
fn built() -> Vec<Hostile> {
    let long = |last: &str| "k".repeat(MAX_KEY_BYTES - last.len()) + last;
    let component = "c".repeat(MAX_KEY_BYTES / MAX_PATH_COMPONENTS - 1);
    let deep = |n: usize| format!("/{component}").repeat(n);
    [
        (
            "longest_flat_key",
            long("1"),
            vec![long("2"), long("1")[1..].to_owned()],
        ),
        (
            "longest_key_of_wide_characters",
            "🦀".repeat(MAX_KEY_BYTES / 4),
            vec!["🦀".repeat(MAX_KEY_BYTES / 4 - 1)],
        ),
        (
            "longest_path_of_one_component",
            format!("/{}", &long("1")[1..]),
            vec![format!("/{}", &long("2")[1..])],
        ),
        (
            "longest_and_deepest_path",
            deep(MAX_PATH_COMPONENTS),
            vec![deep(MAX_PATH_COMPONENTS - 1) + "/x"],
        ),
        (
            "shortest_flat_key",
            "!".to_owned(),
            vec!["\"".to_owned(), "#".to_owned()],
        ),
        (
            "shortest_path",
            "/!".to_owned(),
            vec!["/ ".to_owned(), "/\"".to_owned()],
        ),
    ]
    .map(|(what, key, near)| Hostile { what, key, near })
    .to_vec()
}

/// Held, found and freed by exactly its bytes.
async fn exactly(scene: Scene, hostile: Vec<Hostile>) -> Verdict {
    let a = scene.actor().await?;
    // In turn: what is near by one of them is another of them.
    for one in &hostile {
        one_key(&scene, &a, &one.key, &one.near)
            .await
            .about(one.what)?;
    }
    Ok(())
}

async fn one_key(scene: &Scene, a: &Actor, key: &str, near: &[String]) -> Verdict {
    let held = a.hold(&[exclusive(key)]).await?;
    for near in near {
        if near.starts_with('/') == key.starts_with('/') && !related(key, near)? {
            scene.free(near).await?;
        }
    }
    let holders = scene.held(key).await?;
    ensure_eq!(holders[0].key.as_str(), key, "the key that is held");
    let record = scene.record(key).await?;
    let grants: Vec<_> = record
        .iter()
        .flat_map(|record| &record.holders)
        .map(|holder| holder.grant)
        .collect();
    ensure_eq!(grants, [Some(held.grant)], "the holders listed for the key");
    let by_prefix = a.listed(&Filter::Prefix(key.to_owned()), 10).await?;
    ensure!(
        by_prefix.len() == 1 && by_prefix[0].key.as_str() == key,
        "the key is found by itself as a prefix, and nothing else: {by_prefix:?}"
    );
    for near in near {
        // What is near by is not freed by releasing it, nor the other way round.
        if near.starts_with('/') == key.starts_with('/') && !related(key, near)? {
            let other = a.hold(&[exclusive(near)]).await?;
            a.release(&other).await?;
        }
    }
    a.holds(&held).await?;
    a.release(&held).await?;
    scene.free(key).await
}

fn related(left: &str, right: &str) -> Verdict<bool> {
    let (left, right) = (LockKey::parse(left)?, LockKey::parse(right)?);
    Ok(left.is_above(&right) || right.is_above(&left))
}

/// Every hostile path, and every hostile flat key as the last component of one.
fn hostile_paths() -> Vec<(&'static str, String)> {
    let written = HOSTILE.iter().flat_map(|(_, hostile)| *hostile);
    let paths = written.map(|(what, key, _)| match key.starts_with('/') {
        true => (*what, (*key).to_owned()),
        false => (*what, format!("/{key}")),
    });
    // Not every key is a component.
    paths
        .filter(|(_, path)| LockKey::parse(path).is_ok())
        .collect()
}

async fn a_hostile_path_and_what_is_below_it_are_relatives(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (what, path) in hostile_paths() {
        let below = format!("{path}/x");
        for (held, asked) in [(&below, &path), (&path, &below)] {
            let holds = a.hold(&[(Want::Write, held)]).await.about(what)?;
            b.refused(&b.ask(&[(Want::Write, asked)]))
                .await
                .about(format!("{what}: {held:?} is held"))?;
            a.release(&holds).await?;
        }
    }
    Ok(())
}

/// Paths, and what only a pattern takes for something below them.
const PATTERNS: [(&str, &str); 18] = [
    ("/user_1", "/userX1/file"),
    ("/a%b", "/axyzb/c"),
    ("/_", "/d/e"),
    ("/%", "/f/g"),
    ("/%/h", "/i/j/h/k"),
    ("/l\\m", "/lm/n"),
    ("/l\\d", "/l1/n"),
    ("/o.p", "/oqp/r"),
    ("/.*", "/s/t"),
    ("/u*", "/uv/w"),
    ("/u+", "/uu/w"),
    ("/u?", "/uv/w"),
    ("/[xy]", "/x/y"),
    ("/z{2}", "/zz/a"),
    ("/^aa", "/aa/b"),
    ("/bb$", "/bb/c"),
    ("/Key", "/key/file"),
    ("/caf\u{e9}", "/cafe\u{301}/file"),
];

async fn a_path_is_no_pattern_of_what_is_below_it(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    for (path, other) in PATTERNS {
        for (held, asked) in [(other, path), (path, other)] {
            let holds = a.hold(&[(Want::Write, held)]).await?;
            let beside = b.hold(&[(Want::Write, asked)]).await;
            let beside = beside.about(format!("{held:?} is held"))?;
            b.release(&beside).await?;
            a.release(&holds).await?;
        }
    }
    Ok(())
}

async fn all_hostile_keys_are_held_at_once(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let mut keys: Vec<String> = HOSTILE
        .iter()
        .flat_map(|(_, hostile)| *hostile)
        .flat_map(|(_, key, near)| std::iter::once(*key).chain(near.iter().copied()))
        .map(ToString::to_string)
        .collect();
    keys.sort();
    keys.dedup();
    let mut held = Vec::new();
    for key in &keys {
        // Several of these paths are above others: readers hold them side by side.
        let want = if key.starts_with('/') {
            Want::Read
        } else {
            Want::Create
        };
        held.push(a.hold(&[(want, key)]).await?);
    }
    let listed = a.listed(&Filter::Session(a.session()), 25).await?;
    for (key, request) in keys.iter().zip(&held) {
        ensure!(
            listed.iter().any(|record| record.key.as_str() == key),
            "{key:?} is held and not listed"
        );
        a.holds(request).await?;
    }
    for (at, key) in keys.iter().enumerate() {
        a.release(&held[at]).await?;
        if !key.starts_with('/') {
            scene.free(key).await?;
        }
        if let Some(next) = held.get(at + 1) {
            ensure!(
                a.confirms(next).await?,
                "{:?} stays when {key:?} is released",
                keys[at + 1]
            );
        }
    }
    Ok(())
}

async fn keys_of_the_greatest_length_differ_in_their_last_byte(scene: Scene) -> Verdict {
    let [a, b] = scene.actors().await?;
    let stem = "é".repeat(MAX_KEY_BYTES / 2 - 1);
    let keys: Vec<String> = ["aa", "ab", "a", "é"]
        .iter()
        .map(|last| format!("{stem}{last}"))
        .collect();
    let mut held = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let actor = if at % 2 == 0 { &a } else { &b };
        held.push(actor.hold(&[(Want::Create, key)]).await?);
    }
    for (key, request) in keys.iter().zip(&held) {
        let holders = scene.held(key).await?;
        ensure_eq!(holders[0].grant, Some(request.grant), "who holds the key");
        ensure_eq!(holders[0].key.as_str(), key, "the whole key");
    }
    Ok(())
}

async fn prefixes_are_no_patterns(scene: Scene) -> Verdict {
    let a = scene.actor().await?;
    let keys = [
        "%", "%a", "_", "_a", "a", "a%", "a*b", "aXb", "a_b", "A", "á", "[a]", "\\", "\\a", "{",
        "~", " a",
    ];
    for key in keys {
        a.hold(&[(Want::Create, key)]).await?;
    }
    for prefix in [
        "%", "_", "a", "a%", "a*", "a_", "[", "[a]", "\\", "A", "á", "{", "~", " ", "*", "?", "b",
        ".*", "",
    ] {
        let listed = a.listed(&Filter::Prefix(prefix.to_owned()), 3).await?;
        let mut listed: Vec<&str> = listed.iter().map(|record| record.key.as_str()).collect();
        let mut expected: Vec<&str> = keys
            .iter()
            .copied()
            .filter(|key| key.starts_with(prefix))
            .collect();
        listed.sort_unstable();
        expected.sort_unstable();
        ensure_eq!(listed, expected, "keys that begin with {prefix:?}");
    }
    Ok(())
}
