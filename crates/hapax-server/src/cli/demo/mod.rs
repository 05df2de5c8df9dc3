//! `hapax demo`: a payments service that fails its callers, a storm of customers who try again, and
//! what the ledgers say: once with Hapax between them, and once without.
//!
//! Nothing is pretended. The service is a process of its own ([`service`]) that a [`supervisor`]
//! starts again when it dies; the gateway is the one of `hapax serve`; customers, balancer and
//! service meet over sockets; the verdict is read from the ledgers.

mod balancer;
mod customer;
mod dice;
mod fault;
mod keep;
mod ledger;
mod plan;
mod reconcile;
mod scratch;
mod screen;
pub(super) mod service;
mod storm;
mod supervisor;
mod tally;
mod verdict;
mod view;
mod wire;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior};

use self::ledger::Ledger;
use self::plan::Plan;
use self::reconcile::Books;
use self::scratch::Scratch;
use self::screen::Screen;
use self::storm::Ends;
use self::supervisor::Supervisor;
use self::tally::Tally;
use self::verdict::{Count, Verdict};
use self::view::Side;
use super::Exit;
use crate::config::text::duration;
use crate::config::{Config, StoreUrl};
use crate::gateway::Gateway;

/// Show a storm of retries on a failing payments service, with Hapax and without.
///
/// Takes about twenty seconds, uses free ports of this machine alone, and leaves nothing behind.
/// Exit code 1 if an order was charged twice with Hapax.
#[derive(clap::Args)]
pub(super) struct Args {
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
    match duration(text)? {
        span if (1..=30).contains(&span.as_secs()) => Ok(span),
        _ => Err("write 1s to 30s".to_owned()),
    }
}

fn orders(text: &str) -> Result<usize, String> {
    let allowed = fault::ORDERS_MIN..=ORDERS_MAX;
    match text.parse() {
        Ok(orders) if allowed.contains(&orders) => Ok(orders),
        _ => Err(format!(
            "say a number from {} to {}",
            allowed.start(),
            allowed.end()
        )),
    }
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    // Outlives the runtime: whatever still writes there is stopped before it goes.
    let scratch = Scratch::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| {
        Exit::failed(format!("the system gave no resources to run on: {error}"))
    })?;
    let ended = runtime.block_on(async {
        let stop = Stop::listen()?;
        let shown = tokio::select! {
            shown = show(args, &scratch) => shown?,
            () = stop.asked() => return Err(Exit { code: 130, message: "interrupted; nothing is left behind".to_owned() }),
        };
        shown.end(args.keep, &stop).await
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    ended
}

/// A storm that is over, with everything still up.
struct Shown {
    screen: Screen,
    stage: Stage,
    verdict: Verdict,
}

async fn show(args: &Args, scratch: &Scratch) -> Result<Shown, Exit> {
    let mut screen = Screen::new(args.json);
    let seed = args
        .seed
        .unwrap_or_else(|| u64::from(uuid::Uuid::new_v4().as_fields().0 % 100_000));
    let plan = Arc::new(Plan::new(seed, args.orders, args.span));
    let stage = Stage::set(&plan, args.orders, scratch).await?;
    view::introduce(&mut screen, &plan);
    let verdict = stage.play(&plan, &mut screen).await?;
    view::show(&mut screen, &verdict);
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&verdict).map_err(Exit::failed)?
        );
    }
    Ok(Shown {
        screen,
        stage,
        verdict,
    })
}

impl Shown {
    async fn end(mut self, keep: bool, stop: &Stop) -> Result<(), Exit> {
        let (gateway, verdict) = (self.stage.gateway, self.verdict);
        if keep {
            keep::invite(
                &mut self.screen,
                gateway.address(),
                gateway.admin(),
                &self.stage.with.ledger,
            );
            stop.asked().await;
        }
        gateway.drain().await;
        if verdict.kept {
            return Ok(());
        }
        let seed = verdict.seed;
        Err(Exit::failed(format!(
            "with Hapax not every order was charged exactly once. Please report this, with --seed {seed}"
        )))
    }
}

/// One service with its ledger, and who counts what its customers see.
struct Scene {
    ledger: PathBuf,
    service: Supervisor,
    tally: Arc<Tally>,
}

/// Everything that the storm breaks over.
struct Stage {
    without: Scene,
    with: Scene,
    gateway: Gateway,
}

impl Scene {
    fn set(ledger: PathBuf, seed: u64, orders: usize) -> Result<Scene, Exit> {
        let no_service =
            |error| Exit::failed(format!("the payments service does not start: {error}"));
        let service = Supervisor::start(&ledger, seed, orders).map_err(no_service)?;
        Ok(Scene {
            ledger,
            service,
            tally: Arc::default(),
        })
    }

    fn count(&self, plan: &Plan, ends: &Ends) -> Result<Count, Exit> {
        Count::read(&self.ledger, plan, ends).map_err(unreadable)
    }
}

impl Stage {
    async fn set(plan: &Plan, orders: usize, scratch: &Scratch) -> Result<Stage, Exit> {
        let without = Scene::set(scratch.file("ledger-without.db"), plan.seed, orders)?;
        let with = Scene::set(scratch.file("ledger.db"), plan.seed, orders)?;
        let config = config(with.service.address(), &scratch.file("hapax.db"))?;
        let gateway = Gateway::start(config)
            .await
            .map_err(|error| Exit::failed(format!("the gateway does not start: {error}")))?;
        Ok(Stage {
            without,
            with,
            gateway,
        })
    }

    /// The storm on both sides at once, what was held settled, and the ledgers read before and
    /// after.
    async fn play(&self, plan: &Arc<Plan>, screen: &mut Screen) -> Result<Verdict, Exit> {
        let (ends_without, mut ends) = self.storm(plan, screen).await?;
        let without_hapax = self.without.count(plan, &ends_without)?;
        let with_hapax = self.with.count(plan, &ends)?;
        let books = Books {
            plan,
            hapax: self.gateway.hapax(),
            gateway: self.gateway.address(),
            ledger: &self.with.ledger,
            tally: &self.with.tally,
        };
        let reconciled = reconcile::run(&books, &mut ends);
        let reconciled = reconciled.await.map_err(|error| {
            Exit::failed(format!("what was held could not be settled: {error}"))
        })?;
        let once_settled = self.with.count(plan, &ends)?;
        let faults = verdict::struck(&self.without.service, &self.with.service);
        let mut verdict = Verdict {
            seed: plan.seed,
            without_hapax,
            with_hapax,
            once_settled,
            reconciled,
            faults,
            kept: false,
        };
        verdict.judge();
        Ok(verdict)
    }

    async fn storm(&self, plan: &Arc<Plan>, screen: &mut Screen) -> Result<(Ends, Ends), Exit> {
        let storms = async {
            tokio::try_join!(
                storm::run(plan, self.without.service.address(), &self.without.tally),
                storm::run(plan, self.gateway.address(), &self.with.tally),
            )
        };
        tokio::select! {
            ends = storms => {
                ends.map_err(|error| Exit::failed(format!("the load balancer found no free port: {error}")))
            }
            failed = self.watch(plan, screen) => Err(failed),
        }
    }

    /// Shows the storm for as long as it lasts. Ends only if that cannot be done.
    async fn watch(&self, plan: &Plan, screen: &mut Screen) -> Exit {
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

/// How long the last orders usually take: for the bar alone.
const TAIL: Duration = Duration::from_secs(3);

fn unreadable(error: impl fmt::Display) -> Exit {
    Exit::failed(format!("the ledger cannot be read: {error}"))
}

/// As `hapax serve` has it, on free ports and with a store that goes with the demo.
fn config(service: SocketAddr, store: &Path) -> Result<Config, Exit> {
    let mut config = Config::new(format!("http://{service}").parse().map_err(Exit::failed)?);
    config.listen = (Ipv4Addr::LOCALHOST, 0).into();
    config.admin = Some((Ipv4Addr::LOCALHOST, 0).into());
    config.store = StoreUrl::Sqlite(store.to_owned());
    // No balancer has to notice, and nobody asks any more.
    config.drain.notice = Duration::ZERO;
    config.drain.deadline = Duration::from_secs(2);
    Ok(config)
}

/// Whether somebody asked the demo to end.
struct Stop(tokio::sync::watch::Receiver<bool>);

impl Stop {
    fn listen() -> Result<Stop, Exit> {
        let deaf = |error| Exit::failed(format!("cannot listen for signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(deaf)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(deaf)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(deaf)?;
        let (asked, asks) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            let _ = asked.send(true);
            // Kept until the runtime goes: a channel that closes would count as asked.
            asked.closed().await;
        });
        Ok(Stop(asks))
    }

    async fn asked(&self) {
        let _ = self.0.clone().wait_for(|asked| *asked).await;
    }
}
