//! Spans of time as people write and read them.

use std::time::Duration;

/// `90`, `90s`, `15m`, `1h`, `2d`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(60 * 60),
        "d" => Some(24 * 60 * 60),
        _ => None,
    };
    let seconds = unit.zip(digits.parse::<u64>().ok()).and_then(|(unit, number)| number.checked_mul(unit));
    seconds.map(Duration::from_secs).ok_or_else(|| format!("`{text}` is not a span of time: write 90s, 15m, 1h or 2d"))
}

/// The two largest units: `2m 5s`, `3h`, `1d 4h`.
pub(super) fn age(span: Duration) -> String {
    let seconds = span.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let Some(largest) = units.iter().position(|(unit, _)| seconds >= *unit) else { return "0s".to_owned() };
    let (unit, name) = units[largest];
    let whole = format!("{}{name}", seconds / unit);
    match units.get(largest + 1).map(|(smaller, name)| (seconds % unit / smaller, name)) {
        Some((rest @ 1.., name)) => format!("{whole} {rest}{name}"),
        _ => whole,
    }
}

/// The number and its noun.
pub(super) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_write_them() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("15m", 900), ("1h", 3_600), ("2d", 172_800)] {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "h", "1w", "-1h", "1.5h", "1h30m", "99999999999999999999d"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (125, "2m 5s"), (3_605, "1h"), (100_000, "1d 3h")] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
