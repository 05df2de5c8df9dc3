//! `hapax store copy`

mod meter;

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use hapax::Sqlite;
use hapax::core::Transfer;
use hapax::store::copy::{self, Copied, CopyError, End};

use self::meter::Meter;
use crate::cli::secret_flags::StoreFlag;
use crate::cli::{Exit, text};
use crate::config::StoreUrl;
use crate::store;

/// Move everything from one store into another, which then takes its place.
///
/// Every record, with its fences, times and answer; the audit log; the secret, so that operation
/// ids and issued tokens stay the same. Stop every gateway first. TO is empty, or FROM was copied
/// from it. An interrupted copy goes on where it was when the same command is run again; until it
/// is complete neither store serves, unless it is given up. Afterwards FROM refuses to serve; to go
/// back, copy back.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store to copy: sqlite:FILE, postgres://… or redis://…
    #[arg(value_name = "FROM", value_parser = StoreFlag::parse)]
    from: StoreFlag,
    /// The store to make
    #[arg(value_name = "TO", value_parser = StoreFlag::parse)]
    to: StoreFlag,
    /// Give an unfinished copy up: TO is emptied, and FROM serves again
    #[arg(long)]
    give_up: bool,
    /// Say what was done as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let (from, to) = (args.from.store()?, args.to.store()?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Exit::failed(format!("could not start the runtime: {error}")))?;
    runtime.block_on(async {
        tokio::select! {
            ended = copied(args, &from, &to) => ended,
            _ = tokio::signal::ctrl_c() => Err(Exit::interrupted(interrupted(&from, &to))),
        }
    })
}

async fn copied(args: &Args, from: &StoreUrl, to: &StoreUrl) -> Result<(), Exit> {
    let (from_name, to_name) = (name(from), name(to));
    if from_name == to_name {
        return Err(Exit::usage(format!("{from_name} is both: name two stores")));
    }
    let from = open(from, Role::Source).await?;
    let to = open(to, Role::Target).await?;
    let (from, to) = (End::new(&from_name, &*from), End::new(&to_name, &*to));
    if args.give_up {
        copy::give_up(from, to)
            .await
            .map_err(|error| refused(&error))?;
        say(
            args,
            &serde_json::json!({ "from": from_name, "to": to_name, "given_up": true }),
            || format!("the copy is given up: {from_name} serves again, and {to_name} is empty\n"),
        );
        return Ok(());
    }
    let mut meter = Meter::new(!args.quiet && std::io::stderr().is_terminal());
    let copied = copy::copy(from, to, |step| meter.tell(step))
        .await
        .map_err(|error| {
            meter.clear();
            refused(&error)
        })?;
    meter.clear();
    let seconds = meter.elapsed().as_secs_f64();
    let Copied {
        records,
        running,
        logged,
        is_resumed,
        ..
    } = copied;
    let json = serde_json::json!({
        "from": from_name, "to": to_name, "records": records, "running": running, "logged": logged, "resumed": is_resumed,
        "seconds": (seconds * 1000.0).round() / 1000.0,
    });
    say(args, &json, || {
        summary(&from_name, &to_name, &copied, seconds)
    });
    Ok(())
}

fn summary(from: &str, to: &str, copied: &Copied, seconds: f64) -> String {
    let Copied {
        records,
        running,
        logged,
        is_resumed,
        ..
    } = copied;
    let again = if *is_resumed {
        ", in more than one run"
    } else {
        ""
    };
    let unknown = match running {
        0 => String::new(),
        running => format!(
            "\n{running} of them were under way when the store was last used: their end is unknown, see hapax keys list --state unknown"
        ),
    };
    format!(
        "{records} records and the audit log up to entry {logged} are in {to} ({seconds:.1} s{again}), which goes on in the place of {from}{unknown}\n"
    )
}

fn say(args: &Args, json: &serde_json::Value, line: impl FnOnce() -> String) {
    text::emit(&if args.json {
        format!("{}\n", text::json(&json.to_string()))
    } else {
        line()
    });
}

fn interrupted(from: &StoreUrl, to: &StoreUrl) -> String {
    format!(
        "interrupted: run the same command again to go on, or `hapax store copy --give-up {from} {to}`; until then neither store serves"
    )
}

/// Which of the two stores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Source,
    Target,
}

async fn open(url: &StoreUrl, role: Role) -> Result<Arc<dyn Transfer>, Exit> {
    match url {
        StoreUrl::Memory => Err(Exit::usage(
            "memory: is gone with its process, and cannot be copied: give sqlite:FILE, postgres://… or redis://…",
        )),
        StoreUrl::Sqlite(path) => open_file(path, role).await,
        StoreUrl::Postgres(url) => Ok(Arc::new(store::postgres_mover(url).await?)),
        StoreUrl::Redis(url) => Ok(Arc::new(store::redis_mover(url).await?)),
    }
}

async fn open_file(path: &Path, role: Role) -> Result<Arc<dyn Transfer>, Exit> {
    let is_missing = !path.try_exists().unwrap_or(true);
    if role == Role::Source && is_missing {
        return Err(Exit::unreachable(format!(
            "there is no store at {}",
            path.display()
        )));
    }
    let store = Sqlite::open_to_copy(path)
        .await
        .map_err(|error| Exit::unreachable(format!("could not open the store: {error:?}")))?;
    if store.restored().is_some() {
        eprintln!(
            "hapax: ALARM: {} is an older state of its store: whatever was done since is forgotten, and keys of that time may run again",
            path.display()
        );
    }
    Ok(Arc::new(store))
}

/// The name under which the other store records this one: valid from any directory, and without a
/// password.
fn name(url: &StoreUrl) -> String {
    match url {
        StoreUrl::Sqlite(path) => {
            let path = std::fs::canonicalize(path)
                .or_else(|_| std::path::absolute(path))
                .unwrap_or_else(|_| path.clone());
            format!("sqlite:{}", path.display())
        }
        other => other.to_string(),
    }
}

fn refused(error: &CopyError) -> Exit {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error).and_then(std::error::Error::source);
    while let Some(deeper) = cause {
        message = format!("{message}: {deeper}");
        cause = deeper.source();
    }
    if error.is_unavailable() {
        Exit::unreachable(message)
    } else {
        Exit::failed(message)
    }
}
