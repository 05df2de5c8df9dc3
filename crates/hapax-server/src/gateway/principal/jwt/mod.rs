//! `jwt`: a token that is verified with each request, and a claim of it.
//!
//! `token.rs` reads one and verifies its signature, `claims.rs` judges what it claims, `keys.rs`
//! are the keys and `keeper.rs` keeps them up to date. The algorithms are pinned by the
//! configuration; a token chooses only among keys that are ours already, so what it says of keys
//! itself (`jwk`, `jku`, `x5u`, `x5c`) is not looked at.

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

/// The longest token that is looked at.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// What is wrong with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flawed {
    /// There are two.
    Repeated,
    TooLong,
    Malformed,
    /// It is a token for another purpose, such as one that ends a session.
    Kind,
    /// It says that it must not be read without knowing something that we do not.
    Critical,
    /// Not one that is allowed, or not one of its key.
    Algorithm,
    /// No key of that name.
    Key,
    Signature,
    Expired,
    NotYetValid,
    Issuer,
    Audience,
    /// It does not name anybody.
    Claim,
}

impl Flawed {
    /// The word, for metrics.
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

    /// What its bearer is told: of what is wrong only what any clock tells.
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
        let mut response = rejected(&Rejection::CredentialsInvalid(flaw));
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

    /// Whose token the request carries, if it is good now.
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

    /// What a token claims, if its signature is by one of the keys. One whose key is not known is
    /// looked at again with fresh keys.
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

/// Whether fresh keys may know better. Keys without names can be told by the signature alone.
fn is_of_other_keys(flawed: Flawed, keys: &KeySet) -> bool {
    flawed == Flawed::Key || (flawed == Flawed::Signature && keys.has_nameless())
}

/// The credential of a Bearer field; `None` for any other scheme.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, credential) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    scheme
        .eq_ignore_ascii_case(b"bearer")
        .then(|| credential.trim_ascii())
}
