//! Hides the passwords in the URL of a store.

use std::ops::Range;

/// The schemes of stores whose URL may have a password.
pub(super) const SCHEMES: [&str; 8] = [
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
];

/// Shown in place of a password.
const HIDDEN: &str = "***";

/// Whether this is the URL of a store that may have a password.
pub(super) fn may_be_in(text: &str) -> bool {
    text.split_once(':')
        .is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// Whether a URL has a password.
pub(super) fn is_in(url: &str) -> bool {
    !secrets(url).is_empty()
}

/// The text without its passwords.
pub(super) fn mask(text: &str) -> String {
    mask_with(text, |_| HIDDEN.to_owned())
}

/// The text, with each password replaced by the result of `hide`.
pub(super) fn mask_with(text: &str, hide: impl Fn(&str) -> String) -> String {
    let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
    for secret in secrets(text) {
        shown += &text[from..secret.start];
        shown += &hide(&text[secret.clone()]);
        from = secret.end;
    }
    shown + &text[from..]
}

/// The positions of passwords in a URL, in order and apart. A malformed password, with a slash, an
/// `@` or a `?` in it, is found too: it is better to hide too much than too little.
fn secrets(url: &str) -> Vec<Range<usize>> {
    let begins = url.find("://").map_or(0, |at| at + 3);
    let mut found: Vec<Range<usize>> = Vec::new();
    if let Some(at) = url.rfind('@').filter(|at| *at >= begins)
        && let Some(colon) = url[begins..at].find(':')
        && begins + colon + 1 < at
    {
        found.push(begins + colon + 1..at);
    }
    let mut from = url[begins..]
        .find('?')
        .map_or(url.len(), |query| begins + query + 1);
    for part in url[from..].split('&') {
        if let Some((name, value)) = part.split_once('=')
            && name.to_ascii_lowercase().contains("password")
            && !value.is_empty()
        {
            let start = from + name.len() + 1;
            let end = start + value.len();
            match found.last_mut().filter(|last| start <= last.end) {
                Some(last) => last.end = last.end.max(end),
                None => found.push(start..end),
            }
        }
        from += part.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("postgres://", "postgres://"),
            ("postgres://db/hapax", "postgres://db/hapax"),
            (
                "postgres://ada@db:5432/hapax",
                "postgres://ada@db:5432/hapax",
            ),
            (
                "postgres://ada:s3@db,db2:5433/hapax",
                "postgres://ada:***@db,db2:5433/hapax",
            ),
            (
                "postgresql://ada:s3/s3@s3@db/hapax?sslmode=require",
                "postgresql://ada:***@db/hapax?sslmode=require",
            ),
            (
                "postgres:///hapax?user=ada&password=s3&sslpassword=s3",
                "postgres:///hapax?user=ada&password=***&sslpassword=***",
            ),
            ("postgres://:s3@/", "postgres://:***@/"),
            (
                "postgres:///hapax?user=ada&password=s@3",
                "postgres:///hapax?user=ada&password=***",
            ),
            ("redis://cache:6379/2", "redis://cache:6379/2"),
            ("rediss://ada:s3@cache", "rediss://ada:***@cache"),
            ("redis://:s3?s3@cache", "redis://:***@cache"),
            (
                "redis+sentinel://ada:s3@a,b:27000/hapax?sentinel_password=s3&ca_file=x",
                "redis+sentinel://ada:***@a,b:27000/hapax?sentinel_password=***&ca_file=x",
            ),
            (
                "redis+cluster://ada:s3@a?sentinel_password=s@3&ca_file=x",
                "redis+cluster://ada:***&ca_file=x",
            ),
        ] {
            assert_eq!(mask(url), shown);
            assert_eq!(is_in(url), url != shown, "{url}");
        }
    }
}
