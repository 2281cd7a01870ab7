//! The public suite on a Redis: the one whose URL is in the environment, or one that is started for it.

mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    lockcore_conformance::main(support::Redis::given("redis"))
}
