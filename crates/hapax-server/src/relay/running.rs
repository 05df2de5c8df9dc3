//! Relays at work.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use hapax::core::flow::RetryPolicy;
use hapax_flow::outbox::OutboxError;
use hapax_flow::publish::Publisher;
use hapax_flow::relay::{Counts, Options, Progress};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Source;
use super::source::AnyRelay;
use crate::config::Relay;
use crate::destination::Destination;
use crate::publishers;
use crate::telemetry::{Traced, Traces};

/// A relay that blocks, as one to a full pipe does, must not keep the others from renewing their
/// leases.
const THREADS: usize = 2;
/// The pause before a relay that broke off begins anew.
const BREATH: Duration = Duration::from_secs(1);

/// Relays at work, on a thread and a runtime of their own. They are stopped when this is dropped,
/// without waiting for them.
pub(crate) struct Relays {
    stop: CancellationToken,
    ended: CancellationToken,
    /// The runtime of the relays.
    pub(crate) runtime: Handle,
    /// What each relay has done, by the name of its reader.
    pub(crate) progress: Vec<(String, Arc<Progress>)>,
}

impl Relays {
    /// Starts a relay for each of these. With `traces` each publication has a span.
    ///
    /// # Errors
    ///
    /// If a destination cannot work, with its relay and the reason.
    pub(crate) fn start(
        source: &Source,
        relays: &[Relay],
        traces: Option<Traces>,
    ) -> Result<Relays, String> {
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let (tell, told) = mpsc::sync_channel(1);
        let work = {
            let (source, relays) = (source.clone(), relays.to_vec());
            let (stop, ended) = (stop.clone(), ended.clone());
            move || {
                let _ended = ended.drop_guard();
                let begun = runtime().and_then(|runtime| {
                    let relays =
                        runtime.block_on(async { open(&source, &relays, traces.as_ref()) })?;
                    Ok((runtime, relays))
                });
                let (runtime, relays) = match begun {
                    Ok(begun) => begun,
                    Err(reason) => {
                        let _ = tell.send(Err(reason));
                        return;
                    }
                };
                let progress = relays
                    .iter()
                    .map(|(name, relay)| (name.clone(), relay.progress()))
                    .collect();
                let _ = tell.send(Ok((runtime.handle().clone(), progress)));
                runtime.block_on(run(relays, stop));
                // Ends without waiting for threads that are still busy.
                runtime.shutdown_background();
            }
        };
        std::thread::Builder::new()
            .name("relays".to_owned())
            .spawn(work)
            .map_err(|error| format!("the system gave no thread for the relays: {error}"))?;
        let begun = told
            .recv()
            .map_err(|_| "the thread of the relays broke off".to_owned())?;
        let (runtime, progress) = begun?;
        Ok(Relays {
            stop,
            ended,
            runtime,
            progress,
        })
    }

    /// Stops the relays in order: what is under way ends, and the readers are given up, so that
    /// other relays go on at once. Returns whether they ended within this time.
    pub(crate) async fn stop(&self, patience: Duration) -> bool {
        self.stop.cancel();
        tokio::time::timeout(patience, self.ended.cancelled())
            .await
            .is_ok()
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Publishes for each of these what there is, one after the other, until `stop` is cancelled.
pub(crate) async fn once(
    source: &Source,
    relays: &[Relay],
    traces: Option<&Traces>,
    stop: CancellationToken,
) -> Result<Vec<(String, Counts)>, OnceError> {
    let opened = open(source, relays, traces).map_err(OnceError::Destination)?;
    let mut counted = Vec::new();
    for (name, relay) in opened {
        let stop = stop.clone();
        // On another thread, because standard output blocks.
        let running = tokio::spawn(async move { relay.run_once_until(&stop).await });
        match running.await {
            Ok(Ok(counts)) => counted.push((name, counts)),
            Ok(Err(error)) => return Err(OnceError::Outbox(name, error)),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    Ok(counted)
}

/// Why not everything was published.
pub(crate) enum OnceError {
    Destination(String),
    Outbox(String, OutboxError),
}

fn runtime() -> Result<Runtime, String> {
    let built = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("relay")
        .enable_all()
        .build();
    built.map_err(|error| format!("the system gave no resources for the relays: {error}"))
}

fn open(
    source: &Source,
    relays: &[Relay],
    traces: Option<&Traces>,
) -> Result<Vec<(String, Arc<AnyRelay>)>, String> {
    let open = |relay: &Relay| {
        let publisher = publishers::of_relay(relay)
            .map_err(|reason| format!("the relay {}: {reason}", relay.reader))?;
        let publisher: Arc<dyn Publisher> = match traces {
            Some(traces) => Arc::new(Traced {
                publisher,
                traces: traces.clone(),
                reader: relay.reader.clone(),
            }),
            None => publisher,
        };
        let relaying = source.relay(publisher, relay.options());
        Ok((relay.reader.clone(), Arc::new(relaying)))
    };
    relays.iter().map(open).collect()
}

async fn run(relays: Vec<(String, Arc<AnyRelay>)>, stop: CancellationToken) {
    let mut running = JoinSet::new();
    for (reader, relay) in relays {
        running.spawn(keep_running(reader, relay, stop.clone()));
    }
    running.join_all().await;
}

/// Runs a relay until it is told to stop. One that breaks off, which is a bug, begins anew.
async fn keep_running(reader: String, relay: Arc<AnyRelay>, stop: CancellationToken) {
    loop {
        let (relay, until) = (relay.clone(), stop.clone());
        let running = tokio::spawn(async move { relay.run(until).await });
        let Err(error) = running.await else {
            return;
        };
        tracing::error!(reader, %error, "BUG: the relay broke off; it begins anew");
        tokio::select! {
            () = tokio::time::sleep(BREATH) => {}
            () = stop.cancelled() => return,
        }
    }
}

impl Relay {
    /// The relay that flags describe, with defaults for the rest.
    pub(crate) fn new(reader: String, to: Destination) -> Relay {
        Relay {
            reader,
            to,
            ..Relay::default()
        }
    }

    fn options(&self) -> Options {
        Options {
            poll: self.poll,
            retry: RetryPolicy {
                attempts_max: self.attempts_max,
                give_up: self.give_up,
                ..RetryPolicy::default()
            },
            ..Options::new(&self.reader)
        }
    }
}
