//! Bad input is a typed error before anything is sent; what is just within a bound is not.

use std::time::Duration;

use lockcore::limits::{
    MAX_INTENT_BYTES, MAX_KEY_BYTES, MAX_KEYS, MAX_KEYS_BYTES, MAX_LABEL_BYTES, MAX_PATH_COMPONENTS,
};
use lockcore::{
    AcquireError, Acquisition, InputError, Intent, IntentError, KeyError, Label, LabelError, Locks,
    PrepareError,
};

use crate::case::Case;
use crate::client::{acquired, locks, release};
use crate::scene::Scene;
use crate::verdict::{Verdict, Wrong, cases, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    cases! { Client "input";
        Limits:
            a_key_that_is_empty,
            a_key_that_is_too_long,
            a_key_with_a_control_character,
            a_path_given_to_a_flat_lock,
            a_flat_key_given_to_a_tree_lock,
            a_path_that_is_not_plain,
            a_path_that_is_too_deep,
            a_limit_of_no_shares,
            no_documents_and_no_paths,
            too_many_documents,
            too_many_bytes_of_documents,
            one_bad_document_among_many,
            a_ttl_out_of_bounds,
            an_intent_that_is_too_long,
            a_label_that_is_too_long,
            an_owner_with_an_intent,
            an_owner_of_other_locks,
            the_first_mistake_is_the_one_that_is_told;
    }
}

/// As [`bad`], asked once: for what takes long to make.
async fn bad_once<S>(
    scene: &Scene,
    acquisition: Acquisition<S>,
    is: impl Fn(&InputError) -> bool,
) -> Verdict {
    let before = scene.journal().written();
    let answer = acquisition.try_acquire().await;
    ensure!(
        matches!(&answer, Err(AcquireError::Input(error)) if is(error)),
        "not the input error that it should be: {answer:?}"
    );
    ensure_eq!(
        scene.journal().written(),
        before,
        "requests, before and after bad input"
    );
    Ok(())
}

/// Every way to acquire fails by this input error, and nothing is sent.
async fn bad<S>(
    scene: &Scene,
    make: impl Fn() -> Acquisition<S>,
    is: impl Fn(&InputError) -> bool,
) -> Verdict {
    let before = scene.journal().written();
    let run = make().run(|_| async { Ok::<(), std::io::Error>(()) }).await;
    for error in [
        make().acquire().await.err(),
        make().try_acquire().await.err(),
        match run {
            Err(lockcore::RunError::Acquire(error)) => Some(error),
            _ => None,
        },
    ] {
        match error {
            Some(AcquireError::Input(error)) if is(&error) => {
                let line = error.to_string();
                ensure!(
                    !line.is_empty() && !line.contains('\n'),
                    "an error is one line: {line:?}"
                );
            }
            other => {
                return Err(Wrong(format!(
                    "not the input error that it should be: {other:?}"
                )));
            }
        }
    }
    ensure_eq!(
        scene.journal().written(),
        before,
        "requests, before and after bad input"
    );
    Ok(())
}

fn key(error: KeyError) -> impl Fn(&InputError) -> bool {
    move |input| matches!(input, InputError::Key { source, .. } if *source == error)
}

/// Just within the bound: granted and released.
async fn good<S>(acquisition: Acquisition<S>) -> Verdict {
    release(acquired(acquisition).await?).await
}

async fn a_key_that_is_empty(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    bad(&scene, || locks.lock(""), key(KeyError::Empty)).await?;
    bad(&scene, || locks.rwlock("").read(), key(KeyError::Empty)).await?;
    bad(&scene, || locks.documents(["a", ""]), key(KeyError::Empty)).await?;
    bad(&scene, || locks.tree().write(""), key(KeyError::Empty)).await?;
    good(locks.lock(" ")).await
}

async fn a_key_that_is_too_long(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    let long = "é".repeat(MAX_KEY_BYTES / 2);
    let longer = format!("{long}!");
    let error = || {
        key(KeyError::TooLong {
            bytes: MAX_KEY_BYTES + 1,
        })
    };
    bad(&scene, || locks.lock(&longer), error()).await?;
    bad(&scene, || locks.rwlock(&longer).read(), error()).await?;
    bad(&scene, || locks.documents([&long, &longer]), error()).await?;
    bad(&scene, || locks.tree().read(format!("/{long}")), error()).await?;
    good(locks.lock(&long)).await?;
    good(locks.tree().read(format!("/{}", &long[2..]))).await
}

async fn a_key_with_a_control_character(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    for (text, at) in [
        ("\0", 0),
        ("a\nb", 1),
        ("é\u{7f}", 2),
        ("a\u{85}", 1),
        ("ab\t", 2),
    ] {
        bad(
            &scene,
            || locks.lock(text),
            key(KeyError::ControlCharacter { at }),
        )
        .await?;
        let path = format!("/{text}");
        let error = key(KeyError::ControlCharacter { at: at + 1 });
        bad(&scene, || locks.tree().write(&path), error).await?;
    }
    good(locks.lock("\u{a0}")).await
}

async fn a_path_given_to_a_flat_lock(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    for text in ["/a", "/", "//", "/a/"] {
        bad(&scene, || locks.lock(text), key(KeyError::PathGiven)).await?;
        bad(
            &scene,
            || locks.rwlock(text).read(),
            key(KeyError::PathGiven),
        )
        .await?;
        bad(&scene, || locks.documents([text]), key(KeyError::PathGiven)).await?;
    }
    good(locks.documents(["a/", "a//b", ".."])).await
}

async fn a_flat_key_given_to_a_tree_lock(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    for text in ["a", "a/b", " /a", "~"] {
        bad(
            &scene,
            || locks.tree().write(text),
            key(KeyError::FlatGiven),
        )
        .await?;
        bad(&scene, || locks.tree().read(text), key(KeyError::FlatGiven)).await?;
    }
    good(locks.tree().write("/a/b")).await
}

async fn a_path_that_is_not_plain(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    for (text, error) in [
        ("/", KeyError::TrailingSlash),
        ("/a/", KeyError::TrailingSlash),
        ("//a", KeyError::EmptyComponent),
        ("/a//b", KeyError::EmptyComponent),
        ("/.", KeyError::DotComponent),
        ("/a/../b", KeyError::DotComponent),
    ] {
        bad(&scene, || locks.tree().write(text), key(error)).await?;
        bad(&scene, || locks.tree().read(text), key(error)).await?;
    }
    good(locks.tree().write("/.../.a/..b")).await
}

async fn a_path_that_is_too_deep(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    let components = MAX_PATH_COMPONENTS + 1;
    let error = key(KeyError::TooDeep { components });
    bad(
        &scene,
        || locks.tree().write("/d".repeat(components)),
        error,
    )
    .await?;
    good(locks.tree().write("/d".repeat(MAX_PATH_COMPONENTS))).await
}

async fn a_limit_of_no_shares(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    let error = |input: &InputError| matches!(input, InputError::ZeroLimit);
    bad(&scene, || locks.semaphore("s", 0), error).await?;
    good(locks.semaphore("s", 1)).await?;
    good(locks.semaphore("s", u32::MAX)).await
}

async fn no_documents_and_no_paths(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    let error = |input: &InputError| matches!(input, InputError::Claims(PrepareError::Nothing));
    bad(&scene, || locks.documents(Vec::<String>::new()), error).await?;
    bad(&scene, || locks.tree(), error).await?;
    let empty = locks
        .documents_stream(futures_util::stream::empty::<String>())
        .await;
    ensure!(
        matches!(empty.acquire().await, Err(AcquireError::Input(input)) if error(&input)),
        "a stream of nothing is bad input"
    );
    good(locks.documents(["one"])).await
}

async fn too_many_documents(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    // Counted before duplicates are merged, so one id is enough to try it.
    let ids = |count| locks.documents(std::iter::repeat_n("d", count));
    let error = |input: &InputError| matches!(input, InputError::Claims(PrepareError::TooMany { claims }) if *claims == MAX_KEYS + 1);
    bad_once(&scene, ids(MAX_KEYS + 1), error).await?;
    let endless = locks.documents(std::iter::repeat("d"));
    bad_once(&scene, endless, error).await?;
    good(ids(MAX_KEYS)).await
}

async fn too_many_bytes_of_documents(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    let id = "d".repeat(MAX_KEY_BYTES);
    let count = MAX_KEYS_BYTES / MAX_KEY_BYTES;
    let ids = |more: &'static str| {
        let all = std::iter::repeat_n(id.as_str(), count);
        locks.documents(all.chain((!more.is_empty()).then_some(more)))
    };
    let error = |input: &InputError| matches!(input, InputError::Claims(PrepareError::TooLarge { bytes }) if *bytes == MAX_KEYS_BYTES + 1);
    bad_once(&scene, ids("!"), error).await?;
    good(ids("")).await
}

async fn one_bad_document_among_many(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    let ids = |bad: &'static str| {
        locks.documents((0..100).map(move |n| {
            if n == 57 {
                bad.to_owned()
            } else {
                format!("d{n}")
            }
        }))
    };
    bad(&scene, || ids("/d57"), key(KeyError::PathGiven)).await?;
    bad(&scene, || ids(""), key(KeyError::Empty)).await?;
    good(ids("d57")).await
}

async fn a_ttl_out_of_bounds(scene: Scene) -> Verdict {
    let backend = scene.connect().await?;
    let (min, max) = (backend.info().min_ttl, backend.info().max_ttl);
    let build = |ttl| Locks::builder(backend.clone()).ttl(ttl).build();
    let moment = Duration::from_millis(1);
    for ttl in [Duration::ZERO, min - moment, max + moment, Duration::MAX] {
        ensure!(
            matches!(build(ttl), Err(InputError::Ttl { ttl: told, .. }) if told == ttl),
            "a TTL of {ttl:?} is out of bounds"
        );
    }
    for ttl in [min, max] {
        good(build(ttl)?.lock("k")).await?;
    }
    Ok(())
}

async fn an_intent_that_is_too_long(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    // A text of n bytes is JSON of n + 2.
    let text = "x".repeat(MAX_INTENT_BYTES - 1);
    let before = scene.journal().written();
    let long = locks.lock("k").intent(&text);
    ensure!(
        matches!(long, Err(IntentError::TooLong { bytes }) if bytes == MAX_INTENT_BYTES + 1),
        "an intent over the limit is refused: {long:?}"
    );
    ensure!(
        Intent::new(vec![0; MAX_INTENT_BYTES + 1]).is_err(),
        "so is one of plain bytes"
    );
    ensure_eq!(
        scene.journal().written(),
        before,
        "requests, before and after bad input"
    );
    good(locks.lock("k").intent(&&text[1..])?).await
}

async fn a_label_that_is_too_long(scene: Scene) -> Verdict {
    let long = "é".repeat(MAX_LABEL_BYTES / 2);
    let error = Label::parse(format!("{long}!"));
    ensure_eq!(
        error.err(),
        Some(LabelError::TooLong {
            bytes: MAX_LABEL_BYTES + 1
        }),
        "a label over the limit"
    );
    let backend = scene.connect().await?;
    let locks = Locks::builder(backend)
        .label(Label::parse(&long)?)
        .build()?;
    let guard = acquired(locks.lock("k")).await?;
    ensure_eq!(
        scene.held("k").await?[0].label,
        long,
        "the label of the holder"
    );
    release(guard).await
}

async fn an_owner_with_an_intent(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    let owner = locks.owner();
    let intent = Intent::new("both".as_bytes())?;
    let error = |input: &InputError| matches!(input, InputError::OwnerWithIntent);
    let both = || {
        locks
            .documents(["d"])
            .owner(&owner)
            .intent_bytes(intent.clone())
    };
    bad(&scene, both, error).await?;
    good(locks.documents(["d"]).owner(&owner)).await?;
    good(locks.documents(["d"]).intent_bytes(intent.clone())).await
}

async fn an_owner_of_other_locks(scene: Scene) -> Verdict {
    let (locks, others) = (locks(&scene).await?, locks(&scene).await?);
    let owner = others.owner();
    let error = |input: &InputError| matches!(input, InputError::ForeignOwner);
    bad(&scene, || locks.documents(["d"]).owner(&owner), error).await?;
    good(others.documents(["d"]).owner(&owner)).await
}

async fn the_first_mistake_is_the_one_that_is_told(scene: Scene) -> Verdict {
    let locks = locks(&scene).await?;
    let two = || locks.tree().write("/a").read("/a/").write("b");
    bad(&scene, two, key(KeyError::TrailingSlash)).await?;
    let told = locks
        .tree()
        .write("/fine")
        .read("/not//fine")
        .acquire()
        .await;
    let Err(AcquireError::Input(error)) = told else {
        return Err(Wrong(format!("bad input: {told:?}")));
    };
    ensure!(
        error.to_string().contains("/not//fine"),
        "an input error names the text: {error}"
    );
    Ok(())
}
