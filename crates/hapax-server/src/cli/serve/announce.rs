//! The announcements of `hapax serve`: on standard output for people, or as events of the log if
//! the log is for machines. It never uses both: a reader of JSON lines may read both streams as
//! one.

use std::io::Write;
use std::net::SocketAddr;

use super::banner;
use crate::cli::Exit;
use crate::config::Config;
use crate::telemetry::logs::Format;

#[derive(Clone, Copy)]
pub(super) struct Announcer {
    is_json: bool,
}

impl Announcer {
    pub(super) fn new(format: Format) -> Announcer {
        Announcer {
            is_json: format == Format::Json,
        }
    }

    /// What the gateway guards, and where it listens.
    pub(super) fn banner(self, config: &Config, address: SocketAddr, admin: Option<SocketAddr>) {
        if !self.is_json {
            return print(&banner::banner(config, address, admin));
        }
        let routes: Vec<String> = config.all_routes().iter().map(banner::in_words).collect();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            listen = banner::clients(config, address),
            upstream = config.upstream.url.to_string().trim_end_matches('/'),
            store = %config.store,
            principal = %config.principal,
            admin = admin.map_or("off".to_owned(), |admin| format!("http://{admin}")),
            access_log = config.access_log.word(),
            routes = routes.join("; "),
            "the gateway serves"
        );
    }

    /// A message about the progress of starting and stopping.
    pub(super) fn say(self, text: &str) {
        if self.is_json {
            tracing::info!("{text}");
        } else {
            print(&format!("{text}\n"));
        }
    }

    /// Logs why the program ends, as the last event. Only the exit code is left.
    pub(super) fn log_exit(self, exit: &Exit) -> Exit {
        tracing::error!("{}", exit.message);
        Exit {
            code: exit.code,
            message: String::new(),
        }
    }
}

/// Prints to standard output. A closed output is no reason to stop serving.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
