//! `digest`: requests with the same credential come from the same caller.
//!
//! A caller mistaken for another could get the other's answer. So a request is refused with
//! `principal-missing` unless it has exactly one credential that identifies one caller and is the
//! same in each of its requests.

use hapax::Principal;
use hapax::core::Secret;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, PROXY_AUTHORIZATION};

use super::only;

/// Schemes whose credential is the same in every request. Schemes that sign each request, or that
/// negotiate first, would make every retry a different caller.
const STATIC_SCHEMES: [&str; 4] = ["bearer", "basic", "token", "apikey"];

/// Identifies a caller by a digest of the credential.
pub(super) struct Digest {
    field: HeaderName,
    secret: Secret,
}

impl Digest {
    pub(super) fn new(field: &HeaderName, secret: Secret) -> Digest {
        Digest {
            field: field.clone(),
            secret,
        }
    }

    /// The caller; `None` if the request has no such field. `Err` is the reason why it cannot be
    /// used.
    pub(super) fn identify(&self, headers: &HeaderMap) -> Result<Option<Principal>, &'static str> {
        let field = &self.field;
        let value = match only(headers, field) {
            Ok(value) => value,
            Err("missing") => return Ok(None),
            Err(reason) => return Err(reason),
        };
        let principal = |value: &[u8]| Some(Principal::digest(&self.secret, field.as_str(), value));
        if *field == AUTHORIZATION || *field == PROXY_AUTHORIZATION {
            return Ok(principal(&credential(value).ok_or("scheme")?));
        }
        if value.is_empty() {
            Err("unreadable")
        } else {
            Ok(principal(value))
        }
    }
}

/// The scheme and credential in one spelling: RFC 9110 compares schemes without case and allows
/// several spaces after them.
///
/// A comma or a quote would indicate a list or parameters, which may contain a part that changes.
fn credential(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, credential) = value.split_at(value.iter().position(|byte| *byte == b' ')?);
    let scheme = scheme.to_ascii_lowercase();
    let credential = credential.trim_ascii();
    let is_one_word = credential
        .iter()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'"'));
    let is_static = STATIC_SCHEMES.iter().any(|name| name.as_bytes() == scheme);
    (is_static && is_one_word && !credential.is_empty())
        .then(|| [&scheme[..], b" ", credential].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret::from_bytes([7; 32]);

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        headers
    }

    /// The caller; `None` if the request is refused or identifies none.
    fn identify(field: &str, fields: &[(&str, &str)]) -> Option<Principal> {
        try_identify(field, fields).ok().flatten()
    }

    fn try_identify(
        field: &str,
        fields: &[(&str, &str)],
    ) -> Result<Option<Principal>, &'static str> {
        Digest::new(&field.parse().unwrap(), SECRET).identify(&headers(fields))
    }

    fn authorized(value: &str) -> Option<Principal> {
        identify("authorization", &[("authorization", value)])
    }

    #[test]
    fn one_credential_is_one_principal_however_it_is_spelled() {
        let ada = Principal::digest(&SECRET, "authorization", b"bearer ada");
        assert!(!ada.to_string().contains("ada"));
        let ada = Some(ada);
        for value in [
            "Bearer ada",
            "bearer ada",
            "BEARER ada",
            "Bearer  ada",
            "Bearer    ada",
            "Bearer ada ",
        ] {
            assert_eq!(authorized(value), ada, "{value}");
        }
        for other in [
            "Bearer Ada",
            "Bearer ad",
            "Basic ada",
            "Token ada",
            "ApiKey ada",
        ] {
            let principal = authorized(other);
            assert!(principal.is_some() && principal != ada, "{other}");
        }
    }

    #[test]
    fn credentials_that_real_services_give_out_are_taken() {
        for value in [
            "Bearer sk_test_4eC39HqLyjWDarjtT1zdp7dc",
            "Bearer eyJh.eyJz.SflK-x_w",
            "Bearer 17|nG7",
            "Basic dXNlcjpwYXNz==",
            "token ghp_1",
        ] {
            assert!(
                matches!(authorized(value), Some(Principal::Named(_))),
                "{value}"
            );
        }
    }

    #[test]
    fn what_changes_with_each_request_or_cannot_be_read_is_nobody() {
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "ada",
            "Bearer a b",
            "Bearer a, Bearer b",
            "Bearer\tada",
            "Digest username=\"ada\", nonce=\"1\"",
            "Digest nonce=1",
            "Negotiate YII=",
            "NTLM TlRM",
            "Hawk id=1",
            "Signature keyId=1",
            "AWS4-HMAC-SHA256 Credential=1",
            "OAuth oauth_nonce=1",
            "DPoP ada",
            "GNAP ada",
            "Token token=\"ada\", nonce=\"1\"",
            "Bearerada",
            "Something ada",
        ] {
            assert_eq!(
                try_identify("authorization", &[("authorization", value)]),
                Err("scheme"),
                "{value}"
            );
        }
        let twice = [
            ("authorization", "Bearer ada"),
            ("authorization", "Bearer ada"),
        ];
        assert_eq!(try_identify("authorization", &twice), Err("repeated"));
    }

    #[test]
    fn another_field_counts_as_a_whole() {
        let key = |value| identify("x-api-key", &[("x-api-key", value)]);
        assert_eq!(
            key("Bearer ada"),
            Some(Principal::digest(&SECRET, "x-api-key", b"Bearer ada"))
        );
        assert_ne!(key("ada"), key("Ada"));
        assert_eq!(key(""), None);
        assert_eq!(
            identify("x-api-key", &[("x-api-key", "a"), ("x-api-key", "b")]),
            None
        );
        assert_eq!(
            try_identify("x-api-key", &[("authorization", "Bearer ada")]),
            Ok(None)
        );
    }
}
