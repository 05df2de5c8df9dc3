//! URLs of services that the gateway itself asks something of.

use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;

/// A URL with a host, and with whatever path.
pub(super) fn service_url(text: &str) -> Result<Uri, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(format!("`{text}` lacks its scheme: write http://{text} or https://{text}"));
    };
    if !matches!(scheme, "http" | "https") {
        return Err(format!("`{scheme}` is no scheme the gateway speaks: write http://… or https://…"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err("a URL with a user name or password would end up in logs: leave it out".to_owned());
    }
    if rest.contains('#') {
        return Err(format!("what follows a `#` is never sent: leave it out of `{text}`"));
    }
    let no_url = || format!("`{text}` is no URL of a service: write http://127.0.0.1:3000/path, for example");
    let uri = Uri::from_str(text).map_err(|_| no_url())?;
    let host = uri.host().unwrap_or_default();
    let port_is_sound = authority.len() == host.len() || uri.port_u16().is_some_and(|port| port != 0);
    if host.is_empty() || !port_is_sound { Err(no_url()) } else { Ok(uri) }
}

/// A URL that what comes from can be believed: with https, or on this machine.
pub(super) fn believable_url(text: &str) -> Result<Uri, String> {
    let uri = service_url(text)?;
    if uri.scheme_str() == Some("http") && !is_loopback(uri.host().unwrap_or_default()) {
        return Err(format!("over http anybody on the way could put in keys of their own: write https{}", &text["http".len()..]));
    }
    Ok(uri)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_host_and_any_path() {
        for url in ["http://a", "http://127.0.0.1:9091/verify?x=1", "https://auth.example:8443/", "http://[::1]:1/x"] {
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
    fn keys_come_over_tls_or_from_this_machine() {
        for url in ["https://id.example/jwks.json", "http://127.0.0.1:1/jwks", "http://localhost:1/jwks", "http://[::1]/jwks"] {
            assert!(believable_url(url).is_ok(), "{url}");
        }
        for url in
            ["http://id.example/jwks.json", "http://10.0.0.1/jwks", "http://localhost.example/jwks", "http://127.0.0.1.example/"]
        {
            assert!(believable_url(url).is_err(), "{url}");
        }
    }
}
