//! Two calls in a user's transaction: `hapax.start` claims a key, `hapax.complete` ends it. The
//! tests count effects in the user's table of orders only.

mod answers;
mod namespaces;
mod races;
mod rights;
mod transactions;

use hapax_core::{Key, Principal, RecordId, Scope};
use tokio_postgres::Client;

use crate::place;

/// A service with a table of orders in a database whose namespace `shop` belongs to `hapax.start`.
struct Shop {
    url: String,
}

/// What `hapax.start` answers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Started {
    Run { operation_id: String, fence: i64 },
    Replay(Reply),
}

/// A stored answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reply {
    status: i32,
    headers: serde_json::Value,
    body: Vec<u8>,
}

impl Shop {
    /// `None`, after printing why, if there is no server.
    async fn open() -> Option<Shop> {
        let shop = Shop {
            url: place::prepared().await?.1,
        };
        let sql = "SELECT hapax.set_namespace('shop');
                   CREATE TABLE public.orders (key text NOT NULL)";
        shop.session()
            .await
            .batch_execute(sql)
            .await
            .expect("a shop");
        Some(shop)
    }

    async fn session(&self) -> Client {
        place::session(&self.url).await
    }

    async fn sql(&self, sql: &str) {
        self.session()
            .await
            .batch_execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The number of orders with this key.
    async fn orders(&self, key: &str) -> i64 {
        let sql = "SELECT count(*) FROM public.orders WHERE key = $1";
        let row = self.session().await.query_one(sql, &[&key]).await;
        row.expect("asked").get(0)
    }

    /// The number of records with this key, in any state.
    async fn records(&self, key: &str) -> i64 {
        let sql = "SELECT count(*) FROM hapax.records WHERE key = $1";
        let row = self.session().await.query_one(sql, &[&key]).await;
        row.expect("asked").get(0)
    }

    /// Places an order in a transaction of its own, with this body as its request.
    async fn order(&self, key: &str, body: &str) -> Result<Started, String> {
        order(&self.session().await, key, body).await
    }
}

/// The id that the library gives the record of this key.
fn id(key: &str) -> RecordId {
    let scope = Scope {
        namespace: "shop".into(),
        principal: Principal::named("ada"),
        method: "POST".into(),
        path: "/orders".into(),
    };
    RecordId::of(&scope, &Key::new(key).expect("a key"))
}

/// One whole transaction: the key, the order, the answer, the commit. Returns the SQL state if it
/// failed, after a rollback.
async fn order(session: &Client, key: &str, body: &str) -> Result<Started, String> {
    let ordered = try_order(session, key, body, None).await;
    if ordered.is_err() {
        session
            .batch_execute("ROLLBACK")
            .await
            .expect("a connection");
    }
    ordered
}

async fn try_order(
    session: &Client,
    key: &str,
    body: &str,
    wait: Option<&str>,
) -> Result<Started, String> {
    session.batch_execute("BEGIN").await.map_err(code)?;
    let begun = start(session, key, body, wait).await?;
    if let Started::Run { .. } = &begun {
        insert(session, key).await?;
        complete(session, &begun, 201, &format!("ordered {key}")).await?;
    }
    session.batch_execute("COMMIT").await.map_err(code)?;
    Ok(begun)
}

async fn start(
    session: &Client,
    key: &str,
    body: &str,
    wait: Option<&str>,
) -> Result<Started, String> {
    let sql = "SELECT run, operation_id, fence, status, headers::text, body
               FROM hapax.start('shop', 'ada', 'POST /orders', $1, hapax.fingerprint($2), $3::text::interval)";
    let row = session
        .query_one(sql, &[&key, &body, &wait])
        .await
        .map_err(code)?;
    Ok(match row.get(0) {
        true => Started::Run {
            operation_id: row.get(1),
            fence: row.get(2),
        },
        false => Started::Replay(Reply {
            status: row.get(3),
            headers: serde_json::from_str(row.get(4)).expect("JSON"),
            body: row.get(5),
        }),
    })
}

async fn insert(session: &Client, key: &str) -> Result<(), String> {
    let sql = "INSERT INTO public.orders VALUES ($1)";
    session.execute(sql, &[&key]).await.map(drop).map_err(code)
}

async fn complete(
    session: &Client,
    begun: &Started,
    status: i64,
    body: &str,
) -> Result<(), String> {
    let Started::Run {
        operation_id,
        fence,
    } = begun
    else {
        panic!("there is nothing to complete: {begun:?}");
    };
    let sql = "SELECT hapax.complete($1, $2, $3, '{\"content-type\": \"text/plain\"}', $4::text)";
    session
        .execute(sql, &[operation_id, fence, &status, &body])
        .await
        .map(drop)
        .map_err(code)
}

/// The answer that [`order`] keeps.
fn ordered(key: &str) -> Started {
    kept(201, &format!("ordered {key}"))
}

fn kept(status: i32, body: &str) -> Started {
    Started::Replay(Reply {
        status,
        headers: serde_json::json!({ "content-type": "text/plain" }),
        body: body.as_bytes().to_vec(),
    })
}

fn is_run(begun: &Result<Started, String>) -> bool {
    matches!(begun, Ok(Started::Run { .. }))
}

fn refused(code: &str) -> Result<Started, String> {
    Err(code.to_owned())
}

/// The SQL state of the server's error.
#[allow(clippy::needless_pass_by_value)] // `map_err` passes it by value.
fn code(error: tokio_postgres::Error) -> String {
    error
        .code()
        .unwrap_or_else(|| panic!("the connection was lost: {error}"))
        .code()
        .to_owned()
}
