//! Principals as people write them: `bob`, where a record has `header:x-user bob` or `jwt:sub
//! https://id.example.com bob`.

use std::borrow::Cow;

/// Whether `typed` means the stored principal: by its whole name, by one of its parts, or by the
/// name that a proxy, a token or a service gave the caller.
pub(crate) fn is_meant(stored: &str, typed: &str) -> bool {
    let is_anonymous = || typed == "anonymous" && stored == "(anonymous)";
    let is_part =
        |part: &str| part == typed || name(part) == Some(typed) || begins_digest(part, typed);
    stored == typed || is_anonymous() || parts(stored).iter().any(|part| is_part(part))
}

/// Whether `typed` is the beginning of a digest, as a table or the access log shows it.
fn begins_digest(part: &str, typed: &str) -> bool {
    let digits = typed.rsplit([':', ' ']).next().unwrap_or_default();
    digits.len() >= DIGEST_DIGITS
        && digest(part).len() < part.len()
        && (part.starts_with(typed) || digits_of(part).starts_with(typed))
}

/// The digits of a digest, without its prefix.
fn digits_of(part: &str) -> &str {
    part.rsplit([':', ' ']).next().unwrap_or_default()
}

/// How many digits of a digest are shown; enough to distinguish callers.
const DIGEST_DIGITS: usize = 8;

/// A short form of a principal, for tables: the name that people know, or the beginning of a
/// digest.
pub(crate) fn short(stored: &str) -> String {
    let parts = parts(stored);
    let shown: Vec<&str> = parts
        .iter()
        .map(|part| name(part).unwrap_or_else(|| digest(part)))
        .collect();
    shown.join(" & ")
}

/// The parts of a principal that several sources identify; one part for any other. See
/// `gateway/principal/list.rs`.
fn parts(stored: &str) -> Vec<Cow<'_, str>> {
    let Some(list) = stored.strip_prefix("list:") else {
        return vec![Cow::Borrowed(stored)];
    };
    // A single `&` separates parts; a double one is an escaped `&`.
    let marked = list.replace("&&", "\u{0}");
    marked
        .split(" & ")
        .map(|part| Cow::Owned(part.replace('\u{0}', "&")))
        .collect()
}

/// The name from a trusted source, without the prefix that says which source.
fn name(part: &str) -> Option<&str> {
    let (kind, rest) = part.split_once(':')?;
    let behind = |spaces: usize| rest.splitn(spaces + 1, ' ').nth(spaces);
    match kind {
        "header" => behind(1),
        "jwt" | "forward-auth" => behind(2),
        _ => None,
    }
}

/// A part with its digest shortened.
fn digest(part: &str) -> &str {
    let begin = match part.split_once(':') {
        Some(("digest", _)) => "digest:".len(),
        Some(("cookie", rest)) => {
            part.len() - rest.split_once(' ').map_or(0, |(_, digest)| digest.len())
        }
        _ => return part,
    };
    part.get(..begin + DIGEST_DIGITS).unwrap_or(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "digest:0123456789abcdef0123456789abcdef";

    #[test]
    fn a_principal_is_meant_by_the_name_that_people_know() {
        let list =
            format!("list:{DIGEST} & header:stripe-account acct_1 && co & jwt:sub https://id bob");
        for (stored, typed) in [
            ("header:x-user bob", "bob"),
            ("header:x-user Bob the Builder", "Bob the Builder"),
            ("jwt:sub https://id.example.com bob", "bob"),
            (
                "forward-auth:https://auth.internal/verify x-auth-user bob",
                "bob",
            ),
            ("header:x-user bob", "header:x-user bob"),
            ("bob", "bob"),
            ("(anonymous)", "(anonymous)"),
            ("(anonymous)", "anonymous"),
            (DIGEST, "01234567"),
            (DIGEST, "digest:0123456789"),
            ("cookie:sid 0123456789abcdef", "0123456789"),
            (DIGEST, DIGEST),
            (&list, "bob"),
            (&list, "acct_1 & co"),
            (&list, DIGEST),
            (&list, &list),
        ] {
            assert!(is_meant(stored, typed), "{stored} {typed}");
        }
        for (stored, typed) in [
            ("header:x-user bobby", "bob"),
            ("header:x-user the bob", "bob"),
            ("jwt:bob https://id eve", "bob"),
            ("jwt:sub bob eve", "bob"),
            ("forward-auth:http://bob x-auth-user eve", "bob"),
            ("cookie:bob 0123", "bob"),
            (DIGEST, "0123456"),
            (DIGEST, "12345678"),
            ("header:x-user 0123456789abcdef", "01234567"),
            ("list:no header:bob & header:x eve", "bob"),
            ("bob", "Bob"),
        ] {
            assert!(!is_meant(stored, typed), "{stored} {typed}");
        }
    }

    #[test]
    fn tables_show_names_and_the_beginning_of_digests() {
        for (stored, shown) in [
            ("header:x-user bob", "bob"),
            (DIGEST, "digest:01234567"),
            (
                "cookie:session 0123456789abcdef0123456789abcdef",
                "cookie:session 01234567",
            ),
            (
                "list:no digest:authorization & header:stripe-account a",
                "no digest:authorization & a",
            ),
            ("bob", "bob"),
            ("(anonymous)", "(anonymous)"),
        ] {
            assert_eq!(short(stored), shown);
        }
    }
}
