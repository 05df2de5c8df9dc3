//! Values of the file, read into what the gateway wants. Each reader says what it wanted when it
//! got something else, and knows the bounds from the table.

use std::str::FromStr;
use std::time::Duration;

use toml::de::{DeInteger, DeValue};

use super::names::Kind;
use crate::config::{Network, text};

pub(super) type Read<T> = Result<T, String>;

/// Text that says something to `parse`.
pub(super) fn parsed<T>(parse: impl Fn(&str) -> Read<T>) -> impl Fn(&DeValue<'_>, Kind) -> Read<T> {
    move |value, _| match value {
        DeValue::String(text) => parse(text),
        other => Err(format!(
            "this must be text in quotes, and is {}",
            kind(other)
        )),
    }
}

/// A duration within the bounds of its kind.
pub(super) fn duration(value: &DeValue<'_>, bounds: Kind) -> Read<Duration> {
    let duration = match value {
        DeValue::Integer(number) => {
            return Err(format!(
                "a duration needs its unit: write \"{number}s\" if you mean seconds"
            ));
        }
        DeValue::String(duration) => text::duration(duration)?,
        other => {
            return Err(format!(
                "this must be a duration in quotes, as in \"10s\", and is {}",
                kind(other)
            ));
        }
    };
    let Kind::Duration { zero, max } = bounds else {
        return Ok(duration);
    };
    if duration > max && max <= A_DAY {
        return Err(
            "this is over a day, and nothing here may take that long: write at most \"24h\""
                .to_owned(),
        );
    }
    if duration.is_zero() && !zero {
        return Err(
            "this is zero, and nobody could ever be in time: write at least \"1ms\"".to_owned(),
        );
    }
    // Whatever is longer than a policy may be, the policy itself refuses by its name.
    Ok(duration)
}

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Bytes within the bounds of its kind: a number, or text with a unit.
pub(super) fn size<T: TryFrom<u64>>(value: &DeValue<'_>, bounds: Kind) -> Read<T> {
    let number = match value {
        DeValue::Integer(number) => whole(number, bounds),
        DeValue::String(size) => text::size(size),
        other => Err(format!(
            "this must be a size, as in 65536 or \"64KiB\", and is {}",
            kind(other)
        )),
    };
    bounded(number?, bounds)
}

/// A number within the bounds of its kind.
pub(super) fn count<T: TryFrom<u64>>(value: &DeValue<'_>, bounds: Kind) -> Read<T> {
    match value {
        DeValue::Integer(number) => bounded(whole(number, bounds)?, bounds),
        other => Err(format!(
            "this must be a whole number, and is {}",
            kind(other)
        )),
    }
}

fn bounded<T: TryFrom<u64>>(number: u64, bounds: Kind) -> Read<T> {
    let (min, max) = range(bounds);
    if number == 0 && min > 0 {
        return Err(format!(
            "this is zero, and nothing could ever pass: write a number from {min} to {max}"
        ));
    }
    if !(min..=max).contains(&number) {
        return Err(format!(
            "{number} is out of bounds: write a number from {min} to {max}"
        ));
    }
    T::try_from(number).map_err(|_| {
        format!("{number} is more than this machine can address: write a smaller number")
    })
}

fn range(bounds: Kind) -> (u64, u64) {
    match bounds {
        Kind::Size { min, max } | Kind::Count { min, max } => (min, max),
        _ => (0, u64::MAX),
    }
}

fn whole(number: &DeInteger<'_>, bounds: Kind) -> Read<u64> {
    u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| {
        if number.as_str().starts_with('-') {
            return format!("{number} is out of bounds: write a whole number, not below zero");
        }
        let (min, max) = range(bounds);
        format!("{number} is out of bounds: write a number from {min} to {max}")
    })
}

/// Yes or no.
pub(super) fn switch(value: &DeValue<'_>, _: Kind) -> Read<bool> {
    match value {
        DeValue::Boolean(on) => Ok(*on),
        other => Err(format!(
            "this must be true or false without quotes, and is {}",
            kind(other)
        )),
    }
}

/// Addresses without ports, and ranges of them.
pub(super) fn networks(value: &DeValue<'_>, _: Kind) -> Read<Vec<Network>> {
    let DeValue::Array(list) = value else {
        return Err(format!(
            "this must be a list of addresses, as in [\"10.0.0.1\"], and is {}",
            kind(value)
        ));
    };
    list.iter()
        .map(|item| parsed(Network::from_str)(item.get_ref(), Kind::Text))
        .collect()
}

/// A text, or a list of texts that is not empty and has none of them twice. `example` is one of
/// them.
pub(super) fn texts<T: PartialEq>(
    example: &'static str,
    parse: impl Fn(&str) -> Read<T>,
) -> impl Fn(&DeValue<'_>, Kind) -> Read<Vec<T>> {
    move |value, _| match value {
        DeValue::String(text) => Ok(vec![parse(text)?]),
        DeValue::Array(list) if list.is_empty() => Err(format!(
            "this list is empty: write [\"{example}\"], for example"
        )),
        DeValue::Array(items) => {
            let mut list = Vec::new();
            for item in items.iter() {
                let DeValue::String(text) = item.get_ref() else {
                    return Err(format!(
                        "in this list stand texts, as in [\"{example}\"], and there is {}",
                        kind(item.get_ref())
                    ));
                };
                let item = parse(text)?;
                if list.contains(&item) {
                    return Err(format!("`{text}` is there twice: leave one out"));
                }
                list.push(item);
            }
            Ok(list)
        }
        other => Err(format!(
            "this must be text or a list of texts, as in [\"{example}\"], and is {}",
            kind(other)
        )),
    }
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
