//! What the server runs: one script for each operation.

use std::sync::LazyLock;

macro_rules! scripts {
    ($($(#[$about:meta])* $name:ident = $($file:literal),+;)*) => {
        $(
            $(#[$about])*
            pub(crate) static $name: LazyLock<redis::Script> = LazyLock::new(|| {
                redis::Script::new(concat!(
                    include_str!("../server/common.lua"),
                    $(include_str!(concat!("../server/", $file, ".lua"))),+
                ))
            });
        )*
    };
}

scripts! {
    INIT = "init";
    OPEN = "open";
    RENEW = "renew";
    END = "end";
    ADOPT = "adopt";
    SETTLE = "settle";
    ACQUIRE = "acquire";
    RELEASE = "release";
    CONFIRM = "confirm";
    SWEEP = "sweep";
    FORGET = "forget";
    RECORD_OF_KEY = "record", "record_of_key";
    RECORDS = "record", "records";
    RECORDS_OF_SESSION = "record", "records_of_session";
    SESSIONS = "sessions";
    EVICT = "evict";
}
