//! Identifies the caller of a request.
//!
//! A caller mistaken for another could get the other's answer, so the caller of a guarded request
//! is identified before the key is considered. `digest.rs`, `cookie.rs` and `header.rs` use the
//! request's head alone; `jwt/` verifies a token with keys that their issuer may change, and
//! `forward_auth.rs` asks another service each time. Both use `fetch.rs` to send requests.
//! `anonymous.rs` knows the fields that identify no caller, `list.rs` combines several sources into
//! one name, `webhooks.rs` has the secrets of senders whose signature the layer verifies, and `notice.rs` logs fields that no setting covers.
//!
//! The name of a principal begins with its source and says what identifies the caller, with a space
//! between the parts. So no two sources, fields, claims, issuers or services ever share a name:
//! `header:x-user-id ada`, `jwt:sub https://id.example.com ada`,
//! `forward-auth:https://auth.internal/verify x-auth-user ada`.

mod anonymous;
mod cookie;
mod digest;
mod fetch;
mod forward_auth;
mod header;
mod jwt;
mod list;
mod notice;
mod webhooks;

use std::sync::Arc;

use hapax::core::{Secret, rejection};
use hapax::middleware::rejected;
use hapax::{Body, Principal, Rejection, StandardWebhooks};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use self::anonymous::{Anonymous, Unread};
use self::cookie::Cookie;
use self::digest::Digest;
use self::forward_auth::ForwardAuth;
use self::header::Header;
use self::jwt::{Jwt, Keeper};
use self::notice::Notices;
use super::forward::Client;
use crate::config::{self, Config, PrincipalSource, PrincipalSources, ServiceUrl};
use crate::gateway::RETRY_DIALECTS;
use crate::telemetry::Metrics;

/// The longest name of a caller; each of its records stores it.
const NAME_BYTES_MAX: usize = 512;

/// Identifies callers by every list of sources that the routes of a configuration have. The lists
/// share the key keeper and the clients of other services.
pub(crate) struct Directory {
    all: Vec<Principals>,
    keys: Option<Arc<Keeper>>,
    asked: Vec<(ServiceUrl, Arc<ForwardAuth>)>,
    /// Shared with the previous configuration, so that a reload does not log the same notice again.
    notices: Arc<Notices>,
}

/// Identifies callers by one list of sources. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Principals(Arc<Inner>);

struct Inner {
    list: PrincipalSources,
    /// The sources, in the order of the list.
    sources: Vec<Source>,
    /// What each source reads, as text.
    looks_at: Vec<Arc<str>>,
    anonymous: Anonymous,
    notices: Arc<Notices>,
    metrics: Metrics,
}

enum Source {
    None,
    Digest(Digest),
    Cookie(Cookie),
    Header(Header),
    Jwt(Jwt),
    ForwardAuth(Arc<ForwardAuth>),
    /// Verified by the layer, when it has read the body.
    Webhooks(StandardWebhooks),
}

/// The identified caller, or why there is none. Stands in the request's extensions, for the layer.
#[derive(Clone)]
struct Established(Result<Principal, Rejection>);

/// Why the caller is not identified. The strings are labels of metrics.
enum Refused {
    /// The request does not identify its caller.
    Missing(&'static str),
    /// Like `Missing`, with a sentence that says what is wrong.
    Flawed(&'static str, String),
    /// The request may identify its caller in a part that no source reads. The first value is the
    /// label.
    Unread(&'static str, Arc<rejection::Unread>),
    /// The credential was checked and is not valid.
    Invalid(jwt::Flawed),
    /// The credential cannot be checked now.
    Unavailable(&'static str),
    /// Another service refused the caller; this is its answer.
    Elsewhere(Box<Response<Body>>),
}

impl Directory {
    /// Starts these lists of sources of a configuration. It reads the keys of tokens before it
    /// returns, or finds out that they are not available. `before` is the directory in use until
    /// now; its keys stay valid if they come from the same source.
    pub(crate) async fn start(
        lists: &[&PrincipalSources],
        config: &Config,
        secret: Secret,
        metrics: Metrics,
        before: Option<&Directory>,
    ) -> Result<Directory, String> {
        let notices = before.map_or_else(Arc::default, |before| before.notices.clone());
        let mut directory = Directory {
            all: Vec::new(),
            keys: None,
            asked: Vec::new(),
            notices,
        };
        for list in lists {
            let mut sources = Vec::new();
            for source in list.iter() {
                let started = match source {
                    PrincipalSource::None => Source::None,
                    PrincipalSource::Digest(field) => Source::Digest(Digest::new(field, secret)),
                    PrincipalSource::Cookie(name) => Source::Cookie(Cookie::new(name, secret)),
                    PrincipalSource::Header(field) => {
                        let is_proxys = list
                            .proxy_fields(!config.trusted_proxies.is_empty())
                            .any(|proxys| proxys == field);
                        Source::Header(Header::new(field, is_proxys, sources.is_empty()))
                    }
                    PrincipalSource::Jwt(claim) => {
                        let settings = config
                            .jwt
                            .as_ref()
                            .ok_or("principal jwt needs [jwt] in the configuration")?;
                        let keys = directory.keys(settings, metrics.clone(), before).await?;
                        Source::Jwt(Jwt::new(settings, claim, keys))
                    }
                    PrincipalSource::ForwardAuth(url) => {
                        Source::ForwardAuth(directory.asked(url, config, &secret)?)
                    }
                    PrincipalSource::StandardWebhooks(name) => {
                        let settings = config.standard_webhooks.as_ref().ok_or(
                            "standard-webhooks needs [standard_webhooks] in the configuration",
                        )?;
                        Source::Webhooks(webhooks::sender(name, settings)?)
                    }
                };
                sources.push(started);
            }
            let principals = Principals(Arc::new(Inner {
                sources,
                looks_at: list
                    .iter()
                    .map(|source| source.looks_at(config).into())
                    .collect(),
                anonymous: Anonymous::new(list, config),
                list: (*list).clone(),
                notices: directory.notices.clone(),
                metrics: metrics.clone(),
            }));
            directory.all.push(principals);
        }
        Ok(directory)
    }

    /// The principals of this list.
    pub(crate) fn find(&self, list: &PrincipalSources) -> Option<&Principals> {
        self.all
            .iter()
            .find(|principals| principals.0.list == *list)
    }

    /// The keeper of the keys of tokens; all lists share one.
    async fn keys(
        &mut self,
        settings: &config::Jwt,
        metrics: Metrics,
        before: Option<&Directory>,
    ) -> Result<Arc<Keeper>, String> {
        if let Some(keys) = &self.keys {
            return Ok(keys.clone());
        }
        let known = before.and_then(|before| before.keys.as_deref());
        let keys = Arc::new(Keeper::start(settings, metrics, known).await?);
        Ok(self.keys.insert(keys).clone())
    }

    /// The client of the service to ask. All lists share it, with one limit on concurrent requests.
    fn asked(
        &mut self,
        url: &ServiceUrl,
        config: &Config,
        secret: &Secret,
    ) -> Result<Arc<ForwardAuth>, String> {
        if let Some((_, asked)) = self.asked.iter().find(|(known, _)| known == url) {
            return Ok(asked.clone());
        }
        let settings = config
            .forward_auth
            .as_ref()
            .ok_or("forward-auth needs [forward_auth] in the configuration")?;
        let asked = Arc::new(ForwardAuth::new(url, settings, secret)?);
        self.asked.push((url.clone(), asked.clone()));
        Ok(asked)
    }
}

impl Principals {
    /// The sender of webhooks, if requests are known by its signature.
    pub(crate) fn webhooks(&self) -> Option<&StandardWebhooks> {
        match &self.0.sources[..] {
            [Source::Webhooks(webhooks)] => Some(webhooks),
            _ => None,
        }
    }

    /// The caller, as [`Principals::check`] identified it, for the layer.
    pub(crate) fn established(parts: &Parts) -> Result<Principal, Rejection> {
        let found = parts.extensions.get::<Established>();
        found.map_or(
            Err(Rejection::PrincipalMissing {
                flaw: None,
                unread: None,
            }),
            |Established(found)| found.clone(),
        )
    }

    /// Identifies the caller and stores the result in the request, for the layer. Returns the
    /// answer if a credential is not valid or cannot be checked. A request without a credential is
    /// left to the layer, which checks the key first.
    pub(crate) async fn check(&self, parts: &mut Parts, client: &Client) -> Option<Response<Body>> {
        let found = match self.find(parts, client).await {
            Ok(principal) => Ok(principal),
            Err(refused) => match self.answer(refused) {
                Ok(response) => return Some(response),
                Err(rejection) => Err(rejection),
            },
        };
        parts.extensions.insert(Established(found));
        None
    }

    async fn find(&self, parts: &mut Parts, client: &Client) -> Result<Principal, Refused> {
        let Inner {
            list,
            sources,
            looks_at,
            anonymous,
            ..
        } = &*self.0;
        if matches!(sources[..], [Source::None]) {
            return Ok(Principal::Anonymous);
        }
        // Nobody is known by anything else in a webhook.
        if let [Source::Webhooks(webhooks)] = &sources[..] {
            return Ok(webhooks.principal());
        }
        // Before forward-auth adds fields about the caller to the request.
        let unread = anonymous.unread(parts);
        let mut said = Vec::with_capacity(sources.len());
        let told_of =
            |reason, looked_at: &Arc<str>, part: &Unread, headers: &HeaderMap, may_be_anonymous| {
                let unread = rejection::Unread {
                    looked_at: looked_at.clone(),
                    name: part.name().into(),
                    principal: part.source(headers).map(Into::into),
                    may_be_anonymous,
                };
                Refused::Unread(reason, Arc::new(unread))
            };
        let credential = unread.iter().find(|part| part.is_credential());
        for (source, looked_at) in sources.iter().zip(looks_at) {
            let found = source.principal(parts, client).await;
            said.push(found.map_err(|refused| match (refused, credential) {
                (Refused::Missing("missing"), Some(part)) => {
                    told_of("missing", looked_at, part, &parts.headers, false)
                }
                (Refused::Missing("scheme"), _) if matches!(source, Source::Jwt(_)) => {
                    Refused::Flawed("scheme", flaw("no_bearer", looked_at))
                }
                (Refused::Missing(reason), _) => Refused::Flawed(reason, flaw(reason, looked_at)),
                (refused, _) => refused,
            })?);
        }
        match credential.or(unread.first()) {
            Some(part) if said[0].is_none() => {
                return Err(told_of(
                    "unread_field",
                    &looks_at[0],
                    part,
                    &parts.headers,
                    part.may_be_anonymous(),
                ));
            }
            _ => self.notice(&unread),
        }
        Ok(match &mut said[..] {
            [one] => one.take().unwrap_or(Principal::Anonymous),
            several => list::join(list, several),
        })
    }

    /// Counts and logs the parts of a request that may identify its sender and that no source
    /// reads.
    fn notice(&self, unread: &[Unread]) {
        for (index, part) in unread
            .iter()
            .enumerate()
            .filter(|(_, part)| self.0.anonymous.is_notable(part))
        {
            self.0.notices.ignored(part);
            // One request counts once under each label.
            if !unread[..index]
                .iter()
                .any(|earlier| earlier.label() == part.label())
            {
                self.0.metrics.identity_field_ignored(part.label());
            }
        }
    }

    /// The immediate answer, or the rejection that the layer returns after it has checked the key.
    fn answer(&self, refused: Refused) -> Result<Response<Body>, Rejection> {
        let metrics = &self.0.metrics;
        match refused {
            Refused::Missing(reason) => {
                metrics.credentials_refused(reason);
                Err(Rejection::PrincipalMissing {
                    flaw: None,
                    unread: None,
                })
            }
            Refused::Flawed(reason, flaw) => {
                metrics.credentials_refused(reason);
                Err(Rejection::PrincipalMissing {
                    flaw: Some(flaw.into()),
                    unread: None,
                })
            }
            Refused::Unread(reason, unread) => {
                metrics.credentials_refused(reason);
                self.0.notices.refused(&unread);
                Err(Rejection::PrincipalMissing {
                    flaw: None,
                    unread: Some(unread),
                })
            }
            Refused::Invalid(flawed) => {
                metrics.credentials_refused(flawed.label());
                Ok(flawed.answer())
            }
            Refused::Unavailable(reason) => {
                metrics.principal_unavailable(reason);
                Ok(rejected(&Rejection::PrincipalUnavailable, RETRY_DIALECTS))
            }
            Refused::Elsewhere(response) => {
                metrics.credentials_refused("forward_auth");
                Ok(*response)
            }
        }
    }
}

impl Source {
    /// The caller by this source alone; `None` if the source is optional and the request lacks it.
    async fn principal(
        &self,
        parts: &mut Parts,
        client: &Client,
    ) -> Result<Option<Principal>, Refused> {
        match self {
            Source::None => Ok(None),
            Source::Webhooks(webhooks) => Ok(Some(webhooks.principal())),
            Source::Digest(digest) => digest.identify(&parts.headers).map_err(Refused::Missing),
            Source::Cookie(cookie) => cookie.identify(&parts.headers).map_err(Refused::Missing),
            Source::Header(header) => header
                .identify(&parts.headers, client)
                .map_err(Refused::Missing),
            // Boxed, because these futures are large and the other sources do not need the space.
            Source::Jwt(jwt) => Box::pin(jwt.identify(&parts.headers)).await.map(Some),
            Source::ForwardAuth(auth) => Box::pin(auth.identify(parts)).await.map(Some),
        }
    }
}

/// Says what is wrong in the place where a source looked.
fn flaw(reason: &str, looked_at: &str) -> String {
    let what = match reason {
        "missing" => "is missing",
        "repeated" => "was sent more than once",
        "scheme" => {
            "holds neither a Bearer nor a Basic credential, or one that changes with each request"
        }
        "no_bearer" => "does not hold a token as `Bearer TOKEN`",
        "untrusted_peer" => {
            "is taken only from the addresses in trusted_proxies, and this request comes from another"
        }
        _ => "cannot be read",
    };
    format!("The {looked_at} {what}.")
}

/// The values of a request that sources use without checking them; `None` if all sources check
/// theirs. The values may change between two tries of one request.
pub(crate) fn presented<'a>(
    sources: &PrincipalSources,
    headers: &'a HeaderMap,
) -> Option<Vec<Option<&'a [u8]>>> {
    let values = sources.iter().filter_map(|source| match source {
        PrincipalSource::Digest(field) => Some(headers.get(field).map(HeaderValue::as_bytes)),
        PrincipalSource::Cookie(name) => Some(cookie::values(headers, name).next()),
        _ => None,
    });
    let values: Vec<_> = values.collect();
    (!values.is_empty()).then_some(values)
}

/// The value of a field that occurs exactly once. `Err` is the reason otherwise.
fn only<'a>(headers: &'a HeaderMap, field: &HeaderName) -> Result<&'a [u8], &'static str> {
    let mut lines = headers.get_all(field).iter();
    let line = lines.next().ok_or("missing")?;
    // If there are two, the gateway cannot know which one another service uses.
    if lines.next().is_some() {
        Err("repeated")
    } else {
        Ok(line.as_bytes().trim_ascii())
    }
}

/// A name from a trusted source, if it is valid: nonempty text on one line.
fn name(value: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(value).ok()?;
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control))
        .then_some(name)
}
