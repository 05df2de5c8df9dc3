//! The operation id: what an upstream sees instead of the scope, and the keys derived from it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::digest::{Parts, hex};
use crate::key::Key;
use crate::scope::RecordId;
use crate::time::Timestamp;

/// The secret that makes operation ids and issued tokens unguessable. The store keeps it, so that
/// every node has the same one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A secret from 32 random bytes. This crate has no source of randomness.
    pub const fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// The secret as a store keeps it.
    pub const fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// A key for one purpose, which says nothing about the secret or about other keys.
    pub fn key_for(&self, purpose: &str) -> [u8; 32] {
        self.sign(&Parts::new(purpose).finish())
    }

    pub(crate) fn sign(&self, digest: &[u8; 32]) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(digest);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Bytes in each half of an operation id. The first half is the proof; the second is the beginning
/// of the record's id.
const HALF: usize = 16;
/// Bytes of the proof that identify the store. The rest of the proof identifies the life of the
/// key.
const STORE_BYTES: usize = 8;

/// How long an upgraded store goes on making ids by the first rule after it has learned the second
/// (see [`OperationIds`]). During that time nodes of the previous version may still serve beside
/// newer ones, and both must give one operation the same id.
pub const GRACE: Duration = Duration::from_secs(60 * 60);

/// Makes the operation ids of one store.
///
/// There are two rules. By the first, every life of a scope and key has the same id. By the second,
/// each life has its own id: a key that is used again after its tombstone is over names another
/// operation, so a service that remembers the first operation does not confuse the two. The
/// record's `created_at` decides which rule applies. A record keeps its `created_at` through every
/// takeover, so a record made before the second rule keeps its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationIds {
    secret: Secret,
    lives_since: Timestamp,
}

impl OperationIds {
    /// For the store with this secret, in which records created at `lives_since` or later follow
    /// the second rule.
    pub const fn new(secret: Secret, lives_since: Timestamp) -> OperationIds {
        OperationIds {
            secret,
            lives_since,
        }
    }

    /// The store's secret.
    pub const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The id by the first rule, whenever the record was made: for work whose claim is part of its
    /// own transaction. After a rollback nothing is left of the record, and the next transaction
    /// must be the same operation.
    pub fn of_every_life(&self, record: &RecordId) -> OperationId {
        OperationIds::new(self.secret, Timestamp::from_micros(u64::MAX))
            .make(record, Timestamp::ZERO)
    }

    /// The id of a record's operation: the proof, then the first half of the record's id.
    ///
    /// A database can check the id with a digest alone, and finds the record by the second half. In
    /// each digest the secret comes first and all inputs have a fixed length, so one id cannot be
    /// extended into another.
    pub fn make(&self, record: &RecordId, created_at: Timestamp) -> OperationId {
        let found_by = &record.as_bytes()[..HALF];
        let mut store = Parts::new("hapax operation 2");
        store.push(&self.secret.0);
        store.push(found_by);
        let mut bytes = [0; 2 * HALF];
        bytes[..HALF].copy_from_slice(&store.finish()[..HALF]);
        if created_at >= self.lives_since {
            let mut life = Parts::new("hapax operation 3");
            life.push(&self.secret.0);
            life.push(found_by);
            life.push(&created_at.as_micros().to_be_bytes());
            bytes[STORE_BYTES..HALF].copy_from_slice(&life.finish()[..HALF - STORE_BYTES]);
        }
        bytes[HALF..].copy_from_slice(found_by);
        OperationId(hex(&bytes).into())
    }
}

/// An operation id: opaque, unguessable, and the same for every attempt in one life of a scope and
/// key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(Arc<str>);

impl OperationId {
    /// The key under which this operation calls the next service in `step`. It is always the same,
    /// so a repeat of this operation is a repeat there too. It is formatted as a UUID, which every
    /// API accepts.
    pub fn derive(&self, step: &str) -> Key {
        let mut parts = Parts::new("hapax derived key 1");
        parts.push(self.0.as_bytes());
        parts.push(step.as_bytes());
        let digest = parts.finish();
        let bytes: [u8; 16] = std::array::from_fn(|i| digest[i]);
        Key::new(
            uuid::Builder::from_custom_bytes(bytes)
                .into_uuid()
                .to_string(),
        )
        .expect("a UUID is a key")
    }

    /// The id as sent in `Hapax-Operation`.
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

    const RECORD: RecordId = RecordId::from_bytes([7; 32]);
    const LIVES_SINCE: Timestamp = Timestamp::from_micros(1_000_000);

    fn ids(secret: u8) -> OperationIds {
        OperationIds::new(Secret::from_bytes([secret; 32]), LIVES_SINCE)
    }

    #[test]
    fn a_record_from_before_lives_keeps_its_id() {
        let before = Timestamp::from_micros(LIVES_SINCE.as_micros() - 1);
        let operation = ids(1).make(&RECORD, before);
        assert_eq!(
            operation,
            ids(1).make(&RECORD, Timestamp::ZERO),
            "one id for every life"
        );
        assert_ne!(operation, ids(2).make(&RECORD, before));
        assert_ne!(operation.derive("charge"), operation.derive("mail"));
        // Pinned: a change here would turn every repeat of an old operation into a new request
        // downstream.
        assert_eq!(
            operation.as_str(),
            "9d90f7d40a268b4ccd5d8487ad5df5f007070707070707070707070707070707"
        );
        assert_eq!(
            operation.derive("charge").as_str(),
            "09c04e10-914b-8a62-a23f-c103fba95f5e"
        );
    }

    #[test]
    fn every_life_of_a_key_is_an_operation_of_its_own() {
        let operation = ids(1).make(&RECORD, LIVES_SINCE);
        let next = ids(1).make(&RECORD, Timestamp::from_micros(LIVES_SINCE.as_micros() + 1));
        assert_eq!(
            operation,
            ids(1).make(&RECORD, LIVES_SINCE),
            "the same for every attempt"
        );
        assert_ne!(operation, next);
        assert_ne!(operation.derive("charge"), next.derive("charge"));
        assert_ne!(operation, ids(2).make(&RECORD, LIVES_SINCE));
        // A database recognises its own operations by the first eight bytes, and finds the record
        // by the last sixteen. Both lives share these bytes.
        assert_eq!(operation.as_str()[..16], next.as_str()[..16]);
        assert_eq!(operation.as_str()[32..], next.as_str()[32..]);
        // Pinned, as above.
        assert_eq!(
            operation.as_str(),
            "9d90f7d40a268b4c602e828225d981ec07070707070707070707070707070707"
        );
        assert_eq!(
            operation.derive("charge").as_str(),
            "5648987c-9356-83b0-8520-6e0681ad6567"
        );
    }
}
