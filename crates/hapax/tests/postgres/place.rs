//! A private server, and databases on it that are migrated for the store.

use std::sync::Arc;
use std::sync::OnceLock;

use hapax::Postgres;
use hapax::store::postgres::{ConnectOptions, Options, schema};
use hapax_contract::{Bench, ManualClock};
use hapax_core::audit::{LogEntry, LogQuery, Note};
use hapax_core::scope::PrincipalId;
use hapax_core::store::{
    KnownPrincipal, ListQuery, Put, Reading, Renewal, Reply, StoreInfo, Swept, Written,
};
use hapax_core::{Head, RecordId, Store};
use hapax_testkit::servers::{self, PgBouncer};
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::{Client, NoTls};

/// A new migrated database, and its server. `None`, after printing why, if there is no server.
pub(crate) async fn prepared() -> Option<(&'static servers::Postgres, String)> {
    let server = servers::Postgres::shared()?;
    let url = server.database();
    migrate(&url).await;
    Some((server, url))
}

/// Like [`prepared`], but the same database for every caller.
pub(crate) async fn prepared_once() -> Option<&'static str> {
    static PREPARED: OnceCell<Option<String>> = OnceCell::const_new();
    PREPARED
        .get_or_init(async || Some(prepared().await?.1))
        .await
        .as_deref()
}

/// The same database through PgBouncer, with fewer connections than all pipelines need together.
pub(crate) async fn pooled_once() -> Option<String> {
    static POOL: OnceLock<Option<PgBouncer>> = OnceLock::new();
    let url = prepared_once().await?;
    let settings = [("default_pool_size", "3"), ("max_client_conn", "500")];
    let pool = POOL.get_or_init(|| PgBouncer::with(servers::Postgres::shared()?, &settings));
    let database = url.rsplit('/').next().expect("the name of a database");
    Some(pool.as_ref()?.url(database))
}

pub(crate) async fn migrate(url: &str) {
    let options = ConnectOptions::parse(url).expect("a URL");
    schema::migrate(&options, &schema::migrations(), |_| {})
        .await
        .unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) async fn open(url: &str) -> Postgres {
    Postgres::open(url)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A bench on a store that other tests use at the same time.
pub(crate) async fn shared_bench(url: &str) -> Bench {
    Bench::in_real_time(Arc::new(open(url).await))
        .shared()
        .dropping_in_bulk()
}

/// Another user's session with all rights.
pub(crate) async fn session(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a session");
    tokio::spawn(connection);
    client
}

/// A store whose database takes its time from a manual clock.
pub(crate) struct ByHand {
    store: Postgres,
    clock: ManualClock,
    session: Client,
    told: Mutex<u64>,
}

impl ByHand {
    pub(crate) async fn open(url: &str, clock: ManualClock) -> ByHand {
        let session = session(url).await;
        let sql = "CREATE TABLE hapax.hand (now int8 NOT NULL);
                   INSERT INTO hapax.hand VALUES (0);
                   CREATE OR REPLACE FUNCTION hapax.clock() RETURNS int8 LANGUAGE sql VOLATILE AS $$ SELECT now FROM hapax.hand $$;";
        session
            .batch_execute(sql)
            .await
            .expect("a clock that can be turned");
        let options = Options {
            clock: Some(Arc::new(clock.clone())),
            ..Options::new(url).expect("a URL")
        };
        let store = Postgres::open_with(options)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        ByHand {
            store,
            clock,
            session,
            told: Mutex::new(0),
        }
    }

    /// The number of tables of answers it has emptied.
    pub(crate) fn turns(&self) -> u64 {
        self.store.stats().turns
    }

    /// Sends the clock's time to the database, if it has changed.
    async fn tell(&self) {
        let mut told = self.told.lock().await;
        let now = self.clock.now().as_micros();
        if *told != now {
            self.session
                .batch_execute(&format!("UPDATE hapax.hand SET now = {now}"))
                .await
                .expect("a clock that can be turned");
            *told = now;
        }
    }
}

macro_rules! at_the_time {
    ($self:ident.$verb:ident($($argument:expr)?)) => {
        Box::pin(async move {
            $self.tell().await;
            $self.store.$verb($($argument)?).await
        })
    };
}

impl Store for ByHand {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        at_the_time!(self.get(ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        at_the_time!(self.put_if(put))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        at_the_time!(self.renew(renewals))
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        at_the_time!(self.list(query))
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        at_the_time!(self.sweep(limit))
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        at_the_time!(self.info())
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        at_the_time!(self.remember(principals))
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        at_the_time!(self.knows(principal))
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        at_the_time!(self.log(query))
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        at_the_time!(self.note(note))
    }
}
