//! What changes from one configuration to another, setting by setting.

mod policy;

use std::fmt;
use std::path::Path;

use http::HeaderName;

use crate::config::text::spelled;
use crate::config::{
    Config, Drain, ForwardAuth, Jwt, KeysFrom, Limits, Protocol, Route, Secret, Timeouts, Tls,
    Upstream,
};

/// A setting that has another value now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name, with that of its section or route.
    pub setting: String,
    /// What it was; `None` if there was none.
    pub from: Option<String>,
    /// What it is; `None` if there is none.
    pub to: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, "`{}` changed from {from} to {to}", self.setting),
            (Some(from), None) => write!(f, "`{}` was {from} and is gone", self.setting),
            (None, Some(to)) => write!(f, "`{}` is new: {to}", self.setting),
            (None, None) => write!(f, "`{}`", self.setting),
        }
    }
}

/// Every setting that differs, in the order of the documentation. Of a route that comes or goes
/// only that, not each of its settings.
pub(super) fn between(old: &Config, new: &Config) -> Vec<Change> {
    let (old, new) = (settings(old), settings(new));
    let find = |settings: &[Setting], name: &str| {
        settings
            .iter()
            .find(|setting| setting.name == name)
            .cloned()
    };
    let gone = old
        .iter()
        .filter(|setting| find(&new, &setting.name).is_none());
    let mut changes = Vec::new();
    for Setting { name, .. } in new.iter().chain(gone) {
        let (from, to) = (find(&old, name), find(&new, name));
        let is_of_one_side = from.is_none() || to.is_none();
        if from != to && !(is_of_one_side && name.starts_with("routes.")) {
            let shown = |setting: Option<Setting>| setting.map(Setting::shown);
            changes.push(Change {
                setting: name.clone(),
                from: shown(from),
                to: shown(to),
            });
        }
    }
    changes
}

#[derive(Clone, PartialEq)]
struct Setting {
    name: String,
    value: String,
    /// What stands for a value that is a secret, or has one in it.
    shown: Option<String>,
}

impl Setting {
    fn shown(self) -> String {
        self.shown.unwrap_or(self.value)
    }
}

/// Every setting and its value. Each struct is taken apart whole, so that nobody adds a setting and
/// forgets it here.
fn settings(config: &Config) -> Vec<Setting> {
    let Config {
        listen,
        admin,
        admin_token,
        settle_token,
        access_log,
        store,
        high_water_file,
        spill_directory,
        namespace,
        principal,
        anonymous_fields,
        jwt,
        forward_auth,
        upstream,
        tls,
        trusted_proxies,
        timeouts,
        limits,
        drain,
        routes,
        // Seen as the last of all routes.
        defaults: _,
        probe: _,
    } = config;
    let mut list = List::default();
    list.add("listen", listen);
    list.add(
        "admin",
        admin.map_or("off".to_owned(), |admin| admin.to_string()),
    );
    list.secret("admin_token", admin_token.as_ref());
    list.secret("settle_token", settle_token.as_ref());
    list.add("access_log", access_log.word());
    list.masked("store", store.expose(), store.to_string());
    list.add("high_water_file", path(high_water_file.as_deref()));
    list.add("spill_directory", path(spill_directory.as_deref()));
    list.add("namespace", namespace);
    list.masked("principal", principal.expose(), principal.to_string());
    list.add(
        "anonymous_fields",
        anonymous_fields
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    );
    list.add(
        "trusted_proxies",
        trusted_proxies
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    );
    if let Some(jwt) = jwt {
        self::jwt(&mut list, jwt);
    }
    if let Some(auth) = forward_auth {
        self::forward_auth(&mut list, auth);
    }
    self::upstream(&mut list, upstream);
    if let Some(Tls { certificate, key }) = tls {
        list.add("tls.certificate", certificate.display());
        list.add("tls.key", key.display());
    }
    self::timeouts(&mut list, timeouts);
    self::limits(&mut list, limits);
    let Drain { notice, deadline } = drain;
    list.add("drain.notice", spelled(*notice));
    list.add("drain.deadline", spelled(*deadline));
    list.add(
        "routes",
        routes
            .iter()
            .map(|route| &*route.name)
            .collect::<Vec<_>>()
            .join(", "),
    );
    for Route {
        name, principal, ..
    } in routes
    {
        let unsaid = || "as before the first section".to_owned();
        let (compared, shown) = principal.as_ref().map_or_else(
            || (unsaid(), unsaid()),
            |own| (own.expose(), own.to_string()),
        );
        list.masked(&format!("routes.{name}.principal"), compared, shown);
    }
    for Route {
        name,
        policy,
        probe,
        methods: _,
        pattern: _,
        principal: _,
    } in &config.all_routes()
    {
        list.add(
            &format!("routes.{name}.probe"),
            probe.as_ref().map_or("none", |path| path.path()),
        );
        for (setting, value) in policy::settings(policy) {
            list.add(&format!("routes.{name}.{setting}"), value);
        }
    }
    list.0
}

#[derive(Default)]
struct List(Vec<Setting>);

impl List {
    fn add(&mut self, setting: &str, value: impl fmt::Display) {
        self.0.push(Setting {
            name: setting.to_owned(),
            value: value.to_string(),
            shown: None,
        });
    }

    /// Of which less is shown than is compared.
    fn masked(&mut self, setting: &str, value: String, shown: String) {
        self.0.push(Setting {
            name: setting.to_owned(),
            value,
            shown: Some(shown),
        });
    }

    fn secret(&mut self, setting: &str, value: Option<&Secret>) {
        if let Some(secret) = value {
            self.masked(setting, secret.expose().to_owned(), "(hidden)".to_owned());
        }
    }
}

fn jwt(list: &mut List, jwt: &Jwt) {
    let Jwt {
        field,
        algorithms,
        keys,
        issuer,
        audience,
        leeway,
        refresh,
        stale_max,
        ca_file,
    } = jwt;
    list.add("jwt.field", field);
    list.add("jwt.algorithms", format!("{algorithms:?}"));
    let compared = match keys {
        KeysFrom::Url(url) => url.expose().to_string(),
        keys => format!("{keys:?}"),
    };
    list.masked("jwt.keys", compared, format!("{keys:?}"));
    list.add("jwt.issuer", issuer);
    list.add("jwt.audience", format!("{audience:?}"));
    list.add("jwt.leeway", spelled(*leeway));
    list.add("jwt.refresh", spelled(*refresh));
    list.add("jwt.stale_max", spelled(*stale_max));
    list.add("jwt.ca_file", path(ca_file.as_deref()));
}

fn forward_auth(list: &mut List, auth: &ForwardAuth) {
    let ForwardAuth {
        principal_field,
        forward,
        pass,
        timeout,
        concurrency_max,
        ca_file,
    } = auth;
    let names = |fields: &[HeaderName]| {
        fields
            .iter()
            .map(HeaderName::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    list.add("forward_auth.principal_field", principal_field);
    list.add("forward_auth.forward", names(forward));
    list.add("forward_auth.pass", names(pass));
    list.add("forward_auth.timeout", spelled(*timeout));
    list.add("forward_auth.concurrency_max", concurrency_max);
    list.add("forward_auth.ca_file", path(ca_file.as_deref()));
}

fn path(path: Option<&Path>) -> String {
    path.map_or("none".to_owned(), |path| path.display().to_string())
}

fn upstream(list: &mut List, upstream: &Upstream) {
    let Upstream {
        url,
        protocol,
        ca_file,
        connections_max,
        unguarded_per_peer_max,
        tunnels_max,
        idle_max,
        reuse_max,
    } = upstream;
    list.add("upstream.url", url);
    let protocol = match protocol {
        Protocol::Auto => "auto",
        Protocol::Http1 => "http1",
        Protocol::Http2 => "http2",
    };
    list.add("upstream.protocol", protocol);
    list.add("upstream.ca_file", path(ca_file.as_deref()));
    list.add("upstream.connections_max", connections_max);
    let part = |part: &Option<usize>| {
        part.map_or("half of connections_max".to_owned(), |part| {
            part.to_string()
        })
    };
    list.add(
        "upstream.unguarded_per_peer_max",
        part(unguarded_per_peer_max),
    );
    list.add("upstream.tunnels_max", part(tunnels_max));
    list.add("upstream.idle_max", spelled(*idle_max));
    list.add("upstream.reuse_max", spelled(*reuse_max));
}

fn timeouts(list: &mut List, timeouts: &Timeouts) {
    let Timeouts {
        first_byte,
        handshake,
        header,
        keep_alive,
        stall,
        connect,
        answer,
        tunnel_idle,
    } = *timeouts;
    for (name, value) in [
        ("first_byte", first_byte),
        ("handshake", handshake),
        ("header", header),
        ("keep_alive", keep_alive),
        ("stall", stall),
        ("connect", connect),
        ("answer", answer),
        ("tunnel_idle", tunnel_idle),
    ] {
        list.add(&format!("timeouts.{name}"), spelled(value));
    }
}

fn limits(list: &mut List, limits: &Limits) {
    let Limits {
        connections_max,
        silent_connections_max,
        header_bytes_max,
        header_fields_max,
        streams_max,
        attempts_max,
        rate_min,
        records_per_principal_max,
        bytes_per_principal_max,
        records_max,
        refused_records_max,
        velocity_entries_max,
        buffered_memory_bytes_max,
        buffered_memory_bytes_per_peer_max: _,
        buffered_disk_bytes_max,
        buffered_disk_bytes_per_peer_max: _,
    } = *limits;
    list.add("limits.connections_max", connections_max);
    list.add("limits.silent_connections_max", silent_connections_max);
    list.add("limits.header_bytes_max", header_bytes_max);
    list.add("limits.header_fields_max", header_fields_max);
    list.add("limits.streams_max", streams_max);
    list.add("limits.attempts_max", attempts_max);
    list.add("limits.rate_min", rate_min);
    let quota = |quota: Option<u64>| quota.map_or("none".to_owned(), |quota| quota.to_string());
    list.add(
        "limits.records_per_principal_max",
        quota(records_per_principal_max),
    );
    list.add(
        "limits.bytes_per_principal_max",
        quota(bytes_per_principal_max),
    );
    list.add("limits.records_max", records_max);
    list.add("limits.refused_records_max", refused_records_max);
    list.add("limits.velocity_entries_max", velocity_entries_max);
    list.add(
        "limits.buffered_memory_bytes_max",
        buffered_memory_bytes_max,
    );
    list.add(
        "limits.buffered_memory_bytes_per_peer_max",
        limits.memory_share(),
    );
    list.add("limits.buffered_disk_bytes_max", buffered_disk_bytes_max);
    list.add(
        "limits.buffered_disk_bytes_per_peer_max",
        limits.disk_share(),
    );
}
