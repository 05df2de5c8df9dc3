//! Issued tokens: keys that the server made, which it can tell from keys that callers made up.
//!
//! A route with [`KeyRule::Issued`](crate::policy::KeyRule::Issued) takes only these. A token is
//! bound to the namespace and the principal it was made for. After its life it cannot begin an
//! operation, but it still finds the one it began.

use crate::digest::{Parts, hex, unhex};
use crate::key::Key;
use crate::operation::Secret;
use crate::scope::Principal;
use crate::time::Timestamp;

const PREFIX: &str = "hpx1_";

/// Makes a token that may begin an operation until `until`. `nonce` must come from a good source of
/// randomness.
pub fn issue(
    secret: &Secret,
    namespace: &str,
    principal: &Principal,
    nonce: [u8; 16],
    until: Timestamp,
) -> Key {
    let payload = format!("{}{}", hex(&until.as_micros().to_be_bytes()), hex(&nonce));
    let mac = hex(&mac(secret, namespace, principal, &payload));
    Key::new(format!("{PREFIX}{payload}{mac}")).expect("hexadecimal is a key")
}

/// Until when the token may begin an operation; `None` if this server did not make it for this
/// principal.
pub fn verify(
    secret: &Secret,
    namespace: &str,
    principal: &Principal,
    token: &Key,
) -> Option<Timestamp> {
    let rest = token.as_str().strip_prefix(PREFIX)?;
    let (payload, given) = rest.split_at_checked(48)?;
    let given: [u8; 16] = unhex(given)?;
    let expected = mac(secret, namespace, principal, payload);
    // Compares without an early exit, so that the duration tells a forger nothing.
    let difference = given
        .iter()
        .zip(expected)
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    let until: [u8; 8] = unhex(&payload[..16])?;
    (difference == 0).then(|| Timestamp::from_micros(u64::from_be_bytes(until)))
}

fn mac(secret: &Secret, namespace: &str, principal: &Principal, payload: &str) -> [u8; 16] {
    let mut parts = Parts::new("hapax token 1");
    parts.push(namespace.as_bytes());
    principal.push_to(&mut parts);
    parts.push(payload.as_bytes());
    let mac = secret.sign(&parts.finish());
    std::array::from_fn(|i| mac[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_only_where_it_was_issued() {
        let secret = Secret::from_bytes([3; 32]);
        let ada = Principal::named("ada");
        let until = Timestamp::from_micros(1_000_000);
        let token = issue(&secret, "shop", &ada, [9; 16], until);

        assert_eq!(verify(&secret, "shop", &ada, &token), Some(until));
        assert_eq!(
            verify(&secret, "shop", &Principal::named("bob"), &token),
            None
        );
        assert_eq!(verify(&secret, "shop", &Principal::Anonymous, &token), None);
        assert_eq!(verify(&secret, "bank", &ada, &token), None);
        assert_eq!(
            verify(&Secret::from_bytes([4; 32]), "shop", &ada, &token),
            None
        );

        for at in 0..token.as_str().len() {
            let mut forged = token.as_str().to_owned().into_bytes();
            forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
            let forged = Key::new(String::from_utf8(forged).unwrap()).unwrap();
            assert_eq!(
                verify(&secret, "shop", &ada, &forged),
                None,
                "changed at {at}"
            );
        }
        assert_eq!(
            verify(&secret, "shop", &ada, &Key::new("hpx1_00").unwrap()),
            None
        );
    }
}
