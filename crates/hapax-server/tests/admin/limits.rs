//! No client can block the admin listener for the others.

use std::sync::Arc;
use std::time::Duration;

use hapax::{Hapax, Store};
use hapax_server::admin::{Admin, Limits, Rules, router, serve};
use hapax_server::config::Config;
use hapax_server::telemetry::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::world::send;

async fn listener(limits: Limits) -> (std::net::SocketAddr, Metrics) {
    let store: Arc<dyn Store> = Arc::new(hapax::store::memory());
    let (socket, ids) = (
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        store.info().await.unwrap().operation_ids(),
    );
    let (address, metrics) = (socket.local_addr().unwrap(), Metrics::new());
    let hapax = Hapax::builder_shared(store).sweep(None).build();
    let admin = Admin::new(
        Arc::default(),
        metrics.clone(),
        hapax,
        ids,
        Rules::new(&Config::new(http::Uri::default())),
    );
    tokio::spawn(serve(socket, router(admin), metrics.clone(), limits));
    (address, metrics)
}

/// Waits until the other side closes the connection, cleanly or not.
async fn ended(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest))
        .await
        .expect("it must be closed");
}

#[tokio::test]
async fn whoever_is_silent_or_slow_is_closed() {
    let (address, _) = listener(Limits {
        head_longest: Duration::from_millis(50),
        ..Limits::default()
    })
    .await;
    for beginning in [
        "",
        "GET /healthz HTT",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        ended(&mut stream).await;
    }
    // A client that sends one byte at a time is disconnected too.
    let (address, _) = listener(Limits {
        connection_longest: Duration::from_millis(100),
        ..Limits::default()
    })
    .await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        .await
        .unwrap();
    ended(&mut stream).await;
}

#[tokio::test]
async fn over_the_limit_the_new_connection_is_closed_and_a_free_place_is_given_again() {
    let (address, metrics) = listener(Limits {
        connections_max: 2,
        ..Limits::default()
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .unwrap();
        assert!(stream.read(&mut [0; 256]).await.unwrap() > 0);
        held.push(stream);
    }
    let mut third = TcpStream::connect(address).await.unwrap();
    ended(&mut third).await;
    assert!(
        metrics
            .encode()
            .contains("hapax_connections_refused_total{reason=\"admin_too_many\"} 1")
    );
    assert!(
        metrics
            .encode()
            .contains("hapax_connections{listener=\"admin\"} 2")
    );
    drop(held);
    while !metrics
        .encode()
        .contains("hapax_connections{listener=\"admin\"} 0")
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(send(address, "GET", "/healthz", &[], "").await.status, 200);
}
