//! The scope: to whom a key belongs, and for which operation.

use std::fmt;
use std::sync::Arc;

use crate::digest::{Parts, hex, unhex};
use crate::key::Key;
use crate::operation::Secret;

/// The caller to whom a key belongs. Two principals never share a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// Callers without a name: all anonymous callers of a namespace are the same principal.
    Anonymous,
    /// A caller with a name that an authentication step vouches for.
    Named(Arc<str>),
}

impl Principal {
    /// A principal with this name.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Principal::Named(name.into())
    }

    /// A principal known only by a credential: the caller that presents this value in this field.
    /// The digest is keyed, so that the credential cannot be guessed from the name in a store, a
    /// log or a listing. The digest proves only that the same value was presented.
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

/// A caller with this name.
impl From<&str> for Principal {
    fn from(name: &str) -> Self {
        Principal::named(name)
    }
}

/// A caller with this name.
impl From<String> for Principal {
    fn from(name: String) -> Self {
        Principal::named(name)
    }
}

/// A caller with this name.
impl From<Arc<str>> for Principal {
    fn from(name: Arc<str>) -> Self {
        Principal::named(name)
    }
}

/// A caller with this number, as databases number users. The number 7 and the name `7` are the same
/// principal: where callers are of several kinds, name them with a prefix.
impl From<i64> for Principal {
    fn from(id: i64) -> Self {
        Principal::named(id.to_string())
    }
}

/// A caller with this number, as from `i64`.
impl From<u64> for Principal {
    fn from(id: u64) -> Self {
        Principal::named(id.to_string())
    }
}

/// A caller with this number, as from `i64`.
impl From<i32> for Principal {
    fn from(id: i32) -> Self {
        Principal::named(id.to_string())
    }
}

/// A caller with this number, as from `i64`.
impl From<u32> for Principal {
    fn from(id: u32) -> Self {
        Principal::named(id.to_string())
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
    /// Separates services that share a store.
    pub namespace: Arc<str>,
    /// The caller to whom the key belongs.
    pub principal: Principal,
    /// The request method; callers without HTTP may use any verb.
    pub method: Arc<str>,
    /// The concrete path as sent, without its query.
    pub path: Arc<str>,
}

/// The longest path, and the longest principal name, that a record keeps whole, in bytes.
pub const STORED_BYTES_MAX: usize = 512;

impl Scope {
    /// The scope as a record keeps it. A path or a name over [`STORED_BYTES_MAX`] is kept as its
    /// beginning and its digest, so that one request cannot fill a store. Record ids and
    /// fingerprints use the whole scope, never the shortened one.
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
    let mut length = STORED_BYTES_MAX - end.len();
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    format!("{}{end}", &text[..length]).into()
}

/// The id of a principal in a store: a digest of its namespace and its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrincipalId([u8; 16]);

impl PrincipalId {
    /// The id of the principal in this scope. `None` for anonymous callers, who cannot be told
    /// apart.
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

/// The id of a record in a store: a digest of scope and key.
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
        // Pinned: a change here would give every caller a new principal and turn every repeat into
        // a new request.
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
