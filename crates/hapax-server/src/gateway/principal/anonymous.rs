//! Which parts of a request identify nobody.
//!
//! A request without a credential is anonymous only if every field it carries is known to identify
//! nobody. A list of what identifies people would never be whole: every proxy and every service may
//! add a field of its own, and a field that is missing from such a list gives one caller another's
//! answer. A field that is missing from this list costs a request with a clear answer, and one
//! setting.
//!
//! Names are exact. A name that is not of letters, digits and hyphens is never on the list, because
//! servers in the line of CGI read `X_User` and `X-User` as one.

use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName};
use http::request::Parts;

use super::cookie;
use crate::config::fields::{credential_parameter, is_credential_field};
use crate::config::{AnonymousField, Config, CookieName, PrincipalSource, PrincipalSources};
use crate::gateway::forward::{CREDENTIALS, is_ours, is_plain};

/// Fields that identify nobody: sorted, and printed in `docs/principals.md`.
const FIELDS: [&str; 235] = [
    "accept",
    "access-control-request-headers",
    "access-control-request-method",
    "access-control-request-private-network",
    "akamai-origin-hop",
    "alt-used",
    "attribution-reporting-eligible",
    "attribution-reporting-support",
    "available-dictionary",
    "b3",
    "baggage",
    "cache-control",
    "cdn-loop",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "cf-ew-via",
    "cf-ipcity",
    "cf-ipcontinent",
    "cf-ipcountry",
    "cf-iplatitude",
    "cf-iplongitude",
    "cf-metro-code",
    "cf-postal-code",
    "cf-pseudo-ipv4",
    "cf-ray",
    "cf-region",
    "cf-region-code",
    "cf-timezone",
    "cf-visitor",
    "client-ip",
    "cloudfront-forwarded-proto",
    "cloudfront-is-android-viewer",
    "cloudfront-is-desktop-viewer",
    "cloudfront-is-ios-viewer",
    "cloudfront-is-mobile-viewer",
    "cloudfront-is-smarttv-viewer",
    "cloudfront-is-tablet-viewer",
    "cloudfront-viewer-address",
    "cloudfront-viewer-asn",
    "cloudfront-viewer-city",
    "cloudfront-viewer-country",
    "cloudfront-viewer-country-name",
    "cloudfront-viewer-country-region",
    "cloudfront-viewer-country-region-name",
    "cloudfront-viewer-header-count",
    "cloudfront-viewer-header-order",
    "cloudfront-viewer-http-version",
    "cloudfront-viewer-ja3-fingerprint",
    "cloudfront-viewer-ja4-fingerprint",
    "cloudfront-viewer-latitude",
    "cloudfront-viewer-longitude",
    "cloudfront-viewer-metro-code",
    "cloudfront-viewer-postal-code",
    "cloudfront-viewer-time-zone",
    "cloudfront-viewer-tls",
    "connect-time",
    "connection",
    "content-digest",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "correlation-context",
    "correlation-id",
    "date",
    "device-memory",
    "dictionary-id",
    "digest",
    "disguised-host",
    "dnt",
    "downlink",
    "dpr",
    "early-data",
    "ect",
    "elastic-apm-traceparent",
    "expect",
    "fastly-client-ip",
    "fastly-ff",
    "fastly-ssl",
    "fly-client-ip",
    "fly-forwarded-port",
    "fly-forwarded-proto",
    "fly-forwarded-ssl",
    "fly-region",
    "fly-request-id",
    "forwarded",
    "front-end-https",
    "grpc-trace-bin",
    "host",
    "http2-settings",
    "idempotency-deadline",
    "idempotency-key",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "last-event-id",
    "max-forwards",
    "newrelic",
    "origin",
    "ot-tracer-sampled",
    "ot-tracer-spanid",
    "ot-tracer-traceid",
    "pragma",
    "prefer",
    "priority",
    "proxy-connection",
    "purpose",
    "range",
    "referer",
    "repr-digest",
    "request-context",
    "request-id",
    "rtt",
    "save-data",
    "sec-gpc",
    "sec-purpose",
    "sec-speculation-tags",
    "sentry-trace",
    "service-worker",
    "service-worker-navigation-preload",
    "sw8",
    "te",
    "total-route-time",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "true-client-ip",
    "uber-trace-id",
    "upgrade",
    "upgrade-insecure-requests",
    "user-agent",
    "via",
    "viewport-width",
    "want-content-digest",
    "want-digest",
    "want-repr-digest",
    "was-default-hostname",
    "width",
    "x-akamai-edgescape",
    "x-amz-cf-id",
    "x-amzn-request-id",
    "x-amzn-tls-cipher-suite",
    "x-amzn-tls-version",
    "x-amzn-trace-id",
    "x-appgw-trace-id",
    "x-arr-log-id",
    "x-azure-clientip",
    "x-azure-ref",
    "x-azure-requestchain",
    "x-azure-socketip",
    "x-b3-flags",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-spanid",
    "x-b3-traceid",
    "x-client-ip",
    "x-client-trace-id",
    "x-cloud-trace-context",
    "x-cluster-client-ip",
    "x-correlation-id",
    "x-datadog-origin",
    "x-datadog-parent-id",
    "x-datadog-sampling-priority",
    "x-datadog-tags",
    "x-datadog-trace-id",
    "x-dynatrace",
    "x-envoy-attempt-count",
    "x-envoy-decorator-operation",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-external-address",
    "x-envoy-force-trace",
    "x-envoy-internal",
    "x-envoy-is-timeout-retry",
    "x-envoy-max-retries",
    "x-envoy-original-dst-host",
    "x-envoy-original-host",
    "x-envoy-original-method",
    "x-envoy-original-path",
    "x-envoy-retry-grpc-on",
    "x-envoy-retry-on",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-stream-duration-ms",
    "x-forwarded-by",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-protocol",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-idempotency-key",
    "x-instana-l",
    "x-instana-s",
    "x-instana-t",
    "x-method-override",
    "x-newrelic-transaction",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-uri",
    "x-original-url",
    "x-ot-span-context",
    "x-proxyuser-ip",
    "x-purpose",
    "x-queue-start",
    "x-real-ip",
    "x-real-port",
    "x-replaced-path",
    "x-request-id",
    "x-request-start",
    "x-requested-with",
    "x-rewrite-url",
    "x-scheme",
    "x-span-id",
    "x-trace-id",
    "x-url-scheme",
    "x-varnish",
    "x-vercel-forwarded-for",
    "x-vercel-id",
    "x-waws-unencoded-url",
];

/// Families of fields that identify nobody. No other family is safe: `x-forwarded-for` is harmless,
/// and `x-forwarded-user` is a person; `sec-websocket-protocol` may carry a token.
const FAMILIES: [&str; 3] = ["accept-", "sec-ch-", "sec-fetch-"];

/// A part of a request that may identify its sender, and that no setting covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    Field(HeaderName),
    /// A query parameter, by its name on the list.
    Parameter(&'static str),
}

impl Unread {
    /// As `anonymous_fields` would name it.
    pub(super) fn name(&self) -> String {
        match self {
            Unread::Field(field) => field.to_string(),
            Unread::Parameter(name) => format!("query:{name}"),
        }
    }

    /// The word under which it counts.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Unread::Field(field) if *field == COOKIE => "cookie",
            Unread::Field(field) if *field == AUTHORIZATION => "authorization",
            Unread::Field(_) => "other",
            Unread::Parameter(_) => "query",
        }
    }

    /// Whether it is a credential wherever it occurs.
    pub(super) fn is_credential(&self) -> bool {
        match self {
            Unread::Field(field) => is_credential_field(field),
            Unread::Parameter(_) => true,
        }
    }

    /// The principal source that would read it, if there is one. Of cookies the one that looks like
    /// a session's.
    pub(super) fn source(&self, headers: &HeaderMap) -> Option<String> {
        match self {
            Unread::Field(field) if *field == COOKIE => Some(format!(
                "cookie:{}",
                cookie::session(headers).unwrap_or("NAME")
            )),
            Unread::Field(field) if is_plain(field.as_str()) && !is_ours(field) => {
                Some(format!("digest:{field}"))
            }
            Unread::Field(_) => None,
            Unread::Parameter(_) => Some("forward-auth:URL".to_owned()),
        }
    }

    /// Whether `anonymous_fields` takes it.
    pub(super) fn may_be_anonymous(&self) -> bool {
        self.name().parse::<AnonymousField>().is_ok()
    }
}

/// Tells which parts of a request may identify its sender, under one configuration.
pub(super) struct Anonymous {
    /// Fields that need no judging: those that the sources read, that carry keys, or that the
    /// configuration calls anonymous.
    fields: Vec<HeaderName>,
    /// Cookies that the sources read.
    cookies: Vec<CookieName>,
    /// Query parameters that the configuration calls anonymous.
    parameters: Vec<String>,
    judges_query: bool,
}

impl Anonymous {
    pub(super) fn new(sources: &PrincipalSources, config: &Config) -> Anonymous {
        let mut fields = Vec::new();
        let mut cookies = Vec::new();
        for source in sources.iter() {
            match source {
                PrincipalSource::Cookie(name) => cookies.push(name.clone()),
                source => fields.extend(source.fields(config).into_iter().cloned()),
            }
        }
        if sources
            .iter()
            .any(|source| matches!(source, PrincipalSource::ForwardAuth(_)))
        {
            fields.extend(CREDENTIALS);
        }
        let routes = config.all_routes();
        fields.extend(
            routes
                .iter()
                .filter_map(|route| HeaderName::try_from(&*route.policy.key_field).ok()),
        );
        let mut parameters = Vec::new();
        for field in &config.anonymous_fields {
            match field {
                AnonymousField::Header(field) => fields.push(field.clone()),
                AnonymousField::Parameter(name) => parameters.push(name.clone()),
            }
        }
        // Who has chosen a principal has said by what callers are known.
        Anonymous {
            fields,
            cookies,
            parameters,
            judges_query: sources.is_default(),
        }
    }

    /// The parts of a request that may identify its sender, and that no source reads.
    pub(super) fn unread(&self, parts: &Parts) -> Vec<Unread> {
        let mut unread = self.unread_fields(&parts.headers);
        if self.judges_query
            && let Some(query) = parts.uri.query()
        {
            let found = query.split(['&', ';']).filter_map(credential_parameter);
            unread.extend(
                found
                    .filter(|name| !self.parameters.iter().any(|known| known == name))
                    .map(Unread::Parameter),
            );
        }
        unread
    }

    fn unread_fields(&self, headers: &HeaderMap) -> Vec<Unread> {
        let is_unread = |field: &&HeaderName| match **field {
            COOKIE if !self.fields.contains(field) => self.has_other_cookies(headers),
            _ => !identifies_nobody(field.as_str()) && !self.fields.contains(field),
        };
        headers
            .keys()
            .filter(is_unread)
            .cloned()
            .map(Unread::Field)
            .collect()
    }

    /// Whether there are cookies that no source reads. Each may be a session's.
    fn has_other_cookies(&self, headers: &HeaderMap) -> bool {
        let is_read = |name: &[u8]| {
            self.cookies
                .iter()
                .any(|read| read.as_str().as_bytes() == name)
        };
        self.cookies.is_empty() || cookie::pairs(headers).any(|(name, _)| !is_read(name))
    }

    /// Whether to tell of a part that stands beside what the sources read. Who reads one cookie has
    /// chosen among all of them.
    pub(super) fn is_notable(&self, part: &Unread) -> bool {
        self.cookies.is_empty() || !matches!(part, Unread::Field(field) if *field == COOKIE)
    }
}

/// Whether a field is on the list.
fn identifies_nobody(field: &str) -> bool {
    FIELDS.binary_search(&field).is_ok()
        || (is_plain(field) && FAMILIES.iter().any(|family| field.starts_with(family)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::fields::{CREDENTIAL_FIELDS, CREDENTIAL_PARAMETERS, parameter_name};

    #[test]
    fn the_lists_are_sorted_and_hold_exact_names() {
        for list in [
            &FIELDS[..],
            &CREDENTIAL_FIELDS,
            &CREDENTIAL_PARAMETERS,
            &FAMILIES,
        ] {
            assert!(list.is_sorted_by(|one, next| one < next), "{list:?}");
        }
        for field in FIELDS {
            assert!(
                is_plain(field)
                    && field
                        .parse::<HeaderName>()
                        .is_ok_and(|name| name.as_str() == field),
                "{field}"
            );
            assert!(
                FAMILIES.iter().all(|family| !field.starts_with(family)),
                "{field} is in its family"
            );
        }
        assert!(
            CREDENTIAL_FIELDS
                .iter()
                .all(|field| !identifies_nobody(field))
        );
        assert!(
            CREDENTIAL_PARAMETERS
                .iter()
                .all(|name| parameter_name(name) == *name)
        );
    }

    #[test]
    fn the_documentation_prints_the_lists() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/principals.md");
        let page = std::fs::read_to_string(page).unwrap();
        let printed = |mark: &str| -> Vec<String> {
            let (_, rest) = page.split_once(mark).expect("the mark is there");
            let block = rest.split("```").nth(1).unwrap().trim_start_matches("text");
            block.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(printed("<!-- fields that identify nobody -->"), FIELDS);
        assert_eq!(
            printed("<!-- credentials in the query -->"),
            CREDENTIAL_PARAMETERS
        );
    }

    #[test]
    fn only_exact_names_and_three_families_identify_nobody() {
        for field in [
            "host",
            "accept",
            "accept-ch",
            "sec-fetch-dest",
            "sec-ch-ua-arch",
            "x-forwarded-for",
            "cf-ray",
        ] {
            assert!(identifies_nobody(field), "{field}");
        }
        for field in [
            "x-forwarded-user",
            "x-forwarded-for2",
            "acceptuser",
            "accept-user_id",
            "sec-websocket-protocol",
            "sec-fetchx",
            "from",
            "",
        ] {
            assert!(!identifies_nobody(field), "{field}");
        }
    }
}
