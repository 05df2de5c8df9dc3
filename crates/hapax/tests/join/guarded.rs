//! A guard that answers each request in one transaction, and lends it to the handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hapax::join::{OpenTransaction, TransactionPool};
use hapax::{Hapax, Operation, Policy};
use http_body_util::BodyExt;
use sea_orm::ConnectionTrait;
use tokio::sync::Notify;
use tower::ServiceExt;

use crate::place::Place;
use crate::script::Driver;

const EFFECT: &str = "INSERT INTO effects (record, fence) VALUES ($1, $2)";

/// What a handler does, by its path.
#[derive(Clone, Default)]
struct Shop {
    runs: Arc<AtomicUsize>,
    /// Handlers of `/wait` wait for this.
    gate: Arc<Notify>,
    arrived: Arc<Notify>,
    stray: Arc<parking_lot::Mutex<Vec<Box<dyn std::any::Any + Send>>>>,
}

/// A transaction that can write an effect.
trait Writes: Send + Sized + 'static {
    fn write(&mut self, operation: &Operation) -> impl Future<Output = ()> + Send;
}

fn fence(operation: &Operation) -> i64 {
    i64::try_from(operation.fence().as_u64()).expect("a fence fits")
}

impl Writes for sqlx::Transaction<'static, sqlx::Postgres> {
    async fn write(&mut self, operation: &Operation) {
        let effect = sqlx::query(EFFECT)
            .bind(operation.record().as_bytes().to_vec())
            .bind(fence(operation));
        effect.execute(&mut **self).await.expect("an effect");
    }
}

impl Writes for sqlx::Transaction<'static, sqlx::Sqlite> {
    async fn write(&mut self, operation: &Operation) {
        let effect = sqlx::query(EFFECT)
            .bind(operation.record().as_bytes().to_vec())
            .bind(fence(operation));
        effect.execute(&mut **self).await.expect("an effect");
    }
}

impl Writes for sea_orm::DatabaseTransaction {
    async fn write(&mut self, operation: &Operation) {
        let values = [
            operation.record().as_bytes().to_vec().into(),
            fence(operation).into(),
        ];
        let postgres = sea_orm::DbBackend::Postgres;
        let effect = sea_orm::Statement::from_sql_and_values(postgres, EFFECT, values);
        self.execute_raw(effect).await.expect("an effect");
    }
}

impl Shop {
    async fn order<T: Writes>(
        self,
        mut tx: OpenTransaction<T>,
        operation: Operation,
        what: &'static str,
    ) -> Response {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        tx.write(&operation).await;
        let fails = run == 1;
        match what {
            "refuse" => (StatusCode::CONFLICT, format!("refused, run {run}")).into_response(),
            "fail" if fails => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            "busy" if fails => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            "panic" if fails => panic!("on purpose"),
            "stray" if fails => {
                self.stray.lock().push(Box::new(tx));
                StatusCode::OK.into_response()
            }
            "wait" => {
                self.arrived.notify_one();
                self.gate.notified().await;
                (StatusCode::CREATED, format!("ordered, run {run}")).into_response()
            }
            _ => (StatusCode::CREATED, format!("ordered, run {run}")).into_response(),
        }
    }

    fn app<T: Writes>(&self, hapax: &Hapax, pool: impl TransactionPool) -> Router {
        let mut routes = Router::new();
        for what in ["order", "refuse", "fail", "busy", "panic", "stray", "wait"] {
            let shop = self.clone();
            let handler =
                move |tx: OpenTransaction<T>, operation: Operation| shop.order(tx, operation, what);
            routes = routes.route(&format!("/{what}"), post(handler));
        }
        let twice = async |_one: OpenTransaction<T>, _other: OpenTransaction<T>| StatusCode::OK;
        let guard = hapax
            .guard()
            .in_transaction(pool)
            .anonymous()
            .build()
            .expect("a guard");
        routes.route("/twice", post(twice)).route_layer(guard)
    }
}

/// A service on a database of its own.
struct World {
    place: Place,
    shop: Shop,
    app: Router,
}

#[derive(Debug, PartialEq, Eq)]
struct Got {
    status: u16,
    body: String,
    is_replay: bool,
}

impl World {
    async fn send(&self, path: &str, key: &str, body: &str) -> Got {
        let request = Request::post(path)
            .header("idempotency-key", key)
            .body(Body::from(body.to_owned()))
            .expect("a request");
        let response = self.app.clone().oneshot(request).await.expect("an answer");
        let (status, is_replay) = (
            response.status().as_u16(),
            response.headers().contains_key("idempotent-replayed"),
        );
        let body = response.into_body().collect().await.expect("a body");
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Got {
            status,
            body,
            is_replay,
        }
    }

    fn runs(&self) -> usize {
        self.shop.runs.load(Ordering::SeqCst)
    }

    /// How many effects there are, of all keys. Panics if a record and its effects disagree, but
    /// for a refusal, which has none.
    async fn effects(&self) -> i64 {
        let rows = self.place.rows().await;
        for row in &rows {
            let completed_by = row.head.filter(|(state, _)| *state == 2);
            assert_eq!(
                row.effects,
                completed_by.map(|(_, fence)| (1, fence)),
                "{row:?}"
            );
        }
        rows.iter()
            .filter_map(|row| row.effects)
            .map(|(count, _)| count)
            .sum()
    }
}

async fn one_effect_and_its_answer(world: World) {
    let first = world.send("/order", "k", "a hat").await;
    let again = world.send("/order", "k", "a hat").await;
    assert_eq!((first.status, first.is_replay), (201, false));
    assert_eq!((again.status, again.is_replay), (201, true));
    assert_eq!(first.body, again.body);
    assert_eq!(world.send("/order", "k", "a coat").await.status, 422);
    assert_eq!((world.runs(), world.effects().await), (1, 1));
}

async fn a_refusal_is_kept_without_its_writes(world: World) {
    let first = world.send("/refuse", "k", "a hat").await;
    let again = world.send("/refuse", "k", "a hat").await;
    assert_eq!((first.status, first.is_replay), (409, false));
    assert_eq!((again.status, again.is_replay), (409, true));
    assert_eq!(again.body, "refused, run 1");
    assert_eq!((world.runs(), world.effects().await), (1, 0));
}

async fn what_fails_is_rolled_back_and_runs_again(world: World) {
    for (path, status) in [
        ("/fail", 500),
        ("/busy", 503),
        ("/panic", 502),
        ("/stray", 502),
    ] {
        world.shop.runs.store(0, Ordering::SeqCst);
        let before = world.effects().await;
        let first = world.send(path, "k", "a hat").await;
        assert_eq!(first.status, status, "{path}: {first:?}");
        let mut again = world.send(path, "k", "a hat").await;
        // A handler that keeps its transaction holds the key until it drops it. Then the pool rolls
        // it back when it comes to it.
        if path == "/stray" {
            assert!([409, 503].contains(&again.status), "{again:?}");
            assert_eq!(world.effects().await, before, "{path}");
            world.shop.stray.lock().clear();
            while again.status != 201 {
                again = world.send(path, "k", "a hat").await;
            }
        }
        assert_eq!((again.status, again.is_replay), (201, false), "{path}");
        assert_eq!(world.runs(), 2, "{path}");
        assert_eq!(world.effects().await, before + 1, "{path}");
    }
}

async fn mistakes_are_told_and_change_nothing(world: World) {
    assert_eq!(world.send("/twice", "k", "a hat").await.status, 500);
    let bare = Request::post("/order")
        .body(Body::empty())
        .expect("a request");
    let response = world.app.clone().oneshot(bare).await.expect("an answer");
    assert_eq!(response.status(), 500, "it needs a key, and is not guarded");
    assert_eq!((world.runs(), world.effects().await), (0, 0));
}

/// The caller has gone, and the work goes on to its commit.
async fn a_caller_that_hangs_up_leaves_the_work_whole(world: World) {
    let world = Arc::new(world);
    let caller = {
        let world = world.clone();
        tokio::spawn(async move { world.send("/wait", "k", "a hat").await })
    };
    world.shop.arrived.notified().await;
    let repeat = world.send("/wait", "k", "a hat").await;
    assert!([409, 503].contains(&repeat.status), "{repeat:?}");
    caller.abort();
    assert!(caller.await.is_err());
    world.shop.gate.notify_one();
    let replay = loop {
        let repeat = world.send("/wait", "k", "a hat").await;
        if repeat.status == 201 {
            break repeat;
        }
        tokio::task::yield_now().await;
    };
    assert!(replay.is_replay);
    assert_eq!((world.runs(), world.effects().await), (1, 1));
}

async fn postgres<D: Driver, T: Writes, P: TransactionPool>(
    pool: impl AsyncFnOnce(&str) -> P,
) -> Option<World> {
    let place = Place::new::<D>().await?;
    place.give_namespace("shop").await;
    let hapax = Hapax::builder_shared(place.store().await)
        .build()
        .namespace("shop");
    let shop = Shop::default();
    let app = shop.app::<T>(&hapax, pool(place.at()).await);
    Some(World { place, shop, app })
}

mod pools {
    use super::*;

    pub(super) async fn by_sqlx_postgres() -> Option<World> {
        type Transaction = sqlx::Transaction<'static, sqlx::Postgres>;
        let pool = async |at: &str| sqlx::PgPool::connect_lazy(at).expect("a URL");
        postgres::<crate::drivers::SqlxPostgres, Transaction, _>(pool).await
    }

    pub(super) async fn by_sqlx_sqlite() -> Option<World> {
        type Transaction = sqlx::Transaction<'static, sqlx::Sqlite>;
        let pool = async |at: &str| {
            let options = sqlx::sqlite::SqliteConnectOptions::new()
                .filename(at)
                .busy_timeout(std::time::Duration::from_millis(100));
            sqlx::sqlite::SqlitePoolOptions::new().connect_lazy_with(options)
        };
        postgres::<crate::drivers::SqlxSqlite, Transaction, _>(pool).await
    }

    pub(super) async fn by_sea_orm() -> Option<World> {
        let pool = async |at: &str| {
            let mut options = sea_orm::ConnectOptions::new(at);
            options.sqlx_logging(false);
            sea_orm::Database::connect(options).await.expect("a pool")
        };
        postgres::<crate::drivers::SeaOrm, sea_orm::DatabaseTransaction, _>(pool).await
    }
}

macro_rules! every_pool {
    ($($test:ident),+ $(,)?) => {
        every_pool!(@ by_sqlx_postgres, $($test),+);
        every_pool!(@ by_sqlx_sqlite, $($test),+);
        every_pool!(@ by_sea_orm, $($test),+);
    };
    (@ $pool:ident, $($test:ident),+) => {
        mod $pool {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(world) = super::pools::$pool().await {
                        super::$test(world).await;
                    }
                }
            )+
        }
    };
}

every_pool!(
    one_effect_and_its_answer,
    a_refusal_is_kept_without_its_writes,
    what_fails_is_rolled_back_and_runs_again,
    mistakes_are_told_and_change_nothing,
    a_caller_that_hangs_up_leaves_the_work_whole,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_names_what_it_cannot_do_in_a_transaction() {
    let pool = sqlx::PgPool::connect_lazy("postgres://127.0.0.1:1/none").expect("a URL");
    let policy = Policy {
        shadow: true,
        ..Policy::default()
    };
    let built = Hapax::memory()
        .guard()
        .policy(policy)
        .in_transaction(pool)
        .anonymous()
        .build();
    let said = built.expect_err("mistakes").to_string();
    assert!(said.contains("`shadow` has no effect"), "{said}");
    assert!(said.contains("transaction"), "{said}");
}
