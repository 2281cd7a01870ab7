//! What the body of a case answers, and the checks that it is made of.
//!
//! A case that does not pass has either seen a law broken, or it could not tell. What could not be told:
//!
//! - An error of the store that says that a request did not get through, or that nobody knows ([`Unavailable`],
//!   [`Indeterminate`]; [`Unauthorized`] and [`Config`] too). [`Corrupt`] and [`Limit`] are answers: the case had not
//!   asked for either. So are all of the client's errors that are not the store's.
//! - Whatever else fails on the way: a space that cannot be made, a file, a process.
//! - A limit of time that was missed by no more than the machine was late.
//!
//! What came at all, but later than it has to, is a third thing: see [`FailureKind::Late`](crate::FailureKind::Late).
//!
//! A case that ends by none of that, and answers never, has seen the law broken.
//!
//! [`Unavailable`]: ErrorKind::Unavailable
//! [`Indeterminate`]: ErrorKind::Indeterminate
//! [`Unauthorized`]: ErrorKind::Unauthorized
//! [`Config`]: ErrorKind::Config
//! [`Corrupt`]: ErrorKind::Corrupt
//! [`Limit`]: ErrorKind::Limit

use std::error::Error;
use std::fmt::{self, Display};
use std::time::Duration;

use lockcore::{
    AcquireError, ErrorKind, IdError, InputError, IntentError, KeyError, LabelError, PrepareError,
};
use tokio::time::Instant;

use crate::lateness::Lateness;
use crate::law::Law;
use crate::wire::WIRE;

/// What the body of a case answers.
pub type Verdict<T = ()> = Result<T, Unpassed>;

/// Why a case did not pass.
#[derive(Debug)]
pub enum Unpassed {
    /// The law of the case is broken: what was seen, and what should have been.
    Wrong(String),
    /// Another law is.
    Breaks(Law, String),
    /// A law is broken, unless the machine itself was so late since then.
    #[expect(missing_docs, reason = "only lockcore-trial shares it")]
    Late {
        law: Option<Law>,
        what: String,
        since: Instant,
        spare: Duration,
        /// What had to come has come, too late.
        came: bool,
    },
    /// Whether a law is broken could not be told.
    Inconclusive(String),
    /// The store or the fixture lacks what the case needs.
    Lacking,
}

pub(crate) use Unpassed::Wrong;

/// [`Unpassed`], when it is known how late the machine was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// This law, or that of the case.
    Broken(Option<Law>, String),
    /// It is broken, unless this was chance.
    Late(Option<Law>, String),
    Inconclusive(String),
    Lacking,
}

impl Unpassed {
    /// What has come since then came so much too late.
    pub(crate) fn came_late(what: String, since: Instant, spare: Duration) -> Self {
        Unpassed::Late {
            law: None,
            what,
            since,
            spare,
            came: true,
        }
    }

    /// Whether it is the machine's fault.
    pub(crate) fn judged(self, lateness: &Lateness) -> Judged {
        match self {
            Wrong(what) => Judged::Broken(None, what),
            Unpassed::Breaks(law, what) => Judged::Broken(Some(law), what),
            Unpassed::Inconclusive(what) => Judged::Inconclusive(what),
            Unpassed::Lacking => Judged::Lacking,
            Unpassed::Late {
                law,
                what,
                since,
                spare,
                came,
            } => {
                let late = lateness.since(since.into_std());
                if late.is_zero() || late < spare {
                    // Where time is paused nothing is chance.
                    if came && lateness.is_measured() {
                        Judged::Late(law, what)
                    } else {
                        Judged::Broken(law, what)
                    }
                } else {
                    Judged::Inconclusive(format!("{what}; the machine was {late:?} late meanwhile"))
                }
            }
        }
    }
}

impl Display for Unpassed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong(what) | Unpassed::Late { what, .. } => f.write_str(what),
            Unpassed::Breaks(law, what) => write!(f, "{law}: {what}"),
            Unpassed::Inconclusive(what) => write!(f, "inconclusive: {what}"),
            Unpassed::Lacking => f.write_str("the store or the fixture lacks what the case needs"),
        }
    }
}

/// Whatever fails on the way. (`Unpassed` itself is no `Error`, so this overlaps with nothing.)
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Unpassed {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut causes = vec![&*error as &(dyn Error + 'static)];
        while let Some(cause) = causes[causes.len() - 1].source() {
            causes.push(cause);
        }
        let told: Vec<String> = causes.iter().map(ToString::to_string).collect();
        let text = told.join(": ");
        if let Some(error) = causes.iter().find_map(|error| of_the_store(*error)) {
            return match error.kind() {
                ErrorKind::Corrupt | ErrorKind::Limit => Wrong(format!("an error: {text}")),
                // The kit itself has broken the wire, and somebody did not bear with it.
                _ if error.backend() == WIRE => Wrong(format!("an error: {text}")),
                _ => Unpassed::Inconclusive(format!("the store did not answer: {text}")),
            };
        }
        if causes.iter().any(|error| is_an_answer(*error)) {
            Wrong(format!("an error: {text}"))
        } else {
            Unpassed::Inconclusive(format!("the machinery failed: {text}"))
        }
    }
}

/// The store's error, if it is one or is nothing else than one.
fn of_the_store<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a lockcore::Error> {
    match error.downcast_ref::<AcquireError>() {
        Some(AcquireError::Store(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// Whether it is what the client says, and no failure of anything below it.
fn is_an_answer(error: &(dyn Error + 'static)) -> bool {
    error.is::<AcquireError>()
        || error.is::<InputError>()
        || error.is::<KeyError>()
        || error.is::<PrepareError>()
        || error.is::<IntentError>()
        || error.is::<LabelError>()
        || error.is::<IdError>()
}

/// What is said of a verdict besides.
pub(crate) trait Under: Sized {
    /// What is wrong breaks this law, not that of the case.
    fn under(self, law: Law) -> Self;

    /// What was seen was seen of this one, which its text begins with.
    fn about(self, one: impl Display) -> Self;

    /// What is wrong is so unless the machine was at least `spare` late since then: then whatever had to happen in that
    /// time may not have had its turn.
    fn unless_late(self, since: Instant, spare: Duration) -> Self;
}

impl<T> Under for Verdict<T> {
    fn under(self, law: Law) -> Self {
        self.map_err(|unpassed| match unpassed {
            Wrong(what) => Unpassed::Breaks(law, what),
            Unpassed::Late {
                law: None,
                what,
                since,
                spare,
                came,
            } => Unpassed::Late {
                law: Some(law),
                what,
                since,
                spare,
                came,
            },
            other => other,
        })
    }

    fn about(self, one: impl Display) -> Self {
        self.map_err(|mut unpassed| {
            if let Wrong(what)
            | Unpassed::Breaks(_, what)
            | Unpassed::Late { what, .. }
            | Unpassed::Inconclusive(what) = &mut unpassed
            {
                *what = format!("{one}: {what}");
            }
            unpassed
        })
    }

    fn unless_late(self, since: Instant, spare: Duration) -> Self {
        let late = |law, what| Unpassed::Late {
            law,
            what,
            since,
            spare,
            came: false,
        };
        self.map_err(|unpassed| match unpassed {
            Wrong(what) => late(None, what),
            Unpassed::Breaks(law, what) => late(Some(law), what),
            other => other,
        })
    }
}

/// What began then has taken no longer than that; inconclusive if it has only because the machine was late.
pub(crate) fn at_most(since: Instant, limit: Duration, what: impl Display) -> Verdict {
    let took = since.elapsed();
    match took.checked_sub(limit) {
        None | Some(Duration::ZERO) => Ok(()),
        Some(spare) => {
            let what = format!("{what}: took {took:?}, at most {limit:?}");
            Err(Unpassed::came_late(what, since, spare))
        }
    }
}

/// What has to be done within that time; inconclusive if it is not, and the machine was late for a quarter of it.
///
/// # Cancel safety
///
/// That of the future.
pub(crate) async fn within<T>(
    limit: Duration,
    what: impl Display,
    future: impl Future<Output = T>,
) -> Verdict<T> {
    let since = Instant::now();
    let done = tokio::time::timeout(limit, future).await;
    let done = done.map_err(|_| Wrong(format!("{what}: not within {limit:?}")));
    done.unless_late(since, limit / 4)
}

/// Less than that time has passed since then. Otherwise nothing can be told, whoever took so long.
pub(crate) fn in_time(since: Instant, limit: Duration) -> Verdict {
    let took = since.elapsed();
    if took < limit {
        return Ok(());
    }
    Err(Unpassed::Inconclusive(format!(
        "too slow to judge: {took:?} have passed, and it had to be asked within {limit:?}"
    )))
}

/// Ends the case unless the condition holds; the text says what should have been.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::verdict::Wrong(format!($($text)+)));
        }
    };
}

/// Ends the case unless both are equal; the text says what is compared.
macro_rules! ensure_eq {
    ($seen:expr, $wanted:expr, $($text:tt)+) => {
        match (&$seen, &$wanted) {
            (seen, wanted) => {
                if seen != wanted {
                    return Err($crate::verdict::Wrong(format!(
                        "{}: got {seen:?}, want {wanted:?}",
                        format_args!($($text)+)
                    )));
                }
            }
        }
    };
}

/// A group of cases: every function beside the law that it checks.
macro_rules! cases {
    ($layer:ident $group:literal; $($law:ident: $($name:ident),+ $(,)?;)+) => {
        vec![$($($crate::case::Case::new(
            $crate::case::Layer::$layer,
            $group,
            $crate::law::Law::$law,
            stringify!($name),
            |scene| Box::pin($name(scene)),
        )),+),+]
    };
}

pub(crate) use {cases, ensure, ensure_eq};

#[cfg(test)]
mod tests {
    use std::io;

    use lockcore::{LockKey, Operation};

    use super::*;
    use crate::fixture::BoxError;

    fn told(error: impl Into<BoxError>) -> Judged {
        Unpassed::from(error).judged(&Lateness::default())
    }

    fn store(kind: ErrorKind, backend: &'static str) -> lockcore::Error {
        lockcore::Error::new(kind, backend, Operation::Acquire, "no")
    }

    #[test]
    fn a_store_that_does_not_answer_breaks_no_law() {
        for kind in [
            ErrorKind::Unavailable,
            ErrorKind::Indeterminate,
            ErrorKind::Unauthorized,
            ErrorKind::Config,
        ] {
            let by_the_client = AcquireError::Store(store(kind, "a store"));
            for told in [told(store(kind, "a store")), told(by_the_client)] {
                assert!(
                    matches!(&told, Judged::Inconclusive(what) if what.starts_with("the store did not answer: a store: ")),
                    "{told:?}"
                );
            }
        }
    }

    #[test]
    fn what_the_store_or_the_client_answers_is_judged() {
        for error in [
            BoxError::from(store(ErrorKind::Corrupt, "a store")),
            store(ErrorKind::Limit, "a store").into(),
            AcquireError::Store(store(ErrorKind::Corrupt, "a store")).into(),
            AcquireError::Lost.into(),
            LockKey::parse("").expect_err("no key").into(),
            // The kit's own doing, which had to be borne.
            store(ErrorKind::Unavailable, WIRE).into(),
            AcquireError::Store(store(ErrorKind::Indeterminate, WIRE)).into(),
        ] {
            let told = told(error);
            assert!(matches!(&told, Judged::Broken(None, _)), "{told:?}");
        }
    }

    #[test]
    fn whatever_else_fails_is_the_machinery() {
        let server = io::Error::new(io::ErrorKind::ConnectionRefused, "gone");
        for error in [BoxError::from("no space"), server.into()] {
            let told = told(error);
            assert!(
                matches!(&told, Judged::Inconclusive(what) if what.starts_with("the machinery failed: ")),
                "{told:?}"
            );
        }
    }

    #[test]
    fn nobody_is_excused_by_a_machine_that_was_not_late() {
        let since = Instant::now();
        let late = Err::<(), _>(Wrong("late".to_owned())).unless_late(since, Duration::ZERO);
        let judged = late.under(Law::Waiting).about("this").unwrap_err();
        let broken = Judged::Broken(Some(Law::Waiting), "this: late".to_owned());
        assert_eq!(judged.judged(&Lateness::default()), broken);
    }

    #[test]
    fn what_came_late_may_be_chance_only_where_time_passes() {
        let late = || {
            at_most(
                Instant::now() - Duration::from_secs(9),
                Duration::ZERO,
                "it",
            )
        };
        let judged = |lateness: &Lateness| late().unwrap_err().judged(lateness);
        let paused = judged(&Lateness::default());
        assert!(matches!(paused, Judged::Broken(None, _)), "{paused:?}");
        let measured = judged(&Lateness::measured());
        assert!(matches!(measured, Judged::Late(None, _)), "{measured:?}");
    }
}
