//! Who is asked: a running gateway, or a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax::RecordId;

use super::client::{Client, ClientError};
use super::file::File;
use crate::admin::keys::scan::Filter;
use crate::admin::keys::wire::{Entry, Page, Query, Settle, Shown, Signed};
use crate::cli::Exit;

const ADMIN: &str = "http://127.0.0.1:4001";
const STORE: &str = "hapax.db";

/// Where to look, as flags.
#[derive(clap::Args)]
pub(super) struct Where {
    /// Ask the gateway whose admin listener is here
    #[arg(long, value_name = "URL", conflicts_with = "store")]
    admin: Option<String>,
    /// Look into this store file
    #[arg(long, value_name = "sqlite:FILE")]
    store: Option<String>,
}

/// What it is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Look,
    Change,
}

/// Who is asked.
#[derive(Clone)]
pub(super) enum Source {
    Admin(Client),
    File(Arc<File>),
}

impl Source {
    /// Finds it, and says on standard error which one it is.
    pub(super) async fn find(place: &Where, purpose: Purpose) -> Result<Source, Exit> {
        match (&place.admin, &place.store) {
            (Some(url), _) => Source::admin(url).await,
            (None, Some(url)) => Source::file(&path(url)?, purpose).await,
            (None, None) => match Source::admin(ADMIN).await {
                Ok(source) => Ok(source),
                Err(_) if Path::new(STORE).exists() => Source::file(Path::new(STORE), purpose).await,
                Err(_) => Err(Exit::unreachable(format!(
                    "nobody answers at {ADMIN}, and there is no {STORE} here: say where to look, with --admin http://HOST:PORT or --store sqlite:FILE"
                ))),
            },
        }
    }

    async fn admin(url: &str) -> Result<Source, Exit> {
        let client = Client::new(url).map_err(Exit::usage)?;
        client.reach().await.map_err(Exit::unreachable)?;
        eprintln!("asking the gateway at {url}");
        Ok(Source::Admin(client))
    }

    async fn file(path: &Path, purpose: Purpose) -> Result<Source, Exit> {
        if !path.is_file() {
            return Err(Exit::unreachable(format!(
                "there is no store file {}: say which one, with --store sqlite:FILE",
                path.display()
            )));
        }
        let file = match purpose {
            Purpose::Look => File::view(path),
            Purpose::Change => File::own(path).await,
        };
        let file = file.map_err(Exit::unreachable)?;
        eprintln!("{} the store file {}", if purpose == Purpose::Look { "looking into" } else { "changing" }, path.display());
        Ok(Source::File(Arc::new(file)))
    }

    pub(super) async fn list(&self, query: &Query) -> Result<Page, Exit> {
        // Checked here, so that both sources answer a mistake alike.
        let filter = Filter::of(query).map_err(Exit::usage)?;
        match self {
            Source::Admin(client) => client.list(query).await.map_err(exit),
            Source::File(file) => file.list(query, &filter).await.map_err(Exit::failed),
        }
    }

    pub(super) async fn show(&self, id: RecordId, with_answer: bool) -> Result<Shown, Exit> {
        match self {
            Source::Admin(client) => client.show(id, with_answer).await.map_err(exit),
            Source::File(file) => file.show(id, with_answer).await.map_err(Exit::failed),
        }
    }

    pub(super) async fn settle(&self, id: RecordId, settle: &Settle) -> Result<Entry, String> {
        match self {
            Source::Admin(client) => client.settle(id, settle).await.map_err(|error| error.to_string()),
            Source::File(file) => file.settle(id, settle).await,
        }
    }

    pub(super) async fn forget(&self, id: RecordId, signed: &Signed) -> Result<Entry, String> {
        match self {
            Source::Admin(client) => client.forget(id, signed).await.map_err(|error| error.to_string()),
            Source::File(file) => file.forget(id, signed).await,
        }
    }
}

fn exit(error: ClientError) -> Exit {
    match error {
        ClientError::Refused(detail) => Exit::failed(detail),
        ClientError::Unreachable(detail) => Exit::unreachable(detail),
    }
}

fn path(url: &str) -> Result<PathBuf, Exit> {
    match url.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err(Exit::usage(format!("`{url}` is no store file: write sqlite:FILE, as in sqlite:hapax.db"))),
    }
}
