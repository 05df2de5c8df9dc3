//! `hapax demo`: a failing payments service and a storm of customers who retry. The demo compares
//! the ledgers with Hapax in between and without.
//!
//! Everything is real. The service is a separate process (`service`) that a `supervisor` restarts
//! when it dies; the gateway is the one of `hapax serve`; customers, balancer and service
//! communicate over sockets; the verdict comes from the ledgers.

mod balancer;
mod customers;
mod ledger;
mod plan;
mod reconcile;
mod requests;
mod screen;
pub mod service;
mod supervisor;
mod verdict;
mod view;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hapax::Hapax;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::customers::Ends;
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::reconcile::Books;
use crate::requests::Tally;
use crate::screen::Screen;
use crate::supervisor::Supervisor;
use crate::verdict::{Count, Verdict};
use crate::view::Side;

/// A gateway in front of the payments service, started by the program that runs the demo.
pub struct Gateway {
    /// The address for clients.
    pub address: SocketAddr,
    /// The address of the admin API.
    pub admin: Option<SocketAddr>,
    /// The Hapax instance that keeps the records.
    pub hapax: Hapax,
    /// Shuts the gateway down gracefully.
    pub drain: Pin<Box<dyn Future<Output = ()>>>,
}

/// Why the demo failed: the message for standard error, and the exit code.
#[derive(Debug)]
pub struct Failed {
    /// The exit code.
    pub code: u8,
    /// The message.
    pub message: String,
}

impl Failed {
    fn new(message: impl fmt::Display) -> Failed {
        Failed {
            code: 1,
            message: message.to_string(),
        }
    }
}

/// Show a storm of retries on a failing payments service, with Hapax and without.
///
/// Takes about twenty seconds, uses free ports of this machine alone, and leaves nothing behind.
/// Exit code 1 if an order was charged twice with Hapax.
#[derive(clap::Args)]
pub struct Args {
    /// Choose the storm: the same number brings the same orders, clicks and faults.
    #[arg(long)]
    seed: Option<u64>,
    /// Place orders for so long: 1s to 30s.
    #[arg(long = "for", value_name = "SPAN", default_value = "12s", value_parser = span)]
    span: Duration,
    /// Place so many orders.
    #[arg(long, default_value_t = 240, value_parser = orders)]
    orders: usize,
    /// Leave service and gateway running after the verdict, with lines to try, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Print the verdict as JSON on standard output, and the rest on standard error.
    #[arg(long)]
    json: bool,
}

const ORDERS_MAX: usize = 2_000;

fn span(text: &str) -> Result<Duration, String> {
    let seconds = text
        .strip_suffix('s')
        .and_then(|seconds| seconds.parse().ok());
    match seconds {
        Some(seconds @ 1..=30) => Ok(Duration::from_secs(seconds)),
        _ if text.parse::<u64>().is_ok() => {
            Err(format!("`{text}` lacks its unit: write \"{text}s\""))
        }
        _ => Err("write 1s to 30s".to_owned()),
    }
}

fn orders(text: &str) -> Result<usize, String> {
    let allowed = plan::ORDERS_MIN..=ORDERS_MAX;
    match text.parse() {
        Ok(orders) if allowed.contains(&orders) => Ok(orders),
        _ => Err(format!(
            "say a number from {} to {}",
            allowed.start(),
            allowed.end()
        )),
    }
}

/// Runs the demo. `start` starts a gateway in front of the service at an address, with a store in a
/// file. The program must run [`service::run`] as its command `demo-service`.
pub fn run(
    args: &Args,
    start: impl AsyncFnOnce(SocketAddr, PathBuf) -> Result<Gateway, String>,
) -> Result<(), Failed> {
    // Created before the runtime and so dropped after it: no task writes there when it is removed.
    let scratch = scratch()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime
        .map_err(|error| Failed::new(format!("the system gave no resources to run on: {error}")))?;
    let ended = runtime.block_on(async {
        let stop = stop_on_signal()?;
        let shown = tokio::select! {
            shown = show(args, scratch.path(), start) => shown?,
            () = stop.cancelled() => return Err(Failed {
                code: 130,
                message: "interrupted; nothing is left behind".to_owned(),
            }),
        };
        shown.end(args.keep, &stop).await
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    ended
}

/// A temporary directory for one run, private to this user.
fn scratch() -> Result<TempDir, Failed> {
    let made = tempfile::Builder::new().prefix("hapax-demo-").tempdir();
    made.map_err(|error| {
        Failed::new(format!(
            "cannot make a directory for ledgers and store in {}: {error}. Set TMPDIR to a \
             directory that can be written",
            std::env::temp_dir().display()
        ))
    })
}

/// A token that is cancelled when a signal asks the demo to end.
fn stop_on_signal() -> Result<CancellationToken, Failed> {
    let deaf = |error| Failed::new(format!("cannot listen for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(deaf)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(deaf)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(deaf)?;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        stopped.cancel();
    });
    Ok(stop)
}

/// A finished storm, with everything still running.
struct Shown {
    screen: Screen,
    stage: Stage,
    verdict: Verdict,
}

async fn show(
    args: &Args,
    scratch: &Path,
    start: impl AsyncFnOnce(SocketAddr, PathBuf) -> Result<Gateway, String>,
) -> Result<Shown, Failed> {
    let mut screen = Screen::new(args.json);
    let seed = args
        .seed
        .unwrap_or_else(|| u64::from(uuid::Uuid::new_v4().as_fields().0 % 100_000));
    let plan = Arc::new(Plan::new(seed, args.orders, args.span));
    let stage = Stage::set(&plan, args.orders, scratch, start).await?;
    view::introduce(&mut screen, &plan);
    let verdict = stage.play(&plan, &mut screen).await?;
    view::show(&mut screen, &verdict);
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&verdict).map_err(Failed::new)?
        );
    }
    Ok(Shown {
        screen,
        stage,
        verdict,
    })
}

impl Shown {
    async fn end(mut self, keep: bool, stop: &CancellationToken) -> Result<(), Failed> {
        let (gateway, verdict) = (self.stage.gateway, self.verdict);
        if keep {
            view::invite(
                &mut self.screen,
                gateway.address,
                gateway.admin,
                &self.stage.with.ledger,
            );
            stop.cancelled().await;
        }
        gateway.drain.await;
        if verdict.kept {
            return Ok(());
        }
        let seed = verdict.seed;
        Err(Failed::new(format!(
            "with Hapax not every order was charged exactly once. Please report this, with --seed {seed}"
        )))
    }
}

/// One service with its ledger, and the tally of its customers.
struct Scene {
    ledger: PathBuf,
    service: Supervisor,
    tally: Arc<Tally>,
}

/// Both sides of the demo, and the gateway of one of them.
struct Stage {
    without: Scene,
    with: Scene,
    gateway: Gateway,
}

impl Scene {
    fn set(ledger: PathBuf, seed: u64, orders: usize) -> Result<Scene, Failed> {
        let no_service =
            |error| Failed::new(format!("the payments service does not start: {error}"));
        let service = Supervisor::start(&ledger, seed, orders).map_err(no_service)?;
        Ok(Scene {
            ledger,
            service,
            tally: Arc::default(),
        })
    }

    fn count(&self, plan: &Plan, ends: &Ends) -> Result<Count, Failed> {
        Count::read(&self.ledger, plan, ends).map_err(unreadable)
    }
}

impl Stage {
    async fn set(
        plan: &Plan,
        orders: usize,
        scratch: &Path,
        start: impl AsyncFnOnce(SocketAddr, PathBuf) -> Result<Gateway, String>,
    ) -> Result<Stage, Failed> {
        let without = Scene::set(scratch.join("ledger-without.db"), plan.seed, orders)?;
        let with = Scene::set(scratch.join("ledger.db"), plan.seed, orders)?;
        let gateway = start(with.service.address(), scratch.join("hapax.db"))
            .await
            .map_err(|error| Failed::new(format!("the gateway does not start: {error}")))?;
        Ok(Stage {
            without,
            with,
            gateway,
        })
    }

    /// Runs the storm on both sides concurrently and settles the held keys. Reads the ledgers
    /// before and after.
    async fn play(&self, plan: &Arc<Plan>, screen: &mut Screen) -> Result<Verdict, Failed> {
        let (ends_without, mut ends) = self.storm(plan, screen).await?;
        let without_hapax = self.without.count(plan, &ends_without)?;
        let with_hapax = self.with.count(plan, &ends)?;
        let books = Books {
            plan,
            hapax: &self.gateway.hapax,
            gateway: self.gateway.address,
            ledger: &self.with.ledger,
            tally: &self.with.tally,
        };
        let reconciled = reconcile::run(&books, &mut ends);
        let reconciled = reconciled
            .await
            .map_err(|error| Failed::new(format!("what was held could not be settled: {error}")))?;
        let once_settled = self.with.count(plan, &ends)?;
        let faults = verdict::struck(&self.without.service, &self.with.service);
        Ok(Verdict {
            seed: plan.seed,
            kept: verdict::is_kept(&with_hapax, &once_settled),
            without_hapax,
            with_hapax,
            once_settled,
            reconciled,
            faults,
        })
    }

    async fn storm(&self, plan: &Arc<Plan>, screen: &mut Screen) -> Result<(Ends, Ends), Failed> {
        let storms = async {
            tokio::try_join!(
                customers::run(plan, self.without.service.address(), &self.without.tally),
                customers::run(plan, self.gateway.address, &self.with.tally),
            )
        };
        tokio::select! {
            ends = storms => {
                ends.map_err(|error| Failed::new(format!("the load balancer found no free port: {error}")))
            }
            failed = self.watch(plan, screen) => Err(failed),
        }
    }

    /// Shows the storm while it lasts. Returns only if that fails.
    async fn watch(&self, plan: &Plan, screen: &mut Screen) -> Failed {
        let ledgers = Ledger::read(&self.without.ledger)
            .and_then(|without| Ok((without, Ledger::read(&self.with.ledger)?)));
        let (without, with) = match ledgers {
            Ok(ledgers) => ledgers,
            Err(error) => return unreadable(error),
        };
        let without = Side {
            tally: &self.without.tally,
            ledger: &without,
            service: &self.without.service,
        };
        let with = Side {
            tally: &self.with.tally,
            ledger: &with,
            service: &self.with.service,
        };
        let live = screen.is_live(view::BLOCK_LINES);
        let begun = Instant::now();
        let mut tick = tokio::time::interval(Duration::from_millis(if live { 100 } else { 1_000 }));
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tick.tick().await;
            let elapsed = begun.elapsed();
            if live {
                screen.draw(&view::block(
                    elapsed,
                    plan.span + TAIL,
                    &without,
                    &with,
                    screen.width(),
                ));
            } else {
                screen.say(&view::plain(elapsed, &without, &with));
            }
        }
    }
}

/// How long the last orders usually take. Used only for the progress bar.
const TAIL: Duration = Duration::from_secs(3);

fn unreadable(error: impl fmt::Display) -> Failed {
    Failed::new(format!("the ledger cannot be read: {error}"))
}
