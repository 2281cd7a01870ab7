//! The modes of multi-granularity locking, and their matrix.

use std::fmt;

/// The mode of a holder: the standard modes of multi-granularity locking (Gray, Lorie, Putzolu and Traiger, 1976,
/// *Granularity of Locks and Degrees of Consistency in a Shared Data Base*).
///
/// On a flat key, [`create`](crate::Want::Create) and [`upsert`](crate::Want::Upsert) hold X and
/// [`share`](crate::Want::Share) holds IS. The book's `shared` lock on an ancestor is IX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Intention shared: the holder reads something below. Also a counted share of a flat key.
    IS,
    /// Intention exclusive: the holder changes something below.
    IX,
    /// Shared: the holder reads this and everything below.
    S,
    /// Exclusive: the holder changes this and everything below.
    X,
}

impl Mode {
    /// Every mode, weakest first.
    pub const ALL: [Mode; 4] = [Mode::IS, Mode::IX, Mode::S, Mode::X];

    /// The matrix: whether this mode may be granted beside a mode that another owner holds. It is symmetric.
    ///
    /// ```
    /// use lockcore::Mode::{IS, IX, S, X};
    ///
    /// assert!(IX.beside(IS) && IX.beside(IX) && !IX.beside(S) && !IX.beside(X));
    /// ```
    #[must_use]
    pub const fn beside(self, held: Mode) -> bool {
        use Mode::{IS, IX, S, X};
        match (self, held) {
            (X, _) | (_, X) | (IX, S) | (S, IX) => false,
            (IS | IX, IS | IX) | (IS | S, S) | (S, IS) => true,
        }
    }

    /// The mode's name, as stored and printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::IS => "IS",
            Mode::IX => "IX",
            Mode::S => "S",
            Mode::X => "X",
        }
    }

    /// The mode of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_the_one_of_the_design() {
        let rows = [
            (Mode::IS, [true, true, true, false]),
            (Mode::IX, [true, true, false, false]),
            (Mode::S, [true, false, true, false]),
            (Mode::X, [false, false, false, false]),
        ];
        for (asked, row) in rows {
            for (held, granted) in Mode::ALL.into_iter().zip(row) {
                assert_eq!(asked.beside(held), granted, "{asked} asked, {held} held");
                assert_eq!(held.beside(asked), granted, "symmetric");
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for mode in Mode::ALL {
            assert_eq!(Mode::from_name(mode.as_str()), Some(mode));
        }
        assert_eq!(Mode::from_name("x"), None);
    }
}
