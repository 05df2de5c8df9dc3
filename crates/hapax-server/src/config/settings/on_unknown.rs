//! The settings of the webhook about unknown outcomes.

use std::path::PathBuf;

use hapax_flow::publish::webhook::{Endpoint, EndpointError, Network, NetworkError};

use super::declare::{display, file, list, settings, shown_text, texts};
use super::relay::{compared, whole_path};
use crate::config::file::value::parse_texts;
use crate::destination::Destination;

settings! {
    /// Who is told of unknown outcomes: `[on_unknown]`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OnUnknown {
        /// where requests go: `https://HOST/PATH`, or `http` to this machine
        url: Destination = required,
            shown_text(webhook, display).compared_by(compared).at_start(),
            "https://ops.internal/hooks/hapax";
        /// files with a secret each (`whsec_…` or `whsk_…`), by whole paths. Requests are signed with
        /// each of them: two are a rotation
        secret_files: Vec<String> = none,
            texts(|value, _| parse_texts("/etc/hapax/webhook.secret", whole_path, value), list)
            .at_start(),
            "[\"/etc/hapax/webhook.secret\"]";
        /// networks that requests may go to although they are not of the open internet
        allow_networks: Vec<Network> = none,
            texts(
                |value, _| {
                    parse_texts("10.0.0.0/8", |text| text.parse().map_err(|error: NetworkError| error.to_string()), value)
                },
                list,
            )
            .at_start(),
            "[\"10.0.0.0/8\"]";
        /// certificate authorities that the receiver may have, in PEM
        ca_file: Option<PathBuf> = none, file().at_start(), "ca.pem";
    }
}

/// The URL of a webhook. What is wrong with it is said without it, because it may be a secret.
fn webhook(text: &str) -> Result<Destination, String> {
    match Endpoint::new(text).check() {
        Ok(()) => Ok(Destination::Webhook(text.to_owned())),
        Err(EndpointError::Http(host)) => Err(format!(
            "this is http, and {host} is not this machine: use https"
        )),
        Err(error) => Err(error.to_string()),
    }
}
