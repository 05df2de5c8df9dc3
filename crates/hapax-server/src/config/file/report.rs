//! The effective values and their origins, for `hapax config print` and `explain`.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use toml::de::DeValue;

use crate::config::settings::{Fallback, Kind, RELAY, ROUTES, Setting, TABLES, Table};
use crate::config::{Relay, password, url};

/// What was read, setting by setting.
#[derive(Default)]
pub(super) struct Report {
    /// Keyed by section, index among sections of that name, and setting.
    settings: RefCell<BTreeMap<(&'static str, usize, &'static str), ReportSetting>>,
    warnings: RefCell<Vec<String>>,
}

/// A section with its effective values.
#[derive(Clone, Debug)]
pub struct ReportSection {
    /// Its header as written; empty for the top level.
    pub header: Cow<'static, str>,
    /// Where it begins; empty if it is not written.
    pub place: String,
    /// Its settings.
    pub settings: Vec<ReportSetting>,
}

/// A setting with its effective value.
#[derive(Clone, Debug)]
pub struct ReportSetting {
    /// Its name.
    pub name: &'static str,
    /// The effective value.
    pub value: Counts,
    /// Where the value was set.
    pub from: String,
    /// It was not set: this is the default.
    pub is_default: bool,
    /// It was set, to something other than the default.
    pub is_changed: bool,
}

/// An effective value.
#[derive(Clone, Debug, PartialEq)]
pub enum Counts {
    /// This value.
    Value(toml::Value),
    /// A secret, which is not shown.
    Hidden,
    /// This value, with a secret in it masked.
    Masked(toml::Value),
    /// The value that these words describe.
    Words(&'static str),
    /// No value.
    Nothing,
}

impl Report {
    /// Records a value that was set.
    pub(super) fn written(
        &self,
        table: &Table,
        index: usize,
        setting: &'static Setting,
        value: toml::Value,
        from: String,
    ) {
        let value = match setting.kind {
            Kind::Secret { .. } => Counts::Hidden,
            _ => mask(value),
        };
        let read = ReportSetting {
            name: setting.name,
            is_default: false,
            is_changed: value != default(setting).value,
            value,
            from,
        };
        self.put(table, index, read);
    }

    /// Records a value that was not set, but follows from another setting.
    pub(super) fn follows(
        &self,
        table: &Table,
        index: usize,
        setting: &'static Setting,
        value: Counts,
        why: &str,
    ) {
        let from = why.to_owned();
        let read = ReportSetting {
            value,
            from,
            ..default(setting)
        };
        self.put(table, index, read);
    }

    pub(super) fn warn(&self, warning: String) {
        self.warnings.borrow_mut().push(warning);
    }

    fn put(&self, table: &Table, index: usize, read: ReportSetting) {
        self.settings
            .borrow_mut()
            .insert((table.name, index, read.name), read);
    }

    /// All effective values, with the places of the routes and the names of the relays, and the
    /// warnings.
    pub(super) fn finish(
        self,
        routes: Vec<String>,
        relays: &[Relay],
    ) -> (Vec<ReportSection>, Vec<String>) {
        let mut read = self.settings.into_inner();
        let mut section = |table: &Table, index, place| ReportSection {
            header: Cow::Borrowed(table.header),
            place,
            settings: table
                .settings()
                .filter(|setting| !setting.is_section())
                .map(|setting| {
                    read.remove(&(table.name, index, setting.name))
                        .unwrap_or_else(|| default(setting))
                })
                .collect(),
        };
        let alone = TABLES
            .iter()
            .filter(|table| !["defaults", "routes", "relay"].contains(&table.name));
        let mut report: Vec<ReportSection> = alone
            .map(|table| section(table, 0, String::new()))
            .collect();
        for (index, place) in routes.into_iter().enumerate() {
            report.push(section(&ROUTES, index, place));
        }
        for (index, relay) in relays.iter().enumerate() {
            let header = Cow::Owned(format!("[relay.{}]", toml_key(&relay.reader)));
            let section = section(&RELAY, index, String::new());
            report.push(ReportSection { header, ..section });
        }
        let mut warnings = self.warnings.into_inner();
        warnings.sort();
        (report, warnings)
    }
}

/// A name as it is written in a header: with a full stop in it, in quotes.
fn toml_key(name: &str) -> String {
    match name.contains('.') {
        true => format!("\"{name}\""),
        false => name.to_owned(),
    }
}

/// A value in a form that may be shown.
fn mask(value: toml::Value) -> Counts {
    let shown = without_secrets(&value);
    if shown == value {
        Counts::Value(value)
    } else {
        Counts::Masked(shown)
    }
}

/// A value without the secrets in its URLs.
fn without_secrets(value: &toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) if password::may_be_in(text) => {
            toml::Value::String(password::mask(text))
        }
        toml::Value::String(text) => toml::Value::String(url::mask(text)),
        toml::Value::Array(list) => toml::Value::Array(list.iter().map(without_secrets).collect()),
        other => other.clone(),
    }
}

/// The value of a setting that is not set.
fn default(setting: &Setting) -> ReportSetting {
    let value = match setting.fallback {
        Fallback::Is(value) => {
            let value = setting.kind.in_toml(value);
            let value = DeValue::parse(&value).expect("a declaration holds good TOML");
            Counts::Value(without_places(value.get_ref()))
        }
        Fallback::Words(words) => Counts::Words(words),
        Fallback::Nothing | Fallback::Required => Counts::Nothing,
    };
    ReportSetting {
        name: setting.name,
        value,
        from: "default".to_owned(),
        is_default: true,
        is_changed: false,
    }
}

/// A value without its positions in the file.
pub(super) fn without_places(value: &DeValue<'_>) -> toml::Value {
    match value {
        DeValue::String(text) => toml::Value::String(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(
                |_| toml::Value::String(number.to_string()),
                toml::Value::Integer,
            ),
        DeValue::Float(number) => toml::Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(on) => toml::Value::Boolean(*on),
        DeValue::Datetime(time) => toml::Value::Datetime(*time),
        DeValue::Array(list) => toml::Value::Array(
            list.iter()
                .map(|item| without_places(item.get_ref()))
                .collect(),
        ),
        DeValue::Table(table) => toml::Value::Table(
            table
                .iter()
                .map(|(key, value)| (key.get_ref().to_string(), without_places(value.get_ref())))
                .collect(),
        ),
    }
}
