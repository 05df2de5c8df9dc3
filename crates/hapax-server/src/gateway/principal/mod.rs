//! Who is asking.
//!
//! Whoever is mistaken for another could be given the other's answer, so a guarded request is asked
//! who sends it before anything is asked of its key. `digest.rs`, `cookie.rs` and `header.rs` tell
//! it from the request's head alone; `jwt/` verifies a token with keys that somebody else may
//! change, and `forward_auth.rs` asks another service, each time anew. `fetch.rs` is how both ask.
//! `anonymous.rs` has the list of fields that identify nobody, `list.rs` makes one name of several
//! sources, and `notice.rs` tells the log of fields that no setting covers.
//!
//! The names of principals begin with their source and say by what they are known, with a space
//! between the parts, so that no two sources, fields, claims, issuers or services ever share one:
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

use std::sync::Arc;

use hapax::core::{Secret, rejection};
use hapax::middleware::rejected;
use hapax::{Body, Principal, Rejection};
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
use crate::telemetry::Metrics;

/// The longest name that a caller may have: it stands in each of its records.
const NAME_BYTES_MAX: usize = 512;

/// Tells who is asking, by every list of sources that the routes of a configuration have. What asks
/// others is shared between lists.
pub(crate) struct Directory {
    all: Vec<Principals>,
    keys: Option<Arc<Keeper>>,
    asked: Vec<(ServiceUrl, Arc<ForwardAuth>)>,
    /// Shared with the configuration before, so that a reload repeats nothing.
    notices: Arc<Notices>,
}

/// Tells who is asking, by one list of sources. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Principals(Arc<Inner>);

struct Inner {
    list: PrincipalSources,
    /// What the list says, in its order.
    sources: Vec<Source>,
    /// Where each of them looks, in words.
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
}

/// What was found out of who is asking. Left in the request for the layer.
#[derive(Clone)]
struct Established(Result<Principal, Rejection>);

/// Why nobody is known to be asking. The words are labels of metrics.
enum Refused {
    /// The request does not say who is asking.
    Missing(&'static str),
    /// The same, with what is wrong as a sentence.
    Flawed(&'static str, String),
    /// It may say so where nobody looks. The first is why it counts as missing.
    Unread(&'static str, Arc<rejection::Unread>),
    /// What it says was checked and is not good.
    Invalid(jwt::Flawed),
    /// It cannot be checked now.
    Unavailable(&'static str),
    /// Another service has said no, in its own words.
    Elsewhere(Box<Response<Body>>),
}

impl Directory {
    /// Starts these lists of sources of a configuration. Keys of tokens are there when this
    /// returns, or it has been told that they are not; `before` is what was at work until now,
    /// whose keys stay good where they come from the same place.
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

    /// What tells who is asking by this list.
    pub(crate) fn find(&self, list: &PrincipalSources) -> Option<&Principals> {
        self.all
            .iter()
            .find(|principals| principals.0.list == *list)
    }

    /// The keys of tokens, one keeper for all lists.
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

    /// The service that is asked, with one limit on questions at the same time for all lists.
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
    /// Who is asking, as [`Principals::check`] found it, for the layer.
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

    /// Finds out who is asking and leaves it in the request, for the layer. Returns what to answer
    /// if that is not good, or cannot be checked; who says nothing of himself is left to the layer,
    /// which looks at the key first.
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
        // Before forward-auth adds to the request what it says of the caller.
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

    /// Counts parts of a request that may identify its sender beside what the sources read, and
    /// tells the log.
    fn notice(&self, unread: &[Unread]) {
        for (index, part) in unread
            .iter()
            .enumerate()
            .filter(|(_, part)| self.0.anonymous.is_notable(part))
        {
            self.0.notices.ignored(part);
            // One request counts once under each word.
            if !unread[..index]
                .iter()
                .any(|earlier| earlier.label() == part.label())
            {
                self.0.metrics.identity_field_ignored(part.label());
            }
        }
    }

    /// What is answered at once, or what the layer answers when it has looked at the key.
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
                Ok(rejected(&Rejection::PrincipalUnavailable))
            }
            Refused::Elsewhere(response) => {
                metrics.credentials_refused("forward_auth");
                Ok(*response)
            }
        }
    }
}

impl Source {
    /// Who is asking by this source alone; `None` if the request says nothing there and need not.
    async fn principal(
        &self,
        parts: &mut Parts,
        client: &Client,
    ) -> Result<Option<Principal>, Refused> {
        match self {
            Source::None => Ok(None),
            Source::Digest(digest) => digest.identify(&parts.headers).map_err(Refused::Missing),
            Source::Cookie(cookie) => cookie.identify(&parts.headers).map_err(Refused::Missing),
            Source::Header(header) => header
                .identify(&parts.headers, client)
                .map_err(Refused::Missing),
            // Boxed, so that the others need not carry their room.
            Source::Jwt(jwt) => Box::pin(jwt.identify(&parts.headers)).await.map(Some),
            Source::ForwardAuth(auth) => Box::pin(auth.identify(parts)).await.map(Some),
        }
    }
}

/// What is wrong where a source looked.
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

/// What a request presents where nobody checks it, for each source that reads it so; `None` if all
/// are checked. It may change between two tries of one request.
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

/// The value of a field that stands once. `Err` says why there is none.
fn only<'a>(headers: &'a HeaderMap, field: &HeaderName) -> Result<&'a [u8], &'static str> {
    let mut lines = headers.get_all(field).iter();
    let line = lines.next().ok_or("missing")?;
    // Which of two somebody else believes is not ours to guess.
    if lines.next().is_some() {
        Err("repeated")
    } else {
        Ok(line.as_bytes().trim_ascii())
    }
}

/// A name that somebody vouches for, if it can be one: some text on one line.
fn name(value: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(value).ok()?;
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control))
        .then_some(name)
}
