//! Errors in the text that says where a database is.

use std::fmt;

/// Why a connection text is invalid. The message says what to do, and never shows a password.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The text does not name a Postgres database.
    #[error(
        "that is not the address of a Postgres database: write postgres://user@host:port/database, or host=… dbname=… user=…"
    )]
    NotPostgres,
    /// The text cannot be read.
    #[error("the address of the database cannot be read: {0}")]
    Syntax(&'static str),
    /// Hapax does not know this parameter.
    #[error(
        "{name:?} is not a parameter that Hapax takes. It takes: {}",
        super::names()
    )]
    Unknown {
        /// The parameter.
        name: String,
    },
    /// The parameter exists in libpq, but Hapax does not support it.
    #[error(
        "{name} cannot be used, as Hapax does not do what it says: leave it out. \
         Settings of a session can be given to the role: ALTER ROLE … IN DATABASE … SET …"
    )]
    Refused {
        /// The parameter, or its environment variable.
        name: &'static str,
    },
    /// The value of a parameter is invalid.
    #[error("{name} is {value:?}: it takes {expected}")]
    Value {
        /// The parameter, or its environment variable.
        name: String,
        /// Its value. Never a password: only the server can find a password wrong.
        value: String,
        /// The values it accepts.
        expected: &'static str,
    },
    /// No trusted certificates are given.
    #[error(
        "sslmode=verify-ca and verify-full take somebody to trust: sslrootcert=FILE with the authority's certificate, or sslrootcert=system"
    )]
    NoRoots,
    /// No user is given.
    #[error(
        "nobody says as which user to connect: put it into the address (postgres://user@…), or set PGUSER"
    )]
    NoUser,
}

/// Prints the message, for a `main` that returns the error: what to do is more useful than the
/// fields.
impl fmt::Debug for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
