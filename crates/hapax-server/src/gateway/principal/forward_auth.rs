//! `forward-auth`: another service identifies the caller of each request.
//!
//! The service is asked before every guarded request, the first and each repeat alike, and its
//! answers are not cached: a caller that it refuses gets no replay. It sees the credentials and the
//! target of the request, never the body. The gateway passes its refusals on unchanged. Any other
//! answer that is not a clear yes makes the gateway refuse the request for the time being.

use hapax::core::Secret;
use hapax::core::rejection::Flaw;
use hapax::middleware::fields::CREDENTIALS;
use hapax::middleware::rejected;
use hapax::{Body, Principal, Rejection};
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    SET_COOKIE, USER_AGENT, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::fetch::{Failed, Fetched, Fetcher};
use super::{Refused, name, only};
use crate::config::{self, ServiceUrl};
use crate::gateway::RETRY_DIALECTS;

/// Limit on the body of the service's answer, such as a login page.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Fields of the request that are always sent to the service, in addition to the credentials and
/// the fields that the configuration names.
const SHOWN: [HeaderName; 5] = [
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("traceparent"),
];

/// Fields of a refusal that are passed on to the caller.
const REFUSAL: [HeaderName; 4] = [WWW_AUTHENTICATE, CONTENT_TYPE, LOCATION, SET_COOKIE];

pub(super) struct ForwardAuth {
    fetcher: Fetcher,
    settings: config::ForwardAuth,
    room: Semaphore,
    /// The name of the service within its callers' names: two services may give the same name to
    /// different callers.
    provider: String,
}

impl ForwardAuth {
    pub(super) fn new(
        url: &ServiceUrl,
        settings: &config::ForwardAuth,
        secret: &Secret,
    ) -> Result<ForwardAuth, String> {
        Ok(ForwardAuth {
            provider: provider(url, secret),
            fetcher: Fetcher::new(url.expose(), settings.ca_file.as_deref(), "forward_auth")?,
            room: Semaphore::new(settings.concurrency_max),
            settings: settings.clone(),
        })
    }

    /// Identifies the caller. The fields that the service sets for the upstream are added to the
    /// request.
    pub(super) async fn identify(&self, parts: &mut Parts) -> Result<Principal, Refused> {
        let fetched = self.ask(parts).await.map_err(|failed| {
            tracing::warn!(
                reason = failed.word,
                error = failed.why,
                "forward-auth gave no answer; guarded requests are refused"
            );
            Refused::Unavailable(failed.word)
        })?;
        match fetched.status {
            status if status.is_success() => self.accept(parts, &fetched),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(refusal(fetched)),
            status if is_redirect(status) && fetched.headers.contains_key(LOCATION) => {
                Err(refusal(fetched))
            }
            status => {
                tracing::warn!(%status, "forward-auth gave an answer that is neither yes nor no; guarded requests are refused");
                Err(Refused::Unavailable("status"))
            }
        }
    }

    async fn ask(&self, parts: &Parts) -> Result<Fetched, Failed> {
        let until = Instant::now() + self.settings.timeout;
        let Ok(room) = timeout_at(until, self.room.acquire()).await else {
            let why = format!(
                "{} requests are being asked about already",
                self.settings.concurrency_max
            );
            return Err(Failed { word: "busy", why });
        };
        let _room = room.expect("it is never closed");
        self.fetcher
            .get(
                self.question(parts),
                BODY_BYTES_MAX,
                until.saturating_duration_since(Instant::now()),
            )
            .await
    }

    /// The fields that are sent to the service.
    fn question(&self, parts: &Parts) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for name in CREDENTIALS
            .iter()
            .chain(&SHOWN)
            .chain(&self.settings.forward)
        {
            // A field that is listed twice would be sent twice, and a repeated credential
            // identifies no caller.
            if headers.contains_key(name) {
                continue;
            }
            for line in parts.headers.get_all(name) {
                headers.append(name.clone(), line.clone());
            }
        }
        let target = parts
            .uri
            .path_and_query()
            .map_or(parts.uri.path(), |target| target.as_str());
        for (name, text) in [
            ("x-forwarded-method", parts.method.as_str()),
            ("x-forwarded-uri", target),
        ] {
            let value =
                HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""));
            headers.insert(HeaderName::from_static(name), value);
        }
        // The request's `Host` is not the service's.
        headers.remove(HOST);
        headers
            .entry(ACCEPT)
            .or_insert(HeaderValue::from_static("*/*"));
        headers
            .entry(USER_AGENT)
            .or_insert(HeaderValue::from_static("hapax"));
        headers
    }

    fn accept(&self, parts: &mut Parts, fetched: &Fetched) -> Result<Principal, Refused> {
        let field = &self.settings.principal_field;
        let broken = |why: &'static str| {
            tracing::error!(%field, why, "forward-auth said yes without one name of who is asking; guarded requests are refused");
            Refused::Unavailable("answer")
        };
        let value = only(&fetched.headers, field).map_err(broken)?;
        let name = name(value).ok_or_else(|| broken("unreadable"))?;
        for passed in &self.settings.pass {
            parts.headers.remove(passed);
            for line in fetched.headers.get_all(passed) {
                parts.headers.append(passed.clone(), line.clone());
            }
        }
        Ok(Principal::named(format!(
            "forward-auth:{} {field} {name}",
            self.provider
        )))
    }
}

/// The scheme, host, port and path of a service, without spaces, and a keyed digest of its query
/// parameters other than known credentials. Those parameters may select a tenant, or may be a
/// secret under an unknown name.
fn provider(url: &ServiceUrl, secret: &Secret) -> String {
    let parameters = url.parameters();
    if parameters.is_empty() {
        return url.place();
    }
    let digest = Principal::digest(secret, "forward-auth query", parameters.as_bytes()).to_string();
    format!("{}?{}", url.place(), &digest["digest:".len()..][..16])
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Passes on the service's refusal. No cache may store it as an answer to the operation.
fn refusal(fetched: Fetched) -> Refused {
    let rejection = Rejection::CredentialsInvalid(Flaw::Other);
    let mut response = Response::new(Body::from(fetched.body));
    *response.status_mut() = fetched.status;
    for name in REFUSAL {
        for line in fetched.headers.get_all(&name) {
            response.headers_mut().append(name.clone(), line.clone());
        }
    }
    // A retry by the same caller would not help, and some clients retry unless told not to.
    for (name, value) in rejected(&rejection, RETRY_DIALECTS).headers() {
        if name.as_str().ends_with("should-retry") {
            response.headers_mut().insert(name.clone(), value.clone());
        }
    }
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(rejection);
    Refused::Elsewhere(Box::new(response))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_named_without_its_secrets_and_told_from_any_other() {
        let secret = Secret::from_bytes([7; 32]);
        let named = |url: &str| provider(&url.parse::<http::Uri>().unwrap().into(), &secret);
        assert_eq!(
            named("https://Auth.internal:443/verify"),
            "https://auth.internal/verify"
        );
        assert_eq!(
            named("https://auth.internal/verify?token=s3"),
            named("https://auth.internal/verify?token=s4")
        );
        let all = [
            "https://auth.internal/verify",
            "http://auth.internal/verify",
            "https://auth.internal:8443/verify",
            "https://other.internal/verify",
            "https://auth.internal/Verify",
            "https://auth.internal/verify?tenant=a",
            "https://auth.internal/verify?tenant=b",
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(
                !named(one).contains(' ') && !named(one).contains("tenant"),
                "{one}"
            );
            assert!(
                all[..index].iter().all(|other| named(other) != named(one)),
                "{one}"
            );
        }
    }
}
