//! NATS JetStream, with a real server.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt;
use hapax_flow::publish::{
    Envelope, Nats, NatsCredentials, NatsError, NatsOptions, Publisher, Verdict,
};
use hapax_testkit::harness::Authority;
use hapax_testkit::servers::Nats as Server;

use super::destination::{Arrived, Destination, LIMIT, Mortal, Refusing};
use super::messages::{batch, message};

suite!(of all: start);
suite!(of refusing: start);
suite!(of mortal: start);

/// Large enough for the largest message with its headers.
const LARGE: &str = "max_payload: 2MB";

/// A server with the stream `ORDERS` of the subject `orders`.
struct Stream(Server);

async fn start() -> Option<Stream> {
    with_stream(LARGE, |_| {}).await
}

async fn with_stream(settings: &str, change: impl FnOnce(&mut Config)) -> Option<Stream> {
    let stream = Stream(Server::start(settings)?);
    let mut config = Config {
        name: "ORDERS".to_owned(),
        subjects: vec!["orders".to_owned()],
        ..Config::default()
    };
    change(&mut config);
    stream.context().await.create_stream(config).await.unwrap();
    Some(stream)
}

impl Stream {
    async fn context(&self) -> Context {
        jetstream::new(async_nats::connect(self.0.url()).await.unwrap())
    }

    fn options(&self) -> NatsOptions {
        let mut options = NatsOptions::new([self.0.url()]);
        options.servers.timeout = LIMIT;
        options
    }

    fn with(&self, change: impl FnOnce(&mut NatsOptions)) -> Nats {
        let mut options = self.options();
        change(&mut options);
        Nats::new(options).unwrap()
    }

    async fn count(&self) -> u64 {
        let context = self.context().await;
        let mut stream = context.get_stream("ORDERS").await.unwrap();
        stream.info().await.unwrap().state.messages
    }
}

impl Destination for Stream {
    type Publisher = Nats;

    fn publisher(&self) -> Nats {
        self.with(|_| {})
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let context = self.context().await;
        let mut stream = context.get_stream("ORDERS").await.unwrap();
        let state = stream.info().await.unwrap().state.clone();
        let mut arrived = Vec::new();
        // An empty stream has nothing at its first sequence, which is 0.
        for sequence in state.first_sequence.max(1)..=state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let header = |name: &str| message.headers.get(name).map(|value| value.to_string());
            let headers = message.headers.iter();
            arrived.push(Arrived {
                id: header("Nats-Msg-Id").unwrap(),
                key: header("Hapax-Key"),
                headers: headers
                    .map(|(name, values)| (name.to_string(), values[0].to_string()))
                    .collect(),
                payload: message.payload.to_vec(),
            });
        }
        arrived
    }
}

impl Refusing for Stream {
    fn spoil(&self, message: &mut Envelope) {
        message.payload = vec![b'x'; 3 << 20].into();
    }
}

impl Mortal for Stream {
    fn kill(&mut self) {
        self.0.kill();
    }

    fn restart(&mut self) {
        self.0.restart();
    }

    fn pause(&self) {
        self.0.pause();
    }

    fn resume(&self) {
        self.0.resume();
    }
}

#[tokio::test]
async fn a_message_that_the_stream_refuses_stops_only_its_key() {
    let Some(stream) = with_stream(LARGE, |config| config.max_message_size = 1000).await else {
        return;
    };
    let mut sent = batch("orders", 0, 4, 2);
    sent[0].payload = vec![0; 1000].into();
    let verdicts = stream.publisher().publish(&sent).await.unwrap();
    assert!(
        matches!(&verdicts[0], Verdict::Refused(reason) if reason.contains("10054")),
        "{verdicts:?}"
    );
    let others = [Verdict::ACCEPTED, Verdict::NotSent, Verdict::ACCEPTED];
    assert_eq!(verdicts[1..], others);
}

#[tokio::test]
async fn a_topic_that_is_no_subject_is_refused_without_sending() {
    let Some(stream) = with_stream(LARGE, |config| config.subjects = vec!["a.>".into()]).await
    else {
        return;
    };
    let topics = [
        "a b",
        "a..b",
        "a.",
        "a.*",
        "a.>",
        "$JS.API.STREAM.DELETE.ORDERS",
    ];
    let sent: Vec<_> = (0..)
        .zip(topics)
        .map(|(number, topic)| message(topic, number, None))
        .collect();
    let verdicts = stream.publisher().publish(&sent).await.unwrap();
    for (topic, verdict) in topics.iter().zip(verdicts) {
        assert!(
            matches!(verdict, Verdict::Refused(_)),
            "{topic}: {verdict:?}"
        );
    }
    assert_eq!(stream.count().await, 0);
}

#[tokio::test]
async fn subjects_are_made_by_the_template() {
    let Some(stream) = with_stream(LARGE, |config| config.subjects = vec!["shop.>".into()]).await
    else {
        return;
    };
    let publisher = stream.with(|options| options.subject = "shop.{topic}.v1".into());
    let sent = [message("orders.paid", 0, None)];
    assert_eq!(publisher.publish(&sent).await.unwrap(), [Verdict::ACCEPTED]);
    let stored = stream.context().await.get_stream("ORDERS").await.unwrap();
    let stored = stored.get_raw_message(1).await.unwrap();
    assert_eq!(stored.subject.as_str(), "shop.orders.paid.v1");
}

#[tokio::test]
async fn a_subject_without_a_stream_is_an_outage_with_its_remedy() {
    let Some(stream) = start().await else { return };
    let publisher = stream.publisher();
    let sent = batch("payments", 0, 10, 3);
    let outage = publisher.publish(&sent).await.unwrap_err();
    let remedy = "nats stream add NAME --subjects 'payments'";
    assert!(outage.reason.contains(remedy), "{outage}");
    // As long as other subjects are taken, it concerns its own messages.
    let mixed = [message("payments", 0, None), message("orders", 1, None)];
    let verdicts = publisher.publish(&mixed).await.unwrap();
    assert!(matches!(&verdicts[0], Verdict::Failed(reason) if reason.contains(remedy)));
    assert_eq!(verdicts[1], Verdict::ACCEPTED);
    let config = Config {
        name: "PAYMENTS".to_owned(),
        subjects: vec!["payments".to_owned()],
        ..Config::default()
    };
    stream.context().await.create_stream(config).await.unwrap();
    let verdicts = publisher.publish(&sent).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
}

#[tokio::test]
async fn a_full_stream_fails_messages_and_takes_them_later() {
    let full = |config: &mut Config| {
        config.max_messages = 2;
        config.discard = DiscardPolicy::New;
    };
    let Some(stream) = with_stream(LARGE, full).await else {
        return;
    };
    let publisher = stream.publisher();
    let sent = batch("orders", 0, 4, 1);
    let verdicts = publisher.publish(&sent).await.unwrap();
    assert!(verdicts[..2].iter().all(Verdict::is_accepted));
    assert!(
        matches!(&verdicts[2], Verdict::Failed(reason) if reason.contains("maximum")),
        "{verdicts:?}"
    );
    assert_eq!(verdicts[3], Verdict::NotSent);
    let context = stream.context().await;
    context
        .get_stream("ORDERS")
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    let verdicts = publisher.publish(&sent[2..]).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
}

#[tokio::test]
async fn a_message_that_alone_gets_no_answer_is_unclear() {
    let silent = |config: &mut Config| config.no_ack = true;
    let Some(stream) = with_stream(LARGE, silent).await else {
        return;
    };
    let publisher = stream.with(|options| options.servers.timeout = Duration::from_millis(300));
    let sent = batch("orders", 0, 2, 1);
    let verdicts = publisher.publish(&sent).await.unwrap();
    assert!(matches!(verdicts[0], Verdict::Unclear(_)), "{verdicts:?}");
    assert_eq!(verdicts[1], Verdict::NotSent);
}

#[tokio::test]
async fn an_answer_of_somebody_else_is_no_acknowledgement() {
    let silent = |config: &mut Config| config.no_ack = true;
    let Some(stream) = with_stream(LARGE, silent).await else {
        return;
    };
    let client = async_nats::connect(stream.0.url()).await.unwrap();
    let mut listener = client.subscribe("orders").await.unwrap();
    client.flush().await.unwrap();
    let publisher = stream.publisher();
    for (number, answer) in (0..).zip(["thanks", "{}", ""]) {
        let sent = [message("orders", number, None)];
        let (verdicts, ()) = tokio::join!(publisher.publish(&sent), async {
            let reply = listener.next().await.unwrap().reply.unwrap();
            client.publish(reply, answer.into()).await.unwrap();
        });
        let verdicts = verdicts.unwrap();
        assert!(
            matches!(&verdicts[0], Verdict::Unclear(reason) if reason.contains("answered")),
            "{verdicts:?}"
        );
    }
}

#[tokio::test]
async fn what_waits_when_the_connection_is_lost_is_never_sent_later() {
    let Some(mut stream) = start().await else {
        return;
    };
    let publisher = stream.publisher();
    publisher.publish(&batch("orders", 0, 1, 1)).await.unwrap();
    stream.pause();
    // More than fits into the buffers of the sockets, so that some of it stays in the client.
    let mut stuck = batch("orders", 1, 200, 200);
    for message in &mut stuck {
        message.payload = vec![0; 200_000].into();
    }
    let (ended, ()) = tokio::join!(publisher.publish(&stuck), async {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        stream.kill();
    });
    let outage = ended.unwrap_err();
    assert!(outage.reason.contains("was lost"), "{outage}");
    stream.restart();
    let later = batch("orders", 1000, 100, 100);
    let verdicts = publisher.publish(&later).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
    assert_eq!(stream.count().await, 101);
}

#[tokio::test]
async fn a_server_that_is_down_does_not_keep_the_relay_from_the_next_one() {
    let Some(stream) = start().await else { return };
    let Some(silent) = Server::start("") else {
        return;
    };
    silent.pause();
    let nobody = hapax_testkit::servers::Port::free();
    let publisher = stream.with(|options| {
        let down = format!("nats://{}", nobody.address());
        options.servers.urls = vec![down, silent.url(), stream.0.url()];
    });
    let sent = batch("orders", 0, 10, 10);
    let verdicts = publisher.publish(&sent).await.unwrap();
    assert!(verdicts.iter().all(Verdict::is_accepted), "{verdicts:?}");
}

#[tokio::test]
async fn the_stream_is_checked_at_the_start() {
    let Some(stream) = start().await else { return };
    let checked = async |change: fn(&mut NatsOptions)| stream.with(change).check().await;
    checked(|_| {}).await.unwrap();
    checked(|options| options.stream = Some("ORDERS".into()))
        .await
        .unwrap();
    let reason = |result: Result<(), NatsError>| match result.unwrap_err() {
        NatsError::Stream { reason, .. } => reason,
        error => panic!("{error}"),
    };
    let missing = reason(checked(|options| options.stream = Some("OTHER".into())).await);
    assert!(
        missing.contains("nats stream add OTHER --subjects '>'"),
        "{missing}"
    );
    let elsewhere = |options: &mut NatsOptions| {
        options.stream = Some("ORDERS".into());
        options.subject = "shop.{topic}".into();
    };
    let uncovered = reason(checked(elsewhere).await);
    assert!(
        uncovered.contains("[orders]") && uncovered.contains("shop.>"),
        "{uncovered}"
    );
    let name = reason(checked(|options| options.stream = Some("A B".into())).await);
    assert!(name.contains("name"), "{name}");
}

#[tokio::test]
async fn a_stream_that_acknowledges_nothing_fails_the_check() {
    let Some(stream) = with_stream("", |config| config.no_ack = true).await else {
        return;
    };
    let publisher = stream.with(|options| options.stream = Some("ORDERS".into()));
    let error = publisher.check().await.unwrap_err().to_string();
    assert!(error.contains("nats stream edit ORDERS --ack"), "{error}");
}

#[tokio::test]
async fn a_check_without_a_server_may_pass_later() {
    let nobody = hapax_testkit::servers::Port::free();
    let mut options = NatsOptions::new([format!("nats://u:secret@{}", nobody.address())]);
    options.servers.timeout = LIMIT;
    let error = Nats::new(options).unwrap().check().await.unwrap_err();
    assert!(matches!(error, NatsError::Unavailable(_)));
    assert!(!error.to_string().contains("secret"), "{error}");
}

/// Publishes a message as somebody, to a server with these settings.
async fn published_as(settings: &str, url: &str, credentials: NatsCredentials) -> Option<bool> {
    let server = Server::start(&format!("{LARGE}\n{settings}"))?;
    let mut options = NatsOptions::new([url.replace("HOST", &server.address().to_string())]);
    options.servers.credentials = credentials;
    options.servers.timeout = LIMIT;
    let sent = [message("orders", 0, None)];
    // Nobody has made a stream: whoever is let in learns that.
    let outage = Nats::new(options)
        .unwrap()
        .publish(&sent)
        .await
        .unwrap_err();
    assert!(!outage.reason.contains("secret"), "{outage}");
    Some(outage.reason.contains("no stream"))
}

#[tokio::test]
async fn credentials_are_those_of_the_url_or_the_options() {
    let user = "authorization { user: \"u@x\", password: \"secret:/\" }";
    let token = "authorization { token: \"secret\" }";
    let key = "authorization { users: [{ nkey: UBCJTCG4NQCJWNCIYDLBJFNJHSA6DRRQPOPTW7WLN77IKI24GFMUAETP }] }";
    let seed = "SUAD3RJKZXG5YSJFSJVBP3CRF63N3IK5MHXAPZ52FHMGUA3XYJA2EGG4XI";
    let name = |password: &str| NatsCredentials::User {
        name: "u@x".into(),
        password: password.into(),
    };
    for (settings, url, credentials, is_let_in) in [
        (
            user,
            "nats://u%40x:secret%3A%2F@HOST",
            NatsCredentials::None,
            true,
        ),
        (
            user,
            "nats://u%40x:secret@HOST",
            NatsCredentials::None,
            false,
        ),
        (user, "nats://HOST", name("secret:/"), true),
        (user, "nats://HOST", name("other"), false),
        (token, "nats://secret@HOST", NatsCredentials::None, true),
        (
            token,
            "nats://HOST",
            NatsCredentials::Token("secret".into()),
            true,
        ),
        (token, "nats://HOST", NatsCredentials::None, false),
        (
            key,
            "nats://HOST",
            NatsCredentials::NkeySeed(seed.into()),
            true,
        ),
        (key, "nats://HOST", NatsCredentials::None, false),
    ] {
        let case = format!("{settings} {url} {credentials:?}");
        let Some(found) = published_as(settings, url, credentials).await else {
            return;
        };
        assert_eq!(found, is_let_in, "{case}");
    }
}

#[tokio::test]
async fn credentials_may_be_in_a_file() {
    // Of an operator, an account and a user who exist nowhere else.
    let settings = include_str!("nats/operator.conf");
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("user.creds");
    let credentials = || NatsCredentials::File(file.clone());
    for (text, is_let_in) in [
        (Some(include_str!("nats/user.creds")), true),
        (Some("nothing of use"), false),
        (None, false),
    ] {
        match text {
            Some(text) => std::fs::write(&file, text).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let Some(found) = published_as(settings, "nats://HOST", credentials()).await else {
            return;
        };
        assert_eq!(found, is_let_in, "{text:?}");
    }
}

#[tokio::test]
async fn a_lack_of_permissions_is_told() {
    let settings = "authorization { users: [{ user: u, password: p, permissions: { publish: [\"$JS.API.>\"] } }] }";
    let Some(server) = Server::start(settings) else {
        return;
    };
    let mut options = NatsOptions::new([format!("nats://u:p@{}", server.address())]);
    options.servers.timeout = Duration::from_millis(300);
    let sent = [message("orders", 0, None)];
    let verdicts = Nats::new(options).unwrap().publish(&sent).await.unwrap();
    assert!(
        matches!(&verdicts[0], Verdict::Unclear(reason) if reason.contains("Permissions Violation")),
        "{verdicts:?}"
    );
}

#[tokio::test]
async fn tls_is_spoken_with_those_whom_the_relay_trusts() {
    let (files, authority) = (tempfile::tempdir().unwrap(), Authority::default());
    let trusted = files.path().join("authority.pem");
    authority.write(&trusted);
    let (certificate, key) = authority.issue().write(files.path(), "server");
    let settings = format!("{LARGE}\ntls {{ cert_file: {certificate:?}, key_file: {key:?} }}");
    let Some(server) = Server::start(&settings) else {
        return;
    };
    let other = files.path().join("other.pem");
    Authority::default().write(&other);
    for (root, is_trusted) in [(trusted, true), (other, false)] {
        let mut options = NatsOptions::new([format!("tls://{}", server.address())]);
        options.servers.timeout = LIMIT;
        options.servers.root_certificates = vec![root];
        let sent = [message("orders", 0, None)];
        let outage = Nats::new(options)
            .unwrap()
            .publish(&sent)
            .await
            .unwrap_err();
        assert_eq!(outage.reason.contains("no stream"), is_trusted, "{outage}");
    }
}
