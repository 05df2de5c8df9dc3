//! Requests as the published libraries read them.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hapax_flow::publish::cloud_events::{CloudEvents, Mode};
use hapax_flow::publish::webhook::{Options, Secret};
use hapax_flow::publish::{Envelope, Webhook};
use hapax_testkit::harness::install::{Installed, Language, install};
use hapax_testkit::harness::{Asked, Service, Serving, whole};
use serde_json::{Map, Value, json};

use super::world::{endpoint, message, publish};

const OLD: &str = "whsec_b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQg";
const NEW: &str = "whsec_bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcg";
const OTHER: &str = "whsec_b3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIg";
const PRIVATE: &str = "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

fn installed(language: Language) -> Option<Installed> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("webhook");
    let own = |(name, text): (&'static str, &str)| (name, text.to_owned());
    let python = [("requirements.txt", include_str!("readers/requirements.txt"))].map(own);
    let node = [
        ("package.json", include_str!("readers/package.json")),
        (
            "package-lock.json",
            include_str!("readers/package-lock.json"),
        ),
    ]
    .map(own);
    let (name, wanted) = match language {
        Language::Python => ("python", &python[..]),
        _ => ("node", &node[..]),
    };
    let sources = [
        ("read.py", include_str!("readers/read.py")),
        ("read.mjs", include_str!("readers/read.mjs")),
    ];
    install(directory.join(name), language, wanted, &sources.map(own))
}

fn public_key() -> String {
    let secret: Secret = PRIVATE.parse().unwrap();
    secret.public_key().unwrap()
}

/// What the server received of these messages.
async fn arrived(mode: Mode, messages: &[Envelope]) -> Vec<Asked> {
    let server = Service::start(Serving::default(), |_| whole(204, ""));
    let mut options = Options::new(endpoint(server.address));
    options.events = CloudEvents::new("/shop", mode).unwrap();
    options.secrets = [OLD, PRIVATE, NEW]
        .map(|secret| secret.parse().unwrap())
        .into();
    let webhook = Webhook::new(options).unwrap();
    for message in messages {
        let verdicts = publish(&webhook, std::slice::from_ref(message)).await;
        assert!(verdicts.unwrap()[0].is_accepted());
    }
    server.asked()
}

/// What the library of this language reads in the requests.
fn read(installed: &Installed, requests: &[Asked], secrets: &[&str]) -> Vec<Value> {
    let mut command = installed.interpreter();
    command.arg(match installed.language {
        Language::Python => "read.py",
        _ => "read.mjs",
    });
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for request in requests {
        let headers: Map<String, Value> = request
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()))
            .collect();
        let body = STANDARD.encode(&request.body);
        let line = json!({ "headers": headers, "body": body, "secrets": secrets });
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn messages() -> Vec<Envelope> {
    let json = Envelope {
        key: Some("Order 7 “€” 100%".into()),
        version: Some(3_000_000_000),
        headers: vec![
            ("ce-region".into(), "Århus \"C\"".into()),
            ("ce-type".into(), "shop.order.placed".into()),
            ("content-type".into(), "application/json".into()),
            ("correlation-id".into(), "c 1".into()),
        ],
        payload: Bytes::from_static("{\"total\": 12, \"city\": \"Århus\"}".as_bytes()),
        ..message("", "json")
    };
    let text = Envelope {
        key: None,
        ..message("", "text")
    };
    vec![json, text]
}

fn assert_json_message(event: &Value) {
    let attributes = &event["attributes"];
    assert_eq!(attributes["type"], "shop.order.placed");
    assert_eq!(attributes["source"], "/shop");
    assert_eq!(attributes["specversion"], "1.0");
    assert_eq!(attributes["id"], "6a736f6e-0000-0000-0000-000000000000");
    assert_eq!(attributes["datacontenttype"], "application/json");
    assert_eq!(attributes["entityversion"], "3000000000");
    assert_eq!(event["data"], json!({"total": 12, "city": "Århus"}));
}

#[tokio::test]
async fn python_reads_and_verifies_what_is_sent() {
    let Some(installed) = installed(Language::Python) else {
        return;
    };
    for mode in [Mode::Binary, Mode::Structured] {
        let requests = arrived(mode, &messages()).await;
        let events = read(&installed, &requests, &[OLD, NEW, OTHER]);
        for event in &events {
            assert_eq!(event["verified"], json!([true, true, false]), "{mode:?}");
        }
        assert_json_message(&events[0]);
        let attributes = &events[0]["attributes"];
        assert_eq!(attributes["subject"], "Order 7 “€” 100%");
        assert_eq!(attributes["partitionkey"], "Order 7 “€” 100%");
        assert_eq!(attributes["region"], "Århus \"C\"");
        assert_eq!(attributes["correlationid"], "c 1");
        assert_eq!(attributes["time"], "2026-11-17 21:24:35.000042+00:00");
        assert_eq!(events[1]["data"], "text");
        assert_eq!(events[1]["attributes"].get("subject"), None);
    }
}

#[tokio::test]
async fn node_reads_and_verifies_what_is_sent() {
    let Some(installed) = installed(Language::Node) else {
        return;
    };
    for mode in [Mode::Binary, Mode::Structured] {
        let requests = arrived(mode, &messages()).await;
        let events = read(&installed, &requests, &[OLD, NEW, &public_key(), OTHER]);
        for event in &events {
            assert_eq!(
                event["verified"],
                json!([true, true, true, false]),
                "{mode:?}"
            );
        }
        assert_json_message(&events[0]);
        assert_eq!(events[1]["data"], "text");
        assert_eq!(events[0]["attributes"]["time"], "2026-11-17T21:24:35.000Z");
        // Its reader of headers does not decode them, against section 3.1.3.2.
        let subject = match mode {
            Mode::Binary => "Order%207%20%E2%80%9C%E2%82%AC%E2%80%9D%20100%25",
            Mode::Structured => "Order 7 “€” 100%",
        };
        assert_eq!(events[0]["attributes"]["subject"], subject);
    }
}

#[tokio::test]
async fn each_request_says_its_own_time_and_the_id_of_the_message() {
    let before = std::time::SystemTime::now();
    let requests = arrived(Mode::Binary, &[message("k", "m"), message("k", "m")]).await;
    for request in &requests {
        assert_eq!(
            request.field("webhook-id"),
            "6d000000-0000-0000-0000-000000000000"
        );
        let seconds: u64 = request.field("webhook-timestamp").parse().unwrap();
        let since = before.duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!((since.as_secs()..=since.as_secs() + 60).contains(&seconds));
        let versions: Vec<&str> = request
            .field("webhook-signature")
            .split(' ')
            .map(|one| one.split_once(',').unwrap().0)
            .collect();
        assert_eq!(versions, ["v1", "v1a", "v1"]);
    }
}
