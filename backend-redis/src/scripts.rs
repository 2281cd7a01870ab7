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
    RENEW = "common", "even_if_full", "renew";
    END = "common", "even_if_full", "end";
    ADOPT = "common", "even_if_full", "adopt";
    SETTLE = "common", "even_if_full", "settle";
    NOTE = "common", "even_if_full", "note";
    ACQUIRE = "short", "acquire_free", "common", "line", "acquire";
    ACQUIRE_MANY = "short", "acquire_many";
    RELEASE = "release_alone", "common", "release";
    RELEASE_MANY = "release_many";
    CONFIRM = "common", "even_if_full", "confirm";
    SWEEP = "common", "even_if_full", "sweep";
    FORGET = "common", "even_if_full", "forget";
    RECORD_OF_KEY = "common", "record", "record_of_key";
    RECORDS = "common", "record", "records";
    RECORDS_OF_SESSION = "common", "record", "records_of_session";
    SESSIONS = "common", "sessions";
    STATES = "common", "states";
    LEASES = "common", "leases";
    EVICT = "common", "even_if_full", "evict";
    REMOVE = "common", "remove";
}

#[cfg(test)]
mod tests {
    use lockcore::limits::{MAX_LISTED, MAX_WAITERS, TOMBSTONE_KEPT};
    use std::collections::BTreeSet;
    use std::{fs, path::Path};

    /// The commands that a text calls.
    fn commands(script: &str) -> BTreeSet<String> {
        let calls = script.split("call('").skip(1);
        let many = script.split("many('").skip(1);
        let names = calls.chain(many).filter_map(|rest| rest.split('\'').next());
        names.map(str::to_owned).collect()
    }

    #[test]
    fn the_server_remembers_the_dead_as_long_as_all_do() {
        let kept = format!("local KEPT_MS = {}\n", TOMBSTONE_KEPT.as_millis());
        assert!(include_str!("../server/common.lua").contains(&kept));
    }

    #[test]
    fn the_server_has_the_limits_of_all() {
        let listed = format!("local LISTED = {MAX_LISTED}\n");
        assert!(include_str!("../server/common.lua").contains(&listed));
        let waiters = format!("local MAX_WAITERS = {MAX_WAITERS}\n");
        assert!(include_str!("../server/line.lua").contains(&waiters));
    }

    #[test]
    fn every_command_is_tried_at_first_and_among_the_least_rights() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("server");
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let rights = read("least.acl");
        let rights: BTreeSet<&str> = rights.split_whitespace().collect();
        let mut tried = commands(&read("init.lua"));
        // What every script calls, and what makes the namespace.
        tried.extend(["TIME", "HSET"].map(str::to_owned));
        for file in fs::read_dir(&folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            if ["fenced_set.lua", "remove.lua"].contains(&name.as_str()) {
                // The program's user runs the one; the other needs a right that nothing else does.
                continue;
            }
            for command in commands(&read(&name)) {
                assert!(tried.contains(&command), "{name}: {command} is not tried");
                let right = format!("+{}", command.to_lowercase());
                assert!(
                    rights.contains(right.as_str()),
                    "{name}: {right} is missing"
                );
            }
        }
        assert!(tried.len() > 10);
    }
}
