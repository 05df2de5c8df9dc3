//! Incoming webhooks, signed as [Standard Webhooks](https://www.standardwebhooks.com) says.
//!
//! ```
//! # use hapax::{Hapax, StandardWebhooks};
//! # fn example(hapax: Hapax, secret: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let webhooks = StandardWebhooks::new("payments").secret(secret)?;
//! let guard = hapax.guard().standard_webhooks(webhooks).build()?;
//! # drop(guard); Ok(()) }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hapax_core::rejection::{Flaw, Rejection};
use hapax_core::scope::Principal;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use http_body_util::BodyExt;
use sha2::Sha256;

use super::body::Body;

/// The header with the id of a webhook, which is its key.
pub(super) const ID: &str = "webhook-id";
const TIMESTAMP: &str = "webhook-timestamp";
const SIGNATURE: &str = "webhook-signature";

/// By how much the time of a webhook may differ from the clock here.
const TOLERANCE: Duration = Duration::from_secs(5 * 60);
/// The length of a secret in bytes, as the specification has it.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// More signatures are not looked at. A sender has one for each of its secrets.
const SIGNATURES_MAX: usize = 16;

/// With or without padding: secrets are copied by hand.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A sender of webhooks, and what it signs them with.
///
/// A webhook is verified over its raw body, before anything else is done about it: its signature by
/// any of the secrets, in constant time, and its time, which may differ from the clock here by five
/// minutes. One that is not good gets 401 `credentials-invalid`, has no record, and reaches nobody.
#[derive(Clone)]
pub struct StandardWebhooks {
    principal: Principal,
    secrets: Vec<Hmac<Sha256>>,
    tolerance: Duration,
}

/// The text is no secret of webhooks. The error does not repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret of webhooks is whsec_ and base64 of 24 to 64 bytes")]
pub struct WebhookSecretError;

impl StandardWebhooks {
    /// A sender of this name, without secrets: none of its webhooks is good yet.
    ///
    /// The principal of its webhooks is `standard-webhooks:NAME`. Two senders need two names, since
    /// both may use the same `webhook-id`.
    pub fn new(name: &str) -> StandardWebhooks {
        StandardWebhooks {
            principal: Principal::named(format!("standard-webhooks:{name}")),
            secrets: Vec::new(),
            tolerance: TOLERANCE,
        }
    }

    /// Adds a secret, `whsec_…`. With several, a webhook may be signed by any: the sender changes
    /// its secret while both are here.
    ///
    /// # Errors
    ///
    /// [`WebhookSecretError`] if it is none.
    pub fn secret(mut self, secret: &str) -> Result<StandardWebhooks, WebhookSecretError> {
        let encoded = secret.trim().strip_prefix("whsec_");
        let bytes = encoded.and_then(|encoded| BASE64.decode(encoded).ok());
        let bytes = bytes
            .filter(|bytes| SECRET_BYTES.contains(&bytes.len()))
            .ok_or(WebhookSecretError)?;
        let secret = Hmac::new_from_slice(&bytes).map_err(|_| WebhookSecretError)?;
        self.secrets.push(secret);
        Ok(self)
    }

    /// By how much the time of a webhook may differ from the clock here: five minutes by default.
    pub fn tolerance(self, tolerance: Duration) -> StandardWebhooks {
        StandardWebhooks { tolerance, ..self }
    }

    /// Who sends these webhooks.
    pub fn principal(&self) -> Principal {
        self.principal.clone()
    }

    /// Begins to verify a webhook: its head, which may be refused before the body is read.
    pub(super) fn begin(
        &self,
        headers: &HeaderMap,
        now: SystemTime,
    ) -> Result<Verifying, Rejection> {
        let one = |name| one(headers, name).ok_or(INVALID);
        let (id, timestamp, signature) = (one(ID)?, one(TIMESTAMP)?, one(SIGNATURE)?);
        self.check_time(timestamp, now)?;
        let signatures = signature
            .split(' ')
            .filter_map(|signature| STANDARD.decode(signature.strip_prefix("v1,")?).ok())
            .take(SIGNATURES_MAX)
            .collect();
        let mut macs = self.secrets.clone();
        for mac in &mut macs {
            mac.update(format!("{id}.{timestamp}.").as_bytes());
        }
        Ok(Verifying { macs, signatures })
    }

    fn check_time(&self, timestamp: &str, now: SystemTime) -> Result<(), Rejection> {
        let is_number = timestamp.bytes().all(|byte| byte.is_ascii_digit());
        let seconds: u64 = timestamp
            .parse()
            .ok()
            .filter(|_| is_number)
            .ok_or(INVALID)?;
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let tolerance = self.tolerance.as_secs();
        if seconds < now.saturating_sub(tolerance) {
            return Err(Rejection::CredentialsInvalid(Flaw::Expired));
        }
        match seconds > now.saturating_add(tolerance) {
            true => Err(Rejection::CredentialsInvalid(Flaw::NotYetValid)),
            false => Ok(()),
        }
    }
}

/// Without its secrets.
impl fmt::Debug for StandardWebhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandardWebhooks")
            .field("principal", &self.principal)
            .field("secrets", &self.secrets.len())
            .field("tolerance", &self.tolerance)
            .finish()
    }
}

pub(super) const INVALID: Rejection = Rejection::CredentialsInvalid(Flaw::Other);

/// The value of a header that is there once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    match values.next() {
        Some(_) => None,
        None => value.to_str().ok().filter(|value| !value.is_empty()),
    }
}

/// A webhook whose body is still to be read.
pub(super) struct Verifying {
    /// One for each secret.
    macs: Vec<Hmac<Sha256>>,
    signatures: Arc<[Vec<u8>]>,
}

impl Verifying {
    /// Verifies the body, which has been read whole.
    pub(super) async fn finish(mut self, mut body: Body) -> Result<(), Rejection> {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Rejection::BodyUnreadable)?;
            if let Some(data) = frame.data_ref() {
                self.update(data);
            }
        }
        match self.fits_any() {
            true => Ok(()),
            false => Err(INVALID),
        }
    }

    fn update(&mut self, data: &[u8]) {
        for mac in &mut self.macs {
            mac.update(data);
        }
    }

    /// Whether some signature is that of some secret. Each comparison takes the same time, whatever
    /// the signature.
    fn fits_any(self) -> bool {
        let signatures = &self.signatures;
        self.macs.into_iter().any(|mac| {
            signatures
                .iter()
                .any(|signature| mac.clone().verify_slice(signature).is_ok())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An example of the specification's: made by another implementation.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SENT_AT: u64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const GOOD: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn headers(id: &str, timestamp: &str, signature: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [(ID, id), (TIMESTAMP, timestamp), (SIGNATURE, signature)] {
            headers.insert(name, value.parse().unwrap());
        }
        headers
    }

    fn verified(headers: &HeaderMap, body: &[u8], at: u64) -> Result<(), Rejection> {
        let webhooks = StandardWebhooks::new("a").secret(SECRET).unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(at);
        let mut verifying = webhooks.begin(headers, now)?;
        verifying.update(body);
        verifying.fits_any().then_some(()).ok_or(INVALID)
    }

    const ID_SENT: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";

    fn good() -> HeaderMap {
        headers(ID_SENT, &SENT_AT.to_string(), GOOD)
    }

    #[test]
    fn a_signature_of_another_implementation_is_good() {
        assert_eq!(verified(&good(), BODY, SENT_AT), Ok(()));
        let others = format!("v1a,AAAA v1,{} {GOOD} v2,x", STANDARD.encode([0; 32]));
        let several = headers(ID_SENT, &SENT_AT.to_string(), &others);
        assert_eq!(verified(&several, BODY, SENT_AT), Ok(()));
    }

    #[test]
    fn anything_changed_is_refused() {
        let time = SENT_AT.to_string();
        assert_eq!(verified(&good(), b"{}", SENT_AT), Err(INVALID));
        for (id, timestamp, signature) in [
            ("msg_other", &*time, GOOD),
            (ID_SENT, "1614265331", GOOD),
            (ID_SENT, "+1614265330", GOOD),
            (ID_SENT, "", GOOD),
            ("", &time, GOOD),
            (ID_SENT, &time, ""),
            (ID_SENT, &time, &GOOD[3..]),
            (ID_SENT, &time, &GOOD[..40]),
            (ID_SENT, &time, "v1,"),
        ] {
            let refused = verified(&headers(id, timestamp, signature), BODY, SENT_AT);
            assert_eq!(refused, Err(INVALID), "{id} {timestamp} {signature}");
        }
        let mut twice = good();
        twice.append(ID, ID_SENT.parse().unwrap());
        assert_eq!(verified(&twice, BODY, SENT_AT), Err(INVALID));
        assert_eq!(verified(&HeaderMap::new(), BODY, SENT_AT), Err(INVALID));
    }

    #[test]
    fn a_webhook_may_be_five_minutes_off() {
        for at in [SENT_AT - 300, SENT_AT + 300] {
            assert_eq!(verified(&good(), BODY, at), Ok(()));
        }
        let flaw = |flaw| Err(Rejection::CredentialsInvalid(flaw));
        assert_eq!(verified(&good(), BODY, SENT_AT + 301), flaw(Flaw::Expired));
        let early = verified(&good(), BODY, SENT_AT - 301);
        assert_eq!(early, flaw(Flaw::NotYetValid));
    }

    #[test]
    fn what_is_no_secret_is_refused_and_never_shown() {
        for text in [
            "",
            "whsec_",
            "whsec_!",
            "whsec_c2VjcmV0",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        ] {
            assert!(StandardWebhooks::new("a").secret(text).is_err(), "{text}");
        }
        let webhooks = StandardWebhooks::new("a").secret(&format!(" {SECRET}\n"));
        assert!(!format!("{:?}", webhooks.unwrap()).contains("MfKQ"));
    }
}
