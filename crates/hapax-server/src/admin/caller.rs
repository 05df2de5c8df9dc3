//! Identifies the caller of the admin listener by its token.
//!
//! Without a configured token, every client of the listener is an operator, and the listener must
//! be on loopback. With a token, everything except health and readiness requires it. The settle
//! token gives access to two paths only; paths added later are closed to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;

use super::Admin;
use super::problem::Problem;
use crate::config::Secret;

/// The paths for load balancers and supervisors, which have no token.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];
/// The paths that the settle token gives access to.
const SETTLING: [&str; 2] = ["/v1/settle", "/v1/unknown"];

/// The minimal interval between logged refusals. The metric counts all of them.
const LOGGED_EVERY: Duration = Duration::from_secs(1);

/// The caller of the admin listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A client on loopback; no token is configured.
    Local,
    /// A client with `admin_token`.
    Operator,
    /// A client with `settle_token`.
    Job,
}

impl Caller {
    /// The name in the log for a caller that gives none.
    pub(super) fn name(self) -> &'static str {
        match self {
            Caller::Local => "local",
            Caller::Operator => "admin-token",
            Caller::Job => "settle-token",
        }
    }

    /// The mark of a token caller that a text contains or imitates, if any. Only letters and digits
    /// are compared, because readers of the log may overlook the rest.
    pub(super) fn mark_in(words: &str) -> Option<&'static str> {
        let seen = |words: &str| {
            words
                .chars()
                .filter(|c| c.is_alphanumeric())
                .flat_map(char::to_lowercase)
                .collect::<String>()
        };
        let words = seen(words);
        [Caller::Operator, Caller::Job]
            .map(Caller::name)
            .into_iter()
            .find(|mark| words.contains(&seen(mark)))
    }

    /// The name in the audit log: the given name, and the token that was presented. A name alone
    /// proves nothing.
    pub(super) fn signs(self, by: &str) -> String {
        match self {
            Caller::Local => by.to_owned(),
            Caller::Operator | Caller::Job => format!("{by} ({})", self.name()),
        }
    }
}

/// The configured tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    pub(super) admin: Option<Secret>,
    pub(super) settle: Option<Secret>,
}

impl Tokens {
    /// The caller with these fields, or a label that says why it is refused.
    fn caller(&self, headers: &HeaderMap) -> Result<Caller, &'static str> {
        let is = |token: &Option<Secret>, given: &[u8]| {
            token.as_ref().is_some_and(|token| token.is(given))
        };
        match bearer(headers) {
            Given::Nothing if self.admin.is_none() => Ok(Caller::Local),
            Given::Nothing => Err("missing"),
            Given::Token(given) if is(&self.admin, given) => Ok(Caller::Operator),
            Given::Token(given) if is(&self.settle, given) => Ok(Caller::Job),
            // A wrong token is refused even where none is needed: its sender expects to be
            // identified by it.
            Given::Token(_) | Given::Else => Err("wrong"),
        }
    }
}

enum Given<'a> {
    Nothing,
    Token(&'a [u8]),
    Else,
}

/// The bearer token of a request, if it has exactly one.
fn bearer(headers: &HeaderMap) -> Given<'_> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    match (fields.next(), fields.next()) {
        (None, _) => Given::Nothing,
        (Some(field), None) => match field.as_bytes().split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") => {
                Given::Token(token.trim_ascii())
            }
            _ => Given::Else,
        },
        _ => Given::Else,
    }
}

/// Refuses callers without access, and stores the caller in the request.
pub(super) async fn is_known(
    State(admin): State<Admin>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if OPEN.contains(&path) {
        return next.run(request).await;
    }
    let caller = admin.rules.load().tokens.caller(request.headers());
    let problem = match caller {
        Ok(Caller::Job) if !SETTLING.contains(&path) => {
            admin.refused("not-allowed", &request);
            Problem::new(
                StatusCode::FORBIDDEN,
                "not-allowed",
                "the settle token opens /v1/settle and /v1/unknown, and nothing else",
            )
        }
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            return next.run(request).await;
        }
        Err(reason) => {
            admin.refused(
                if reason == "missing" {
                    "token-missing"
                } else {
                    "token-wrong"
                },
                &request,
            );
            let detail = format!(
                "the token is {reason}: send `Authorization: Bearer …` with the `admin_token` of this gateway"
            );
            Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail).with(
                WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"hapax\""),
            )
        }
    };
    problem.into_response()
}

/// The address that a request came from, if known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Admin {
    /// Counts a refusal, and logs it unless one was logged just before.
    pub(super) fn refused(&self, reason: &'static str, request: &Request) {
        self.metrics.admin_refused(reason);
        if let Some(unlogged) = self.refusals.to_log(Instant::now()) {
            let peer = request
                .extensions()
                .get::<Peer>()
                .map_or_else(|| "unknown".to_owned(), |Peer(peer)| peer.to_string());
            tracing::warn!(%peer, reason, unlogged, "somebody was refused by the admin listener");
        }
    }
}

/// When a refusal was last logged, and how many followed.
#[derive(Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<(Option<Instant>, u64)>>);

impl Refusals {
    /// If this refusal is to be logged: how many were not logged before it.
    fn to_log(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        let (last, unlogged) = &mut *state;
        if last.is_some_and(|last| now.duration_since(last) < LOGGED_EVERY) {
            *unlogged += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMIN: &str = "the-token-of-operators";
    const SETTLE: &str = "the-token-of-the-job";

    fn caller(tokens: &Tokens, fields: &[&str]) -> Result<Caller, &'static str> {
        let fields = fields
            .iter()
            .map(|field| (AUTHORIZATION, HeaderValue::from_str(field).unwrap()));
        tokens.caller(&fields.collect())
    }

    #[test]
    fn only_the_whole_token_in_its_one_place_opens() {
        let token = |text| Some(Secret::token(text).unwrap());
        let tokens = Tokens {
            admin: token(ADMIN),
            settle: token(SETTLE),
        };
        let bearer = |token: &str| format!("Bearer {token}");
        assert_eq!(caller(&tokens, &[&bearer(ADMIN)]), Ok(Caller::Operator));
        assert_eq!(
            caller(&tokens, &[&format!("bearer   {ADMIN} ")]),
            Ok(Caller::Operator)
        );
        assert_eq!(caller(&tokens, &[&bearer(SETTLE)]), Ok(Caller::Job));
        assert_eq!(caller(&tokens, &[]), Err("missing"));
        let (right, short, long) = (
            bearer(ADMIN),
            bearer(&ADMIN[1..]),
            bearer(&format!("{ADMIN}s")),
        );
        for fields in [
            &[short.as_str()][..],
            &[&long],
            &["Bearer "],
            &["Bearer"],
            &[ADMIN],
            &["Basic dGhlLXRva2VuLW9mLW9wZXJhdG9ycw=="],
            &[&right, &right],
            &[&right, "Bearer x"],
        ] {
            assert_eq!(caller(&tokens, fields), Err("wrong"), "{fields:?}");
        }
    }

    #[test]
    fn without_a_token_nobody_is_asked_but_a_wrong_one_is_refused() {
        let settle = Tokens {
            admin: None,
            settle: Some(Secret::token(SETTLE).unwrap()),
        };
        for tokens in [Tokens::default(), settle] {
            assert_eq!(caller(&tokens, &[]), Ok(Caller::Local));
            assert_eq!(caller(&tokens, &[&format!("Bearer {ADMIN}")]), Err("wrong"));
        }
    }

    #[test]
    fn nobody_is_called_like_a_token() {
        for by in [
            "settle-token",
            "ada (admin-token)",
            "ADMIN-TOKEN",
            "x admin\u{2011}token",
            "settle\u{200b}-token",
        ] {
            assert!(Caller::mark_in(by).is_some(), "{by}");
        }
        for by in [
            "ada",
            "local",
            "ada@localhost",
            "token",
            "admin",
            "Ærø (night shift)",
        ] {
            assert_eq!(Caller::mark_in(by), None, "{by}");
        }
    }

    #[test]
    fn refusals_are_logged_now_and_then() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        assert_eq!(
            [0, 10, 999, 1_000, 1_001].map(|ms| refusals.to_log(now + Duration::from_millis(ms))),
            [Some(0), None, None, Some(2), None]
        );
    }
}
