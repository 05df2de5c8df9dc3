//! Who is asking: where the gateway looks.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;

use crate::gateway::forward;

/// Where the gateway learns who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrincipalSource {
    /// A keyed digest of the credential in this field. Proves only that the same credential was presented.
    Digest(HeaderName),
    /// Nobody: all callers are one, and whoever knows a key gets its answer.
    None,
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
            PrincipalSource::None => f.write_str("none"),
        }
    }
}

impl FromStr for PrincipalSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(PrincipalSource::None),
            Some(("digest", field)) => match HeaderName::from_str(field) {
                Ok(field) if forward::is_ours(&field) => {
                    Err(format!("`{field}` is a field that the gateway itself sets or takes off: nobody can be known by it"))
                }
                Ok(field) => Ok(PrincipalSource::Digest(field)),
                Err(_) => Err(format!("`{field}` is not the name of a header field: write digest:authorization, for example")),
            },
            Some((source @ ("header" | "jwt" | "forward-auth"), _)) => {
                Err(format!("principals by `{source}` are not there yet: use digest:FIELD or none"))
            }
            _ => Err(format!("`{text}` is no principal source: use digest:FIELD, as in digest:authorization, or none")),
        }
    }
}
