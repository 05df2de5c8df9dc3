//! How tokens are verified.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use jsonwebtoken::{Algorithm, AlgorithmFamily};

use super::ServiceUrl;

/// How the token of a request is verified: `[jwt]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// The field that carries it: behind `Bearer` in `authorization`, alone in any other.
    pub field: HeaderName,
    /// By which it may be signed. Either all with a shared secret or none.
    pub algorithms: Vec<Algorithm>,
    /// What its signature is verified with.
    pub keys: KeysFrom,
    /// Who must have made it.
    pub issuer: Issuer,
    /// For whom it must have been made.
    pub audience: Audience,
    /// By how much clocks may differ.
    pub leeway: Duration,
    /// How often the keys of a URL are asked for.
    pub refresh: Duration,
    /// How long keys are good that could not be had anew.
    pub stale_max: Duration,
    /// Whom to believe, besides the system's authorities, when `keys_url` shows its certificate.
    pub ca_file: Option<PathBuf>,
}

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeysFrom {
    /// Public keys in a file: a JWK set, or one key in PEM.
    File(PathBuf),
    /// Public keys at a URL: a JWK set.
    Url(ServiceUrl),
    /// A secret that issuer and gateway share, alone in a file.
    Secret(PathBuf),
}

/// Who must have made a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// This one.
    Just(Arc<str>),
    /// Whoever has the keys. What the token says of it sets callers apart all the same.
    Any,
}

/// For whom a token must have been made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// One of these.
    OneOf(Vec<String>),
    /// Anybody: a token made for another service of the same issuer is good here too.
    Any,
}

impl Jwt {
    /// Everything at its default.
    pub fn new(
        algorithms: Vec<Algorithm>,
        keys: KeysFrom,
        issuer: Issuer,
        audience: Audience,
    ) -> Jwt {
        Jwt {
            field: http::header::AUTHORIZATION,
            algorithms,
            keys,
            issuer,
            audience,
            leeway: Duration::from_secs(30),
            refresh: Duration::from_secs(5 * 60),
            stale_max: Duration::from_secs(60 * 60),
            ca_file: None,
        }
    }
}

impl fmt::Display for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Issuer::Just(issuer) => f.write_str(issuer),
            Issuer::Any => f.write_str("any"),
        }
    }
}

/// Whether whoever can verify a signature of this algorithm can make one.
pub(crate) fn is_shared(algorithm: Algorithm) -> bool {
    algorithm.family() == AlgorithmFamily::Hmac
}
