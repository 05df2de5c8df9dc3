//! Finds mistakes of a configuration beyond its text, by loading the files it names with the code
//! that uses them.
//!
//! `hapax config check` and the start share this, so that the check does not accept what the start
//! refuses.

use hapax::core::Secret;

use super::listen;
use super::principal::Directory;
use super::upstream::{Dialer, Proxy, Tunnels};
use crate::config::{Config, PrincipalSource, PrincipalSources, Upstream};
use crate::publishers;
use crate::telemetry::Metrics;

/// Everything that a start would refuse, each with its setting and its file. It opens no listener
/// and no store, and asks no other service.
pub async fn mistakes(config: &Config) -> Vec<String> {
    let admin = config
        .admin_mistake()
        .map(|mistake| format!("admin: {mistake}"));
    let store = config.store_mistakes().into_iter();
    let store = store.map(|(setting, mistake)| format!("{setting}: {mistake}"));
    let tls = config
        .tls
        .as_ref()
        .and_then(|tls| listen::acceptor(tls).err());
    let proxy = Proxy::new(config, Metrics::new(), Tunnels::default()).err();
    let relays = config.relays.iter().filter_map(|relay| {
        let mistake = publishers::of_relay(relay).err()?;
        Some(format!("relay.{}: {mistake}", relay.reader))
    });
    let on_unknown = config
        .on_unknown
        .as_ref()
        .and_then(|on_unknown| publishers::of_on_unknown(on_unknown).err());
    let on_unknown = on_unknown.map(|mistake| format!("on_unknown: {mistake}"));
    let others = [tls, proxy, on_unknown, principals(config).await];
    admin
        .into_iter()
        .chain(store)
        .chain(relays)
        .chain(others.into_iter().flatten())
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
        // The URL is not fetched now: one that does not answer may do so later.
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
    // No request is checked with it, so the secret does not matter.
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
