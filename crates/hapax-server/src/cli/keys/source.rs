//! The source of keys: a running gateway, or a store.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax::RecordId;
use http::StatusCode;

use super::client::{Client, ClientError};
use super::direct::Direct;
use crate::admin::keys::logged::LoggedPage;
use crate::admin::keys::wire::{Entry, Forget, Page, Query, Settle, Shown};
use crate::admin::log::Which;
use crate::cli::Exit;
use crate::cli::secret_flags::StoreFlag;
use crate::config::{Secret, StoreUrl};

pub(in crate::cli) const ADMIN: &str = "http://127.0.0.1:4001";
const STORE: &str = "hapax.db";
/// The variables from which the gateway itself reads its token.
const TOKEN: &str = "HAPAX__ADMIN_TOKEN";
const TOKEN_FILE: &str = "HAPAX__ADMIN_TOKEN_FILE";

/// Where to look, as flags.
#[derive(clap::Args)]
pub(super) struct Where {
    /// Ask the gateway whose admin listener is here
    #[arg(long, value_name = "URL", conflicts_with = "store")]
    admin: Option<String>,
    /// Look into this store: sqlite:FILE, postgres://USER@HOST/DATABASE, or redis://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = StoreFlag::parse)]
    store: Option<StoreFlag>,
    /// With a gateway that has one: a file with its `admin_token` [default: what HAPAX__ADMIN_TOKEN
    /// or HAPAX__ADMIN_TOKEN_FILE says]
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    token_file: Option<PathBuf>,
}

impl Where {
    /// The flags that name the same source on another command line, with a leading space; empty if
    /// none was named.
    pub(super) fn flags(&self) -> Result<String, Exit> {
        let token = self
            .token_file
            .as_ref()
            .map(|file| format!(" --token-file {}", file.display()))
            .unwrap_or_default();
        Ok(match (&self.admin, &self.store) {
            (Some(url), _) => format!(" --admin {url}{token}"),
            (None, Some(typed)) => format!(" --store {}", typed.shown()?),
            (None, None) => token,
        })
    }

    fn token(&self) -> Result<Option<Secret>, Exit> {
        token(self.token_file.as_deref())
    }
}

/// The token to present, if there is one. It is never a flag, because every user of the machine
/// could read that.
pub(in crate::cli) fn token(file: Option<&Path>) -> Result<Option<Secret>, Exit> {
    let said = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = match (file, said(TOKEN), said(TOKEN_FILE)) {
        (Some(path), ..) => path.to_owned(),
        (None, Some(token), _) => {
            return token
                .to_str()
                .ok_or("it is no text".to_owned())
                .and_then(Secret::token)
                .map(Some)
                .map_err(|why| Exit::usage(format!("{TOKEN}: {why}")));
        }
        (None, None, Some(path)) => path.into(),
        (None, None, None) => return Ok(None),
    };
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let token = text.and_then(|text| Secret::token(text.strip_suffix('\n').unwrap_or(&text)));
    token
        .map(Some)
        .map_err(|why| Exit::usage(format!("the token in {}: {why}", path.display())))
}

/// What the source is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Look,
    Change,
}

/// A source of keys.
#[derive(Clone)]
pub(super) enum Source {
    Admin(Client),
    Store(Arc<Direct>),
}

impl Source {
    /// Finds the source, and prints to standard error which one it is.
    pub(super) async fn find(place: &Where, purpose: Purpose) -> Result<Source, Exit> {
        match (&place.admin, &place.store) {
            (Some(url), _) => Source::admin(url, place.token()?).await,
            (None, Some(typed)) => match typed.store()? {
                StoreUrl::Sqlite(path) => Source::file(&path, purpose).await,
                StoreUrl::Postgres(url) => {
                    Ok(Source::shared(Direct::postgres(&url).await?, &url, purpose))
                }
                StoreUrl::Redis(url) => {
                    Ok(Source::shared(Direct::redis(&url).await?, &url, purpose))
                }
                StoreUrl::Memory => Err(Exit::usage(
                    "memory: is known to its process alone: ask that one, with --admin http://HOST:PORT",
                )),
            },
            (None, None) => match Source::admin(ADMIN, place.token()?).await {
                Ok(source) => Ok(source),
                Err(_) if Path::new(STORE).exists() => {
                    Source::file(Path::new(STORE), purpose).await
                }
                Err(_) => Err(Exit::unreachable(format!(
                    "nobody answers at {ADMIN}, and there is no {STORE} here: say where to look, with --admin http://HOST:PORT, --store sqlite:FILE, --store postgres://USER@HOST/DATABASE or --store redis://HOST:PORT"
                ))),
            },
        }
    }

    async fn admin(url: &str, token: Option<Secret>) -> Result<Source, Exit> {
        let client = Client::new(url, token).map_err(Exit::usage)?;
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
            Purpose::Look => Direct::view(path)?,
            Purpose::Change => Direct::own(path).await?,
        };
        eprintln!("{} the store file {}", doing(purpose), path.display());
        Ok(Source::Store(Arc::new(file)))
    }

    /// A store that other processes may be using.
    fn shared(store: Direct, url: &impl Display, purpose: Purpose) -> Source {
        eprintln!("{} the store {url}", doing(purpose));
        Source::Store(Arc::new(store))
    }

    /// What is left of forgotten answers here, if that is more than tombstones.
    pub(super) fn leaves(&self) -> Option<&'static str> {
        match self {
            Source::Admin(_) => None,
            Source::Store(store) => store.leaves(),
        }
    }

    pub(super) async fn list(&self, query: &Query) -> Result<Page, Exit> {
        match self {
            Source::Admin(client) => client.list(query).await.map_err(exit),
            Source::Store(store) => Ok(store.operate().list(query).await?),
        }
    }

    pub(super) async fn show(&self, id: RecordId, with_answer: bool) -> Result<Shown, Exit> {
        match self {
            Source::Admin(client) => client.show(id, with_answer).await.map_err(exit),
            Source::Store(store) => Ok(store.operate().show(id, with_answer).await?),
        }
    }

    pub(super) async fn log(&self, which: &Which) -> Result<LoggedPage, Exit> {
        match self {
            Source::Admin(client) => client.log(which).await.map_err(exit),
            Source::Store(store) => Ok(store.operate().log(which).await?),
        }
    }

    pub(super) async fn settle(&self, id: RecordId, settle: &Settle) -> Result<Entry, String> {
        match self {
            Source::Admin(client) => client
                .settle(id, settle)
                .await
                .map_err(|error| error.to_string()),
            Source::Store(store) => {
                let changed = store.operate().settle(id, settle, &settle.signed()).await;
                changed.map_err(|error| error.to_string())
            }
        }
    }

    pub(super) async fn forget(&self, id: RecordId, forget: &Forget) -> Result<Entry, String> {
        match self {
            Source::Admin(client) => client
                .forget(id, forget)
                .await
                .map_err(|error| error.to_string()),
            Source::Store(store) => {
                let changed = store.operate().forget(id, forget, &forget.signed()).await;
                changed.map_err(|error| error.to_string())
            }
        }
    }
}

pub(in crate::cli) fn exit(error: ClientError) -> Exit {
    match error {
        // The request is not valid; a file would have refused it too.
        ClientError::Refused(StatusCode::BAD_REQUEST, detail) => Exit::usage(detail),
        ClientError::Refused(StatusCode::UNAUTHORIZED, detail) => Exit::usage(format!(
            "{detail}. Here: --token-file FILE, or {TOKEN} in the environment"
        )),
        ClientError::Refused(_, detail) => Exit::failed(detail),
        ClientError::Unreachable(detail) => Exit::unreachable(detail),
    }
}

fn doing(purpose: Purpose) -> &'static str {
    if purpose == Purpose::Look {
        "looking into"
    } else {
        "changing"
    }
}
