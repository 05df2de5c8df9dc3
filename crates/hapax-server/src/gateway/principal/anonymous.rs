//! Finds the parts of a request that may identify its sender although no principal source reads
//! them.

use hapax::middleware::fields::{CREDENTIALS, is_ours, is_plain};
use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName};
use http::request::Parts;

use super::cookie;
use crate::config::{AnonymousField, Config, CookieName, PrincipalSource, PrincipalSources};
use crate::credentials::{credential_parameter, identifies_nobody, is_credential_field};

/// A part of a request that may identify its sender, and that no setting covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    Field(HeaderName),
    /// A query parameter, by its name in the list of known credentials.
    Parameter(&'static str),
}

impl Unread {
    /// The name under which `anonymous_fields` lists it.
    pub(super) fn name(&self) -> String {
        match self {
            Unread::Field(field) => field.to_string(),
            Unread::Parameter(name) => format!("query:{name}"),
        }
    }

    /// The label of the metric that counts it.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Unread::Field(field) if *field == COOKIE => "cookie",
            Unread::Field(field) if *field == AUTHORIZATION => "authorization",
            Unread::Field(_) => "other",
            Unread::Parameter(_) => "query",
        }
    }

    /// Whether it is a credential in every service.
    pub(super) fn is_credential(&self) -> bool {
        match self {
            Unread::Field(field) => is_credential_field(field),
            Unread::Parameter(_) => true,
        }
    }

    /// The principal source that would read it, if there is one. For cookies, the source names the
    /// one that looks like a session cookie.
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

    /// Whether `anonymous_fields` can list it.
    pub(super) fn may_be_anonymous(&self) -> bool {
        self.name().parse::<AnonymousField>().is_ok()
    }
}

/// Finds the parts of a request that may identify its sender, under one configuration.
pub(super) struct Anonymous {
    /// Fields that need no check: the sources read them, they carry keys, or the configuration
    /// declares them anonymous.
    fields: Vec<HeaderName>,
    /// Cookies that the sources read.
    cookies: Vec<CookieName>,
    /// Query parameters that the configuration declares anonymous.
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
        // An explicitly configured principal says what identifies callers, so the query is not
        // checked then.
        Anonymous {
            fields,
            cookies,
            parameters,
            judges_query: sources.is_default(),
        }
    }

    /// The parts of a request that may identify its sender and that no source reads.
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

    /// Whether there are cookies that no source reads. Each may be a session cookie.
    fn has_other_cookies(&self, headers: &HeaderMap) -> bool {
        let is_read = |name: &[u8]| {
            self.cookies
                .iter()
                .any(|read| read.as_str().as_bytes() == name)
        };
        self.cookies.is_empty() || cookie::pairs(headers).any(|(name, _)| !is_read(name))
    }

    /// Whether to report a part that comes in addition to what the sources read. A configuration
    /// that reads one cookie has chosen among all cookies, so others are not reported.
    pub(super) fn is_notable(&self, part: &Unread) -> bool {
        self.cookies.is_empty() || !matches!(part, Unread::Field(field) if *field == COOKIE)
    }
}
