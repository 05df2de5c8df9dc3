//! What is wrong with a configuration beyond its text: the files it names, read by those who will
//! use them.
//!
//! One place for `hapax config check` and for a start, so that the one does not say ok to what the
//! other refuses.

use hapax::core::Secret;

use super::listen;
use super::principal::Directory;
use super::upstream::{Dialer, Proxy, Tunnels};
use crate::config::{Config, PrincipalSource, PrincipalSources, Upstream};
use crate::telemetry::Metrics;

/// Everything that a start would refuse, each with its setting and its file. Nothing is listened
/// on, no store is opened, nobody is asked.
pub async fn mistakes(config: &Config) -> Vec<String> {
    let admin = config
        .admin_mistake()
        .map(|mistake| format!("admin: {mistake}"));
    let tls = config
        .tls
        .as_ref()
        .and_then(|tls| listen::acceptor(tls).err());
    let proxy = Proxy::new(config, Metrics::new(), Tunnels::default()).err();
    [admin, tls, proxy, principals(config).await]
        .into_iter()
        .flatten()
        .collect()
}

async fn principals(config: &Config) -> Option<String> {
    let is_jwt = |source: &PrincipalSource| matches!(source, PrincipalSource::Jwt(_));
    let mut lists: Vec<Vec<PrincipalSource>> = config
        .principals()
        .iter()
        .map(|list| list.iter().cloned().collect())
        .collect();
    if let Some(jwt) = &config.jwt
        && let Some(url) = &jwt.keys_url
        && lists.iter().flatten().any(is_jwt)
    {
        // Whether keys can be had there is not for now: a URL that does not answer may yet.
        let service = Upstream {
            ca_file: jwt.ca_file.clone(),
            ..Upstream::new(url.expose().clone())
        };
        if let Err(mistake) = Dialer::new(&service, "jwt") {
            return Some(mistake);
        }
        lists
            .iter_mut()
            .for_each(|list| list.retain(|source| !is_jwt(source)));
    }
    let lists: Vec<PrincipalSources> = lists
        .into_iter()
        .filter_map(|list| PrincipalSources::new(list).ok())
        .collect();
    // No request is ever looked at with it, so that the secret is of no matter.
    let secret = Secret::from_bytes([0; 32]);
    Directory::start(
        &lists.iter().collect::<Vec<_>>(),
        config,
        secret,
        Metrics::new(),
        None,
    )
    .await
    .err()
}
