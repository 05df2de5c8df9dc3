//! The scope: whose key it is, and for which operation.

use std::fmt;
use std::sync::Arc;

use crate::digest::{Parts, hex, unhex};
use crate::key::Key;
use crate::operation::Secret;

/// Who is asking, as far as keys are concerned. Two principals never share a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// Nobody in particular: every anonymous caller of a namespace is the same principal.
    Anonymous,
    /// Somebody, by a name that an authentication step vouches for.
    Named(Arc<str>),
}

impl Principal {
    /// Somebody, by name.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Principal::Named(name.into())
    }

    /// Whoever presents this value in this field, where only a credential is known and no name.
    /// Keyed, so that the name in a store, a log or a listing is no way to guess the credential. It
    /// proves that the same value was presented, and no more.
    pub fn digest(secret: &Secret, field: &str, value: &[u8]) -> Self {
        let mut parts = Parts::new("hapax principal 1");
        parts.push(field.as_bytes());
        parts.push(value);
        Principal::named(format!(
            "digest:{}",
            hex(&secret.sign(&parts.finish())[..16])
        ))
    }

    pub(crate) fn push_to(&self, parts: &mut Parts) {
        match self {
            Principal::Anonymous => parts.push_count(0),
            Principal::Named(name) => {
                parts.push_count(1);
                parts.push(name.as_bytes());
            }
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Anonymous => f.write_str("(anonymous)"),
            Principal::Named(name) => f.write_str(name),
        }
    }
}

/// Namespace, principal and operation; a key means something only inside one.
///
/// The operation is the method and the *concrete* path, never a route's pattern or name: renaming a
/// route forgets nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// What sets apart two services that share a store.
    pub namespace: Arc<str>,
    /// Who asks.
    pub principal: Principal,
    /// The request method, or any verb of a caller without HTTP.
    pub method: Arc<str>,
    /// The concrete path as sent, without its query.
    pub path: Arc<str>,
}

/// The longest path, and the longest name of a principal, that a record keeps whole.
pub const STORED_BYTES_MAX: usize = 512;

impl Scope {
    /// The scope as a record keeps it. A path or a name over [`STORED_BYTES_MAX`] is kept as its
    /// beginning and its digest, so that one request cannot fill a store. Record ids and
    /// fingerprints are made of the whole scope, never of this one.
    #[must_use]
    pub fn stored(self: &Arc<Scope>) -> Arc<Scope> {
        let principal_len = match &self.principal {
            Principal::Anonymous => 0,
            Principal::Named(name) => name.len(),
        };
        if self.path.len().max(principal_len) <= STORED_BYTES_MAX {
            return self.clone();
        }
        let principal = match &self.principal {
            Principal::Anonymous => Principal::Anonymous,
            Principal::Named(name) => Principal::Named(shortened(name)),
        };
        Arc::new(Scope {
            namespace: self.namespace.clone(),
            principal,
            method: self.method.clone(),
            path: shortened(&self.path),
        })
    }

    pub(crate) fn push_to(&self, parts: &mut Parts) {
        parts.push(self.namespace.as_bytes());
        self.principal.push_to(parts);
        parts.push(self.method.as_bytes());
        parts.push(self.path.as_bytes());
    }
}

/// A text of at most [`STORED_BYTES_MAX`] bytes: the text itself, or its beginning and its digest.
fn shortened(text: &Arc<str>) -> Arc<str> {
    if text.len() <= STORED_BYTES_MAX {
        return text.clone();
    }
    let mut parts = Parts::new("hapax shortened 1");
    parts.push(text.as_bytes());
    let end = format!("…sha256:{}", hex(&parts.finish()));
    let begin = &text[..text.floor_char_boundary(STORED_BYTES_MAX - end.len())];
    format!("{begin}{end}").into()
}

/// The name of a principal in a store: a digest of its namespace and its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrincipalId([u8; 16]);

impl PrincipalId {
    /// The id of the principal that asks in this scope. `None` for anonymous callers: they are
    /// nobody in particular, so that nothing can be known of them.
    pub fn of(scope: &Scope) -> Option<PrincipalId> {
        if scope.principal == Principal::Anonymous {
            return None;
        }
        let mut parts = Parts::new("hapax known principal 1");
        parts.push(scope.namespace.as_bytes());
        scope.principal.push_to(&mut parts);
        parts.finish().first_chunk().copied().map(PrincipalId)
    }

    /// An id read back from a store.
    pub const fn from_bytes(bytes: [u8; 16]) -> PrincipalId {
        PrincipalId(bytes)
    }

    /// The id as a store keeps it.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for PrincipalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrincipalId({})", hex(&self.0[..6]))
    }
}

/// The name of a record in a store: a digest of scope and key, so that records of two scopes have
/// nothing in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 32]);

impl RecordId {
    /// The id of the record that remembers `key` in `scope`.
    pub fn of(scope: &Scope, key: &Key) -> RecordId {
        let mut parts = Parts::new("hapax record 1");
        scope.push_to(&mut parts);
        parts.push(key.as_str().as_bytes());
        RecordId(parts.finish())
    }

    /// An id read back from a store.
    pub const fn from_bytes(bytes: [u8; 32]) -> RecordId {
        RecordId(bytes)
    }

    /// The id as a store keeps it.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({})", hex(&self.0[..6]))
    }
}

impl std::str::FromStr for RecordId {
    type Err = NotARecordId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        unhex(text).map(RecordId).ok_or(NotARecordId)
    }
}

/// The text is not 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record id is 64 lower-case hexadecimal digits")]
pub struct NotARecordId;

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(namespace: &str, principal: Principal, method: &str, path: &str) -> Scope {
        Scope {
            namespace: namespace.into(),
            principal,
            method: method.into(),
            path: path.into(),
        }
    }

    #[test]
    fn no_two_scopes_share_an_id() {
        let key = Key::new("k").unwrap();
        let scopes = [
            scope("n", Principal::Anonymous, "POST", "/a"),
            scope("n", Principal::named(""), "POST", "/a"),
            scope("n", Principal::named("POST"), "", "/a"),
            scope("nP", Principal::Anonymous, "OST", "/a"),
            scope("n", Principal::named("p"), "POST", "/a"),
            scope("n", Principal::named("p"), "PATCH", "/a"),
            scope("n", Principal::named("p"), "POST", "/a/"),
            scope("n", Principal::named("p"), "POST/", "a"),
        ];
        for (i, a) in scopes.iter().enumerate() {
            for b in &scopes[..i] {
                assert_ne!(RecordId::of(a, &key), RecordId::of(b, &key), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_credential_is_named_without_being_told() {
        let name = |secret: u8, field: &str, value: &str| {
            Principal::digest(&Secret::from_bytes([secret; 32]), field, value.as_bytes())
        };
        let ada = name(1, "authorization", "bearer ada");
        assert_eq!(ada, name(1, "authorization", "bearer ada"));
        // Pinned: a change here would make a new principal of everybody, and a new request of every
        // repeat.
        assert_eq!(ada.to_string(), "digest:e3c34ff37b27f35433b9115b646486a2");
        for other in [
            name(2, "authorization", "bearer ada"),
            name(1, "authorization", "bearer adb"),
            name(1, "x-api-key", "bearer ada"),
            name(1, "authorizationb", "earer ada"),
        ] {
            assert_ne!(ada, other);
        }
    }

    #[test]
    fn a_long_path_is_stored_as_its_beginning_and_digest() {
        let of = |path: String, name: String| {
            Arc::new(scope("n", Principal::named(name), "POST", &path))
        };
        let short = of("/a".repeat(256), "ada".into());
        assert!(
            Arc::ptr_eq(&short.stored(), &short),
            "what fits is kept as it is"
        );

        let (one, other) = (
            of(format!("/{}1", "é".repeat(15_000)), "p".repeat(2_000)),
            of(format!("/{}2", "é".repeat(15_000)), "p".repeat(2_000)),
        );
        let stored = one.stored();
        assert!(
            stored.path.len() <= STORED_BYTES_MAX && stored.path.starts_with("/éé"),
            "{}",
            stored.path.len()
        );
        assert_ne!(
            stored.path,
            other.stored().path,
            "the digest tells apart what begins alike"
        );
        assert!(stored.principal.to_string().len() <= STORED_BYTES_MAX);
        assert_eq!(stored.stored(), stored, "what was shortened stays as it is");
        assert_ne!(
            RecordId::of(&one, &Key::new("k").unwrap()),
            RecordId::of(&other, &Key::new("k").unwrap())
        );
    }

    #[test]
    fn principals_are_known_by_namespace_and_name() {
        let id = |namespace: &str, principal| {
            PrincipalId::of(&scope(namespace, principal, "POST", "/a"))
        };
        assert_eq!(id("n", Principal::Anonymous), None);
        assert_eq!(
            id("n", Principal::named("ada")),
            PrincipalId::of(&scope("n", Principal::named("ada"), "PATCH", "/b"))
        );
        assert_ne!(
            id("n", Principal::named("ada")),
            id("m", Principal::named("ada"))
        );
        assert_ne!(
            id("n", Principal::named("ada")),
            id("n", Principal::named("bob"))
        );
    }

    #[test]
    fn ids_survive_their_text() {
        let id = RecordId::of(
            &scope("n", Principal::Anonymous, "POST", "/"),
            &Key::new("k").unwrap(),
        );
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("xyz".parse::<RecordId>(), Err(NotARecordId));
    }
}
