//! Principals as people write them: `bob`, where a record has `header:x-user bob` or `jwt:sub https://id.example.com bob`.

use std::borrow::Cow;

/// Whether a principal, as a record has it, is the one that somebody means: by its whole name, by one of its parts, or by the name that a proxy,
/// a token or a service gave the caller.
pub(crate) fn is_meant(stored: &str, typed: &str) -> bool {
    stored == typed || parts(stored).iter().any(|part| part == typed || name(part) == Some(typed))
}

/// A principal in a few characters, for tables: the name that people know, or the beginning of a digest.
pub(crate) fn short(stored: &str) -> String {
    let parts = parts(stored);
    let shown: Vec<&str> = parts.iter().map(|part| name(part).unwrap_or_else(|| digest(part))).collect();
    shown.join(" & ")
}

/// The parts of a principal that is known by several sources; one for any other. See `gateway/principal/list.rs`.
fn parts(stored: &str) -> Vec<Cow<'_, str>> {
    let Some(list) = stored.strip_prefix("list:") else { return vec![Cow::Borrowed(stored)] };
    // A single `&` separates, two are one.
    let marked = list.replace("&&", "\u{0}");
    marked.split(" & ").map(|part| Cow::Owned(part.replace('\u{0}', "&"))).collect()
}

/// The name that somebody vouches for, behind what says who does and where.
fn name(part: &str) -> Option<&str> {
    let (kind, rest) = part.split_once(':')?;
    let behind = |spaces: usize| rest.splitn(spaces + 1, ' ').nth(spaces);
    match kind {
        "header" => behind(1),
        "jwt" | "forward-auth" => behind(2),
        _ => None,
    }
}

/// So much of a digest as tells people apart.
fn digest(part: &str) -> &str {
    const DIGITS: usize = 8;
    let begin = match part.split_once(':') {
        Some(("digest", _)) => "digest:".len(),
        Some(("cookie", rest)) => part.len() - rest.split_once(' ').map_or(0, |(_, digest)| digest.len()),
        _ => return part,
    };
    part.get(..begin + DIGITS).unwrap_or(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "digest:0123456789abcdef0123456789abcdef";

    #[test]
    fn a_principal_is_meant_by_the_name_that_people_know() {
        let list = format!("list:{DIGEST} & header:stripe-account acct_1 && co & jwt:sub https://id bob");
        for (stored, typed) in [
            ("header:x-user bob", "bob"),
            ("header:x-user Bob the Builder", "Bob the Builder"),
            ("jwt:sub https://id.example.com bob", "bob"),
            ("forward-auth:https://auth.internal/verify x-auth-user bob", "bob"),
            ("header:x-user bob", "header:x-user bob"),
            ("bob", "bob"),
            ("(anonymous)", "(anonymous)"),
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
            ("list:no header:bob & header:x eve", "bob"),
            (DIGEST, "0123456789abcdef0123456789abcdef"),
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
            ("cookie:session 0123456789abcdef0123456789abcdef", "cookie:session 01234567"),
            ("list:no digest:authorization & header:stripe-account a", "no digest:authorization & a"),
            ("bob", "bob"),
            ("(anonymous)", "(anonymous)"),
        ] {
            assert_eq!(short(stored), shown);
        }
    }
}
