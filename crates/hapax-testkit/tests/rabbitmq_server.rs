//! The private RabbitMQ server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use hapax_testkit::servers::RabbitMq;

/// Whether it greets a client within a second.
fn greets(server: &RabbitMq) -> bool {
    let Ok(mut stream) = TcpStream::connect(server.address()) else {
        return false;
    };
    let limit = Some(Duration::from_secs(1));
    stream.set_read_timeout(limit).expect("a limit");
    drop(stream.write_all(b"AMQP\x00\x00\x09\x01"));
    stream.read_exact(&mut [0; 7]).is_ok()
}

#[test]
fn a_server_that_is_killed_or_paused_is_the_same_afterwards() {
    let Some(mut server) = RabbitMq::mortal() else {
        return;
    };
    let (first, second) = (server.virtual_host(), server.virtual_host());
    assert_ne!(first, second);
    assert!(greets(&server));
    server.pause();
    assert!(!greets(&server));
    server.resume();
    assert!(greets(&server));
    let port = server.port();
    server.kill();
    assert!(!greets(&server));
    server.restart();
    assert!(greets(&server));
    assert_eq!(server.port(), port);
    let known = server.erlang("rabbit_vhost:exists(<<\"test_1\">>).");
    assert_eq!(known, "{ok, true}");
}
