//! Errors of the Postgres store, by what a caller can do about them.

use std::fmt;

use hapax_core::store::{StoreError, StoreErrorKind};
use tokio_postgres::error::DbError;

use super::schema::MigrateError;
use super::{ConnectError, OptionsError};

/// Why a database could not be opened as a store. The text says what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The connection text cannot be read.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The database could not be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The migrations could not be applied.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The database has no schema `hapax`, or an incomplete one.
    #[error(
        "{database} is not prepared for Hapax: as a role that may create a schema, run `hapax migrate --store {database}`, or call `Hapax::postgres(…).migrate()`"
    )]
    NotMigrated {
        /// The database, as it was named.
        database: String,
    },
    /// The schema is older than this program needs.
    #[error(
        "{database} has schema version {found} and this program needs {needed}: run `hapax migrate --store {database}` of this version first, or call \
         `Hapax::postgres(…).migrate()`"
    )]
    TooOld {
        /// The database, as it was named.
        database: String,
        /// The version it has.
        found: u32,
        /// The version this program was written for.
        needed: u32,
    },
    /// The schema is newer, and no longer supports this program.
    #[error(
        "{database} has schema version {found}, which programs before version {oldest} cannot use, and this one is of {needed}: \
         run a newer version of Hapax"
    )]
    TooNew {
        /// The database, as it was named.
        database: String,
        /// The version it has.
        found: u32,
        /// The oldest program version that it still supports.
        oldest: u32,
        /// The version this program was written for.
        needed: u32,
    },
    /// The role may not call the functions of the schema.
    #[error(
        "{database}: the role may not use schema hapax ({reason}): run `hapax migrate --role NAME` with its name as the owner of the schema"
    )]
    NotAllowed {
        /// The database, as it was named.
        database: String,
        /// What the server said.
        reason: String,
    },
    /// The role may use the store, but not take it out of use.
    #[error(
        "{database}: only the role that owns schema hapax may copy the store: name that one, with which `hapax migrate` was run"
    )]
    NotTheOwner {
        /// The database, as it was named.
        database: String,
    },
    /// The store is being copied, was moved, or is an unfinished copy.
    #[error("{database}: {refusal}")]
    OutOfUse {
        /// The database, as it was named.
        database: String,
        /// Its standing, and what to do.
        refusal: String,
    },
    /// Transactions have the wrong isolation level.
    #[error("{database}: {reason}")]
    WrongIsolation {
        /// The database, as it was named.
        database: String,
        /// The level, and what to do.
        reason: String,
    },
    /// Another store was copied into the database since this process opened it. Its secret, from
    /// which the ids of operations and principals are made, is another one.
    #[error(
        "{database} has another store in it than when this process began: one was copied here. Restart the process"
    )]
    AnotherStore {
        /// The database, as it was named.
        database: String,
    },
    /// The database answered, but not as expected.
    #[error("{database} cannot be used as a store: {source}")]
    Unusable {
        /// The database, as it was named.
        database: String,
        /// What went wrong.
        source: StoreError,
    },
}

/// Prints the message, for a `main` that returns the error: what to do is more useful than the
/// fields.
impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The same error while the store is in use: the store may recover.
impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::TooNew { .. } => StoreErrorKind::Unsupported,
            OpenError::Unusable { source, .. } => source.kind(),
            _ => StoreErrorKind::Unavailable,
        };
        StoreError::new(kind, error.to_string()).because(error)
    }
}

/// The server's error without the details that show contents of rows: people who read logs may not
/// be allowed to read those.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub(super) struct Said {
    code: String,
    message: String,
}

impl Said {
    pub(super) fn new(said: &DbError) -> Said {
        Said {
            code: said.code().code().to_owned(),
            message: said.message().to_owned(),
        }
    }
}

/// A failed statement, and what to do about it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) error: StoreError,
}

/// The cause of a statement's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection, which is no longer usable. Whether the statement took effect is not known.
    Connection,
    /// The store is out of use. A new connection reports that at once, and works again if the store
    /// comes back.
    OutOfUse,
    /// A row is locked by another transaction: the other parts of the statement can be sent without
    /// it. Nothing took effect.
    Locked,
    /// A concurrent change of the same record: send it again. Nothing took effect.
    Undecided,
    /// The server's clock, which is far ahead of its last reading: send the statement again after
    /// comparing the clock with this node's. Nothing took effect.
    Clock,
    /// A part of the statement, which the server does not accept. Nothing took effect.
    Part,
    /// The server, for any statement.
    Server,
}

impl Failure {
    pub(super) fn connection(error: StoreError) -> Failure {
        Failure {
            fault: Fault::Connection,
            error,
        }
    }

    /// Classifies a driver error, which may come from the server or the connection.
    pub(super) fn new(error: tokio_postgres::Error) -> Failure {
        let (fault, error) = match error.as_db_error() {
            None => (
                Fault::Connection,
                StoreError::unavailable("the connection to the database was lost").because(error),
            ),
            Some(said) => {
                let fault = fault(said.code().code());
                let kind = match fault {
                    Fault::Locked => StoreErrorKind::Locked,
                    _ if is_damage(said.code().code()) => StoreErrorKind::Corrupt,
                    _ => StoreErrorKind::Unavailable,
                };
                (
                    fault,
                    StoreError::new(kind, explain(said)).because(Said::new(said)),
                )
            }
        };
        Failure { fault, error }
    }
}

fn fault(code: &str) -> Fault {
    match code {
        // A lock timeout, or a deadlock.
        "55P03" | "40P01" => Fault::Locked,
        // A serialization failure: another transaction has changed the record.
        "40001" => Fault::Undecided,
        // A read-only server cannot be used: look for another one.
        "25006" => Fault::Connection,
        "HX002" => Fault::OutOfUse,
        "HX007" => Fault::Clock,
        // A namespace that belongs to `hapax.start`: claims in other namespaces go on.
        "HX008" => Fault::Part,
        // A schema, function or table is missing: the database may be about to be restored. A new
        // connection checks what it is then.
        "3F000" | "42883" | "42P01" => Fault::Connection,
        code if code.starts_with("57P") || code.starts_with("08") => Fault::Connection,
        code if is_damage(code)
            || ["22", "23", "54", "P0"]
                .iter()
                .any(|class| code.starts_with(class)) =>
        {
            Fault::Part
        }
        _ => Fault::Server,
    }
}

fn is_damage(code: &str) -> bool {
    matches!(code, "XX001" | "XX002")
}

/// The server's message, and what to do where that is known. Its details are left out: they may
/// show stored data.
fn explain(said: &DbError) -> String {
    let (code, words) = (said.code().code(), said.message());
    match code {
        "HX001" => isolation(said),
        "HX002" | "HX007" => words.to_owned(),
        "HX008" => format!(
            "{words}: {}",
            said.hint().unwrap_or("use another namespace")
        ),
        "25006" => format!("the database takes no writes ({words}): is it a standby?"),
        "3F000" | "42883" | "42P01" | "42703" | "42704" => {
            format!("the database is not prepared for this version ({words}): run `hapax migrate`")
        }
        "42501" => format!(
            "the role may not use schema hapax ({words}): run `hapax migrate --role NAME` as the schema's owner"
        ),
        "53100" => format!("the database's disk is full ({words})"),
        "55P03" | "40P01" => {
            format!("the record is locked by a transaction that has not ended ({words})")
        }
        code => format!("the database refused a statement ({code}: {words})"),
    }
}

/// The hint of this error comes from our own SQL.
fn isolation(said: &DbError) -> String {
    let hint = said
        .hint()
        .unwrap_or("ALTER ROLE … SET default_transaction_isolation = 'read committed'");
    format!("{}: {hint}", said.message())
}

/// What to do about a wrong isolation level, if that is the error.
pub(super) fn wrong_isolation(error: &tokio_postgres::Error) -> Option<String> {
    error
        .as_db_error()
        .filter(|said| said.code().code() == "HX001")
        .map(isolation)
}

/// Why the store is out of use, if that is the error.
pub(super) fn out_of_use(error: &tokio_postgres::Error) -> Option<String> {
    error
        .as_db_error()
        .filter(|said| said.code().code() == "HX002")
        .map(|said| said.message().to_owned())
}

/// Whether the error says that the called function, table or schema does not exist.
pub(super) fn is_missing(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|code| matches!(code.code(), "3F000" | "42883" | "42P01" | "42703" | "42704"))
}

/// Why the role was refused, if that is the error.
pub(super) fn refused_role(error: &tokio_postgres::Error) -> Option<String> {
    error
        .as_db_error()
        .filter(|said| said.code().code() == "42501")
        .map(|said| said.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_goes_away_costs_the_connection_and_a_lock_does_not() {
        for code in ["57P01", "57P02", "57P03", "08006", "25006", "42883"] {
            assert_eq!(fault(code), Fault::Connection, "{code}");
        }
        for code in ["55P03", "40P01"] {
            assert_eq!(fault(code), Fault::Locked, "{code}");
        }
        // Cancelled, or out of memory: the next statement may succeed on the same connection.
        for code in ["57014", "53200", "HX001"] {
            assert_eq!(fault(code), Fault::Server, "{code}");
        }
        assert_eq!(
            (fault("22021"), fault("HX008"), fault("HX002")),
            (Fault::Part, Fault::Part, Fault::OutOfUse)
        );
    }
}
