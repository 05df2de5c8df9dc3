//! Formats durations and numbers for people.

use std::time::Duration;

/// A duration in its two largest units: `2m 5s`, `3h`, `1d 4h`.
pub(in crate::cli) fn age(span: Duration) -> String {
    let seconds = span.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let Some(largest) = units.iter().position(|(unit, _)| seconds >= *unit) else {
        return "0s".to_owned();
    };
    let (unit, name) = units[largest];
    let whole = format!("{}{name}", seconds / unit);
    match units
        .get(largest + 1)
        .map(|(smaller, name)| (seconds % unit / smaller, name))
    {
        Some((rest @ 1.., name)) => format!("{whole} {rest}{name}"),
        _ => whole,
    }
}

/// A number with its noun.
pub(in crate::cli) fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

/// Says that nothing was found, and what was searched.
pub(super) fn nothing_matched(flags: &str, looked_at: usize) -> String {
    match (flags, looked_at) {
        ("", 0) => "there are no keys here".to_owned(),
        ("", _) => format!("nothing matched among {}", count(looked_at, "key")),
        (flags, _) => format!("nothing matched {flags} among {}", count(looked_at, "key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (125, "2m 5s"),
            (3_605, "1h"),
            (100_000, "1d 3h"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
