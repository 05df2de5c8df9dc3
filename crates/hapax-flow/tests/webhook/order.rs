//! Which requests are under way at a time.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use hapax_flow::publish::webhook::Options;
use hapax_flow::publish::{Envelope, Publisher, Verdict, Webhook};
use hapax_testkit::harness::{Gate, Service, Serving, Upstream, in_time, whole};

use super::world::{endpoint, message, publish, send, webhook};

fn narrow(address: std::net::SocketAddr, concurrency: usize) -> Webhook {
    let mut options = Options::new(endpoint(address));
    options.concurrency = NonZeroUsize::new(concurrency).unwrap();
    Webhook::new(options).unwrap()
}

#[tokio::test]
async fn messages_of_a_key_arrive_one_after_the_other_and_keys_at_the_same_time() {
    #[derive(Default)]
    struct Seen {
        now: HashMap<String, String>,
        now_max: usize,
        order: HashMap<String, Vec<String>>,
    }
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let kept = seen.clone();
    let server = Upstream::start(Serving::default(), move |arrived| {
        let seen = kept.clone();
        async move {
            let key = arrived.field("ce-partitionkey").to_owned();
            let body = arrived.read().await?.body;
            let text = String::from_utf8(body.to_vec()).unwrap();
            {
                let mut seen = seen.lock().unwrap();
                let other = seen.now.insert(key.clone(), text.clone());
                assert_eq!(other, None, "two messages of {key} at a time");
                seen.now_max = seen.now_max.max(seen.now.len());
                seen.order.entry(key.clone()).or_default().push(text);
            }
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            seen.lock().unwrap().now.remove(&key);
            Ok(whole(202, ""))
        }
    });
    let batch: Vec<Envelope> = (0..200)
        .map(|number| message(&format!("k{}", number % 20), &format!("{number}")))
        .collect();
    let verdicts = publish(&webhook(server.address), &batch).await.unwrap();
    assert_eq!(verdicts, vec![Verdict::ACCEPTED; batch.len()]);
    let seen = seen.lock().unwrap();
    for (key, texts) in &seen.order {
        let wanted: Vec<String> = (0..200)
            .filter(|number| key == &format!("k{}", number % 20))
            .map(|number| number.to_string())
            .collect();
        assert_eq!(texts, &wanted, "{key}");
    }
    assert!(seen.now_max > 1, "keys go at the same time");
    assert!(seen.now_max <= 16, "{} at a time", seen.now_max);
}

#[tokio::test]
async fn all_calls_together_have_so_many_requests_under_way() {
    let gate = Arc::new(Gate::default());
    let at_server = gate.clone();
    let server = Upstream::start(Serving::default(), move |arrived| {
        let gate = at_server.clone();
        async move {
            arrived.read().await?;
            gate.pass().await;
            Ok(whole(200, ""))
        }
    });
    let webhook = Arc::new(narrow(server.address, 4));
    let calls: Vec<_> = ["a", "b"]
        .map(|call| {
            let webhook = webhook.clone();
            let batch: Vec<Envelope> = (0..5)
                .map(|number| message(&format!("{call}{number}"), &format!("{call}{number}")))
                .collect();
            tokio::spawn(async move { webhook.publish(&batch).await })
        })
        .into();
    for answered in 0..10 {
        // One goes through, and one takes its place.
        let arrived = (answered + 4).min(10);
        gate.wait_arrived(arrived).await;
        assert_eq!(gate.arrived(), arrived);
        gate.open(1);
    }
    for call in calls {
        let verdicts = in_time("the call ends", call).await.unwrap().unwrap();
        assert_eq!(verdicts, vec![Verdict::ACCEPTED; 5]);
    }
}

#[tokio::test]
async fn a_message_that_is_refused_stops_the_later_ones_of_its_key_only() {
    let server = Service::start(Serving::default(), |asked| match &asked.body[..] {
        b"a2" => whole(422, "no such order"),
        _ => whole(200, ""),
    });
    let batch = ["a1", "b1", "a2", "a3", "b2"].map(|text| message(&text[..1], text));
    let verdicts = publish(&webhook(server.address), &batch).await.unwrap();
    let refused = "422 Unprocessable Entity: no such order";
    assert_eq!(
        verdicts,
        [
            Verdict::ACCEPTED,
            Verdict::ACCEPTED,
            Verdict::Refused(refused.into()),
            Verdict::NotSent,
            Verdict::ACCEPTED,
        ]
    );
    assert_eq!(server.asked().len(), 4);
}

#[tokio::test]
async fn messages_without_an_order_stop_nobody() {
    let server = Service::start(Serving::default(), |asked| match &asked.body[..] {
        b"first" => whole(500, ""),
        _ => whole(200, ""),
    });
    let mut batch = ["first", "second", "third"].map(|text| message("k", text));
    batch.iter_mut().for_each(|message| message.ordered = false);
    batch[2].key = None;
    let verdicts = publish(&webhook(server.address), &batch).await.unwrap();
    let failed = Verdict::Failed("500 Internal Server Error".into());
    assert_eq!(verdicts, [failed, Verdict::ACCEPTED, Verdict::ACCEPTED]);
}

#[tokio::test]
async fn the_largest_message_arrives_whole() {
    let server = Service::start(Serving::default(), |_| whole(200, ""));
    let text = "x".repeat(hapax_core::flow::limits::PAYLOAD_BYTES_MAX);
    let verdict = send(&webhook(server.address), &text).await;
    assert_eq!(verdict, Verdict::ACCEPTED);
    assert_eq!(server.last().body, text.as_bytes());
}

#[tokio::test]
async fn an_empty_batch_sends_nothing() {
    let server = Service::start(Serving::default(), |_| whole(200, ""));
    assert_eq!(publish(&webhook(server.address), &[]).await.unwrap(), []);
    assert_eq!(server.asked().len(), 0);
}
