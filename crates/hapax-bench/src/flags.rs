//! The command line: each command declares its flags and their defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::Error;

/// A command of this program.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) flags: &'static [Flag],
    pub(crate) run: fn(&Flags) -> Result<(), Error>,
}

/// A flag. It takes a value unless it is a [`switch`](Flag::switch).
pub(crate) struct Flag {
    name: &'static str,
    /// `None` for a switch.
    value: Option<&'static str>,
    help: &'static str,
}

impl Flag {
    /// A flag with a value. An empty default means that there is none.
    pub(crate) const fn new(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag {
            name,
            value: Some(default),
            help,
        }
    }

    /// A flag without a value.
    pub(crate) const fn switch(name: &'static str, help: &'static str) -> Flag {
        Flag {
            name,
            value: None,
            help,
        }
    }
}

/// The values of the flags of one run.
pub(crate) struct Flags(BTreeMap<&'static str, String>);

impl Flags {
    pub(crate) fn parse(
        known: &[Flag],
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<Flags, Error> {
        let mut values: BTreeMap<_, _> = known
            .iter()
            .map(|flag| (flag.name, flag.value.unwrap_or_default().to_owned()))
            .collect();
        while let Some(argument) = arguments.next() {
            let flag = known
                .iter()
                .find(|flag| flag.name == argument)
                .ok_or_else(|| format!("what is {argument:?}?"))?;
            let value = match flag.value {
                Some(_) => arguments
                    .next()
                    .ok_or_else(|| format!("{argument} wants a value"))?,
                None => "yes".to_owned(),
            };
            values.insert(flag.name, value);
        }
        Ok(Flags(values))
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.is_set(name).then(|| self.text(name).into())
    }

    /// The parts of a command that this flag names, with commas between; all if it names none.
    pub(crate) fn parts<'a>(
        &'a self,
        name: &str,
        known: &[&'a str],
    ) -> Result<Vec<&'a str>, Error> {
        let named: Vec<_> = self
            .text(name)
            .split(',')
            .filter(|name| !name.is_empty())
            .collect();
        match named.iter().find(|name| !known.contains(name)) {
            Some(unknown) => Err(format!(
                "no part is called {unknown:?}: there are {}",
                known.join(", ")
            )
            .into()),
            None if named.is_empty() => Ok(known.to_vec()),
            None => Ok(named),
        }
    }

    /// A count, at least one.
    pub(crate) fn count(&self, name: &str) -> Result<usize, Error> {
        let count = self
            .text(name)
            .replace('_', "")
            .parse()
            .ok()
            .filter(|&count| count > 0);
        Ok(count.ok_or_else(|| {
            format!(
                "{name} wants a number above zero, not {:?}",
                self.text(name)
            )
        })?)
    }

    pub(crate) fn seconds(&self, name: &str) -> Result<Duration, Error> {
        let seconds = self
            .text(name)
            .parse()
            .ok()
            .filter(|&seconds: &f64| seconds > 0.0 && seconds < 1e6);
        Ok(seconds
            .map(Duration::from_secs_f64)
            .ok_or_else(|| format!("{name} wants seconds, not {:?}", self.text(name)))?)
    }
}

pub(crate) fn usage(commands: &[Command]) -> String {
    let mut text = "usage: cargo run --release -p hapax-bench -- COMMAND [FLAGS]\n".to_owned();
    for command in commands.iter().filter(|command| !command.help.is_empty()) {
        text += &format!("\n  {:18}  {}\n", command.name, command.help);
        for Flag { name, value, help } in command.flags {
            let default = value
                .filter(|value| !value.is_empty())
                .map(|value| format!(" [{value}]"))
                .unwrap_or_default();
            text += &format!("    {name:16}  {help}{default}\n");
        }
    }
    text
}
