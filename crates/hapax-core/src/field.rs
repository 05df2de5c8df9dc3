//! The two structured-field items (RFC 9651) this contract needs: a string and a date.
//!
//! Both are read strictly: parameters, lists and anything after the item are refused. A key with a
//! parameter could not be compared.

use crate::time::Timestamp;

/// Reads `"text"`, with `\"` and `\\` as the only escapes. `None` if it is anything else.
pub fn string(value: &[u8]) -> Option<String> {
    let inner = trim(value).strip_prefix(b"\"")?;
    let mut text = String::with_capacity(inner.len());
    let mut bytes = inner.iter();
    loop {
        match *bytes.next()? {
            b'"' => return bytes.as_slice().is_empty().then_some(text),
            b'\\' => match *bytes.next()? {
                escaped @ (b'"' | b'\\') => text.push(char::from(escaped)),
                _ => return None,
            },
            plain @ 0x20..=0x7e => text.push(char::from(plain)),
            _ => return None,
        }
    }
}

/// Writes `text` as a structured-field string. The caller ensures that it is printable ASCII.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

/// Reads `@1659578233`: whole seconds since the epoch. Dates before the epoch read as the epoch.
pub fn date(value: &[u8]) -> Option<Timestamp> {
    let digits = std::str::from_utf8(trim(value).strip_prefix(b"@")?).ok()?;
    let (past, digits) = digits
        .strip_prefix('-')
        .map_or((false, digits), |rest| (true, rest));
    // RFC 9651 section 3.3.1: at most fifteen digits, and `parse` alone would take a leading plus.
    if digits.is_empty() || digits.len() > 15 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = if past { 0 } else { digits.parse().ok()? };
    Some(Timestamp::from_micros(seconds.saturating_mul(1_000_000)))
}

/// Whether `name` is a token (RFC 9110 section 5.6.2), as field names and methods are.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Removes optional white space around a field value (RFC 9110 section 5.6.3).
pub(crate) fn trim(value: &[u8]) -> &[u8] {
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let start = value.iter().position(|b| !blank(b)).unwrap_or(value.len());
    let end = value
        .iter()
        .rposition(|b| !blank(b))
        .map_or(start, |last| last + 1);
    &value[start..end]
}

/// The field name in its usual spelling: `idempotency-key` becomes `Idempotency-Key`.
pub fn in_capitals(name: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|first| first.to_ascii_uppercase())
            .into_iter()
            .chain(letters)
            .collect::<String>()
    };
    name.split('-').map(capital).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_whole_or_not_at_all() {
        assert_eq!(string(br#""abc""#).as_deref(), Some("abc"));
        assert_eq!(
            string(br#"  "a \"b\" \\c" "#).as_deref(),
            Some(r#"a "b" \c"#)
        );
        assert_eq!(string(br#""""#).as_deref(), Some(""));
        for bad in [
            r"abc",
            r#""abc"#,
            r#""a"b"#,
            r#""a";p=1"#,
            r#""a", "b""#,
            r#""\n""#,
            "\"\u{e9}\"",
            "\"\t\"",
            "",
        ] {
            assert_eq!(string(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn quoting_is_undone_by_reading() {
        for text in ["plain", r#"with "quotes" and \slashes\"#, " "] {
            assert_eq!(string(quote(text).as_bytes()).as_deref(), Some(text));
        }
    }

    #[test]
    fn dates_are_whole_seconds() {
        assert_eq!(
            date(b"@1659578233"),
            Some(Timestamp::from_micros(1_659_578_233_000_000))
        );
        assert_eq!(date(b" @0 "), Some(Timestamp::ZERO));
        assert_eq!(date(b"@-5"), Some(Timestamp::ZERO));
        for bad in [
            "1659578233",
            "@",
            "@1.5",
            "@+1",
            "@1;x",
            "@ 1",
            "@1234567890123456",
            "Tue, 01 Jan 2030 00:00:00 GMT",
        ] {
            assert_eq!(date(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
