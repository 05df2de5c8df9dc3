//! A raw client of the gateway: one request on one connection, and everything that comes back.

use std::net::SocketAddr;
use std::time::Duration;

use hapax_testkit::harness::{RawAnswer, send_raw};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Sends a POST whose body is also the key, for origins that count requests by their body.
pub async fn post(gateway: SocketAddr, key: &str) -> RawAnswer {
    let request = format!(
        "POST /charges HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{key}",
        key.len()
    );
    send_raw(gateway, request.as_bytes()).await
}

/// The same without a key, so that it is not guarded.
pub async fn post_unguarded(gateway: SocketAddr, body: &str) -> RawAnswer {
    let request = format!(
        "POST /charges HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    send_raw(gateway, request.as_bytes()).await
}

pub async fn get(gateway: SocketAddr, path: &str) -> RawAnswer {
    send_raw(
        gateway,
        format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n").as_bytes(),
    )
    .await
}

/// Waits until `count` of these connections were answered or cut, and removes them. The others stay
/// open.
pub async fn take_answered(sockets: &mut Vec<TcpStream>, count: usize) -> Vec<RawAnswer> {
    let mut answers = Vec::new();
    while answers.len() < count {
        let mut index = 0;
        while index < sockets.len() {
            let heard =
                tokio::time::timeout(Duration::from_millis(1), sockets[index].peek(&mut [0])).await;
            if heard.is_err() {
                index += 1;
                continue;
            }
            let (mut socket, mut bytes) = (sockets.swap_remove(index), Vec::new());
            let _ = socket.read_to_end(&mut bytes).await;
            answers.push(RawAnswer::parse(&bytes));
        }
    }
    answers
}

/// Sends a POST with a key and checks the result.
#[track_caller]
pub fn posts<'a>(to: SocketAddr, key: &'a str, told: &'a str) -> impl Future<Output = ()> + 'a {
    is_told(key, told, post(to, key))
}

/// The same without a key.
#[track_caller]
pub fn posts_unguarded<'a>(
    to: SocketAddr,
    body: &'a str,
    told: &'a str,
) -> impl Future<Output = ()> + 'a {
    is_told(body, told, post_unguarded(to, body))
}

/// The same with a GET.
#[track_caller]
pub fn gets<'a>(to: SocketAddr, path: &'a str, told: &'a str) -> impl Future<Output = ()> + 'a {
    is_told(path, told, get(to, path))
}

#[track_caller]
fn is_told<'a>(
    what: &'a str,
    told: &'a str,
    sent: impl Future<Output = RawAnswer> + 'a,
) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move { assert_eq!(sent.await.told(), told, "{what}, sent at {caller}") }
}
