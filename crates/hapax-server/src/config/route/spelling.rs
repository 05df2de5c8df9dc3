//! The ways in which a service may read a path.
//!
//! Services decode percent signs, resolve `..`, fold slashes and drop parameters, each in its own
//! way. A guard that knows only one spelling can be bypassed with another. All functions here are
//! pure, accept any text and keep a leading slash.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Limit on the readings of one path. An honest path has one or two; a path with more is refused.
const READINGS_MAX: usize = 32;

type Reading = fn(&str) -> Cow<'_, str>;

/// What a service may do to a path, in the usual order: in each step it does one of these or
/// nothing. Doubled and trailing slashes and case are not here: a [loose
/// match](super::Pattern::matches_loosely) ignores them.
const STEPS: [&[Reading]; 6] = [
    // Tomcat and similar servers drop parameters before decoding, so that `..;x` is `..`; others do
    // so after.
    &[without_parameters],
    // WSGI servers and nginx also decode `%2F`.
    &[unreserved_decoded, decoded],
    &[without_parameters],
    &[with_forward_slashes],
    // By RFC 3986, `..` removes one empty segment; nginx folds slashes first.
    &[without_dots, without_slashes_and_dots],
    &[without_space_at_the_end],
];

/// Whether no service is known to read this path differently, except for case.
pub(super) fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let is_odd = |pair: &[u8; 2]| matches!(pair, [b'/', b'/' | b'.']);
    !bytes
        .iter()
        .any(|byte| matches!(byte, b'%' | b';' | b'\\' | ..=b' '))
        && !bytes.array_windows().any(is_odd)
        && (path.len() == 1 || !path.ends_with('/'))
        && !last_segment(path).contains('.')
}

/// The normal spelling: without parameters, dot segments, doubled and trailing slashes, with
/// percent-encoded unreserved characters decoded (RFC 3986 section 6.2.2) and the other encoded
/// ones in upper-case hexadecimal digits.
pub(super) fn normal(path: &str) -> String {
    let bare = without_parameters(path);
    let decoded = unreserved_decoded(&bare);
    // Decoding produces no `;`, but may produce dots.
    let path = without_dots(&decoded);
    let segments: Vec<&str> = segments(&path)
        .filter(|segment| !segment.is_empty())
        .collect();
    format!("/{}", segments.join("/"))
}

/// Every reading of a path, including itself; `None` if there are too many.
pub(super) fn readings(path: &str) -> Option<Vec<String>> {
    let mut all = vec![path.to_owned()];
    for step in STEPS {
        for index in 0..all.len() {
            for reading in step {
                let other = reading(&all[index]).into_owned();
                if !all.contains(&other) {
                    all.push(other);
                }
            }
            if all.len() > READINGS_MAX {
                return None;
            }
        }
    }
    Some(all)
}

/// A path without the extension of its last segment, by its first and by its last dot: Rails
/// answers `/orders.json` as `/orders`.
pub(super) fn without_extension(path: &str) -> impl Iterator<Item = &str> {
    // Rails drops a trailing slash first.
    let path = path.trim_end_matches('/');
    let last = last_segment(path);
    let start = path.len() - last.len();
    let cuts = [last.find('.'), last.rfind('.')];
    cuts.into_iter()
        .flatten()
        .filter(|&at| at > 0)
        .map(move |at| &path[..start + at])
}

fn last_segment(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn segments(path: &str) -> std::str::Split<'_, char> {
    path.strip_prefix('/').unwrap_or(path).split('/')
}

fn without_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return path.into();
    }
    let bare: Vec<&str> = path
        .split('/')
        .map(|segment| segment.split(';').next().unwrap_or_default())
        .collect();
    bare.join("/").into()
}

fn unreserved_decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return path.into();
    }
    let mut text = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        rest = after;
        match encoded(after.as_bytes()) {
            Some(byte)
                if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') =>
            {
                text.push(char::from(byte));
            }
            Some(byte) => text.push_str(&format!("%{byte:02X}")),
            // A percent sign that encodes nothing is kept, and encoded: it must not form an
            // encoding with what is decoded after it.
            None => {
                text.push_str("%25");
                continue;
            }
        }
        rest = &after[2..];
    }
    text.push_str(rest);
    text.into()
}

/// Everything decoded, once. Invalid UTF-8 becomes a replacement character, which no pattern
/// contains.
fn decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return path.into();
    }
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    decoded.into_owned().into()
}

/// The byte that the first two hexadecimal digits encode.
fn encoded(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| text.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

/// IIS and services on Windows read `\` as `/`.
fn with_forward_slashes(path: &str) -> Cow<'_, str> {
    if path.contains('\\') {
        path.replace('\\', "/").into()
    } else {
        path.into()
    }
}

/// Without `.` and `..`, as RFC 3986 section 5.2.4 removes them.
fn without_dots(path: &str) -> Cow<'_, str> {
    if !path.contains("/.") && !path.starts_with('.') {
        return path.into();
    }
    let (mut kept, mut ends_in_slash) = (Vec::new(), false);
    for segment in segments(path) {
        ends_in_slash = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let slash = if ends_in_slash && !kept.is_empty() {
        "/"
    } else {
        ""
    };
    format!("/{}{slash}", kept.join("/")).into()
}

fn without_slashes_and_dots(path: &str) -> Cow<'_, str> {
    if !path.contains("//") {
        return without_dots(path);
    }
    let segments: Vec<&str> = segments(path)
        .filter(|segment| !segment.is_empty())
        .collect();
    without_dots(&format!("/{}", segments.join("/")))
        .into_owned()
        .into()
}

/// In many languages, `$` in a regular expression also matches before a final line end; Windows
/// drops spaces and dots at the end.
fn without_space_at_the_end(path: &str) -> Cow<'_, str> {
    let is_space = |char: char| char <= ' ' || char == '.';
    match path.trim_end_matches(is_space) {
        trimmed if trimmed.len() == path.len() || trimmed.ends_with('/') => path.into(),
        trimmed => trimmed.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_spelling() {
        for (path, expected) in [
            ("/", "/"),
            ("", "/"),
            ("//", "/"),
            ("/v1/orders", "/v1/orders"),
            ("/v1/orders/", "/v1/orders"),
            ("/v1//orders", "/v1/orders"),
            ("//v1/orders", "/v1/orders"),
            ("/v1/./orders", "/v1/orders"),
            ("/v1/x/../orders", "/v1/orders"),
            ("/../../v1/orders/.", "/v1/orders"),
            ("/v1/%6Frders", "/v1/orders"),
            ("/v1/x/%2e%2E/orders", "/v1/orders"),
            ("/v1/orders;x=1", "/v1/orders"),
            ("/v1;a/x/..;b/orders;c;d", "/v1/orders"),
            ("/v1/orders/a%2fb", "/v1/orders/a%2Fb"),
            ("/v1/orders/a%2Fb", "/v1/orders/a%2Fb"),
            ("/v1/%zz/%4", "/v1/%25zz/%254"),
            ("/v1/%a%41", "/v1/%25aA"),
            ("/v1/100%", "/v1/100%25"),
            ("/v1/%00", "/v1/%00"),
            ("/v1/..x/.y/...", "/v1/..x/.y/..."),
            ("/V1/Orders", "/V1/Orders"),
            ("*", "/*"),
        ] {
            assert_eq!(normal(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_has_the_readings_that_services_give_it() {
        for (path, reading) in [
            ("/v1%2Forders", "/v1/orders"),
            ("/v1\\orders", "/v1/orders"),
            ("/v1%5Corders", "/v1/orders"),
            ("/v1/orders%3Bx", "/v1/orders"),
            ("/v1/x/..;y/orders", "/v1/orders"),
            ("/v1/x/..%3by/orders", "/v1/orders"),
            ("/v1/x%2F..%2Forders", "/v1/orders"),
            ("/v1/x//../orders", "/v1/x/orders"),
            ("/v1/x//../orders", "/v1/orders"),
            ("/v1/orders%0a", "/v1/orders"),
            ("/v1/orders%20", "/v1/orders"),
            ("/v1/orders.", "/v1/orders"),
            ("/v1/orders%3Acancel", "/v1/orders:cancel"),
        ] {
            let readings = readings(path).unwrap();
            assert!(
                readings.iter().any(|found| found == reading),
                "{path} {reading} {readings:?}"
            );
            assert_eq!(readings[0], path);
        }
        assert_eq!(readings("/v1/orders").unwrap(), ["/v1/orders"]);
        assert_eq!(
            without_extension("/v1.0/orders.tar.gz").collect::<Vec<_>>(),
            ["/v1.0/orders", "/v1.0/orders.tar"]
        );
        assert_eq!(without_extension("/v1.0/.hidden").count(), 0);
    }

    /// Paths made of everything that has a meaning in some service, and of some bytes that have
    /// none.
    fn random_paths() -> impl Iterator<Item = String> {
        let words = [
            "/", "//", ".", "..", "%2e", "%2F", "%5c", "\\", ";", "%3B", "a", "B", "%41", "%",
            "%0", "%00", "%ff", "%C3%A9", "é", "\0", "\n", " ", "*", ".json", "orders", "%25",
        ];
        let mut state = 0x6861_7061_7821_u64;
        let mut next = move || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            usize::try_from(state >> 33).unwrap()
        };
        (0..20_000).map(move |_| {
            (0..next() % 12)
                .map(|_| words[next() % words.len()])
                .collect()
        })
    }

    #[test]
    fn spelling_normally_twice_changes_nothing_and_nothing_panics() {
        let mut refused = 0;
        for path in random_paths() {
            let once = normal(&path);
            assert_eq!(normal(&once), once, "{path:?}");
            assert!(once.starts_with('/'), "{path:?}");
            if is_plain(&path) && path.starts_with('/') {
                assert_eq!(once, path);
                assert_eq!(readings(&path).unwrap(), [&*path]);
            }
            let _ = without_extension(&path).count();
            match readings(&path) {
                Some(readings) => assert!((1..=READINGS_MAX).contains(&readings.len())),
                None => refused += 1,
            }
        }
        assert!(refused < 2_000, "{refused}");
    }
}
