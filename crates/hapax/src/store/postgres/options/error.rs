//! What can be wrong with the text that says where a database is.

use std::fmt;
use std::io;
use std::path::PathBuf;

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
    /// There is no such parameter.
    #[error("{name:?} is not a parameter of a connection to Postgres: did you mean {nearest:?}?")]
    Unknown {
        /// The parameter.
        name: String,
        /// The one whose name is nearest.
        nearest: &'static str,
    },
    /// There is such a parameter, but Hapax cannot do what it says.
    #[error("{name} cannot be used: {reason}")]
    Refused {
        /// The parameter, or the variable that speaks for it.
        name: String,
        /// What to do instead.
        reason: &'static str,
    },
    /// The value of a parameter makes no sense.
    #[error("{name} is {value:?}: {expected}")]
    Value {
        /// The parameter, or the variable that speaks for it.
        name: String,
        /// Its value. Never a password's: no password is wrong before the server says so.
        value: String,
        /// What it should be.
        expected: String,
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
    /// The service is nowhere.
    #[error(
        "there is no service {service:?}: add [{service}] to ~/.pg_service.conf, or set PGSERVICEFILE to the file that has it"
    )]
    NoService {
        /// The service.
        service: String,
    },
    /// The service file cannot be understood.
    #[error("{path} cannot be used: {reason}")]
    Service {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file could not be read.
    #[error("{path} could not be read: check its permissions")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The text, for a `main` that returns the error: what to do is worth more than the names of
/// fields.
impl fmt::Debug for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match std::error::Error::source(self) {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}
