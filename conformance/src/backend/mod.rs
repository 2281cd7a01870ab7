//! Cases on the traits themselves.

mod adoption;
mod batches;
mod expiry;
mod garbage;
mod keys;
mod late;
mod line;
mod listing;
mod matrix;
mod news;
mod notes;
mod races;
mod random;
mod recovery;
mod refusals;
mod releases;
mod requests;
mod sessions;
mod settling;
mod shares;
mod sweeps;
mod tokens;
mod tombstones;
mod trees;
mod wakeups;
mod watches;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    [
        matrix::cases(),
        trees::cases(),
        batches::cases(),
        requests::cases(),
        releases::cases(),
        shares::cases(),
        line::cases(),
        refusals::cases(),
        sessions::cases(),
        late::cases(),
        expiry::cases(),
        tokens::cases(),
        recovery::cases(),
        adoption::cases(),
        settling::cases(),
        notes::cases(),
        garbage::cases(),
        keys::cases(),
        listing::cases(),
        sweeps::cases(),
        tombstones::cases(),
        wakeups::cases(),
        watches::cases(),
        news::cases(),
        random::cases(),
        races::cases(),
    ]
    .concat()
}
