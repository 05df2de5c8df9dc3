//! Orders, and the answers to them.

use std::net::SocketAddr;

use super::harness::{Answer, Client, ClientRequest, With, post};

/// An order under a key.
#[derive(Clone, Debug)]
pub struct Order {
    pub key: String,
    quantity: u32,
    mischief: Option<&'static str>,
}

impl Order {
    /// An order of one item. Its key is also its item, so that the table of orders shows how many
    /// there are.
    pub fn new(key: impl Into<String>) -> Order {
        Order {
            key: key.into(),
            quantity: 1,
            mischief: None,
        }
    }

    /// The same order with a quantity that the service refuses.
    pub fn of_none(self) -> Order {
        Order {
            quantity: 0,
            ..self
        }
    }

    /// The same order, with which something goes wrong in the service.
    pub fn with(self, mischief: &'static str) -> Order {
        Order {
            mischief: Some(mischief),
            ..self
        }
    }

    fn request(&self) -> ClientRequest {
        let (item, quantity) = (&self.key, self.quantity);
        let order = format!("{{\"item\": \"{item}\", \"quantity\": {quantity}}}");
        let request = post("/orders", order)
            .key(&self.key)
            .with("content-type", "application/json");
        let mischief = self.mischief.into_iter();
        mischief.fold(request, |request, what| request.with("x-mischief", what))
    }
}

/// Sends the order once; `None` if no complete answer came back.
pub async fn try_place(address: SocketAddr, order: &Order) -> Option<Answer> {
    Client::new(address).try_send(order.request()).await.ok()
}

/// Sends the order to a service that must answer.
pub async fn place(address: SocketAddr, order: &Order) -> Answer {
    Client::new(address).send(order.request()).await
}
