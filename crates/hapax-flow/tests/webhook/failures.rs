//! Servers that do not answer.

use hapax_flow::publish::webhook::{Endpoint, Options};
use hapax_flow::publish::{Verdict, Webhook};
use hapax_testkit::harness::{Service, Serving, whole};
use hapax_testkit::origin::{Origin, Step};
use tokio::net::TcpListener;

use super::world::{
    SHORT, assert_unclear, endpoint, impatient, message, outage, publish, send, webhook,
};

#[tokio::test]
async fn a_server_that_hangs_is_unclear_within_the_time_limit() {
    let origin = Origin::start().await;
    origin.script([Step::Read, Step::Wait]);
    let verdict = send(&impatient(origin.address()), "m").await;
    assert_unclear(&verdict, "there is no answer within 1s");
    assert_eq!(origin.ledger().count("m"), 1);
}

#[tokio::test]
async fn a_server_that_begins_to_answer_and_hangs_is_unclear() {
    let origin = Origin::start().await;
    origin.script([
        Step::Read,
        Step::Write(b"HTTP/1.1 200 OK\r\n".to_vec()),
        Step::Wait,
    ]);
    assert_unclear(&send(&impatient(origin.address()), "m").await, "no answer");
}

#[tokio::test]
async fn a_body_that_hangs_does_not_change_the_answer() {
    let origin = Origin::start().await;
    let part = b"HTTP/1.1 422 No\r\ncontent-length: 10\r\n\r\nhal".to_vec();
    origin.script([Step::Read, Step::Write(part), Step::Wait]);
    let verdict = send(&impatient(origin.address()), "m").await;
    assert_eq!(
        verdict,
        Verdict::Refused("422 Unprocessable Entity: hal".into())
    );
}

#[tokio::test]
async fn a_connection_that_is_lost_midway_is_unclear() {
    for script in [
        vec![Step::Read, Step::Reset],
        vec![Step::Read, Step::Close],
        vec![Step::ReadByte, Step::Reset],
        vec![
            Step::Read,
            Step::Write(b"HTTP/1.1 200 OK\r\n".to_vec()),
            Step::Close,
        ],
        vec![
            Step::Read,
            Step::Write(b"HTTP/1.1 200 OK\r\n".to_vec()),
            Step::Reset,
        ],
    ] {
        let origin = Origin::start().await;
        origin.script(script.clone());
        let verdict = send(&webhook(origin.address()), "m").await;
        assert!(
            matches!(verdict, Verdict::Unclear(_)),
            "{script:?} {verdict:?}"
        );
        assert_eq!(origin.ledger().connections(), 1, "{script:?}");
    }
}

#[tokio::test]
async fn a_large_message_whose_connection_is_reset_is_unclear() {
    let origin = Origin::start().await;
    origin.script([Step::ReadHead, Step::Reset]);
    let text = "x".repeat(1 << 20);
    assert_unclear(&send(&webhook(origin.address()), &text).await, "lost");
}

#[tokio::test]
async fn a_server_that_is_down_is_an_outage_and_others_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let webhook = webhook(address);
    let batch: Vec<_> = (0..1000)
        .map(|number| message(&format!("k{number}"), "m"))
        .collect();
    let outage = publish(&webhook, &batch).await.unwrap_err();
    assert!(!outage.permanent);
    assert!(outage.reason.contains("refused"), "{outage}");
}

#[tokio::test]
async fn after_an_outage_all_goes_on() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let webhook = webhook(address);
    outage(&webhook).await;
    let listener = std::net::TcpListener::bind(address).unwrap();
    let _server =
        hapax_testkit::harness::Upstream::on(listener, Serving::default(), |arrived| async {
            arrived.read().await?;
            Ok(whole(200, ""))
        });
    let batch: Vec<_> = (0..50)
        .map(|number| message(&format!("k{number}"), "m"))
        .collect();
    for _ in 0..3 {
        let verdicts = publish(&webhook, &batch).await.unwrap();
        assert_eq!(verdicts, vec![Verdict::ACCEPTED; 50]);
    }
}

#[tokio::test]
async fn a_name_without_an_address_is_an_outage() {
    let mut endpoint = Endpoint::new("http://no..name/");
    endpoint.allow_http = true;
    let outage = outage(&Webhook::new(Options::new(endpoint)).unwrap()).await;
    assert!(
        outage.reason.contains("no..name has no address"),
        "{outage}"
    );
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_in_time_is_an_outage() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut endpoint = endpoint(listener.local_addr().unwrap());
    endpoint.url = endpoint.url.replace("http:", "https:");
    endpoint.timeout = SHORT;
    let outage = outage(&Webhook::new(Options::new(endpoint)).unwrap()).await;
    assert_eq!(outage.reason, "there is no connection within 1s");
}

#[tokio::test]
async fn an_unclear_message_stops_its_key_only() {
    let server = Service::start(Serving::default(), |asked| match &asked.body[..] {
        b"a1" => Err(hapax_testkit::harness::broken_off()),
        _ => Ok(whole(200, "")),
    });
    let batch = ["a1", "a2", "b1"].map(|text| message(&text[..1], text));
    let verdicts = publish(&webhook(server.address), &batch).await.unwrap();
    assert!(matches!(verdicts[0], Verdict::Unclear(_)), "{verdicts:?}");
    assert_eq!(verdicts[1..], [Verdict::NotSent, Verdict::ACCEPTED]);
}
