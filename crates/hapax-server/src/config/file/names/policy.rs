//! What a route may say, and `[defaults]` for all of them.

use super::Names;
use super::kind::Fallback::{Is, Nothing, Required, Words};
use super::kind::{BYTES, DURATION, Kind, Setting, TIMEOUT, count};

const SWITCH: Kind = Kind::Switch;

pub(crate) const POLICY: &[Setting] = &[
    // What is promised.
    Setting {
        name: "mode",
        kind: Kind::Choice(&["hold", "transaction", "fenced", "probe", "rerun"]),
        fallback: Is("hold"),
        example: "rerun",
        means: "what is promised, and done after a lost attempt; see [modes.md](modes.md). `hold`: the key is held as unknown, and nothing runs again. \
                `transaction`: the service completes the record in the Postgres transaction of its effect, so that another attempt is safe. \
                `fenced`: the service keeps fence, mark and answer for each operation and refuses lower fences; another attempt. \
                `probe`: the service is asked first, at `probe`. `rerun`: another attempt; only if the service is itself idempotent",
    },
    Setting {
        name: "probe",
        kind: Kind::Text,
        fallback: Nothing,
        example: "/hapax/probe",
        means: "the path of the service that says what became of a lost attempt, and bars it. Needs `mode = \"probe\"`, which needs it",
    },
    switch(
        "shadow",
        "only watch: count what would have been replayed or refused, and let everything through",
    ),
    switch(
        "naturally_idempotent",
        "you declare that a repeated effect is harmless here, with or without a record",
    ),
    switch(
        "fail_open",
        "let requests through unguarded while the store is unreachable. Needs `naturally_idempotent`",
    ),
    // The key.
    Setting {
        name: "key",
        kind: Kind::Choice(&["required", "optional", "off"]),
        fallback: Is("optional"),
        example: "required",
        means: "`required`: a request without a key is refused. `optional`: it passes unguarded. `off`: keys are ignored",
    },
    Setting {
        name: "key_field",
        kind: Kind::Text,
        fallback: Is("idempotency-key"),
        example: "x-idempotency-key",
        means: "the header field that carries the key, from the caller and to the service",
    },
    Setting {
        name: "key_from",
        kind: Kind::Text,
        fallback: Is("header"),
        example: "body:/client_token",
        means: "`header`: the key is in `key_field`. `body:/POINTER`: it is text or a whole number in the JSON body, at this JSON Pointer. \
                `derived:PART,PART…`: there is none, and requests that agree in all parts (`header:NAME`, `body:/POINTER`, `principal`) are the same; \
                for a short `retention`",
    },
    switch("strict_key", "take only the quoted form of a key"),
    Setting {
        name: "key_bits_min",
        kind: count(0, 256),
        fallback: Is("0"),
        example: "64",
        means: "refuse keys that can be guessed more easily than so many bits, as far as their spelling tells",
    },
    // When two requests are the same.
    Setting {
        name: "fingerprint",
        kind: Kind::Choice(&["auto", "raw", "json", "multipart"]),
        fallback: Is("auto"),
        example: "raw",
        means: "how bodies are compared. `auto`: as their content type says, JSON and multipart as below and anything else byte for byte. `raw`: byte for byte. `json`: spacing, member order and escapes do not count. `multipart`: the boundary does not count",
    },
    Setting {
        name: "fingerprint_omit",
        kind: Kind::TextOrList,
        fallback: Nothing,
        example: "[\"/sent_at\"]",
        means: "JSON Pointers of values that do not count, `*` for any one name or index. Needs `fingerprint = \"json\"`",
    },
    Setting {
        name: "fingerprint_only",
        kind: Kind::TextOrList,
        fallback: Nothing,
        example: "[\"/amount\", \"/currency\"]",
        means: "JSON Pointers of the values that alone count. Needs `fingerprint = \"json\"`",
    },
    Setting {
        name: "fingerprint_headers",
        kind: Kind::TextOrList,
        fallback: Nothing,
        example: "[\"x-api-version\"]",
        means: "header fields that count too, besides `content-type` and `content-encoding`",
    },
    // How long.
    duration(
        "retention",
        Words("`24h`; `5m` where the key is derived"),
        "48h",
        "how long a finished key replays",
    ),
    duration(
        "tombstone",
        Words("`7d`; `0s` where the key is derived"),
        "1d",
        "how long it says 410 `key-expired` after that",
    ),
    duration(
        "lease",
        Is("10s"),
        "5s",
        "how long an attempt may go without renewing before it counts as lost. Not longer than `retention`",
    ),
    duration(
        "longest_attempt",
        Is("5m"),
        "1m",
        "how long an attempt may run before it counts as lost. Longer than `connect` in `[timeouts]`",
    ),
    duration(
        "wait",
        Is("0s"),
        "2s",
        "how long a repeat waits for a running attempt when it does not say",
    ),
    duration(
        "wait_max",
        Is("30s"),
        "1m",
        "how long it may wait at the most, with `Prefer: wait`",
    ),
    Setting {
        name: "store_timeout",
        kind: TIMEOUT,
        fallback: Is("2s"),
        example: "500ms",
        means: "how long one step of a request waits for the store, before it is 503 `store-unavailable`",
    },
    Setting {
        name: "attempts_max",
        kind: count(1, 1_000_000),
        fallback: Is("100"),
        example: "5",
        means: "attempts that one key may begin",
    },
    // What an answer means, and what is kept of it.
    Setting {
        name: "classes",
        kind: Kind::Classes(&["keep", "release", "unknown"]),
        fallback: Nothing,
        example: "{ \"404\" = \"release\", \"5xx\" = \"unknown\" }",
        means: "what a status means here, where it differs: `keep` and replay it, `release` the key for another attempt, or `unknown`. \
                A status (`404`) goes before its hundred (`4xx`)",
    },
    Setting {
        name: "keep_answers",
        kind: SWITCH,
        fallback: Is("true"),
        example: "false",
        means: "keep answers for replay; without, a repeat gets 409 `answer-not-kept`",
    },
    Setting {
        name: "answer_bytes_max",
        kind: BYTES,
        fallback: Is("1MiB"),
        example: "64KiB",
        means: "the largest answer that is kept; a larger one is sent, but not replayed",
    },
    Setting {
        name: "answer_version",
        kind: Kind::Text,
        fallback: Nothing,
        example: "2025-01",
        means: "what shape answers have now. One that was kept under another version is not replayed: a repeat gets 409 `answer-not-kept`, and nothing runs again",
    },
    switch("replay_cookies", "replay `Set-Cookie` to later callers too"),
    switch(
        "keep_close_delimited",
        "keep answers that have neither `Content-Length` nor chunks, though one that broke off looks the same. For services that can do nothing else",
    ),
    // How much.
    Setting {
        name: "body_bytes_max",
        kind: BYTES,
        fallback: Is("64MiB"),
        example: "1MiB",
        means: "the largest request body; a larger one gets 413",
    },
    Setting {
        name: "body_memory_bytes_max",
        kind: BYTES,
        fallback: Words("`1MiB`, or `body_bytes_max` if that is less"),
        example: "64KiB",
        means: "how much of a request body is held in memory before the rest is spilled to a file",
    },
    Setting {
        name: "velocity",
        kind: Kind::Sections(&VELOCITY),
        fallback: Is("[]"),
        example: "[{ by = \"principal\", keys = 100, per = \"1m\" }]",
        means: "how many new keys there may be in a time; over it a new key gets 429 `too-many-keys`. Replays are free. Each node counts for itself",
    },
];

/// One entry of `velocity`.
pub(crate) static VELOCITY: Names = Names {
    section: "velocity",
    header: "velocity",
    about: "",
    groups: &[&[
        Setting {
            name: "by",
            kind: Kind::Text,
            fallback: Required,
            example: "header:x-merchant",
            means: "what the keys have in common: `principal`, `header:NAME` or `body:/POINTER`",
        },
        Setting {
            name: "keys",
            kind: count(1, 1_000_000_000),
            fallback: Required,
            example: "100",
            means: "so many new keys",
        },
        Setting {
            name: "per",
            kind: TIMEOUT,
            fallback: Required,
            example: "1m",
            means: "in this time",
        },
    ]],
};

const fn switch(name: &'static str, means: &'static str) -> Setting {
    Setting {
        name,
        kind: SWITCH,
        fallback: Is("false"),
        example: "true",
        means,
    }
}

const fn duration(
    name: &'static str,
    fallback: super::Fallback,
    example: &'static str,
    means: &'static str,
) -> Setting {
    Setting {
        name,
        kind: DURATION,
        fallback,
        example,
        means,
    }
}
