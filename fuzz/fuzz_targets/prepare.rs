#![no_main]

#[path = "../properties/prepare.rs"]
mod prepare;

libfuzzer_sys::fuzz_target!(|data: &[u8]| prepare::hold(data));
