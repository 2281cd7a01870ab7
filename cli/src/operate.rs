//! What operators do: `lockkeeper ask`, `discard` and `sweep`.

use std::collections::BTreeSet;
use std::time::SystemTime;

use lockkeeper::backend::{End, Filter, Sweep};
use lockkeeper::limits::DEFAULT_TTL;
use lockkeeper::{
    Holder, Label, Life, LockBackend, Locks, Note, NoteKind, SessionId, SessionState,
};
use serde::Serialize;

use crate::args::{AskArgs, Common, DiscardArgs};
use crate::describe;
use crate::failure::{Failure, say, status, tell};
use crate::list::records;
use crate::output::Output;
use crate::store;

/// `lockkeeper ask`.
pub(crate) async fn ask(common: &Common, args: AskArgs) -> Result<u8, Failure> {
    let store = store::open(common).await?;
    let locks = store.locks(DEFAULT_TTL, "lockkeeper ask")?;
    let asked = locks.ask(&args.key, args.reason).await?;
    let key = args.key.as_str();
    let records = records(&*store.backend, &Filter::Key(args.key.clone())).await?;
    let holders = records.iter().flat_map(|record| &record.holders);
    let holders: Vec<&Holder> = holders.filter(|holder| holder.waiting.is_none()).collect();
    let foreign = holders.iter().any(|holder| holder.grant.is_none());
    tell(&match asked {
        0 if foreign => {
            format!("a foreign record holds {key:?}, and nobody hears what is asked of it")
        }
        0 if holders.is_empty() => format!("nobody holds {key:?}"),
        0 => format!("nobody who holds {key:?} can be asked"),
        1 => format!("the holder of {key:?} is asked to give it up"),
        holders => format!("{holders} holders of {key:?} are asked to give it up"),
    });
    let unfinished = |holder: &&&Holder| holder.life == Life::Abandoned;
    if let Some((holder, grant)) =
        (holders.iter().find(unfinished)).and_then(|holder| Some((holder, holder.grant?)))
    {
        return Err(abandoned(key, grant.session, &holder.label));
    }
    let kept = kept(&locks, &holders).await?;
    if let Some(session) = kept.first() {
        say(&format!(
            "no process hears that of session {session}, which keeps it until a step releases it or its time is over{}: \
             wait for it, or lockkeeper break {key:?}",
            match kept.len() {
                1 => String::new(),
                more => format!(", nor of {} others", more - 1),
            }
        ));
    }
    let kept = kept.len();
    result(common, &AskedJson { key, asked, kept })
}

/// Whoever left unfinished work has to be recovered.
pub(crate) fn abandoned(key: &str, session: SessionId, label: &str) -> Failure {
    Failure::new(
        status::ABANDONED,
        format!(
            "{key:?} is held by unfinished work of session {session} ({label}): lockkeeper recover or discard it"
        ),
    )
}

/// The sessions without a process among the holders.
async fn kept(locks: &Locks, holders: &[&Holder]) -> Result<BTreeSet<SessionId>, Failure> {
    let living = holders.iter().filter(|holder| holder.life == Life::Living);
    let grants = living.filter_map(|holder| holder.grant);
    let mut kept = BTreeSet::new();
    for session in grants.map(|grant| grant.session) {
        if !kept.contains(&session) && locks.is_kept(session).await? {
            kept.insert(session);
        }
    }
    Ok(kept)
}

/// How many are asked for a key, as JSON.
#[derive(Serialize)]
struct AskedJson<'a> {
    key: &'a str,
    asked: usize,
    /// Of the sessions, those that no process hears for.
    kept: usize,
}

/// Writes down who does what to a session, and why. One without a record holds nothing.
pub(crate) async fn note(
    backend: &dyn LockBackend,
    session: SessionId,
    kind: NoteKind,
    grant: Option<u64>,
    author: Label,
    reason: &Label,
) -> Result<(), Failure> {
    #[expect(clippy::disallowed_methods, reason = "for people")]
    let now = SystemTime::now();
    let note = Note::new(kind, author, reason.clone(), now);
    let note = match grant {
        Some(n) => note.about(n),
        None => note,
    };
    backend.note(session, &note).await?;
    Ok(())
}

/// `lockkeeper discard`.
pub(crate) async fn discard(common: &Common, args: DiscardArgs) -> Result<u8, Failure> {
    let store = store::open(common).await?;
    let (session, reason) = (args.session, &args.reason);
    let Some(mut state) = find(&*store.backend, session).await? else {
        return Err(Failure::usage(format!(
            "there is no session {session}: see lockkeeper sessions"
        )));
    };
    if state.life == Life::Living {
        // It may be due.
        state = ended(&*store.backend, session, End::IfDue).await?;
    }
    let author = store.author();
    let (now, discarded) = discarded(&*store.backend, &state, &author, reason).await?;
    match now {
        Life::Living => Err(Failure::new(
            status::BUSY,
            format!(
                "{} is alive, only abandoned work can be discarded: lockkeeper break a key of it first",
                describe::session(&state)
            ),
        )),
        _ => {
            match discarded {
                false => tell(&format!("{} has left nothing", describe::session(&state))),
                true => tell(&format!(
                    "discarded the unfinished work of {}: {reason}",
                    describe::session(&state)
                )),
            }
            let session = session.to_string();
            result(common, &DiscardedJson { session, discarded })
        }
    }
}

/// Discards what the session has left, with a note of it. Says what the session is now, and whether there was anything:
/// somebody may have finished it meanwhile.
async fn discarded(
    backend: &dyn LockBackend,
    seen: &SessionState,
    author: &Label,
    reason: &Label,
) -> Result<(Life, bool), Failure> {
    let session = seen.session;
    let noted = async || {
        note(
            backend,
            session,
            NoteKind::Discard,
            None,
            author.clone(),
            reason,
        )
        .await
    };
    if seen.life == Life::Abandoned {
        noted().await?;
    }
    let now = ended(backend, session, End::Discard).await?;
    // A discard uses up a number of adoptions, which nobody has then; whoever has settled it has one.
    let discarded = now.life == Life::Dead && now.adoption > seen.adoption && now.adopter.is_none();
    if discarded && seen.life != Life::Abandoned {
        noted().await?;
    }
    Ok((now.life, discarded))
}

/// What became of a session, as JSON.
#[derive(Serialize)]
struct DiscardedJson {
    session: String,
    discarded: bool,
}

/// What a sweep came to, as JSON.
#[derive(Serialize)]
struct SweptJson {
    removed: usize,
}

/// The result of an action, for programs.
pub(crate) fn result(common: &Common, value: &impl Serialize) -> Result<u8, Failure> {
    let mut output = Output::new();
    if common.json {
        output.json(value)?;
    }
    output.finish()
}

/// A session as it is recorded: to end one that is not there would leave a record of it.
pub(crate) async fn find(
    backend: &dyn LockBackend,
    session: SessionId,
) -> Result<Option<SessionState>, Failure> {
    let states = backend.session_states(&[session]).await?;
    Ok(states.into_iter().next().flatten())
}

pub(crate) async fn end(
    backend: &dyn LockBackend,
    session: SessionId,
    how: End,
) -> Result<Life, Failure> {
    Ok(ended(backend, session, how).await?.life)
}

async fn ended(
    backend: &dyn LockBackend,
    session: SessionId,
    how: End,
) -> Result<SessionState, Failure> {
    let mut states = backend.end(&[session], how).await?;
    states.pop().ok_or_else(|| {
        Failure::new(
            status::UNAVAILABLE,
            "the store did not say what became of the session",
        )
    })
}

/// `lockkeeper sweep`.
pub(crate) async fn sweep(common: &Common) -> Result<u8, Failure> {
    let store = store::open(common).await?;
    let mut removed = 0;
    loop {
        let swept = store.backend.sweep(Sweep::All, 10_000).await?;
        removed += swept.removed;
        if !swept.more {
            tell(&format!("{removed} records removed"));
            return result(common, &SweptJson { removed });
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn label(text: &str) -> Label {
        Label::parse(text).unwrap()
    }

    #[tokio::test]
    async fn what_was_settled_meanwhile_is_not_said_to_be_discarded() {
        use lockkeeper::MemoryBackend;
        use lockkeeper::backend::{Adopt, Incarnation, SessionStore as _};

        let memory = MemoryBackend::new();
        let locks = Locks::builder(memory.clone()).build().unwrap();
        let leaves = async |key: &str| {
            let acquisition = locks.lock(key).intent(&"change").unwrap();
            let guard = acquisition.acquire().await.unwrap();
            let session = guard.session();
            let living = find(&*memory, session).await.unwrap().unwrap();
            drop(guard);
            memory.end(&[session], End::Close).await.unwrap();
            let left = find(&*memory, session).await.unwrap().unwrap();
            (living, left)
        };
        let notes = async |session| {
            let state = find(&*memory, session).await.unwrap().unwrap();
            describe::notes(&state).count()
        };
        let discards = async |seen: &SessionState| {
            discarded(&*memory, seen, &label("ops"), &label("why"))
                .await
                .unwrap()
        };
        let (_, left) = leaves("a").await;
        assert_eq!(discards(&left).await, (Life::Dead, true));
        // Somebody else is quicker.
        let (_, left) = leaves("c").await;
        let by = locks.lock("by").acquire().await.unwrap().session();
        let unknown = Incarnation::UNKNOWN;
        let adopted = memory
            .adopt(left.session, 0, by, Adopt::Take, unknown)
            .await;
        let number = adopted.unwrap().adoption().unwrap().number;
        let settled = memory.settle(left.session, number, by, unknown).await;
        assert!(settled.unwrap().is_settled());
        assert_eq!(discards(&left).await, (Life::Dead, false));
        assert_eq!(notes(left.session).await, 0, "it was not discarded");
        // It has ended since it was looked at.
        let (living, _) = leaves("b").await;
        assert_eq!(living.life, Life::Living);
        assert_eq!(discards(&living).await, (Life::Dead, true));
        assert_eq!(notes(living.session).await, 1);
    }
}
