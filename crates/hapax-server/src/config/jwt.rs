//! What tokens are verified with.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use jsonwebtoken::{Algorithm, AlgorithmFamily};

use super::ServiceUrl;

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
