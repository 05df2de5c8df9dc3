//! A section as written: its settings, each with its place.
//!
//! A setting may be written in several places, of which one takes effect: a variable overrides the
//! file, and a route overrides `[defaults]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::environment::Variable;
use super::mistake::{At, Mistakes};
use super::report::{Counts, Report, without_places};
use super::value::{kind, parsed};
use crate::config::Secret;
use crate::config::settings::{Kind, Setting, Table, describe_unknown};

/// What all sections of one configuration share.
pub(crate) struct Context<'a> {
    pub(super) mistakes: Mistakes<'a>,
    pub(super) report: Report,
    /// The directory that relative paths in the file start from.
    pub(super) base: PathBuf,
}

/// One section. If it is absent, every setting has its default.
#[derive(Clone)]
pub(crate) struct Section<'a> {
    table: &'static Table,
    /// The index among sections of that name.
    index: usize,
    written: BTreeMap<&'static str, Written<'a>>,
    at: At<'a>,
    is_present: bool,
    context: &'a Context<'a>,
}

#[derive(Clone)]
struct Written<'a> {
    value: &'a DeValue<'a>,
    at: At<'a>,
    /// It was set for all routes, not for this one.
    is_inherited: bool,
}

impl<'a> Section<'a> {
    /// A section that is not in the file.
    pub(super) fn absent(table: &'static Table, context: &'a Context<'a>) -> Self {
        Section {
            table,
            index: 0,
            written: BTreeMap::new(),
            at: At::Nowhere,
            is_present: false,
            context,
        }
    }

    /// Adds the settings of a table in the file. Unknown settings are reported at once.
    pub(super) fn with_table(mut self, text: &'a DeTable<'a>, at: At<'a>) -> Self {
        // Values of a table inside a variable have no separate places.
        let place = |span| {
            if matches!(at, At::File(_)) {
                At::File(span)
            } else {
                at.clone()
            }
        };
        for (key, value) in text {
            match self.table.find_name(key.get_ref()) {
                Some(name) => {
                    let written = Written {
                        value: value.get_ref(),
                        at: place(value.span()),
                        is_inherited: false,
                    };
                    self.written.insert(name, written);
                }
                None => self.context.mistakes.at(
                    &place(key.span()),
                    describe_unknown(self.table, key.get_ref()),
                ),
            }
        }
        Section {
            at,
            is_present: true,
            ..self
        }
    }

    /// Adds the settings from variables.
    pub(super) fn with_variables(
        mut self,
        variables: Option<&'a BTreeMap<&'static str, Variable<'a>>>,
    ) -> Self {
        for (name, variable) in variables.into_iter().flatten() {
            if !self.is_present {
                self.at = At::Name(variable.name);
                self.is_present = true;
            }
            let written = Written {
                value: &variable.value,
                at: At::Variable(variable.name),
                is_inherited: false,
            };
            self.written.insert(name, written);
        }
        self
    }

    /// Adds the settings for all routes, which everything else overrides.
    pub(super) fn with_defaults(mut self, defaults: &Section<'a>) -> Self {
        for (name, written) in &defaults.written {
            self.written.entry(name).or_insert_with(|| Written {
                is_inherited: true,
                ..written.clone()
            });
        }
        self
    }

    /// The section without these settings.
    pub(super) fn without(&self, names: &[&str]) -> Self {
        let mut section = self.clone();
        section.written.retain(|name, _| !names.contains(name));
        section
    }

    pub(super) fn with_index(self, index: usize) -> Self {
        Section { index, ..self }
    }

    fn setting(&self, name: &str) -> &'static Setting {
        self.table
            .find(name)
            .unwrap_or_else(|| panic!("`{name}` is declared for {}", self.table.header))
    }

    /// A setting, if it is present and valid. Mistakes are reported once: inherited settings were
    /// read before.
    pub(crate) fn get<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&DeValue<'_>, Kind) -> Result<T, String>,
    ) -> Option<T> {
        let setting = self.setting(name);
        let written = self.written.get(name)?;
        match read(written.value, setting.kind) {
            Ok(value) => {
                let text = without_places(written.value);
                let from = self.source(written);
                let report = &self.context.report;
                report.written(self.table, self.index, setting, text, from);
                Some(value)
            }
            Err(message) => {
                if !written.is_inherited {
                    self.context.mistakes.at(&written.at, message);
                }
                None
            }
        }
    }

    /// A setting that was read before. Mistakes are not reported again.
    pub(super) fn peek<T>(
        &self,
        name: &str,
        read: impl FnOnce(&DeValue<'_>, Kind) -> Result<T, String>,
    ) -> Option<T> {
        let written = self.written.get(name)?;
        read(written.value, self.setting(name).kind).ok()
    }

    /// Reports that a flag sets this value.
    pub(super) fn report_flag(&self, name: &str, flag: &str, value: impl Into<toml::Value>) {
        let (setting, from) = (self.setting(name), flag.to_owned());
        let report = &self.context.report;
        report.written(self.table, self.index, setting, value.into(), from);
    }

    /// Reports the effective value of a setting that is not written and depends on others.
    pub(super) fn report_follows(&self, name: &str, value: impl Into<toml::Value>, why: &str) {
        let (setting, value) = (self.setting(name), Counts::Value(value.into()));
        let report = &self.context.report;
        report.follows(self.table, self.index, setting, value, why);
    }

    /// Reports that a setting has no effect here, even if it is set for all routes.
    pub(super) fn report_ignored(&self, name: &str, why: &str) {
        let (setting, value) = (self.setting(name), Counts::Words("ignored"));
        let report = &self.context.report;
        report.follows(self.table, self.index, setting, value, why);
    }

    /// A file that may not exist yet, in a directory that does. Relative paths start as those of
    /// [`file`](Section::file).
    pub(crate) fn new_file(&self, name: &'static str) -> Option<PathBuf> {
        self.path(name, "the path of a file", |path| {
            let directory = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            if path.is_dir() || path.as_os_str().is_empty() {
                return Err(format!(
                    "{} is a directory: name a file in it",
                    path.display()
                ));
            }
            if !directory.is_dir() {
                return Err(format!(
                    "there is no directory {}: create it, or name another",
                    directory.display()
                ));
            }
            Ok(())
        })
    }

    /// An existing file. A relative path starts from the directory of the configuration; in a
    /// variable, from the working directory.
    pub(crate) fn file(&self, name: &'static str) -> Option<PathBuf> {
        let begin = if self.is_in_file(name) {
            "this configuration is"
        } else {
            "the program was started"
        };
        self.path(name, "a file", |path| match std::fs::metadata(path) {
            Ok(found) if found.is_file() => Ok(()),
            Ok(found) if found.is_dir() => Err(format!(
                "{} is a directory: name the file in it",
                path.display()
            )),
            Ok(_) => Err(format!(
                "{} is no plain file but a device, a pipe or a socket: put what it holds into a \
                 file",
                path.display()
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
                "there is no file {}: relative paths begin where {begin}",
                path.display()
            )),
            Err(error) => Err(format!(
                "{} cannot be reached: {error}: let the account that runs this get there",
                path.display()
            )),
        })
    }

    /// An existing directory. Relative paths start as those of files.
    pub(crate) fn directory(&self, name: &'static str) -> Option<PathBuf> {
        self.path(name, "a directory", |path| match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(format!("{} is no directory: name one", path.display())),
            Err(error) => Err(format!(
                "{} cannot be used ({error}): make the directory, or name another",
                path.display()
            )),
        })
    }

    fn path(
        &self,
        name: &'static str,
        wanted: &str,
        check: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Option<PathBuf> {
        let base = self.base(name);
        self.get(name, |value, _| match value {
            DeValue::String(text) => {
                let path = base.join(&**text);
                check(&path).map(|()| path)
            }
            other => Err(format!(
                "this must be {wanted} in quotes, and is {}",
                kind(other)
            )),
        })
    }

    /// The directory that a relative path of this setting starts from.
    pub(super) fn base(&self, name: &str) -> &'a Path {
        if self.is_in_file(name) {
            &self.context.base
        } else {
            Path::new("")
        }
    }

    fn is_in_file(&self, name: &str) -> bool {
        self.written
            .get(name)
            .is_some_and(|written| matches!(written.at, At::File(_)))
    }

    /// A secret, given directly or in a file. `read` says what is wrong with it, without repeating
    /// it.
    pub(crate) fn secret(
        &self,
        name: &'static str,
        read: impl Fn(&str) -> Result<Secret, String>,
    ) -> Option<Secret> {
        let file = self
            .setting(name)
            .file_name()
            .expect("every secret has its file");
        if self.has(name) && self.has(file) {
            self.mistake(
                &[file, name],
                format!(
                    "`{name}` and `{file}` are both there, and only one can count: leave one out"
                ),
            );
            return None;
        }
        self.get(name, parsed(&read)).or_else(|| {
            let path = self.file(file)?;
            match secret_file(&path).and_then(|text| read(&text)) {
                Ok(secret) => {
                    self.warn_if_open(&path);
                    Some(secret)
                }
                Err(message) => {
                    self.mistake(&[file], format!("{}: {message}", path.display()));
                    None
                }
            }
        })
    }

    fn warn_if_open(&self, path: &Path) {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o044 != 0 {
            let who = if mode & 0o004 == 0 {
                "its group"
            } else {
                "everybody on this machine"
            };
            self.context.report.warn(format!(
                "{who} can read the secret in {path}: chmod 600 {path}",
                path = path.display()
            ));
        }
    }

    /// The section of that name inside this one.
    pub(super) fn section(&self, table: &'static Table) -> Section<'a> {
        let absent = Section::absent(table, self.context);
        match self.written.get(table.name) {
            None => absent,
            Some(Written {
                value: DeValue::Table(text),
                at,
                ..
            }) => absent.with_table(text, at.clone()),
            Some(written) => {
                let message = format!(
                    "`{0}` is a section: write [{0}] and its settings below",
                    table.name
                );
                self.context.mistakes.at(&written.at, message);
                absent
            }
        }
    }

    /// The sections of a list inside this one, each with its index.
    pub(super) fn sections(&self, table: &'static Table) -> Vec<Section<'a>> {
        let Some(written) = self.written.get(table.name) else {
            return Vec::new();
        };
        let not_a_list = |at: &At<'_>| {
            let message = match self.setting(table.name).example {
                "" => format!(
                    "`{0}` is a list of sections: write [[{0}]] before each",
                    table.name
                ),
                example => format!(
                    "`{0}` is a list of sections: write {0} = {example}",
                    table.name
                ),
            };
            self.context.mistakes.at(at, message);
        };
        let DeValue::Array(list) = written.value else {
            not_a_list(&written.at);
            return Vec::new();
        };
        let section = |(index, item): (usize, &'a toml::Spanned<DeValue<'a>>)| {
            let at = match &written.at {
                At::File(_) => At::File(item.span()),
                at => at.clone(),
            };
            let absent = Section::absent(table, self.context).with_index(index);
            if let DeValue::Table(text) = item.get_ref() {
                absent.with_table(text, at)
            } else {
                not_a_list(&at);
                absent
            }
        };
        list.iter().enumerate().map(section).collect()
    }

    /// The sections inside this one that have names of their own, each with its name, in the order
    /// of the names.
    pub(super) fn named(&self, table: &'static Table) -> Vec<(&'a str, Section<'a>)> {
        let Some(written) = self.written.get(table.name) else {
            return Vec::new();
        };
        let not_named = |at: &At<'_>| {
            let message = format!(
                "`{0}` is a section for each name: write [{0}.orders] and its settings below",
                table.name
            );
            self.context.mistakes.at(at, message);
        };
        let DeValue::Table(sections) = written.value else {
            not_named(&written.at);
            return Vec::new();
        };
        let mut named = Vec::new();
        for (key, value) in sections {
            let at = At::File(key.span());
            let DeValue::Table(text) = value.get_ref() else {
                not_named(&at);
                continue;
            };
            let section = Section::absent(table, self.context).with_index(named.len());
            named.push((&**key.get_ref(), section.with_table(text, at)));
        }
        named
    }

    /// Whether a setting is written, here or for all routes.
    pub(super) fn has(&self, name: &str) -> bool {
        self.written.contains_key(name)
    }

    /// Whether a setting is written here.
    pub(super) fn says(&self, name: &str) -> bool {
        self.written
            .get(name)
            .is_some_and(|written| !written.is_inherited)
    }

    /// Its header as written.
    pub(super) fn header(&self) -> &'static str {
        self.table.header
    }

    pub(super) fn is_present(&self) -> bool {
        self.is_present
    }

    /// Reports a contradiction between these settings: at the first of them that is written here,
    /// or else at the section itself. The message says where the others are. A contradiction
    /// between defaults alone was reported there.
    pub(super) fn mistake(&self, settings: &[&str], message: impl Into<String>) {
        let written: Vec<(&str, &Written<'_>)> = settings
            .iter()
            .filter_map(|name| Some((*name, self.written.get(*name)?)))
            .collect();
        let blamed = written.iter().find(|(_, written)| !written.is_inherited);
        let mut message = message.into();
        let Some((_, first)) = blamed else {
            if written.is_empty() {
                self.context.mistakes.at(&self.at, message);
            }
            return;
        };
        for (name, written) in written
            .iter()
            .filter(|(_, written)| is_elsewhere(first, written))
        {
            message += &format!("\n  `{name}` is in {}", self.source(written));
        }
        self.context.mistakes.at(&first.at, message);
    }

    /// Reports a mistake that has no place.
    pub(super) fn mistake_nowhere(&self, message: impl Into<String>) {
        self.context.mistakes.at(&At::Nowhere, message);
    }

    /// Where it begins, as text.
    pub(super) fn words(&self) -> String {
        self.context.mistakes.words(&self.at)
    }

    /// The line in which it begins, if it is in the file.
    pub(super) fn line(&self) -> Option<usize> {
        match &self.at {
            At::File(span) => Some(self.context.mistakes.line(span.start)),
            _ => None,
        }
    }

    fn source(&self, written: &Written<'_>) -> String {
        let words = self.context.mistakes.words(&written.at);
        // The name of a variable for all routes says so itself.
        if written.is_inherited && matches!(written.at, At::File(_)) {
            format!("{words}, [defaults]")
        } else {
            words
        }
    }
}

/// Whether the other setting is in another place, where a reader of the first may not see it.
fn is_elsewhere(one: &Written<'_>, other: &Written<'_>) -> bool {
    one.is_inherited != other.is_inherited
        || match (&one.at, &other.at) {
            (At::File(_), At::File(_)) => false,
            (one, other) => one != other,
        }
}

/// Reads a secret from a file, without the line end that files often have.
fn secret_file(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("this could not be read ({error}): let the program read it"))?;
    let text = text
        .strip_suffix('\n')
        .map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
    if text.is_empty() {
        Err("this file is empty: write the secret into it".to_owned())
    } else {
        Ok(text.to_owned())
    }
}
