//! What the server runs: one script for each operation.

use std::sync::LazyLock;

macro_rules! scripts {
    ($($(#[$about:meta])* $name:ident = $($file:literal),+;)*) => {
        $(
            $(#[$about])*
            pub(crate) static $name: LazyLock<redis::Script> = LazyLock::new(|| {
                redis::Script::new(concat!($(include_str!(concat!("../server/", $file, ".lua"))),+))
            });
        )*
    };
}

scripts! {
    INIT = "common", "init";
    OPEN = "common", "open";
    RENEW = "common", "renew";
    END = "common", "end";
    ADOPT = "common", "adopt";
    SETTLE = "common", "settle";
    ACQUIRE = "acquire_free", "common", "acquire";
    RELEASE = "release_alone", "common", "release";
    CONFIRM = "common", "confirm";
    SWEEP = "common", "sweep";
    FORGET = "common", "forget";
    RECORD_OF_KEY = "common", "record", "record_of_key";
    RECORDS = "common", "record", "records";
    RECORDS_OF_SESSION = "common", "record", "records_of_session";
    SESSIONS = "common", "sessions";
    EVICT = "common", "evict";
}
