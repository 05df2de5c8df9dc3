//! Messages, and publishers to a server of the test.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::flow::MessageId;
use hapax_core::time::Timestamp;
use hapax_flow::publish::webhook::{Endpoint, Options};
use hapax_flow::publish::{Envelope, Outage, Publisher, Verdict, Webhook};
use hapax_testkit::harness::in_time;

/// For tests in which the time limit passes.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// A message of this key, whose payload is `text`.
pub(crate) fn message(key: &str, text: &str) -> Envelope {
    let mut id = [0; 16];
    for (byte, given) in id.iter_mut().zip(text.bytes()) {
        *byte = given;
    }
    Envelope {
        sequence: 0,
        id: MessageId::from_bytes(id),
        at: Timestamp::from_micros(1_794_950_675_000_042),
        topic: "orders".into(),
        key: Some(key.into()),
        ordered: true,
        version: None,
        headers: vec![("content-type".into(), "text/plain".into())],
        payload: Bytes::copy_from_slice(text.as_bytes()),
    }
}

/// The endpoint at this address, which may be reached.
pub(crate) fn endpoint(address: SocketAddr) -> Endpoint {
    let mut endpoint = Endpoint::new(format!("http://{address}/hook?a=b"));
    endpoint.allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
    // No test waits for it.
    endpoint.timeout = Duration::from_secs(60);
    endpoint
}

pub(crate) fn webhook(address: SocketAddr) -> Webhook {
    Webhook::new(Options::new(endpoint(address))).unwrap()
}

/// Ends within [`SHORT`].
pub(crate) fn impatient(address: SocketAddr) -> Webhook {
    let mut endpoint = endpoint(address);
    endpoint.timeout = SHORT;
    Webhook::new(Options::new(endpoint)).unwrap()
}

pub(crate) async fn publish(webhook: &Webhook, batch: &[Envelope]) -> Result<Vec<Verdict>, Outage> {
    in_time("the call ends", webhook.publish(batch)).await
}

/// Publishes one message whose payload is `text`.
pub(crate) async fn send(webhook: &Webhook, text: &str) -> Verdict {
    let verdicts = publish(webhook, &[message("k", text)]).await.unwrap();
    verdicts.into_iter().next().unwrap()
}

/// The outage that publishing one message ends in.
pub(crate) async fn outage(webhook: &Webhook) -> Outage {
    publish(webhook, &[message("k", "m")]).await.unwrap_err()
}

#[track_caller]
pub(crate) fn assert_unclear(verdict: &Verdict, why: &str) {
    assert!(
        matches!(verdict, Verdict::Unclear(reason) if reason.contains(why)),
        "{verdict:?}"
    );
}
