//! Every public async function, ended at each of its await points: its caller drops it, panics or is aborted, or the
//! runtime that it runs on ends while that of its session lives. Guards dropped where nothing can be awaited. Nothing stays
//! held, nothing is renewed for ever, nothing panics, nothing blocks.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod acquiring;
mod beginning_and_ending;
mod cases;
mod holding;
mod recovering;
mod runtimes;
mod support;
