//! Sealed copies: nobody without the store's secret can read or make one.

use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hapax_core::answer::Answer;
use hapax_core::operation::Secret;
use hapax_core::record::Record;
use hapax_core::scope::RecordId;

use crate::store::redis::head::{self, Policies, Reader};

/// The layout of a copy.
const FORMAT: u8 = 1;
/// Random for each copy. So long that two copies never have the same.
const NONCE_BYTES: usize = 24;

pub(super) struct Seal {
    cipher: XChaCha20Poly1305,
    policies: Policies,
}

/// A copy that was made here or on another node of the same store.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    /// The forget-epoch that was known when the record was read.
    pub(super) epoch: u64,
    pub(super) record: Record,
}

impl Seal {
    pub(super) fn new(secret: &Secret) -> Seal {
        let key = secret.key_for("hapax cache 1");
        Seal {
            cipher: XChaCha20Poly1305::new(&key.into()),
            policies: Policies::default(),
        }
    }

    /// A copy of an answered record.
    pub(super) fn seal(&self, record: &Record, epoch: u64) -> Vec<u8> {
        let id = &record.head.id;
        let mut plain = epoch.to_be_bytes().to_vec();
        head::push(&mut plain, &head::encode(&record.head));
        if let Some(answer) = &record.answer {
            plain.extend_from_slice(&answer.encode(id));
        }
        let nonce = random_nonce();
        let payload = Payload {
            msg: &plain,
            aad: &associated(id),
        };
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.expect("a copy is far below the limit of the cipher");
        [&[FORMAT][..], &nonce, &sealed].concat()
    }

    /// The copy in this value; `None` if it is no copy of this record.
    pub(super) fn open(&self, id: &RecordId, value: &[u8]) -> Option<Opened> {
        let (format, rest) = value.split_first()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>()?;
        if *format != FORMAT {
            return None;
        }
        let payload = Payload {
            msg: sealed,
            aad: &associated(id),
        };
        let plain = self.cipher.decrypt(&XNonce::from(*nonce), payload).ok()?;
        let mut rest = Reader(&plain);
        let epoch = rest.u64().ok()?;
        let head = rest.bytes().ok()?;
        let (head, _) = head::decode(*id, head, &self.policies, None).ok()?;
        let answer = Some(Arc::new(Answer::decode(id, rest.0).ok()?));
        Some(Opened {
            epoch,
            record: Record { head, answer },
        })
    }
}

/// What a copy belongs to, so that the copy of one record cannot stand for another.
fn associated(id: &RecordId) -> Vec<u8> {
    [&[FORMAT][..], id.as_bytes()].concat()
}

fn random_nonce() -> [u8; NONCE_BYTES] {
    let random = crate::store::random_secret().to_bytes();
    let mut nonce = [0; NONCE_BYTES];
    nonce.copy_from_slice(&random[..NONCE_BYTES]);
    nonce
}

#[cfg(test)]
mod tests {
    use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy};
    use hapax_core::key::Key;
    use hapax_core::record::{AttemptToken, Fence, Head, State};
    use hapax_core::scope::{Principal, Scope};
    use hapax_core::time::Timestamp;

    use super::*;

    fn record(key: &str) -> Record {
        let scope = Scope {
            namespace: "shop".into(),
            principal: Principal::named("ada"),
            method: "POST".into(),
            path: "/orders".into(),
        };
        let key = Key::new(key).unwrap();
        let time = Timestamp::from_micros(1_800_000_000_000_000);
        Record {
            head: Head {
                id: RecordId::of(&scope, &key),
                scope: Arc::new(scope),
                key,
                state: State::Completed,
                fence: Fence::from_u64(7),
                token: AttemptToken::default(),
                version: 9,
                attempts: 1,
                lease_until: time,
                fingerprint: Some(Fingerprint {
                    digest: [3; 32],
                    policy: Arc::new(FingerprintPolicy::default()),
                }),
                created_at: time,
                claimed_at: time,
                finished_at: time,
                expires_at: time,
                tombstone_until: time,
                status: Some(201),
                kept: true,
                request_id: None,
            },
            answer: Some(Arc::new(Answer::new(201, "paid"))),
        }
    }

    fn seal(byte: u8) -> Seal {
        Seal::new(&Secret::from_bytes([byte; 32]))
    }

    #[test]
    fn a_copy_opens_to_what_was_sealed() {
        let record = record("a");
        let value = seal(1).seal(&record, 5);
        let id = record.head.id;
        assert_eq!(seal(1).open(&id, &value), Some(Opened { epoch: 5, record }));
    }

    #[test]
    fn nothing_of_an_answer_can_be_read_in_a_copy() {
        let value = seal(1).seal(&record("a"), 5);
        for word in ["paid", "orders", "ada", "shop"] {
            let found = value
                .windows(word.len())
                .any(|window| window == word.as_bytes());
            assert!(!found, "{word}");
        }
    }

    #[test]
    fn a_copy_of_another_record_or_of_another_store_does_not_open() {
        let (one, other) = (record("a"), record("b"));
        let value = seal(1).seal(&one, 5);
        assert_eq!(seal(1).open(&other.head.id, &value), None);
        assert_eq!(seal(2).open(&one.head.id, &value), None);
    }

    #[test]
    fn a_copy_with_any_byte_changed_or_missing_does_not_open() {
        let record = record("a");
        let (seal, id) = (seal(1), record.head.id);
        let value = seal.seal(&record, 5);
        for at in 0..value.len() {
            let mut forged = value.clone();
            forged[at] ^= 1;
            assert_eq!(seal.open(&id, &forged), None, "byte {at}");
            assert_eq!(seal.open(&id, &value[..at]), None, "cut at {at}");
        }
    }
}
