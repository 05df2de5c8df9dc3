//! The URL of a Postgres, as written.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use hapax::store::postgres::ConnectOptions;

use super::Secret;

/// A `postgres://` URL. The `PG*` variables supply what it omits. Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(Secret);

impl PostgresUrl {
    /// The URL as written, for connecting.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Whether it contains a password, where others may read it.
    pub fn has_password(&self) -> bool {
        !secrets(self.expose()).is_empty()
    }
}

impl FromStr for PostgresUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(("postgres" | "postgresql", rest)) = text.split_once(':') else {
            return Err("a Postgres is written as postgres://USER@HOST/DATABASE".to_owned());
        };
        if !rest.starts_with("//") {
            return Err(
                "after postgres: stand two slashes: write postgres://USER@HOST/DATABASE".to_owned(),
            );
        }
        ConnectOptions::parse(text).map_err(|error| error.to_string())?;
        Ok(PostgresUrl(Secret::new(text)))
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask(self.expose()))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}

/// Shown in place of a password.
const HIDDEN: &str = "***";

/// The text without its passwords.
pub(super) fn mask(text: &str) -> String {
    mask_with(text, |_| HIDDEN.to_owned())
}

/// The text, with each password replaced by the result of `hide`.
pub(super) fn mask_with(text: &str, hide: impl Fn(&str) -> String) -> String {
    let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
    for secret in secrets(text) {
        shown += &text[from..secret.start];
        shown += &hide(&text[secret.clone()]);
        from = secret.end;
    }
    shown + &text[from..]
}

/// The positions of passwords in a URL. A malformed password, with a slash or an `@` in it, is
/// found too: it is better to hide too much than too little.
fn secrets(url: &str) -> Vec<Range<usize>> {
    let begins = url.find("://").map_or(0, |at| at + 3);
    let at = url.rfind('@').filter(|at| *at >= begins);
    let mut found = Vec::new();
    if let Some(at) = at
        && let Some(colon) = url[begins..at].find(':')
        && begins + colon + 1 < at
    {
        found.push(begins + colon + 1..at);
    }
    let rest = at.unwrap_or(begins);
    let mut from = url[rest..]
        .find('?')
        .map_or(url.len(), |query| rest + query + 1);
    for part in url[from.min(url.len())..].split('&') {
        if let Some((name, value)) = part.split_once('=')
            && name.to_ascii_lowercase().contains("password")
            && !value.is_empty()
        {
            let start = from + name.len() + 1;
            found.push(start..start + value.len());
        }
        from += part.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("postgres://", "postgres://"),
            ("postgres://db/hapax", "postgres://db/hapax"),
            (
                "postgres://ada@db:5432/hapax",
                "postgres://ada@db:5432/hapax",
            ),
            (
                "postgres://ada:s3@db,db2:5433/hapax",
                "postgres://ada:***@db,db2:5433/hapax",
            ),
            (
                "postgresql://ada:s3/s3@s3@db/hapax?sslmode=require",
                "postgresql://ada:***@db/hapax?sslmode=require",
            ),
            (
                "postgres:///hapax?user=ada&password=s3&sslpassword=s3",
                "postgres:///hapax?user=ada&password=***&sslpassword=***",
            ),
            ("postgres://:s3@/", "postgres://:***@/"),
        ] {
            assert_eq!(mask(url), shown);
            assert_eq!(secrets(url).is_empty(), url == shown, "{url}");
        }
    }

    #[test]
    fn a_url_is_shown_without_its_password_however_it_is_shown() {
        let url: PostgresUrl = "postgres://ada:s3@db/hapax".parse().unwrap();
        assert!(url.has_password() && url.expose().contains("s3"));
        assert!(!format!("{url} {url:?} {url:#?}").contains("s3"));
        assert!(
            !"postgres://ada@db/hapax"
                .parse::<PostgresUrl>()
                .unwrap()
                .has_password()
        );
        for text in ["postgres:hapax", "postgres", "mysql://a"] {
            assert!(text.parse::<PostgresUrl>().is_err(), "{text}");
        }
    }
}
