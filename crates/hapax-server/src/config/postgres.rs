//! The URL of a Postgres, as written.

use std::fmt;
use std::str::FromStr;

use hapax::store::postgres::ConnectOptions;

use super::{Secret, password};

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
        password::is_in(self.expose())
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
        f.write_str(&password::mask(self.expose()))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
