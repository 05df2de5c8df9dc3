//! Which parts of a request are credentials, and which identify no caller.
//!
//! A request without a credential is anonymous only if every field it carries is known to identify
//! no caller. A list of the fields that do identify callers would never be complete: every proxy
//! and every service may add one, and a field missing from such a list gives one caller another's
//! answer. A field missing from this list costs a request that is refused with a clear message, and
//! one setting.
//!
//! Names are exact. A name with other characters than letters, digits and hyphens is never on the
//! list, because CGI-style servers read `X_User` and `X-User` as the same name.

use std::collections::HashSet;
use std::sync::LazyLock;

use hapax::middleware::fields::is_plain;
use http::HeaderName;

/// Fields that identify no caller, as `docs/principals.md` prints them.
static ANONYMOUS_FIELDS: LazyLock<HashSet<&str>> =
    LazyLock::new(|| words(include_str!("credentials/anonymous_fields.txt")));

/// Prefixes of fields that identify no caller. No other prefix is safe: `x-forwarded-for` is
/// harmless, but `x-forwarded-user` is a person; `sec-websocket-protocol` may carry a token.
const ANONYMOUS_FAMILIES: [&str; 3] = ["accept-", "sec-ch-", "sec-fetch-"];

/// Fields that are credentials in every service: `anonymous_fields` refuses them.
const FIELDS: [&str; 14] = [
    "api-key",
    "apikey",
    "authorization",
    "client-cert",
    "cookie",
    "dpop",
    "proxy-authorization",
    "remote-user",
    "signature",
    "x-access-token",
    "x-api-key",
    "x-auth-token",
    "x-forwarded-client-cert",
    "x-forwarded-user",
];

/// Query parameters that are credentials, as [`parameter_name`] spells them.
static PARAMETERS: LazyLock<HashSet<&str>> =
    LazyLock::new(|| words(include_str!("credentials/parameters.txt")));

fn words(list: &'static str) -> HashSet<&'static str> {
    list.split_whitespace().collect()
}

/// Whether a field is known to identify no caller.
pub(crate) fn identifies_nobody(field: &str) -> bool {
    ANONYMOUS_FIELDS.contains(field)
        || (is_plain(field)
            && ANONYMOUS_FAMILIES
                .iter()
                .any(|family| field.starts_with(family)))
}

/// Whether a field is a credential in every service.
pub(crate) fn is_credential_field(field: &HeaderName) -> bool {
    FIELDS.contains(&field.as_str())
}

/// The listed name of a query parameter, if it is a credential.
pub(crate) fn credential_parameter(parameter: &str) -> Option<&'static str> {
    PARAMETERS.get(&*parameter_name(parameter)).copied()
}

/// The name of a query parameter as the most lenient service reads it: percent-decoded, in lower
/// case, with one character for hyphen, dot, space and underscore, and without an index as in
/// `token[0]`.
pub(crate) fn parameter_name(parameter: &str) -> String {
    let name = parameter.split('=').next().unwrap_or_default();
    let decoded: Vec<u8> = percent_encoding::percent_decode_str(&name.replace('+', " ")).collect();
    let decoded = decoded.trim_ascii_start();
    let end = decoded
        .iter()
        .position(|byte| *byte == b'[')
        .unwrap_or(decoded.len());
    let plain = |byte: &u8| match byte {
        b'-' | b'.' | b' ' => '_',
        byte => char::from(byte.to_ascii_lowercase()),
    };
    decoded[..end].iter().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_hold_exact_names() {
        for field in ANONYMOUS_FIELDS.iter() {
            let is_exact = field
                .parse::<HeaderName>()
                .is_ok_and(|name| name.as_str() == *field);
            assert!(is_plain(field) && is_exact, "{field}");
            assert!(
                ANONYMOUS_FAMILIES
                    .iter()
                    .all(|family| !field.starts_with(family)),
                "{field} is in its family"
            );
        }
        assert!(FIELDS.iter().all(|field| !identifies_nobody(field)));
        assert!(PARAMETERS.iter().all(|name| parameter_name(name) == *name));
    }

    #[test]
    fn the_documentation_prints_the_lists_in_order() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/principals.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (mark, list) in [
            (
                "<!-- fields that identify nobody -->",
                include_str!("credentials/anonymous_fields.txt"),
            ),
            (
                "<!-- credentials in the query -->",
                include_str!("credentials/parameters.txt"),
            ),
        ] {
            let (_, rest) = page.split_once(mark).expect("the mark is there");
            let block = rest.split("```").nth(1).unwrap().trim_start_matches("text");
            let printed: Vec<_> = block.split_whitespace().collect();
            assert_eq!(printed, list.split_whitespace().collect::<Vec<_>>());
            assert!(printed.is_sorted_by(|one, next| one < next), "{mark}");
        }
    }

    #[test]
    fn only_exact_names_and_three_families_identify_nobody() {
        for field in [
            "host",
            "accept",
            "accept-ch",
            "sec-fetch-dest",
            "sec-ch-ua-arch",
            "x-forwarded-for",
            "cf-ray",
        ] {
            assert!(identifies_nobody(field), "{field}");
        }
        for field in [
            "x-forwarded-user",
            "x-forwarded-for2",
            "acceptuser",
            "accept-user_id",
            "sec-websocket-protocol",
            "sec-fetchx",
            "from",
            "",
        ] {
            assert!(!identifies_nobody(field), "{field}");
        }
    }

    #[test]
    fn parameters_have_one_name_however_they_are_spelled() {
        for (parameter, name) in [
            ("api_key=1", "api_key"),
            ("API-Key", "api_key"),
            ("api%5fkey=a=b", "api_key"),
            ("%20api.key", "api_key"),
            ("+api+key", "api_key"),
            ("token[0]", "token"),
            ("token%5B%5D=1", "token"),
            ("100%=1", "100%"),
            ("%zz", "%zz"),
            ("", ""),
            ("=1", ""),
        ] {
            assert_eq!(parameter_name(parameter), name, "{parameter}");
        }
    }
}
