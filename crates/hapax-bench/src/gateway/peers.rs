//! The measured peers: prepared once, started again for each repetition.

use std::sync::Arc;

use hapax::Sqlite;
use hapax_testkit::servers;

use crate::Error;
use crate::directory::Directory;
use crate::load::{LONG, Load};
use crate::postgres::Cluster;
use crate::redis::{self, Fsync};
use crate::volume::fill;

use super::cells::{Peer, Shared};
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
    /// Only whether there is one: each start of a peer has a server of its own.
    redis: Had<()>,
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
        if wants(Peer::is_on_redis) {
            peers.redis = Some(had(redis::start_cache().map(drop)));
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
            _ => None,
        };
        missing
            .or_else(|| reason(&self.postgres).filter(|_| peer.is_on_postgres()))
            .or_else(|| reason(&self.redis).filter(|_| peer.is_on_redis()))
    }

    /// Starts a peer in front of this upstream; on Postgres, with a new database, and on Redis,
    /// with a new server.
    pub(super) async fn start(&self, peer: Peer, upstream: &str) -> Result<Started, Error> {
        let server = match peer {
            Peer::Nginx => nginx::start(upstream).await,
            Peer::HapaxMemory => self.hapax()?.serve(upstream, "memory:").await,
            Peer::HapaxSqlite => {
                let directory = self.sqlite.as_ref().ok_or("SQLite is not filled")?;
                self.hapax()?
                    .serve(upstream, &format!("sqlite:{}", directory.store().display()))
                    .await
            }
            Peer::HapaxPostgres => {
                let database = self.database().await?;
                self.on_postgres(upstream, &database).await
            }
            Peer::HapaxRedis(fsync) => {
                let redis = redis::start(fsync)?;
                let server = self.on_redis(upstream, &redis).await?;
                return Ok(Started::alone(server, Some(redis)));
            }
            Peer::HapaxTier => {
                let (database, cache) = (self.database().await?, redis::start_cache()?);
                let server = self.on_tier(upstream, &database, &cache).await?;
                return Ok(Started::alone(server, Some(cache)));
            }
            Peer::HapaxSecond(shared) => return self.start_two(shared, upstream).await,
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
        };
        Ok(Started::alone(server?, None))
    }

    /// Two nodes on one store. The second is the one to measure.
    async fn start_two(&self, shared: Shared, upstream: &str) -> Result<Started, Error> {
        let (first, second, redis) = match shared {
            Shared::Postgres => {
                let database = self.database().await?;
                let node = || self.on_postgres(upstream, &database);
                (node().await?, node().await?, None)
            }
            Shared::Redis => {
                let redis = redis::start(Fsync::Everysec)?;
                let node = || self.on_redis(upstream, &redis);
                (node().await?, node().await?, Some(redis))
            }
            Shared::Tier => {
                let (database, cache) = (self.database().await?, redis::start_cache()?);
                let node = || self.on_tier(upstream, &database, &cache);
                (node().await?, node().await?, Some(cache))
            }
        };
        Ok(Started {
            server: second,
            first: Some(first),
            _redis: redis,
        })
    }

    async fn on_postgres(&self, upstream: &str, database: &str) -> Result<Server, Error> {
        self.hapax()?.serve(upstream, database).await
    }

    async fn on_redis(&self, upstream: &str, redis: &servers::Redis) -> Result<Server, Error> {
        let settings = [("HAPAX__DURABILITY", "best-effort")];
        self.hapax()?
            .serve_with(upstream, &redis.url(), &settings)
            .await
    }

    async fn on_tier(
        &self,
        upstream: &str,
        database: &str,
        cache: &servers::Redis,
    ) -> Result<Server, Error> {
        let cache = cache.url();
        self.hapax()?
            .serve_with(upstream, database, &[("HAPAX__CACHE", &cache)])
            .await
    }

    async fn database(&self) -> Result<String, Error> {
        ready(&self.postgres)?.migrated().await
    }

    fn hapax(&self) -> Result<&Program, Error> {
        Ok(self.hapax.as_ref().ok_or("the gateway is not built")?)
    }
}

/// A started peer. Ended when dropped.
pub(super) struct Started {
    /// The server to measure.
    pub(super) server: Server,
    /// The node that runs the keys which the measured one replays, if that is another.
    first: Option<Server>,
    /// The last to end: the servers use it.
    _redis: Option<servers::Redis>,
}

impl Started {
    fn alone(server: Server, redis: Option<servers::Redis>) -> Started {
        Started {
            server,
            first: None,
            _redis: redis,
        }
    }

    /// The server that runs keys for replays.
    pub(super) fn maker(&self) -> &Server {
        self.first.as_ref().unwrap_or(&self.server)
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
