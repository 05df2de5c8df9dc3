//! Parses values of the file. Each reader says what it expected if it gets something else, and
//! takes the bounds from the declaration.

use std::str::FromStr;
use std::time::Duration;

use toml::de::{DeInteger, DeValue};

use crate::config::settings::Kind;
use crate::config::{Network, text};

pub(crate) type Read<T> = Result<T, String>;

/// Text that `parse` accepts.
pub(crate) fn parsed<T>(parse: impl Fn(&str) -> Read<T>) -> impl Fn(&DeValue<'_>, Kind) -> Read<T> {
    move |value, _| match value {
        DeValue::String(text) => parse(text),
        other => Err(format!(
            "this must be text in quotes, and is {}",
            kind(other)
        )),
    }
}

/// A duration within the bounds of its kind.
pub(crate) fn duration(value: &DeValue<'_>, bounds: Kind) -> Read<Duration> {
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
    match bounds {
        Kind::Duration { max, over, .. } if duration > max && !over.is_empty() => {
            Err(over.to_owned())
        }
        Kind::Duration { zero: false, .. } if duration.is_zero() => {
            Err("this is zero, and nobody could ever be in time: write at least \"1ms\"".to_owned())
        }
        _ => Ok(duration),
    }
}

/// A number within the bounds of its kind; for bytes, also as text with a unit.
pub(crate) fn number(value: &DeValue<'_>, bounds: Kind) -> Read<u64> {
    let (min, max, is_size) = match bounds {
        Kind::Size { min, max } => (min, max, true),
        Kind::Count { min, max } => (min, max, false),
        _ => (0, u64::MAX, false),
    };
    let out_of_bounds = |number: &dyn std::fmt::Display| {
        format!("{number} is out of bounds: write a number from {min} to {max}")
    };
    let number = match value {
        DeValue::Integer(number) => whole(number).ok_or_else(|| {
            if number.as_str().starts_with('-') {
                format!("{number} is out of bounds: write a whole number, not below zero")
            } else {
                out_of_bounds(number)
            }
        }),
        DeValue::String(size) if is_size => text::size(size),
        other if is_size => Err(format!(
            "this must be a size, as in 65536 or \"64KiB\", and is {}",
            kind(other)
        )),
        other => Err(format!(
            "this must be a whole number, and is {}",
            kind(other)
        )),
    }?;
    match number {
        0 if min > 0 => Err(format!(
            "this is zero, and nothing could ever pass: write a number from {min} to {max}"
        )),
        _ if (min..=max).contains(&number) => Ok(number),
        _ => Err(out_of_bounds(&number)),
    }
}

fn whole(number: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A boolean.
pub(crate) fn switch(value: &DeValue<'_>, _: Kind) -> Read<bool> {
    match value {
        DeValue::Boolean(on) => Ok(*on),
        other => Err(format!(
            "this must be true or false without quotes, and is {}",
            kind(other)
        )),
    }
}

/// Addresses without ports, and ranges of addresses.
pub(crate) fn networks(value: &DeValue<'_>, _: Kind) -> Read<Vec<Network>> {
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

/// A text, or a nonempty list of texts without duplicates. `example` is one of them.
pub(crate) fn parse_texts<T: PartialEq>(
    example: &str,
    parse: impl Fn(&str) -> Read<T>,
    value: &DeValue<'_>,
) -> Read<Vec<T>> {
    let items = match value {
        DeValue::String(text) => return Ok(vec![parse(text)?]),
        DeValue::Array(list) if list.is_empty() => {
            return Err(format!(
                "this list is empty: write [\"{example}\"], for example"
            ));
        }
        DeValue::Array(items) => items,
        other => {
            return Err(format!(
                "this must be text or a list of texts, as in [\"{example}\"], and is {}",
                kind(other)
            ));
        }
    };
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

/// The kind of a value, for a message to a person who expected another one.
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
