//! Settings as environment variables: `HAPAX__SECTION__SETTING`. They override the file, and flags
//! override them.
//!
//! A variable that begins with `HAPAX__` and has no valid meaning stops the start, just as such a
//! line of the file would. If it were ignored, the operator would believe in a setting that has no
//! effect.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use toml::de::DeValue;

use super::mistake::{At, Mistakes};
use crate::config::settings::{Kind, Setting, TABLES, TOP, Table, find_nearest};

const PREFIX: &str = "HAPAX__";

/// The variables that concern Hapax. The reader looks at no others.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Environment {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect()
    }

    /// The value of a variable, if it is set and is text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str()
    }
}

/// Other variables are left out.
impl<N: Into<String>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let ours = |(name, value): (N, V)| {
            let name = name.into();
            name.to_ascii_uppercase()
                .starts_with("HAPAX_")
                .then(|| (name, value.into()))
        };
        Environment(variables.into_iter().filter_map(ours).collect())
    }
}

/// Only the names: a value may be a secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The value that a variable gives to a setting.
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) value: DeValue<'a>,
}

/// The values of all variables, by section and route.
#[derive(Default)]
pub(super) struct Variables<'a> {
    sections: BTreeMap<&'static str, BTreeMap<&'static str, Variable<'a>>>,
    routes: BTreeMap<usize, BTreeMap<&'static str, Variable<'a>>>,
}

impl<'a> Variables<'a> {
    /// Parses the variables, and reports mistakes.
    pub(super) fn read(environment: &'a Environment, mistakes: &Mistakes<'_>) -> Variables<'a> {
        let mut variables = Variables::default();
        for (name, value) in &environment.0 {
            match place(name) {
                Ok(None) => {}
                Ok(Some((place, setting_name, setting))) => {
                    match read(setting, setting_name, value) {
                        Ok(value) => {
                            let settings = variables.settings(place);
                            settings.insert(setting_name, Variable { name, value });
                        }
                        Err(message) => mistakes.at(&At::Variable(name), message),
                    }
                }
                Err(message) => mistakes.at(&At::Name(name), message),
            }
        }
        variables
    }

    fn settings(&mut self, place: Place) -> &mut BTreeMap<&'static str, Variable<'a>> {
        match place {
            Place::Section(section) => self.sections.entry(section).or_default(),
            Place::Route(index) => self.routes.entry(index).or_default(),
        }
    }

    pub(super) fn section(&self, name: &str) -> Option<&BTreeMap<&'static str, Variable<'a>>> {
        self.sections.get(name)
    }

    /// The values for a route: one of the file, or one that follows them without a gap.
    pub(super) fn route(&self, index: usize) -> Option<&BTreeMap<&'static str, Variable<'a>>> {
        self.routes.get(&index)
    }

    /// Reports routes whose number leaves a gap: the number must be a mistake.
    pub(super) fn refuse_gaps(&self, routes: usize, mistakes: &Mistakes<'_>) {
        let mut next = routes;
        for (index, settings) in self.routes.range(routes..) {
            if *index == next {
                next += 1;
                continue;
            }
            let Some(variable) = settings.values().next() else {
                continue;
            };
            let rest = variable.name.rsplit("__").next().unwrap_or_default();
            let message = format!(
                "there is no route {index}: the next one is {next}: write {PREFIX}ROUTES__{next}__{rest}"
            );
            mistakes.at(&At::Name(variable.name), message);
        }
    }
}

/// The section or route of a variable's setting.
#[derive(Clone, Copy)]
enum Place {
    Section(&'static str),
    Route(usize),
}

type Found = (Place, &'static str, &'static Setting);

/// The setting that a variable names; `None` if the variable is not for Hapax.
fn place(name: &str) -> Result<Option<Found>, String> {
    let Some(rest) = name.strip_prefix(PREFIX) else {
        return near_miss(name);
    };
    match find(rest, Table::find_name) {
        Some(found) if rest.bytes().any(|byte| byte.is_ascii_lowercase()) => Err(format!(
            "variables are written in upper case: write {}",
            spell(found.0, found.1)
        )),
        Some(found) => Ok(Some(found)),
        None => match without_underscores(name) {
            Some(meant) => Err(format!("no setting has this name: did you mean {meant}?")),
            None => Err(describe_unknown(rest)),
        },
    }
}

/// A setting with one underscore instead of two, or in lower case, would be silently ignored. Other
/// variables with that prefix belong to other programs.
fn near_miss(name: &str) -> Result<Option<Found>, String> {
    match without_underscores(name) {
        Some(meant) if name.eq_ignore_ascii_case(&meant) => Err(format!(
            "this would be ignored: variables are written in upper case: write {meant}"
        )),
        Some(meant) => Err(format!(
            "this would be ignored: between the parts of a name stand two underscores: write {meant}"
        )),
        None => Ok(None),
    }
}

/// The variable that is meant if one underscore is written for two.
fn without_underscores(name: &str) -> Option<String> {
    let plain = |text: &str| text.to_ascii_uppercase().replace("__", "_");
    TABLES
        .iter()
        .filter(|table| !["routes", "relay"].contains(&table.name))
        .flat_map(|table| values(table).map(|setting| spell(Place::Section(table.name), setting)))
        .find(|variable| plain(variable) == plain(name))
}

/// The setting that a name means; `look_up` finds names in a section.
fn find(rest: &str, look_up: impl Fn(&Table, &str) -> Option<&'static str>) -> Option<Found> {
    let lower = rest.to_ascii_lowercase();
    let parts: Vec<&str> = lower.split("__").collect();
    let top = TOP.find(look_up(&TOP, parts[0])?)?;
    let (place, table, name) = match (top.kind, &parts[1..]) {
        (Kind::Section(table), [name]) => (Place::Section(table.name), table, *name),
        (Kind::Sections(table), [index, name]) => (Place::Route(index.parse().ok()?), table, *name),
        (_, []) if !top.is_section() => (Place::Section(""), &TOP, parts[0]),
        _ => return None,
    };
    let name = look_up(table, name)?;
    Some((place, name, table.find(name)?))
}

/// A declared name, or the nearest one to a misspelled name.
fn find_near(table: &Table, name: &str) -> Option<&'static str> {
    table.find_name(name).or_else(|| find_nearest(table, name))
}

/// The settings of a section that are not sections themselves.
fn values(table: &Table) -> impl Iterator<Item = &'static str> + use<> {
    table
        .settings()
        .filter(|setting| !setting.is_section())
        .flat_map(Setting::names)
}

fn spell(place: Place, name: &str) -> String {
    let section = match place {
        Place::Section("") => String::new(),
        Place::Section(section) => format!("{section}__"),
        Place::Route(index) => format!("routes__{index}__"),
    };
    format!(
        "{PREFIX}{}",
        format!("{section}{name}").to_ascii_uppercase()
    )
}

/// The message for a variable that names no setting.
fn describe_unknown(rest: &str) -> String {
    let lower = rest.to_ascii_lowercase();
    let first = lower.split("__").next().unwrap_or_default();
    let first = find_near(&TOP, first).and_then(|first| TOP.find(first));
    let fix = match (find(rest, find_near), first.map(|first| first.kind)) {
        (Some((place, name, _)), _) => format!("did you mean {}?", spell(place, name)),
        (None, Some(Kind::Sections(_))) => {
            "a route is a number, counted from 0, and a setting, as \
             in HAPAX__ROUTES__0__MODE"
                .to_owned()
        }
        (None, Some(Kind::Named(table))) => {
            format!("sections {} are written in the file alone", table.header)
        }
        (None, Some(Kind::Section(table))) => {
            let names: Vec<&str> = values(table).collect();
            let section = table.name.to_ascii_uppercase();
            let listed = match names.len() {
                0..=20 => format!("of {}", names.join(", ").to_ascii_uppercase()),
                _ => "that `hapax config schema --markdown` lists".to_owned(),
            };
            format!("behind HAPAX__{section}__ stands one {listed}")
        }
        _ => {
            "write HAPAX__LISTEN, or HAPAX__SECTION__SETTING as in HAPAX__UPSTREAM__URL; or unset \
              it"
            .to_owned()
        }
    };
    format!("no setting has this name: {fix}")
}

/// Parses a value: text as it is, and other types as TOML.
fn read<'a>(
    setting: &Setting,
    name: &str,
    value: &'a std::ffi::OsStr,
) -> Result<DeValue<'a>, String> {
    let Some(text) = value.to_str() else {
        return Err("this is no text in UTF-8: write it anew".to_owned());
    };
    if text.is_empty() {
        return Err("this is empty, which is not the same as unset: give it a value, or unset it for the default".to_owned());
    }
    let is_text = setting.kind.is_text() || setting.name != name;
    let begins_as_toml = text.starts_with(['[', '{']);
    match DeValue::parse(text) {
        Ok(value)
            if !is_text
                && !matches!(value.get_ref(), DeValue::Datetime(_) | DeValue::String(_)) =>
        {
            Ok(value.into_inner())
        }
        Err(error) if !is_text && begins_as_toml => Err(format!(
            "this is no TOML ({}): write it as in a file, {} for example",
            error.message(),
            setting.example
        )),
        _ => Ok(DeValue::String(text.into())),
    }
}
