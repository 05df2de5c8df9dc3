//! The rejections: every answer that the layer gives by itself, in one table. Requests that the
//! gateway refuses before they reach the layer are in its `stack.rs`; input that is not an HTTP
//! request is in its `wire/`.
//!
//! To add one: a variant here, its row in [`Rejection::row`] and its sentence in
//! [`Rejection::detail`]; a section in `docs/problems.md` and a row in `docs/http.md`; a case in
//! the library's test `rejections` and in the server's test `contract`, whose snapshots
//! `HAPAX_BLESS=1` writes. Then check the matches with a catch-all arm: `members` in the
//! middleware's `problem.rs`, `is_duplicate` in the server's telemetry, `cause` in its access log.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::field;
use crate::key::KeyError;
use crate::policy::{KEY_FIELD, Part, Policy};
use crate::record::Last;
use crate::time::Timestamp;

/// An answer that Hapax gives by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The route requires a key and the request had none.
    KeyMissing,
    /// The route takes its key from this part of the request, and the part is missing.
    KeyPartMissing(Part),
    /// The key field could not be read as one key.
    KeyMalformed(KeyError),
    /// The key is in the query string, where logs and proxies keep it.
    KeyInUrl {
        /// The name of the query parameter.
        parameter: Arc<str>,
    },
    /// A new key is easy to guess, on a route that refuses such keys.
    KeyGuessable {
        /// The fewest bits a key must have.
        bits_min: u32,
    },
    /// The route takes only keys that this server issued, and this is not one.
    TokenInvalid,
    /// The principal could not be established.
    PrincipalMissing {
        /// The fault of the credential as a sentence: `The header authorization is missing.`
        flaw: Option<Arc<str>>,
        /// A part of the request that may identify its sender, where no setting says how to read
        /// it.
        unread: Option<Arc<Unread>>,
    },
    /// The service did not say who is asking: a mistake in how it was put together, which its
    /// caller cannot mend.
    PrincipalNotSet,
    /// The caller's credentials were checked and are not valid.
    CredentialsInvalid(Flaw),
    /// The caller's credentials cannot be checked at the moment.
    PrincipalUnavailable,
    /// A gRPC call with a key, or on a route that needs one. Whether it succeeded is in its
    /// trailers, which Hapax does not read.
    GrpcNotGuarded {
        /// The field that carries keys on this route.
        key_field: Arc<str>,
    },
    /// The request body ended in an error.
    BodyUnreadable,
    /// The request body is over the limit.
    BodyTooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// There is no room to buffer the request body: see `buffered_memory_bytes_max` in
    /// `hapax::Limits`. Nothing was begun.
    BufferFull,
    /// An attempt is running, or has just ended as retryable.
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The outcome of an earlier attempt is not known.
    OutcomeUnknown,
    /// The effect is done, but its answer was not kept.
    AnswerNotKept {
        /// The status of the answer.
        status: Option<u16>,
        /// When the attempt ended.
        at: Timestamp,
    },
    /// The same key came with a different request.
    KeyReused,
    /// The record is past its retention, or the issued key is past its life.
    KeyExpired {
        /// The last state of the record; `None` if no attempt ever began.
        last: Option<Last>,
        /// An operator forgot the record before its time was over.
        is_forgotten: bool,
    },
    /// The key has used up its attempts.
    AttemptsExhausted,
    /// The caller's own deadline has passed, and nothing was begun.
    DeadlinePassed,
    /// This node runs as many operations as it may.
    TooManyKeys,
    /// The route's limit on new keys in a time is reached; no attempt was begun.
    KeysTooFast {
        /// When the next new key fits the limit.
        retry_after: Duration,
    },
    /// The principal has reached its quota of records or of bytes of kept answers.
    QuotaReached,
    /// The store has reached its limit on records, or its limit for principals without records.
    StoreFull,
    /// The upstream was never reached, so nothing happened. For the first caller.
    UpstreamUnreachable,
    /// The upstream was reached and then lost. For the first caller.
    Lost {
        /// The upstream did not answer in time; otherwise its answer broke off.
        timed_out: bool,
        /// Whether the route's mode makes a repeat safe.
        repeat: bool,
    },
    /// The upstream answers that the work is done, but did not complete the record in its
    /// transaction. For the first caller.
    NotJoined,
    /// The store did not answer in time.
    StoreUnavailable,
    /// This node is shutting down and begins no new attempts.
    Draining,
    /// `Idempotency-Deadline` could not be read.
    DeadlineMalformed,
    /// A stored answer does not match its checksum.
    AnswerCorrupt,
}

impl Rejection {
    /// Asks the caller to come back. The wait grows with the time the attempt has been running.
    pub fn in_flight(running_for: Duration) -> Rejection {
        Rejection::InFlight {
            retry_after: running_for.clamp(Duration::from_millis(100), Duration::from_secs(5)),
        }
    }

    /// The rejection that the first caller gets after its attempt was lost.
    pub fn lost(policy: &Policy, timed_out: bool) -> Rejection {
        Rejection::Lost {
            timed_out,
            repeat: policy.mode.repeats_lost(),
        }
    }
}

/// What a caller learns about invalid credentials: only what its own clock can tell it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// They have expired.
    Expired,
    /// They are not yet valid.
    NotYetValid,
    /// Anything else.
    Other,
}

/// The advice to the caller about repeating the request with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A repeat would not help, or a person has to decide.
    No,
    /// Repeat after this long.
    After(Duration),
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The HTTP status.
    pub status: u16,
    /// The last part of the problem type.
    pub slug: &'static str,
    /// The problem's title.
    pub title: &'static str,
    /// The advice about a repeat.
    pub retry: Retry,
}

/// The default delay before a repeat.
const SOON: Retry = Retry::After(Duration::from_secs(1));

impl Rejection {
    /// The row of this rejection in the table.
    pub fn row(&self) -> Row {
        use Rejection as R;
        let row = |status, slug, title, retry| Row {
            status,
            slug,
            title,
            retry,
        };
        match self {
            R::KeyMissing | R::KeyPartMissing(_) => row(
                400,
                "key-missing",
                "This operation requires an idempotency key",
                Retry::No,
            ),
            R::KeyMalformed(_) => row(
                400,
                "key-malformed",
                "The idempotency key is malformed",
                Retry::No,
            ),
            R::KeyInUrl { .. } => row(
                400,
                "key-in-url",
                "An idempotency key does not belong in the URL",
                Retry::No,
            ),
            R::KeyGuessable { .. } => row(
                400,
                "key-guessable",
                "The idempotency key can be guessed",
                Retry::No,
            ),
            R::TokenInvalid => row(
                400,
                "token-invalid",
                "The idempotency key was not issued by this server",
                Retry::No,
            ),
            R::PrincipalMissing { .. } => row(
                400,
                "principal-missing",
                "The request does not say who is asking",
                Retry::No,
            ),
            R::PrincipalNotSet => row(
                500,
                "principal-not-set",
                "The service does not know who is asking",
                Retry::No,
            ),
            R::CredentialsInvalid(_) => row(
                401,
                "credentials-invalid",
                "The credentials are not valid",
                Retry::No,
            ),
            R::PrincipalUnavailable => row(
                503,
                "principal-unavailable",
                "Who is asking could not be checked",
                SOON,
            ),
            R::GrpcNotGuarded { .. } => row(
                415,
                "grpc-not-guarded",
                "gRPC calls cannot carry an idempotency key yet",
                Retry::No,
            ),
            R::BodyUnreadable => row(
                400,
                "body-unreadable",
                "The request body could not be read",
                Retry::No,
            ),
            R::InFlight { retry_after } => row(
                409,
                "in-flight",
                "The same request is still being worked on",
                Retry::After(*retry_after),
            ),
            R::OutcomeUnknown => row(
                409,
                "outcome-unknown",
                "The outcome of this request is not known",
                Retry::No,
            ),
            R::AnswerNotKept { .. } => row(
                409,
                "answer-not-kept",
                "The request was answered, but the answer was not kept",
                Retry::No,
            ),
            R::AttemptsExhausted => row(
                409,
                "attempts-exhausted",
                "This key has been tried as often as it may be",
                Retry::No,
            ),
            R::KeyExpired { .. } => row(
                410,
                "key-expired",
                "The idempotency key has expired",
                Retry::No,
            ),
            R::DeadlinePassed => row(
                412,
                "deadline-passed",
                "The caller's deadline passed before the work began",
                Retry::No,
            ),
            R::BodyTooLarge { .. } => row(
                413,
                "body-too-large",
                "The request body is too large",
                Retry::No,
            ),
            R::BufferFull => row(
                503,
                "buffer-full",
                "There is no room for the request body at the moment",
                SOON,
            ),
            R::KeyReused => row(
                422,
                "key-reused",
                "The idempotency key was used for another request",
                Retry::No,
            ),
            R::TooManyKeys => row(
                429,
                "too-many-keys",
                "Too many operations are under way",
                SOON,
            ),
            R::KeysTooFast { retry_after } => row(
                429,
                "too-many-keys",
                "Too many new keys in a short time",
                Retry::After(*retry_after),
            ),
            // No retry time: there is room again when older records have expired, which may take a
            // day.
            R::QuotaReached => row(
                429,
                "quota-reached",
                "As much is remembered for this caller as may be",
                Retry::No,
            ),
            R::StoreFull => row(
                429,
                "quota-reached",
                "As many requests are remembered as may be",
                Retry::After(Duration::from_secs(60)),
            ),
            R::AnswerCorrupt => row(
                500,
                "answer-corrupt",
                "The stored answer is damaged",
                Retry::No,
            ),
            R::UpstreamUnreachable => row(
                502,
                "upstream-unreachable",
                "The service was not reached; nothing happened",
                SOON,
            ),
            R::Lost { timed_out, repeat } => {
                let status = if *timed_out { 504 } else { 502 };
                let retry = if *repeat { SOON } else { Retry::No };
                row(
                    status,
                    "outcome-unknown",
                    "The outcome of this request is not known",
                    retry,
                )
            }
            R::NotJoined => row(
                502,
                "not-joined",
                "The service did not complete this request in its transaction",
                Retry::No,
            ),
            R::Draining => row(503, "draining", "This node is shutting down", SOON),
            R::DeadlineMalformed => row(
                400,
                "deadline-malformed",
                "The deadline is malformed",
                Retry::No,
            ),
            R::StoreUnavailable => row(
                503,
                "store-unavailable",
                "The record of this request could not be reached",
                SOON,
            ),
        }
    }

    /// A text for people about this case: the fault, the header, setting or limit it concerns, and
    /// what to do. It reveals nothing of the record or the store, and of the request at most the
    /// name of a field or of a query parameter.
    ///
    /// `key_field` is the field that carries keys on this route.
    pub fn detail(&self, key_field: &str) -> String {
        use Rejection as R;
        let key = field::in_capitals(key_field);
        match self {
            R::KeyMissing => format!("Send {key} with a unique value for each operation, and the same value with every retry of it."),
            R::KeyPartMissing(part) => {
                format!("The key of this operation is taken from {}, which is missing. Send it, the same with every retry.", in_words(part))
            }
            R::KeyMalformed(error) if error.is_of_body() => format!("The key cannot be read: {error}."),
            R::KeyMalformed(error) => format!("{key} cannot be read: {error}."),
            R::KeyInUrl { parameter } => {
                format!("Remove the query parameter {parameter} and send the key in {key}: URLs end up in logs.")
            }
            R::KeyGuessable { bits_min } => format!(
                "{key} must hold at least {bits_min} random bits, so that nobody can guess it. Use a random UUID (version 4), for example. Nothing was begun."
            ),
            R::TokenInvalid => {
                format!("{key} must hold a key that this server issued to the same caller. Ask this server for one. Nothing was begun.")
            }
            R::PrincipalMissing { unread: Some(name), .. } => unread_detail(name),
            R::PrincipalMissing { flaw: Some(flaw), .. } => format!("{flaw} Nothing was begun. Send the credential this API takes."),
            R::PrincipalMissing { .. } => "Nothing was begun. Send the credential this API takes.".into(),
            R::PrincipalNotSet => {
                "This service was put together in the wrong order, so it cannot tell its callers apart. Nothing was begun. Its log says what is missing.".into()
            }
            R::CredentialsInvalid(Flaw::Expired) => {
                "The credentials have expired. Repeat the same request with the same key and fresh credentials of the same caller.".into()
            }
            R::CredentialsInvalid(Flaw::NotYetValid) => {
                "The credentials are not valid yet. Repeat the same request with the same key when they are.".into()
            }
            R::CredentialsInvalid(Flaw::Other) => {
                "The credentials were checked and are not valid for this service. Nothing was begun by this request.".into()
            }
            R::PrincipalUnavailable => {
                "The service that checks credentials cannot be reached. Nothing was begun by this request. Repeat it with the same key later.".into()
            }
            R::GrpcNotGuarded { key_field } => format!(
                "Whether a gRPC call succeeded is in its trailers, which are not read here, so a failure would be kept as a success. Nothing was \
                 begun. Send the call without {}, to a path that does not require a key.",
                field::in_capitals(key_field)
            ),
            R::BodyUnreadable => "The request body broke off before it was complete. Nothing was begun.".into(),
            R::BodyTooLarge { bytes_max } => format!("The request body may have {bytes_max} bytes here (body_bytes_max). Nothing was begun."),
            R::BufferFull => {
                "Too many request bodies are being held at the moment (buffered_memory_bytes_max and its siblings). Nothing was begun. Repeat the same request with the same key after the time in Retry-After.".into()
            }
            R::InFlight { .. } => {
                "An earlier request with this key is still running. Repeat the same request with the same key after the time in Retry-After, or send Prefer: wait=10 to wait for its answer.".into()
            }
            R::OutcomeUnknown => {
                "An earlier attempt may have had its effect: it was lost on the way, or the service answered with an error that does not say. Do not send the request again under a new key; find out what happened first.".into()
            }
            R::AnswerNotKept { status: Some(status), .. } => format!(
                "The request was answered with {status}, and that answer was not kept. Look up its result; do not send the request again under a new key."
            ),
            R::AnswerNotKept { status: None, .. } => {
                "The request is done, and there is no stored answer to it. Look up its result; do not send the request again under a new key.".into()
            }
            R::KeyReused => format!(
                "The value of {key} was used before for a different request: the query, the content type, the body or another part that counts is not the same. Use a new value for a new request, or repeat the first request unchanged."
            ),
            R::KeyExpired { last, is_forgotten } => expired_detail(*last, *is_forgotten, &key),
            R::AttemptsExhausted => {
                "The key has been tried as often as attempts_max allows. The last attempt did not count; find out whether an earlier one was lost before you use a new key.".into()
            }
            R::DeadlinePassed => "The time in Idempotency-Deadline has passed. Nothing was begun.".into(),
            R::TooManyKeys => {
                "This node is working on as many operations as it may (attempts_in_flight_max). Nothing was begun. Repeat the same request with the same key after the time in Retry-After.".into()
            }
            R::KeysTooFast { .. } => {
                "More new keys arrived in a short time than velocity allows. Nothing was begun. Repeat the same request with the same key after the time in Retry-After; repeats of earlier requests are not held up.".into()
            }
            R::QuotaReached => {
                "This caller has as many records or kept bytes as one may have (records_per_principal_max, bytes_per_principal_max). Nothing was begun. Repeats of earlier requests are not held up; there is room for a new one when older ones have expired.".into()
            }
            R::StoreFull => {
                "The store holds as many records as it may (records_max). Nothing was begun. Repeats of earlier requests are not held up; repeat this one with the same key when older ones have expired.".into()
            }
            R::UpstreamUnreachable => "The request was not sent. Repeat it with the same key after the time in Retry-After.".into(),
            R::Lost { repeat: true, .. } => {
                "The service did not give a complete answer. Repeating the request with the same key is safe.".into()
            }
            R::Lost { repeat: false, timed_out: true } => {
                "The service did not answer in time, and may have acted. Do not send the request again under a new key; find out what happened first.".into()
            }
            R::Lost { repeat: false, timed_out: false } => {
                "The connection to the service broke before its answer was complete, and it may have acted. Do not send the request again under a new key; find out what happened first.".into()
            }
            R::NotJoined => {
                "The service answered as if it were done, but did not complete the record in its transaction. Do not send the request again under a new key; find out what happened first.".into()
            }
            R::StoreUnavailable => {
                "The store did not answer within store_timeout. Repeat the same request with the same key later; do not send it under a new one.".into()
            }
            R::Draining => "This node takes no new requests. Nothing was begun. Repeat the same request with the same key: another node will answer.".into(),
            R::DeadlineMalformed => "Idempotency-Deadline must be a structured-field date, such as @1893456000, and sent once.".into(),
            R::AnswerCorrupt => {
                "The request was answered once, but its stored answer is damaged. Do not send the request again under a new key.".into()
            }
        }
    }
}

/// The detail, for a key in its usual field.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail(KEY_FIELD))
    }
}

impl std::error::Error for Rejection {}

/// The part in words, for a person who looks for it in a request.
fn in_words(part: &Part) -> String {
    match part {
        Part::Principal => "who is asking".to_owned(),
        Part::Header(name) => format!("the header {name}"),
        Part::Body(pointer) => format!("{pointer} in the JSON body"),
    }
}

/// A part of a request that may identify its sender, where no setting says how to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Where the caller's credential was looked for, in words: `header authorization`, `cookie
    /// session`.
    pub looked_at: Arc<str>,
    /// The name of a field, as in `x-user`, or `query:` and the name of a query parameter.
    pub name: Arc<str>,
    /// The principal source that reads it, as in `digest:x-user`, if there is one.
    pub principal: Option<Arc<str>>,
    /// Whether the setting `anonymous_fields` can name it.
    pub may_be_anonymous: bool,
}

/// The longest name that is printed whole, in bytes.
const NAME_BYTES_MAX: usize = 64;

fn unread_detail(unread: &Unread) -> String {
    let name = shown(&unread.name);
    let what = match name.strip_prefix("query:") {
        Some(parameter) => format!("query parameter {parameter}"),
        None => format!("header {name}"),
    };
    let source = unread
        .principal
        .as_deref()
        .map_or("another source".to_owned(), |source| {
            format!("principal = \"{}\"", shown(source))
        });
    let or_anonymous = match unread.may_be_anonymous {
        true => format!(", or anonymous_fields = [\"{name}\"] if it identifies nobody"),
        false => String::new(),
    };
    format!(
        "Callers are known here by the {}, which this request lacks: send it. The request has the {what}, which may say who is asking and is not read. \
         If callers of this route are known by that instead, its operator sets {source} for the route{or_anonymous}.",
        shown(&unread.looked_at)
    )
}

/// A name that a caller may have made up, shortened and without control characters.
fn shown(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\') || c == ' ';
    let mut shown: String = name
        .chars()
        .take(NAME_BYTES_MAX)
        .map(|c| if is_plain(c) { c } else { '?' })
        .collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    shown
}

fn expired_detail(last: Option<Last>, is_forgotten: bool, key: &str) -> String {
    let what = match last {
        None => {
            return format!(
                "{key} was issued too long ago to begin anything. Nothing was begun. Ask this server for a new key."
            );
        }
        Some(Last::Completed) => {
            "The request had its effect once. Do not send it again under a new key."
        }
        Some(Last::Failed) => "The request was refused.",
        Some(Last::Retryable) => {
            "The last attempt did not count; find out whether an earlier one was lost before you use a new key."
        }
        Some(Last::Unknown) => {
            "An attempt may have had its effect. Do not send the request again under a new key; find out what happened first."
        }
    };
    match is_forgotten {
        true => format!("An operator had the record of this key erased. {what}"),
        false => {
            format!("The time in which its answer could be replayed (retention) is over. {what}")
        }
    }
}
