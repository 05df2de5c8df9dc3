//! The scripts that Redis runs. Each is one atomic step: the prelude and its own text.

use std::sync::LazyLock;

use hapax_core::planted::{self, Bug};

/// A script, and the digest by which a server that has it runs it.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) digest: String,
    /// Whether it may change something.
    pub(super) writes: bool,
}

impl Script {
    fn new(body: &str, writes: bool) -> Script {
        let text = format!("{}\n{body}", include_str!("scripts/prelude.lua"));
        let text = with_plants(text);
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Script {
            text,
            digest,
            writes,
        }
    }
}

/// Known bugs, planted by changing the text of the scripts: see [`hapax_core::planted`].
const PLANTS: &[(Bug, &str, &str)] = &[
    (
        Bug::RedisUnfencedCompletion,
        "return h.fence == fence and is_open(h.state)",
        "return is_open(h.state)",
    ),
    (
        Bug::RedisLiveLeaseIsOver,
        "if h.state == RUNNING then return h.lease_until <= now end",
        "if h.state == RUNNING then return true end",
    ),
    (
        Bug::RedisUnknownExpires,
        "redis.call('SET', HEAD, stored)\n    redis.call('ZADD', UNKNOWN, 0, id)",
        "redis.call('SET', HEAD, stored, 'PX', 86400000)\n    redis.call('ZADD', UNKNOWN, 0, id)",
    ),
    (Bug::RedisFloorForgotten, "floor = fence", ""),
    (
        Bug::RedisForgetKeepsEpoch,
        "if is_forget == '1' then redis.call('HINCRBY', STORE, 'epoch', 1) end",
        "",
    ),
    (
        Bug::RedisSettlesAnyVersion,
        "if not before or before.version ~= tonumber(version) then",
        "if not before then",
    ),
];

fn with_plants(text: String) -> String {
    let planted = PLANTS.iter().find(|(bug, ..)| planted::is(*bug));
    match planted {
        Some((_, from, to)) => text.replace(from, to),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plant_finds_its_place() {
        let texts = [&CLAIM, &OPERATOR, &LOG_APPEND].map(|script| script.text.as_str());
        for (bug, from, _) in PLANTS {
            assert!(texts.iter().any(|text| text.contains(from)), "{bug:?}");
        }
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal, writes: $writes:literal;)*) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file)), $writes));)*
    };
}

scripts! {
    CLAIM = "claim.lua", writes: true;
    FINISH = "finish.lua", writes: true;
    LOSE = "lose.lua", writes: true;
    OPERATOR = "operator.lua", writes: true;
    READ = "read.lua", writes: false;
    RENEW = "renew.lua", writes: true;
    DUE = "due.lua", writes: false;
    REMOVE = "remove.lua", writes: true;
    PRINCIPAL = "principal.lua", writes: true;
    KNOWS = "knows.lua", writes: false;
    INFO = "info.lua", writes: true;
    LOG_APPEND = "log_append.lua", writes: true;
    LOG_TRIM = "log_trim.lua", writes: true;
    LOG_SWEEP = "log_sweep.lua", writes: true;
    LOG_IMPORT = "log_import.lua", writes: true;
    NOTE = "note.lua", writes: true;
    IMPORT = "import.lua", writes: true;
    GATE = "gate.lua", writes: true;
    COUNTS = "counts.lua", writes: true;
    STANDING = "standing.lua", writes: true;
    ERASE = "erase.lua", writes: true;
    ERASE_KEYS = "erase_keys.lua", writes: true;
    ERASE_LOG = "erase_log.lua", writes: true;
}
