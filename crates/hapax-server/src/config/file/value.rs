//! Values of the file, read into what the gateway wants. Each reader says what it wanted when it got something else.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeInteger, DeValue};

use crate::config::text;

/// No timeout is meant to be longer, and every runtime's arithmetic takes it.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

type Read<T> = Result<T, String>;

/// Text that says something to `parse`.
pub(super) fn parsed<T>(parse: impl Fn(&str) -> Read<T>) -> impl Fn(&DeValue<'_>) -> Read<T> {
    move |value| match value {
        DeValue::String(text) => parse(text),
        other => Err(format!("this must be text in quotes, and is {}", kind(other))),
    }
}

/// A duration of any length; [`Policy::validate`](hapax::Policy::validate) judges those.
pub(super) fn duration(value: &DeValue<'_>) -> Read<Duration> {
    match value {
        DeValue::Integer(number) => Err(format!("a duration needs its unit: write \"{number}s\" if you mean seconds")),
        DeValue::String(duration) => text::duration(duration),
        other => Err(format!("this must be a duration in quotes, as in \"10s\", and is {}", kind(other))),
    }
}

/// A duration up to a day.
pub(super) fn short(value: &DeValue<'_>) -> Read<Duration> {
    match duration(value)? {
        duration if duration > TIMEOUT_MAX => {
            Err("this is over a day, and nothing here may take that long: write at most \"24h\"".to_owned())
        }
        duration => Ok(duration),
    }
}

/// A duration up to a day, and not none.
pub(super) fn timeout(value: &DeValue<'_>) -> Read<Duration> {
    match short(value)? {
        Duration::ZERO => Err("this is zero, and nobody could ever be in time: write at least \"1ms\"".to_owned()),
        duration => Ok(duration),
    }
}

/// Bytes: a number, or text with a unit.
pub(super) fn size(value: &DeValue<'_>) -> Read<u64> {
    match value {
        DeValue::Integer(number) => whole(number),
        DeValue::String(size) => text::size(size),
        other => Err(format!("this must be a size, as in 65536 or \"64KiB\", and is {}", kind(other))),
    }
}

/// Bytes that are held in memory.
pub(super) fn memory_size(value: &DeValue<'_>) -> Read<usize> {
    usize::try_from(size(value)?).map_err(|_| "this is more than this machine can address".to_owned())
}

/// A number in these bounds.
pub(super) fn count<T: TryFrom<u64>>(min: u64, max: u64) -> impl Fn(&DeValue<'_>) -> Read<T> {
    bounded(number, min, max)
}

/// A size in these bounds.
pub(super) fn size_within<T: TryFrom<u64>>(min: u64, max: u64) -> impl Fn(&DeValue<'_>) -> Read<T> {
    bounded(size, min, max)
}

fn bounded<T: TryFrom<u64>>(read: fn(&DeValue<'_>) -> Read<u64>, min: u64, max: u64) -> impl Fn(&DeValue<'_>) -> Read<T> {
    move |value| {
        let number = read(value)?;
        if number == 0 && min > 0 {
            return Err(format!("this is zero, and nothing could ever pass: write a number from {min} to {max}"));
        }
        if !(min..=max).contains(&number) {
            return Err(format!("{number} is out of bounds: write a number from {min} to {max}"));
        }
        T::try_from(number).map_err(|_| format!("{number} is out of bounds: write a smaller number"))
    }
}

fn number(value: &DeValue<'_>) -> Read<u64> {
    match value {
        DeValue::Integer(number) => whole(number),
        other => Err(format!("this must be a whole number, and is {}", kind(other))),
    }
}

fn whole(number: &DeInteger<'_>) -> Read<u64> {
    u64::from_str_radix(number.as_str(), number.radix())
        .map_err(|_| format!("{number} is out of bounds: write a whole number, not below zero"))
}

/// Yes or no.
pub(super) fn switch(value: &DeValue<'_>) -> Read<bool> {
    match value {
        DeValue::Boolean(on) => Ok(*on),
        other => Err(format!("this must be true or false without quotes, and is {}", kind(other))),
    }
}

/// A file that is there. A relative path begins where the configuration is, not where the program was started.
pub(super) fn file(base: &Path) -> impl Fn(&DeValue<'_>) -> Read<PathBuf> {
    parsed(move |text| {
        let path = base.join(text);
        match path.is_file() {
            true => Ok(path),
            false => Err(format!("there is no file {}: relative paths begin where this configuration is", path.display())),
        }
    })
}

/// Addresses without ports.
pub(super) fn addresses(value: &DeValue<'_>) -> Read<Vec<IpAddr>> {
    let DeValue::Array(list) = value else {
        return Err(format!("this must be a list of addresses, as in [\"10.0.0.1\"], and is {}", kind(value)));
    };
    list.iter().map(|item| parsed(address)(item.get_ref())).collect()
}

fn address(text: &str) -> Read<IpAddr> {
    text.parse().map_err(|_| match text.contains('/') {
        true => format!("`{text}` is a range: name each address, as in [\"10.0.0.1\", \"10.0.0.2\"]"),
        false => format!("`{text}` is no address: write numbers without a port, as in \"10.0.0.1\" or \"fd00::1\""),
    })
}

/// What a value is, for a person who expected something else.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}
