//! Whether a stream can take the messages.

use hapax_core::flow::limits;
use serde::Deserialize;

use super::options::NatsOptions;
use super::subject::{Template, overlap};
use crate::nats::{ApiError, Connection, NatsError, is_name};

/// More than the names that we add to the headers of a message.
const HEADER_BYTES_OWN: usize = 4 * 1024;

#[derive(Deserialize)]
struct Information {
    error: Option<ApiError>,
    config: Option<Configuration>,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    subjects: Vec<String>,
    #[serde(default)]
    no_ack: bool,
    #[serde(default)]
    sealed: bool,
}

/// Checks the stream of the options, if they name one.
pub(super) async fn check(
    connection: &Connection,
    options: &NatsOptions,
    template: &Template,
) -> Result<(), NatsError> {
    warn_of_small_payloads(connection);
    let Some(name) = &options.stream else {
        return Ok(());
    };
    let failed = |reason| NatsError::Stream {
        name: name.clone(),
        reason,
    };
    if !is_name(name) {
        return Err(failed("this cannot be the name of a stream".to_owned()));
    }
    let question = format!("STREAM.INFO.{name}");
    let answer = connection
        .ask(&question, Vec::new(), options.servers.timeout)
        .await
        .map_err(|reason| NatsError::Unavailable(format!("{}: {reason}", connection.server())))?;
    let pattern = template.pattern();
    let configuration = configuration(&answer, name, &pattern).map_err(failed)?;
    fault(&configuration, name, &pattern).map_or(Ok(()), |reason| Err(failed(reason)))
}

fn configuration(answer: &[u8], name: &str, pattern: &str) -> Result<Configuration, String> {
    let information: Information =
        serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    match information {
        Information {
            error: Some(error), ..
        } if error.code == 404 => Err(format!(
            "there is no such stream. Make it: nats stream add {name} --subjects '{pattern}' --defaults"
        )),
        Information {
            error: Some(error), ..
        } => Err(error.description),
        Information { config, .. } => config.ok_or_else(|| "its description is empty".to_owned()),
    }
}

fn fault(stream: &Configuration, name: &str, pattern: &str) -> Option<String> {
    let takes = |subject: &String| overlap(subject, pattern);
    if stream.sealed {
        return Some("it is sealed and takes nothing any more: make another one".to_owned());
    }
    if stream.no_ack {
        let fix = format!("nats stream edit {name} --ack");
        return Some(format!(
            "it acknowledges nothing, so that no message is ever known to have arrived: {fix}"
        ));
    }
    if !stream.subjects.iter().any(takes) {
        let subjects = stream.subjects.join(", ");
        return Some(format!(
            "it takes the subjects [{subjects}], and messages go to {pattern}: \
             nats stream edit {name} --subjects '{pattern}'"
        ));
    }
    None
}

fn warn_of_small_payloads(connection: &Connection) {
    let needed = limits::PAYLOAD_BYTES_MAX + limits::HEADER_BYTES_MAX + HEADER_BYTES_OWN;
    let most = connection.payload_bytes_max();
    if most < needed {
        tracing::warn!(
            server = %connection.server(),
            "messages of more than {most} bytes, headers included, will be refused. \
             To take the largest, set max_payload to {needed} in the configuration of NATS"
        );
    }
}
