//! The state of the other end of a connection, as the system reports it: for clients that hang up
//! at an exact moment.

use std::net::SocketAddr;
use std::time::Instant;

use super::GUARD;

const ESTABLISHED: &str = "01";

/// Waits until the other end has read everything that was sent to it.
pub async fn wait_read(own: SocketAddr, other: SocketAddr) {
    wait_until(own, other, |_, unread| unread == 0).await;
}

/// Waits until the other end's system knows that this end is closed, wholly or half.
pub async fn wait_gone(own: SocketAddr, other: SocketAddr) {
    wait_until(own, other, |state, _| state != ESTABLISHED).await;
}

/// Waits until the predicate holds for the other end's state and its unread bytes, or the other end
/// no longer exists.
async fn wait_until(own: SocketAddr, other: SocketAddr, is_so: impl Fn(&str, u64) -> bool) {
    let deadline = Instant::now() + GUARD;
    // Where the system has no such table, this returns at once.
    while let Ok(table) = std::fs::read_to_string("/proc/net/tcp") {
        let line = table
            .lines()
            .find(|line| ports(line) == Some((other.port(), own.port())));
        if line.is_none_or(|line| is_so(word(line, 3), unread(line))) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "the other end of {own} stays as it is"
        );
        tokio::task::yield_now().await;
    }
}

fn word(line: &str, index: usize) -> &str {
    line.split_ascii_whitespace().nth(index).unwrap_or_default()
}

/// The own port and the other port: `0100007F:1F90 0100007F:9C40`.
fn ports(line: &str) -> Option<(u16, u16)> {
    let port = |word: &str| u16::from_str_radix(word.rsplit_once(':')?.1, 16).ok();
    Some((port(word(line, 1))?, port(word(line, 2))?))
}

/// The second number of `tx_queue:rx_queue`.
fn unread(line: &str) -> u64 {
    word(line, 4)
        .rsplit_once(':')
        .and_then(|(_, bytes)| u64::from_str_radix(bytes, 16).ok())
        .unwrap_or(0)
}
