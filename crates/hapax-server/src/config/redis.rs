//! The URL of a Redis, as written.

use std::fmt;
use std::str::FromStr;

use hapax::store::redis::Address;

use super::{Secret, password};

/// A `redis://` URL, or one of its other forms: see [`Address`]. Shown without its passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(Secret);

impl RedisUrl {
    /// The URL as written, for connecting.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Whether it contains a password, where others may read it.
    pub fn has_password(&self) -> bool {
        password::is_in(self.expose())
    }
}

impl FromStr for RedisUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // What precedes the `?` would be taken for a host, and shown as one.
        if text
            .split_once('?')
            .is_some_and(|(_, rest)| rest.contains('@'))
        {
            return Err(
                "an `@` stands behind a `?`: in a password write %3F for a `?`, and %40 for an `@`"
                    .to_owned(),
            );
        }
        text.parse::<Address>().map_err(|error| error.to_string())?;
        Ok(RedisUrl(Secret::new(text)))
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&password::mask(self.expose()))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        for text in [
            "redis://cache",
            "rediss://cache:6380/2",
            "redis+sentinel://a,b:27000/hapax",
            "rediss+sentinel://a/hapax?sentinel_password=s3",
            "redis+cluster://a,b",
            "rediss+cluster://a?ca_file=/etc/ca.pem",
        ] {
            assert!(text.parse::<RedisUrl>().is_ok(), "{text}");
            assert!(password::may_be_in(text), "{text}");
        }
        for text in ["redis:cache", "redis", "redis+ring://a", "mysql://a"] {
            assert!(text.parse::<RedisUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_url_is_shown_without_its_password_however_it_is_shown() {
        let url: RedisUrl = "redis+sentinel://ada:s3@a,b/hapax?sentinel_password=s3"
            .parse()
            .unwrap();
        assert!(url.has_password() && url.expose().contains("s3"));
        assert!(!format!("{url} {url:?} {url:#?}").contains("s3"));
        assert!(!"redis://ada@a".parse::<RedisUrl>().unwrap().has_password());
        for text in ["redis://ada:s3?s3@a", "redis://a?s3@b", "redis://:s3@a:b"] {
            let error = text.parse::<RedisUrl>().unwrap_err();
            assert!(!error.contains("s3"), "{error}");
        }
    }
}
