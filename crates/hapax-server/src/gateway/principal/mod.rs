//! Who is asking.
//!
//! Whoever is mistaken for another could be given the other's answer, so a guarded request is asked who sends it before anything is
//! asked of its key. `digest.rs` and `header.rs` tell it from the request's head alone; `jwt/` verifies a token with keys that
//! somebody else may change, and `forward_auth.rs` asks another service, each time anew. `fetch.rs` is how both ask.
//!
//! The names of principals begin with their source and say by what they are known, with a space between the parts, so that no two
//! sources, fields, claims or issuers ever share one: `header:x-user-id ada`, `jwt:sub https://id.example.com ada`.

mod digest;
mod fetch;
mod forward_auth;
mod header;
mod jwt;

use std::sync::Arc;

use hapax::core::Secret;
use hapax::middleware::rejected;
use hapax::{Body, Principal, Rejection};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Response};

use self::digest::Digest;
use self::forward_auth::ForwardAuth;
use self::jwt::Jwt;
use super::forward::Client;
use crate::config::{Config, PrincipalSource};
use crate::telemetry::Metrics;

/// The longest name that a caller may have: it stands in each of its records.
const NAME_BYTES_MAX: usize = 512;

/// Tells who is asking. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Principals {
    source: Arc<Source>,
    metrics: Metrics,
}

enum Source {
    None,
    Digest(Digest),
    Header(HeaderName),
    Jwt(Jwt),
    ForwardAuth(Box<ForwardAuth>),
}

/// Why nobody is known to be asking. The words are labels of metrics.
enum Refused {
    /// The request does not say who is asking.
    Missing(&'static str),
    /// What it says was checked and is not good.
    Invalid(jwt::Flawed),
    /// It cannot be checked now.
    Unavailable(&'static str),
    /// Another service has said no, in its own words.
    Elsewhere(Box<Response<Body>>),
}

impl Principals {
    /// What the configuration says. Keys of tokens are there when this returns, or it has been told that they are not; `before` is what
    /// was at work until now, whose keys stay good where they come from the same place.
    pub(crate) async fn start(
        config: &Config,
        secret: Secret,
        metrics: Metrics,
        before: Option<&Principals>,
    ) -> Result<Principals, String> {
        let source = match &config.principal {
            PrincipalSource::None => Source::None,
            PrincipalSource::Digest(field) => Source::Digest(Digest::new(field, secret)),
            PrincipalSource::Header(field) => Source::Header(field.clone()),
            PrincipalSource::Jwt(claim) => {
                let settings = config.jwt.as_ref().ok_or("principal jwt needs [jwt] in the configuration")?;
                let before = before.and_then(|before| match &*before.source {
                    Source::Jwt(jwt) => Some(jwt),
                    _ => None,
                });
                Source::Jwt(Jwt::start(settings, claim, metrics.clone(), before).await?)
            }
            PrincipalSource::ForwardAuth(url) => {
                let settings = config.forward_auth.as_ref().ok_or("forward-auth needs [forward_auth] in the configuration")?;
                Source::ForwardAuth(Box::new(ForwardAuth::new(url, settings)?))
            }
        };
        Ok(Principals { source: Arc::new(source), metrics })
    }

    /// Who is asking, for the layer: from the head alone, or as [`Principals::check`] found it. `None` if that cannot be told.
    pub(crate) fn of(&self, parts: &Parts) -> Option<Principal> {
        match &*self.source {
            Source::None => Some(Principal::Anonymous),
            Source::Digest(digest) => digest.of(&parts.headers),
            _ => parts.extensions.get::<Principal>().cloned(),
        }
    }

    /// Finds out who is asking and leaves it in the request, for the layer. Returns what to answer if that is not good, or cannot be
    /// checked; who says nothing of himself is left to the layer, which looks at the key first.
    pub(crate) async fn check(&self, parts: &mut Parts, client: &Client) -> Option<Response<Body>> {
        let found = match &*self.source {
            Source::None | Source::Digest(_) => return None,
            Source::Header(field) => header::of(field, &parts.headers, client),
            // Boxed, so that the others need not carry their room.
            Source::Jwt(jwt) => Box::pin(jwt.of(&parts.headers)).await,
            Source::ForwardAuth(auth) => Box::pin(auth.of(parts)).await,
        };
        match found {
            Ok(principal) => {
                parts.extensions.insert(principal);
                None
            }
            Err(refused) => self.answer(refused),
        }
    }

    fn answer(&self, refused: Refused) -> Option<Response<Body>> {
        match refused {
            Refused::Missing(reason) => {
                self.metrics.credentials_refused(reason);
                None
            }
            Refused::Invalid(flawed) => {
                self.metrics.credentials_refused(flawed.word());
                Some(flawed.answer())
            }
            Refused::Unavailable(reason) => {
                self.metrics.principal_unavailable(reason);
                Some(rejected(&Rejection::PrincipalUnavailable))
            }
            Refused::Elsewhere(response) => {
                self.metrics.credentials_refused("forward_auth");
                Some(*response)
            }
        }
    }
}

/// The value of a field that stands once. `Err` says why there is none.
fn only<'a>(headers: &'a HeaderMap, field: &HeaderName) -> Result<&'a [u8], &'static str> {
    let mut lines = headers.get_all(field).iter();
    let line = lines.next().ok_or("missing")?;
    // Which of two somebody else believes is not ours to guess.
    if lines.next().is_some() { Err("repeated") } else { Ok(line.as_bytes().trim_ascii()) }
}

/// A name that somebody vouches for, if it can be one: some text on one line.
fn name(value: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(value).ok()?;
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control)).then_some(name)
}
