//! For authors of backends: the [rules](rows) for stores of rows, and what every store needs around them.

pub mod rows;

mod url;
mod watches;

pub use url::{Grammar, Host, Options, StoreUrl, UrlError, split};
pub use watches::{Watch, Watches};
