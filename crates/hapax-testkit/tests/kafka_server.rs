//! Tests the Kafka server that other tests use.

use std::path::Path;

use hapax_testkit::servers::Kafka;

#[test]
fn a_killed_kafka_has_its_messages_again() {
    let Some(mut kafka) = Kafka::start("") else {
        return;
    };
    kafka.write_by_java("orders", &["1", "2", "3"]);
    let (bootstrap, pid) = (kafka.bootstrap(), kafka.pid());
    kafka.kill();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    kafka.restart();
    assert_eq!(kafka.bootstrap(), bootstrap);
    let mut read = kafka.read_by_java("orders", 3);
    read.sort();
    assert_eq!(read, ["NO_HEADERS\t1", "NO_HEADERS\t2", "NO_HEADERS\t3"]);
}

#[test]
fn a_paused_kafka_can_be_killed() {
    let Some(mut kafka) = Kafka::start("num.partitions=1") else {
        return;
    };
    kafka.pause();
    kafka.kill();
    kafka.restart();
    kafka.pause();
    kafka.resume();
    kafka.write_by_java("orders", &["a", "b"]);
    // One partition has one order.
    assert_eq!(
        kafka.read_by_java("orders", 2),
        ["NO_HEADERS\ta", "NO_HEADERS\tb"]
    );
}

#[test]
fn a_dropped_kafka_leaves_nothing_behind() {
    let Some(kafka) = Kafka::start("") else {
        return;
    };
    let (directory, pid) = (kafka.directory().to_owned(), kafka.pid());
    assert!(directory.is_dir());
    drop(kafka);
    assert!(!directory.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}
