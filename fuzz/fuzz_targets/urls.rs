#![no_main]

#[path = "../properties/urls.rs"]
mod urls;

libfuzzer_sys::fuzz_target!(|data: &[u8]| urls::hold(data, |_| false));
