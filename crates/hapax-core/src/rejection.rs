//! The rejections: every answer Hapax gives by itself, in one table.

use std::sync::Arc;
use std::time::Duration;

use crate::key::KeyError;
use crate::policy::Part;
use crate::record::Last;
use crate::time::Timestamp;

/// An answer Hapax gives by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The route requires a key and there was none.
    KeyMissing,
    /// The route takes its key from this part of the request, and it was not there.
    KeyPartMissing(Part),
    /// The key field could not be read as one key.
    KeyMalformed(KeyError),
    /// A key stood in the query string, where logs and proxies keep it.
    KeyInUrl,
    /// A new key that others could guess, on a route that takes none such.
    KeyGuessable {
        /// How many bits a key must have at least.
        bits_min: u32,
    },
    /// The route takes only keys this server issued, and this is not one.
    TokenInvalid,
    /// Who is asking could not be established.
    PrincipalMissing {
        /// A part of the request that may identify its sender, where no setting says how to read it.
        unread: Option<Arc<Unread>>,
    },
    /// The caller's credentials were checked, and are not good.
    CredentialsInvalid(Flaw),
    /// Who is asking could not be checked at the moment.
    PrincipalUnavailable,
    /// The request body ended in an error.
    BodyUnreadable,
    /// The request body is over the limit.
    BodyTooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// There is no room to buffer the request body: see `buffered_memory_bytes_max` in `hapax::Limits`. Nothing was begun.
    BufferFull,
    /// An attempt is running, or has just ended retryable.
    InFlight {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The outcome of an earlier attempt is not known.
    OutcomeUnknown,
    /// The effect is done, but its answer was not kept.
    AnswerNotKept {
        /// What it was answered with.
        status: Option<u16>,
        /// When.
        at: Timestamp,
    },
    /// The same key with another request.
    KeyReused,
    /// Past its retention, or a token past its life.
    KeyExpired {
        /// What became of it; `None` if it never began.
        last: Option<Last>,
    },
    /// The key has begun as many attempts as it may.
    AttemptsExhausted,
    /// The caller's own deadline has passed, and nothing was begun.
    DeadlinePassed,
    /// More operations are running than this node takes on.
    TooManyKeys,
    /// More new keys in a time than the route allows; there was room for none.
    KeysTooFast {
        /// When there will be room for one.
        retry_after: Duration,
    },
    /// The principal has as many records, or as many bytes of kept answers, as one may have.
    QuotaReached,
    /// The store has as many records as it may have, or as many as it may have of callers who have none yet.
    StoreFull,
    /// The upstream was never reached: nothing happened. For the first caller.
    UpstreamUnreachable,
    /// The upstream was reached and lost. For the first caller.
    Lost {
        /// It did not answer in time, rather than breaking off.
        timed_out: bool,
        /// Whether the route's mode makes a repeat safe.
        repeat: bool,
    },
    /// The upstream says that it is done, but did not complete the record in its transaction. For the first caller.
    NotJoined,
    /// The store did not answer in time.
    StoreUnavailable,
    /// This node is shutting down and begins nothing new.
    Draining,
    /// `Idempotency-Deadline` could not be read.
    DeadlineMalformed,
    /// A stored answer does not match its checksum.
    AnswerCorrupt,
}

/// What a caller is told of credentials that are not good: only what its own clock tells it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Their time is over.
    Expired,
    /// Their time has not come.
    NotYetValid,
    /// Anything else.
    Other,
}

/// What a caller is told about trying again with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It would not help, or is for a person to decide.
    No,
    /// After this long.
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
    /// What the caller is told about trying again.
    pub retry: Retry,
}

/// When to ask again where nothing better is known.
const SOON: Retry = Retry::After(Duration::from_secs(1));

impl Rejection {
    /// The row of the table this rejection is.
    pub fn row(&self) -> Row {
        use Rejection as R;
        let row = |status, slug, title, retry| Row { status, slug, title, retry };
        match self {
            R::KeyMissing | R::KeyPartMissing(_) => {
                row(400, "key-missing", "This operation requires an idempotency key", Retry::No)
            }
            R::KeyMalformed(_) => row(400, "key-malformed", "The idempotency key is malformed", Retry::No),
            R::KeyInUrl => row(400, "key-in-url", "An idempotency key does not belong in the URL", Retry::No),
            R::KeyGuessable { .. } => row(400, "key-guessable", "The idempotency key can be guessed", Retry::No),
            R::TokenInvalid => row(400, "token-invalid", "The idempotency key was not issued by this server", Retry::No),
            R::PrincipalMissing { .. } => row(400, "principal-missing", "The request does not say who is asking", Retry::No),
            R::CredentialsInvalid(_) => row(401, "credentials-invalid", "The credentials are not valid", Retry::No),
            R::PrincipalUnavailable => row(503, "principal-unavailable", "Who is asking could not be checked", SOON),
            R::BodyUnreadable => row(400, "body-unreadable", "The request body could not be read", Retry::No),
            R::InFlight { retry_after } => {
                row(409, "in-flight", "The same request is still being worked on", Retry::After(*retry_after))
            }
            R::OutcomeUnknown => row(409, "outcome-unknown", "The outcome of this request is not known", Retry::No),
            R::AnswerNotKept { .. } => {
                row(409, "answer-not-kept", "The request was answered, but the answer was not kept", Retry::No)
            }
            R::AttemptsExhausted => row(409, "attempts-exhausted", "This key has been tried as often as it may be", Retry::No),
            R::KeyExpired { .. } => row(410, "key-expired", "The idempotency key has expired", Retry::No),
            R::DeadlinePassed => row(412, "deadline-passed", "The caller's deadline passed before the work began", Retry::No),
            R::BodyTooLarge { .. } => row(413, "body-too-large", "The request body is too large", Retry::No),
            R::BufferFull => row(503, "buffer-full", "There is no room for the request body at the moment", SOON),
            R::KeyReused => row(422, "key-reused", "The idempotency key was used for another request", Retry::No),
            R::TooManyKeys => row(429, "too-many-keys", "Too many operations are under way", SOON),
            R::KeysTooFast { retry_after } => {
                row(429, "too-many-keys", "Too many new keys in a short time", Retry::After(*retry_after))
            }
            // No moment is named: there is room again when older records have expired, which may take a day.
            R::QuotaReached => row(429, "quota-reached", "As much is remembered for this caller as may be", Retry::No),
            R::StoreFull => {
                row(429, "quota-reached", "As many requests are remembered as may be", Retry::After(Duration::from_secs(60)))
            }
            R::AnswerCorrupt => row(500, "answer-corrupt", "The stored answer is damaged", Retry::No),
            R::UpstreamUnreachable => row(502, "upstream-unreachable", "The service was not reached; nothing happened", SOON),
            R::Lost { timed_out, repeat } => {
                let status = if *timed_out { 504 } else { 502 };
                let retry = if *repeat { SOON } else { Retry::No };
                row(status, "outcome-unknown", "The outcome of this request is not known", retry)
            }
            R::NotJoined => row(502, "not-joined", "The service did not complete this request in its transaction", Retry::No),
            R::Draining => row(503, "draining", "This node is shutting down", SOON),
            R::DeadlineMalformed => row(400, "deadline-malformed", "The deadline is malformed", Retry::No),
            R::StoreUnavailable => row(503, "store-unavailable", "The record of this request could not be reached", SOON),
        }
    }

    /// What a person reads about this very case. Holds nothing of the record or the store, and of the
    /// request at most the name of a field or of a query parameter.
    pub fn detail(&self) -> String {
        use Rejection as R;
        match self {
            R::KeyMissing => "Send a key in the header this API takes it from: one unique value per operation, the same one on every retry.".into(),
            R::KeyPartMissing(part) => format!("This operation takes its key from {}, which is absent. Send it, the same on every retry.", in_words(part)),
            R::KeyMalformed(error) => format!("Send one key per request: {error}."),
            R::KeyInUrl => "Send the key in its header; URLs end up in logs.".into(),
            R::KeyGuessable { bits_min } => format!("Make each key at random, of at least {bits_min} bits, such as a version 4 UUID; nothing was begun."),
            R::TokenInvalid => "Ask this server for a key, and send it as the caller it was issued to.".into(),
            R::PrincipalMissing { unread: None } => "Send the credentials this operation needs.".into(),
            R::PrincipalMissing { unread: Some(name) } => unread_detail(name),
            R::CredentialsInvalid(Flaw::Expired) => "They have expired. Repeat the same request with the same key and fresh credentials of the same caller.".into(),
            R::CredentialsInvalid(Flaw::NotYetValid) => "They are not valid yet. Repeat the same request with the same key when they are.".into(),
            R::CredentialsInvalid(Flaw::Other) => "Nothing was begun by this request. Send credentials that are valid for this service.".into(),
            R::PrincipalUnavailable => "Nothing was begun by this request. Repeat it with the same key later.".into(),
            R::BodyUnreadable => "The body broke off before it was complete; nothing was begun.".into(),
            R::BodyTooLarge { bytes_max } => format!("The limit is {bytes_max} bytes; nothing was begun."),
            R::BufferFull => "Nothing was begun. Repeat the same request with the same key later.".into(),
            R::InFlight { .. } => "Repeat the same request with the same key later to get its answer.".into(),
            R::OutcomeUnknown => "An earlier attempt was lost and may have had its effect. Do not send it again under a new key; find out what happened.".into(),
            R::AnswerNotKept { .. } => "The request was answered once. Look up its result; do not send it again under a new key.".into(),
            R::KeyReused => "Use a new key for a new request, or repeat the first one unchanged.".into(),
            R::KeyExpired { last } => expired_detail(*last).into(),
            R::AttemptsExhausted => "The last attempt is known not to have counted. Find out whether an earlier one was lost before using a new key.".into(),
            R::DeadlinePassed => "Nothing was begun.".into(),
            R::TooManyKeys => "Nothing was begun. Repeat the same request with the same key later.".into(),
            R::KeysTooFast { .. } => "Nothing was begun. Repeat the same request with the same key later; repeats of earlier ones are not held up.".into(),
            R::QuotaReached => "Nothing was begun. Repeats of earlier requests are not held up; a new one has room when older ones have expired.".into(),
            R::StoreFull => "Nothing was begun. Repeats of earlier requests are not held up; repeat this one with the same key when older ones have expired.".into(),
            R::UpstreamUnreachable => "Repeat the same request with the same key later.".into(),
            R::Lost { repeat: true, .. } => "The attempt was lost. Repeating it with the same key is safe.".into(),
            R::Lost { repeat: false, .. } => "The attempt was lost after it may have had its effect. Do not send it again under a new key; find out what happened.".into(),
            R::NotJoined => "The service answered as if it were done, but did not say so in its transaction. Do not send it again under a new key; find out what happened.".into(),
            R::StoreUnavailable => "Repeat the same request with the same key later; do not send it under a new one.".into(),
            R::Draining => "Nothing was begun. Repeat the same request with the same key later.".into(),
            R::DeadlineMalformed => "Send Idempotency-Deadline as a structured-field date, such as @1893456000.".into(),
            R::AnswerCorrupt => "The request was answered once, but its stored answer cannot be trusted. Do not send it again under a new key.".into(),
        }
    }
}

/// A part of a request as a person would look for it.
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
    /// Where the caller's credential was looked for, in words: `header authorization`, `cookie session`.
    pub looked_at: Arc<str>,
    /// The name of a field, as in `x-user`, or `query:` and the name of a query parameter.
    pub name: Arc<str>,
    /// The principal source that reads it, as in `digest:x-user`, if there is one.
    pub principal: Option<Arc<str>>,
    /// Whether the setting `anonymous_fields` takes it.
    pub may_be_anonymous: bool,
}

/// The longest name that is repeated in full.
const NAME_BYTES_MAX: usize = 64;

fn unread_detail(unread: &Unread) -> String {
    let name = shown(&unread.name);
    let what = match name.strip_prefix("query:") {
        Some(parameter) => format!("query parameter {parameter}"),
        None => format!("header {name}"),
    };
    let source =
        unread.principal.as_deref().map_or("another source".to_owned(), |source| format!("principal = \"{}\"", shown(source)));
    let or_anonymous = match unread.may_be_anonymous {
        true => format!(", or anonymous_fields = [\"{name}\"] if it identifies nobody"),
        false => String::new(),
    };
    format!(
        "The gateway looks for the caller in the {}, which this request lacks. The {what} may say who is asking, and the gateway does not read it. \
         Its operator can set {source} if callers are known by it{or_anonymous}.",
        shown(&unread.looked_at)
    )
}

/// A name that a caller may have made up, short and on one line.
fn shown(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\') || c == ' ';
    let mut shown: String = name.chars().take(NAME_BYTES_MAX).map(|c| if is_plain(c) { c } else { '?' }).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    shown
}

fn expired_detail(last: Option<Last>) -> &'static str {
    match last {
        None => "The key was too old when it was first sent; nothing was begun. Use a new key.",
        Some(Last::Completed) => {
            "The effect happened once, too long ago for its answer to be kept. Do not send it again under a new key."
        }
        Some(Last::Failed) => "The request was refused, too long ago for the answer to be kept.",
        Some(Last::Retryable) => {
            "The last attempt is known not to have counted. Find out whether an earlier one was lost before using a new key."
        }
        Some(Last::Unknown) => {
            "An attempt was lost and may have had its effect. Do not send it again under a new key; find out what happened."
        }
    }
}
