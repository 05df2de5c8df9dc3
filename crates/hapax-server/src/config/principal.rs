//! Who is asking: where the gateway looks.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderName, Uri};
use serde_json::Value;

use super::Config;
use super::url::service_url;
use crate::gateway::forward;

/// Where the gateway learns who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrincipalSource {
    /// A keyed digest of the credential in this field. Proves only that the same credential was presented.
    Digest(HeaderName),
    /// The name that a trusted proxy has put into this field.
    Header(HeaderName),
    /// This claim of a token that is verified with each request, as `[jwt]` says.
    Jwt(Claim),
    /// Whoever this service says it is, asked with each request, as `[forward_auth]` says.
    ForwardAuth(Uri),
    /// Nobody: all callers are one, and whoever knows a key gets its answer.
    None,
}

impl PrincipalSource {
    /// How clients are told of it: where an internal service listens is not theirs to know.
    pub fn published(&self) -> String {
        match self {
            PrincipalSource::ForwardAuth(_) => "forward-auth".to_owned(),
            source => source.to_string(),
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
            PrincipalSource::Header(field) => write!(f, "header:{field}"),
            PrincipalSource::Jwt(claim) => write!(f, "jwt:{claim}"),
            PrincipalSource::ForwardAuth(url) => write!(f, "forward-auth:{url}"),
            PrincipalSource::None => f.write_str("none"),
        }
    }
}

impl FromStr for PrincipalSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(PrincipalSource::None),
            Some(("digest", field)) => identity_field(field, "digest:authorization").map(PrincipalSource::Digest),
            Some(("header", field)) => identity_field(field, "header:x-user-id").map(PrincipalSource::Header),
            Some(("jwt", claim)) => claim.parse().map(PrincipalSource::Jwt),
            Some(("forward-auth", url)) => service_url(url).map(PrincipalSource::ForwardAuth),
            _ => Err(format!(
                "`{text}` is no principal source: use digest:FIELD, as in digest:authorization, header:FIELD, jwt:CLAIM, forward-auth:URL, or none"
            )),
        }
    }
}

/// A field by which somebody can be known.
pub(super) fn identity_field(field: &str, example: &str) -> Result<HeaderName, String> {
    match HeaderName::from_str(field) {
        Ok(field) if !forward::is_plain(field.as_str()) => Err(format!(
            "`{field}` is one of many spellings that some servers cannot tell apart: name a field of letters, digits and hyphens"
        )),
        Ok(field) if forward::is_ours(&field) => Err(format!(
            "`{field}` is a field that the gateway itself sets or takes off, so that nobody can be known by it: name another"
        )),
        Ok(field) => Ok(field),
        Err(_) => Err(format!("`{field}` is not the name of a header field: write {example}, for example")),
    }
}

/// Where in a token the caller's name stands: the name of a claim, or the way to one inside others, as in `/account/id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim(Arc<str>);

impl Claim {
    /// What a token says there.
    pub fn of<'a>(&self, claims: &'a Value) -> Option<&'a Value> {
        if self.0.starts_with('/') { claims.pointer(&self.0) } else { claims.get(&*self.0) }
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
            "exp" | "iat" | "jti" | "nbf" => {
                Err(format!("`{text}` differs from token to token, and a renewed one would be somebody else: write jwt:sub"))
            }
            "aud" | "iss" => Err(format!("`{text}` is the same for every caller: write jwt:sub")),
            // What stands between the parts of a principal's name.
            _ if text.chars().any(|c| c.is_whitespace() || c.is_control()) => {
                Err(format!("`{}` has a space in it: write the name of a claim, as in jwt:sub", text.escape_debug()))
            }
            _ if text.starts_with('/') && text.replace("~0", "").replace("~1", "").contains('~') => {
                Err(format!("`{text}` is no JSON pointer: in one, `~` is written ~0 and `/` in a name ~1"))
            }
            _ => Ok(Claim(text.into())),
        }
    }
}

impl Config {
    /// What decides by which name a caller is known. While it stays the same, everybody keeps their keys: other signing keys, another
    /// tolerance or another timeout change nobody's name.
    pub fn principal_identity(&self) -> String {
        match (&self.principal, &self.jwt, &self.forward_auth) {
            (PrincipalSource::Jwt(claim), Some(jwt), _) => format!("jwt:{claim} of issuer {}", jwt.issuer),
            // Another service may know somebody else by the same name.
            (PrincipalSource::ForwardAuth(url), _, Some(auth)) => format!("forward-auth:{url} by {}", auth.principal_field),
            (source, _, _) => source.to_string(),
        }
    }
}
