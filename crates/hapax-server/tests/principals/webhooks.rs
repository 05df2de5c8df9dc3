//! `standard-webhooks:NAME`: webhooks as the published library signs them.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use hapax::KeyRule;
use hapax_server::config::{Config, Protocol, Route, StandardWebhooks};
use hapax_testkit::harness::install::{Installed, Language, install};

use crate::harness::{self, Answer, Client, ClientRequest, With};
use crate::world::{Upstream, World, serve};

const OLD: &str = "whsec_b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQg";
const NEW: &str = "whsec_bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcg";
const OTHER: &str = "whsec_b3RoZXIgb3RoZXIgb3RoZXIgb3RoZXIg";

/// Signs a line of JSON each: what a sender would.
const SIGN: &str = r#"
import datetime, json, sys
from standardwebhooks.webhooks import Webhook
for line in sys.stdin:
    one = json.loads(line)
    at = datetime.datetime.fromtimestamp(one["at"], datetime.timezone.utc)
    print(Webhook(one["secret"]).sign(one["id"], at, one["body"]))
"#;

/// The library, in the place of the tests of `hapax-flow`, which need it too.
fn installed() -> Option<Installed> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("webhook");
    let wanted = include_str!("../../../hapax-flow/tests/webhook/readers/requirements.txt");
    let wanted = [("requirements.txt", wanted.to_owned())];
    let sources = [("sign.py", SIGN.to_owned())];
    install(
        directory.join("python"),
        Language::Python,
        &wanted,
        &sources,
    )
}

fn sign(library: &Installed, secret: &str, id: &str, at: u64, body: &str) -> String {
    let mut command = library.interpreter();
    let piped = command
        .arg("sign.py")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let line = serde_json::json!({ "secret": secret, "id": id, "at": at, "body": body });
    writeln!(child.stdin.take().unwrap(), "{line}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a time after 1970").as_secs()
}

fn webhook(path: &str, id: &str, at: u64, signature: &str, body: &str) -> ClientRequest {
    harness::post(path, body.to_owned())
        .with("webhook-id", id)
        .with("webhook-timestamp", &at.to_string())
        .with("webhook-signature", signature)
}

/// A route for the webhooks of a sender.
fn route(path: &str, sender: &str) -> Route {
    let mut route: Route = path.parse().unwrap();
    route.principal = Some(format!("standard-webhooks:{sender}").parse().unwrap());
    route.policy.key = KeyRule::Required;
    route.policy.key_field = "webhook-id".into();
    route
}

/// `payments` has two secrets, as in a rotation, and `shipping` another.
fn settle(config: &mut Config, directory: &Path) {
    let secrets = directory.join("secrets");
    std::fs::create_dir(&secrets).unwrap();
    std::fs::write(secrets.join("payments"), format!("{OLD}\n{NEW}\n")).unwrap();
    std::fs::write(secrets.join("shipping"), OTHER).unwrap();
    config.standard_webhooks = Some(StandardWebhooks::new(secrets));
    config.routes = vec![
        route("/payments", "payments"),
        route("/shipping", "shipping"),
    ];
}

#[track_caller]
fn is_refused(got: &Answer) {
    let refusal = (401, "credentials-invalid".to_owned());
    assert_eq!(got.refusal(), refusal, "{got:?}");
}

#[tokio::test]
async fn webhooks_of_the_published_library_have_one_effect_each() {
    let Some(library) = installed() else {
        return;
    };
    let world = World::start(settle).await;
    let body = "{\"paid\": 12}";
    for is_http2 in [false, true] {
        let id = format!("msg_{is_http2}");
        let send = async |secret: &str, at: u64| {
            let signature = sign(&library, secret, &id, at, body);
            let request = webhook("/payments", &id, at, &signature, body);
            world.send(is_http2, request).await
        };
        let first = send(OLD, now()).await;
        assert_eq!((first.status, first.is_replay()), (201, false));
        // Tried again by the sender, which signs anew, with its new secret too.
        for secret in [OLD, NEW] {
            let again = send(secret, now() - 1).await;
            assert!(again.is_replay() && again.body == first.body, "{again:?}");
        }
    }
    assert_eq!(world.upstream.effects(), 2);
    let asked = world.upstream.last();
    assert_eq!(asked.field("webhook-id"), "msg_true");
    assert_eq!(&asked.body[..], body.as_bytes());
}

#[tokio::test]
async fn what_is_not_well_signed_is_not_forwarded_and_has_no_record() {
    let Some(library) = installed() else {
        return;
    };
    let world = World::start(settle).await;
    let (at, body) = (now(), "{\"paid\": 12}");
    let good = sign(&library, NEW, "msg_1", at, body);
    let other = sign(&library, OTHER, "msg_1", at, body);
    let old = sign(&library, NEW, "msg_1", at - 400, body);
    for is_http2 in [false, true] {
        let refused = [
            webhook("/payments", "msg_1", at, &other, body),
            webhook("/payments", "msg_1", at, &good, "{\"paid\": 13}"),
            webhook("/payments", "msg_2", at, &good, body),
            webhook("/payments", "msg_1", at - 1, &good, body),
            webhook("/payments", "msg_1", at - 400, &old, body),
            webhook("/payments", "msg_1", at, "v1,AAAA", body),
            harness::post("/payments", body),
            // That of another sender, at its own door.
            webhook("/shipping", "msg_1", at, &good, body),
        ];
        for request in refused {
            is_refused(&world.send(is_http2, request).await);
        }
    }
    assert_eq!(world.upstream.effects(), 0);
    assert_eq!(world.records().await, 0);
    let first = webhook("/payments", "msg_1", at, &good, body);
    assert_eq!(world.send(false, first).await.status, 201);
    // Who cannot sign learns nothing of the record.
    is_refused(
        &world
            .send(false, webhook("/payments", "msg_1", at, &other, body))
            .await,
    );
}

#[tokio::test]
async fn senders_are_apart_though_their_ids_are_the_same() {
    let Some(library) = installed() else {
        return;
    };
    let world = World::start(settle).await;
    let at = now();
    for (path, secret) in [("/payments", OLD), ("/shipping", OTHER)] {
        let signature = sign(&library, secret, "msg_1", at, "{}");
        let got = world
            .send(false, webhook(path, "msg_1", at, &signature, "{}"))
            .await;
        assert!(got.status == 201 && !got.is_replay(), "{got:?}");
    }
    assert_eq!(world.upstream.effects(), 2);
}

#[tokio::test]
async fn a_sender_without_a_secret_is_refused_at_the_start() {
    for (name, text) in [("payments", ""), ("payments", "whsec_!"), ("another", OLD)] {
        let started = World::try_start(Protocol::Http1, |config, directory| {
            settle(config, directory);
            let secrets = directory.join("secrets");
            std::fs::remove_file(secrets.join("payments")).unwrap();
            std::fs::write(secrets.join(name), text).unwrap();
        });
        let error = match started.await {
            Ok(_) => panic!("{name} {text}"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("payments"), "{error}");
        assert!(text.is_empty() || !error.contains(text), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configuration_of_the_documentation_is_good() {
    let upstream = Upstream::start(Protocol::Http1);
    let directory = tempfile::tempdir().unwrap();
    let secrets = directory.path().join("webhooks");
    std::fs::create_dir(&secrets).unwrap();
    std::fs::write(secrets.join("payments"), OLD).unwrap();
    let documentation = include_str!("../../../../docs/webhooks.md");
    let settings = documentation.split("```toml\n").nth(1).unwrap();
    let (settings, _) = settings.split_once("```").unwrap();
    let settings = settings.replace("/etc/hapax/webhooks", "webhooks");
    let program = serve(directory.path(), &upstream, &settings);
    let request = harness::post("/hooks/payments", "{}");
    is_refused(&Client::new(program.clients).send(request).await);
    assert_eq!(upstream.effects(), 0);
}
