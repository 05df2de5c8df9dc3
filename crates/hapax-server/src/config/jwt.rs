//! The keys, issuers and audiences by which tokens are verified.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use jsonwebtoken::{Algorithm, AlgorithmFamily};

use super::ServiceUrl;

/// The source of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeysFrom {
    /// Public keys in a file: a JWK set, or one key in PEM.
    File(PathBuf),
    /// Public keys at a URL: a JWK set.
    Url(ServiceUrl),
    /// A secret that issuer and gateway share, alone in a file.
    Secret(PathBuf),
}

/// The required issuer of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// This one.
    Just(Arc<str>),
    /// Any issuer that has the keys. Its name in the token still separates callers.
    Any,
}

/// The required audience of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// One of these.
    OneOf(Vec<String>),
    /// Any audience: a token for another service of the same issuer is valid here too.
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

/// Whether a key that verifies signatures of this algorithm can also make them.
pub(crate) fn is_shared(algorithm: Algorithm) -> bool {
    algorithm.family() == AlgorithmFamily::Hmac
}
