//! `hapax store check`: tests an existing store against the store contract.

mod report;
mod run;

use std::path::Path;
use std::sync::Arc;

use hapax::{Sqlite, Store};
use tokio::signal::unix::{SignalKind, signal};

use self::report::{Progress, Report};
use self::run::Run;
use crate::cli::secret_flags::StoreFlag;
use crate::cli::{Exit, text};
use crate::config::StoreUrl;
use crate::store;

/// Test that a store keeps every promise that Hapax needs of it, with the contract that its own
/// stores are tested with.
///
/// May be run while gateways use the database or the Redis: it works on records of its own, in
/// namespaces that begin with `contract:`, and takes them away again. It forgets some of them, so
/// that every node reads its copies of answers anew once. A file must not be in use. What stays is
/// said at the end: tombstones, and entries in the audit log.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store: postgres://USER@HOST/DATABASE, redis://HOST:PORT, sqlite:FILE, or memory: to see
    /// it work
    #[arg(value_name = "URL", value_parser = StoreFlag::parse)]
    store: StoreFlag,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let url = args.store.store()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| {
        Exit::failed(format!("the system gave no resources to run on: {error}"))
    })?;
    // A broken promise is reported by a panic, which is caught and printed on its own line.
    std::panic::set_hook(Box::new(|_| {}));
    let ended = runtime.block_on(check(&url, args.json));
    let _ = std::panic::take_hook();
    ended
}

async fn check(url: &StoreUrl, is_json: bool) -> Result<(), Exit> {
    let is_live = matches!(url, StoreUrl::Postgres(_) | StoreUrl::Redis(_));
    let run = Run::on(open(url).await?, is_live);
    let mut progress = Progress::new();
    let report = tokio::select! {
        report = run.all(|case| progress.show(case)) => Some(report),
        () = interrupted() => None,
    };
    drop(progress);
    let left = run.clear().await;
    let Some(judged) = report else {
        return Err(Exit::interrupted(match left {
            Ok(_) => "interrupted; what was made is cleared up".to_owned(),
            Err(error) => format!("interrupted; what was made could not be cleared up: {error}"),
        }));
    };
    let report = Report { url, judged, left };
    text::emit(&if is_json {
        report.json()
    } else {
        report.text()
    });
    report.verdict()
}

async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>, Exit> {
    Ok(match url {
        StoreUrl::Memory => Arc::new(hapax::store::memory()),
        StoreUrl::Postgres(url) => Arc::new(store::postgres(url).await?),
        StoreUrl::Redis(url) => Arc::new(store::redis(url, 0).await?),
        StoreUrl::Sqlite(path) => Arc::new(file(path).await?),
    })
}

/// An existing file: a misspelled name must not create one.
async fn file(path: &Path) -> Result<Sqlite, Exit> {
    if !path.is_file() {
        return Err(Exit::unreachable(format!(
            "there is no store file {}: name one that is there",
            path.display()
        )));
    }
    Sqlite::open(path)
        .await
        .map_err(|error| Exit::unreachable(format!("could not open the store: {error}")))
}

async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
