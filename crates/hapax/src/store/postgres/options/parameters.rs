//! The parameters of a connection: which there are, which variable speaks for each, and which Hapax
//! has no use for.

use std::collections::BTreeMap;

use super::OptionsError;

/// Where a value was said. The first in this order that says one decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    Text,
    Service,
    Environment(&'static str),
}

/// What was said, by the names that libpq has for it.
#[derive(Default)]
pub(super) struct Parameters(BTreeMap<&'static str, (String, Origin)>);

/// What becomes of a parameter.
enum Use {
    Taken,
    /// Saying it would promise what does not happen.
    Refused(&'static str),
}

struct Known {
    name: &'static str,
    /// Empty where libpq has none.
    variable: &'static str,
    purpose: Use,
}

const fn taken(name: &'static str, variable: &'static str) -> Known {
    Known {
        name,
        variable,
        purpose: Use::Taken,
    }
}

const fn refused(name: &'static str, variable: &'static str, why: &'static str) -> Known {
    Known {
        name,
        variable,
        purpose: Use::Refused(why),
    }
}

const NO_SESSION: &str = "settings of a session do not hold behind a pooler. Give them to the role instead: ALTER ROLE … IN DATABASE … SET …";
const NO_GSS: &str =
    "Hapax does not speak GSSAPI: use TLS, with a password or a client certificate";
const NO_CRL: &str =
    "Hapax does not read revocation lists: leave it out, and keep what sslrootcert trusts small";

const KNOWN: &[Known] = &[
    taken("host", "PGHOST"),
    taken("hostaddr", "PGHOSTADDR"),
    taken("port", "PGPORT"),
    taken("dbname", "PGDATABASE"),
    taken("user", "PGUSER"),
    taken("password", "PGPASSWORD"),
    taken("passfile", "PGPASSFILE"),
    taken("service", "PGSERVICE"),
    taken("application_name", "PGAPPNAME"),
    taken("fallback_application_name", ""),
    taken("connect_timeout", "PGCONNECT_TIMEOUT"),
    // No variable: what is spoken is UTF-8, whatever a terminal would like.
    taken("client_encoding", ""),
    taken("sslmode", "PGSSLMODE"),
    taken("sslnegotiation", "PGSSLNEGOTIATION"),
    taken("sslrootcert", "PGSSLROOTCERT"),
    taken("sslcert", "PGSSLCERT"),
    taken("sslkey", "PGSSLKEY"),
    taken("sslcertmode", "PGSSLCERTMODE"),
    taken("sslsni", "PGSSLSNI"),
    taken("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    taken("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    taken("sslcompression", "PGSSLCOMPRESSION"),
    taken("channel_binding", "PGCHANNELBINDING"),
    taken("gssencmode", "PGGSSENCMODE"),
    taken("keepalives", ""),
    taken("keepalives_idle", ""),
    taken("keepalives_interval", ""),
    taken("keepalives_count", ""),
    taken("tcp_user_timeout", ""),
    taken("target_session_attrs", "PGTARGETSESSIONATTRS"),
    taken("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    refused("options", "PGOPTIONS", NO_SESSION),
    refused(
        "replication",
        "",
        "a store does not stream the log of the database: leave it out",
    ),
    refused(
        "sslpassword",
        "",
        "Hapax does not read encrypted keys: decrypt the file that sslkey names, and let only its owner read it",
    ),
    refused("sslcrl", "PGSSLCRL", NO_CRL),
    refused("sslcrldir", "PGSSLCRLDIR", NO_CRL),
    refused(
        "requirepeer",
        "PGREQUIREPEER",
        "Hapax does not ask who owns a socket: give the socket a directory that only the server can write",
    ),
    refused(
        "require_auth",
        "PGREQUIREAUTH",
        "Hapax cannot restrict how the server asks for a password: use sslmode=verify-full, or channel_binding=require",
    ),
    refused("krbsrvname", "PGKRBSRVNAME", NO_GSS),
    refused("gsslib", "PGGSSLIB", NO_GSS),
    refused("gssdelegation", "PGGSSDELEGATION", NO_GSS),
];

pub(super) fn is_known(name: &str) -> bool {
    KNOWN.iter().any(|known| known.name == name)
}

impl Parameters {
    /// Takes a value unless one was said before. An empty value is as good as none, as everywhere
    /// in libpq.
    pub(super) fn say(
        &mut self,
        name: &str,
        value: String,
        origin: Origin,
    ) -> Result<(), OptionsError> {
        let known = KNOWN
            .iter()
            .find(|known| known.name == name)
            .ok_or_else(|| unknown(name))?;
        if value.is_empty() {
            return Ok(());
        }
        if let Use::Refused(reason) = known.purpose {
            return Err(OptionsError::Refused {
                name: shown(known.name, origin),
                reason,
            });
        }
        self.0.entry(known.name).or_insert((value, origin));
        Ok(())
    }

    /// Takes what the environment says of what nobody has said yet.
    pub(super) fn say_environment(
        &mut self,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), OptionsError> {
        for known in KNOWN.iter().filter(|known| !known.variable.is_empty()) {
            match environment(known.variable) {
                Some(value) if !self.0.contains_key(known.name) => {
                    self.say(known.name, value, Origin::Environment(known.variable))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &'static str) -> Option<&str> {
        debug_assert!(is_known(name), "{name} is not in the table");
        self.0.get(name).map(|(value, _)| value.as_str())
    }

    /// The value as one of several words.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, OptionsError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match choices.iter().find(|(word, _)| *word == value) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => Err(self.bad(name, &one_of(choices.iter().map(|(word, _)| *word)))),
        }
    }

    /// The value as a whole number. libpq's zero and its negative numbers all mean "as if it were
    /// not there".
    pub(super) fn number(&self, name: &'static str) -> Result<Option<u32>, OptionsError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.trim().parse::<i32>() {
            Ok(number) => Ok(u32::try_from(number).ok().filter(|number| *number > 0)),
            Err(_) => Err(self.bad(name, "it takes a whole number")),
        }
    }

    /// What to say of a value that makes no sense. Never of a password: those are taken as they
    /// are.
    pub(super) fn bad(&self, name: &'static str, expected: &str) -> OptionsError {
        let (value, origin) = self
            .0
            .get(name)
            .map_or(("", Origin::Text), |(value, origin)| {
                (value.as_str(), *origin)
            });
        OptionsError::Value {
            name: shown(name, origin),
            value: value.to_owned(),
            expected: expected.to_owned(),
        }
    }
}

/// A parameter by the name under which it was said.
fn shown(name: &str, origin: Origin) -> String {
    match origin {
        Origin::Text => name.to_owned(),
        Origin::Service => format!("{name} of the service"),
        Origin::Environment(variable) => variable.to_owned(),
    }
}

fn one_of<'a>(words: impl Iterator<Item = &'a str>) -> String {
    format!("it takes one of: {}", words.collect::<Vec<_>>().join(", "))
}

fn unknown(name: &str) -> OptionsError {
    let nearest = KNOWN
        .iter()
        .filter(|known| matches!(known.purpose, Use::Taken))
        .map(|known| known.name);
    let nearest = nearest
        .min_by_key(|known| distance(known, name))
        .unwrap_or("host");
    OptionsError::Unknown {
        name: name.to_owned(),
        nearest,
    }
}

/// How many letters must be put in, left out or changed to come from one word to the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}
