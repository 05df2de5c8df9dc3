//! `cookie`: requests with the same value in one cookie come from the same caller.
//!
//! Cookies are parsed by RFC 6265: pairs of name and value separated by semicolons, in one field
//! line or, over HTTP/2, in several. A value is compared byte for byte, including quotes. A cookie
//! that is empty or occurs twice identifies no caller: the gateway cannot know which of two the
//! service reads.

use hapax::Principal;
use hapax::core::Secret;
use http::HeaderMap;
use http::header::COOKIE;

use crate::config::CookieName;

/// Identifies a caller by a digest of a cookie's value.
pub(super) struct Cookie {
    name: CookieName,
    secret: Secret,
}

impl Cookie {
    pub(super) fn new(name: &CookieName, secret: Secret) -> Cookie {
        Cookie {
            name: name.clone(),
            secret,
        }
    }

    /// The caller; `None` if the request has no such cookie. `Err` is the reason why the cookie
    /// cannot be used.
    pub(super) fn identify(&self, headers: &HeaderMap) -> Result<Option<Principal>, &'static str> {
        let mut values = values(headers, &self.name);
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err("repeated"),
            (Some([]), None) => Err("unreadable"),
            (Some(value), None) => Ok(Some(self.principal(value))),
        }
    }

    /// The label contains a space, which no header name does, so no credential has the same digest.
    /// The principal's name says that it comes from a cookie.
    fn principal(&self, value: &[u8]) -> Principal {
        let name = &self.name;
        let digest = Principal::digest(&self.secret, &format!("cookie {name}"), value).to_string();
        Principal::named(format!(
            "cookie:{name} {}",
            digest.trim_start_matches("digest:")
        ))
    }
}

/// The values of a cookie in the request.
pub(super) fn values<'a>(
    headers: &'a HeaderMap,
    name: &CookieName,
) -> impl Iterator<Item = &'a [u8]> {
    pairs(headers)
        .filter(move |(given, _)| *given == name.as_str().as_bytes())
        .map(|(_, value)| value)
}

/// The cookies of a request. A cookie without `=` has a name and an empty value, as some services
/// read it.
pub(super) fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = headers.get_all(COOKIE).iter();
    let crumbs = lines
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'))
        .map(<[u8]>::trim_ascii);
    crumbs.filter(|crumb| !crumb.is_empty()).map(|crumb| {
        match crumb.iter().position(|byte| *byte == b'=') {
            Some(at) => (
                crumb[..at].trim_ascii_end(),
                crumb[at + 1..].trim_ascii_start(),
            ),
            None => (crumb, &b""[..]),
        }
    })
}

/// The name of the cookie that looks like a session cookie, if there is exactly one.
pub(super) fn session(headers: &HeaderMap) -> Option<&str> {
    let mut names = pairs(headers)
        .map(|(name, _)| name)
        .filter(|name| is_session(name));
    let name = names.next().filter(|_| names.next().is_none())?;
    std::str::from_utf8(name).ok()
}

/// Whether this looks like the name of a session cookie in common frameworks: `PHPSESSID`,
/// `connect.sid`, `laravel_session`, `__Secure-next-auth.session-token`.
fn is_session(name: &[u8]) -> bool {
    let name = if CookieName::is_one(name) {
        name.to_ascii_lowercase()
    } else {
        return false;
    };
    let has = |word: &str| name.windows(word.len()).any(|part| part == word.as_bytes());
    (has("sess") || has("auth") || has("token") || has("jwt") || name.ends_with(b"sid"))
        && !has("csrf")
        && !has("xsrf")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret::from_bytes([7; 32]);

    fn headers(lines: &[&str]) -> HeaderMap {
        lines
            .iter()
            .map(|line| (COOKIE, line.parse().unwrap()))
            .collect()
    }

    fn identify(lines: &[&str]) -> Result<Option<String>, &'static str> {
        let cookie = Cookie::new(&"sid".parse().unwrap(), SECRET);
        cookie
            .identify(&headers(lines))
            .map(|principal| principal.map(|principal| principal.to_string()))
    }

    #[test]
    fn one_value_is_one_principal_wherever_it_stands() {
        let ada = identify(&["sid=ada"]).unwrap().unwrap();
        assert!(
            ada.starts_with("cookie:sid ") && !ada.contains("ada"),
            "{ada}"
        );
        for lines in [
            &["a=1; sid=ada; b=2"][..],
            &["a=1;sid=ada"],
            &["a=1", "sid=ada"],
            &["sid = ada ;"],
            &["; sid=ada;;"],
        ] {
            assert_eq!(identify(lines).unwrap().as_ref(), Some(&ada), "{lines:?}");
        }
        for lines in ["sid=Ada", "sid=\"ada\"", "sid=ada=", "sid=ada,b"] {
            let other = identify(&[lines]).unwrap();
            assert!(other.is_some() && other.as_ref() != Some(&ada), "{lines}");
        }
    }

    #[test]
    fn a_cookie_that_is_absent_is_nobodys_and_two_or_an_empty_one_are_refused() {
        for lines in [
            &[][..],
            &["a=1"],
            &["SID=ada"],
            &["asid=ada"],
            &["a=sid=ada"],
            &[""],
        ] {
            assert_eq!(identify(lines), Ok(None), "{lines:?}");
        }
        for (lines, why) in [
            (&["sid="][..], "unreadable"),
            (&["sid"], "unreadable"),
            (&["sid=ada; sid=ada"], "repeated"),
            (&["sid=ada", "a=1; sid=eve"], "repeated"),
            (&["sid=ada; sid"], "repeated"),
        ] {
            assert_eq!(identify(lines), Err(why), "{lines:?}");
        }
    }

    #[test]
    fn no_credential_has_the_principal_of_a_cookie() {
        let cookies = ["sid", "authorization", "cookie"].map(|name| {
            let cookie = Cookie::new(&name.parse().unwrap(), SECRET);
            cookie
                .identify(&headers(&[&format!("{name}=ada")]))
                .unwrap()
                .unwrap()
        });
        for (index, one) in cookies.iter().enumerate() {
            assert!(cookies[..index].iter().all(|other| other != one), "{one}");
            for field in ["sid", "authorization", "cookie", "cookie:sid", "cookie sid"] {
                assert_ne!(*one, Principal::digest(&SECRET, field, b"ada"), "{field}");
            }
        }
    }

    #[test]
    fn a_session_is_told_by_its_name_if_only_one_cookie_has_such_a_name() {
        for (line, name) in [
            ("PHPSESSID=1; _ga=2", Some("PHPSESSID")),
            ("csrftoken=1; sessionid=2", Some("sessionid")),
            ("connect.sid=s%3A1", Some("connect.sid")),
            (
                "__Secure-next-auth.session-token=1; __Host-next-auth.csrf-token=2",
                Some("__Secure-next-auth.session-token"),
            ),
            ("sessionid=1; auth_token=2", None),
            ("_ga=1", None),
            ("a session=1", None),
        ] {
            assert_eq!(session(&headers(&[line])), name, "{line}");
        }
    }
}
