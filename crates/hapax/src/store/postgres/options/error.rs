//! What can be wrong with the text that says where a database is.

use std::fmt;

/// Why a text does not say how to reach a database. The text says what to do, and never shows a
/// password.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The text is of something else.
    #[error(
        "that is not the address of a Postgres database: write postgres://user@host:port/database, or host=… dbname=… user=…"
    )]
    NotPostgres,
    /// The text cannot be read.
    #[error("the address of the database cannot be read: {0}")]
    Syntax(&'static str),
    /// Hapax takes no such parameter.
    #[error(
        "{name:?} is not a parameter that Hapax takes. It takes: {}",
        super::names()
    )]
    Unknown {
        /// The parameter.
        name: String,
    },
    /// There is such a parameter, but Hapax does not do what it says.
    #[error(
        "{name} cannot be used, as Hapax does not do what it says: leave it out. \
         Settings of a session can be given to the role: ALTER ROLE … IN DATABASE … SET …"
    )]
    Refused {
        /// The parameter, or the variable that speaks for it.
        name: &'static str,
    },
    /// The value of a parameter makes no sense.
    #[error("{name} is {value:?}: it takes {expected}")]
    Value {
        /// The parameter, or the variable that speaks for it.
        name: String,
        /// Its value. Never a password's: no password is wrong before the server says so.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Nobody says whose certificates to trust.
    #[error(
        "sslmode=verify-ca and verify-full take somebody to trust: sslrootcert=FILE with the authority's certificate, or sslrootcert=system"
    )]
    NoRoots,
    /// Nobody says who connects.
    #[error(
        "nobody says as which user to connect: put it into the address (postgres://user@…), or set PGUSER"
    )]
    NoUser,
}

/// The text, for a `main` that returns the error: what to do is worth more than the names of
/// fields.
impl fmt::Debug for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
