#![no_main]

#[path = "../properties/stored_rows.rs"]
mod stored_rows;

libfuzzer_sys::fuzz_target!(|data: &[u8]| stored_rows::hold(data));
