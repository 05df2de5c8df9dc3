//! Callers that send the same key again until they get a definite answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::harness::charges::{Charge, Charged, Version, send};
use super::harness::{Answer, in_time};

/// How many seconds a repeat waits for a running attempt.
const WAIT: u32 = 5;
/// The pause between a failure and the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// The final answer that a caller got.
pub struct Told {
    pub key: String,
    pub answer: Answer,
    /// How often it sent the request.
    pub sent: usize,
}

/// Retries through the load balancer until there is a definite answer, whatever the first one was.
pub async fn insist(key: String, first: Option<Answer>, balancer: SocketAddr) -> Told {
    let charge = Charge::new(&key).waiting(WAIT);
    let (mut answer, mut sent) = (first, 1);
    loop {
        match answer.filter(|answer| is_definite(&key, answer)) {
            Some(answer) => return Told { key, answer, sent },
            None => tokio::time::sleep(PAUSE).await,
        }
        answer = in_time(
            "an answer through the load balancer",
            send(balancer, Version::Http1, &charge),
        )
        .await;
        sent += 1;
    }
}

/// Whether the caller can stop with this answer. Panics at answers that no caller should get.
fn is_definite(key: &str, answer: &Answer) -> bool {
    let is_definite = answer.is_charged() || answer.is_unknown();
    // Errors of the balancer itself contain no problem document.
    let is_passing = matches!(answer.status, 502..=504) || answer.is_problem("in-flight");
    assert!(is_definite || is_passing, "{key} got {answer:?}");
    is_definite
}

/// Sends one key after the other through the load balancer, until `stop` is set.
pub async fn go_on_and_on(name: String, balancer: SocketAddr, stop: Arc<AtomicBool>) -> Vec<Told> {
    let mut told = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{name}-{}", told.len());
        let first = send(balancer, Version::Http1, &Charge::new(&key)).await;
        told.push(insist(key, first, balancer).await);
    }
    told
}
