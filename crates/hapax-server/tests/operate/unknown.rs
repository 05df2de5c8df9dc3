//! `[on_unknown]`: a URL is told of each record whose outcome is unknown.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hapax_testkit::origin::{Origin, Step};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::harness::{
    Asked, Program, Service, Serving, Signal, Upstream, hapax, metric, said, serve_command, whole,
    words,
};

const SECRET: &str = "b3BzIG9wcyBvcHMgb3BzIG9wcyBvcHMgb3Bz";

/// A gateway with a store file, and the service behind it.
struct World {
    directory: tempfile::TempDir,
    origin: Origin,
    receiver: SocketAddr,
}

impl World {
    async fn new(receiver: SocketAddr) -> World {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("secret"), format!("whsec_{SECRET}\n")).unwrap();
        World {
            directory,
            origin: Origin::start().await,
            receiver,
        }
    }

    fn serve(&self) -> Program {
        let settings = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"sqlite:hapax.db\"\nnamespace = \"shop\"\n\
             [upstream]\nurl = \"http://{}\"\n[drain]\nnotice = \"0s\"\n\
             [on_unknown]\nurl = \"http://{}/hook\"\nsecret_files = [\"{}\"]\nallow_networks = [\"127.0.0.0/8\"]\n",
            self.origin.address(),
            self.receiver,
            self.directory.path().join("secret").display()
        );
        Program::serve(&mut serve_command(self.directory.path(), &settings))
    }

    /// Loses an attempt: the service has read the request, and its connection is reset.
    fn lose(&self, gateway: &Program, key: &str) {
        self.origin.script([Step::Read, Step::Reset]);
        let answer = gateway.charge(key, b"amount=1");
        assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    }
}

/// Receives requests at this address.
fn receive(address: SocketAddr) -> (Upstream, Receiver<Asked>) {
    let listener = TcpListener::bind(address).unwrap();
    let (sender, arrived) = mpsc::channel();
    let receiver = Upstream::on(listener, Serving::default(), move |request| {
        let sender = sender.clone();
        async move {
            let _ = sender.send(request.read().await?);
            Ok(whole(204, ""))
        }
    });
    (receiver, arrived)
}

fn next(arrived: &Receiver<Asked>) -> Asked {
    let guard = hapax_testkit::harness::GUARD;
    arrived.recv_timeout(guard).expect("a request arrives")
}

/// The key digest in a request, which says of which key it tells.
fn tells_of(asked: &Asked, key: &str) -> bool {
    let told: Value = serde_json::from_slice(&asked.body).unwrap();
    let digest = Sha256::digest(key);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    told["key_sha256"] == hex
}

/// Waits until requests have failed.
fn wait_failed(gateway: &Program) {
    let failed = "hapax_on_unknown_total{result=\"failed\"}";
    while metric(&gateway.ask("/metrics"), failed) < 1.0 {
        std::thread::yield_now();
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_unknown_outcome_is_one_signed_request_without_key_or_body() {
    let receiver = Service::start(Serving::default(), |_| whole(204, ""));
    let world = World::new(receiver.address).await;
    let gateway = world.serve();
    world.lose(&gateway, "order-17");
    receiver.wait_asked(1).await;
    world.lose(&gateway, "order-18");
    receiver.wait_asked(2).await;
    // One that is completed is nobody's business.
    assert!(
        gateway
            .charge("order-19", b"amount=1")
            .starts_with("HTTP/1.1 200")
    );
    world.lose(&gateway, "order-20");
    receiver.wait_asked(3).await;
    let asked = receiver.asked();
    for (asked, key) in asked.iter().zip(["order-17", "order-18", "order-20"]) {
        assert!(tells_of(asked, key), "{key}");
        let id = asked.field("webhook-id");
        let mut mac =
            <Hmac<Sha256> as KeyInit>::new_from_slice(&BASE64_STANDARD.decode(SECRET).unwrap())
                .unwrap();
        mac.update(format!("{id}.{}.", asked.field("webhook-timestamp")).as_bytes());
        mac.update(&asked.body);
        let signature = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
        assert_eq!(asked.field("webhook-signature"), signature);
        let text = String::from_utf8(asked.body.to_vec()).unwrap();
        assert!(
            !text.contains("order-") && !text.contains("amount"),
            "{text}"
        );
    }
    let told: Value = serde_json::from_slice(&asked[0].body).unwrap();
    assert_eq!(
        (
            &told["namespace"],
            &told["method"],
            &told["path"],
            &told["cause"]["code"]
        ),
        (
            &"shop".into(),
            &"POST".into(),
            &"/charges".into(),
            &"no-answer".into()
        )
    );
    let shown = said(hapax().args(words(&format!(
        "keys show {} --json --admin http://{}",
        told["record"].as_str().unwrap(),
        gateway.admin
    ))));
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    for field in [
        "operation_id",
        "fence",
        "request_id",
        "attempts",
        "claimed_at",
    ] {
        assert!(!told[field].is_null(), "{field}");
        assert_eq!(told[field], shown[field], "{field}");
    }
    assert_eq!(told["unknown_since"], shown["finished_at"]);
    let sent = "hapax_on_unknown_total{result=\"sent\"}";
    assert_eq!(metric(&gateway.ask("/metrics"), sent), 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_told_survives_a_kill_and_what_is_settled_is_not_told() {
    let address = free_address();
    let world = World::new(address).await;
    let mut gateway = world.serve();
    world.lose(&gateway, "order-17");
    world.lose(&gateway, "order-18");
    wait_failed(&gateway);
    let list = format!("keys list --json --admin http://{}", gateway.admin);
    let listed = said(hapax().args(words(&list))).stdout;
    let records = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let record = { records }
        .find(|record| record["key"] == "order-18")
        .expect("it is listed");
    let settle = format!(
        "keys settle {} --outcome not-done --reason 'it is not in the ledger' --by ada --yes --admin http://{}",
        record["id"].as_str().unwrap(),
        gateway.admin
    );
    said(hapax().args(words(&settle))).assert_code(0);
    gateway.kill();
    // The receiver is still away when the next gateway starts.
    let mut gateway = world.serve();
    wait_failed(&gateway);
    let (_receiver, arrived) = receive(address);
    let first = next(&arrived);
    assert!(tells_of(&first, "order-17"));
    world.lose(&gateway, "order-19");
    assert!(tells_of(&next(&arrived), "order-19"));
    gateway.signal(Signal::TERM);
    gateway.ended();
    // A gateway that starts again tells again, with the same ids.
    let gateway = world.serve();
    let again = [next(&arrived), next(&arrived)];
    let known = |asked: &&Asked| asked.field("webhook-id") == first.field("webhook-id");
    assert_eq!(again.iter().filter(known).count(), 1);
    assert!(again.iter().any(|asked| tells_of(asked, "order-19")));
    world.lose(&gateway, "order-20");
    assert!(
        tells_of(&next(&arrived), "order-20"),
        "nothing else was told meanwhile"
    );
}

#[test]
fn mistakes_have_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "no secret").unwrap();
    let secret = secret.display().to_string();
    let url = "url = \"https://ops.example/hook\"\n";
    for (settings, place, told) in [
        (
            url.to_owned(),
            "hapax.toml:3:",
            "[on_unknown] lacks `secret_files`",
        ),
        (
            format!("secret_files = [\"{secret}\"]\n"),
            "hapax.toml:3:",
            "[on_unknown] lacks `url`",
        ),
        (
            "url = \"http://ops.example/hook\"\nsecret_files = [\"/a\"]\n".to_owned(),
            "hapax.toml:4:",
            "use https",
        ),
        (
            format!("{url}secret_files = [\"a\"]\n"),
            "hapax.toml:5:",
            "is not a whole path",
        ),
        (
            format!("{url}secret_files = [\"{secret}\"]\n"),
            "on_unknown: ",
            &secret,
        ),
    ] {
        let settings =
            format!("[upstream]\nurl = \"http://127.0.0.1:1\"\n[on_unknown]\n{settings}");
        let refused = said(&mut check_command(directory.path(), &settings));
        refused.assert_code(2);
        refused.assert_told(place);
        refused.assert_told(told);
    }
}

fn check_command(directory: &Path, settings: &str) -> std::process::Command {
    let file = directory.join("hapax.toml");
    crate::harness::replace(&file, settings);
    let mut command = hapax();
    command.args(["config", "check", "--config"]).arg(file);
    command
}
