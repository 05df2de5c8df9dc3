//! Reads how callers are identified: `[jwt]`, `[forward_auth]`, and what their sources need
//! elsewhere.

use std::str::FromStr;

use hapax::KeyRule;
use hapax::middleware::fields;
use http::HeaderName;
use jsonwebtoken::Algorithm;
use toml::de::DeValue;

use super::Overrides;
use super::section::Section;
use super::value::parse_texts;
use crate::config::jwt::is_shared;
use crate::config::settings::{Kind, Settings};
use crate::config::{
    AnonymousField, Audience, Config, ForwardAuth, Issuer, Jwt, PrincipalSource, PrincipalSources,
    ServiceUrl, StandardWebhooks, text,
};

/// `[jwt]`, if present. Mistakes are reported.
pub(super) fn jwt(section: &Section<'_>) -> Option<Jwt> {
    if !section.is_present() {
        return None;
    }
    let jwt = Jwt::read(Some(section));
    keys_fit(section, &jwt.algorithms);
    require(
        section,
        "issuer",
        "issuer = \"https://id.example.com\", as `iss` in its tokens says, or \"any\"",
    );
    require(
        section,
        "audience",
        "audience = \"…\", as `aud` in tokens for this service says, or \"any\"",
    );
    let keys_scheme = jwt
        .keys_url
        .as_ref()
        .and_then(|url| url.expose().scheme_str());
    if jwt.ca_file.is_some() && keys_scheme != Some("https") {
        section.mistake(
            &["ca_file"],
            "`ca_file` is for a `keys_url` with https, and there is none: leave it out",
        );
    }
    ages(section, &jwt);
    Some(jwt)
}

fn require(section: &Section<'_>, name: &str, write: &str) {
    if !section.has(name) {
        section.mistake(
            &[],
            format!("{} lacks `{name}`: write {write}", section.header()),
        );
    }
}

/// The algorithms that may sign tokens; a token's header never chooses them. The default is what
/// most issuers use.
pub(crate) fn algorithms(section: &Section<'_>) -> Option<Vec<Algorithm>> {
    if !section.has("algorithms") {
        let (algorithm, word) = if section.has("secret_file") {
            (Algorithm::HS256, "HS256")
        } else {
            (Algorithm::RS256, "RS256")
        };
        section.report_follows("algorithms", vec![word], "default");
        return Some(vec![algorithm]);
    }
    let algorithms = section.get("algorithms", |value, _| {
        parse_texts("RS256", algorithm, value)
    })?;
    let shared = algorithms.iter().filter(|one| is_shared(**one)).count();
    if shared > 0 && shared < algorithms.len() {
        section.mistake(
            &["algorithms"],
            "a public key would pass for the secret of HS256: write either HS256, HS384, HS512, or \
             others, but not both kinds",
        );
        return None;
    }
    Some(algorithms)
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    if text.eq_ignore_ascii_case("none") {
        return Err(
            "`none` is no signature: anybody could make such a token; write the algorithm that the issuer signs with".to_owned()
        );
    }
    Algorithm::from_str(text).map_err(|_| match Algorithm::from_str(&text.to_ascii_uppercase()) {
        Ok(_) => format!("`{text}` is written \"{}\"", text.to_ascii_uppercase()),
        Err(_) if text.eq_ignore_ascii_case("eddsa") => format!("`{text}` is written \"EdDSA\""),
        Err(_) => format!("`{text}` is no algorithm for signatures: there are RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA, HS256, HS384, HS512"),
    })
}

/// Reports keys that are missing, given twice, or of the wrong kind for the algorithms.
fn keys_fit(section: &Section<'_>, algorithms: &[Algorithm]) {
    const PLACES: [&str; 3] = ["keys_file", "keys_url", "secret_file"];
    let written: Vec<_> = PLACES
        .into_iter()
        .filter(|name| section.has(name))
        .collect();
    match written[..] {
        [] => section.mistake(
            &[],
            "[jwt] lacks its keys: write keys_url = \"https://…\" or keys_file = \"jwks.json\", or secret_file for HS256",
        ),
        [one, other, ..] => section.mistake(&[other], format!("`{one}` and `{other}` are both there: keep one of them")),
        _ => {}
    }
    let is_shared = algorithms.first().copied().is_some_and(is_shared);
    if let [place @ ("keys_file" | "keys_url")] = written[..]
        && is_shared
    {
        section.mistake(
            &[place],
            format!(
                "HS256 and its like have no public keys: write secret_file instead of `{place}`"
            ),
        );
    }
    if written == ["secret_file"] && !is_shared && !algorithms.is_empty() {
        let message = "a secret is for HS256, HS384 and HS512: write keys_file or keys_url instead, or one of those in `algorithms`";
        section.mistake(&["secret_file"], message);
    }
}

pub(crate) fn issuer(text: &str) -> Result<Issuer, String> {
    match text {
        "any" => Ok(Issuer::Any),
        "" => {
            Err("an issuer has a name: write what `iss` in its tokens says, or \"any\"".to_owned())
        }
        // A space separates the parts of a principal's name.
        _ if text.chars().any(|c| c.is_whitespace() || c.is_control()) => Err(format!(
            "`{}` has a space in it: write what `iss` in the tokens says",
            text.escape_debug()
        )),
        _ => Ok(Issuer::Just(text.into())),
    }
}

pub(crate) fn audience(value: &DeValue<'_>, _: Kind) -> Result<Audience, String> {
    let one = |text: &str| match text {
        "" => Err(
            "an audience has a name: write what `aud` in the tokens says, or \"any\"".to_owned(),
        ),
        _ => Ok(text.to_owned()),
    };
    let audiences = parse_texts("https://api.example.com", one, value)?;
    match &audiences[..] {
        [any] if any == "any" => Ok(Audience::Any),
        _ if audiences.iter().any(|audience| audience == "any") => Err(
            "\"any\" stands alone: write audience = \"any\", or leave it out of the list"
                .to_owned(),
        ),
        _ => Ok(Audience::OneOf(audiences)),
    }
}

fn ages(section: &Section<'_>, jwt: &Jwt) {
    if jwt.keys_file.is_some() || jwt.secret_file.is_some() {
        if section.has("refresh") {
            section.mistake(
                &["refresh"],
                "`refresh` is for keys_url: a file is read again when it changes; leave it out",
            );
        }
        return;
    }
    if jwt.stale_max < jwt.refresh {
        let (stale, refresh) = (text::spelled(jwt.stale_max), text::spelled(jwt.refresh));
        section.mistake(
            &["stale_max", "refresh"],
            format!("`stale_max` ({stale}) is under `refresh` ({refresh}): keys would go stale before they are asked for again; lengthen the one or shorten the other"),
        );
    }
}

/// `[forward_auth]`, if present. Mistakes are reported.
pub(super) fn forward_auth(section: &Section<'_>) -> Option<ForwardAuth> {
    if !section.is_present() {
        return None;
    }
    let auth = ForwardAuth::read(Some(section));
    require(
        section,
        "principal_field",
        "principal_field = \"x-auth-user\", the field of its answer that names the caller",
    );
    if let Some(both) = auth.pass.iter().find(|name| auth.forward.contains(name)) {
        section.mistake(&["pass"], never_shown(both));
    }
    Some(auth)
}

/// `[standard_webhooks]`, if present. Mistakes are reported.
pub(super) fn standard_webhooks(section: &Section<'_>) -> Option<StandardWebhooks> {
    if !section.is_present() {
        return None;
    }
    require(
        section,
        "secret_directory",
        "secret_directory = \"/etc/hapax/webhooks\", in which the file of a sender has its secrets",
    );
    Some(StandardWebhooks::read(Some(section)))
}

pub(crate) fn field(text: &str) -> Result<HeaderName, String> {
    HeaderName::from_str(text).map_err(|_| {
        format!("`{text}` is not the name of a header field: write x-auth-user, for example")
    })
}

/// A field of the request that is sent to the service, in addition to those that always are.
/// Hop-by-hop fields and the body's length would not be valid in that request.
pub(crate) fn shown(text: &str) -> Result<HeaderName, String> {
    let name = field(text)?;
    let told = name
        .as_str()
        .strip_prefix("x-forwarded-")
        .map(|what| ["method", "uri", "host", "proto", "for"].contains(&what));
    let is_told = told.unwrap_or_else(|| ["x-request-id", "traceparent"].contains(&name.as_str()));
    if fields::CREDENTIALS.contains(&name) || is_told {
        return Err(format!(
            "`{name}` is for the gateway to show, which it does without being told: leave it out of `forward`"
        ));
    }
    if !fields::is_plain(name.as_str()) {
        return Err(format!(
            "`{name}` is one of many spellings that some servers cannot tell apart: name a field of letters, digits and hyphens"
        ));
    }
    if fields::is_ours(&name) {
        return Err(format!(
            "`{name}` concerns one connection or a body, or is set by the gateway, and is not for the service: leave it out of `forward`"
        ));
    }
    Ok(name)
}

/// Why a field cannot be both sent to the service and taken from its answer: fields in `pass` are
/// removed from every client request before the service is asked.
fn never_shown(name: &HeaderName) -> String {
    format!(
        "`{name}` is what the service is shown, and a field in `pass` is taken off every request of clients: nobody could show it any more; \
         let the service answer with another field, x-auth-token for example, and pass that"
    )
}

/// A field that the gateway takes from the service's answer. It must not be one that the gateway
/// sets or reads itself.
pub(crate) fn passed(text: &str) -> Result<HeaderName, String> {
    let name = field(text)?;
    if fields::is_ours(&name) || fields::is_keys(&name) {
        return Err(format!(
            "`{name}` is a field that the gateway itself sets or reads: leave it out of `pass`"
        ));
    }
    if fields::CREDENTIALS.contains(&name) {
        return Err(never_shown(&name));
    }
    Ok(name)
}

/// `principal`, for all routes or for one.
pub(crate) fn sources(value: &DeValue<'_>, _: Kind) -> Result<PrincipalSources, String> {
    parse_texts("digest:authorization", PrincipalSource::from_str, value)
        .and_then(PrincipalSources::new)
}

/// Checks what the sources need, and reports sections that no source uses.
pub(super) fn check(
    top: &Section<'_>,
    [jwt, forward_auth, webhooks]: [&Section<'_>; 3],
    routes: &[Section<'_>],
    config: &Config,
    overrides: &Overrides,
) {
    // Each list, with the section that sets it.
    let mut lists = vec![(top, config.principal.clone())];
    lists.extend(
        routes
            .iter()
            .filter_map(|route| Some((route, route.peek("principal", sources)?))),
    );
    for (section, list) in &lists {
        for source in list.iter() {
            match source {
                PrincipalSource::Jwt(_) if !jwt.is_present() => section.mistake(
                    &["principal"],
                    format!("`{source}` needs [jwt] in the configuration: with `issuer`, `audience` and `keys_url` or `keys_file`"),
                ),
                PrincipalSource::ForwardAuth(_) if !forward_auth.is_present() => section.mistake(
                    &["principal"],
                    "forward-auth needs [forward_auth] in the configuration: write principal_field = \"x-auth-user\" in it",
                ),
                PrincipalSource::StandardWebhooks(_) if !webhooks.is_present() => section.mistake(
                    &["principal"],
                    format!("`{source}` needs [standard_webhooks] in the configuration: write secret_directory = \"/etc/hapax/webhooks\" in it"),
                ),
                _ => {}
            }
        }
        has_proxies(section, top, list, config);
        anonymous_apart(top, list, config);
    }
    webhooks_have_keys(top, routes, config, overrides);
    let url = one_service(&lists);
    key_fields_apart([top, jwt, forward_auth], &lists, config, overrides);
    // A flag may try out another source without changing the file.
    if overrides.principal.is_some() {
        return;
    }
    let source = &config.principal;
    let is_jwt = |source: &PrincipalSource| matches!(source, PrincipalSource::Jwt(_));
    if jwt.is_present() && !lists.iter().any(|(_, list)| list.iter().any(is_jwt)) {
        jwt.mistake(
            &[],
            format!("[jwt] is for principal = \"jwt:sub\", and it is \"{source}\": write the one or remove the other"),
        );
    }
    if forward_auth.is_present() && url.is_none() {
        forward_auth.mistake(
            &[],
            format!(
                "[forward_auth] is for principal = \"forward-auth:URL\", and it is \"{source}\": write the one or remove the other"
            ),
        );
    }
    if let (Some(url), Some(auth)) = (url, &config.forward_auth)
        && auth.ca_file.is_some()
        && url.expose().scheme_str() == Some("http")
    {
        forward_auth.mistake(
            &["ca_file"],
            "`ca_file` is for a service with https, and this one has http: leave it out",
        );
    }
}

/// The service that forward-auth asks. `[forward_auth]` describes only one.
fn one_service(lists: &[(&Section<'_>, PrincipalSources)]) -> Option<ServiceUrl> {
    let mut first: Option<ServiceUrl> = None;
    for (section, list) in lists {
        for source in list.iter() {
            let PrincipalSource::ForwardAuth(url) = source else {
                continue;
            };
            if first.as_ref().is_some_and(|first| first != url) {
                section.mistake(
                    &["principal"],
                    "[forward_auth] describes one service, and another route asks another: write the same forward-auth:URL on both",
                );
            }
            first.get_or_insert_with(|| url.clone());
        }
    }
    first
}

/// A route for webhooks takes nothing else: the key of each is its id, and each is verified.
fn webhooks_have_keys(
    top: &Section<'_>,
    routes: &[Section<'_>],
    config: &Config,
    overrides: &Overrides,
) {
    let is_flagged = overrides.principal.is_some();
    if let Some(sender) = config.principal.webhooks().filter(|_| !is_flagged) {
        top.mistake(
            &["principal"],
            format!("`standard-webhooks:{sender}` is for the routes on which this sender's webhooks arrive: write it into [[routes]]"),
        );
    }
    for (section, route) in routes.iter().zip(&config.routes) {
        let Some(sender) = route
            .principal
            .as_ref()
            .and_then(PrincipalSources::webhooks)
        else {
            continue;
        };
        let policy = &route.policy;
        if policy.key != KeyRule::Required || &*policy.key_field != "webhook-id" {
            section.mistake(
                &["principal"],
                format!("webhooks of `{sender}` have their key in webhook-id, and each has one: write key = \"required\" and key_field = \"webhook-id\" too"),
            );
        }
        if policy.shadow {
            section.mistake(
                &["shadow"],
                "a shadow refuses nothing, and unsigned webhooks must be refused: leave it out",
            );
        }
    }
}

/// A field that identifies the caller is trusted only from configured proxies.
fn has_proxies(section: &Section<'_>, top: &Section<'_>, list: &PrincipalSources, config: &Config) {
    let source = list.first();
    let PrincipalSource::Header(field) = source else {
        return;
    };
    if !config.trusted_proxies.is_empty() {
        return;
    }
    if top.has("trusted_proxies") {
        top.mistake(
            &["trusted_proxies"],
            format!("`{source}` believes only these, and there is none: name the proxies"),
        );
    } else {
        section.mistake(
            &["principal"],
            format!(
                "`{source}` believes only proxies that are named: write trusted_proxies = [\"10.0.0.7\"], or whoever sets {field}"
            ),
        );
    }
}

/// A field that carries keys cannot identify the caller, and must not be removed.
fn key_fields_apart(
    [top, jwt, forward_auth]: [&Section<'_>; 3],
    lists: &[(&Section<'_>, PrincipalSources)],
    config: &Config,
    overrides: &Overrides,
) {
    let mut settings: Vec<(&Section<'_>, &str, Vec<HeaderName>)> = Vec::new();
    let is_one = |wanted: fn(&PrincipalSource) -> bool| {
        lists.iter().any(|(_, list)| list.iter().any(wanted))
    };
    for (section, list) in lists {
        let named = list.iter().filter(|source| {
            !matches!(
                source,
                PrincipalSource::Jwt(_) | PrincipalSource::ForwardAuth(_)
            )
        });
        settings.extend(named.map(|source| {
            (
                *section,
                "principal",
                source.fields(config).into_iter().cloned().collect(),
            )
        }));
    }
    if let Some(token) = config
        .jwt
        .as_ref()
        .filter(|_| is_one(|source| matches!(source, PrincipalSource::Jwt(_))))
    {
        settings.push((jwt, "field", vec![token.field.clone()]));
    }
    if let Some(auth) = config
        .forward_auth
        .as_ref()
        .filter(|_| is_one(|source| matches!(source, PrincipalSource::ForwardAuth(_))))
    {
        settings.push((forward_auth, "forward", auth.forward.clone()));
        settings.push((forward_auth, "pass", auth.pass.clone()));
    }
    let carries_keys = |field: &&HeaderName| {
        fields::is_keys(field)
            || config
                .all_routes()
                .iter()
                .any(|route| route.policy.key_field.eq_ignore_ascii_case(field.as_str()))
    };
    for (section, setting, fields) in settings {
        // The default source is never a key's field.
        let is_written =
            section.has(setting) || (std::ptr::eq(section, top) && overrides.principal.is_some());
        if let Some(field) = fields.iter().find(carries_keys).filter(|_| is_written) {
            section.mistake(
                &[setting],
                format!("`{field}` carries keys, and a key says nothing of who is asking: name another field"),
            );
        }
    }
}

/// A field that identifies callers cannot be declared anonymous.
fn anonymous_apart(top: &Section<'_>, list: &PrincipalSources, config: &Config) {
    for source in list.iter() {
        let fields = source.fields(config);
        let is_read = |anonymous: &&AnonymousField| matches!(anonymous, AnonymousField::Header(field) if fields.contains(&field));
        if let Some(both) = config.anonymous_fields.iter().find(is_read) {
            top.mistake(
                &["anonymous_fields"],
                format!("`{both}` is what `{source}` knows callers by, and cannot identify nobody: leave it out of one of the two"),
            );
        }
    }
}
