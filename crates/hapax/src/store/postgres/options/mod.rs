//! Where the database is and how to get in: URLs, `key=value`, and what the environment adds.
//!
//! What Postgres users have learnt of libpq holds here. The departures: [`ConnectOptions`] lists
//! them.

mod error;
mod files;
mod parameters;
#[cfg(test)]
mod tests;
mod text;
mod tls;

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::OptionsError;

pub(super) use self::files::Found;
use self::files::Passfile;
use self::parameters::{Origin, Parameters};
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
/// It is what libpq takes, with these departures: the server must take writes, whatever
/// `target_session_attrs` says, as a replica may lag behind and a record must not;
/// `connect_timeout` bounds all hosts together and is 5 s unless said otherwise, also where libpq
/// would wait for ever; keepalives begin after 10 s; `options` are refused, as they do not hold
/// behind a pooler.
#[derive(Clone)]
pub struct ConnectOptions {
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) application_name: String,
    /// For all hosts together.
    pub(super) timeout: Duration,
    /// Whether the hosts are tried in any order rather than in theirs.
    pub(super) shuffled: bool,
    pub(super) keepalive: Option<Keepalive>,
    pub(super) user_timeout: Duration,
    pub(super) tls: TlsOptions,
    password: Option<String>,
    passfile: Option<Passfile>,
}

/// One of the places where the server may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Host {
    pub(super) place: Place,
    pub(super) port: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// By name, which is what a certificate is for, and perhaps at an address that needs no looking
    /// up.
    Tcp {
        name: String,
        address: Option<IpAddr>,
    },
    /// The directory of its socket.
    Socket(PathBuf),
}

/// When to ask a silent peer whether it is still there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Keepalive {
    pub(super) idle: Duration,
    pub(super) interval: Duration,
    pub(super) count: u32,
}

impl ConnectOptions {
    /// Reads `postgres://user@host:port/database?…` or `host=… dbname=…`. What it does not say
    /// comes from its `service`, then from the `PG*` variables, then from what libpq would take.
    pub fn parse(text: &str) -> Result<ConnectOptions, OptionsError> {
        ConnectOptions::parse_with(text, &|name| std::env::var(name).ok())
    }

    /// The same, with the variables of somebody else: `HOME` and `USER` among them.
    pub fn parse_with(
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<ConnectOptions, OptionsError> {
        let mut said = Parameters::default();
        // Of what is said twice the last word counts, as in libpq:
        // `postgres://user@host/db?user=other` is of the other user.
        for (name, value) in text::read(text)?.into_iter().rev() {
            said.say(&name, value, Origin::Text)?;
        }
        if let Some(service) = said
            .get("service")
            .map(str::to_owned)
            .or_else(|| environment("PGSERVICE"))
            .filter(|name| !name.is_empty())
        {
            files::say_service(&mut said, &service, environment)?;
        }
        said.say_environment(environment)?;
        ConnectOptions::from(&said, environment)
    }

    /// The places where the server may be, in the order in which they are tried: `host:port`, or
    /// the path of a socket.
    pub fn addresses(&self) -> Vec<String> {
        self.hosts.iter().map(Host::to_string).collect()
    }

    /// Who connects.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Under which name the connections are seen in `pg_stat_activity`.
    #[must_use]
    pub fn with_application_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.application_name);
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

    fn from(
        said: &Parameters,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<ConnectOptions, OptionsError> {
        let home = environment("HOME").map(PathBuf::from);
        let user = said
            .get("user")
            .map(str::to_owned)
            .or_else(|| environment("USER"))
            .or_else(|| environment("LOGNAME"));
        let user = user.ok_or(OptionsError::NoUser)?;
        let passfile = said
            .get("passfile")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join(".pgpass")));
        let seconds = |name| {
            Ok::<_, OptionsError>(
                said.number(name)?
                    .map(|seconds| Duration::from_secs(seconds.into())),
            )
        };
        check_session(said)?;
        Ok(ConnectOptions {
            hosts: hosts(said)?,
            database: said.get("dbname").unwrap_or(&user).to_owned(),
            application_name: said
                .get("application_name")
                .or(said.get("fallback_application_name"))
                .unwrap_or("hapax")
                .to_owned(),
            timeout: seconds("connect_timeout")?.unwrap_or(Duration::from_secs(5)),
            shuffled: said
                .choice(
                    "load_balance_hosts",
                    &[("disable", false), ("random", true)],
                )?
                .unwrap_or(false),
            keepalive: keepalive(said)?,
            // Of a peer that acknowledges nothing any more. The one number of libpq that is in
            // milliseconds.
            user_timeout: said
                .number("tcp_user_timeout")?
                .map_or(Duration::from_secs(15), |ms| {
                    Duration::from_millis(ms.into())
                }),
            tls: TlsOptions::from(said, home.as_deref())?,
            password: said.get("password").map(str::to_owned),
            passfile: passfile.map(|path| Passfile { path }),
            user,
        })
    }
}

/// Refuses what would have us talk to a replica, or in another encoding.
fn check_session(said: &Parameters) -> Result<(), OptionsError> {
    const WRITES: &str = "a store is written to: leave it out, or say read-write or primary";
    if said
        .get("target_session_attrs")
        .is_some_and(|wanted| !["any", "read-write", "primary"].contains(&wanted))
    {
        return Err(said.bad("target_session_attrs", WRITES));
    }
    let encoding = said.get("client_encoding").map(str::to_ascii_lowercase);
    if encoding
        .is_some_and(|encoding| !["auto", "utf8", "utf-8", "unicode"].contains(&encoding.as_str()))
    {
        return Err(said.bad(
            "client_encoding",
            "UTF8 is what is spoken here: leave it out",
        ));
    }
    Ok(())
}

fn keepalive(said: &Parameters) -> Result<Option<Keepalive>, OptionsError> {
    let seconds = |name, default: u64| {
        Ok::<_, OptionsError>(Duration::from_secs(
            said.number(name)?.map_or(default, u64::from),
        ))
    };
    let keepalive = Keepalive {
        idle: seconds("keepalives_idle", 10)?,
        interval: seconds("keepalives_interval", 5)?,
        count: said.number("keepalives_count")?.unwrap_or(3),
    };
    let wanted = said.get("keepalives").is_none() || said.number("keepalives")?.is_some();
    Ok(wanted.then_some(keepalive))
}

fn hosts(said: &Parameters) -> Result<Vec<Host>, OptionsError> {
    let names: Vec<&str> = said
        .get("host")
        .map_or_else(Vec::new, |names| names.split(',').map(str::trim).collect());
    let addresses: Vec<&str> = said
        .get("hostaddr")
        .map_or_else(Vec::new, |names| names.split(',').map(str::trim).collect());
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        return Err(said.bad("hostaddr", "it takes as many addresses as there are hosts"));
    }
    let count = names.len().max(addresses.len()).max(1);
    let ports: Vec<&str> = said
        .get("port")
        .map_or_else(Vec::new, |ports| ports.split(',').map(str::trim).collect());
    if ports.len() > 1 && ports.len() != count {
        return Err(said.bad("port", "it takes one port, or as many as there are hosts"));
    }
    (0..count)
        .map(|i| {
            host(
                said,
                names.get(i),
                addresses.get(i),
                ports.get(i).or(ports.first()),
            )
        })
        .collect()
}

fn host(
    said: &Parameters,
    name: Option<&&str>,
    address: Option<&&str>,
    port: Option<&&str>,
) -> Result<Host, OptionsError> {
    let port = match port.copied().unwrap_or_default() {
        "" => 5432,
        port => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| said.bad("port", "it takes a number from 1 to 65535"))?,
    };
    let address = address.copied().filter(|address| !address.is_empty());
    let address = address
        .map(|address| {
            address
                .parse::<IpAddr>()
                .map_err(|_| said.bad("hostaddr", "it takes IP addresses"))
        })
        .transpose()?;
    let place = match (name.copied().unwrap_or_default(), address) {
        (name, _) if name.starts_with('@') => {
            return Err(said.bad(
                "host",
                "it takes a name, an address, or the directory of a socket",
            ));
        }
        (path, _) if path.starts_with('/') => Place::Socket(path.into()),
        ("", None) => usual_place(port),
        ("", Some(address)) => Place::Tcp {
            name: address.to_string(),
            address: Some(address),
        },
        (name, address) => Place::Tcp {
            name: name.to_owned(),
            address,
        },
    };
    Ok(Host { place, port })
}

/// Where a server is that nobody has named: at a socket if there is one, else on this machine.
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

/// A URL that says where and who, and never the password.
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

/// The same: a password must not come into a log by way of a field somewhere.
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
