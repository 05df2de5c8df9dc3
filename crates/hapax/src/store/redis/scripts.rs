//! The scripts that Redis runs. Each is one atomic step: the prelude and its own text.

use std::sync::LazyLock;

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
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Script {
            text,
            digest,
            writes,
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
}
