//! Checks on addresses: which must differ, and which must not be reachable.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Overrides;
use super::section::Section;
use crate::config::{Config, Secret};

/// Refuses an admin address that is also the gateway's. The mistake points at the setting, if an
/// address came from one.
pub(super) fn apart(top: &Section<'_>, config: &Config, overrides: &Overrides) {
    let (listen, Some(admin)) = (config.listen, config.admin) else {
        return;
    };
    if !is_reached(listen, admin.ip(), admin.port()) {
        return;
    }
    let message = format!(
        "listen ({listen}) and admin ({admin}) are one address: give one of them another port, or turn admin \"off\""
    );
    match (overrides.listen, overrides.admin) {
        (None, None) if top.has("admin") || top.has("listen") => {
            top.mistake(&["admin", "listen"], message);
        }
        (_, None) if top.has("admin") => top.mistake(&["admin"], message),
        (None, _) if top.has("listen") => top.mistake(&["listen"], message),
        _ => top.mistake_nowhere(message),
    }
}

/// Whether a connection to this address and port reaches `listener`.
fn is_reached(listener: SocketAddr, address: IpAddr, port: u16) -> bool {
    let same_interface = listener.ip() == address
        || address.is_unspecified()
        || (listener.ip().is_unspecified()
            && (address.is_loopback() || address.is_ipv4() == listener.is_ipv4()));
    listener.port() == port && port != 0 && same_interface
}

/// Refuses an upstream that is the gateway itself: each request would loop.
pub(super) fn no_loop(section: &Section<'_>, config: &Config, overrides: &Overrides) {
    let url = &config.upstream.url;
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let address = if host.eq_ignore_ascii_case("localhost") {
        Some(Ipv4Addr::LOCALHOST.into())
    } else {
        host.parse::<IpAddr>().ok()
    };
    let Some(address) = address else { return };
    let port = url
        .port_u16()
        .unwrap_or(if url.scheme_str() == Some("https") {
            443
        } else {
            80
        });
    // Only loopback certainly means this machine: another address under an unspecified listener may
    // belong to another machine.
    let is_own = |listener: SocketAddr| {
        is_reached(listener, address, port)
            && (listener.ip() == address || address.is_loopback() || address.is_unspecified())
    };
    let own = [("listen", Some(config.listen)), ("admin", config.admin)];
    let Some((name, listener)) = own
        .into_iter()
        .find_map(|(name, listener)| Some((name, listener.filter(|one| is_own(*one))?)))
    else {
        return;
    };
    let message = format!(
        "the upstream is the gateway itself (`{name}` is {listener}): give the port of the service behind it"
    );
    if overrides.upstream.is_some() {
        section.mistake_nowhere(message);
    } else {
        section.mistake(&["url"], message);
    }
}

pub(super) fn admin_is_guarded(top: &Section<'_>, config: &Config, overrides: &Overrides) {
    // A token that was refused as a mistake still counts as set.
    let is_read = |name: &str, file: &str, token: &Option<Secret>| {
        token.is_some() || !(top.has(name) || top.has(file))
    };
    if is_read("admin_token", "admin_token_file", &config.admin_token)
        && is_read("settle_token", "settle_token_file", &config.settle_token)
        && let Some(message) = config.admin_mistake()
    {
        let settings = ["admin", "settle_token", "settle_token_file"];
        if overrides.admin.is_some() {
            top.mistake_nowhere(message);
        } else {
            top.mistake(&settings, message);
        }
    }
}
