//! Both forms, by the same tests.
