//! Where the database is and how to connect: URLs, `key=value` texts, and the environment.
//!
//! Parameters follow libpq, except as described at [`ConnectOptions`].

mod error;
mod passfile;
#[cfg(test)]
mod tests;
mod text;
mod tls;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{self, LoadBalanceHosts, SslNegotiation};

pub use error::OptionsError;

pub(super) use self::passfile::Found;
use self::passfile::Passfile;
pub(super) use self::tls::{Identity, Mode, Roots, TlsOptions};

/// Where the usual builds of Postgres put their sockets.
const SOCKETS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// How to reach a database.
///
/// ```
/// use hapax::store::postgres::ConnectOptions;
///
/// let options = ConnectOptions::parse("postgres://hapax:secret@db-1:5432,db-2:5432/payments?sslmode=require")?;
/// assert_eq!(options.to_string(), "postgres://hapax@db-1:5432,db-2:5432/payments");
/// # Ok::<(), hapax::store::postgres::OptionsError>(())
/// ```
///
/// Parameters mean what they mean in libpq, with these differences. The server must accept writes,
/// whatever `target_session_attrs` says, because a replica may lag behind. `connect_timeout`
/// applies to all hosts together and is 5 s by default, also where libpq would wait for ever.
/// Keepalives begin after 10 s. Unsupported parameters are refused by name, including `service` and
/// `options`: session settings are not reliable behind a pooler.
#[derive(Clone)]
pub struct ConnectOptions {
    /// Everything except hosts, passwords and TLS.
    pub(super) config: Config,
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) database: String,
    /// For all hosts together.
    pub(super) timeout: Duration,
    /// Whether the hosts are tried in random order.
    pub(super) shuffled: bool,
    pub(super) tls: TlsOptions,
    password: Option<String>,
    passfile: Option<Passfile>,
}

/// The supported parameters, each with its environment variable; empty where libpq has none.
const KNOWN: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("application_name", "PGAPPNAME"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    // No variable: the encoding is always UTF-8, whatever the terminal uses.
    ("client_encoding", ""),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("gssencmode", "PGGSSENCMODE"),
    ("keepalives", ""),
    ("keepalives_idle", ""),
    ("keepalives_interval", ""),
    ("keepalives_count", ""),
    ("tcp_user_timeout", ""),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
];

/// Parameters of libpq, with their variables, that restrict or change a connection in unsupported
/// ways. Ignoring them would promise what does not happen.
const REFUSED: &[(&str, &str)] = &[
    ("options", "PGOPTIONS"),
    ("service", "PGSERVICE"),
    ("sslcrl", "PGSSLCRL"),
    ("sslcrldir", "PGSSLCRLDIR"),
    ("sslcertmode", "PGSSLCERTMODE"),
    ("sslsni", "PGSSLSNI"),
    ("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    ("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    ("requirepeer", "PGREQUIREPEER"),
    ("require_auth", "PGREQUIREAUTH"),
];

fn is_known(name: &str) -> bool {
    KNOWN.iter().any(|(known, _)| *known == name)
}

fn names() -> String {
    let names: Vec<_> = KNOWN.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// One of the places where the server may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Host {
    pub(super) place: Place,
    pub(super) port: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A host name, which a certificate can be checked against, and an optional address that needs
    /// no lookup.
    Tcp {
        name: String,
        address: Option<IpAddr>,
    },
    /// The directory of a Unix socket.
    Socket(PathBuf),
}

impl ConnectOptions {
    /// Reads `postgres://user@host:port/database?…` or `host=… dbname=…`. Missing parameters come
    /// from the `PG*` variables, then from libpq's defaults.
    pub fn parse(text: &str) -> Result<ConnectOptions, OptionsError> {
        ConnectOptions::parse_with(text, &|name| std::env::var(name).ok())
    }

    /// The same, with the given environment variables, including `HOME` and `USER`.
    pub fn parse_with(
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<ConnectOptions, OptionsError> {
        let said = Parameters::read(text, environment)?;
        let home = environment("HOME").map(PathBuf::from);
        let user = said
            .get("user")
            .map(str::to_owned)
            .or_else(|| environment("USER"))
            .or_else(|| environment("LOGNAME"))
            .ok_or(OptionsError::NoUser)?;
        let passfile = said
            .get("passfile")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join(".pgpass")));
        said.check_session()?;
        let database = said.get("dbname").unwrap_or(&user).to_owned();
        let mut config = said.config(KEEPALIVES, CHOICES)?;
        config
            .user(&user)
            .dbname(&database)
            .application_name(said.get("application_name").unwrap_or("hapax"))
            .keepalives_retries(said.number("keepalives_count")?.unwrap_or(3))
            // How long sent data may stay unacknowledged. This is libpq's only timeout in
            // milliseconds.
            .tcp_user_timeout(Duration::from_millis(
                said.number("tcp_user_timeout")?.unwrap_or(15_000).into(),
            ));
        let is_direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
        Ok(ConnectOptions {
            hosts: said.hosts()?,
            timeout: Duration::from_secs(said.number("connect_timeout")?.unwrap_or(5).into()),
            shuffled: config.get_load_balance_hosts() == LoadBalanceHosts::Random,
            tls: TlsOptions::new(&said, is_direct, home.as_deref())?,
            password: said.get("password").map(str::to_owned),
            passfile: passfile.map(|path| Passfile { path }),
            config,
            user,
            database,
        })
    }

    /// The places where the server may be, in the order in which they are tried: `host:port`, or
    /// the path of a socket.
    pub fn addresses(&self) -> Vec<String> {
        self.hosts.iter().map(Host::to_string).collect()
    }

    /// The user that connects.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Sets the name of the connections in `pg_stat_activity`.
    #[must_use]
    pub fn with_application_name(mut self, name: &str) -> Self {
        self.config.application_name(name);
        self
    }

    /// The password for this host.
    pub(super) fn password_for(&self, host: &Host) -> Found {
        match (&self.password, &self.passfile) {
            (Some(password), _) => Found::Password(password.clone()),
            (None, Some(file)) => file.find(host, &self.database, &self.user),
            (None, None) => Found::Nothing,
        }
    }
}

/// When an idle connection is probed, by default.
const KEEPALIVES: &str = "keepalives_idle=10 keepalives_interval=5";

/// Parameters that [`Config`] parses itself, and the values it accepts.
const CHOICES: &[(&str, &str)] = &[
    ("sslnegotiation", "postgres or direct"),
    ("channel_binding", "disable, prefer or require"),
    ("load_balance_hosts", "disable or random"),
    ("keepalives", "0 or 1"),
    ("keepalives_idle", "a whole number"),
    ("keepalives_interval", "a whole number"),
];
const PLACES: &[(&str, &str)] = &[
    ("host", "names, addresses, or directories of sockets"),
    ("hostaddr", "IP addresses"),
    ("port", "a number from 1 to 65535"),
];

/// The value of each parameter, and the name of the parameter or variable that set it.
struct Parameters(BTreeMap<&'static str, (String, &'static str)>);

impl Parameters {
    /// Reads the text and the environment. An empty value counts as missing, as in libpq.
    fn read(
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Parameters, OptionsError> {
        let mut said = BTreeMap::new();
        // The last value of a repeated parameter counts, as in libpq:
        // `postgres://user@host/db?user=other` connects as `other`.
        for (name, value) in text::read(text)? {
            if let Some((name, _)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
                return Err(OptionsError::Refused { name });
            }
            let Some((name, _)) = KNOWN.iter().find(|(known, _)| *known == name) else {
                return Err(OptionsError::Unknown { name });
            };
            if !value.is_empty() {
                said.insert(*name, (value, *name));
            }
        }
        let environment = |variable: &str| environment(variable).filter(|value| !value.is_empty());
        if let Some((_, name)) = REFUSED.iter().find(|(_, name)| environment(name).is_some()) {
            return Err(OptionsError::Refused { name });
        }
        for (name, variable) in KNOWN.iter().filter(|(_, variable)| !variable.is_empty()) {
            if let Some(value) = environment(variable) {
                said.entry(name).or_insert((value, variable));
            }
        }
        Ok(Parameters(said))
    }

    fn get(&self, name: &str) -> Option<&str> {
        debug_assert!(is_known(name), "{name} is not in the table");
        self.0.get(name).map(|(value, _)| value.as_str())
    }

    /// The value as an integer. Zero and negative numbers mean "not set", as in libpq.
    fn number(&self, name: &'static str) -> Result<Option<u32>, OptionsError> {
        let number = self.get(name).map(|value| value.trim().parse::<i32>());
        match number.transpose() {
            Ok(number) => Ok(number
                .and_then(|it| u32::try_from(it).ok())
                .filter(|it| *it > 0)),
            Err(_) => Err(self.bad(name, "a whole number")),
        }
    }

    /// Lets [`Config`] parse values, one by one, so that an error names the parameter.
    fn config(
        &self,
        defaults: &str,
        choices: &[(&'static str, &'static str)],
    ) -> Result<Config, OptionsError> {
        let mut text = defaults.to_owned();
        let mut config = text.parse().expect("the defaults make sense");
        for (name, expected) in choices {
            if let Some(value) = self.get(name) {
                let value = value.replace('\\', r"\\").replace('\'', r"\'");
                text += &format!(" {name}='{value}'");
                config = text.parse().map_err(|_| self.bad(name, expected))?;
            }
        }
        Ok(config)
    }

    /// Refuses values that would use a replica, another encoding, or GSSAPI encryption.
    fn check_session(&self) -> Result<(), OptionsError> {
        let checks: [(_, &[&str], _); 3] = [
            (
                "target_session_attrs",
                &["any", "read-write", "primary"],
                "read-write or primary, as a store is written to",
            ),
            (
                "client_encoding",
                &["auto", "utf8", "utf-8", "unicode"],
                "UTF8",
            ),
            (
                "gssencmode",
                &["disable", "prefer"],
                "disable, as Hapax does not speak GSSAPI: use TLS",
            ),
        ];
        for (name, taken, expected) in checks {
            let value = self.get(name).map(str::to_ascii_lowercase);
            if value.is_some_and(|value| !taken.contains(&value.as_str())) {
                return Err(self.bad(name, expected));
            }
        }
        Ok(())
    }

    fn hosts(&self) -> Result<Vec<Host>, OptionsError> {
        let config = self.config("", PLACES)?;
        let names = config.get_hosts();
        let addresses = config.get_hostaddrs();
        let ports = config.get_ports();
        if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
            return Err(self.bad("hostaddr", "as many addresses as there are hosts"));
        }
        let count = names.len().max(addresses.len()).max(1);
        if ports.len() > 1 && ports.len() != count {
            return Err(self.bad("port", "one port, or as many as there are hosts"));
        }
        let host = |i| {
            let port = *ports.get(i).or(ports.first()).unwrap_or(&5432);
            if port == 0 {
                return Err(self.bad("port", "a number from 1 to 65535"));
            }
            let address = addresses.get(i).copied();
            let place = match names.get(i) {
                Some(config::Host::Unix(path)) => Place::Socket(path.clone()),
                Some(config::Host::Tcp(name)) if !name.is_empty() => Place::Tcp {
                    name: name.clone(),
                    address,
                },
                _ => address.map_or_else(
                    || usual_place(port),
                    |address| Place::Tcp {
                        name: address.to_string(),
                        address: Some(address),
                    },
                ),
            };
            Ok(Host { place, port })
        };
        (0..count).map(host).collect()
    }

    /// The error for an invalid value. Never used for passwords, which are not checked.
    fn bad(&self, name: &'static str, expected: &'static str) -> OptionsError {
        let (value, name) = self.0.get(name).cloned().unwrap_or((String::new(), name));
        OptionsError::Value {
            name: name.to_owned(),
            value,
            expected,
        }
    }
}

/// The default place of a server: a Unix socket if there is one, else localhost.
fn usual_place(port: u16) -> Place {
    let socket = SOCKETS
        .iter()
        .map(Path::new)
        .find(|path| path.join(format!(".s.PGSQL.{port}")).exists());
    socket.map_or_else(
        || Place::Tcp {
            name: "localhost".to_owned(),
            address: None,
        },
        |path| Place::Socket(path.to_owned()),
    )
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Tcp { name, .. } if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Place::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
            Place::Socket(path) => write!(f, "{}/.s.PGSQL.{}", path.display(), self.port),
        }
    }
}

/// A URL with the places, the user and the database, without the password.
impl fmt::Display for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}@", escaped(&self.user))?;
        for (i, host) in self.hosts.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match &host.place {
                Place::Tcp { .. } => write!(f, "{comma}{host}")?,
                Place::Socket(path) => write!(
                    f,
                    "{comma}{}:{}",
                    escaped(&path.display().to_string()),
                    host.port
                )?,
            }
        }
        write!(f, "/{}", escaped(&self.database))
    }
}

/// The same as `Display`, so that no password gets into a log.
impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

fn escaped(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-._~".contains(c);
    text.chars()
        .map(|c| {
            if plain(c) || !c.is_ascii() {
                c.to_string()
            } else {
                format!("%{:02X}", u32::from(c))
            }
        })
        .collect()
}
