//! A section of the file: its settings, each with the place it stands in.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::mistake::Mistakes;
use super::names::{self, Names};

/// One table of the file, or the absence of one: then every setting keeps its default.
#[derive(Clone)]
pub(super) struct Section<'a> {
    names: &'static Names,
    table: Option<&'a DeTable<'a>>,
    span: Range<usize>,
    mistakes: &'a Mistakes<'a>,
}

impl<'a> Section<'a> {
    /// Reads a table as a section. Settings that no such section has are noted at once.
    pub(super) fn new(names: &'static Names, table: &'a DeTable<'a>, span: Range<usize>, mistakes: &'a Mistakes<'a>) -> Self {
        for key in table.keys().filter(|key| !names.settings.contains(&key.get_ref().as_ref())) {
            mistakes.at(key.span(), names::unknown(names, key.get_ref()));
        }
        Section { names, table: Some(table), span, mistakes }
    }

    /// Puts a setting where it belongs, if it is there and good. What is wrong with it is noted.
    pub(super) fn read<T>(&self, name: &str, target: &mut T, read: impl FnOnce(&DeValue<'_>) -> Result<T, String>) {
        if let Some(value) = self.get(name, read) {
            *target = value;
        }
    }

    /// A setting, if it is there and good. What is wrong with it is noted.
    pub(super) fn get<T>(&self, name: &str, read: impl FnOnce(&DeValue<'_>) -> Result<T, String>) -> Option<T> {
        debug_assert!(self.names.settings.contains(&name), "{name} would be refused as unknown");
        let value = self.table?.get(name)?;
        match read(value.get_ref()) {
            Ok(value) => Some(value),
            Err(message) => {
                self.mistakes.at(value.span(), message);
                None
            }
        }
    }

    /// The section inside this one by that name.
    pub(super) fn section(&self, names: &'static Names) -> Section<'a> {
        let absent = Section { names, table: None, span: self.span.clone(), mistakes: self.mistakes };
        let Some(value) = self.table.and_then(|table| table.get(names.section)) else { return absent };
        match value.get_ref() {
            DeValue::Table(table) => Section::new(names, table, value.span(), self.mistakes),
            _ => {
                self.mistakes.at(
                    value.span(),
                    format!("`{}` is a section: write [{}] and its settings below", names.section, names.section),
                );
                absent
            }
        }
    }

    /// The sections of a list inside this one.
    pub(super) fn sections(&self, names: &'static Names) -> Vec<Section<'a>> {
        let Some(value) = self.table.and_then(|table| table.get(names.section)) else { return Vec::new() };
        let not_a_list = || format!("`{}` is a list of sections: write [[{}]] before each", names.section, names.section);
        let DeValue::Array(list) = value.get_ref() else {
            self.mistakes.at(value.span(), not_a_list());
            return Vec::new();
        };
        let section = |item: &'a toml::Spanned<DeValue<'a>>| match item.get_ref() {
            DeValue::Table(table) => Some(Section::new(names, table, item.span(), self.mistakes)),
            _ => {
                self.mistakes.at(item.span(), not_a_list());
                None
            }
        };
        list.iter().filter_map(section).collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(name))
    }

    pub(super) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Notes a mistake at the first of these settings that is written, or else at the section itself.
    pub(super) fn mistake(&self, settings: &[&str], message: impl Into<String>) {
        let written = settings.iter().find_map(|name| self.table.and_then(|table| table.get(*name)));
        match written {
            Some(value) => self.mistakes.at(value.span(), message),
            None if self.is_present() => self.mistakes.at(self.span.clone(), message),
            None => self.mistakes.nowhere(message),
        }
    }

    /// Notes a mistake that stands nowhere in the file.
    pub(super) fn mistake_nowhere(&self, message: impl Into<String>) {
        self.mistakes.nowhere(message);
    }

    /// The line it begins in.
    pub(super) fn line(&self) -> usize {
        self.mistakes.line(self.span.start)
    }
}
