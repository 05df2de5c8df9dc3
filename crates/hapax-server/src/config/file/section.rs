//! A section: its settings, each with the place it was written in.
//!
//! A setting may be written in several places, of which one counts: a variable goes before the
//! file, and what a route says before what `[defaults]` says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::environment::Settings;
use super::ledger::Ledger;
use super::mistake::{At, Mistakes};
use super::names::{self, Kind, Names};
use super::value::kind;
use crate::config::Secret;

/// What all sections of one configuration share.
pub(super) struct Context<'a> {
    pub(super) mistakes: Mistakes<'a>,
    pub(super) ledger: Ledger,
    /// Where relative paths of the file begin.
    pub(super) base: PathBuf,
}

/// One section, or the absence of one: then every setting keeps its default.
#[derive(Clone)]
pub(super) struct Section<'a> {
    names: &'static Names,
    /// Which of several by that name.
    index: usize,
    given: BTreeMap<&'static str, Given<'a>>,
    at: At<'a>,
    is_present: bool,
    context: &'a Context<'a>,
}

#[derive(Clone)]
struct Given<'a> {
    value: &'a DeValue<'a>,
    at: At<'a>,
    /// It was said for all routes, not for this one.
    is_inherited: bool,
}

impl<'a> Section<'a> {
    /// One that is not there.
    pub(super) fn absent(names: &'static Names, context: &'a Context<'a>) -> Self {
        Section {
            names,
            index: 0,
            given: BTreeMap::new(),
            at: At::Nowhere,
            is_present: false,
            context,
        }
    }

    /// Adds what a table of the file says. Settings that no such section has are noted at once.
    pub(super) fn with_table(mut self, table: &'a DeTable<'a>, at: At<'a>) -> Self {
        // A table inside a variable has no places of its own.
        let place = |span| {
            if matches!(at, At::File(_)) {
                At::File(span)
            } else {
                at.clone()
            }
        };
        for (key, value) in table {
            match self.names.word(key.get_ref()) {
                Some(word) => {
                    let given = Given {
                        value: value.get_ref(),
                        at: place(value.span()),
                        is_inherited: false,
                    };
                    self.given.insert(word, given);
                }
                None => self.context.mistakes.at(
                    &place(key.span()),
                    names::unknown(self.names, key.get_ref()),
                ),
            }
        }
        Section {
            at,
            is_present: true,
            ..self
        }
    }

    /// Adds what variables say.
    pub(super) fn with_variables(mut self, settings: Option<&'a Settings<'a>>) -> Self {
        for (word, variable) in settings.into_iter().flatten() {
            let at = At::Variable(variable.name);
            if !self.is_present {
                self.at = At::Name(variable.name);
                self.is_present = true;
            }
            self.given.insert(
                word,
                Given {
                    value: &variable.value,
                    at,
                    is_inherited: false,
                },
            );
        }
        self
    }

    /// Adds, behind everything else, what is said for all.
    pub(super) fn with_defaults(mut self, defaults: &Section<'a>) -> Self {
        for (word, given) in &defaults.given {
            self.given.entry(word).or_insert_with(|| Given {
                is_inherited: true,
                ..given.clone()
            });
        }
        self
    }

    pub(super) fn with_index(self, index: usize) -> Self {
        Section { index, ..self }
    }

    /// Puts a setting where it belongs, if it is there and good. What is wrong with it is noted.
    pub(super) fn read<T>(
        &self,
        name: &'static str,
        target: &mut T,
        read: impl FnOnce(&DeValue<'_>, Kind) -> Result<T, String>,
    ) {
        if let Some(value) = self.get(name, read) {
            *target = value;
        }
    }

    /// A setting, if it is there and good. What is wrong with it is noted, once: what is inherited
    /// was read before.
    pub(super) fn get<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&DeValue<'_>, Kind) -> Result<T, String>,
    ) -> Option<T> {
        let setting = self
            .names
            .find(name)
            .expect("every setting that is read is in the table");
        let given = self.given.get(name)?;
        match read(given.value, setting.kind) {
            Ok(value) => {
                self.context.ledger.note(
                    self.names,
                    self.index,
                    setting,
                    given.value,
                    self.source(given),
                );
                Some(value)
            }
            Err(message) => {
                if !given.is_inherited {
                    self.context.mistakes.at(&given.at, message);
                }
                None
            }
        }
    }

    /// A setting that was read before. Nothing is noted again.
    pub(super) fn peek<T>(
        &self,
        name: &str,
        read: impl FnOnce(&DeValue<'_>, Kind) -> Result<T, String>,
    ) -> Option<T> {
        let kind = self
            .names
            .find(name)
            .expect("every setting that is read is in the table")
            .kind;
        self.given
            .get(name)
            .and_then(|given| read(given.value, kind).ok())
    }

    /// Notes what counts for a setting that is not written, and depends on others.
    pub(super) fn follows(&self, name: &'static str, value: impl Into<toml::Value>, why: &str) {
        let setting = self
            .names
            .find(name)
            .expect("every setting that is noted is in the table");
        self.context
            .ledger
            .follows(self.names, self.index, setting, value.into(), why);
    }

    /// Notes that a setting does not count here, though it may be said for all.
    pub(super) fn ignores(&self, name: &'static str, why: &str) {
        let setting = self
            .names
            .find(name)
            .expect("every setting that is noted is in the table");
        self.context
            .ledger
            .ignores(self.names, self.index, setting, why);
    }

    /// A file that may be there or not, in a directory that is. A relative path begins as that of
    /// [`file`](Section::file).
    pub(super) fn place(&self, name: &'static str) -> Option<PathBuf> {
        let base = self.base(name);
        self.get(name, |value, _| match value {
            DeValue::String(text) if !text.is_empty() => {
                let path = base.join(&**text);
                let directory = path
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty())
                    .unwrap_or(Path::new("."));
                match (path.is_dir(), directory.is_dir()) {
                    (true, _) => Err(format!(
                        "{} is a directory: name a file in it",
                        path.display()
                    )),
                    (_, false) => Err(format!(
                        "there is no directory {}: create it, or name another",
                        directory.display()
                    )),
                    (false, true) => Ok(path),
                }
            }
            _ => Err("write the path of a file, in quotes".to_owned()),
        })
    }

    /// A file that is there. A relative path begins where the configuration is; in a variable,
    /// where the program was started.
    pub(super) fn file(&self, name: &'static str) -> Option<PathBuf> {
        let base = self.base(name);
        let begin = if self.is_in_file(name) {
            "this configuration is"
        } else {
            "the program was started"
        };
        self.get(name, |value, _| match value {
            DeValue::String(text) => {
                let path = base.join(&**text);
                match std::fs::metadata(&path) {
                    Ok(found) if found.is_file() => Ok(path),
                    Ok(found) => Err(no_file(&path, found.is_dir())),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
                        "there is no file {}: relative paths begin where {begin}",
                        path.display()
                    )),
                    Err(error) => Err(format!(
                        "{} cannot be reached: {error}: let the account that runs this get there",
                        path.display()
                    )),
                }
            }
            other => Err(format!(
                "this must be a file in quotes, and is {}",
                kind(other)
            )),
        })
    }

    /// A directory that is there. Relative paths begin as those of files do.
    pub(super) fn directory(&self, name: &'static str) -> Option<PathBuf> {
        let base = self.base(name);
        self.get(name, |value, _| match value {
            DeValue::String(text) => {
                let path = base.join(&**text);
                match std::fs::metadata(&path) {
                    Ok(found) if found.is_dir() => Ok(path),
                    Ok(_) => Err(format!("{} is no directory: name one", path.display())),
                    Err(error) => Err(format!(
                        "{} cannot be used ({error}): make the directory, or name another",
                        path.display()
                    )),
                }
            }
            other => Err(format!(
                "this must be a directory in quotes, and is {}",
                kind(other)
            )),
        })
    }

    /// Where a relative path of this setting begins.
    pub(super) fn base(&self, name: &str) -> &'a Path {
        if self.is_in_file(name) {
            &self.context.base
        } else {
            Path::new("")
        }
    }

    fn is_in_file(&self, name: &str) -> bool {
        self.given
            .get(name)
            .is_some_and(|given| matches!(given.at, At::File(_)))
    }

    /// A secret, as it is or from the file that has it. `read` says what is wrong with one, without
    /// repeating it.
    pub(super) fn secret(
        &self,
        name: &'static str,
        read: impl Fn(&str) -> Result<Secret, String>,
    ) -> Option<Secret> {
        let file = self
            .names
            .find(name)
            .and_then(names::Setting::file_name)
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
        let written = self.get(name, |value, _| match value {
            DeValue::String(text) => read(text),
            other => Err(format!(
                "this must be text in quotes, and is {}",
                kind(other)
            )),
        });
        written.or_else(|| {
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
            self.context.ledger.warn(format!(
                "{who} can read the secret in {path}: chmod 600 {path}",
                path = path.display()
            ));
        }
    }

    /// The section inside this one by that name.
    pub(super) fn section(&self, names: &'static Names) -> Section<'a> {
        let absent = Section::absent(names, self.context);
        match self
            .given
            .get(names.section)
            .map(|given| (given.value, given.at.clone()))
        {
            None => absent,
            Some((DeValue::Table(table), at)) => absent.with_table(table, at),
            Some((_, at)) => {
                let section = names.section;
                self.context.mistakes.at(
                    &at,
                    format!("`{section}` is a section: write [{section}] and its settings below"),
                );
                absent
            }
        }
    }

    /// The sections of a list inside this one, each with its place in the list.
    pub(super) fn sections(&self, names: &'static Names) -> Vec<Section<'a>> {
        let Some(given) = self.given.get(names.section) else {
            return Vec::new();
        };
        let not_a_list = || match self
            .names
            .find(names.section)
            .map(|setting| setting.example)
        {
            Some(example) if !example.is_empty() => format!(
                "`{0}` is a list of sections: write {0} = {example}",
                names.section
            ),
            _ => format!(
                "`{0}` is a list of sections: write [[{0}]] before each",
                names.section
            ),
        };
        let DeValue::Array(list) = given.value else {
            self.context.mistakes.at(&given.at, not_a_list());
            return Vec::new();
        };
        let is_in_file = matches!(given.at, At::File(_));
        let section = |(index, item): (usize, &'a toml::Spanned<DeValue<'a>>)| {
            let at = if is_in_file {
                At::File(item.span())
            } else {
                given.at.clone()
            };
            let absent = Section::absent(names, self.context).with_index(index);
            match item.get_ref() {
                DeValue::Table(table) => absent.with_table(table, at),
                _ => {
                    self.context.mistakes.at(&at, not_a_list());
                    absent
                }
            }
        };
        list.iter().enumerate().map(section).collect()
    }

    /// Whether it is written, here or for all.
    pub(super) fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Whether it is written here.
    pub(super) fn says(&self, name: &str) -> bool {
        self.given
            .get(name)
            .is_some_and(|given| !given.is_inherited)
    }

    /// How its header is written.
    pub(super) fn header(&self) -> &'static str {
        self.names.header
    }

    pub(super) fn is_present(&self) -> bool {
        self.is_present
    }

    /// Notes a contradiction between these settings: at the first of them that is written here, or
    /// else at the section itself. Where others of them stand elsewhere, that is said. What is said
    /// for all alone was noted there.
    pub(super) fn mistake(&self, settings: &[&str], message: impl Into<String>) {
        let written: Vec<(&str, &Given<'_>)> = settings
            .iter()
            .filter_map(|name| Some((*name, self.given.get(*name)?)))
            .collect();
        let blamed = written.iter().find(|(_, given)| !given.is_inherited);
        let mut message = message.into();
        let Some((_, first)) = blamed else {
            if written.is_empty() {
                self.context.mistakes.at(&self.at, message);
            }
            return;
        };
        for (name, given) in written
            .iter()
            .filter(|(_, given)| is_elsewhere(first, given))
        {
            message += &format!("\n  `{name}` is in {}", self.source(given));
        }
        self.context.mistakes.at(&first.at, message);
    }

    /// Notes a mistake that stands nowhere.
    pub(super) fn mistake_nowhere(&self, message: impl Into<String>) {
        self.context.mistakes.at(&At::Nowhere, message);
    }

    /// Where it begins, in words.
    pub(super) fn words(&self) -> String {
        self.context.mistakes.words(&self.at)
    }

    /// The line it begins in, if it stands in the file.
    pub(super) fn line(&self) -> Option<usize> {
        match &self.at {
            At::File(span) => Some(self.context.mistakes.line(span.start)),
            _ => None,
        }
    }

    fn source(&self, given: &Given<'_>) -> String {
        let words = self.context.mistakes.words(&given.at);
        // A variable for all routes says so by its name.
        if given.is_inherited && matches!(given.at, At::File(_)) {
            format!("{words}, [defaults]")
        } else {
            words
        }
    }
}

/// Whether somebody who looks at the one may not see the other.
/// Something else is where a file should be.
fn no_file(path: &Path, is_directory: bool) -> String {
    let path = path.display();
    if is_directory {
        return format!("{path} is a directory: name the file in it");
    }
    format!(
        "{path} is no plain file but a device, a pipe or a socket: put what it holds into a file"
    )
}

fn is_elsewhere(one: &Given<'_>, other: &Given<'_>) -> bool {
    one.is_inherited != other.is_inherited
        || match (&one.at, &other.at) {
            (At::File(_), At::File(_)) => false,
            (one, other) => one != other,
        }
}

/// A file often ends with a line end that is no part of the secret.
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
