#![no_main]

#[path = "../properties/cli.rs"]
mod cli;

libfuzzer_sys::fuzz_target!(|data: &[u8]| cli::hold(data));
