//! Parses one token, and checks that a configured key has signed it.

use jsonwebtoken::crypto::verify;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::decode_header;
use serde_json::Value;

use super::Flawed;
use super::keys::KeySet;

/// The accepted values of `typ`, if a token has one (RFC 8725 section 3.11, RFC 9068). The same
/// keys may sign tokens for other purposes, such as ending a session, and those are not
/// credentials.
const KINDS: [&str; 2] = ["jwt", "at+jwt"];

impl KeySet {
    /// The claims of a token, if a key of this set has signed it. The claims themselves are not
    /// checked here.
    pub(super) fn verify(&self, token: &str) -> Result<Value, Flawed> {
        let header = decode_header(token).map_err(|_| Flawed::Malformed)?;
        if header.crit.is_some() {
            return Err(Flawed::Critical);
        }
        if !header.typ.as_deref().is_none_or(is_credential) {
            return Err(Flawed::Kind);
        }
        if !self.algorithms().contains(&header.alg) {
            return Err(Flawed::Algorithm);
        }
        let mut named = self.named(header.kid.as_deref()).peekable();
        if named.peek().is_none() {
            return Err(Flawed::Key);
        }
        let mut fitting = named
            .filter(|key| key.algorithms.contains(&header.alg))
            .peekable();
        if fitting.peek().is_none() {
            return Err(Flawed::Algorithm);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Flawed::Malformed)?;
        for key in fitting {
            if verify(signature, message.as_bytes(), &key.key, header.alg)
                .map_err(|_| Flawed::Malformed)?
            {
                // The signature is verified at this point. `Rules` checks the claims, more strictly
                // than the library.
                return insecure_decode_claims(token).map_err(|_| Flawed::Malformed);
            }
        }
        Err(Flawed::Signature)
    }
}

fn is_credential(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    KINDS.contains(&kind.strip_prefix("application/").unwrap_or(&kind))
}
