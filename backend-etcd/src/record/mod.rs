//! The stored shape: keys and values, and what a key is that cannot be understood.

mod holder;
mod names;
mod session;

pub(crate) use holder::{
    Held, batch_value, class, holder_value, holds_from, is_waiter, read_batch, shares_from,
    values_of, waiter_value, waits_from,
};
pub(crate) use names::{Batch, Classes, Names, Range, SHARED, digits, last, number};
pub(crate) use session::{NOBODY, Session, intent, news, read_intent, read_news, read_ttl};
