//! Signatures by the Standard Webhooks specification.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderValue;
use http::header::HeaderMap;
use sha2::Sha256;

/// The length of a shared secret in bytes, as the specification has it.
const SHARED_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// The length of the seed of a private key, which may be followed by as many bytes of public key.
const SEED_BYTES: usize = 32;

/// With or without padding: secrets are copied by hand.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Signs webhooks: `whsec_…`, which the receiver has too, or `whsk_…`, a private key.
///
/// It is parsed from text, and never printed.
#[derive(Clone)]
pub struct Secret(Arc<Key>);

enum Key {
    Shared(Hmac<Sha256>),
    Private(Ed25519KeyPair),
}

/// The text is no secret. The error does not repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// It begins with neither prefix.
    #[error(
        "a secret of webhooks begins with whsec_ (shared with the receiver) or whsk_ (private key)"
    )]
    Prefix,
    /// The rest is no base64.
    #[error("the part of a secret of webhooks after its prefix is base64")]
    Base64,
    /// A shared secret is too short or too long.
    #[error("a shared secret of webhooks has 24 to 64 bytes before it is encoded")]
    SharedLength,
    /// It is no private key of Ed25519.
    #[error(
        "a private key of webhooks is an Ed25519 key: 32 bytes, or 64 with its public key behind it"
    )]
    PrivateKey,
}

impl FromStr for Secret {
    type Err = SecretError;

    /// Reads a secret. Space around it is ignored, such as the end of a file's line.
    fn from_str(text: &str) -> Result<Secret, SecretError> {
        let text = text.trim();
        let decode = |encoded: &str| BASE64.decode(encoded).map_err(|_| SecretError::Base64);
        let key = if let Some(encoded) = text.strip_prefix("whsec_") {
            shared(&decode(encoded)?)?
        } else if let Some(encoded) = text.strip_prefix("whsk_") {
            private(&decode(encoded)?)?
        } else {
            return Err(SecretError::Prefix);
        };
        Ok(Secret(Arc::new(key)))
    }
}

fn shared(bytes: &[u8]) -> Result<Key, SecretError> {
    if !SHARED_BYTES.contains(&bytes.len()) {
        return Err(SecretError::SharedLength);
    }
    let mac = Hmac::new_from_slice(bytes).expect("HMAC takes a key of any length");
    Ok(Key::Shared(mac))
}

fn private(bytes: &[u8]) -> Result<Key, SecretError> {
    let pair = match bytes.split_at_checked(SEED_BYTES) {
        Some((seed, [])) => Ed25519KeyPair::from_seed_unchecked(seed),
        Some((seed, public)) => Ed25519KeyPair::from_seed_and_public_key(seed, public),
        None => return Err(SecretError::PrivateKey),
    };
    pair.map(Key::Private).map_err(|_| SecretError::PrivateKey)
}

impl Secret {
    /// What the receivers of messages signed with a private key need: `whpk_…`.
    pub fn public_key(&self) -> Option<String> {
        match &*self.0 {
            Key::Shared(_) => None,
            Key::Private(pair) => {
                let encoded = STANDARD.encode(pair.public_key().as_ref());
                Some(format!("whpk_{encoded}"))
            }
        }
    }

    fn sign(&self, head: &str, body: &[u8]) -> String {
        match &*self.0 {
            Key::Shared(mac) => {
                let mut mac = mac.clone();
                mac.update(head.as_bytes());
                mac.update(body);
                format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
            }
            Key::Private(pair) => {
                let signature = pair.sign(&[head.as_bytes(), body].concat());
                format!("v1a,{}", STANDARD.encode(signature.as_ref()))
            }
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &*self.0 {
            Key::Shared(_) => "Secret(whsec_…)",
            Key::Private(_) => "Secret(whsk_…)",
        })
    }
}

/// Adds the id, the time of this try and its signatures, one by each secret. Without secrets the
/// request is not signed.
pub(crate) fn add_headers(
    headers: &mut HeaderMap,
    secrets: &[Secret],
    id: &str,
    seconds: u64,
    body: &[u8],
) {
    let value = |text: &str| HeaderValue::from_str(text).expect("it is printable ASCII");
    headers.insert("webhook-id", value(id));
    headers.insert("webhook-timestamp", HeaderValue::from(seconds));
    if !secrets.is_empty() {
        let signatures = signatures(secrets, id, seconds, body);
        headers.insert("webhook-signature", value(&signatures));
    }
}

fn signatures(secrets: &[Secret], id: &str, seconds: u64, body: &[u8]) -> String {
    let head = format!("{id}.{seconds}.");
    let each: Vec<String> = secrets
        .iter()
        .map(|secret| secret.sign(&head, body))
        .collect();
    each.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

    fn secret(prefix: &str, bytes: &[u8]) -> Result<Secret, SecretError> {
        format!("{prefix}{}\n", STANDARD.encode(bytes)).parse()
    }

    #[test]
    fn a_signature_with_a_shared_secret_is_pinned() {
        // Computed with Python's hmac over "m1.1674087231.{}".
        let signed = signatures(
            &[secret("whsec_", &[7; 24]).unwrap()],
            "m1",
            1_674_087_231,
            b"{}",
        );
        assert_eq!(signed, "v1,6by8nPRlAbYXmeIf6BiHbjmXkXv2GCg+F+TwMbt1fjg=");
    }

    #[test]
    fn a_private_key_signs_what_its_public_key_verifies() {
        let secret = secret("whsk_", &[9; SEED_BYTES]).unwrap();
        let signed = signatures(std::slice::from_ref(&secret), "m1", 5, b"body");
        let signature = STANDARD
            .decode(signed.strip_prefix("v1a,").unwrap())
            .unwrap();
        let public = secret.public_key().unwrap();
        let public = STANDARD
            .decode(public.strip_prefix("whpk_").unwrap())
            .unwrap();
        UnparsedPublicKey::new(&ED25519, public)
            .verify(b"m1.5.body", &signature)
            .unwrap();
    }

    #[test]
    fn each_secret_signs_in_its_turn() {
        let secrets = [
            secret("whsec_", &[1; 32]).unwrap(),
            secret("whsk_", &[2; SEED_BYTES]).unwrap(),
            secret("whsec_", &[3; 32]).unwrap(),
        ];
        let signed = signatures(&secrets, "m1", 5, b"");
        let versions: Vec<&str> = signed
            .split(' ')
            .map(|one| one.split_once(',').unwrap().0)
            .collect();
        assert_eq!(versions, ["v1", "v1a", "v1"]);
    }

    #[test]
    fn without_secrets_nothing_is_signed() {
        let mut headers = HeaderMap::new();
        add_headers(&mut headers, &[], "m1", 5, b"");
        assert_eq!(headers["webhook-id"], "m1");
        assert!(!headers.contains_key("webhook-signature"));
    }

    #[test]
    fn a_private_key_with_another_public_key_behind_it_is_refused() {
        let own = secret("whsk_", &[9; SEED_BYTES]).unwrap();
        let public = own.public_key().unwrap();
        let public = STANDARD
            .decode(public.strip_prefix("whpk_").unwrap())
            .unwrap();
        let whole = [&[9; SEED_BYTES][..], &public].concat();
        assert_eq!(
            secret("whsk_", &whole).unwrap().public_key(),
            own.public_key()
        );
        let other = [&[8; SEED_BYTES][..], &public].concat();
        assert_eq!(
            secret("whsk_", &other).unwrap_err(),
            SecretError::PrivateKey
        );
    }

    #[test]
    fn what_is_no_secret_is_refused_and_no_secret_is_printed() {
        for (text, error) in [
            ("", SecretError::Prefix),
            ("hunter2", SecretError::Prefix),
            ("whsec_***", SecretError::Base64),
            ("whsec_aHVudGVyMg==", SecretError::SharedLength),
            ("whsk_aHVudGVyMg==", SecretError::PrivateKey),
        ] {
            assert_eq!(text.parse::<Secret>().unwrap_err(), error, "{text}");
        }
        let unpadded = format!("whsec_{}", STANDARD.encode([7; 25]).trim_end_matches('='));
        let printed = format!("{:?}", unpadded.parse::<Secret>().unwrap());
        assert_eq!(printed, "Secret(whsec_…)");
    }
}
