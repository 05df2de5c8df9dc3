//! The operation id: what an upstream sees instead of the scope, and the keys derived from it.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::digest::{Parts, hex};
use crate::key::Key;
use crate::scope::RecordId;

/// The secret that makes operation ids and issued tokens unguessable. Kept by the store, so that every node has the same one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A secret from a good source of randomness, which this crate does not have.
    pub const fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// The secret as a store keeps it.
    pub const fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    pub(crate) fn sign(&self, digest: &[u8; 32]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(digest);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How many bytes of an operation id are each of its halves: the proof, and what the record is found by.
const HALF: usize = 16;

/// Opaque, unguessable, and the same for every attempt of one scope and key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(Arc<str>);

impl OperationId {
    /// The operation a record stands for: what finds the record, behind what only the store's nodes can put before it.
    ///
    /// Made so that a database can check it with nothing but a digest, and find the record by the beginning of its id. The secret comes before
    /// the rest and everything has one length, so that nobody can make one from another.
    pub fn of(record: &RecordId, secret: &Secret) -> OperationId {
        let found_by = &record.as_bytes()[..HALF];
        let mut parts = Parts::new("hapax operation 2");
        parts.push(&secret.0);
        parts.push(found_by);
        let mut bytes = [0; 2 * HALF];
        bytes[..HALF].copy_from_slice(&parts.finish()[..HALF]);
        bytes[HALF..].copy_from_slice(found_by);
        OperationId(hex(&bytes).into())
    }

    /// The key under which this operation calls the next service in `step`: the same one each time it is derived, so that a repeat
    /// of this operation is a repeat there too. Spelled as a UUID, the shape every API accepts.
    pub fn derive(&self, step: &str) -> Key {
        let mut parts = Parts::new("hapax derived key 1");
        parts.push(self.0.as_bytes());
        parts.push(step.as_bytes());
        let digest = parts.finish();
        let bytes: [u8; 16] = std::array::from_fn(|i| digest[i]);
        Key::new(uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()).expect("a UUID is a key")
    }

    /// The id as it travels in `Hapax-Operation`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_keys_are_stable_and_apart() {
        let record = RecordId::from_bytes([7; 32]);
        let operation = OperationId::of(&record, &Secret::from_bytes([1; 32]));
        assert_eq!(operation.derive("charge"), OperationId::of(&record, &Secret::from_bytes([1; 32])).derive("charge"));
        assert_ne!(operation.derive("charge"), operation.derive("mail"));
        assert_ne!(operation, OperationId::of(&record, &Secret::from_bytes([2; 32])));
        // Pinned: a change here would make every repeat of an old operation a new request downstream.
        assert_eq!(operation.as_str(), "9d90f7d40a268b4ccd5d8487ad5df5f007070707070707070707070707070707");
        assert_eq!(operation.derive("charge").as_str(), "09c04e10-914b-8a62-a23f-c103fba95f5e");
    }
}
