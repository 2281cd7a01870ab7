#![no_main]

#[path = "../properties/keys.rs"]
mod keys;

libfuzzer_sys::fuzz_target!(|data: &[u8]| keys::hold(data));
