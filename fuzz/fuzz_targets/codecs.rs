#![no_main]

#[path = "../properties/codecs.rs"]
mod codecs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| codecs::hold(data));
