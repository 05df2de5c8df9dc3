//! The outbox over HTTP, on the admin listener of a gateway whose store is a Postgres.

use hapax_testkit::origin::Origin;
use hapax_testkit::servers::Postgres;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, With, database_name, get, post, serve_on};
use crate::operate::{BEHIND, HELD, with_held};
use crate::{hapax, lines};

/// A gateway on a database in which a message is held and another waits behind it.
struct World {
    url: String,
    admin: Client,
    _gateway: crate::harness::Program,
    _origin: Origin,
}

impl World {
    async fn start(postgres: &Postgres) -> World {
        let (url, origin) = (with_held(postgres), Origin::start().await);
        let gateway = serve_on(&url, origin.address());
        World {
            url,
            admin: Client::new(gateway.admin),
            _gateway: gateway,
            _origin: origin,
        }
    }

    async fn ask(&self, target: &str) -> Answer {
        self.admin.send(get(target)).await
    }

    async fn change(&self, target: &str, body: Value) -> Answer {
        let request = post(target, body.to_string()).with("content-type", "application/json");
        self.admin.send(request).await
    }

    /// Signed by Ada.
    async fn signed(&self, target: &str) -> Answer {
        let body = json!({ "by": "ada", "reason": "the endpoint is fixed" });
        self.change(target, body).await
    }

    /// What `hapax outbox … --json` prints.
    fn printed(&self, line: &str) -> Vec<Value> {
        lines(&hapax(&format!("outbox {line} --json --store {}", self.url)).stdout)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_aside_is_listed_in_pages_and_shown() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let world = World::start(postgres).await;
    let all = world.ask("/v1/outbox/messages").await.json();
    assert_eq!(all["next"], Value::Null);
    assert_eq!(all["messages"], json!(world.printed("list")));
    let first = world.ask("/v1/outbox/messages?limit=1").await.json();
    assert_eq!(first["messages"][0]["id"], HELD);
    let next = first["next"].as_str().expect("there is another page");
    let rest = format!("/v1/outbox/messages?limit=1&after={next}");
    assert_eq!(world.ask(&rest).await.json()["messages"][0]["id"], BEHIND);
    for (query, count) in [
        ("state=held", 1),
        ("state=dead", 0),
        ("reader=stdout&state=waiting", 1),
        ("reader=nobody", 0),
    ] {
        let page = world.ask(&format!("/v1/outbox/messages?{query}")).await;
        assert_eq!(
            page.json()["messages"].as_array().unwrap().len(),
            count,
            "{query}"
        );
    }
    for wrong in ["state=lost", "after=17", "limit=-1", "stat=held"] {
        let refused = world.ask(&format!("/v1/outbox/messages?{wrong}")).await;
        assert_eq!(refused.refusal().0, 400, "{wrong}");
    }
    let shown = world
        .ask(&format!("/v1/outbox/messages/{HELD}"))
        .await
        .json();
    assert_eq!(
        shown["messages"],
        json!(world.printed(&format!("show {HELD}")))
    );
    assert_eq!(shown["messages"][0]["payload"], HELD);
    let none = "/v1/outbox/messages/0192f7a0-0000-7000-8000-0000000000ff";
    assert_eq!(
        world.ask(none).await.refusal(),
        (404, "message-not-found".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_message_is_sent_again_or_skipped_and_the_log_says_who_did() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let world = World::start(postgres).await;
    let early = world
        .signed(&format!("/v1/outbox/messages/{BEHIND}/retry"))
        .await;
    assert_eq!(early.refusal(), (409, "not-now".into()));
    let retry = format!("/v1/outbox/messages/{HELD}/retry");
    for unsigned in [json!({ "by": "ada" }), json!({ "by": " ", "reason": "r" })] {
        assert_eq!(world.change(&retry, unsigned).await.refusal().0, 400);
    }
    let done = world.signed(&retry).await;
    assert_eq!(
        done.json(),
        json!({ "done": "sent again", "id": HELD, "reader": "stdout" })
    );
    let state = |id: &str| {
        let sql = format!("SELECT state FROM hapax.deliveries WHERE id = '{id}'");
        postgres.psql(database_name(&world.url), &sql)
    };
    assert_eq!((state(HELD), state(BEHIND)), ("1".into(), "1".into()));
    let skip = format!("/v1/outbox/messages/{HELD}/skip");
    assert_eq!(world.signed(&skip).await.json()["done"], "skipped");
    assert_eq!(state(HELD), "");
    let gone = world.signed(&skip).await;
    assert_eq!(gone.refusal(), (404, "message-not-found".into()));
    // The relay goes on with the one that waited behind.
    let relay = hapax(&format!("relay --once --store {} --to stdout:", world.url));
    assert_eq!(lines(&relay.stdout)[0]["id"], BEHIND);
    let log = world.ask("/v1/log").await.json();
    let logged: Vec<_> = log["entries"].as_array().unwrap().iter().collect();
    let words = |entry: &Value| (entry["action"].clone(), entry["by"].clone());
    assert_eq!(words(logged[0]), ("outbox-skip".into(), "ada".into()));
    assert_eq!(words(logged[1]), ("outbox-retry".into(), "ada".into()));
    let reason = format!("the endpoint is fixed (stdout, {HELD})");
    assert_eq!(logged[1]["reason"], reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_are_shown_started_and_removed() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let world = World::start(postgres).await;
    let sql = "UPDATE hapax.readers SET stopped = 'the token was revoked'";
    postgres.psql(database_name(&world.url), sql);
    let shown = world.ask("/v1/outbox/readers").await.json();
    let reader = &shown["readers"][0];
    assert_eq!(reader["stopped"], "the token was revoked");
    assert_eq!(
        (&reader["held"], &reader["oldest"]["key"]),
        (&1.into(), &"o-1".into())
    );
    let start = "/v1/outbox/readers/stdout/start";
    assert_eq!(world.signed(start).await.json()["done"], "started");
    assert_eq!(world.signed(start).await.refusal(), (409, "not-now".into()));
    let nobody = world.signed("/v1/outbox/readers/nobody/start").await;
    assert_eq!(nobody.refusal(), (404, "reader-not-found".into()));
    let remove = "/v1/outbox/readers/stdout/remove";
    assert_eq!(world.signed(remove).await.json()["reader"], "stdout");
    assert_eq!(world.signed(remove).await.refusal().0, 404);
    assert_eq!(
        world.ask("/v1/outbox/readers").await.json()["readers"],
        json!([])
    );
}
