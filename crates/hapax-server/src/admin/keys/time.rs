//! Moments as people and JSON write them: ISO 8601, UTC.

use std::fmt;
use std::str::FromStr;

use hapax::core::time::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

const DAY_MICROS: u64 = 86_400_000_000;

/// A moment. Written as `2026-11-15T14:32:24.000123Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime, pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z$")]
pub(crate) struct Time(pub(crate) Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        let (year, month, day) = date(micros / DAY_MICROS);
        let of_day = micros % DAY_MICROS;
        let (seconds, micros) = (of_day / 1_000_000, of_day % 1_000_000);
        let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
        )
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        parse(text)
            .ok_or_else(|| format!("`{text}` is not a time such as 2026-11-15T14:32:24.000000Z"))
    }
}

/// What `Display` writes, and nothing else: it is only ever read back from our own JSON.
fn parse(text: &str) -> Option<Time> {
    let part = |from: usize, len: usize| text.get(from..from + len)?.parse::<u64>().ok();
    let (year, month, day) = (part(0, 4)?, part(5, 2)?, part(8, 2)?);
    let (hour, minute, second, micros) = (part(11, 2)?, part(14, 2)?, part(17, 2)?, part(20, 6)?);
    let seconds = (hour * 60 + minute) * 60 + second;
    let time = Time(Timestamp::from_micros(
        days(year, month, day)? * DAY_MICROS + seconds * 1_000_000 + micros,
    ));
    (time.to_string() == text).then_some(time)
}

/// The date so many days after 1970-01-01. Years are counted from March, so that the day that leap
/// years have comes last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let is_next_year = month >= 10;
    let month = if is_next_year { month - 9 } else { month + 3 };
    (era * 400 + year + u64::from(is_next_year), month, day)
}

fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let of_year = (153 * month + 2) / 5 + day - 1;
    let of_era = (year % 400) * 365 + (year % 400) / 4 - (year % 400) / 100 + of_year;
    (year / 400 * 146_097 + of_era).checked_sub(719_468)
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_and_read_back() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_794_753_144_000_123, "2026-11-15T14:32:24.000123Z"),
            (4_107_542_399_999_999, "2100-02-28T23:59:59.999999Z"),
        ] {
            let time = Time(Timestamp::from_micros(micros));
            assert_eq!(time.to_string(), text);
            assert_eq!(text.parse(), Ok(time));
        }
        for day in 0..100_000 {
            let time = Time(Timestamp::from_micros(day * DAY_MICROS));
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        for text in [
            "",
            "2026-11-15",
            "2026-02-30T00:00:00.000000Z",
            "1969-12-31T00:00:00.000000Z",
            "2026-11-15T25:00:00.000000Z",
        ] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }
}
