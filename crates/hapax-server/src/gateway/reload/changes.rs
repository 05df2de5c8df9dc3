//! The settings that differ between two configurations.

use std::fmt;

use crate::config::Config;
use crate::config::settings::{Settings, Shown};

/// A setting whose value has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name, with that of its section or route.
    pub setting: String,
    /// The old value; `None` if there was none.
    pub from: Option<String>,
    /// The new value; `None` if there is none.
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

/// Every setting that differs, in the order of the documentation. A route or relay that is added or
/// removed is one change, not one per setting.
pub(super) fn between(old: &Config, new: &Config) -> Vec<Change> {
    let (old, new) = (values(old), values(new));
    let find = |values: &[Value], name: &str| {
        let found = values.iter().find(|value| value.name == name);
        found.cloned()
    };
    let gone = old.iter().filter(|value| find(&new, &value.name).is_none());
    let mut changes = Vec::new();
    for Value { name, .. } in new.iter().chain(gone) {
        let (from, to) = (find(&old, name), find(&new, name));
        let is_of_one_side = from.is_none() || to.is_none();
        let is_of_named = name.starts_with("routes.") || name.starts_with("relay.");
        if from != to && !(is_of_one_side && is_of_named) {
            changes.push(Change {
                setting: name.clone(),
                from: from.map(|value| value.shown),
                to: to.map(|value| value.shown),
            });
        }
    }
    changes
}

/// A setting and its value.
#[derive(Clone, PartialEq)]
struct Value {
    /// With the name of its section or route.
    name: String,
    /// The full value, including secrets: it must never be shown.
    compared: String,
    shown: String,
}

fn values(config: &Config) -> Vec<Value> {
    let mut all = Vec::new();
    let mut add = |section: &str, values: Vec<Shown>| {
        all.extend(values.into_iter().map(|value| Value {
            name: format!("{section}{}", value.name),
            compared: value.compared,
            shown: value.shown,
        }));
    };
    let plain = |name, text: String| Shown {
        name,
        compared: text.clone(),
        shown: text,
    };
    let join = |words: Vec<&str>| words.join(", ");
    add("", config.values());
    add(
        "jwt.",
        config.jwt.as_ref().map_or(Vec::new(), Settings::values),
    );
    let auth = config.forward_auth.as_ref();
    add("forward_auth.", auth.map_or(Vec::new(), Settings::values));
    let webhooks = config.standard_webhooks.as_ref();
    add(
        "standard_webhooks.",
        webhooks.map_or(Vec::new(), Settings::values),
    );
    add("upstream.", config.upstream.values());
    add(
        "tls.",
        config.tls.as_ref().map_or(Vec::new(), Settings::values),
    );
    add("timeouts.", config.timeouts.values());
    add("limits.", config.limits.values());
    add("drain.", config.drain.values());
    let on_unknown = config.on_unknown.as_ref();
    add(
        "on_unknown.",
        on_unknown.map_or(Vec::new(), Settings::values),
    );
    let readers = config.relays.iter().map(|relay| &*relay.reader).collect();
    add("", vec![plain("relay", join(readers))]);
    for relay in &config.relays {
        add(&format!("relay.{}.", relay.reader), relay.values());
    }
    let names = config.routes.iter().map(|route| &*route.name).collect();
    add("", vec![plain("routes", join(names))]);
    let own_principals = config.routes.iter().map(|route| route.principal.as_ref());
    for (route, principal) in config.all_routes().iter().zip(own_principals.chain([None])) {
        let section = format!("routes.{}.", route.name);
        let methods = route.policy.methods.iter().map(|method| &**method);
        let probe = route.probe.as_ref().map_or("none", |path| path.path());
        let mut own = plain("principal", "as before the first section".to_owned());
        if let Some(principal) = principal {
            own.compared = principal.expose();
            own.shown = principal.to_string();
        }
        add(&section, route.policy.values());
        let others = vec![
            plain("method", join(methods.collect())),
            plain("probe", probe.to_owned()),
            own,
        ];
        add(&section, others);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::{TABLES, Table};
    use crate::config::{ForwardAuth, Jwt, OnUnknown, StandardWebhooks, Tls};

    #[test]
    fn every_setting_is_compared() {
        let config = Config {
            jwt: Some(Jwt::read(None)),
            forward_auth: Some(ForwardAuth::read(None)),
            standard_webhooks: Some(StandardWebhooks::read(None)),
            tls: Some(Tls::read(None)),
            on_unknown: Some(OnUnknown::read(None)),
            ..Config::default()
        };
        let names: Vec<String> = values(&config)
            .into_iter()
            .map(|value| value.name)
            .collect();
        let is_single = |table: &&&Table| !["defaults", "routes", "relay"].contains(&table.name);
        for table in TABLES.iter().filter(is_single) {
            for setting in table.settings().filter(|setting| !setting.is_section()) {
                let name = format!("{}.{}", table.name, setting.name);
                let name = name.trim_start_matches('.');
                assert!(names.iter().any(|known| known == name), "{name}");
            }
        }
    }
}
