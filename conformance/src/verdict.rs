//! What the body of a case answers, and the two checks that it is made of.

use std::error::Error;

/// What the body of a case answers.
pub(crate) type Verdict<T = ()> = Result<T, Wrong>;

/// What was seen, and what should have been.
#[derive(Debug)]
pub(crate) struct Wrong(pub(crate) String);

/// Whatever fails on the way is wrong too. (`Wrong` itself is no `Error`, so this overlaps with nothing.)
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Wrong {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut text = format!("the machinery failed: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        Wrong(text)
    }
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
