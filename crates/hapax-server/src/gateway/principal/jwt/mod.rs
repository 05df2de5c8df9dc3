//! `jwt`: identifies the caller by a claim of a token, which is verified with each request.
//!
//! `token.rs` parses a token and verifies its signature, `claims.rs` checks its claims, `keys.rs`
//! holds the keys and `keeper.rs` keeps them up to date. The configuration pins the algorithms. A
//! token only selects among configured keys; keys or key URLs in its own header (`jwk`, `jku`,
//! `x5u`, `x5c`) are ignored.

mod claims;
mod keeper;
mod keys;
mod token;

use std::sync::Arc;
use std::time::SystemTime;

use hapax::core::rejection::Flaw;
use hapax::middleware::rejected;
use hapax::{Body, Principal, Rejection};
use http::Response;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};

use self::claims::Rules;
pub(super) use self::keeper::Keeper;
use self::keys::KeySet;
use super::{Refused, only};
use crate::config::{self, Claim};
use crate::gateway::RETRY_DIALECTS;

/// The longest token that is accepted.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// What is wrong with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flawed {
    /// The request has two tokens.
    Repeated,
    TooLong,
    Malformed,
    /// The token is for another purpose, such as ending a session.
    Kind,
    /// The token has critical header parameters (`crit`), and the gateway understands none.
    Critical,
    /// The algorithm is not allowed, or is not one of the key's.
    Algorithm,
    /// No key has the name that the token gives.
    Key,
    Signature,
    Expired,
    NotYetValid,
    Issuer,
    Audience,
    /// The token does not name a caller.
    Claim,
}

impl Flawed {
    /// The label for metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Flawed::Repeated => "repeated",
            Flawed::TooLong => "too_long",
            Flawed::Malformed => "malformed",
            Flawed::Kind => "kind",
            Flawed::Critical => "critical",
            Flawed::Algorithm => "algorithm",
            Flawed::Key => "key",
            Flawed::Signature => "signature",
            Flawed::Expired => "expired",
            Flawed::NotYetValid => "not_yet_valid",
            Flawed::Issuer => "issuer",
            Flawed::Audience => "audience",
            Flawed::Claim => "claim",
        }
    }

    /// The answer to the caller. It gives no details, except that a token has expired or is not
    /// valid yet.
    pub(super) fn answer(self) -> Response<Body> {
        let (flaw, challenge) = match self {
            Flawed::Expired => (
                Flaw::Expired,
                "Bearer error=\"invalid_token\", error_description=\"expired\"",
            ),
            Flawed::NotYetValid => (
                Flaw::NotYetValid,
                "Bearer error=\"invalid_token\", error_description=\"not yet valid\"",
            ),
            _ => (Flaw::Other, "Bearer error=\"invalid_token\""),
        };
        let mut response = rejected(&Rejection::CredentialsInvalid(flaw), RETRY_DIALECTS);
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        response
    }
}

/// Verifies tokens.
pub(super) struct Jwt {
    field: HeaderName,
    rules: Rules,
    keys: Arc<Keeper>,
}

impl Jwt {
    pub(super) fn new(settings: &config::Jwt, claim: &Claim, keys: Arc<Keeper>) -> Jwt {
        Jwt {
            field: settings.field.clone(),
            rules: Rules::new(settings, claim),
            keys,
        }
    }

    /// The caller that the request's token names, if the token is valid now.
    pub(super) async fn identify(&self, headers: &HeaderMap) -> Result<Principal, Refused> {
        let token = self.token(headers)?;
        let claims = self.verify(token).await?;
        self.rules
            .judge(&claims, SystemTime::now())
            .map_err(Refused::Invalid)
    }

    fn token<'a>(&self, headers: &'a HeaderMap) -> Result<&'a str, Refused> {
        let value = only(headers, &self.field).map_err(|reason| match reason {
            "repeated" => Refused::Invalid(Flawed::Repeated),
            _ => Refused::Missing(reason),
        })?;
        let token = if self.field == AUTHORIZATION {
            bearer(value).ok_or(Refused::Missing("scheme"))?
        } else {
            value
        };
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refused::Invalid(Flawed::TooLong));
        }
        std::str::from_utf8(token).map_err(|_| Refused::Invalid(Flawed::Malformed))
    }

    /// The claims of a token, if one of the keys has signed it. If its key is unknown, the keys are
    /// read again and the token is verified once more.
    async fn verify(&self, token: &str) -> Result<serde_json::Value, Refused> {
        let keys = self.keys.current().map_err(Refused::Unavailable)?;
        match keys.verify(token) {
            Err(flawed) if is_of_other_keys(flawed, &keys) && self.keys.ask_again().await => {
                let keys = self.keys.current().map_err(Refused::Unavailable)?;
                keys.verify(token).map_err(Refused::Invalid)
            }
            verified => verified.map_err(Refused::Invalid),
        }
    }
}

/// Whether fresh keys may verify the token. For keys without names, only the signature can tell.
fn is_of_other_keys(flawed: Flawed, keys: &KeySet) -> bool {
    flawed == Flawed::Key || (flawed == Flawed::Signature && keys.has_nameless())
}

/// The credential of a field with the Bearer scheme; `None` for any other scheme.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, credential) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    scheme
        .eq_ignore_ascii_case(b"bearer")
        .then(|| credential.trim_ascii())
}
