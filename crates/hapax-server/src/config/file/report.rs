//! What counts, and where it was written: for `hapax config print` and `explain`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use toml::de::DeValue;

use crate::config::settings::{Fallback, Kind, ROUTES, Setting, TABLES, Table};
use crate::config::{postgres, url};

/// What was read, setting by setting.
#[derive(Default)]
pub(super) struct Report {
    /// By section, which of several by that name, and setting.
    settings: RefCell<BTreeMap<(&'static str, usize, &'static str), ReportSetting>>,
    warnings: RefCell<Vec<String>>,
}

/// A section as it counts.
#[derive(Clone, Debug)]
pub struct ReportSection {
    /// How its header is written; empty for what stands before the first.
    pub header: &'static str,
    /// Where it begins; empty if it is not written.
    pub place: String,
    /// Its settings.
    pub settings: Vec<ReportSetting>,
}

/// A setting as it counts.
#[derive(Clone, Debug)]
pub struct ReportSetting {
    /// Its name.
    pub name: &'static str,
    /// What counts.
    pub value: Counts,
    /// Where that was written.
    pub from: String,
    /// Nobody wrote it.
    pub is_default: bool,
    /// Somebody wrote it, and something else than the default.
    pub is_changed: bool,
}

/// What counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Counts {
    /// This value.
    Value(toml::Value),
    /// A secret, which is not shown.
    Hidden,
    /// This value, which had a secret in it.
    Masked(toml::Value),
    /// What these words say.
    Words(&'static str),
    /// Nothing.
    Nothing,
}

impl Report {
    /// Somebody wrote this.
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

    /// Nobody wrote this: it follows from something else.
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

    /// What counts in all, with these places of the routes; and what to warn of.
    pub(super) fn finish(self, routes: Vec<String>) -> (Vec<ReportSection>, Vec<String>) {
        let mut read = self.settings.into_inner();
        let mut section = |table: &Table, index, place| ReportSection {
            header: table.header,
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
            .filter(|table| !["defaults", "routes"].contains(&table.name));
        let mut report: Vec<ReportSection> = alone
            .map(|table| section(table, 0, String::new()))
            .collect();
        for (index, place) in routes.into_iter().enumerate() {
            report.push(section(&ROUTES, index, place));
        }
        let mut warnings = self.warnings.into_inner();
        warnings.sort();
        (report, warnings)
    }
}

/// A value as it may be shown.
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
        toml::Value::String(text) if text.starts_with("postgres") => {
            toml::Value::String(postgres::mask(text))
        }
        toml::Value::String(text) => toml::Value::String(url::mask(text)),
        toml::Value::Array(list) => toml::Value::Array(list.iter().map(without_secrets).collect()),
        other => other.clone(),
    }
}

/// What counts if nobody writes anything.
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

/// A value without its places.
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
