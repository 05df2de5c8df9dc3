//! Parses single settings, for the command line and the file alike.
//!
//! Every message says what was written, what is wrong with it, and what to write instead.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;

use super::{Durability, Lines, Protocol, StoreUrl, password};

/// The address and port to listen on.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text.rsplit_once(':') {
        _ if text.parse::<u16>().is_ok() => {
            format!("`{text}` lacks the address: write 127.0.0.1:{text}, or 0.0.0.0:{text} for every interface")
        }
        Some(("", port)) if port.parse::<u16>().is_ok() => {
            format!("`{text}` lacks the address: write 127.0.0.1{text}, or 0.0.0.0{text} for every interface")
        }
        Some(("localhost", port)) if port.parse::<u16>().is_ok() => {
            format!("`{text}` is a name: write 127.0.0.1:{port} or [::1]:{port}")
        }
        _ => format!("`{text}` is no address and port: write 127.0.0.1:4000, for example"),
    })
}

/// The address of the admin listener, or `off`. Whether it needs a token is checked with the rest
/// of the configuration.
pub fn admin_address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        Ok(None)
    } else {
        listen_address(text).map(Some)
    }
}

/// The origin of the upstream.
pub fn upstream_url(text: &str) -> Result<Uri, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!(
            "`{text}` lacks its scheme: write http://{text} or https://{text}"
        ));
    };
    if !matches!(scheme, "http" | "https") {
        return Err(format!(
            "`{scheme}` is no scheme the gateway speaks: write http://… or https://…"
        ));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(
            "a URL with a user name or password would end up in logs: leave it out, clients send their own credentials".to_owned()
        );
    }
    if !matches!(path, "" | "/") {
        return Err(format!(
            "requests keep their own path: write {scheme}://{authority} without `{path}`"
        ));
    }
    let no_origin =
        || format!("`{text}` is no URL of a service: write http://127.0.0.1:3000, for example");
    let uri = Uri::from_str(&format!("{scheme}://{authority}")).map_err(|_| no_origin())?;
    let host = uri.host().unwrap_or_default();
    let port_is_sound =
        authority[host.len()..].is_empty() || uri.port_u16().is_some_and(|port| port != 0);
    if host.is_empty() || !port_is_sound {
        Err(no_origin())
    } else {
        Ok(uri)
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(StoreUrl::Memory),
            Some(("sqlite", "" | ":memory:")) => {
                Err(format!("`{text}` names no file: write sqlite:hapax.db, or memory: to keep nothing"))
            }
            Some(("sqlite", path)) => sqlite_path(path),
            Some(("postgres" | "postgresql", _)) => text.parse().map(StoreUrl::Postgres),
            Some((scheme, _)) if is_redis(scheme) => text.parse().map(StoreUrl::Redis),
            Some(("valkey" | "valkeys", _)) => {
                Err("a Valkey is written as a Redis: write redis://HOST:PORT, or rediss://HOST:PORT with TLS".to_owned())
            }
            _ if is_key_value(text) => Err("a Postgres is written as a URL: write postgres://USER@HOST/DATABASE".to_owned()),
            None if text == "memory" => Err("write memory: with a colon".to_owned()),
            None if text == "postgres" || text == "postgresql" => {
                Err("write postgres://, which takes everything from the PG* variables, or postgres://USER@HOST/DATABASE".to_owned())
            }
            None if is_redis(text) => Err("write redis://HOST:PORT".to_owned()),
            None if !text.is_empty() => Err(format!("`{text}` lacks the kind of store: write sqlite:{text}")),
            // Whatever it is, it may contain a password.
            _ => Err(format!("`{}` is no store: write {STORES}", password::mask(text))),
        }
    }
}

const STORES: &str =
    "sqlite:hapax.db, postgres://USER@HOST/DATABASE, redis://HOST:PORT, or memory: to keep nothing";

/// Whether this is the scheme of a Redis, in a form that there is or not.
fn is_redis(scheme: &str) -> bool {
    let kind = scheme.split('+').next();
    matches!(kind, Some("redis" | "rediss"))
}

/// Whether this is a libpq connection string in the keyword form, not a URL.
fn is_key_value(text: &str) -> bool {
    [
        "host=",
        "hostaddr=",
        "dbname=",
        "user=",
        "password=",
        "service=",
    ]
    .iter()
    .any(|word| text.contains(word))
        && !text.contains("://")
}

/// Refuses `sqlite://hapax.db`: a path after `//` starts at the root, which is not what that means
/// to say.
fn sqlite_path(path: &str) -> Result<StoreUrl, String> {
    if path.contains('?') {
        return Err(
            "a store has no options in its name: leave out everything from the `?` on".to_owned(),
        );
    }
    match path.strip_prefix("//") {
        Some(path) if !path.starts_with('/') => Err(format!(
            "write sqlite:{path} for a file here, sqlite:/{path} for one from the root"
        )),
        Some(path) => Ok(StoreUrl::Sqlite(path.into())),
        None => Ok(StoreUrl::Sqlite(path.into())),
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let best_effort = Durability::BestEffort;
        if text == best_effort.word() {
            Ok(best_effort)
        } else {
            Err(format!(
                "`{text}` is no durability: a Redis has only \"best-effort\"; for more, keep the records in Postgres"
            ))
        }
    }
}

impl FromStr for Lines {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Lines::All, Lines::Notable, Lines::Off]
            .into_iter()
            .find(|lines| lines.word() == text);
        found.ok_or_else(|| {
            format!(
                "`{text}` says nothing of the access log: write \"all\", \"notable\" or \"off\""
            )
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Protocol::Auto, Protocol::Http1, Protocol::Http2]
            .into_iter()
            .find(|protocol| protocol.word() == text);
        found.ok_or_else(|| {
            format!("`{text}` is no protocol: write \"auto\", \"http1\" or \"http2\"")
        })
    }
}

const SECOND: u64 = 1_000;
const DURATION_UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 60 * 60 * SECOND),
    ("d", 24 * 60 * 60 * SECOND),
];

/// A duration, as in `250ms`, `10s`, `5m`, `24h`, `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match number_and_unit(text, &DURATION_UNITS) {
        Some(millis) => Ok(Duration::from_millis(millis)),
        None if text.parse::<u64>().is_ok() => Err(format!(
            "`{text}` lacks its unit: write \"{text}s\" if you mean seconds"
        )),
        None => Err(format!(
            "`{text}` is no duration: write a whole number and a unit, as in \"250ms\", \"10s\", \"5m\", \"24h\" or \"7d\""
        )),
    }
}

/// A duration in the form that [`duration`] reads, in the largest unit without a remainder. Days
/// are used from two days on; one day is written as 24 hours, as people usually do.
pub(crate) fn spelled(duration: Duration) -> String {
    let millis = duration.as_millis();
    // Zero is a multiple of every unit, but smaller than each.
    let fits = |(unit, worth): &&(&str, u64)| {
        let worth = u128::from(*worth);
        millis.is_multiple_of(worth) && millis >= if *unit == "d" { 2 * worth } else { worth }
    };
    match DURATION_UNITS.iter().rev().find(fits) {
        Some((unit, worth)) => format!("{}{unit}", millis / u128::from(*worth)),
        None => "0s".to_owned(),
    }
}

const SIZE_UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A size in bytes, as in `512KiB`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    number_and_unit(text, &SIZE_UNITS).ok_or_else(|| {
        format!("`{text}` is no size: write bytes as a number, or a whole number and a unit, as in \"512KiB\" or \"64MiB\"")
    })
}

/// A size in the form that [`size`] reads, in the largest unit without a remainder.
pub(crate) fn spelled_size(bytes: u64) -> String {
    match SIZE_UNITS
        .iter()
        .find(|(_, worth)| bytes >= *worth && bytes.is_multiple_of(*worth))
    {
        Some((unit, worth)) => format!("{}{unit}", bytes / worth),
        None => "0B".to_owned(),
    }
}

fn number_and_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, worth) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*worth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_have_units() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("10 s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for text in ["0s", "1500ms", "10s", "90s", "5m", "24h", "7d"] {
            assert_eq!(spelled(duration(text).unwrap()), text);
        }
        for text in ["0B", "12B", "64KiB", "1MiB", "1025B"] {
            assert_eq!(spelled_size(size(text).unwrap()), text);
        }
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("12B"), Ok(12));
        for wrong in [
            "",
            "s",
            "10",
            "1.5h",
            "-1s",
            "10x",
            "99999999999999999999s",
            "18446744073709551615d",
            "1h30m",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "1MB", "MiB", "-1B", "99999999999GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_upstream_is_an_origin() {
        for (text, origin) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000/"),
            ("http://localhost/", "http://localhost/"),
            (
                "https://api.example.com:8443",
                "https://api.example.com:8443/",
            ),
            ("http://[::1]:3000", "http://[::1]:3000/"),
        ] {
            assert_eq!(upstream_url(text).unwrap().to_string(), origin);
        }
        for text in [
            "",
            "http://",
            "http://:80",
            "http://a:",
            "http://a:0",
            "http://a:99999",
            "http://a b",
            "http://a?b",
            "http://a/#b",
            "http://é",
        ] {
            assert!(upstream_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_store_is_a_file_a_database_or_memory() {
        assert_eq!(
            "sqlite:hapax.db".parse(),
            Ok(StoreUrl::Sqlite("hapax.db".into()))
        );
        assert_eq!(
            "sqlite:///var/lib/hapax.db".parse(),
            Ok(StoreUrl::Sqlite("/var/lib/hapax.db".into()))
        );
        assert_eq!("memory:".parse(), Ok(StoreUrl::Memory));
        assert!(matches!(
            "postgres://ada@db/hapax".parse(),
            Ok(StoreUrl::Postgres(_))
        ));
        for text in ["redis://cache", "rediss+cluster://a,b"] {
            assert!(matches!(text.parse(), Ok(StoreUrl::Redis(_))), "{text}");
        }
        for text in [
            "",
            ":",
            "sqlite:",
            "sqlite::memory:",
            "sqlite://hapax.db",
            "sqlite:a?mode=ro",
            "hapax.db",
            "memory",
            "redis",
            "redis:a",
            "redis+ring://a",
            "valkey://a",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_store_is_said_without_its_password() {
        for text in [
            "host=db user=ada password=s3cr3t",
            "mysql://ada:s3cr3t@db/hapax",
            "postgres:ada:s3cr3t@db",
            "postgres://ada:s3cr3t@db:port/hapax",
            "postgres://ada:s3cr3t@db/hapax?sslmodus=require",
            "postgres://ada:s3cr3t%@db/hapax",
            "redis:ada:s3cr3t@db",
            "redis://ada:s3cr3t@db:port",
            "redis://ada:s3cr3t%@db",
            "redis://ada:s3cr3t?x@db",
            "redis://db?password=s3cr3t",
            "redis+ring://ada:s3cr3t@db",
            "valkey://ada:s3cr3t@db",
        ] {
            let parsed = text.parse::<StoreUrl>();
            assert!(!format!("{parsed:?}").contains("s3cr3t"), "{parsed:?}");
            assert!(parsed.is_err() || text.ends_with("%@db/hapax"), "{text}");
        }
    }
}
