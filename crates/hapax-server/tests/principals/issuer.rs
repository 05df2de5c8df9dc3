//! Issues tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
use serde_json::{Value, json};

pub const ISSUER: &str = "https://id.example";
pub const AUDIENCE: &str = "payments";

/// One signing key of an issuer.
pub struct Issuer {
    pub kid: String,
    pub algorithm: Algorithm,
    pair: KeyPair,
}

impl Issuer {
    pub fn new(kid: &str, algorithm: Algorithm) -> Issuer {
        let kind = match algorithm {
            Algorithm::ES256 => &PKCS_ECDSA_P256_SHA256,
            Algorithm::EdDSA => &PKCS_ED25519,
            _ => &PKCS_RSA_SHA256,
        };
        Issuer {
            kid: kid.to_owned(),
            algorithm,
            pair: KeyPair::generate_for(kind).unwrap(),
        }
    }

    pub fn public_pem(&self) -> String {
        self.pair.public_key_pem()
    }

    /// The published form of this key.
    pub fn jwk(&self) -> Value {
        let pem = self.public_pem();
        let key = match self.algorithm {
            Algorithm::ES256 => DecodingKey::from_ec_pem(pem.as_bytes()),
            Algorithm::EdDSA => DecodingKey::from_ed_pem(pem.as_bytes()),
            _ => DecodingKey::from_rsa_pem(pem.as_bytes()),
        };
        let mut jwk =
            serde_json::to_value(Jwk::from_decoding_key(&key.unwrap(), None).unwrap()).unwrap();
        jwk["kid"] = self.kid.clone().into();
        jwk["use"] = "sig".into();
        jwk
    }

    pub fn header(&self) -> Header {
        Header {
            kid: Some(self.kid.clone()),
            ..Header::new(self.algorithm)
        }
    }

    pub fn token(&self, subject: &str) -> String {
        self.sign(&self.header(), &claims(subject))
    }

    pub fn sign(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &self.signing_key()).unwrap()
    }

    /// Signs a header that no library would write.
    pub fn sign_raw(&self, header: &Value, claims: &Value) -> String {
        let message = format!(
            "{}.{}",
            base64(header.to_string().as_bytes()),
            base64(claims.to_string().as_bytes())
        );
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &self.signing_key(), self.algorithm)
                .unwrap();
        format!("{message}.{signature}")
    }

    fn signing_key(&self) -> EncodingKey {
        let pem = self.pair.serialize_pem();
        let key = match self.algorithm {
            Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()),
            Algorithm::EdDSA => EncodingKey::from_ed_pem(pem.as_bytes()),
            _ => EncodingKey::from_rsa_pem(pem.as_bytes()),
        };
        key.unwrap()
    }
}

/// The key set of these issuers.
pub fn jwks(issuers: &[&Issuer]) -> String {
    json!({ "keys": issuers.iter().map(|issuer| issuer.jwk()).collect::<Vec<_>>() }).to_string()
}

/// Valid claims.
pub fn claims(subject: &str) -> Value {
    json!({"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": now() + 600, "iat": now()})
}

/// The same with one claim changed, or removed if `value` is null.
pub fn claims_but(subject: &str, name: &str, value: Value) -> Value {
    let mut claims = claims(subject);
    match value {
        Value::Null => claims.as_object_mut().unwrap().remove(name),
        value => claims
            .as_object_mut()
            .unwrap()
            .insert(name.to_owned(), value),
    };
    claims
}

pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// base64url without padding.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .chain(&[0, 0])
            .take(3)
            .fold(0_usize, |group, byte| group << 8 | usize::from(*byte));
        (0..=chunk.len())
            .for_each(|letter| text.push(char::from(LETTERS[group >> (18 - 6 * letter) & 63])));
    }
    text
}
