//! `hapax health`: whether a gateway should receive requests, for callers that can only run a
//! program: the health check of a container, an exec probe, a script.

use std::time::Duration;

use super::keys::client::Client;
use super::{Exit, block_on, text};
use crate::config::text::duration;

/// Ask a gateway whether it is ready for requests.
///
/// Exit code 0: it is. 1: it runs, but is not ready, and standard error says why. 3: nobody
/// answers. For container health checks and for probes that run a command.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The gateway's admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4001")]
    admin: String,
    /// Ask only whether the process runs, ready or not
    #[arg(long)]
    live: bool,
    /// How long it may take, up to a minute: 500ms, 2s
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = timeout)]
    timeout: Duration,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let client = Client::new(&args.admin, None).map_err(Exit::usage)?;
    let path = if args.live { "/healthz" } else { "/readyz" };
    let (status, body) = block_on(client.get(path, args.timeout))?.map_err(Exit::unreachable)?;
    let said = text::line(String::from_utf8_lossy(&body).trim()).into_owned();
    match status.as_u16() {
        200 => {
            text::emit(&format!("{said}\n"));
            Ok(())
        }
        503 => Err(Exit::failed(said)),
        status => Err(Exit::failed(format!(
            "{path} was answered with {status}: is {} the admin listener of a gateway?",
            args.admin
        ))),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        timeout if timeout.is_zero() || timeout > Duration::from_secs(60) => {
            Err("write 1ms to 60s".to_owned())
        }
        timeout => Ok(timeout),
    }
}
