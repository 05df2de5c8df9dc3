//! `hapax serve`: the gateway.

mod announce;
mod banner;
mod notify;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::signal::unix::{Signal, SignalKind};

use self::announce::Announcer;
use self::notify::Manager;
use super::Exit;
use super::config_flags::ConfigFlags;
use super::log_flag::Log;
use super::signals::{self, Stop};
use crate::config::Config;
use crate::config::file;
use crate::gateway::{Change, Gateway, Options, ReloadError, Reread, StartError};
use crate::telemetry::logs;

/// Longer than it takes to reach a service on the same network; it is only for a warning.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// Stand in front of an HTTP service and give each Idempotency-Key one effect.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    given: ConfigFlags,
    /// Let each reload (SIGHUP, hapax reload) change what keys belong to: retries across it may
    /// have a second effect.
    #[arg(long)]
    reload_scopes: bool,
    /// How to log, on standard error [default: text on a terminal, else json].
    #[arg(long, value_name = "FORMAT", value_enum)]
    log: Option<Log>,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let log = Log::format(args.log);
    let announcer = Announcer::new(logs::init(log).map_err(Exit::usage)?);
    let ended = run_logged(args, announcer);
    // If JSON was requested explicitly, the reader of the log expects nothing else.
    let ended = ended.map_err(|exit| {
        if log == logs::Format::Json {
            announcer.log_exit(&exit)
        } else {
            exit
        }
    });
    logs::finish();
    ended
}

fn run_logged(args: Args, announcer: Announcer) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(format!("could not start the runtime: {error}")))?;
    // Before anything else, so that no signal meets the default action: a SIGHUP would end the
    // process.
    let signals = runtime.block_on(async { Signals::new() })?;
    let reload_scopes = args.reload_scopes;
    let (config, reread) = config(args.given)?;
    raise_open_files();
    let ended = runtime.block_on(serve(
        config,
        Options {
            reread,
            reload_scopes,
            ..Options::default()
        },
        signals,
        announcer,
    ));
    // Ends without waiting for threads that are still busy.
    runtime.shutdown_background();
    ended
}

/// The configuration, and a function that reads it again: the same variables and flags override the
/// file each time.
fn config(given: ConfigFlags) -> Result<(Config, Option<Reread>), Exit> {
    let overrides = given.overrides()?;
    let loaded = given.load_with(&overrides)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let config = loaded.config;
    let reread = given
        .config
        .map(|path| -> Reread { Arc::new(move || file::read_with(&path, &overrides)) });
    Ok((config, reread))
}

async fn serve(
    config: Config,
    options: Options,
    mut signals: Signals,
    announcer: Announcer,
) -> Result<(), Exit> {
    let manager = Manager::from_env();
    let gateway = Gateway::start_with(config.clone(), options)
        .await
        .map_err(|error| not_started(&error))?;
    announcer.banner(&config, gateway.address(), gateway.admin());
    manager.ready(&format!("listening on {}", gateway.address()));
    tokio::select! {
        () = async {
            tokio::join!(warn_if_unreachable(&config.upstream.url), reload_when_told(&gateway, &manager, &mut signals.hangup));
        } => {}
        () = manager.show_life() => {}
        () = signals.stop.next() => {}
    }
    manager.stopping();
    announcer.say("draining: not ready any more; requests are taken for drain.notice, then attempts under way may end; a second signal stops at once");
    let drained = tokio::select! {
        drained = gateway.drain() => drained,
        // A drain may take longer than the service manager waits for a sign of life.
        () = manager.show_life() => unreachable!("life is shown for ever"),
        () = signals.stop.next() => return Err(Exit { code: 130, message: "stopped at once: attempts under way are held as unknown".to_owned() }),
    };
    announcer.say(&match drained.left_unknown {
        0 => "stopped: no attempt was left under way".to_owned(),
        left => {
            format!("stopped: {left} attempts did not end in time and are held as unknown: see hapax keys list --state unknown")
        }
    });
    Ok(())
}

/// Reloads the configuration at each SIGHUP, forever. The result goes to the log; the service
/// manager gets a summary.
async fn reload_when_told(gateway: &Gateway, manager: &Manager, hangup: &mut Signal) {
    while hangup.recv().await.is_some() {
        manager.reloading();
        let ended = gateway.reloader().reload(false).await;
        manager.ready(&describe_reload(&ended, gateway.address()));
    }
}

/// A summary in one line, without the marked lines of mistakes, which are in the log.
fn describe_reload(ended: &Result<Vec<Change>, ReloadError>, address: SocketAddr) -> String {
    match ended {
        Ok(changes) => format!(
            "listening on {address}; the configuration was reloaded, settings changed: {}",
            changes.len()
        ),
        Err(_) => format!(
            "listening on {address}; the configuration was NOT reloaded, and the one in use stays: see the log"
        ),
    }
}

/// The signals from a user or a supervisor.
struct Signals {
    stop: Stop,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Exit> {
        Ok(Signals {
            stop: Stop::new()?,
            hangup: signals::listen(SignalKind::hangup())?,
        })
    }
}

fn not_started(error: &StartError) -> Exit {
    match error {
        StartError::Listen {
            setting,
            address,
            error,
        } => {
            let why = match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "another program listens there: stop it, or choose another port"
                }
                std::io::ErrorKind::PermissionDenied => {
                    "ports below 1024 are for privileged programs: choose a higher one"
                }
                std::io::ErrorKind::AddrNotAvailable => {
                    "this machine has no such address: choose one of its own, or 0.0.0.0"
                }
                _ => "choose another address",
            };
            Exit::usage(format!(
                "could not bind {address}: {error}\n  {why} (--{setting}, or `{setting}` in the configuration)"
            ))
        }
        StartError::Store { .. } => Exit::unreachable(format!("could not open the {error}")),
        StartError::StoreUnfit { .. } => Exit::usage(format!("could not open the {error}")),
        StartError::Setting(_) => Exit::usage(error),
    }
}

/// Only warns, because the upstream may start later.
async fn warn_if_unreachable(upstream: &Uri) {
    let host = upstream.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = upstream
        .port_u16()
        .unwrap_or(if upstream.scheme_str() == Some("https") {
            443
        } else {
            80
        });
    let why = match tokio::time::timeout(PROBE_PATIENCE, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(
        "could not reach the upstream {host} port {port} ({why}): until it is there, requests get 502"
    );
}

/// Each connection is an open file, and the usual soft limit is far below what the gateway can
/// serve.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    ) {
        let current = limit
            .current
            .map_or("no limit".to_owned(), |files| files.to_string());
        tracing::warn!("could not raise the limit of open files ({current}): {error}");
    }
}
