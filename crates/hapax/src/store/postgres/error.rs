//! What can go wrong, as what a caller can act on.

use hapax_core::store::{StoreError, StoreErrorKind};
use tokio_postgres::error::DbError;

use super::{ConnectError, OptionsError};

/// Why a database could not be opened as a store. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// What was said of the database cannot be read.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The database could not be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database has no schema `hapax`, or one without what a store needs.
    #[error(
        "{database} is not prepared for Hapax: run `hapax migrate` against it, as a role that may create a schema"
    )]
    NotMigrated {
        /// The database, as it was named.
        database: String,
    },
    /// The schema is older than this program needs.
    #[error(
        "{database} has schema version {found} and this program needs {needed}: run `hapax migrate` of this version first"
    )]
    TooOld {
        /// The database, as it was named.
        database: String,
        /// The version it has.
        found: u32,
        /// The version this program was written for.
        needed: u32,
    },
    /// The schema is newer, and has left this program behind.
    #[error(
        "{database} has schema version {found}, which programs before version {oldest} cannot use, and this one is of {needed}: \
         run a newer version of Hapax"
    )]
    TooNew {
        /// The database, as it was named.
        database: String,
        /// The version it has.
        found: u32,
        /// The oldest version of a program that it still serves.
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
    /// The store is being copied, was moved to another, or is an unfinished copy.
    #[error("{database}: {refusal}")]
    OutOfUse {
        /// The database, as it was named.
        database: String,
        /// Where it stands, and what to do.
        refusal: String,
    },
    /// Transactions do not begin as they must.
    #[error("{database}: {reason}")]
    WrongIsolation {
        /// The database, as it was named.
        database: String,
        /// What it is, and what to do.
        reason: String,
    },
    /// Another store was copied into the database since this process opened it. What it names
    /// operations and principals by is not what it was.
    #[error(
        "{database} has another store in it than when this process began: one was copied here. Restart the process"
    )]
    AnotherStore {
        /// The database, as it was named.
        database: String,
    },
    /// The database answered, but not as it should.
    #[error("{database} cannot be used as a store: {source}")]
    Unusable {
        /// The database, as it was named.
        database: String,
        /// What went wrong.
        source: StoreError,
    },
}

/// The same while the store is in use: it may come back.
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

/// What the server said, without what it shows of rows: logs are read by people who may not read
/// those.
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

/// A statement that failed, and what to do about it.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) error: StoreError,
}

/// Where a statement's trouble lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// In the connection, which is of no use any more. Whether the statement took place is not
    /// known.
    Connection,
    /// In the store, which serves nobody any more. Whoever connects anew hears so at once, and goes
    /// on should it serve again.
    OutOfUse,
    /// In a row that somebody else has locked: what else was in the statement can go without it.
    /// Nothing took place.
    Locked,
    /// In somebody else who was at the record just now: to be sent again. Nothing took place.
    Undecided,
    /// In the server's clock, which is far ahead of its last reading: to be sent again once it was
    /// compared with ours. Nothing took place.
    Clock,
    /// In a part of the statement that the server does not take. Nothing took place.
    Part,
    /// In the server, whatever it is sent.
    Server,
}

impl Failure {
    pub(super) fn connection(error: StoreError) -> Failure {
        Failure {
            fault: Fault::Connection,
            error,
        }
    }

    /// What the server, or the lack of one, says.
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
        // A lock that was not to be had in time; a deadlock.
        "55P03" | "40P01" => Fault::Locked,
        // Overtaken by somebody who is done.
        "40001" => Fault::Undecided,
        // A server that does not take writes is not the one we want, whatever else it may be good
        // for.
        "25006" => Fault::Connection,
        "HX002" => Fault::OutOfUse,
        "HX007" => Fault::Clock,
        // What was there is not: perhaps it is about to be restored. Whoever connects anew sees
        // what it is then.
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

/// The server's words, and what to do where that is known. Its details are left out: they may show
/// what is stored.
fn explain(said: &DbError) -> String {
    let (code, words) = (said.code().code(), said.message());
    match code {
        "HX001" => isolation(said),
        "HX002" | "HX007" => words.to_owned(),
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

/// The hint of this one is ours.
fn isolation(said: &DbError) -> String {
    let hint = said
        .hint()
        .unwrap_or("ALTER ROLE … SET default_transaction_isolation = 'read committed'");
    format!("{}: {hint}", said.message())
}

/// What to do about transactions that do not begin as they must, if so.
pub(super) fn wrong_isolation(error: &tokio_postgres::Error) -> Option<String> {
    error
        .as_db_error()
        .filter(|said| said.code().code() == "HX001")
        .map(isolation)
}

/// Why the store serves nobody, if it does not.
pub(super) fn out_of_use(error: &tokio_postgres::Error) -> Option<String> {
    error
        .as_db_error()
        .filter(|said| said.code().code() == "HX002")
        .map(|said| said.message().to_owned())
}

/// Whether the server says that what is to be called is not there.
pub(super) fn is_missing(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|code| matches!(code.code(), "3F000" | "42883" | "42P01" | "42703" | "42704"))
}

/// Why the role was turned away, if it was.
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
        // Cancelled by somebody, out of memory: the next statement may fare better on the same
        // connection.
        for code in ["57014", "53200", "HX001"] {
            assert_eq!(fault(code), Fault::Server, "{code}");
        }
        assert_eq!(
            (fault("22021"), fault("HX002")),
            (Fault::Part, Fault::OutOfUse)
        );
    }
}
