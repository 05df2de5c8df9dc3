//! Who is asking, by the token they present.
//!
//! Without a token in the configuration whoever reaches the listener is an operator, which is why
//! it then is on loopback. With one, everything but health and readiness needs it. The settle token
//! opens two paths and no other: whatever is added is closed to it.

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

/// What a load balancer and a supervisor ask, who have no token.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];
/// What the settle token opens.
const SETTLING: [&str; 2] = ["/v1/settle", "/v1/unknown"];

/// Refusals in the log: one so often, however many there are. The metric counts them all.
const LOGGED_EVERY: Duration = Duration::from_secs(1);

/// Who is asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Nobody had to say: there is no token, and this is loopback.
    Local,
    /// Whoever has `admin_token`.
    Operator,
    /// Whoever has `settle_token`.
    Job,
}

impl Caller {
    /// What stands in the log for whoever gives no name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Caller::Local => "local",
            Caller::Operator => "admin-token",
            Caller::Job => "settle-token",
        }
    }

    /// What shows in the log that a token was presented, if these words look like it: letters and
    /// digits are what a reader sees.
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

    /// Who signs: the name they give, and what shows that they may. A name alone anybody could
    /// give.
    pub(super) fn signs(self, by: &str) -> String {
        match self {
            Caller::Local => by.to_owned(),
            Caller::Operator | Caller::Job => format!("{by} ({})", self.name()),
        }
    }
}

/// The tokens there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    pub(super) admin: Option<Secret>,
    pub(super) settle: Option<Secret>,
}

impl Tokens {
    /// Who presents what these fields say, or why that is nobody.
    fn caller(&self, headers: &HeaderMap) -> Result<Caller, &'static str> {
        let is = |token: &Option<Secret>, given: &[u8]| {
            token.as_ref().is_some_and(|token| token.is(given))
        };
        match bearer(headers) {
            Given::Nothing if self.admin.is_none() => Ok(Caller::Local),
            Given::Nothing => Err("missing"),
            Given::Token(given) if is(&self.admin, given) => Ok(Caller::Operator),
            Given::Token(given) if is(&self.settle, given) => Ok(Caller::Job),
            // Whoever presents a token means to be known by it, also where none is needed.
            Given::Token(_) | Given::Else => Err("wrong"),
        }
    }
}

enum Given<'a> {
    Nothing,
    Token(&'a [u8]),
    Else,
}

/// The one bearer token of a request.
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

/// Lets those pass who may, and tells the rest of the path who they are.
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

/// From where a request came, where that is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Admin {
    /// Counts a refusal, and logs it if none was logged just now.
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

/// When a refusal was last logged, and how many there were since.
#[derive(Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<(Option<Instant>, u64)>>);

impl Refusals {
    /// How many went unlogged before this one, if this one is to be logged.
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
