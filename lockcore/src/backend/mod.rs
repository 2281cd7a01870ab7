//! For authors of backends.

pub mod rows;
