//! A small orders service in which an order, the message about it and the record of its key commit
//! together, in one SQLite file.

use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::header::{ETAG, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hapax::join::Kept;
use hapax::natural::{ETag, IfMatch};
use hapax::outbox::Message;
use hapax::{Guest, Hapax, Operation};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use serde::{Deserialize, Serialize};

const FILE: &str = "orders.db";
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        id TEXT PRIMARY KEY DEFAULT (lower(hex(randomblob(16)))),
        item TEXT NOT NULL,
        quantity INTEGER NOT NULL CHECK (quantity > 0),
        version INTEGER NOT NULL DEFAULT 1
    )";

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = serve().await else {
        return ExitCode::SUCCESS;
    };
    eprintln!("axum-orders: {error}");
    ExitCode::from(2)
}

async fn serve() -> Result<(), Failure> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:3000".into());
    // The records are guests in the file that holds the orders, so that both can commit together.
    let hapax = Hapax::new(Guest::open(FILE).await?).namespace("orders");
    let database = Database::open()?;
    let guard = hapax.guard().required().transaction().anonymous().build()?;
    let app = Router::new()
        .route("/orders", post(place))
        // Only the routes above need a key. There are no users here; for users see axum-payments.
        .route_layer(guard)
        .route("/orders/{id}", get(show).put(put).patch(change))
        .with_state(database);

    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("axum-orders: listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// One connection, because SQLite has only one writer anyway.
#[derive(Clone)]
struct Database(Arc<Mutex<Connection>>);

impl Database {
    fn open() -> rusqlite::Result<Database> {
        let connection = Connection::open(FILE)?;
        // Hapax writes to this file too.
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        connection.execute_batch(TABLES)?;
        Ok(Database(Arc::new(Mutex::new(connection))))
    }

    /// Runs the work on a thread where it may block.
    async fn run<T, W>(self, work: W) -> Result<T, Failed>
    where
        T: Send + 'static,
        W: FnOnce(&mut Connection) -> Result<T, Failure> + Send + 'static,
    {
        // The transaction of a handler that panicked was rolled back, so the connection can still
        // be used.
        let work = move || {
            work(
                &mut self
                    .0
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner()),
            )
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(Failure::from)
            .and_then(|done| done)
            .map_err(Failed)
    }
}

/// Nothing was committed, so that 500, which lets the key run again, is correct.
struct Failed(Failure);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        eprintln!("axum-orders: {}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

#[derive(Deserialize)]
struct Wanted {
    item: String,
    /// A quantity of zero is no order: axum answers 422, which is kept without a join.
    quantity: NonZeroU32,
}

#[derive(Serialize)]
struct Order {
    id: String,
    item: String,
    quantity: u32,
    version: u32,
}

impl Order {
    fn of(row: &Row<'_>) -> rusqlite::Result<Order> {
        Ok(Order {
            id: row.get("id")?,
            item: row.get("item")?,
            quantity: row.get("quantity")?,
            version: row.get("version")?,
        })
    }

    fn find(connection: &Connection, id: &str) -> rusqlite::Result<Option<Order>> {
        connection
            .query_row("SELECT * FROM orders WHERE id = ?1", [id], Order::of)
            .optional()
    }

    fn etag(&self) -> ETag {
        ETag::of_version(self.version.into())
    }
}

impl IntoResponse for Order {
    fn into_response(self) -> Response {
        ([(ETAG, self.etag().to_value())], Json(self)).into_response()
    }
}

/// Needs a key, because the order gets its id here.
async fn place(
    operation: Operation,
    State(database): State<Database>,
    Json(wanted): Json<Wanted>,
) -> Result<Kept, Failed> {
    database
        .run(move |connection| {
            let mut transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let sql = "INSERT INTO orders (item, quantity) VALUES (?1, ?2) RETURNING *";
            let order = transaction.query_row(
                sql,
                params![wanted.item, wanted.quantity.get()],
                Order::of,
            )?;
            let placed = Message::new("orders", &*order.id, serde_json::to_vec(&order)?)
                .json()
                .header("ce-type", "order.placed")
                .step("placed");
            operation.emit_blocking(&mut transaction, placed)?;
            let location = [(LOCATION, format!("/orders/{}", order.id))];
            Ok(operation.finish_blocking(transaction, (StatusCode::CREATED, location, order))?)
        })
        .await
}

/// Needs no key, because the caller chooses the order's id.
async fn put(
    State(database): State<Database>,
    Path(id): Path<String>,
    Json(wanted): Json<Wanted>,
) -> Result<Response, Failed> {
    database
        .run(move |connection| {
            let sql = "INSERT INTO orders (id, item, quantity) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING";
            let made = connection.execute(sql, params![id, wanted.item, wanted.quantity.get()])? > 0;
            Ok(match Order::find(connection, &id)? {
                Some(order) if order.item == wanted.item => {
                    (if made { StatusCode::CREATED } else { StatusCode::OK }, order).into_response()
                }
                _ => (StatusCode::CONFLICT, "there is another order of this number\n").into_response(),
            })
        })
        .await
}

async fn show(
    State(database): State<Database>,
    Path(id): Path<String>,
) -> Result<Response, Failed> {
    database
        .run(move |connection| {
            Ok(Order::find(connection, &id)?.map_or_else(missing, Order::into_response))
        })
        .await
}

#[derive(Deserialize)]
struct Change {
    quantity: NonZeroU32,
}

/// Changes the order only if it is still in the version that the caller has seen.
async fn change(
    State(database): State<Database>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(change): Json<Change>,
) -> Result<Response, Failed> {
    let condition = match IfMatch::required(&headers) {
        Ok(condition) => condition,
        Err(unmet) => return Ok(unmet.into_response()),
    };
    database
        .run(move |connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let Some(order) = Order::find(&transaction, &id)? else {
                return Ok(missing());
            };
            // No other connection can write between this check and the change: the transaction
            // holds SQLite's only write lock.
            if let Err(unmet) = condition.check(&order.etag()) {
                return Ok(unmet.into_response());
            }
            let sql =
                "UPDATE orders SET quantity = ?1, version = version + 1 WHERE id = ?2 RETURNING *";
            let order =
                transaction.query_row(sql, params![change.quantity.get(), id], Order::of)?;
            transaction.commit()?;
            Ok(order.into_response())
        })
        .await
}

fn missing() -> Response {
    (StatusCode::NOT_FOUND, "no such order\n").into_response()
}
