//! URLs of services that the gateway itself sends requests to.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;

use crate::credentials::credential_parameter;

/// Shown in place of a hidden part of a URL.
const HIDDEN: &str = "***";

/// The URL of a service that the gateway sends requests to. It is shown without its query, which
/// may contain a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceUrl(Uri);

impl ServiceUrl {
    /// The whole URL, for sending requests; it must never be shown.
    pub(crate) fn expose(&self) -> &Uri {
        &self.0
    }

    /// Scheme, host, port and path in a normal form, without a user name, a password or a query.
    pub fn place(&self) -> String {
        let scheme = self.0.scheme_str().unwrap_or_default();
        let host = self.0.host().unwrap_or_default().to_ascii_lowercase();
        let usual = if scheme == "https" { 443 } else { 80 };
        let port = self
            .0
            .port_u16()
            .filter(|port| *port != usual)
            .map_or(String::new(), |port| format!(":{port}"));
        format!("{scheme}://{host}{port}{}", self.0.path())
    }

    /// The query without parameters that are credentials. The rest may select a tenant, so it
    /// counts as a part of the service's identity.
    pub(crate) fn parameters(&self) -> String {
        let query = self.0.query().unwrap_or_default();
        query
            .split('&')
            .filter(|parameter| credential_parameter(parameter).is_none())
            .collect::<Vec<_>>()
            .join("&")
    }
}

impl From<Uri> for ServiceUrl {
    fn from(uri: Uri) -> ServiceUrl {
        ServiceUrl(uri)
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())?;
        if self.0.query().is_some() {
            write!(f, "?{HIDDEN}")
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A text that may contain URLs, without their user names, passwords and queries. The text need not
/// be well formed: it is better to hide too much than too little.
pub(crate) fn mask(text: &str) -> String {
    mask_with(text, |_| HIDDEN.to_owned())
}

/// The text, with each secret replaced by the result of `hide`.
pub(super) fn mask_with(text: &str, hide: impl Fn(&str) -> String + Copy) -> String {
    let Some(begins) = text.find("://").map(|at| at + 3) else {
        return text.to_owned();
    };
    let end = text[begins..]
        .find(['"', '\''])
        .map_or(text.len(), |at| begins + at);
    let (place, query) = match text[begins..end].split_once('?') {
        Some((place, query)) if !query.is_empty() => (place, format!("?{}", hide(query))),
        _ => (&text[begins..end], String::new()),
    };
    let place = match place.rsplit_once('@') {
        Some((user, place)) => format!("{}@{place}", hide(user)),
        None => place.to_owned(),
    };
    let rest = mask_with(&text[end..], hide);
    format!("{}{place}{query}{rest}", &text[..begins])
}

/// A URL with a host, and with any path.
pub(super) fn service_url(text: &str) -> Result<ServiceUrl, String> {
    let shown = mask(text);
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!(
            "`{text}` lacks its scheme: write http://{text} or https://{text}"
        ));
    };
    if !matches!(scheme, "http" | "https") {
        return Err(format!(
            "`{scheme}` is no scheme the gateway speaks: write http://… or https://…"
        ));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(
            "a URL with a user name or password would end up in logs: leave it out".to_owned(),
        );
    }
    if rest.contains('#') {
        return Err(format!(
            "what follows a `#` is never sent: leave it out of `{shown}`"
        ));
    }
    let no_url = || {
        format!("`{shown}` is no URL of a service: write http://127.0.0.1:3000/path, for example")
    };
    let uri = Uri::from_str(text).map_err(|_| no_url())?;
    let host = uri.host().unwrap_or_default();
    let port_is_sound =
        authority.len() == host.len() || uri.port_u16().is_some_and(|port| port != 0);
    if host.is_empty() || !port_is_sound {
        Err(no_url())
    } else {
        Ok(ServiceUrl(uri))
    }
}

/// A URL whose answers can be trusted: over https, or on this machine.
pub(super) fn believable_url(text: &str) -> Result<ServiceUrl, String> {
    let url = service_url(text)?;
    let uri = url.expose();
    if uri.scheme_str() == Some("http") && !is_loopback(uri.host().unwrap_or_default()) {
        let rest = &mask(text)["http".len()..];
        return Err(format!(
            "over http anybody on the way could put in keys of their own: write https{rest}"
        ));
    }
    Ok(url)
}

fn is_loopback(host: &str) -> bool {
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_host_and_any_path() {
        for url in [
            "http://a",
            "http://127.0.0.1:9091/verify?x=1",
            "https://auth.example:8443/",
            "http://[::1]:1/x",
        ] {
            assert!(service_url(url).is_ok(), "{url}");
        }
        for url in [
            "",
            "a",
            "auth.example/verify",
            "ftp://a",
            "http://",
            "http://:80/",
            "http://a:0/",
            "http://a:/",
            "http://u:p@a/",
            "http://a/#b",
            "http://a b/",
        ] {
            assert!(service_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn no_secret_in_a_url_is_shown() {
        for (url, shown, place) in [
            (
                "http://Auth.example:80",
                "http://auth.example/",
                "http://auth.example/",
            ),
            (
                "https://a:443/Verify?token=s3",
                "https://a/Verify?***",
                "https://a/Verify",
            ),
            (
                "https://a:8443/v?s3",
                "https://a:8443/v?***",
                "https://a:8443/v",
            ),
            ("http://[::1]:1/x", "http://[::1]:1/x", "http://[::1]:1/x"),
        ] {
            let url = service_url(url).unwrap();
            assert_eq!(
                (url.to_string(), url.place()),
                (shown.to_owned(), place.to_owned())
            );
            assert!(!format!("{url} {url:?}").contains("s3"));
        }
        for text in [
            "http://a b/v?token=s3",
            "http://u:s3@a/",
            "http://u:s/3@a/v",
            "ftp://a?token=s3",
            "http://a/v?x=s3#y",
            "http://a:0/?s3",
        ] {
            let message = service_url(text).unwrap_err();
            assert!(
                !message.contains("s3") && !message.contains("s/3"),
                "{message}"
            );
        }
        assert!(
            !believable_url("http://a/jwks?key=s3")
                .unwrap_err()
                .contains("s3")
        );
    }

    #[test]
    fn a_query_tells_services_apart_but_for_its_credentials() {
        for (query, counts) in [
            ("", ""),
            ("?tenant=a", "tenant=a"),
            ("?tenant=a&token=s3&rd=x", "tenant=a&rd=x"),
            ("?API%5FKEY=s3", ""),
        ] {
            assert_eq!(
                service_url(&format!("http://a/v{query}"))
                    .unwrap()
                    .parameters(),
                counts
            );
        }
    }

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        for url in [
            "https://id.example/jwks.json",
            "http://127.0.0.1:1/jwks",
            "http://localhost:1/jwks",
            "http://[::1]/jwks",
        ] {
            assert!(believable_url(url).is_ok(), "{url}");
        }
        for url in [
            "http://id.example/jwks.json",
            "http://10.0.0.1/jwks",
            "http://localhost.example/jwks",
            "http://127.0.0.1.example/",
        ] {
            assert!(believable_url(url).is_err(), "{url}");
        }
    }
}
