//! What counts, and where it comes from: for `hapax config print` and `explain`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use toml::de::DeValue;

use super::names::{ALL, Fallback, Kind, Names, ROUTES, Setting, TOP};
use crate::config::{postgres, url};

/// What was read, setting by setting.
#[derive(Default)]
pub(super) struct Ledger {
    entries: RefCell<BTreeMap<(&'static str, usize, &'static str), Entry>>,
    warnings: RefCell<Vec<String>>,
}

#[derive(Clone)]
struct Entry {
    value: Counts,
    from: String,
    is_default: bool,
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
    /// Where that was said.
    pub from: String,
    /// Nobody said it.
    pub is_default: bool,
    /// Somebody said it, and something else than what counts otherwise.
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

impl Ledger {
    pub(super) fn note(
        &self,
        names: &Names,
        index: usize,
        setting: &'static Setting,
        value: &DeValue<'_>,
        from: String,
    ) {
        let value = match setting.kind {
            Kind::Secret { .. } => Counts::Hidden,
            _ => counts(plain(value)),
        };
        self.put(
            names.section,
            index,
            setting.name,
            Entry {
                value,
                from,
                is_default: false,
            },
        );
    }

    pub(super) fn follows(
        &self,
        names: &Names,
        index: usize,
        setting: &Setting,
        value: toml::Value,
        why: &str,
    ) {
        self.put(
            names.section,
            index,
            setting.name,
            Entry {
                value: Counts::Value(value),
                from: why.to_owned(),
                is_default: true,
            },
        );
    }

    /// It does not count.
    pub(super) fn ignores(&self, names: &Names, index: usize, setting: &Setting, why: &str) {
        self.put(
            names.section,
            index,
            setting.name,
            Entry {
                value: Counts::Words("ignored"),
                from: why.to_owned(),
                is_default: true,
            },
        );
    }

    /// A flag says it.
    pub(super) fn flag(
        &self,
        section: &'static str,
        name: &'static str,
        flag: &str,
        value: impl Into<toml::Value>,
    ) {
        let value = counts(value.into());
        self.put(
            section,
            0,
            name,
            Entry {
                value,
                from: flag.to_owned(),
                is_default: false,
            },
        );
    }

    pub(super) fn warn(&self, warning: String) {
        self.warnings.borrow_mut().push(warning);
    }

    fn put(&self, section: &'static str, index: usize, name: &'static str, entry: Entry) {
        self.entries
            .borrow_mut()
            .insert((section, index, name), entry);
    }

    /// What counts in all, with these places of the routes; and what to warn of.
    pub(super) fn report(self, routes: Vec<String>) -> (Vec<ReportSection>, Vec<String>) {
        let entries = self.entries.into_inner();
        let sections = ALL
            .iter()
            .filter(|names| names.section != "defaults" && names.section != ROUTES.section);
        let mut report: Vec<ReportSection> = sections
            .map(|names| section(names, 0, String::new(), &entries))
            .collect();
        report.extend(
            routes
                .into_iter()
                .enumerate()
                .map(|(index, place)| section(&ROUTES, index, place, &entries)),
        );
        let mut warnings = self.warnings.into_inner();
        warnings.sort();
        (report, warnings)
    }
}

/// A value as it may be shown.
fn counts(value: toml::Value) -> Counts {
    let shown = shown(&value);
    if shown == value {
        Counts::Value(value)
    } else {
        Counts::Masked(shown)
    }
}

/// A value without the secrets in its URLs.
fn shown(value: &toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) if text.starts_with("postgres") => {
            toml::Value::String(postgres::masked(text, |_| "***".to_owned()))
        }
        toml::Value::String(text) => toml::Value::String(url::masked(text)),
        toml::Value::Array(list) => toml::Value::Array(list.iter().map(shown).collect()),
        other => other.clone(),
    }
}

fn section(
    names: &Names,
    index: usize,
    place: String,
    entries: &BTreeMap<(&'static str, usize, &'static str), Entry>,
) -> ReportSection {
    let counts = |setting: &'static Setting| {
        let entry = entries
            .get(&(names.section, index, setting.name))
            .cloned()
            .unwrap_or_else(|| fallback(setting));
        let is_changed = !entry.is_default && entry.value != fallback(setting).value;
        ReportSetting {
            name: setting.name,
            value: entry.value,
            from: entry.from,
            is_default: entry.is_default,
            is_changed,
        }
    };
    let settings = names
        .settings()
        .filter(|setting| !setting.is_section())
        .map(counts)
        .collect();
    ReportSection {
        header: if names.section == TOP.section {
            ""
        } else {
            names.header
        },
        place,
        settings,
    }
}

fn fallback(setting: &Setting) -> Entry {
    let value = match setting.fallback {
        Fallback::Is(value) => default_value(setting.kind, value),
        Fallback::Words(words) => Counts::Words(words),
        Fallback::Nothing | Fallback::Required => Counts::Nothing,
    };
    Entry {
        value,
        from: "default".to_owned(),
        is_default: true,
    }
}

fn default_value(kind: Kind, value: &str) -> Counts {
    let value = kind.in_toml(value);
    let value = DeValue::parse(&value).expect("the table holds good TOML");
    Counts::Value(plain(value.get_ref()))
}

/// A value without its places.
pub(crate) fn plain(value: &DeValue<'_>) -> toml::Value {
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
        DeValue::Array(list) => {
            toml::Value::Array(list.iter().map(|item| plain(item.get_ref())).collect())
        }
        DeValue::Table(table) => toml::Value::Table(
            table
                .iter()
                .map(|(key, value)| (key.get_ref().to_string(), plain(value.get_ref())))
                .collect(),
        ),
    }
}
