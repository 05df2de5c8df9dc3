//! The scripts that Redis runs. Each is one atomic step: the prelude and its own text.

use std::sync::LazyLock;

use hapax_core::planted::{self, Bug};
use redis::Cmd;

/// A script, and the digest by which a server that has it runs it.
pub(super) struct Script {
    text: String,
    digest: String,
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

    /// The beginning of its command, up to the number of keys.
    pub(super) fn command(&self, with_text: bool, keys: usize) -> Cmd {
        let mut command = Cmd::new();
        if with_text {
            command.arg("EVAL").arg(&self.text);
        } else {
            command.arg("EVALSHA").arg(&self.digest);
        }
        command.arg(keys);
        command
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
        "redis.call('SET', HEAD, stored)",
        "redis.call('SET', HEAD, stored, 'PX', 86400000)",
    ),
    (
        Bug::RedisFloorForgotten,
        "if h and h.fence > floor then floor = h.fence end",
        "",
    ),
    (
        Bug::RedisForgetKeepsEpoch,
        "if is_forget == '1' then redis.call('HINCRBY', STORE, 'epoch', 1) end",
        "",
    ),
    (
        Bug::RedisSettlesAnyVersion,
        "if not h or h.version ~= tonumber(version) then",
        "if not h then",
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
        let texts = [&RECORDS, &EXPIRE, &OPERATOR, &LOG_APPEND].map(|script| script.text.as_str());
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
    RECORDS = "records.lua", writes: true;
    LOSE = "lose.lua", writes: true;
    OPERATOR = "operator.lua", writes: true;
    RENEW = "renew.lua", writes: true;
    DUE = "due.lua", writes: false;
    EXPIRE = "expire.lua", writes: true;
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
