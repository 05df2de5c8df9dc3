//! The configuration file: TOML, read as a tree in which every setting knows its place.
//!
//! The tree is walked by hand rather than derived, because a derived reader stops at the first mistake and forgets where the others
//! stand. `names.rs` lists every section and setting; `section.rs` reads one and notes what is wrong; `value.rs` reads single values;
//! `routes.rs` knows what a route may say; `mistake.rs` shows the lines.

mod mistake;
pub(crate) mod names;
mod routes;
mod section;
mod value;

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use http::Uri;
use toml::de::DeTable;

use self::mistake::Mistakes;
pub use self::mistake::{ConfigError, Mistake, Place};
use self::names::{DRAIN, LIMITS, ROUTES, TIMEOUTS, TLS, TOP, UPSTREAM};
use self::section::Section;
use self::value::{addresses, count, file, parsed, short, size_within, timeout};
use super::{Config, Drain, Limits, PrincipalSource, Protocol, StoreUrl, Timeouts, Tls, Upstream, text};

/// What flags say. Each goes before what the file says.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The service behind.
    pub upstream: Option<Uri>,
    /// Where clients connect.
    pub listen: Option<SocketAddr>,
    /// Where operators ask; `Some(None)` for nowhere.
    pub admin: Option<Option<SocketAddr>>,
    /// Where records are kept.
    pub store: Option<StoreUrl>,
    /// Who is asking.
    pub principal: Option<PrincipalSource>,
}

/// Reads a file. Every mistake in it is told, unless it is no TOML: then the first.
pub fn read(path: &Path) -> Result<Config, ConfigError> {
    read_with(path, &Overrides::default())
}

/// Reads a file; where flags say otherwise, they count, and only what results must make sense.
pub fn read_with(path: &Path, overrides: &Overrides) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    parse(path, &text, overrides)
}

/// Makes a configuration of flags alone.
pub fn without_file(overrides: &Overrides) -> Result<Config, ConfigError> {
    parse(Path::new(""), "", overrides)
}

/// Every setting: the header of its section, and its name.
pub fn settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    names::ALL.into_iter().flat_map(|names| names.settings.iter().map(|setting| (names.header, *setting)))
}

/// Reads the text of a file. Relative paths begin beside `path`.
pub fn parse(path: &Path, text: &str, overrides: &Overrides) -> Result<Config, ConfigError> {
    let mistakes = Mistakes::of(path.display().to_string(), text);
    let table = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        ConfigError::Mistakes(vec![mistakes.mistake(&span, no_toml(error.message()))])
    })?;
    let top = Section::new(&TOP, table.get_ref(), 0..0, &mistakes);
    let config = config(&top, path.parent().unwrap_or(Path::new("")), overrides);
    mistakes.finish()?;
    Ok(config)
}

/// What the parser says, and what it does not: what to write.
fn no_toml(message: &str) -> String {
    let fix = match message {
        _ if message.starts_with("duplicate key") => "it is there already: keep one of the two",
        _ if message.starts_with("key with no value") => "a setting has a value: write name = \"value\"",
        _ if message.contains("string") => "text begins and ends with a quote, on one line",
        _ => "text stands in quotes, as in listen = \"127.0.0.1:4000\"",
    };
    format!("this is no TOML ({message}): {fix}")
}

fn config(top: &Section<'_>, base: &Path, overrides: &Overrides) -> Config {
    let upstream = upstream(&top.section(&UPSTREAM), base, overrides);
    let timeouts = timeouts(&top.section(&TIMEOUTS));
    let mut config = Config {
        upstream,
        tls: tls(&top.section(&TLS), base),
        timeouts,
        limits: limits(&top.section(&LIMITS)),
        drain: drain(&top.section(&DRAIN)),
        routes: routes::routes(&top.sections(&ROUTES), &timeouts),
        ..Config::new(Uri::default())
    };
    top.read("listen", &mut config.listen, parsed(text::listen_address));
    top.read("admin", &mut config.admin, parsed(text::admin_address));
    top.read("store", &mut config.store, parsed(StoreUrl::from_str));
    top.read("principal", &mut config.principal, parsed(PrincipalSource::from_str));
    top.read("namespace", &mut config.namespace, parsed(namespace));
    top.read("trusted_proxies", &mut config.trusted_proxies, addresses);
    if let StoreUrl::Sqlite(path) = &mut config.store
        && top.has("store")
    {
        *path = base.join(&*path);
    }
    overrule(&mut config, overrides);
    addresses_apart(top, &config, overrides);
    config
}

fn overrule(config: &mut Config, overrides: &Overrides) {
    config.listen = overrides.listen.unwrap_or(config.listen);
    config.admin = overrides.admin.unwrap_or(config.admin);
    if let Some(store) = &overrides.store {
        config.store = store.clone();
    }
    if let Some(principal) = &overrides.principal {
        config.principal = principal.clone();
    }
}

/// Shown at a setting of the file unless both addresses came from elsewhere.
fn addresses_apart(top: &Section<'_>, config: &Config, overrides: &Overrides) {
    let (listen, Some(admin)) = (config.listen, config.admin) else { return };
    let same_interface = listen.ip() == admin.ip() || listen.ip().is_unspecified() || admin.ip().is_unspecified();
    if listen.port() != admin.port() || listen.port() == 0 || !same_interface {
        return;
    }
    let message =
        format!("listen ({listen}) and admin ({admin}) are one address: give one of them another port, or turn admin \"off\"");
    match (overrides.listen, overrides.admin) {
        (_, None) if top.has("admin") => top.mistake(&["admin"], message),
        (None, _) if top.has("listen") => top.mistake(&["listen"], message),
        _ => top.mistake_nowhere(message),
    }
}

fn namespace(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a namespace has a name: write \"default\", or leave the setting out".to_owned()),
        _ if text.len() > 255 || text.chars().any(char::is_control) => {
            Err("a namespace is one line of at most 255 bytes: shorten it, and leave out control characters".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

fn upstream(section: &Section<'_>, base: &Path, overrides: &Overrides) -> Upstream {
    let url = section.get("url", parsed(text::upstream_url));
    if url.is_none() && overrides.upstream.is_none() && !section.has("url") {
        section.mistake(&[], "no upstream: give --upstream http://127.0.0.1:3000, or `url` in [upstream] of the configuration");
    }
    let mut upstream = Upstream::new(overrides.upstream.clone().or(url).unwrap_or_default());
    section.read("protocol", &mut upstream.protocol, parsed(Protocol::from_str));
    section.read("connections_max", &mut upstream.connections_max, count(1, 1_000_000));
    section.read("idle_max", &mut upstream.idle_max, short);
    section.read("reuse_max", &mut upstream.reuse_max, short);
    upstream.ca_file = section.get("ca_file", file(base));
    if upstream.ca_file.is_some() && upstream.url.scheme_str() == Some("http") {
        section.mistake(
            &["ca_file"],
            "`ca_file` is for an upstream with https, and this one has http: leave it out, or write https in `url`",
        );
    }
    if section.has("reuse_max") && upstream.reuse_max > upstream.idle_max {
        let (reuse, idle) = (text::spelled(upstream.reuse_max), text::spelled(upstream.idle_max));
        section.mistake(
            &["reuse_max"],
            format!("`reuse_max` ({reuse}) is over `idle_max` ({idle}), and no connection is kept for longer: shorten it"),
        );
    }
    upstream.reuse_max = upstream.reuse_max.min(upstream.idle_max);
    upstream
}

fn tls(section: &Section<'_>, base: &Path) -> Option<Tls> {
    for (needed, given) in [("certificate", "key"), ("key", "certificate")] {
        if section.is_present() && !section.has(needed) {
            section.mistake(&[given], format!("[tls] lacks `{needed}`: write {needed} = \"{needed}.pem\", or remove the section"));
        }
    }
    let (certificate, key) = (section.get("certificate", file(base)), section.get("key", file(base)));
    Some(Tls { certificate: certificate?, key: key? })
}

fn timeouts(section: &Section<'_>) -> Timeouts {
    let mut timeouts = Timeouts::default();
    section.read("first_byte", &mut timeouts.first_byte, timeout);
    section.read("handshake", &mut timeouts.handshake, timeout);
    section.read("header", &mut timeouts.header, timeout);
    section.read("keep_alive", &mut timeouts.keep_alive, timeout);
    section.read("stall", &mut timeouts.stall, timeout);
    section.read("connect", &mut timeouts.connect, timeout);
    section.read("answer", &mut timeouts.answer, timeout);
    if timeouts.answer < timeouts.connect {
        let (answer, connect) = (text::spelled(timeouts.answer), text::spelled(timeouts.connect));
        section.mistake(
            &["answer", "connect"],
            format!("`answer` ({answer}) is under `connect` ({connect}): a service that takes so long to be reached cannot answer sooner; lengthen `answer` or shorten `connect`"),
        );
    }
    timeouts
}

fn limits(section: &Section<'_>) -> Limits {
    let mut limits = Limits::default();
    section.read("connections_max", &mut limits.connections_max, count(1, 1_000_000));
    section.read("silent_connections_max", &mut limits.silent_connections_max, count(1, 1_000_000));
    // Under the first, hyper has no room to read into; over the second, a head alone would be a way to fill the memory.
    section.read("header_bytes_max", &mut limits.header_bytes_max, size_within(8 << 10, 1 << 20));
    section.read("header_fields_max", &mut limits.header_fields_max, count(1, 10_000));
    section.read("streams_max", &mut limits.streams_max, count(1, 10_000));
    section.read("attempts_max", &mut limits.attempts_max, count(1, 1_000_000));
    section.read("rate_min", &mut limits.rate_min, size_within(0, 1 << 30));
    if section.has("silent_connections_max") && limits.silent_connections_max > limits.connections_max {
        let (silent, all) = (limits.silent_connections_max, limits.connections_max);
        section.mistake(
            &["silent_connections_max"],
            format!("`silent_connections_max` ({silent}) is over `connections_max` ({all}): lower it, or raise the other"),
        );
    }
    limits.silent_connections_max = limits.silent_connections_max.min(limits.connections_max);
    limits
}

fn drain(section: &Section<'_>) -> Drain {
    let mut drain = Drain::default();
    section.read("notice", &mut drain.notice, short);
    section.read("deadline", &mut drain.deadline, short);
    drain
}
