//! Timestamps as people and JSON write them: ISO 8601, UTC.

use std::fmt;
use std::str::FromStr;

use hapax::core::time::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime};
use utoipa::ToSchema;

/// A moment. Written as `2026-11-15T14:32:24.000123Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime, pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z$")]
pub(crate) struct Time(pub(crate) Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = i128::from(self.0.as_micros()) * 1_000;
        // No stored time is later than the year 9999, so this fallback is not reached in practice.
        let time = OffsetDateTime::from_unix_timestamp_nanos(nanos)
            .unwrap_or(PrimitiveDateTime::MAX.assume_utc());
        let (hour, minute, second, micros) = time.to_hms_micro();
        write!(
            f,
            "{}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z",
            time.date()
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

/// Parses exactly what `Display` writes: it only reads JSON that Hapax wrote.
fn parse(text: &str) -> Option<Time> {
    let part = |from: usize, len: usize| text.get(from..from + len)?.parse::<u32>().ok();
    let small = |from: usize| u8::try_from(part(from, 2)?).ok();
    let month = Month::try_from(small(5)?).ok()?;
    let date = Date::from_calendar_date(part(0, 4)?.cast_signed(), month, small(8)?).ok()?;
    let time = date.with_hms_micro(small(11)?, small(14)?, small(17)?, part(20, 6)?);
    let micros = time.ok()?.assume_utc().unix_timestamp_nanos() / 1_000;
    let time = Time(Timestamp::from_micros(u64::try_from(micros).ok()?));
    (time.to_string() == text).then_some(time)
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
        let never = Time(Timestamp::from_micros(u64::MAX));
        assert_eq!(never.to_string(), "9999-12-31T23:59:59.999999Z");
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
