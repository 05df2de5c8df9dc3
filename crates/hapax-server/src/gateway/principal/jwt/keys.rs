//! The keys that verify tokens.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;

/// Limit on the keys of a set; more than any issuer uses at a time.
const KEYS_MAX: usize = 100;
/// The minimal RSA modulus. Shorter keys can be broken, and the cryptography library refuses them
/// too.
const RSA_BYTES_MIN: usize = 2048 / 8;

/// Keys, and the allowed algorithms.
pub(super) struct KeySet {
    keys: Vec<VerifyingKey>,
    algorithms: Vec<Algorithm>,
    /// Why there is no usable key, if there is none.
    lack: Option<String>,
}

/// One key.
pub(super) struct VerifyingKey {
    name: Option<String>,
    /// The algorithms that it may verify: the allowed ones that fit its kind, or only the one that
    /// the key itself names.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// Reads public keys: a JWK set, or one key in PEM. A readable document may hold no usable key:
    /// that is how an issuer withdraws its last one.
    pub(super) fn public(text: &[u8], algorithms: &[Algorithm]) -> Result<KeySet, String> {
        let is_set = text.trim_ascii().starts_with(b"{");
        let keys = if is_set {
            jwk_set(text, algorithms)?
        } else {
            pem(text, algorithms)?.into_iter().collect()
        };
        let lack = keys.is_empty().then(|| match is_set {
            true => format!("it holds no key for signatures by {}", words(algorithms)),
            false => format!(
                "this key does not sign by {}, or is shorter than 2048 bits",
                words(algorithms)
            ),
        });
        Ok(KeySet {
            keys,
            algorithms: algorithms.to_vec(),
            lack,
        })
    }

    /// Reads a shared secret: the bytes as they are, without a newline at the end. It must be at
    /// least as long as the digest (RFC 7518 section 3.2).
    pub(super) fn secret(bytes: &[u8], algorithms: &[Algorithm]) -> Result<KeySet, String> {
        let secret = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
        let wanted = algorithms
            .iter()
            .copied()
            .map(digest_bytes)
            .max()
            .unwrap_or_default();
        if secret.len() < wanted {
            return Err(format!(
                "a secret of {} bytes can be guessed: {wanted} are needed; openssl rand -hex 32 makes 64",
                secret.len()
            ));
        }
        let key = VerifyingKey {
            name: None,
            algorithms: algorithms.to_vec(),
            key: DecodingKey::from_secret(secret),
        };
        Ok(KeySet {
            keys: vec![key],
            algorithms: algorithms.to_vec(),
            lack: None,
        })
    }

    pub(super) fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Why no token can be valid, if there is no key to verify one with.
    pub(super) fn lack(&self) -> Option<&str> {
        self.lack.as_deref()
    }

    /// Whether there are keys without a name.
    pub(super) fn has_nameless(&self) -> bool {
        self.keys.iter().any(|key| key.name.is_none())
    }

    /// The keys that may have signed a token: those with the name it gives, and those without a
    /// name. A key with a name is used only for tokens that give that name.
    pub(super) fn named(&self, name: Option<&str>) -> impl Iterator<Item = &VerifyingKey> {
        self.keys
            .iter()
            .filter(move |key| key.name.is_none() || key.name.as_deref() == name)
    }
}

fn digest_bytes(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::HS384 => 48,
        Algorithm::HS512 => 64,
        _ => 32,
    }
}

fn jwk_set(text: &[u8], algorithms: &[Algorithm]) -> Result<Vec<VerifyingKey>, String> {
    let document: Document = serde_json::from_slice(text)
        .map_err(|error| format!("this is no JWK set, {{\"keys\": […]}}: {error}"))?;
    if document.keys.len() > KEYS_MAX {
        return Err(format!(
            "a set of {} keys is over the limit of {KEYS_MAX}",
            document.keys.len()
        ));
    }
    // An issuer may have keys for other purposes, and of unknown kinds. Those are skipped.
    let jwks = document
        .keys
        .into_iter()
        .filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    Ok(jwks.filter_map(|jwk| verifying(&jwk, algorithms)).collect())
}

fn words(algorithms: &[Algorithm]) -> String {
    algorithms
        .iter()
        .map(|algorithm| format!("{algorithm:?}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The key, if it is meant for verifying and fits an allowed algorithm.
fn verifying(jwk: &Jwk, allowed: &[Algorithm]) -> Option<VerifyingKey> {
    let common = &jwk.common;
    let is_for_signatures = common
        .public_key_use
        .as_ref()
        .is_none_or(|purpose| *purpose == PublicKeyUse::Signature)
        && common
            .key_operations
            .as_ref()
            .is_none_or(|operations| operations.contains(&KeyOperations::Verify));
    let key = DecodingKey::from_jwk(jwk)
        .ok()
        .filter(|key| is_for_signatures && is_long_enough(key))?;
    let fits = |algorithm: &Algorithm| {
        is_of_kind(&jwk.algorithm, *algorithm)
            && common
                .key_algorithm
                .is_none_or(|own| own == (*algorithm).into())
    };
    let algorithms: Vec<_> = allowed.iter().copied().filter(fits).collect();
    (!algorithms.is_empty()).then(|| VerifyingKey {
        name: common.key_id.clone(),
        algorithms,
        key,
    })
}

fn is_long_enough(key: &DecodingKey) -> bool {
    match key.kind() {
        jsonwebtoken::DecodingKeyKind::RsaModulusExponent { n, .. } => {
            n.iter().skip_while(|byte| **byte == 0).count() >= RSA_BYTES_MIN
        }
        jsonwebtoken::DecodingKeyKind::SecretOrDer(_) => true,
    }
}

/// Whether a key of this kind can sign with that algorithm. Shared secrets are never accepted here:
/// a JWK set is public.
fn is_of_kind(key: &AlgorithmParameters, algorithm: Algorithm) -> bool {
    match key {
        AlgorithmParameters::RSA(_) => algorithm.family() == AlgorithmFamily::Rsa,
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => algorithm == Algorithm::ES256,
            EllipticCurve::P384 => algorithm == Algorithm::ES384,
            _ => false,
        },
        AlgorithmParameters::OctetKeyPair(key) => {
            key.curve == EllipticCurve::Ed25519 && algorithm == Algorithm::EdDSA
        }
        _ => false,
    }
}

fn pem(text: &[u8], algorithms: &[Algorithm]) -> Result<Option<VerifyingKey>, String> {
    let says = |what: &str| memchr::memmem::find(text, what.as_bytes()).is_some();
    if says("PRIVATE KEY-----") {
        return Err(
            "this is a private key, which only the issuer should have: openssl pkey -in FILE -pubout writes its public key"
                .to_owned(),
        );
    }
    if says("BEGIN CERTIFICATE-----") {
        return Err(
            "this is a certificate: openssl x509 -in FILE -pubkey -noout writes its public key"
                .to_owned(),
        );
    }
    if memchr::memmem::find_iter(text, b"-----BEGIN ").count() > 1 {
        return Err("there is more than one key: for that, write a JWK set, {\"keys\": […]}, in which each has a name".to_owned());
    }
    let read = [
        DecodingKey::from_rsa_pem,
        DecodingKey::from_ec_pem,
        DecodingKey::from_ed_pem,
    ]
    .into_iter()
    .find_map(|read| read(text).ok());
    let key = read.ok_or("this is neither a JWK set, {\"keys\": […]}, nor a public key in PEM")?;
    let jwk = Jwk::from_decoding_key(&key, None)
        .map_err(|error| format!("this public key cannot be read: {error}"))?;
    Ok(verifying(&jwk, algorithms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_as_long_as_its_digest() {
        let secret =
            |bytes: usize, algorithm| KeySet::secret(&vec![b'x'; bytes], &[algorithm]).is_ok();
        assert!(secret(32, Algorithm::HS256) && !secret(31, Algorithm::HS256));
        assert!(secret(48, Algorithm::HS384) && !secret(47, Algorithm::HS384));
        assert!(secret(64, Algorithm::HS512) && !secret(63, Algorithm::HS512));
        let newline = [&[b'x'; 31][..], b"\r\n"].concat();
        assert!(
            KeySet::secret(&newline, &[Algorithm::HS256]).is_err(),
            "the end of a line is not part of it"
        );
    }

    #[test]
    fn what_holds_no_fitting_key_is_told() {
        let ed =
            r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
        let told = |text: &str, algorithm| {
            let set = KeySet::public(text.as_bytes(), &[algorithm])?;
            set.lack()
                .map_or(Ok(set.len()), |lack| Err(lack.to_owned()))
        };
        let set = |keys: &str| format!("{{\"keys\": [{keys}]}}");
        assert_eq!(told(&set(ed), Algorithm::EdDSA), Ok(1));
        assert_eq!(
            told(
                &set(&format!("{ed}, {{\"kty\": \"new\"}}, 7")),
                Algorithm::EdDSA
            ),
            Ok(1),
            "others are not ours to read"
        );
        for (text, algorithm, says) in [
            (set(ed), Algorithm::RS256, "no key for signatures by RS256"),
            (set(""), Algorithm::RS256, "no key"),
            (
                set(&ed.replace("\"x\"", "\"use\":\"enc\",\"x\"")),
                Algorithm::EdDSA,
                "no key",
            ),
            (
                set(&ed.replace("\"x\"", "\"key_ops\":[\"sign\"],\"x\"")),
                Algorithm::EdDSA,
                "no key",
            ),
            (
                set(&ed.replace("\"x\"", "\"alg\":\"ES256\",\"x\"")),
                Algorithm::EdDSA,
                "no key",
            ),
            (
                set(r#"{"kty":"oct","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}"#),
                Algorithm::HS256,
                "no key",
            ),
            (
                set(r#"{"kty":"RSA","n":"u1SU1L","e":"AQAB"}"#),
                Algorithm::RS256,
                "no key",
            ),
            (ed.to_owned(), Algorithm::EdDSA, "this is no JWK set"),
            ("{".to_owned(), Algorithm::EdDSA, "this is no JWK set"),
            (String::new(), Algorithm::EdDSA, "neither a JWK set"),
            (
                "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n".to_owned(),
                Algorithm::RS256,
                "a private key",
            ),
            (
                "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n".to_owned(),
                Algorithm::RS256,
                "a certificate",
            ),
            (
                "-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----\n".to_owned(),
                Algorithm::RS256,
                "neither",
            ),
        ] {
            let error = told(&text, algorithm).expect_err(&text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
