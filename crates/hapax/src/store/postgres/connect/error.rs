//! Connection errors, by what a user can do about them.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;
use std::{fmt, iter};

use rustls::{AlertDescription, CertificateError};
use tokio_postgres::error::DbError;

use super::shown;
use crate::store::postgres::options::{Found, Host, Place};

/// Why a connection failed. The text says what to do. It names the host, the database and the user,
/// and never shows a password.
pub struct ConnectError {
    kind: ConnectKind,
    text: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// The kind of a connection error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ConnectKind {
    /// No server listens at the address, or the address cannot be reached.
    Refused,
    /// The host name cannot be resolved.
    NoSuchHost,
    /// The server did not answer in time.
    Timeout,
    /// The password is wrong or missing.
    Password,
    /// There is no such database.
    NoSuchDatabase,
    /// The server's `pg_hba.conf` does not let this user in from here, or the role may not log in
    /// or connect.
    NotAdmitted,
    /// TLS is required and the server does not offer it.
    NoTls,
    /// The server's certificate is not trusted.
    Untrusted,
    /// TLS failed for another reason.
    Tls,
    /// A file that TLS needs is missing or invalid.
    Files,
    /// The server accepts no writes: it is a standby, or was made read-only.
    ReadOnly,
    /// The server is too old.
    TooOld,
    /// The server has no connection left, or is starting or stopping.
    Busy,
    /// Another error of the server, or a reply that makes no sense.
    Other,
    /// Several hosts failed for different reasons: the text has them all.
    Several,
}

impl ConnectError {
    pub(in super::super) fn new(kind: ConnectKind, text: String) -> ConnectError {
        ConnectError {
            kind,
            text,
            source: None,
        }
    }

    pub(in super::super) fn because(
        mut self,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> ConnectError {
        self.source = Some(source.into());
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ConnectKind {
        self.kind
    }

    /// Whether a server was reached.
    pub(super) fn was_reached(&self) -> bool {
        !matches!(
            self.kind,
            ConnectKind::Refused | ConnectKind::Timeout | ConnectKind::NoSuchHost
        )
    }

    /// Whether a try with TLS, or without it, might succeed.
    pub(super) fn may_be_of_tls(&self) -> bool {
        matches!(
            self.kind,
            ConnectKind::NotAdmitted
                | ConnectKind::NoTls
                | ConnectKind::Untrusted
                | ConnectKind::Tls
        )
    }

    /// Combines the errors of all hosts.
    pub(super) fn of_all(mut failures: Vec<ConnectError>) -> ConnectError {
        if failures.len() == 1 {
            return failures.remove(0);
        }
        let kind = failures
            .first()
            .map_or(ConnectKind::Other, |first| first.kind);
        let kind = if failures.iter().all(|failure| failure.kind == kind) {
            kind
        } else {
            ConnectKind::Several
        };
        let texts = failures
            .iter()
            .map(|failure| failure.text.as_str())
            .collect::<Vec<_>>()
            .join("; ");
        let head = if kind == ConnectKind::ReadOnly {
            "only standbys"
        } else {
            "none of the hosts can be used"
        };
        ConnectError::new(kind, format!("{head}: {texts}"))
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Prints the text, because what to do is more useful than the fields.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_ref()
            .map(|source| &**source as &(dyn Error + 'static))
    }
}

/// The host, database and user that an error is about.
pub(super) struct Subject<'a> {
    pub(super) host: &'a Host,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "database {:?} at {} as user {:?}",
            self.database, self.host, self.user
        )
    }
}

impl Subject<'_> {
    pub(super) fn no_such_host(&self, error: Option<io::Error>) -> ConnectError {
        let text = format!(
            "{self}: nobody knows that host. Correct its name, or see whether names can be looked up from here"
        );
        let made = ConnectError::new(ConnectKind::NoSuchHost, text);
        match error {
            Some(error) => made.because(error),
            None => made,
        }
    }

    pub(super) fn timed_out(&self, after: Duration) -> ConnectError {
        let advice = "See whether the server is up and no firewall drops what is sent there, or raise connect_timeout";
        ConnectError::new(
            ConnectKind::Timeout,
            format!("{self}: no answer within {}. {advice}", shown(after)),
        )
    }

    pub(super) fn standby(&self) -> ConnectError {
        let advice = "Give the address of the primary, or those of all its servers: host1,host2";
        ConnectError::new(
            ConnectKind::ReadOnly,
            format!("{self}: that server is a standby and takes no writes. {advice}"),
        )
    }

    pub(super) fn read_only(&self) -> ConnectError {
        let advice = "Take back default_transaction_read_only, which the server, the database or the role has set";
        ConnectError::new(
            ConnectKind::ReadOnly,
            format!("{self}: transactions are read-only there. {advice}"),
        )
    }

    pub(super) fn too_old(&self, found: u32, needed: u32) -> ConnectError {
        ConnectError::new(
            ConnectKind::TooOld,
            format!("{self}: that is PostgreSQL {found}. Hapax needs {needed} or newer"),
        )
    }

    /// Turns a driver error into one that a user can act on.
    pub(super) fn failed(&self, error: tokio_postgres::Error, password: &Found) -> ConnectError {
        let (kind, what) = match (
            error.as_db_error(),
            cause::<rustls::Error>(&error),
            cause::<io::Error>(&error),
        ) {
            (Some(said), ..) => self.refused_by_server(said, password),
            (None, Some(tls), _) => self.failed_in_tls(tls),
            (None, None, Some(io)) => self.failed_in_socket(io),
            (None, None, None) => self.failed_otherwise(&error, password),
        };
        ConnectError::new(kind, format!("{self}: {what}")).because(error)
    }

    fn refused_by_server(&self, said: &DbError, password: &Found) -> (ConnectKind, String) {
        let message = said.message();
        match code_of(said) {
            "28P01" => (ConnectKind::Password, wrong_password(password)),
            "3D000" => (ConnectKind::NoSuchDatabase, self.no_database()),
            "28000" => (ConnectKind::NotAdmitted, format!("the server does not let it in ({message}). {ADMIT}")),
            "42501" => {
                let grant = format!("GRANT CONNECT ON DATABASE {} TO {}", quoted(self.database), quoted(self.user));
                (ConnectKind::NotAdmitted, format!("that role may not connect to that database. {grant}"))
            }
            "53300" if message.contains("for role") => {
                let alter = format!("ALTER ROLE {} CONNECTION LIMIT …", quoted(self.user));
                (ConnectKind::Busy, format!("that role has as many connections as it may have. Raise its limit: {alter}"))
            }
            "53300" if message.contains("for database") => {
                let alter = format!("ALTER DATABASE {} CONNECTION LIMIT …", quoted(self.database));
                (ConnectKind::Busy, format!("that database has as many connections as it may have. Raise its limit: {alter}"))
            }
            "53300" => (
                ConnectKind::Busy,
                "the server has no connection left. Raise max_connections, or put a pooler in front of it".to_owned(),
            ),
            code if code.starts_with("57P") => {
                (ConnectKind::Busy, format!("the server is not ready ({message}). Wait until it is"))
            }
            _ => (ConnectKind::Other, format!("the server said: {message}")),
        }
    }

    fn no_database(&self) -> String {
        format!(
            "there is no such database. CREATE DATABASE {}, or correct the name",
            quoted(self.database)
        )
    }

    fn failed_in_tls(&self, error: &rustls::Error) -> (ConnectKind, String) {
        use rustls::Error::{AlertReceived, InvalidCertificate};
        match error {
            InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => {
                let text = "the server's certificate is not for that host, by its subjectAltName. \
                            Use the name it is for, get a certificate with this name, or use sslmode=verify-ca";
                (ConnectKind::Untrusted, text.to_owned())
            }
            InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            ) => (
                ConnectKind::Untrusted,
                "the server's certificate has expired. Renew it".to_owned(),
            ),
            // A bad signature means that another authority has the same name as a trusted one.
            InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => {
                let text = "the server's certificate is of an authority that is not trusted. \
                            Name that authority's certificate with sslrootcert";
                (ConnectKind::Untrusted, text.to_owned())
            }
            InvalidCertificate(reason) => (
                ConnectKind::Untrusted,
                format!("the server's certificate cannot be trusted: {reason}"),
            ),
            AlertReceived(
                AlertDescription::CertificateRequired
                | AlertDescription::UnknownCA
                | AlertDescription::BadCertificate,
            ) => {
                let text = format!(
                    "the server wants a client certificate that it trusts ({error}). Name it with sslcert and sslkey"
                );
                (ConnectKind::NotAdmitted, text)
            }
            _ => (ConnectKind::Tls, format!("TLS failed: {error}")),
        }
    }

    fn failed_in_socket(&self, error: &io::Error) -> (ConnectKind, String) {
        match (error.kind(), &self.host.place) {
            (ErrorKind::NotFound, _) => (
                ConnectKind::Refused,
                format!("there is no such socket. {START}"),
            ),
            (ErrorKind::PermissionDenied, Place::Socket(_)) => (
                ConnectKind::Refused,
                "the socket may not be used by this process. Look at its directory's permissions"
                    .to_owned(),
            ),
            (ErrorKind::ConnectionRefused, _) => (
                ConnectKind::Refused,
                format!("nobody listens there. {START}"),
            ),
            (ErrorKind::TimedOut, _) => (ConnectKind::Timeout, format!("no answer. {START}")),
            (ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe, _) => {
                let text = "the connection was closed without a word. See the server's log, and whether that is Postgres at all";
                (ConnectKind::Other, text.to_owned())
            }
            _ => (
                ConnectKind::Refused,
                format!("it could not be reached ({error}). {START}"),
            ),
        }
    }

    fn failed_otherwise(
        &self,
        error: &tokio_postgres::Error,
        password: &Found,
    ) -> (ConnectKind, String) {
        let reason = error
            .source()
            .map_or_else(|| error.to_string(), ToString::to_string);
        match reason.as_str() {
            "password missing" => (ConnectKind::Password, no_password(password)),
            "server does not support TLS" => {
                let text = "the server has no TLS. Switch it on there (ssl = on), or use sslmode=disable if the way to it is private";
                (ConnectKind::NoTls, text.to_owned())
            }
            "server did not use channel binding" => {
                let text = "the server did not bind the password to the TLS connection. \
                            Use TLS and scram-sha-256 for this user, or leave channel_binding=require out";
                (ConnectKind::Tls, text.to_owned())
            }
            _ => (ConnectKind::Other, reason),
        }
    }
}

const ADMIT: &str = "Add a line for it to pg_hba.conf, with the way of encryption you use, and see that the role exists and may log in";
const START: &str = "Start the server, or correct host and port";

fn wrong_password(password: &Found) -> String {
    match password {
        Found::Password(_) => {
            "the password is wrong, or there is no such user. Correct it: in the address, PGPASSWORD or ~/.pgpass".to_owned()
        }
        _ => no_password(password),
    }
}

fn no_password(password: &Found) -> String {
    let note = if let Found::NotUsed(why) = password {
        format!(" ({why})")
    } else {
        String::new()
    };
    format!(
        "the server asks for a password, and there is none{note}. Put it into the address, PGPASSWORD or ~/.pgpass"
    )
}

/// The SQLSTATE of an error. PgBouncer uses one code for its own errors and for those it forwards,
/// so the message has to distinguish them.
fn code_of(said: &DbError) -> &str {
    const BY_WORDS: [(&str, &str); 11] = [
        ("no such database", "3D000"),
        ("no such user", "28P01"),
        ("authentication failed", "28P01"),
        ("pg_hba.conf", "28000"),
        ("not permitted to log in", "28000"),
        ("permission denied for database", "42501"),
        ("no more connections allowed", "53300"),
        ("too many", "53300"),
        ("remaining connection slots", "53300"),
        ("the database system is", "57P03"),
        ("cannot connect to server", "57P03"),
    ];
    match said.code().code() {
        "08P01"
            if said.message().starts_with("database ")
                && said.message().ends_with("does not exist") =>
        {
            "3D000"
        }
        "08P01" => BY_WORDS
            .iter()
            .find(|(words, _)| said.message().contains(words))
            .map_or("08P01", |(_, code)| code),
        code => code,
    }
}

/// A quoted SQL identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The first error of type `E` in the chain of causes. An `io::Error` may wrap an error that
/// `source` does not return.
fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let inner = |error: &'a (dyn Error + 'static)| match error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
    {
        Some(inner) => Some(inner as &(dyn Error + 'static)),
        None => error.source(),
    };
    iter::successors(Some(error), |error| inner(*error)).find_map(|error| error.downcast_ref::<E>())
}
