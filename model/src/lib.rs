//! Parts of the protocol as a model checker sees them: every order of every step of a few tasks, requests and faults.
//!
//! Each part is a model with its rules, and for each rule one that lacks it. The tests check that the model has no state that
//! breaks a promise, that it reaches what it is about, and that the checker finds what each missing rule would prevent.

pub mod line;
pub mod sessions;
pub mod shares;
