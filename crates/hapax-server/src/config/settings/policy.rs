//! The settings of a route, and of `[defaults]` for all routes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hapax::core::fingerprint::FingerprintPolicy;
use hapax::core::outcome::Class;
use hapax::{KeyRule, KeySource, Mode, Policy, Velocity};

use super::declare::{
    any_duration, bytes, choice, count, debug, described, settings, several, shown_text, switch,
    timeout, value,
};
use super::{Kind, Setting, Settings, Table, table};
use crate::config::file::policy::{answer_version, classes, fingerprint, key, mode, velocity};
use crate::config::text::spelled;

/// The settings that `[defaults]` and routes share.
pub(crate) const POLICY: &[Setting] = Policy::SETTINGS;

settings! {
    impl for Policy but (methods retry_dialects), otherwise Policy::default();
    // What is promised.
    /// what is promised, and done after a lost attempt; see [modes.md](modes.md). `hold`: the
    /// key is held as unknown, and nothing runs again. `transaction`: the service completes the
    /// record in the Postgres transaction of its effect, so that another attempt is safe.
    /// `fenced`: the service keeps fence, mark and answer for each operation and refuses lower
    /// fences; another attempt. `probe`: the service is asked first, at `probe`. `rerun`:
    /// another attempt; only if the service is itself idempotent
    mode: Mode = is "hold",
        choice(&["hold", "transaction", "fenced", "probe", "rerun"], mode::mode, |mode| {
            Some(mode.word().to_owned())
        }),
        "rerun";
    /// the path of the service that says what became of a lost attempt, and bars it. Needs
    /// `mode = "probe"`, which needs it
    probe = none, described(Kind::Text), "/hapax/probe";
    /// only watch: count what would have been replayed or refused, and let everything through
    shadow: bool = is "false", switch(), "true";
    /// you declare that a repeated effect is harmless here, with or without a record
    naturally_idempotent: bool = is "false", switch(), "true";
    /// let requests through unguarded while the store is unreachable. Needs
    /// `naturally_idempotent`
    fail_open: bool = is "false", switch(), "true";
    // The key.
    /// `required`: a request without a key is refused. `optional`: it passes unguarded. `off`:
    /// keys are ignored
    key: KeyRule = is "optional",
        choice(&["required", "optional", "off"], key::rule, |key| Some(key.word().to_owned())),
        "required";
    /// the header field that carries the key, from the caller and to the service
    key_field: Arc<str> = is "idempotency-key",
        shown_text(key::field, |field| Some(field.to_string())), "x-idempotency-key";
    /// `header`: the key is in `key_field`. `body:/POINTER`: it is text or a whole number in the
    /// JSON body, at this JSON Pointer. `derived:PART,PART…`: there is none, and requests that
    /// agree in all parts (`header:NAME`, `body:/POINTER`, `principal`) are the same; for a
    /// short `retention`
    key_source as key_from: KeySource = is "header", shown_text(key::source, show_source),
        "body:/client_token";
    /// take only the quoted form of a key
    strict_key: bool = is "false", switch(), "true";
    /// refuse keys that can be guessed more easily than so many bits, as far as their spelling
    /// tells
    key_bits_min: u32 = is "0", count(0, 256), "64";
    // When two requests are the same.
    /// how bodies are compared. `auto`: as their content type says, JSON and multipart as below
    /// and anything else byte for byte. `raw`: byte for byte. `json`: spacing, member order and
    /// escapes do not count. `multipart`: the boundary does not count
    fingerprint: Arc<FingerprintPolicy> = is "auto",
        several(
            Kind::Choice(&["auto", "raw", "json", "multipart"]),
            |section, _| Some(Arc::new(fingerprint::read(section))),
            debug,
        ),
        "raw";
    /// JSON Pointers of values that do not count, `*` for any one name or index. Needs
    /// `fingerprint = "json"`
    fingerprint_omit = none, described(Kind::TextOrList), "[\"/sent_at\"]";
    /// JSON Pointers of the values that alone count. Needs `fingerprint = "json"`
    fingerprint_only = none, described(Kind::TextOrList), "[\"/amount\", \"/currency\"]";
    /// header fields that count too, besides `content-type` and `content-encoding`
    fingerprint_headers = none, described(Kind::TextOrList), "[\"x-api-version\"]";
    // How long.
    /// how long a finished key replays
    retention: Duration = words "`24h`; `5m` where the key is derived", any_duration(), "48h";
    /// how long it says 410 `key-expired` after that
    tombstone: Duration = words "`7d`; `0s` where the key is derived", any_duration(), "1d";
    /// how long an attempt may go without renewing before it counts as lost. Not longer than
    /// `retention`
    lease: Duration = is "10s", any_duration(), "5s";
    /// how long an attempt may run before it counts as lost. Longer than `connect` in
    /// `[timeouts]`
    longest_attempt: Duration = is "5m", any_duration(), "1m";
    /// how long a repeat waits for a running attempt when it does not say
    wait: Duration = is "0s", any_duration(), "2s";
    /// how long it may wait at the most, with `Prefer: wait`
    wait_max: Duration = is "30s", any_duration(), "1m";
    /// how long one step of a request waits for the store, before it is 503 `store-unavailable`
    store_timeout: Duration = is "2s", timeout(), "500ms";
    /// attempts that one key may begin
    attempts_max: u32 = is "100", count(1, 1_000_000), "5";
    // What an answer means, and what is kept of it.
    /// what a status means here, where it differs: `keep` and replay it, `release` the key for
    /// another attempt, or `unknown`. A status (`404`) goes before its hundred (`4xx`)
    classes: BTreeMap<u16, Class> = none,
        value(Kind::Classes(&["keep", "release", "unknown"]), classes::read, debug),
        "{ \"404\" = \"release\", \"5xx\" = \"unknown\" }";
    /// keep answers for replay; without, a repeat gets 409 `answer-not-kept`
    keep_answers: bool = is "true", switch(), "false";
    /// the largest answer that is kept; a larger one is sent, but not replayed
    answer_bytes_max: usize = is "1MiB", bytes(), "64KiB";
    /// what shape answers have now. One that was kept under another version is not replayed: a
    /// repeat gets 409 `answer-not-kept`, and nothing runs again
    answer_version: Option<Arc<str>> = none,
        shown_text(answer_version, |version| version.as_deref().map(str::to_owned)), "2025-01";
    /// replay `Set-Cookie` to later callers too
    replay_cookies: bool = is "false", switch(), "true";
    /// keep answers that have neither `Content-Length` nor chunks, though one that broke off
    /// looks the same. For services that can do nothing else
    keep_close_delimited: bool = is "false", switch(), "true";
    // How much.
    /// the largest request body; a larger one gets 413
    body_bytes_max: u64 = is "64MiB", bytes(), "1MiB";
    /// how much of a request body is held in memory before the rest is spilled to a file
    body_memory_bytes_max: usize = words "`1MiB`, or `body_bytes_max` if that is less",
        bytes(), "64KiB";
    /// how many new keys there may be in a time; over it a new key gets 429 `too-many-keys`.
    /// Replays are free. Each node counts for itself
    velocity: Vec<Velocity> = is "[]",
        several(
            Kind::Sections(&VELOCITY),
            |section, _| Some(velocity(section)),
            |rules| Some(rules.iter().map(show_velocity).collect::<Vec<_>>().join(", ")),
        ),
        "[{ by = \"principal\", keys = 100, per = \"1m\" }]";
}

settings! {
    // Which requests a route is for.
    pub(crate) const ROUTE {
        /// what metrics, `/.well-known/idempotency` and `hapax keys list --route` call it: letters,
        /// digits, `.`, `_` and `-`
        name = words "`method` and `path`", described(Kind::Text), "charges";
        /// a method or a list of them. One that is named is guarded, `PUT` for example
        method = words "all, of which POST and PATCH are guarded", described(Kind::TextOrList),
            "POST";
        /// segments as they are, `{name}` or `*` for any one segment, and a last `**` for any rest.
        /// Compared as sent, without decoding
        path = required, described(Kind::Text), "/v1/charges/{id}";
        /// who is asking on this route, as the setting of the same name before the first section
        /// says it for all; see [principals.md](principals.md#per-route)
        principal = words "the `principal` before the first section",
            described(Kind::TextOrList), "cookie:session";
    }
}

/// One entry of `velocity`.
pub(crate) static VELOCITY: Table = table("velocity", "velocity", "", &[VELOCITY_SETTINGS]);

settings! {
    const VELOCITY_SETTINGS {
        /// what the keys have in common: `principal`, `header:NAME` or `body:/POINTER`
        by = required, described(Kind::Text), "header:x-merchant";
        /// so many new keys
        keys = required, described(Kind::Count { min: 1, max: 1_000_000_000 }), "100";
        /// in this time
        per = required, described(timeout().kind), "1m";
    }
}

fn show_source(source: &KeySource) -> Option<String> {
    Some(match source {
        KeySource::Field => "header".to_owned(),
        KeySource::Body(pointer) => format!("body:{pointer}"),
        KeySource::Derived(parts) => {
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            format!("derived:{}", parts.join(","))
        }
    })
}

fn show_velocity(Velocity { by, keys, per }: &Velocity) -> String {
    format!("{keys} in {} by {by}", spelled(*per))
}
