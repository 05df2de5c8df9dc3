//! Keeps web pages of other sites from using the admin listener through a visitor's browser.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Admin;
use super::problem::Problem;

/// If a token is required, `Host` may be a name: a page that uses DNS rebinding has no token to
/// send.
pub(super) async fn refuse_cross_site(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    let has_token = admin.rules.load().tokens.admin.is_some();
    let refused = if !has_token && !is_addressed_to_us(request.uri(), request.headers()) {
        "the admin listener answers only to an IP address or localhost in Host: ask for it by one of these"
    } else if !is_from_here(request.headers()) {
        "the admin listener does not answer to pages of other sites"
    } else {
        return next.run(request).await;
    };
    admin.refused("stranger", &request);
    Problem::new(StatusCode::FORBIDDEN, "refused", refused).into_response()
}

/// A browser sends the name under which it reached this listener (DNS rebinding). Clients that send
/// no `Host` are not browsers.
fn is_addressed_to_us(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    uri.authority()
        .is_none_or(|target| is_ours(target.as_str()))
        && hosts.all(|host| host.to_str().is_ok_and(is_ours))
}

/// A browser sends the origin of the page that makes a request, except for plain navigation.
fn is_from_here(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    headers.get_all(ORIGIN).iter().all(|origin| {
        let origin = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"));
        origin.is_some_and(|(_, origin)| Some(origin) == host)
    })
}

/// Parsed strictly and by hand: URL parsers accept more in the place of a host.
fn is_ours(authority: &str) -> bool {
    let port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let host = authority
        .rsplit_once(':')
        .filter(|(_, after)| port(after))
        .map_or(authority, |(host, _)| host);
    match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => host.eq_ignore_ascii_case("localhost") || host.parse::<Ipv4Addr>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower_service::Service;

    use super::super::tests::admin_with;
    use super::super::{Rules, router};
    use super::*;
    use crate::config::{Config, Secret};

    async fn status_at(config: &Config, uri: &str, fields: &[(&str, &str)]) -> u16 {
        let request = fields
            .iter()
            .fold(axum::http::Request::get(uri), |request, (name, value)| {
                request.header(*name, *value)
            });
        let mut router = router(admin_with(Rules::new(config)));
        router
            .call(request.body(Body::empty()).unwrap())
            .await
            .unwrap()
            .status()
            .as_u16()
    }

    async fn status(uri: &str, fields: &[(&str, &str)]) -> u16 {
        status_at(&Config::new(Uri::default()), uri, fields).await
    }

    #[tokio::test]
    async fn with_a_token_a_name_in_host_is_answered_and_a_page_of_another_site_still_is_not() {
        let mut config = Config::new(Uri::default());
        config.admin_token = Some(Secret::token("0123456789abcdef").unwrap());
        let (host, bearer) = (
            ("host", "admin.hapax.internal:4001"),
            ("authorization", "Bearer 0123456789abcdef"),
        );
        assert_eq!(status_at(&config, "/healthz", &[host]).await, 200);
        assert_eq!(status_at(&config, "/metrics", &[host]).await, 401);
        assert_eq!(status_at(&config, "/metrics", &[host, bearer]).await, 200);
        assert_eq!(
            status_at(
                &config,
                "/metrics",
                &[host, bearer, ("origin", "https://evil.example")]
            )
            .await,
            403
        );
        assert_eq!(
            status_at(
                &config,
                "/metrics",
                &[host, bearer, ("origin", "http://admin.hapax.internal:4001")]
            )
            .await,
            200
        );
    }

    #[tokio::test]
    async fn only_addresses_and_localhost_are_answered() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:4001",
            "[::1]:4001",
            "[::1]",
            "localhost:4001",
            "LOCALHOST",
            "10.1.2.3:80",
        ] {
            assert_eq!(status("/healthz", &[("host", host)]).await, 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:4001",
            "localhost.evil.example",
            "127.0.0.1.evil.example:4001",
            "",
            "a b",
            "[::1].evil",
        ] {
            assert_eq!(status("/healthz", &[("host", host)]).await, 403, "{host}");
        }
        // Every place where a name may occur is checked.
        assert_eq!(
            status("http://evil.example/healthz", &[("host", "127.0.0.1")]).await,
            403
        );
        assert_eq!(
            status(
                "/healthz",
                &[("host", "127.0.0.1"), ("host", "evil.example")]
            )
            .await,
            403
        );
        assert_eq!(
            status("/healthz", &[]).await,
            200,
            "a probe without a Host is no browser"
        );
    }

    #[tokio::test]
    async fn pages_of_other_sites_are_not_answered() {
        let host = ("host", "127.0.0.1:4001");
        assert_eq!(
            status("/healthz", &[host, ("origin", "http://127.0.0.1:4001")]).await,
            200
        );
        for origin in [
            "https://evil.example",
            "http://127.0.0.1:8080",
            "http://localhost:4001",
            "null",
        ] {
            assert_eq!(
                status("/healthz", &[host, ("origin", origin)]).await,
                403,
                "{origin}"
            );
        }
    }
}
