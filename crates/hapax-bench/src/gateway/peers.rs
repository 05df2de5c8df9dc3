//! The measured peers: prepared once, started again for each repetition.

use std::sync::Arc;

use hapax::Sqlite;

use crate::Error;
use crate::directory::Directory;
use crate::load::{LONG, Load};
use crate::postgres::Cluster;
use crate::volume::fill;

use super::cells::Peer;
use super::hapax::Program;
use super::server::Server;
use super::{axum_idempotent, dbos, nginx, restate};

/// A prepared peer, or the reason why it is not available. `None` if it is not wanted.
type Had<T> = Option<Result<T, String>>;

/// What the wanted peers need.
#[derive(Default)]
pub(super) struct Peers {
    hapax: Option<Program>,
    /// Contains the stored keys.
    sqlite: Option<Directory>,
    postgres: Had<Cluster>,
    axum_idempotent: Had<axum_idempotent::Installed>,
    dbos: Had<dbos::Installed>,
    restate: Had<restate::Installed>,
}

impl Peers {
    /// Builds, fills and installs the wanted peers. A peer that is not available does not stop the
    /// measurement of the others.
    pub(super) async fn prepare(
        wanted: &[Peer],
        keys: usize,
        cluster: Option<Cluster>,
    ) -> Result<Peers, Error> {
        let wants = |which: fn(Peer) -> bool| wanted.iter().copied().any(which);
        let mut peers = Peers::default();
        if wants(Peer::is_hapax) {
            peers.hapax = Some(Program::build()?);
        }
        if wants(|peer| peer == Peer::HapaxSqlite) {
            let directory = Directory::temporary()?;
            fill(
                &Load::new(Arc::new(Sqlite::open(directory.store()).await?), LONG),
                keys,
            )
            .await?;
            peers.sqlite = Some(directory);
        }
        if wants(Peer::is_on_postgres) {
            peers.postgres = Some(had(cluster.map_or_else(Cluster::start, Ok)));
        }
        if wants(|peer| peer == Peer::AxumIdempotent) {
            peers.axum_idempotent = Some(had(axum_idempotent::Installed::get()));
        }
        if wants(|peer| peer == Peer::Dbos) {
            peers.dbos = Some(had(dbos::Installed::get()));
        }
        if wants(Peer::is_restate) {
            peers.restate = Some(had(restate::Installed::get()));
        }
        Ok(peers)
    }

    /// Why a peer cannot be started here.
    pub(super) fn missing(&self, peer: Peer) -> Option<&str> {
        let missing = match peer {
            Peer::AxumIdempotent => reason(&self.axum_idempotent),
            Peer::Dbos => reason(&self.dbos),
            Peer::Restate(_) => reason(&self.restate),
            Peer::Nginx | Peer::HapaxMemory | Peer::HapaxSqlite | Peer::HapaxPostgres => None,
        };
        missing.or_else(|| reason(&self.postgres).filter(|_| peer.is_on_postgres()))
    }

    /// Starts a peer in front of this upstream; on Postgres, with a new database.
    pub(super) async fn start(&self, peer: Peer, upstream: &str) -> Result<Server, Error> {
        match peer {
            Peer::Nginx => nginx::start(upstream).await,
            Peer::HapaxMemory => self.hapax()?.serve(upstream, "memory:").await,
            Peer::HapaxSqlite => {
                let directory = self.sqlite.as_ref().ok_or("SQLite is not filled")?;
                self.hapax()?
                    .serve(upstream, &format!("sqlite:{}", directory.store().display()))
                    .await
            }
            Peer::HapaxPostgres => {
                let database = ready(&self.postgres)?.migrated().await?;
                self.hapax()?.serve(upstream, &database).await
            }
            Peer::AxumIdempotent => {
                ready(&self.axum_idempotent)?
                    .serve(&ready(&self.postgres)?.database())
                    .await
            }
            Peer::Dbos => {
                ready(&self.dbos)?
                    .serve(&ready(&self.postgres)?.database())
                    .await
            }
            Peer::Restate(setting) => ready(&self.restate)?.serve(setting, upstream).await,
        }
    }

    fn hapax(&self) -> Result<&Program, Error> {
        Ok(self.hapax.as_ref().ok_or("the gateway is not built")?)
    }
}

fn had<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn reason<T>(had: &Had<T>) -> Option<&str> {
    had.as_ref()
        .and_then(|had| had.as_ref().err())
        .map(String::as_str)
}

fn ready<T>(had: &Had<T>) -> Result<&T, Error> {
    match had {
        Some(Ok(had)) => Ok(had),
        Some(Err(reason)) => Err(reason.as_str().into()),
        None => Err("nobody said that it would be wanted".into()),
    }
}
