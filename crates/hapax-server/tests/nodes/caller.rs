//! Callers that send the same key again until they are told something definite.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::harness::charges::{Charge, Charged, Version, send};
use super::harness::{Answer, in_time};

/// How long a repeat waits for an attempt that is under way, in seconds.
const WAIT: u32 = 5;
/// From a failure to the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// What a caller was told in the end.
pub struct Told {
    pub key: String,
    pub answer: Answer,
    /// How often it sent.
    pub sent: usize,
}

/// Goes on through the load balancer after whatever came of the first try.
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

/// Whether a caller may stop here. Panics at what no caller should be told.
fn is_definite(key: &str, answer: &Answer) -> bool {
    let is_definite = answer.is_charged() || answer.is_unknown();
    // The balancer's own words have no problem in them.
    let is_passing = matches!(answer.status, 502..=504) || answer.is_problem("in-flight");
    assert!(is_definite || is_passing, "{key} got {answer:?}");
    is_definite
}

/// One key after the other through the load balancer, until told to stop.
pub async fn go_on_and_on(name: String, balancer: SocketAddr, stop: Arc<AtomicBool>) -> Vec<Told> {
    let mut told = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{name}-{}", told.len());
        let first = send(balancer, Version::Http1, &Charge::new(&key)).await;
        told.push(insist(key, first, balancer).await);
    }
    told
}
