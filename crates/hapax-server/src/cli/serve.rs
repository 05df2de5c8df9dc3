//! `hapax serve`: the gateway.

mod banner;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use http::Uri;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Exit;
use crate::config::file::{self, Overrides};
use crate::config::{Config, PrincipalSource, StoreUrl, admin_address, listen_address, upstream_url};
use crate::gateway::{Gateway, StartError};
use crate::telemetry::logs;

/// Longer than a service on the same network takes to be reached; it is only for a warning.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// Stand in front of an HTTP service and give each Idempotency-Key one effect.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The service behind, as in http://127.0.0.1:3000. Required, unless the configuration has it.
    #[arg(long, value_name = "URL", value_parser = upstream_url)]
    upstream: Option<Uri>,
    /// Where clients connect [default: 127.0.0.1:4000].
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Where operators ask, on loopback, or `off` [default: 127.0.0.1:4001].
    #[arg(long, value_name = "ADDRESS|off", value_parser = admin)]
    admin: Option<Admin>,
    /// Where records are kept: sqlite:FILE, or memory: to keep nothing [default: sqlite:hapax.db].
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// Who is asking: digest:FIELD for whoever presents that credential, or `none` for everybody [default: digest:authorization].
    #[arg(long, value_name = "SOURCE")]
    principal: Option<PrincipalSource>,
    /// A configuration in TOML. Flags go before it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to log, on standard error [default: text on a terminal, else json].
    #[arg(long, value_name = "FORMAT", value_enum)]
    log: Option<Log>,
}

/// An address or `off`, as one value: clap would take an `Option` for an argument that may be left out.
#[derive(Clone, Copy)]
struct Admin(Option<SocketAddr>);

fn admin(text: &str) -> Result<Admin, String> {
    admin_address(text).map(Admin)
}

#[derive(Clone, Copy, ValueEnum)]
enum Log {
    Text,
    Json,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let log = match args.log {
        None => logs::Format::Auto,
        Some(Log::Text) => logs::Format::Text,
        Some(Log::Json) => logs::Format::Json,
    };
    let config = config(args)?;
    logs::init(log).map_err(Exit::usage)?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(format!("could not start the runtime: {error}")))?;
    let ended = runtime.block_on(serve(config));
    // Whoever asked for the end waits for no thread that still has something to do.
    runtime.shutdown_background();
    ended
}

fn config(args: Args) -> Result<Config, Exit> {
    let overrides = Overrides {
        upstream: args.upstream,
        listen: args.listen,
        admin: args.admin.map(|Admin(address)| address),
        store: args.store,
        principal: args.principal,
    };
    let config = match &args.config {
        Some(path) => file::read_with(path, &overrides),
        None => file::without_file(&overrides),
    };
    config.map_err(Exit::usage)
}

async fn serve(config: Config) -> Result<(), Exit> {
    // Before anything is begun, so that no signal finds the system's own way to handle it.
    let mut signals = Signals::new()?;
    let gateway = Gateway::start(config.clone()).await.map_err(|error| not_started(&error))?;
    say(&banner::banner(&config, gateway.address(), gateway.admin()));
    tokio::select! {
        () = warn_if_unreachable(&config.upstream.url) => signals.next().await,
        () = signals.next() => {}
    }
    say("draining: attempts under way may end, nothing new begins; a second signal stops at once\n");
    let drained = tokio::select! {
        drained = gateway.drain() => drained,
        () = signals.next() => return Err(Exit { code: 130, message: "stopped at once: attempts under way are held as unknown".to_owned() }),
    };
    say(&match drained.left_unknown {
        0 => "stopped: no attempt was left under way\n".to_owned(),
        left => {
            format!("stopped: {left} attempts did not end in time and are held as unknown: see hapax keys list --state unknown\n")
        }
    });
    Ok(())
}

/// On standard output. Nobody reading it any more is no reason to stop serving.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// What a person or a supervisor stops a program with.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Exit> {
        let listen = |kind| signal(kind).map_err(|error| Exit::failed(format!("could not listen for signals: {error}")));
        Ok(Signals { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn not_started(error: &StartError) -> Exit {
    match error {
        StartError::Listen { setting, address, error } => {
            let why = match error.kind() {
                std::io::ErrorKind::AddrInUse => "another program listens there: stop it, or choose another port",
                std::io::ErrorKind::PermissionDenied => "ports below 1024 are for privileged programs: choose a higher one",
                std::io::ErrorKind::AddrNotAvailable => "this machine has no such address: choose one of its own, or 0.0.0.0",
                _ => "choose another address",
            };
            Exit::usage(format!("could not bind {address}: {error}\n  {why} (--{setting}, or `{setting}` in the configuration)"))
        }
        StartError::Store { .. } => Exit::unreachable(format!("could not open the {error}")),
        StartError::Setting(_) => Exit::usage(error),
    }
}

/// An upstream may well come up later, so this only tells.
async fn warn_if_unreachable(upstream: &Uri) {
    let host = upstream.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = upstream.port_u16().unwrap_or(if upstream.scheme_str() == Some("https") { 443 } else { 80 });
    let why = match tokio::time::timeout(PROBE_PATIENCE, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    eprintln!("hapax: warning: could not reach the upstream {host} port {port} ({why}): until it is there, requests get 502");
}

/// Each connection is an open file, and the limit a shell sets is far below what the gateway may serve.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        let current = limit.current.map_or("no limit".to_owned(), |files| files.to_string());
        eprintln!("hapax: warning: could not raise the limit of open files ({current}): {error}");
    }
}
