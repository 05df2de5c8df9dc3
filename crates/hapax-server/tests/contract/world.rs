//! A gateway, its store, its upstream and a client: everything that one cell of the matrix needs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::core::record::State;
use hapax::core::store::ListQuery;
use hapax::{Event, Hapax, Policy};
use hapax_server::config::{Config, Route, StoreUrl, Tls};
use hapax_server::gateway::{Gateway, StartError};
use hapax_testkit::servers::Postgres;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::Way;
use crate::disk::Disk;
use crate::harness::{self, Answer, Authority, Client, ClientRequest, Gate, Serving};
use crate::upstream::Obedient;

/// After this many refused claims in a row, the store has checkpointed its log as far as it could,
/// and there is still no room.
const REFUSED_ENOUGH: usize = 3;

const RUNS: &str = "the gateway runs";

pub struct World {
    pub client: Client,
    pub upstream: Obedient,
    gateway: Option<Gateway>,
    config: Config,
    way: Way,
    authority: Authority,
    /// How many requests have begun to wait.
    waiting: Arc<watch::Sender<usize>>,
    begun: Vec<JoinHandle<Answer>>,
    disk: Option<Disk>,
    directory: TempDir,
}

impl World {
    pub async fn start(way: Way, settle: impl FnOnce(&mut Config)) -> World {
        World::start_with(way, None, Obedient::start(Serving::default()), settle).await
    }

    /// The same with the store on this disk.
    pub async fn start_on(disk: Disk, way: Way, settle: impl FnOnce(&mut Config)) -> World {
        World::start_with(way, Some(disk), Obedient::start(Serving::default()), settle).await
    }

    pub async fn start_before(
        way: Way,
        upstream: Obedient,
        settle: impl FnOnce(&mut Config),
    ) -> World {
        World::start_with(way, None, upstream, settle).await
    }

    async fn start_with(
        way: Way,
        disk: Option<Disk>,
        upstream: Obedient,
        settle: impl FnOnce(&mut Config),
    ) -> World {
        let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::default());
        let mut config = harness::config(upstream.upstream.address);
        config.store = StoreUrl::Sqlite(
            disk.as_ref()
                .map_or(directory.path(), Disk::path)
                .join("hapax.db"),
        );
        // There is no load balancer here, and what still runs at the end of a cell hangs on
        // purpose.
        config.drain.deadline = Duration::ZERO;
        config.tls = way.is_tls.then(|| tls(&authority, directory.path()));
        settle(&mut config);
        let waiting = Arc::new(watch::Sender::new(0));
        let gateway = open(&config, &waiting).await.unwrap();
        let client = client(way, &gateway, &authority);
        let gateway = Some(gateway);
        World {
            client,
            upstream,
            gateway,
            config,
            way,
            authority,
            waiting,
            begun: Vec::new(),
            disk,
            directory,
        }
    }

    pub async fn send(&self, request: ClientRequest) -> Answer {
        self.client.send(request).await
    }

    /// Sends a request that stops at the gate, and returns when it has arrived there.
    pub async fn begin(&mut self, request: ClientRequest) {
        self.begun.push(self.client.spawn(request));
        self.gate().wait_held(self.begun.len()).await;
    }

    /// Sends a request that waits for a running one, and returns when it waits.
    pub async fn wait_with(&self, request: ClientRequest) -> JoinHandle<Answer> {
        let before = *self.waiting.borrow();
        let waiter = self.client.spawn(request);
        self.waiting
            .subscribe()
            .wait_for(|waiting| *waiting > before)
            .await
            .unwrap();
        waiter
    }

    /// Lets the first of the begun requests continue, and returns its answer.
    pub async fn go_on(&mut self) -> Answer {
        self.gate().open(1);
        self.begun.remove(0).await.unwrap()
    }

    pub fn gate(&self) -> &Gate {
        &self.upstream.gate
    }

    pub fn hapax(&self) -> &Hapax {
        self.gateway().hapax()
    }

    pub fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().expect(RUNS)
    }

    /// Returns the gateway, for tests that stop it themselves.
    pub fn take_gateway(&mut self) -> Gateway {
        self.gateway.take().expect(RUNS)
    }

    /// The state of the only record.
    pub async fn state(&self) -> State {
        let heads = self
            .hapax()
            .list(ListQuery {
                state: None,
                after: None,
                limit: 2,
            })
            .await
            .unwrap();
        assert_eq!(heads.len(), 1, "one record");
        self.hapax().look(heads[0].id).await.unwrap().1
    }

    /// Sends a request until its answer is different.
    pub async fn send_until(
        &self,
        mut request: impl FnMut() -> ClientRequest,
        is_other: impl Fn(&Answer) -> bool,
    ) -> Answer {
        loop {
            let got = self.send(request()).await;
            if is_other(&got) {
                return got;
            }
        }
    }

    /// Leaves no room for another claim, neither on the disk nor in the store's existing files.
    pub async fn fill_disk(&mut self) {
        self.disk().fill();
        let policy = Policy {
            store_timeout: Duration::from_millis(500),
            ..Policy::default()
        };
        let filling = self.hapax().once("filling").policy(policy).unwrap();
        let mut refused = 0;
        for number in 0.. {
            let (began, has_begun) = tokio::sync::oneshot::channel();
            let work = |_| async move {
                began.send(()).unwrap();
                Ok::<_, hapax::BoxError>(Bytes::new())
            };
            let ran = filling.run(number.to_string(), "", work).await;
            refused = if ran.is_err() && has_begun.await.is_err() {
                refused + 1
            } else {
                0
            };
            if refused == REFUSED_ENOUGH {
                return;
            }
        }
    }

    pub fn free_disk(&mut self) {
        self.disk().free();
    }

    fn disk(&mut self) -> &mut Disk {
        self.disk.as_mut().expect("the store has a disk of its own")
    }

    /// Stops the gateway, changes its store, and starts it again, for clients with this protocol.
    pub async fn restart(mut self, way: Way, meanwhile: impl FnOnce(&Path)) -> World {
        self.take_gateway().drain().await;
        if let StoreUrl::Sqlite(path) = &self.config.store {
            meanwhile(path);
        }
        self.config.tls = way
            .is_tls
            .then(|| tls(&self.authority, self.directory.path()));
        let gateway = loop {
            match open(&self.config, &self.waiting).await {
                // A task may still be using the store.
                Err(StartError::Store { .. }) => tokio::task::yield_now().await,
                opened => break opened.unwrap(),
            }
        };
        self.client = client(way, &gateway, &self.authority);
        self.way = way;
        self.gateway = Some(gateway);
        self
    }

    pub fn way(&self) -> Way {
        self.way
    }

    pub async fn end(self) {
        self.gateway.expect(RUNS).drain().await;
    }
}

async fn open(config: &Config, waiting: &Arc<watch::Sender<usize>>) -> Result<Gateway, StartError> {
    let counter = waiting.clone();
    let observer = move |event: &Event<'_>| {
        counter.send_modify(|count| *count += usize::from(matches!(event, Event::Waiting(_))));
    };
    Gateway::start_observed(config.clone(), observer).await
}

fn client(way: Way, gateway: &Gateway, authority: &Authority) -> Client {
    let protocol: &[u8] = if way.is_http2 { b"h2" } else { b"http/1.1" };
    let tls = way.is_tls.then(|| authority.client(protocol));
    Client::new(gateway.address()).http2(way.is_http2).tls(tls)
}

fn tls(authority: &Authority, directory: &Path) -> Tls {
    let (certificate, key) = authority.issue().write(directory, "gateway");
    Tls { certificate, key }
}

/// A store in a new database; `None` without PostgreSQL.
pub fn database() -> Option<StoreUrl> {
    let url = harness::migrated(Postgres::shared()?);
    Some(StoreUrl::Postgres(url.parse().unwrap()))
}

/// A route for all paths.
pub fn everywhere(policy: Policy) -> Route {
    Route {
        name: "everything".into(),
        ..Route::everywhere(policy)
    }
}
