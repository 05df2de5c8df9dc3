//! `hapax relay`: publishes the messages of an outbox.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hapax::core::flow::GiveUp;
use hapax_flow::outbox::OutboxError;
use hapax_flow::publish::webhook::Network;
use hapax_flow::relay::Counts;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::log_flag::Log;
use super::secret_flags::StoreFlag;
use super::signals::Stop;
use super::{Exit, text};
use crate::config::{Environment, Relay, StoreUrl, file, give_up, reader_name};
use crate::destination::Destination;
use crate::relay::{OnceError, RelayMetrics, Relays, Source, once};
use crate::telemetry::{Traces, logs};

/// How long relays may take to end what is under way, after a first signal.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the last traces may take to be sent.
const LAST_TRACES: Duration = Duration::from_secs(5);

/// Publish messages that were emitted with hapax.emit, or from Rust, to where they are read.
///
/// Each message is published at least once, and messages of one topic and key in the order of their
/// commits. A message that the destination does not take is set aside with the later ones of its
/// key, and tried again: see `hapax outbox list`. Of several relays with one reader, one is active
/// and the others stand by. Logs are on standard error.
///
/// What to publish is said by --to, or by the sections [relay.NAME] of a configuration.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where messages are: postgres://USER@HOST/DATABASE, or sqlite:FILE for the file of a service
    /// that has opened it as a Guest [default: what the configuration or HAPAX__STORE says]
    #[arg(long, value_name = "URL", value_parser = StoreFlag::parse)]
    store: Option<StoreFlag>,
    /// Where messages go: nats://HOST:PORT, kafka://HOST:PORT/TOPIC, amqp://HOST/VHOST for RabbitMQ,
    /// redis://HOST:PORT, https://HOST/PATH for webhooks, stdout: for a line of JSON each, or null:
    /// for nowhere
    #[arg(long, value_name = "DESTINATION")]
    to: Option<String>,
    /// The name under which it is kept how far the destination has got; with a configuration, the
    /// relay of it that is to run [default: as the destination, such as stdout]
    #[arg(long, value_name = "NAME")]
    reader: Option<String>,
    /// What happens to a message whose attempts are used up: it is held for an operator, and so are
    /// the later ones of its key; or it is dead, and they go on [default: hold]
    #[arg(long, value_name = "hold|dead", value_parser = give_up, requires = "to")]
    give_up: Option<GiveUp>,
    /// Attempts to send a message, the first one included [default: 12]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), requires = "to")]
    attempts: Option<u32>,
    /// A file with a secret that signs webhooks; several are a rotation
    #[arg(long, value_name = "FILE", requires = "to")]
    secret_file: Vec<PathBuf>,
    /// A network that webhooks may go to although it is not of the open internet
    #[arg(long, value_name = "NETWORK", requires = "to")]
    allow_network: Vec<Network>,
    /// The configuration that names the store, and without --to the relays
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Publish what there is, say how much that was, and end
    #[arg(long, conflicts_with = "metrics")]
    once: bool,
    /// With --once: say how much that was as JSON
    #[arg(long, requires = "once")]
    json: bool,
    /// Serve metrics at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// How to log, on standard error [default: text on a terminal, else json]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log: Option<Log>,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let (store, relays) = args.work()?;
    let source = Source::of(&store).map_err(|why| Exit::usage(format!("store: {why}")))?;
    logs::init(Log::format(args.log)).map_err(Exit::usage)?;
    // Two threads: the one on which standard output blocks must not be the one that hears signals.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(format!("could not start the runtime: {error}")))?;
    let ended = runtime.block_on(async {
        let stop = Stop::new()?;
        source.check().await.map_err(Exit::usage)?;
        let traces = Traces::from_env().map_err(Exit::usage)?;
        let ended = match args.once {
            true => publish_once(args, &source, &relays, traces.clone(), stop).await,
            false => publish(args, &source, &relays, traces.clone(), stop).await,
        };
        if let Some(traces) = traces {
            traces.shutdown(LAST_TRACES).await;
        }
        ended
    });
    runtime.shutdown_background();
    logs::finish();
    ended
}

impl Args {
    /// The store, and what to publish to where.
    fn work(&self) -> Result<(StoreUrl, Vec<Relay>), Exit> {
        if let Some(to) = &self.to {
            let store = StoreFlag::chosen(self.store.as_ref(), self.config.as_deref())?;
            return Ok((store, vec![self.relay(to)?]));
        }
        let Some(path) = &self.config else {
            return Err(Exit::usage(
                "where to? Give --to stdout:, or --config FILE with a section [relay.NAME]",
            ));
        };
        let read = file::relays(path, &Environment::of_process()).map_err(Exit::usage)?;
        let (configured, relays) = read;
        let typed = self.store.as_ref().map(StoreFlag::store).transpose()?;
        let store = typed.or(configured).ok_or_else(|| {
            Exit::usage(format!(
                "which database? Write store = \"postgres://USER@HOST/DATABASE\" into {}, or give --store or HAPAX__STORE",
                path.display()
            ))
        })?;
        Ok((store, self.chosen(relays, path)?))
    }

    /// The relay that the flags describe.
    fn relay(&self, to: &str) -> Result<Relay, Exit> {
        let to: Destination = to
            .parse()
            .map_err(|why: String| Exit::usage(format!("to: {why}")))?;
        let reader = match &self.reader {
            Some(name) => reader_name(name).map_err(|why| Exit::usage(format!("reader: {why}")))?,
            None => to.default_reader().to_owned(),
        };
        let usual = Relay::new(reader, to);
        Ok(Relay {
            give_up: self.give_up.unwrap_or(usual.give_up),
            attempts_max: self.attempts.unwrap_or(usual.attempts_max),
            secret_files: self
                .secret_file
                .iter()
                .map(|path| path.to_string_lossy().into_owned())
                .collect(),
            allow_networks: self.allow_network.clone(),
            ..usual
        })
    }

    /// The relays of a configuration that are to run.
    fn chosen(&self, relays: Vec<Relay>, path: &std::path::Path) -> Result<Vec<Relay>, Exit> {
        let path = path.display();
        let Some(name) = &self.reader else {
            return match relays.is_empty() {
                false => Ok(relays),
                true => Err(Exit::usage(format!(
                    "{path} has no relay: write [relay.orders] and below it to = \"stdout:\", or give --to"
                ))),
            };
        };
        let found = relays.into_iter().find(|relay| relay.reader == *name);
        found.map(|relay| vec![relay]).ok_or_else(|| {
            Exit::usage(format!(
                "{path} has no section [relay.{}]",
                text::line(name)
            ))
        })
    }
}

/// Publishes until a signal comes.
async fn publish(
    args: &Args,
    source: &Source,
    relays: &[Relay],
    traces: Option<Traces>,
    mut stop: Stop,
) -> Result<(), Exit> {
    let socket = match args.metrics {
        Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
            Exit::usage(format!(
                "could not bind {address}: {error}\n  choose another address (--metrics)"
            ))
        })?),
        None => None,
    };
    let running = Relays::start(source, relays, traces).map_err(Exit::usage)?;
    for relay in relays {
        let (reader, to) = (&relay.reader, relay.to.to_string());
        tracing::info!(reader, to, "the relay begins");
    }
    if let Some(socket) = socket {
        let metrics = RelayMetrics::new(source, &running);
        tracing::info!(address = %args.metrics.expect("it is bound"), "metrics are served");
        tokio::spawn(metrics.serve(socket));
    }
    stop.next().await;
    tracing::info!("stopping: what is under way ends; a second signal stops at once");
    tokio::select! {
        is_ended = running.stop(PATIENCE) => match is_ended {
            true => {
                tracing::info!("stopped");
                Ok(())
            }
            false => Err(Exit::failed(format!(
                "the destination has not answered within {} s after the signal: what was under way is published again",
                PATIENCE.as_secs()
            ))),
        },
        () = stop.next() => Err(Exit::interrupted("stopped at once: what was under way is published again")),
    }
}

/// Publishes what there is.
async fn publish_once(
    args: &Args,
    source: &Source,
    relays: &[Relay],
    traces: Option<Traces>,
    mut stop: Stop,
) -> Result<(), Exit> {
    let told = CancellationToken::new();
    let publishing = once(source, relays, traces.as_ref(), told.clone());
    tokio::pin!(publishing);
    let counted = tokio::select! {
        counted = &mut publishing => counted,
        () = stop.next() => {
            told.cancel();
            tokio::select! {
                counted = &mut publishing => counted,
                () = stop.next() => {
                    return Err(Exit::interrupted("stopped at once: what was under way is published again"));
                }
            }
        }
    };
    for (reader, counts) in counted.map_err(|error| not_published(&error))? {
        eprint!("{}", said(args, &reader, &counts));
    }
    if told.is_cancelled() {
        return Err(Exit::interrupted("stopped before everything was published"));
    }
    Ok(())
}

fn said(args: &Args, reader: &str, counts: &Counts) -> String {
    if args.json {
        return text::json_line(&json!({
            "reader": reader,
            "published": counts.published,
            "duplicates": counts.duplicates,
            "bytes": counts.bytes,
            "retried": counts.retried,
            "set_aside": counts.set_aside,
            "given_up": counts.given_up,
            "outages": counts.outages,
            "failovers": counts.failovers,
        }));
    }
    let Counts {
        published,
        set_aside,
        given_up,
        ..
    } = counts;
    format!("{reader}: published {published}, set aside {set_aside}, given up {given_up}\n")
}

fn not_published(error: &OnceError) -> Exit {
    match error {
        OnceError::Destination(why) => Exit::usage(why),
        OnceError::Outbox(reader, OutboxError::Lost) => Exit::failed(format!(
            "another relay has the reader {reader}, and publishes what there is"
        )),
        OnceError::Outbox(_, error @ OutboxError::Unavailable(_)) => Exit::unreachable(error),
        OnceError::Outbox(_, error) => Exit::failed(error),
    }
}
