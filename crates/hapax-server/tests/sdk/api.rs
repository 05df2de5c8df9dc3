//! A small fake of the API: it ignores keys, and makes and records a charge for every request.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use http::HeaderMap;
use serde_json::json;
use tokio::net::TcpListener;

/// One effect.
#[derive(Clone, Debug)]
pub struct Charge {
    pub id: String,
    pub order: String,
    pub key: String,
}

#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Vec<Charge>>>);

pub struct Api {
    pub address: SocketAddr,
    ledger: Ledger,
}

impl Api {
    pub async fn start() -> Api {
        let ledger = Ledger::default();
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let router = Router::new()
            .route("/v1/charges", post(charges))
            .route("/v1/payment_intents", post(payment_intents))
            .with_state(ledger.clone());
        tokio::spawn(async move { axum::serve(socket, router).await });
        Api { address, ledger }
    }

    pub fn ledger(&self) -> Vec<Charge> {
        self.ledger.0.lock().unwrap().clone()
    }
}

async fn charges(State(ledger): State<Ledger>, fields: HeaderMap, form: String) -> Response {
    charge(&ledger, &fields, &form, "ch", "charge")
}

async fn payment_intents(
    State(ledger): State<Ledger>,
    fields: HeaderMap,
    form: String,
) -> Response {
    charge(&ledger, &fields, &form, "pi", "payment_intent")
}

fn charge(ledger: &Ledger, fields: &HeaderMap, form: &str, prefix: &str, object: &str) -> Response {
    let key = fields["idempotency-key"].to_str().unwrap().to_owned();
    let order = order_of(form)
        .unwrap_or_else(|| panic!("no order in {form}"))
        .to_owned();
    let mut ledger = ledger.0.lock().unwrap();
    let id = format!("{prefix}_{}", ledger.len());
    ledger.push(Charge {
        id: id.clone(),
        order: order.clone(),
        key,
    });
    let request = format!("req_{}", ledger.len());
    let made = json!({ "id": id, "object": object, "status": "succeeded", "metadata": { "order": order } });
    ([("request-id", request)], Json(made)).into_response()
}

/// `metadata[order]` of a form, with escaped brackets or not.
fn order_of(form: &str) -> Option<&str> {
    let mut fields = form.split('&').filter_map(|field| field.split_once('='));
    fields.find_map(|(name, value)| {
        ["metadata[order]", "metadata%5Border%5D"]
            .contains(&name)
            .then_some(value)
    })
}
