//! The address of a Redis: one server, a sentinel's master, or a cluster.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use redis::{
    ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates,
};

/// Where a Redis is, and how to connect to it.
///
/// | Written | Means |
/// |---|---|
/// | `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]` | one server |
/// | `redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],…/NAME[/DB]` | the master NAME, as these sentinels know it |
/// | `redis+cluster://[USER[:PASSWORD]@]HOST[:PORT],…` | a cluster, found through these nodes |
///
/// `rediss` in place of `redis` encrypts, with TLS. Parameters after `?`: `ca_file`, `cert_file` and
/// `key_file` (PEM) for TLS, `sentinel_user` and `sentinel_password` for sentinels with a password
/// of their own. `%40` and the like stand for characters that separate the parts.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(super) kind: Kind,
    pub(super) hosts: Vec<Host>,
    is_tls: bool,
    user: Option<String>,
    password: Option<String>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
    database: i64,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

/// What stands at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Single,
    Sentinel { master: String },
    Cluster,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

/// Why a text is not the address of a Redis. The text says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

const FORMS: &str =
    "redis://HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/NAME or redis+cluster://HOST:PORT";

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let wrong = |reason: String| AddressError(reason);
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong(format!("a Redis is written as {FORMS}")))?;
        let (is_tls, form) = match scheme {
            "redis" => (false, ""),
            "rediss" => (true, ""),
            _ => match scheme.split_once('+') {
                Some(("redis", form)) => (false, form),
                Some(("rediss", form)) => (true, form),
                _ => return Err(wrong(format!("a Redis is written as {FORMS}"))),
            },
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let default_port = if form == "sentinel" { 26_379 } else { 6_379 };
        let hosts = hosts
            .split(',')
            .map(|host| parse_host(host, default_port))
            .collect::<Result<Vec<_>, _>>()?;
        let (kind, database) = match form {
            "" if hosts.len() > 1 => {
                return Err(wrong(
                    "redis:// has one host: for several write redis+sentinel:// or redis+cluster://"
                        .to_owned(),
                ));
            }
            "" => (Kind::Single, path),
            "sentinel" => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(wrong(
                        "which master? Write redis+sentinel://HOST:PORT/NAME, with the name that the sentinels know it by".to_owned(),
                    ));
                }
                let master = decoded(master)?;
                (Kind::Sentinel { master }, database)
            }
            "cluster" if !path.is_empty() => {
                return Err(wrong(
                    "a cluster has one database: leave out what follows the hosts".to_owned(),
                ));
            }
            "cluster" => (Kind::Cluster, ""),
            form => {
                return Err(wrong(format!("redis+{form} is not known: write {FORMS}")));
            }
        };
        let (user, password) =
            match credentials.map(|text| text.split_once(':').unwrap_or((text, ""))) {
                Some((user, password)) => (filled(user)?, filled(password)?),
                None => (None, None),
            };
        let mut address = Address {
            kind,
            hosts,
            is_tls,
            user,
            password,
            sentinel_user: None,
            sentinel_password: None,
            database: parse_database(database)?,
            ca_file: None,
            cert_file: None,
            key_file: None,
        };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            address.set(parameter)?;
        }
        address.check_tls_files()?;
        Ok(address)
    }
}

impl Address {
    fn set(&mut self, parameter: &str) -> Result<(), AddressError> {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decoded(value)?;
        match name {
            "ca_file" => self.ca_file = Some(value.into()),
            "cert_file" => self.cert_file = Some(value.into()),
            "key_file" => self.key_file = Some(value.into()),
            "sentinel_user" => self.sentinel_user = Some(value),
            "sentinel_password" => self.sentinel_password = Some(value),
            _ => {
                // It is not repeated: it may be a part of a password.
                return Err(AddressError(
                    "a parameter is not known: there are ca_file, cert_file, key_file, sentinel_user and sentinel_password"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }

    fn check_tls_files(&self) -> Result<(), AddressError> {
        let has_files = [&self.ca_file, &self.cert_file, &self.key_file]
            .iter()
            .any(|file| file.is_some());
        if has_files && !self.is_tls {
            return Err(AddressError(
                "ca_file, cert_file and key_file are for TLS: write rediss in place of redis"
                    .to_owned(),
            ));
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(AddressError(
                "cert_file and key_file belong together: give both".to_owned(),
            ));
        }
        Ok(())
    }

    /// A client for one server of this address. Reads the files for TLS.
    pub(super) fn client(
        &self,
        host: &Host,
        protocol: redis::ProtocolVersion,
    ) -> redis::RedisResult<redis::Client> {
        let settings = RedisConnectionInfo::default().set_db(self.database);
        self.client_with(
            host,
            &self.user,
            &self.password,
            settings.set_protocol(protocol),
        )
    }

    /// A client for a sentinel.
    pub(super) fn sentinel_client(&self, host: &Host) -> redis::RedisResult<redis::Client> {
        self.client_with(
            host,
            &self.sentinel_user,
            &self.sentinel_password,
            RedisConnectionInfo::default(),
        )
    }

    fn client_with(
        &self,
        host: &Host,
        user: &Option<String>,
        password: &Option<String>,
        mut settings: RedisConnectionInfo,
    ) -> redis::RedisResult<redis::Client> {
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let (name, port) = (host.name.clone(), host.port);
        if !self.is_tls {
            let info = ConnectionAddr::Tcp(name, port).into_connection_info()?;
            return redis::Client::open(info.set_redis_settings(settings));
        }
        let info = ConnectionAddr::TcpTls {
            host: name,
            port,
            insecure: false,
            tls_params: None,
        };
        let info = info.into_connection_info()?.set_redis_settings(settings);
        let client_tls = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Some(ClientTlsConfig {
                client_cert: read(cert)?,
                client_key: read(key)?,
            }),
            _ => None,
        };
        let root_cert = self.ca_file.as_deref().map(read).transpose()?;
        redis::Client::build_with_tls(
            info,
            TlsCertificates {
                client_tls,
                root_cert,
            },
        )
    }
}

/// Reads a file, or says which one cannot be read.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn parse_host(text: &str, default_port: u16) -> Result<Host, AddressError> {
    // The text is not repeated: it may be a part of a password.
    let wrong =
        || AddressError("a host or a port is no host or port: write HOST or HOST:PORT".to_owned());
    let (name, port) = match text.strip_prefix('[') {
        // An IPv6 address stands in brackets.
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(wrong)?;
            (name, port.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| wrong())?,
        None => default_port,
    };
    if name.is_empty() {
        return Err(wrong());
    }
    Ok(Host {
        name: name.to_owned(),
        port,
    })
}

fn parse_database(text: &str) -> Result<i64, AddressError> {
    let text = text.trim_end_matches('/');
    if text.is_empty() {
        return Ok(0);
    }
    text.parse()
        .ok()
        .filter(|number| *number >= 0)
        .ok_or_else(|| {
            AddressError(
                "what follows the host is no database: a Redis numbers them, from 0 on".to_owned(),
            )
        })
}

fn filled(text: &str) -> Result<Option<String>, AddressError> {
    Ok(Some(decoded(text)?).filter(|text| !text.is_empty()))
}

fn decoded(text: &str) -> Result<String, AddressError> {
    let wrong = || {
        AddressError(
            "a % is followed by two hexadecimal digits: write %25 for a percent sign".to_owned(),
        )
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2).ok_or_else(wrong)?;
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// Without passwords.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls { "rediss" } else { "redis" })?;
        f.write_str(match self.kind {
            Kind::Single => "://",
            Kind::Sentinel { .. } => "+sentinel://",
            Kind::Cluster => "+cluster://",
        })?;
        for (number, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if number == 0 { "" } else { "," })?;
        }
        if let Kind::Sentinel { master } = &self.kind {
            write!(f, "/{master}")?;
        }
        if self.database != 0 {
            write!(f, "/{}", self.database)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        text.parse::<Address>().unwrap().to_string()
    }

    #[test]
    fn an_address_is_shown_as_written_but_for_its_passwords() {
        for (text, expected) in [
            ("redis://cache", "redis://cache:6379"),
            ("redis://:s3cret@cache:6380/2", "redis://cache:6380/2"),
            ("rediss://ada:s3%40@cache", "rediss://cache:6379"),
            ("redis://[::1]:7000", "redis://[::1]:7000"),
            (
                "redis+sentinel://a,b:27000/hapax?sentinel_password=s3",
                "redis+sentinel://a:26379,b:27000/hapax",
            ),
            (
                "redis+sentinel://a/hapax/3",
                "redis+sentinel://a:26379/hapax/3",
            ),
            (
                "rediss+cluster://a:1,b:2?ca_file=/etc/ca.pem",
                "rediss+cluster://a:1,b:2",
            ),
        ] {
            assert_eq!(shown(text), expected);
        }
    }

    #[test]
    fn credentials_are_decoded() {
        let address: Address = "redis://ada%40shop:a%2Fb@cache".parse().unwrap();
        assert_eq!(address.user.as_deref(), Some("ada@shop"));
        assert_eq!(address.password.as_deref(), Some("a/b"));
    }

    #[test]
    fn a_mistake_is_told_with_what_to_write() {
        for (text, part) in [
            ("cache:6379", "written as"),
            ("mysql://cache", "written as"),
            ("redis+ring://cache", "redis+ring is not known"),
            ("redis://a,b", "redis+sentinel"),
            ("redis://cache/zero", "numbers them"),
            ("redis://cache:port", "HOST:PORT"),
            ("redis://", "HOST:PORT"),
            ("redis+sentinel://a", "which master"),
            ("redis+cluster://a/1", "one database"),
            ("redis://cache?timeout=3", "parameter is not known"),
            ("redis://cache?ca_file=x", "rediss"),
            ("rediss://cache?cert_file=x", "give both"),
            ("redis://a%4@cache", "hexadecimal"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
