//! Orders, and what their callers are told.

use std::net::SocketAddr;

use super::harness::{Answer, Client, ClientRequest, With, post};

/// An order that is placed under a key.
#[derive(Clone, Debug)]
pub struct Order {
    pub key: String,
    quantity: u32,
    mischief: Option<&'static str>,
}

impl Order {
    /// Of one. Its key is its item too, so that the table of orders tells how many there are of it.
    pub fn new(key: impl Into<String>) -> Order {
        Order {
            key: key.into(),
            quantity: 1,
            mischief: None,
        }
    }

    /// What the service refuses.
    pub fn of_none(self) -> Order {
        Order {
            quantity: 0,
            ..self
        }
    }

    /// What goes wrong with it in the service.
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

/// Sends it once; `None` if no whole answer came back.
pub async fn try_place(address: SocketAddr, order: &Order) -> Option<Answer> {
    Client::new(address).try_send(order.request()).await.ok()
}

/// The same to somebody who is known to be there.
pub async fn place(address: SocketAddr, order: &Order) -> Answer {
    Client::new(address).send(order.request()).await
}
