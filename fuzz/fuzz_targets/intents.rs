#![no_main]

#[path = "../properties/intents.rs"]
mod intents;

libfuzzer_sys::fuzz_target!(|data: &[u8]| intents::hold(data));
