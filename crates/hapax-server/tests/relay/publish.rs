//! What `hapax relay` publishes.

use std::time::{Duration, Instant};

use hapax_testkit::servers::{Kafka, Postgres, RabbitMq, Redis};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;

use crate::harness::{self, Program, Service, Serving, Signal, migrated, whole, words};
use crate::{emit, free_address, guest, hapax, insert, lines};

fn relay(line: &str) -> Program {
    Program::start(harness::hapax().args(words(&format!("relay --log text {line}"))))
}

#[test]
fn messages_of_sql_come_out_as_lines_of_json_once() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    let id = emit(postgres, &url, "o-1", "paid");
    emit(postgres, &url, "o-1", "sent");
    let said = hapax(&format!("relay --once --store {url} --to stdout:"));
    said.assert_lines(0, 2);
    let messages = lines(&said.stdout);
    assert_eq!(messages[0]["id"], id.as_str());
    assert_eq!(
        (&messages[0]["topic"], &messages[0]["key"]),
        (&"orders".into(), &"o-1".into())
    );
    let payloads = [&messages[0]["payload"], &messages[1]["payload"]];
    assert_eq!(payloads, ["paid", "sent"]);
    said.assert_told("stdout: published 2, set aside 0, given up 0");
    let again = hapax(&format!("relay --once --json --store {url} --to stdout:"));
    again.assert_lines(0, 0);
    again.assert_told("\"published\":0,");
    // Another reader begins with what is emitted from then on.
    let other = hapax(&format!(
        "relay --once --store {url} --to null: --reader audit"
    ));
    other.assert_told("audit: published 0");
}

#[tokio::test]
async fn messages_of_a_sqlite_file_come_out_too() {
    let (_directory, path) = guest().await;
    insert(&path, "o-1", "paid");
    let store = format!("sqlite:{}", path.display());
    let said = hapax(&format!("relay --once --store {store} --to stdout:"));
    said.assert_lines(0, 1);
    assert_eq!(lines(&said.stdout)[0]["payload"], "paid");
}

#[test]
fn a_stand_by_goes_on_when_the_active_relay_is_killed() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    let mut one = relay(&format!("--store {url} --to stdout:"));
    one.wait_for("the relay is active");
    let mut other = relay(&format!("--store {url} --to stdout:"));
    other.wait_for("the relay begins");
    emit(postgres, &url, "o-1", "of the first");
    one.wait_for("of the first");
    one.signal(Signal::KILL);
    one.ended();
    emit(postgres, &url, "o-1", "of the second");
    other.wait_for("the relay is active");
    other.wait_for("of the second");
    other.signal(Signal::TERM);
    assert_eq!(other.ended().code(), Some(0));
    // It has given the reader up.
    let last = hapax(&format!("relay --once --store {url} --to stdout:"));
    last.assert_lines(0, 0);
}

#[test]
fn metrics_are_served_for_relays_alone() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    emit(postgres, &url, "o-1", "paid");
    let address = free_address();
    let mut running = relay(&format!("--store {url} --to stdout: --metrics {address}"));
    running.wait_for("metrics are served");
    running.wait_for("\"payload\":\"paid\"");
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let metrics = harness::exchange(address, request.as_bytes());
    for line in [
        "hapax_relay_published_total{reader=\"stdout\"} 1",
        "hapax_relay_payload_bytes_total{reader=\"stdout\"} 4",
        "hapax_relay_active{reader=\"stdout\"} 1",
        "hapax_relay_stopped{reader=\"stdout\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    assert!(metrics.contains("hapax_relay_oldest_seconds{reader=\"stdout\"}"));
    assert!(!metrics.contains("hapax_requests"), "{metrics}");
    let documented = include_str!("../../../../docs/metrics.md");
    let types = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE hapax_relay_")?.split_once(' '));
    let mut count = 0;
    for (name, kind) in types {
        let suffix = if kind == "counter" { "_total" } else { "" };
        let row = format!("| `hapax_relay_{name}{suffix}` † | {kind} | `reader` |");
        assert!(documented.contains(&row), "{row}");
        count += 1;
    }
    let rows = documented.matches("\n| `hapax_relay_").count();
    assert_eq!(count, rows, "all of them are there");
    running.signal(Signal::TERM);
    assert_eq!(running.ended().code(), Some(0));
}

#[test]
fn relays_of_a_configuration_run_without_a_gateway() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    emit(postgres, &url, "o-1", "paid");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hapax.toml");
    let settings = format!(
        "store = \"{url}\"\n[relay.orders]\nto = \"stdout:\"\n[relay.measured]\nto = \"null:\"\n"
    );
    harness::replace(&file, &settings);
    let said = hapax(&format!("relay --once --config {}", file.display()));
    said.assert_code(0);
    said.assert_told("orders: published");
    said.assert_told("measured: published");
    let one = hapax(&format!(
        "relay --once --reader nobody --config {}",
        file.display()
    ));
    one.assert_code(2);
    one.assert_told("has no section [relay.nobody]");
}

#[test]
fn messages_go_to_kafka_once_also_when_the_position_of_the_reader_was_lost() {
    let (Some(postgres), Some(kafka)) = (Postgres::shared(), Kafka::start("")) else {
        return;
    };
    let url = migrated(postgres);
    // It makes the topic.
    kafka.write_by_java("shop.orders", &["of another producer"]);
    let id = emit(postgres, &url, "o-1", "paid");
    emit(postgres, &url, "o-1", "sent");
    let to = format!("kafka://{}/shop.{{topic}}", kafka.bootstrap());
    let line = format!("relay --once --json --store {url} --to {to}");
    let said = hapax(&line);
    said.assert_code(0);
    said.assert_told("\"published\":2,");
    said.assert_told("\"duplicates\":0,");
    let back = "UPDATE hapax.readers SET lo = '3:3:', hi = NULL, after = -1, floor = 0, top = 0";
    postgres.psql(harness::database_name(&url), back);
    let again = hapax(&line);
    again.assert_told("\"duplicates\":2,");
    let read = kafka.read_by_java("shop.orders", 3);
    assert_eq!(read.len(), 3, "{read:?}");
    let is_ours = |line: &&String| line.contains(&format!("ce_id:{id},"));
    assert_eq!(read.iter().filter(is_ours).count(), 1, "{read:?}");
}

/// From the transaction that emitted it to the destination, in one trace.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_is_in_the_trace_of_its_message() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let parent = format!("00-{trace}-{span}-01");
    let sql = format!(
        "SELECT hapax.emit('orders', 'o-1', 'paid', jsonb_build_object('traceparent', '{parent}'))"
    );
    postgres.psql(harness::database_name(&url), &sql);
    let collector = Service::start(Serving::default(), |_| whole(200, ""));
    let line = format!("relay --once --store {url} --to stdout:");
    let said = harness::said(harness::hapax().args(words(&line)).env(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        format!("http://{}", collector.address),
    ));
    said.assert_lines(0, 1);
    // Consumers go on from where it was emitted.
    assert_eq!(lines(&said.stdout)[0]["headers"]["traceparent"], parent);
    collector.wait_asked(1).await;
    let sent = &collector.asked()[0];
    let sent = ExportTraceServiceRequest::decode(sent.body.clone()).unwrap();
    let span_of = &sent.resource_spans[0].scope_spans[0].spans[0];
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    assert_eq!(span_of.name, "publish orders");
    assert_eq!(
        (hex(&span_of.trace_id), hex(&span_of.parent_span_id)),
        (trace.into(), span.into())
    );
}

#[tokio::test]
async fn messages_go_to_streams_of_redis() {
    let Some(redis) = Redis::start(&[("requirepass", "s3cret")]) else {
        return;
    };
    let (directory, path) = guest().await;
    insert(&path, "o-1", "paid");
    insert(&path, "o-1", "sent");
    let file = directory.path().join("hapax.toml");
    let configuration = format!(
        "store = \"sqlite:{}\"\n[relay.shop]\nto = \"{}\"\nstream = \"shop:{{topic}}\"\nstream_length_max = 1000\n",
        path.display(),
        redis.url()
    );
    std::fs::write(&file, configuration).unwrap();
    let said = hapax(&format!("relay --once --config {}", file.display()));
    said.assert_told("shop: published 2, set aside 0, given up 0");
    let entries = redis.cli(&["XRANGE", "shop:orders", "-", "+"]);
    let lines: Vec<&str> = entries.lines().collect();
    let payloads: Vec<&str> = lines
        .windows(2)
        .filter(|pair| pair[0] == "payload")
        .map(|pair| pair[1])
        .collect();
    assert_eq!(payloads, ["paid", "sent"]);
    assert!(
        lines.contains(&"ce-id") && lines.contains(&"o-1"),
        "{entries}"
    );

    // One that was kept out takes its place again while it has the reader.
    let place = || redis.cli(&["GET", "hapax:relay:shop"]);
    let before = place();
    let mut relay = relay(&format!("--config {}", file.display()));
    relay.wait_for("the relay is active");
    let ended = Instant::now() + Duration::from_secs(30);
    while place() == before {
        assert!(Instant::now() < ended, "{}", relay.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!relay.log().contains("s3cret"), "{}", relay.log());
    redis.cli(&["SET", "hapax:relay:shop", "another"]);
    insert(&path, "o-2", "paid");
    relay.wait_for("another relay publishes for the reader shop");
    let ended = Instant::now() + Duration::from_secs(30);
    while redis.cli(&["XLEN", "shop:orders"]).trim() != "3" {
        assert!(Instant::now() < ended, "{}", relay.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn messages_go_to_a_queue_of_rabbitmq() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let Some(rabbit) = RabbitMq::shared() else {
        return;
    };
    let to = rabbit.virtual_host();
    let (_, virtual_host) = to.rsplit_once('/').unwrap();
    let queue = format!("{{resource, <<\"{virtual_host}\">>, queue, <<\"shop.orders\">>}}");
    let declared = format!(
        "element(1, rabbit_amqqueue:declare({queue}, true, false, [], none, <<\"guest\">>))."
    );
    assert_eq!(rabbit.erlang(&declared), "{ok, new}");
    let url = migrated(postgres);
    emit(postgres, &url, "o-1", "paid");
    emit(postgres, &url, "o-1", "sent");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hapax.toml");
    let relay = format!("[relay.to-rabbit]\nto = \"{to}\"\nsubject = \"shop.{{topic}}\"\n");
    harness::replace(&file, &format!("store = \"{url}\"\n{relay}"));
    let said = hapax(&format!("relay --once --config {}", file.display()));
    said.assert_code(0);
    said.assert_told("to-rabbit: published 2, set aside 0, given up 0");
    let counted =
        format!("element(2, rabbit_amqqueue:stat(element(2, rabbit_amqqueue:lookup({queue})))).");
    assert_eq!(rabbit.erlang(&counted), "{ok, 2}");
    // A topic without a queue is refused and set aside, and nothing tells the password.
    let sql = "SELECT hapax.emit('payments', 'p-1', 'paid')";
    postgres.psql(harness::database_name(&url), sql);
    let said = hapax(&format!("relay --once --config {}", file.display()));
    said.assert_told("to-rabbit: published 0, set aside 1");
    let told = format!("{}{}", said.stdout, said.stderr);
    assert!(!told.contains("guest:guest"), "{told}");
}
