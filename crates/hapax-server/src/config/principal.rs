//! The principal sources: how the gateway identifies callers.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hapax::middleware::fields;
use http::HeaderName;
use http::header::COOKIE;
use serde_json::Value;

use super::url::{mask, service_url};
use super::{Config, ServiceUrl};
use crate::credentials::{is_credential_field, parameter_name};

/// Limit on the sources of one list: each makes the names of callers longer.
const SOURCES_MAX: usize = 4;

/// What identifies callers. The first source identifies the caller; each further one divides the
/// records of that caller, for example by the account on whose behalf a credential acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrincipalSources(Vec<PrincipalSource>);

impl PrincipalSources {
    /// These sources in this order. The error says what to write instead.
    pub fn new(sources: Vec<PrincipalSource>) -> Result<PrincipalSources, String> {
        let is_forward_auth =
            |source: &&PrincipalSource| matches!(source, PrincipalSource::ForwardAuth(_));
        if sources.is_empty() {
            return Err(
                "this list is empty: write [\"digest:authorization\"], for example".to_owned(),
            );
        }
        if sources.len() > SOURCES_MAX {
            return Err(format!(
                "these are {} sources, and a caller may be known by {SOURCES_MAX} at most: leave some out",
                sources.len()
            ));
        }
        let is_signed =
            |source: &PrincipalSource| matches!(source, PrincipalSource::StandardWebhooks(_));
        if sources.len() > 1 && sources.iter().any(is_signed) {
            return Err("standard-webhooks:NAME stands alone: it says who is asking, and only for webhooks of this sender".to_owned());
        }
        if sources.len() > 1 && sources.contains(&PrincipalSource::None) {
            return Err("`none` makes all callers one and stands alone: write \"none\", or leave it out of the list".to_owned());
        }
        if sources.iter().filter(is_forward_auth).count() > 1 {
            return Err(
                "[forward_auth] describes one service: keep one forward-auth:URL in the list"
                    .to_owned(),
            );
        }
        match sources
            .iter()
            .enumerate()
            .find(|(index, source)| sources[..*index].contains(source))
        {
            Some((_, twice)) => Err(format!("`{twice}` is there twice: leave one out")),
            None => Ok(PrincipalSources(sources)),
        }
    }

    /// The source that identifies the caller.
    pub fn first(&self) -> &PrincipalSource {
        &self.0[0]
    }

    /// All sources, in order.
    pub fn iter(&self) -> impl Iterator<Item = &PrincipalSource> {
        self.0.iter()
    }

    /// Whether some part of the principal is only presented, and not verified.
    pub fn is_unverified(&self) -> bool {
        let is_unverified = |source: &PrincipalSource| {
            matches!(
                source,
                PrincipalSource::Digest(_) | PrincipalSource::Cookie(_) | PrincipalSource::None
            )
        };
        self.iter().any(is_unverified)
    }

    /// The sender of webhooks, if requests are known by its signature.
    pub fn webhooks(&self) -> Option<&WebhookSender> {
        match self.first() {
            PrincipalSource::StandardWebhooks(sender) => Some(sender),
            _ => None,
        }
    }

    /// Whether this is the default.
    pub fn is_default(&self) -> bool {
        *self == PrincipalSources::default()
    }

    /// Fields that only trusted proxies may set: a `header:FIELD` that is first, and every other
    /// one if there are trusted proxies. Without trusted proxies, the caller sets a further one.
    pub fn proxy_fields(&self, has_trusted_proxies: bool) -> impl Iterator<Item = &HeaderName> {
        self.iter()
            .enumerate()
            .filter_map(move |(index, source)| match source {
                PrincipalSource::Header(field) if index == 0 || has_trusted_proxies => Some(field),
                _ => None,
            })
    }

    /// The description for clients: it does not reveal where an internal service listens.
    pub fn published(&self) -> String {
        self.iter()
            .map(PrincipalSource::published)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The sources as written, including secrets in URLs: for comparing, never to be shown.
    pub(crate) fn expose(&self) -> String {
        self.iter()
            .map(PrincipalSource::expose)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl Default for PrincipalSources {
    fn default() -> Self {
        PrincipalSource::default().into()
    }
}

impl From<PrincipalSource> for PrincipalSources {
    fn from(source: PrincipalSource) -> Self {
        PrincipalSources(vec![source])
    }
}

/// Shown without the secrets in URLs. A source contains no space.
impl fmt::Display for PrincipalSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, source) in self.iter().enumerate() {
            write!(f, "{}{source}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl FromStr for PrincipalSources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        PrincipalSources::new(
            text.split(", ")
                .map(PrincipalSource::from_str)
                .collect::<Result<_, _>>()?,
        )
    }
}

/// A source that identifies the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrincipalSource {
    /// A keyed digest of the credential in this field. Proves only that the same credential was
    /// presented.
    Digest(HeaderName),
    /// A keyed digest of the value of this cookie. Proves only that the same value was presented.
    Cookie(CookieName),
    /// The name that a trusted proxy has put into this field.
    Header(HeaderName),
    /// This claim of a token that is verified with each request, by the settings in `[jwt]`.
    Jwt(Claim),
    /// The caller that this service names; it is asked with each request, by the settings in
    /// `[forward_auth]`.
    ForwardAuth(ServiceUrl),
    /// The sender of webhooks with this name, whose signature is verified with each request, by the
    /// settings in `[standard_webhooks]`.
    StandardWebhooks(WebhookSender),
    /// No source: all callers are one, and every caller that knows a key gets its answer.
    None,
}

impl PrincipalSource {
    /// The source as written, including secrets in its URL: for comparing, never to be shown.
    pub(crate) fn expose(&self) -> String {
        match self {
            PrincipalSource::ForwardAuth(url) => format!("forward-auth:{}", url.expose()),
            source => source.to_string(),
        }
    }

    /// The description for clients.
    fn published(&self) -> String {
        match self {
            PrincipalSource::ForwardAuth(_) => "forward-auth".to_owned(),
            source => source.to_string(),
        }
    }

    /// The fields of a request that decide what this source returns, except `Authorization` and
    /// `Cookie` for forward-auth, and the fields that forward-auth sets itself.
    pub(crate) fn fields<'a>(&'a self, config: &'a Config) -> Vec<&'a HeaderName> {
        match self {
            PrincipalSource::Digest(field) | PrincipalSource::Header(field) => vec![field],
            PrincipalSource::Cookie(_) => vec![&COOKIE_FIELD],
            PrincipalSource::Jwt(_) => config.jwt.iter().map(|jwt| &jwt.field).collect(),
            PrincipalSource::ForwardAuth(_) => config
                .forward_auth
                .iter()
                .flat_map(|auth| auth.forward.iter().chain(&auth.pass))
                .collect(),
            PrincipalSource::StandardWebhooks(_) | PrincipalSource::None => Vec::new(),
        }
    }

    /// Where it looks for the caller's credential, as text.
    pub(crate) fn looks_at(&self, config: &Config) -> String {
        match self {
            PrincipalSource::Cookie(name) => format!("cookie {name}"),
            PrincipalSource::ForwardAuth(_) => "answer of the authentication service".to_owned(),
            PrincipalSource::StandardWebhooks(_) => "header webhook-signature".to_owned(),
            source => format!(
                "header {}",
                source
                    .fields(config)
                    .first()
                    .map_or("", |field| field.as_str())
            ),
        }
    }

    /// What decides the names that this source gives to callers.
    fn identity(&self, config: &Config) -> Identity {
        let plain = |text: String| Identity {
            compared: text.clone(),
            shown: text,
        };
        match (self, &config.jwt, &config.forward_auth) {
            (PrincipalSource::Jwt(claim), Some(jwt), _) => {
                plain(format!("jwt:{claim} of issuer {}", jwt.issuer))
            }
            // Another service may use the same name for another caller.
            (PrincipalSource::ForwardAuth(url), _, Some(auth)) => {
                let field = &auth.principal_field;
                Identity {
                    compared: format!(
                        "forward-auth:{}?{} by {field}",
                        url.place(),
                        url.parameters()
                    ),
                    shown: format!("forward-auth:{url} by {field}"),
                }
            }
            (source, _, _) => plain(source.to_string()),
        }
    }
}

impl Default for PrincipalSource {
    fn default() -> Self {
        PrincipalSource::Digest(http::header::AUTHORIZATION)
    }
}

impl fmt::Display for PrincipalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrincipalSource::Digest(field) => write!(f, "digest:{field}"),
            PrincipalSource::Cookie(name) => write!(f, "cookie:{name}"),
            PrincipalSource::Header(field) => write!(f, "header:{field}"),
            PrincipalSource::Jwt(claim) => write!(f, "jwt:{claim}"),
            PrincipalSource::ForwardAuth(url) => write!(f, "forward-auth:{url}"),
            PrincipalSource::StandardWebhooks(sender) => write!(f, "standard-webhooks:{sender}"),
            PrincipalSource::None => f.write_str("none"),
        }
    }
}

impl FromStr for PrincipalSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(PrincipalSource::None),
            Some((kind @ ("digest" | "header"), field)) if field.eq_ignore_ascii_case("cookie") => {
                Err(format!(
                    "`{kind}:{field}` would take all cookies as one, and any new one would make its caller somebody else: write cookie:NAME, \
                 with the name of the cookie that holds the session, as in cookie:session"
                ))
            }
            Some(("digest", field)) => {
                identity_field(field, "digest:authorization").map(PrincipalSource::Digest)
            }
            Some(("cookie", name)) => name.parse().map(PrincipalSource::Cookie),
            Some(("header", field)) => {
                identity_field(field, "header:x-user-id").map(PrincipalSource::Header)
            }
            Some(("jwt", claim)) => claim.parse().map(PrincipalSource::Jwt),
            Some(("forward-auth", url)) => service_url(url).map(PrincipalSource::ForwardAuth),
            Some(("standard-webhooks", name)) => {
                name.parse().map(PrincipalSource::StandardWebhooks)
            }
            _ => Err(format!(
                "`{}` is no principal source: use digest:FIELD, as in digest:authorization, cookie:NAME, header:FIELD, jwt:CLAIM, forward-auth:URL, standard-webhooks:NAME, or none",
                mask(text)
            )),
        }
    }
}

/// The field that carries cookies.
static COOKIE_FIELD: HeaderName = COOKIE;

/// The name of a cookie (RFC 6265 section 4.1.1). It is case-sensitive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieName(Arc<str>);

impl CookieName {
    /// The name as it is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a valid name of a cookie.
    pub(crate) fn is_one(name: &[u8]) -> bool {
        let is_token =
            |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        !name.is_empty() && name.iter().all(is_token)
    }
}

impl fmt::Display for CookieName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for CookieName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if CookieName::is_one(text.as_bytes()) {
            return Ok(CookieName(text.into()));
        }
        match text {
            "" => Err("cookie: names no cookie: write cookie:session, for example".to_owned()),
            _ => Err(format!(
                "`{}` is not the name of a cookie: write cookie:session, for example",
                text.escape_debug()
            )),
        }
    }
}

/// The name of a sender of webhooks, which is also that of the file with its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSender(Arc<str>);

impl WebhookSender {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WebhookSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for WebhookSender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match (1..=64).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with('.') {
            true => Ok(WebhookSender(text.into())),
            false => Err(format!(
                "`{}` is no name of a sender of webhooks: write standard-webhooks:payments, for example, with letters, digits, hyphens, dots and underscores",
                text.escape_debug()
            )),
        }
    }
}

/// A part of a request that is declared to identify no caller, in addition to the built-in list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnonymousField {
    /// A header field.
    Header(HeaderName),
    /// A query parameter: its name decoded, in lower case.
    Parameter(String),
}

impl fmt::Display for AnonymousField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnonymousField::Header(field) => write!(f, "{field}"),
            AnonymousField::Parameter(name) => write!(f, "query:{name}"),
        }
    }
}

impl FromStr for AnonymousField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(parameter) = text.strip_prefix("query:") {
            return match parameter_name(parameter) {
                name if name.is_empty() => {
                    Err("`query:` names no parameter: write query:sig, for example".to_owned())
                }
                name => Ok(AnonymousField::Parameter(name)),
            };
        }
        match HeaderName::from_str(text) {
            Ok(field) if is_credential_field(&field) => {
                let source = if field == COOKIE {
                    "cookie:NAME".to_owned()
                } else {
                    format!("digest:{field}")
                };
                Err(format!(
                    "`{field}` carries credentials, and callers with different ones would get each other's answers: \
                     write principal = \"{source}\" instead, or principal = \"none\" if all callers are one"
                ))
            }
            Ok(field) if fields::is_plain(field.as_str()) => Ok(AnonymousField::Header(field)),
            Ok(field) => Err(format!(
                "`{field}` is no exact name: name a field of letters, digits and hyphens, without wildcards"
            )),
            Err(_) => Err(format!(
                "`{text}` is not the name of a header field: write x-tenant-hint, for example, or query:sig"
            )),
        }
    }
}

/// A field that can identify a caller.
pub(super) fn identity_field(field: &str, example: &str) -> Result<HeaderName, String> {
    match HeaderName::from_str(field) {
        Ok(field) if !fields::is_plain(field.as_str()) => Err(format!(
            "`{field}` is one of many spellings that some servers cannot tell apart: name a field of letters, digits and hyphens"
        )),
        Ok(field) if fields::is_ours(&field) => Err(format!(
            "`{field}` is a field that the gateway itself sets or takes off, so that nobody can be known by it: name another"
        )),
        Ok(field) => Ok(field),
        Err(_) => Err(format!(
            "`{field}` is not the name of a header field: write {example}, for example"
        )),
    }
}

/// The place of the caller's name in a token: the name of a claim, or the path to a nested one, as
/// in `/account/id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim(Arc<str>);

impl Claim {
    /// The value of the claim.
    pub fn of<'a>(&self, claims: &'a Value) -> Option<&'a Value> {
        if self.0.starts_with('/') {
            claims.pointer(&self.0)
        } else {
            claims.get(&*self.0)
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Claim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("jwt: names no claim: write jwt:sub, for example".to_owned()),
            "exp" | "iat" | "jti" | "nbf" => Err(format!(
                "`{text}` differs from token to token, and a renewed one would be somebody else: write jwt:sub"
            )),
            "aud" | "iss" => Err(format!(
                "`{text}` is the same for every caller: write jwt:sub"
            )),
            // A space separates the parts of a principal's name.
            _ if text.chars().any(|c| c.is_whitespace() || c.is_control()) => Err(format!(
                "`{}` has a space in it: write the name of a claim, as in jwt:sub",
                text.escape_debug()
            )),
            _ if text.starts_with('/')
                && text.replace("~0", "").replace("~1", "").contains('~') =>
            {
                Err(format!(
                    "`{text}` is no JSON pointer: in one, `~` is written ~0 and `/` in a name ~1"
                ))
            }
            _ => Ok(Claim(text.into())),
        }
    }
}

/// What decides the names of callers. It is compared in full, and shown without secrets.
pub struct Identity {
    compared: String,
    shown: String,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        self.compared == other.compared
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Config {
    /// What decides the names that these sources give to callers. While it stays the same, callers
    /// keep their keys: other signing keys, another leeway or another timeout change no name.
    pub fn identity_of(&self, sources: &PrincipalSources) -> Identity {
        let all: Vec<Identity> = sources.iter().map(|source| source.identity(self)).collect();
        let join =
            |part: fn(&Identity) -> &str| all.iter().map(part).collect::<Vec<_>>().join(", ");
        Identity {
            compared: join(|identity| &identity.compared),
            shown: join(|identity| &identity.shown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_sources_is_read_as_it_is_written() {
        for text in [
            "digest:authorization",
            "digest:authorization, header:stripe-account",
            "jwt:sub, jwt:tenant, digest:x-a",
            "cookie:__Host-session.id, digest:x-a",
            "standard-webhooks:payments-2",
        ] {
            assert_eq!(text.parse::<PrincipalSources>().unwrap().to_string(), text);
        }
        for (text, why) in [
            ("none, digest:a", "stands alone"),
            ("standard-webhooks:a, digest:a", "stands alone"),
            ("standard-webhooks:", "no name of a sender"),
            ("standard-webhooks:../a", "no name of a sender"),
            ("digest:a, digest:a", "twice"),
            (
                "forward-auth:http://a, forward-auth:http://b",
                "one service",
            ),
            (
                "digest:a, digest:b, digest:c, digest:d, digest:e",
                "4 at most",
            ),
            ("digest:a,digest:b", "not the name of a header field"),
            ("cookie:", "names no cookie"),
            ("cookie:a b", "not the name of a cookie"),
            ("cookie:a=b", "not the name of a cookie"),
            ("digest:Cookie", "write cookie:NAME"),
            ("header:cookie", "write cookie:NAME"),
            ("", "no principal source"),
        ] {
            let message = text.parse::<PrincipalSources>().unwrap_err();
            assert!(message.contains(why), "{text}: {message}");
        }
        assert!(PrincipalSources::new(Vec::new()).is_err());
    }

    #[test]
    fn a_secret_in_a_url_is_not_shown() {
        let sources: PrincipalSources = "forward-auth:https://auth.internal/verify?token=s3"
            .parse()
            .unwrap();
        assert!(sources.expose().contains("s3"));
        let shown = format!("{sources} {sources:?} {}", sources.published());
        assert!(
            !shown.contains("s3") && shown.contains("auth.internal/verify?***"),
            "{shown}"
        );
        let message = "forwardauth:https://u:s3@auth.internal/verify?token=s3"
            .parse::<PrincipalSources>()
            .unwrap_err();
        assert!(!message.contains("s3"), "{message}");
    }

    #[test]
    fn fields_that_identify_nobody_have_exact_names() {
        for (text, read) in [
            ("X-Tenant-Hint", "x-tenant-hint"),
            ("query:Sig", "query:sig"),
            ("query:X-Amz-Date", "query:x_amz_date"),
        ] {
            assert_eq!(text.parse::<AnonymousField>().unwrap().to_string(), read);
        }
        for text in [
            "authorization",
            "Cookie",
            "proxy-authorization",
            "x-api-key",
            "x-*",
            "x_tenant",
            "",
            "a b",
            "query:",
        ] {
            assert!(text.parse::<AnonymousField>().is_err(), "{text}");
        }
    }
}
