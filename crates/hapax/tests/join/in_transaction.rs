//! Claim, effect and value in one transaction of the caller's, with every driver. Effects are
//! counted in the table of effects.

use bytes::Bytes;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, TransactionManager,
};
use hapax::{
    Answer, Audit, BoxError, Done, FingerprintPolicy, Hapax, Key, Once, Operation, Policy,
    Principal, RecordId, Rejection, RunError, Scope, Settlement,
};
use rusqlite::TransactionBehavior;
use sea_orm::{ConnectionTrait, TransactionTrait};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::place::Place;
use crate::script::Driver;

/// The parameters are the record and the fence.
const EFFECT: &str = "INSERT INTO effects (record, fence) VALUES ($1, $2)";

/// What the caller does with the transaction, and what the work does in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Commit,
    RollBack,
    /// The work writes its effect, then fails; the caller commits all the same.
    FailAndCommit,
    /// The work writes its effect, then waits for ever; the caller drops it, and commits.
    DropAndCommit,
    /// The work tries to finish by itself.
    Finish,
}

/// A request under a key.
struct Ask<'a> {
    key: &'a str,
    request: &'static str,
    plan: Plan,
}

/// A driver that can run work in one of its transactions.
trait Transacts: Driver {
    async fn order(at: &str, once: &Once, ask: Ask<'_>) -> Result<Done<Bytes>, RunError>;
}

/// What the work does after its effect.
async fn after(operation: &Operation, plan: Plan, waits: &Notify) -> Result<Bytes, BoxError> {
    match plan {
        Plan::FailAndCommit => Err("on purpose".into()),
        Plan::DropAndCommit => {
            waits.notify_one();
            std::future::pending().await
        }
        _ => Ok(Bytes::from(operation.derive("next").as_str().to_owned())),
    }
}

/// Runs until it ends, or, where the plan is to drop it, until it waits.
async fn run<T>(
    waits: &Notify,
    working: impl Future<Output = Result<T, RunError>>,
) -> Result<T, RunError> {
    tokio::select! {
        done = working => done,
        () = waits.notified() => Err(RunError::NotDone("dropped".into())),
    }
}

fn fence(operation: &Operation) -> i64 {
    i64::try_from(operation.fence().as_u64()).expect("a fence fits")
}

fn failed(error: impl Into<BoxError>) -> RunError {
    RunError::NotDone(error.into())
}

/// Ends the transaction as planned. A commit that fails is what the caller hears.
macro_rules! end {
    ($plan:expr, $tx:ident, $done:ident) => {
        match $plan {
            Plan::RollBack => {
                $tx.rollback().await.map_err(failed)?;
                $done
            }
            _ => match $tx.commit().await {
                Ok(()) => $done,
                Err(error) => $done.and(Err(failed(error))),
            },
        }
    };
}

impl Transacts for crate::drivers::TokioPostgres {
    async fn order(at: &str, once: &Once, ask: Ask<'_>) -> Result<Done<Bytes>, RunError> {
        let (mut client, connection) = tokio_postgres::connect(at, tokio_postgres::NoTls)
            .await
            .map_err(failed)?;
        tokio::spawn(connection);
        let mut tx = client.transaction().await.map_err(failed)?;
        let (plan, waits) = (ask.plan, Notify::new());
        let work = async |tx: &mut tokio_postgres::Transaction<'_>, operation: &Operation| {
            let record = operation.record();
            tx.execute(EFFECT, &[&record.as_bytes().as_slice(), &fence(operation)])
                .await?;
            if plan == Plan::Finish {
                operation.join(tx, Answer::new(200, "")).await?;
            }
            after(operation, plan, &waits).await
        };
        let done = run(
            &waits,
            once.in_transaction(&mut tx, ask.key, ask.request, work),
        )
        .await;
        end!(plan, tx, done)
    }
}

impl Transacts for crate::drivers::SqlxPostgres {
    async fn order(at: &str, once: &Once, ask: Ask<'_>) -> Result<Done<Bytes>, RunError> {
        let pool = sqlx::PgPool::connect_lazy(at).expect("a URL");
        let mut tx = pool.begin().await.map_err(failed)?;
        let (plan, waits) = (ask.plan, Notify::new());
        let work = async |tx: &mut sqlx::Transaction<'_, sqlx::Postgres>, operation: &Operation| {
            let effect = sqlx::query(EFFECT)
                .bind(operation.record().as_bytes().to_vec())
                .bind(fence(operation));
            effect.execute(&mut **tx).await?;
            if plan == Plan::Finish {
                operation.join(tx, Answer::new(200, "")).await?;
            }
            after(operation, plan, &waits).await
        };
        let done = run(
            &waits,
            once.in_transaction(&mut tx, ask.key, ask.request, work),
        )
        .await;
        end!(plan, tx, done)
    }
}

impl Transacts for crate::drivers::SqlxSqlite {
    async fn order(at: &str, once: &Once, ask: Ask<'_>) -> Result<Done<Bytes>, RunError> {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(at);
        let pool = sqlx::sqlite::SqlitePoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(options);
        let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        let (plan, waits) = (ask.plan, Notify::new());
        let work = async |tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, operation: &Operation| {
            let effect = sqlx::query(EFFECT)
                .bind(operation.record().as_bytes().to_vec())
                .bind(fence(operation));
            effect.execute(&mut **tx).await?;
            if plan == Plan::Finish {
                operation.join(tx, Answer::new(200, "")).await?;
            }
            after(operation, plan, &waits).await
        };
        let done = run(
            &waits,
            once.in_transaction(&mut tx, ask.key, ask.request, work),
        )
        .await;
        end!(plan, tx, done)
    }
}

impl Transacts for crate::drivers::SeaOrm {
    async fn order(at: &str, once: &Once, ask: Ask<'_>) -> Result<Done<Bytes>, RunError> {
        let mut options = sea_orm::ConnectOptions::new(at);
        options.sqlx_logging(false);
        let database = sea_orm::Database::connect(options).await.map_err(failed)?;
        let mut tx = database.begin().await.map_err(failed)?;
        let (plan, waits) = (ask.plan, Notify::new());
        let work = async |tx: &mut sea_orm::DatabaseTransaction, operation: &Operation| {
            let values = [
                operation.record().as_bytes().to_vec().into(),
                fence(operation).into(),
            ];
            let postgres = sea_orm::DbBackend::Postgres;
            let effect = sea_orm::Statement::from_sql_and_values(postgres, EFFECT, values);
            tx.execute_raw(effect).await?;
            if plan == Plan::Finish {
                operation.join(tx, Answer::new(200, "")).await?;
            }
            after(operation, plan, &waits).await
        };
        let done = run(
            &waits,
            once.in_transaction(&mut tx, ask.key, ask.request, work),
        )
        .await;
        end!(plan, tx, done)
    }
}

impl Transacts for crate::drivers::DieselAsync {
    async fn order(at: &str, once: &Once, ask: Ask<'_>) -> Result<Done<Bytes>, RunError> {
        use diesel::sql_types::{BigInt, Binary};
        use diesel_async::RunQueryDsl;

        let mut connection = AsyncPgConnection::establish(at).await.map_err(failed)?;
        AnsiTransactionManager::begin_transaction(&mut connection)
            .await
            .map_err(failed)?;
        let (plan, waits) = (ask.plan, Notify::new());
        let work = async |connection: &mut AsyncPgConnection, operation: &Operation| {
            let effect = diesel::sql_query(EFFECT)
                .bind::<Binary, _>(operation.record().as_bytes().to_vec())
                .bind::<BigInt, _>(fence(operation));
            effect.execute(connection).await?;
            if plan == Plan::Finish {
                operation.join(connection, Answer::new(200, "")).await?;
            }
            after(operation, plan, &waits).await
        };
        let done = run(
            &waits,
            once.in_transaction(&mut connection, ask.key, ask.request, work),
        )
        .await;
        let ended = match plan {
            Plan::RollBack => AnsiTransactionManager::rollback_transaction(&mut connection).await,
            _ => AnsiTransactionManager::commit_transaction(&mut connection).await,
        };
        match ended {
            Ok(()) => done,
            Err(error) => done.and(Err(failed(error))),
        }
    }
}

impl Transacts for crate::drivers::Rusqlite {
    async fn order(at: &str, once: &Once, ask: Ask<'_>) -> Result<Done<Bytes>, RunError> {
        let (at, once, plan) = (at.to_owned(), once.clone(), ask.plan);
        let (key, request) = (ask.key.to_owned(), ask.request);
        let handle = Handle::current();
        let working = tokio::task::spawn_blocking(move || {
            let waits = Notify::new();
            let mut connection = rusqlite::Connection::open(at).expect("the file");
            let mut tx = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(failed)?;
            let work = async |tx: &mut rusqlite::Transaction<'_>, operation: &Operation| {
                let effect = (operation.record().as_bytes().to_vec(), fence(operation));
                tx.execute(EFFECT, effect)?;
                if plan == Plan::Finish {
                    operation.join(tx, Answer::new(200, "")).await?;
                }
                after(operation, plan, &waits).await
            };
            let done = handle.block_on(run(
                &waits,
                once.in_transaction(&mut tx, key.as_str(), request, work),
            ));
            let ended = match plan {
                Plan::RollBack => tx.rollback(),
                _ => tx.commit(),
            };
            match ended {
                Ok(()) => done,
                Err(error) => done.and(Err(failed(error))),
            }
        });
        working.await.expect("it does not panic")
    }
}

/// A service on a database of its own.
struct Shop {
    place: Place,
    hapax: Hapax,
}

const NAMESPACE: &str = "shop";

impl Shop {
    /// `None`, after printing why, if there is no server.
    async fn open<D: Driver>() -> Option<Shop> {
        let place = Place::new::<D>().await?;
        place.give_namespace(NAMESPACE).await;
        let hapax = Hapax::builder_shared(place.store().await)
            .build()
            .namespace(NAMESPACE);
        Some(Shop { place, hapax })
    }

    fn once(&self) -> Once {
        self.hapax
            .once("order")
            .principal(Principal::named("alice"))
    }

    fn record(key: &str) -> RecordId {
        let scope = Scope {
            namespace: NAMESPACE.into(),
            principal: Principal::named("alice"),
            method: "RUN".into(),
            path: "order".into(),
        };
        RecordId::of(&scope, &Key::new(key).expect("a key"))
    }

    async fn order<D: Transacts>(
        &self,
        key: &str,
        request: &'static str,
        plan: Plan,
    ) -> Result<Done<Bytes>, RunError> {
        let ask = Ask { key, request, plan };
        D::order(self.place.at(), &self.once(), ask).await
    }

    async fn effects(&self, key: &str) -> i64 {
        self.place.effects(Shop::record(key)).await
    }
}

fn rejected(result: Result<Done<Bytes>, RunError>) -> Rejection {
    match result {
        Err(RunError::Rejected(rejection)) => rejection,
        other => panic!("{other:?} is no rejection"),
    }
}

async fn a_repeat_gets_the_value<D: Transacts>() {
    let Some(shop) = Shop::open::<D>().await else {
        return;
    };
    let first = shop.order::<D>("k", "a hat", Plan::Commit).await.unwrap();
    let again = shop.order::<D>("k", "a hat", Plan::Commit).await.unwrap();
    assert_eq!((first.replayed, again.replayed), (false, true));
    assert_eq!(first.value, again.value);
    let other = shop.order::<D>("k", "a coat", Plan::Commit).await;
    assert_eq!(rejected(other), Rejection::KeyReused);
    assert_eq!(shop.effects("k").await, 1);
}

async fn what_is_rolled_back_was_never_there<D: Transacts>() {
    let Some(shop) = Shop::open::<D>().await else {
        return;
    };
    let lost = shop.order::<D>("k", "a hat", Plan::RollBack).await.unwrap();
    assert_eq!((lost.replayed, shop.effects("k").await), (false, 0));
    assert!(shop.place.rows().await.is_empty());
    let done = shop.order::<D>("k", "a hat", Plan::Commit).await.unwrap();
    assert_eq!((done.replayed, shop.effects("k").await), (false, 1));
    assert_eq!(
        done.value, lost.value,
        "the next service gets the same key as before the rollback"
    );
}

async fn a_commit_after_an_error_commits_nothing<D: Transacts>() {
    let Some(shop) = Shop::open::<D>().await else {
        return;
    };
    let lost = shop.order::<D>("k", "a hat", Plan::FailAndCommit).await;
    assert!(matches!(lost, Err(RunError::NotDone(_))), "{lost:?}");
    assert_eq!(shop.place.rows().await, []);
    let done = shop.order::<D>("k", "a hat", Plan::Commit).await.unwrap();
    assert_eq!((done.replayed, shop.effects("k").await), (false, 1));
}

/// Postgres refuses that commit. SQLite cannot, and holds the key: the effect is there.
async fn a_commit_in_the_middle_is_no_second_effect<D: Transacts>() {
    let Some(shop) = Shop::open::<D>().await else {
        return;
    };
    let lost = shop.order::<D>("k", "a hat", Plan::DropAndCommit).await;
    assert!(matches!(lost, Err(RunError::NotDone(_))), "{lost:?}");
    let rows = shop.place.rows().await;
    let again = shop.order::<D>("k", "a hat", Plan::Commit).await;
    if D::IS_FILE {
        assert_eq!(rejected(again), Rejection::OutcomeUnknown);
        assert_eq!(shop.place.rows().await, rows, "one effect, and a held key");
        assert_eq!(rows[0].effects.map(|(count, _)| count), Some(1));
        // A person takes the effect back, and says so: then it runs again.
        shop.place.forget_effects();
        let audit = Audit {
            by: "ann",
            reason: "it was taken back",
        };
        let settled = shop
            .hapax
            .settle(Shop::record("k"), Settlement::NotDone, audit);
        settled.await.expect("settled");
        assert!(
            !shop
                .order::<D>("k", "a hat", Plan::Commit)
                .await
                .unwrap()
                .replayed
        );
        assert_eq!(shop.effects("k").await, 1);
    } else {
        assert_eq!(rows, []);
        assert!(!again.unwrap().replayed);
        assert_eq!(shop.effects("k").await, 1);
    }
}

async fn work_in_a_transaction_cannot_finish_by_itself<D: Transacts>() {
    let Some(shop) = Shop::open::<D>().await else {
        return;
    };
    let lost = shop.order::<D>("k", "a hat", Plan::Finish).await;
    let Err(RunError::NotDone(error)) = lost else {
        panic!("{lost:?} is done")
    };
    assert!(error.to_string().contains("return the answer"), "{error}");
    assert_eq!(shop.place.rows().await, []);
}

async fn of_twenty_at_once_one_runs<D: Transacts>() {
    let Some(shop) = Shop::open::<D>().await else {
        return;
    };
    let orders = (0..20).map(|_| shop.order::<D>("k", "a hat", Plan::Commit));
    let mut ran = 0;
    for result in futures_of(orders).await {
        match result {
            Ok(done) => ran += usize::from(!done.replayed),
            Err(RunError::Rejected(rejection)) => {
                assert!(
                    matches!(rejection, Rejection::InFlight { .. }),
                    "{rejection:?}"
                );
            }
            // SQLite has one writer, and some drivers do not wait for it.
            Err(RunError::NotDone(error)) => assert!(D::IS_FILE, "{error}"),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((ran, shop.effects("k").await), (1, 1));
}

/// All of them at once, on this task.
async fn futures_of<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_ready = true;
        for (future, output) in &mut waiting {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => is_ready = false,
                }
            }
        }
        match is_ready {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    waiting
        .into_iter()
        .map(|(_, output)| output.expect("all have ended"))
        .collect()
}

/// A record that an operator has settled as not done runs again, also under another policy, and one
/// that is kept replays.
async fn a_record_is_judged_by_the_policy_it_was_made_with<D: Transacts>() {
    let Some(shop) = Shop::open::<D>().await else {
        return;
    };
    let under = |policy: FingerprintPolicy| {
        let policy = Policy {
            fingerprint: policy.into(),
            ..Policy::default()
        };
        shop.once().policy(policy).expect("a policy")
    };
    let (first, second) = (
        under(FingerprintPolicy::default()),
        under(FingerprintPolicy::json_without(["/sent_at"]).expect("a pointer")),
    );
    let ask = |request| Ask {
        key: "k",
        request,
        plan: Plan::Commit,
    };
    let at = shop.place.at();
    assert!(
        !D::order(at, &first, ask(r#"{"a": 1}"#))
            .await
            .unwrap()
            .replayed
    );
    assert!(
        D::order(at, &second, ask(r#"{"a": 1}"#))
            .await
            .unwrap()
            .replayed
    );
    let other = D::order(at, &second, ask(r#"{"a": 2}"#)).await;
    assert_eq!(rejected(other), Rejection::KeyReused);
    assert_eq!(shop.effects("k").await, 1);
}

macro_rules! every_driver {
    ($($test:ident),+ $(,)?) => {
        every_driver!(@ by_tokio_postgres, TokioPostgres, $($test),+);
        every_driver!(@ by_sqlx_postgres, SqlxPostgres, $($test),+);
        every_driver!(@ by_sqlx_sqlite, SqlxSqlite, $($test),+);
        every_driver!(@ by_sea_orm, SeaOrm, $($test),+);
        every_driver!(@ by_diesel_async, DieselAsync, $($test),+);
        every_driver!(@ by_rusqlite, Rusqlite, $($test),+);
    };
    (@ $name:ident, $driver:ident, $($test:ident),+) => {
        mod $name {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test::<crate::drivers::$driver>().await;
                }
            )+
        }
    };
}

every_driver!(
    a_repeat_gets_the_value,
    what_is_rolled_back_was_never_there,
    a_commit_after_an_error_commits_nothing,
    a_commit_in_the_middle_is_no_second_effect,
    work_in_a_transaction_cannot_finish_by_itself,
    of_twenty_at_once_one_runs,
    a_record_is_judged_by_the_policy_it_was_made_with,
);

/// What the caller wrote before a call that is refused is not committed either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_breaks_the_transaction_of_its_caller() {
    use crate::drivers::{Rusqlite, SqlxPostgres};

    let work = || async |_: &mut _, _: &Operation| Ok::<_, BoxError>(Bytes::new());
    if let Some(shop) = Shop::open::<SqlxPostgres>().await {
        shop.order::<SqlxPostgres>("k", "a hat", Plan::Commit)
            .await
            .unwrap();
        let pool = sqlx::PgPool::connect_lazy(shop.place.at()).expect("a URL");
        for key in ["k", ""] {
            let mut tx = pool.begin().await.unwrap();
            let effect = sqlx::query(EFFECT).bind(vec![7_u8]).bind(7_i64);
            effect.execute(&mut *tx).await.unwrap();
            let once = shop.once();
            let refused = once.in_transaction(&mut tx, key, "a coat", work()).await;
            assert!(refused.is_err(), "{key:?}");
            let _ = tx.commit().await;
            assert_eq!(shop.place.rows().await.len(), 1, "{key:?}");
        }
    }
    let shop = Shop::open::<Rusqlite>().await.expect("a file");
    shop.order::<Rusqlite>("k", "a hat", Plan::Commit)
        .await
        .unwrap();
    for key in ["k", ""] {
        let (at, once) = (shop.place.at().to_owned(), shop.once());
        let handle = Handle::current();
        let refused = tokio::task::spawn_blocking(move || {
            let mut connection = rusqlite::Connection::open(at).expect("the file");
            let mut tx = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .expect("begun");
            tx.execute(EFFECT, (vec![7_u8], 7)).expect("an effect");
            let work = async |_: &mut _, _: &Operation| Ok::<_, BoxError>(Bytes::new());
            let refused = handle.block_on(once.in_transaction(&mut tx, key, "a coat", work));
            let _ = tx.commit();
            refused.is_err()
        });
        assert!(refused.await.expect("it does not panic"), "{key:?}");
        assert_eq!(shop.place.rows().await.len(), 1, "{key:?}");
    }
}

/// Handlers of axum, and tasks, need futures that can be sent to another thread. rustc can tell
/// only if the work leaves the lifetime in the transaction's type open: `Transaction<'_, Postgres>`.
#[expect(dead_code, reason = "that it compiles is the test")]
fn a_handler_can_run_it(once: &Once, pool: &sqlx::PgPool, database: &sea_orm::DatabaseConnection) {
    fn sent<T: Send>(_: T) {}
    sent(async {
        let mut tx = pool.begin().await?;
        let work = async |tx: &mut sqlx::Transaction<'_, sqlx::Postgres>, _: &Operation| {
            sqlx::query("SELECT 1").execute(&mut **tx).await?;
            Ok::<_, sqlx::Error>(Bytes::new())
        };
        once.in_transaction(&mut tx, "k", "", work).await?;
        Ok::<_, BoxError>(tx.commit().await?)
    });
    sent(async {
        let mut tx = database.begin().await?;
        let work = async |tx: &mut sea_orm::DatabaseTransaction, _: &Operation| {
            tx.execute_unprepared("SELECT 1").await?;
            Ok::<_, sea_orm::DbErr>(Bytes::new())
        };
        once.in_transaction(&mut tx, "k", "", work).await?;
        Ok::<_, BoxError>(tx.commit().await?)
    });
    sent(async {
        let mut connection = AsyncPgConnection::establish("").await?;
        let work = async |connection: &mut AsyncPgConnection, _: &Operation| {
            diesel_async::RunQueryDsl::execute(diesel::sql_query("SELECT 1"), connection).await?;
            Ok::<_, diesel::result::Error>(Bytes::new())
        };
        let done = connection
            .transaction(async |connection| {
                Ok::<_, BoxError>(once.in_transaction(connection, "k", "", work).await?)
            })
            .await?;
        Ok::<_, BoxError>(done)
    });
    let client = || async { tokio_postgres::connect("", tokio_postgres::NoTls).await };
    sent(async {
        let (mut client, _) = client().await?;
        let mut tx = client.transaction().await?;
        let work = async |tx: &mut tokio_postgres::Transaction<'_>, _: &Operation| {
            tx.execute("SELECT 1", &[]).await?;
            Ok::<_, tokio_postgres::Error>(Bytes::new())
        };
        once.in_transaction(&mut tx, "k", "", work).await?;
        Ok::<_, BoxError>(tx.commit().await?)
    });
}
