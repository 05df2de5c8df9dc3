//! What a caller gets on a route, in plain sentences, derived from the policy that the gateway
//! follows.

use hapax::core::outcome::{Class, classify};
use hapax::core::policy::KeySource;
use hapax::{KeyRule, Mode, Policy};
use http::Method;

use crate::config::text::{spelled, spelled_size};
use crate::config::{Config, Limits, PrincipalSource, PrincipalSources, Route};

/// Situations, and what happens in each.
pub(super) fn describe(
    route: &Route,
    method: &Method,
    config: &Config,
) -> Vec<(&'static str, String)> {
    let policy = &route.policy;
    if policy.key == KeyRule::Off {
        return vec![
            (
                "every request",
                "passes as it is: key = \"off\" ignores keys here.".to_owned(),
            ),
            unguarded(config),
        ];
    }
    if !policy.guards(method.as_str()) {
        let guarded = policy.methods.join(" and ");
        let sentence = format!(
            "passes as it is: {method} is not guarded here, {guarded} are. Name it in `method` of a route to guard it."
        );
        return vec![("every request", sentence), unguarded(config)];
    }
    if policy.shadow {
        return vec![(
            "every request",
            "passes as it is, because this route only watches: what would have been replayed or refused is counted, nothing is."
                .to_owned(),
        )];
    }
    let mut sentences = vec![
        ("whose key", principal(config.principal_of(route))),
        ("without a key", without_key(policy)),
        ("first", first(policy)),
    ];
    sentences.extend(velocity(policy).map(|sentence| ("many keys", sentence)));
    sentences.extend([
        ("repeat, running", running(policy)),
        ("repeat, done", done(policy)),
        (
            "other request",
            "the same key with another request gets 422 key-reused, whatever became of the first."
                .to_owned(),
        ),
        ("lost attempt", lost(route)),
        ("statuses", statuses(policy)),
    ]);
    sentences.extend(by_mode(policy.mode).map(|sentence| ("the service", sentence.to_owned())));
    sentences.push(("refused caller", refused_caller(config)));
    sentences.push(("store full", store_full(config)));
    sentences.push(("store away", store_away(policy)));
    sentences.push(("its body", body(policy, config)));
    if policy.key != KeyRule::Required {
        sentences.push(unguarded(config));
    }
    sentences
}

/// Where a body is buffered, and how much space there is.
fn body(policy: &Policy, config: &Config) -> String {
    let Limits {
        buffered_memory_bytes_max,
        buffered_disk_bytes_max,
        ..
    } = config.limits;
    let directory = config
        .spill_directory
        .clone()
        .unwrap_or_else(std::env::temp_dir);
    format!(
        "is buffered in memory up to {} (body_memory_bytes_max), else in a file in {} up to {} (body_bytes_max), over it 413. For all bodies there is room for {} in memory \
         and {} in files, for those of one client address {} and {} (limits.buffered_…): over it 503 buffer-full, and nothing is begun.",
        spelled_size(policy.body_memory_bytes_max as u64),
        directory.display(),
        spelled_size(policy.body_bytes_max),
        spelled_size(buffered_memory_bytes_max),
        spelled_size(buffered_disk_bytes_max),
        spelled_size(config.limits.memory_share()),
        spelled_size(config.limits.disk_share()),
    )
}

/// How many connections to the upstream unguarded requests may use.
fn unguarded(config: &Config) -> (&'static str, String) {
    let upstream = &config.upstream;
    let sentence = format!(
        "use at most {} of {} connections to the service, {} from one client address, and {} of them as tunnels, which end after {} without a byte: over it 503 upstream-busy.",
        upstream.unguarded_max(),
        upstream.connections_max,
        upstream.unguarded_per_peer(),
        upstream.tunnels(),
        spelled(config.timeouts.tunnel_idle),
    );
    ("unguarded", sentence)
}

fn principal(sources: &PrincipalSources) -> String {
    match sources.first() {
        PrincipalSource::None => {
            "all callers are one (principal = \"none\"): whoever knows a key gets its answer."
                .to_owned()
        }
        PrincipalSource::Digest(field) => format!(
            "a key belongs to who is asking ({sources}): nobody else finds it. Without {field} a request is anonymous if none of \
             its fields may identify anybody, else it gets 400 principal-missing."
        ),
        PrincipalSource::Cookie(name) => format!(
            "a key belongs to who is asking ({sources}): nobody else finds it. Without the cookie {name} a request is anonymous if it has \
             no cookies and none of its fields may identify anybody, else it gets 400 principal-missing."
        ),
        _ => format!("a key belongs to who is asking ({sources}): nobody else finds it."),
    }
}

/// Where the key is.
fn place(policy: &Policy) -> String {
    match &policy.key_source {
        KeySource::Field => format!("in the field {}", policy.key_field),
        KeySource::Body(pointer) => format!("in the JSON body at {pointer}"),
        KeySource::Derived(parts) => {
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            format!("derived from {}", parts.join(", "))
        }
    }
}

fn without_key(policy: &Policy) -> String {
    match (policy.key, &policy.key_source) {
        (KeyRule::Required, KeySource::Derived(_)) => {
            format!(
                "the key is {}: a request that lacks one of these gets 400 key-missing.",
                place(policy)
            )
        }
        (KeyRule::Required, _) => format!(
            "the key is {}: a request without one gets 400 key-missing.",
            place(policy)
        ),
        (_, KeySource::Derived(_)) => format!(
            "the key is {}: a request that lacks one of these passes unguarded.",
            place(policy)
        ),
        _ => format!(
            "the key is {}: a request without one passes unguarded.",
            place(policy)
        ),
    }
}

fn first(policy: &Policy) -> String {
    let kept = match policy.keep_answers {
        true => format!(
            "its answer is kept (up to {}) before the caller gets it",
            spelled_size(policy.answer_bytes_max as u64)
        ),
        false => "that it is done is noted before the caller gets its answer, which is not kept"
            .to_owned(),
    };
    format!("the key is claimed on the store, the request is sent once, and {kept}.")
}

fn velocity(policy: &Policy) -> Option<String> {
    let rules: Vec<String> = policy
        .velocity
        .iter()
        .map(|rule| format!("{} in {} by {}", rule.keys, spelled(rule.per), rule.by))
        .collect();
    (!rules.is_empty()).then(|| {
        format!(
            "over {} a new key gets 429 too-many-keys; replays are free.",
            rules.join(", or over ")
        )
    })
}

fn refused_caller(config: &Config) -> String {
    let max = config.limits.refused_records_max;
    format!(
        "a key of which nothing came but 401 or 403 is kept for 10m; over {max} of them, new keys of unknown callers whose client made \
         many get 429 too-many-keys."
    )
}

fn store_full(config: &Config) -> String {
    let max = config.limits.records_max;
    format!(
        "from {} records on, a new key of a caller without records gets 429 quota-reached, from {max} on every new key; replays are free.",
        max - max / 10
    )
}

fn running(policy: &Policy) -> String {
    let longest = spelled(policy.wait_max);
    match policy.wait.is_zero() {
        true => format!(
            "409 in-flight with Retry-After; with `Prefer: wait` it waits up to {longest} for the answer."
        ),
        false => {
            format!(
                "waits {} for the answer (with `Prefer: wait` up to {longest}), then 409 in-flight.",
                spelled(policy.wait)
            )
        }
    }
}

fn done(policy: &Policy) -> String {
    let retention = spelled(policy.retention);
    let then = match policy.tombstone.is_zero() {
        true => "then the key is new again".to_owned(),
        false => format!(
            "then 410 key-expired for {}, then the key is new again",
            spelled(policy.tombstone)
        ),
    };
    match policy.keep_answers {
        true => format!(
            "the kept answer again for {retention}, with Idempotent-Replayed: true; {then}."
        ),
        false => format!("409 answer-not-kept for {retention}; {then}."),
    }
}

fn lost(Route { policy, probe, .. }: &Route) -> String {
    let probe = probe.as_ref();
    let when = format!(
        "cut off, timed out, or not renewed for {}, or running for over {}",
        spelled(policy.lease),
        spelled(policy.longest_attempt)
    );
    let again = format!("up to {} attempts in all", policy.attempts_max);
    match policy.mode {
        Mode::Rerun => format!("{when}: the next repeat runs it again, {again}."),
        Mode::Transaction => format!(
            "{when}: the next repeat runs it again, {again}, because what was not completed in its transaction was rolled back; \
             the lost one can commit no more."
        ),
        Mode::Fenced => format!(
            "{when}: the next repeat is sent again with a higher fence, {again}; the service answers what it has, or refuses the lower fence."
        ),
        Mode::Probe => format!(
            "{when}: the next repeat has the service asked at {} first. Done: its answer is kept. Barred: it runs again, {again}. \
             Anything else: 409 outcome-unknown, and the one after that asks again.",
            probe.map_or("its probe", |path| path.path())
        ),
        _ => format!(
            "{when}: 409 outcome-unknown, and nothing runs again until its answer comes late or somebody settles it."
        ),
    }
}

fn statuses(policy: &Policy) -> String {
    let having = |class| spans((200..600).filter(|status| classify(*status, policy) == class));
    format!(
        "{} release the key for another attempt; {} leave it unknown; all others are kept. The service can say better: \
         Hapax-Outcome: none with a 4xx or 5xx releases the key, Hapax-Outcome: done with a 5xx keeps the answer.",
        or_none(&having(Class::Release)),
        or_none(&having(Class::Unknown))
    )
}

/// What the service must do for this mode.
fn by_mode(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Transaction => Some(
            "runs hapax.complete in the transaction of its effect, and that answer is the one that counts. A 2xx or 3xx without it is \
             502 not-joined, held as unknown; a 4xx without it is kept.",
        ),
        Mode::Fenced | Mode::Probe => Some(
            "answers with `Hapax-Refused: fence` where it has seen a higher fence: that is never kept, and the key is free.",
        ),
        _ => None,
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

/// Numbers, with consecutive ones combined, as in `401, 403, 504 to 599`.
fn spans(numbers: impl Iterator<Item = u16>) -> String {
    let mut spans: Vec<(u16, u16)> = Vec::new();
    for number in numbers {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => spans.push((number, number)),
        }
    }
    let spelled = |(first, last): &(u16, u16)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first} to {last}")
        }
    };
    spans.iter().map(spelled).collect::<Vec<_>>().join(", ")
}

fn store_away(policy: &Policy) -> String {
    match policy.fail_open {
        true => "requests pass unguarded, because a repeat is declared harmless here (fail_open)."
            .to_owned(),
        false => format!(
            "503 store-unavailable within {}, and nothing is sent.",
            spelled(policy.store_timeout)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_follow_each_other_stand_together() {
        assert_eq!(
            spans([401, 403, 504, 505, 506].into_iter()),
            "401, 403, 504 to 506"
        );
        assert_eq!(spans(std::iter::empty()), "");
    }
}
