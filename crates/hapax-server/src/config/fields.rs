//! Names of header fields and query parameters: those that the gateway itself sets or takes off,
//! and those that carry keys or credentials.

use hapax::middleware::request_id::REQUEST_ID;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use percent_encoding::percent_decode_str;

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// What callers show who they are with, everywhere.
pub(crate) const CREDENTIALS: [HeaderName; 2] = [AUTHORIZATION, COOKIE];

/// What concerns one connection only (RFC 9110 section 7.6.1), besides whatever `Connection` names,
/// and what tells a body's length.
pub(crate) const HOP_BY_HOP: [HeaderName; 11] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
    HeaderName::from_static("http2-settings"),
];

/// Whether a name has but one spelling, apart from its case.
pub(crate) fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether a field concerns one connection only: a response that was passed on has none such.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

/// Whether a field carries keys, or what goes with them, in every gateway.
pub(crate) fn is_keys(name: &HeaderName) -> bool {
    ["idempotency-", "idempotent-"]
        .iter()
        .any(|prefix| name.as_str().starts_with(prefix))
}

/// Whether the gateway itself takes this field off a request, or sets it: nobody can be known by
/// it, and no key can be in it.
pub(crate) fn is_ours(name: &HeaderName) -> bool {
    let set = [
        FORWARDED,
        X_REAL_IP,
        VIA,
        REQUEST_ID,
        TRACEPARENT,
        HOST,
        CONTENT_LENGTH,
    ];
    let text = name.as_str();
    let is_family = ["hapax-", "x-forwarded-", "content-"]
        .iter()
        .any(|prefix| text.starts_with(prefix));
    // Any other spelling is taken for an imitation of a plain one.
    is_hop_by_hop(name) || set.contains(name) || is_family || !is_plain(text)
}

/// Fields that are credentials wherever they occur: `anonymous_fields` refuses them.
pub(crate) const CREDENTIAL_FIELDS: [&str; 14] = [
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

/// Query parameters that are credentials, as [`parameter_name`] spells them. Sorted.
pub(crate) const CREDENTIAL_PARAMETERS: [&str; 65] = [
    "access_key",
    "access_token",
    "accesskey",
    "accesstoken",
    "api_key",
    "api_secret",
    "api_token",
    "apikey",
    "apitoken",
    "app_key",
    "app_secret",
    "appkey",
    "assertion",
    "auth",
    "auth_key",
    "auth_token",
    "authkey",
    "authorization",
    "authtoken",
    "awsaccesskeyid",
    "bearer",
    "bearer_token",
    "client_assertion",
    "client_secret",
    "code",
    "credential",
    "credentials",
    "hmac",
    "id_token",
    "jsessionid",
    "jwt",
    "key",
    "oauth_signature",
    "oauth_token",
    "passwd",
    "password",
    "phpsessid",
    "private_token",
    "pwd",
    "sas",
    "secret",
    "security_token",
    "session",
    "session_id",
    "session_token",
    "sessionid",
    "sid",
    "sig",
    "sign",
    "signature",
    "skey",
    "subscription_key",
    "ticket",
    "token",
    "user_token",
    "x_access_token",
    "x_amz_credential",
    "x_amz_security_token",
    "x_amz_signature",
    "x_api_key",
    "x_auth_token",
    "x_goog_credential",
    "x_goog_signature",
    "x_ms_signature",
    "x_oss_signature",
];

/// Whether a field is a credential wherever it occurs.
pub(crate) fn is_credential_field(field: &HeaderName) -> bool {
    CREDENTIAL_FIELDS.contains(&field.as_str())
}

/// Whether a parameter of a query, `NAME` or `NAME=VALUE`, is a credential.
pub(crate) fn is_credential_parameter(parameter: &str) -> bool {
    credential_parameter(parameter).is_some()
}

pub(crate) fn credential_parameter(parameter: &str) -> Option<&'static str> {
    let name = parameter_name(parameter);
    CREDENTIAL_PARAMETERS
        .binary_search(&&*name)
        .ok()
        .map(|index| CREDENTIAL_PARAMETERS[index])
}

/// The name of a query parameter as the most forgiving service reads it: percent-decoded, in lower
/// case, with one character for hyphen, dot, space and underscore, and without an index as in
/// `token[0]`.
pub(crate) fn parameter_name(parameter: &str) -> String {
    let name = parameter.split('=').next().unwrap_or_default();
    let decoded: Vec<u8> = percent_decode_str(&name.replace('+', " ")).collect();
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
