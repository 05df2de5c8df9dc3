//! Reports the state to the service manager, by the protocol of systemd's `Type=notify`: a datagram
//! of lines on the socket in `NOTIFY_SOCKET`.
//!
//! If there is no socket, or the manager does not read it, the gateway serves nevertheless.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The service manager, if there is one.
pub(super) struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// The manager that `NOTIFY_SOCKET` names.
    pub(super) fn from_env() -> Manager {
        Manager(
            std::env::var("NOTIFY_SOCKET")
                .ok()
                .filter(|name| !name.is_empty())
                .and_then(|name| connect(&name)),
        )
    }

    pub(super) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// The manager uses the time to distinguish this reload from an earlier one.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.tell(&format!(
            "RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reading the configuration again"
        ));
    }

    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=draining: attempts under way may end");
    }

    /// Sends keep-alive messages forever, as often as the manager requires; none if it requires
    /// none.
    pub(super) async fn show_life(&self) {
        let Some(patience) = watchdog(|name| std::env::var(name).ok(), std::process::id())
            .filter(|_| self.0.is_some())
        else {
            return std::future::pending().await;
        };
        let mut ticks = tokio::time::interval(patience / 2);
        loop {
            ticks.tick().await;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, lines: &str) {
        if let Some((socket, manager)) = &self.0 {
            let _ = socket.send_to_addr(lines.as_bytes(), manager);
        }
    }
}

/// A path, or after an `@` a name in the abstract namespace.
fn connect(name: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(name) => of_no_file(name),
        None => SocketAddr::from_pathname(name),
    };
    // A manager that does not read must not block the gateway.
    let socket =
        UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    Some((socket.ok()?, address.ok()?))
}

#[cfg(target_os = "linux")]
fn of_no_file(name: &str) -> io::Result<SocketAddr> {
    <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn of_no_file(_: &str) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// How long the manager waits for a keep-alive message, if it waits for this process.
fn watchdog(variable: impl Fn(&str) -> Option<String>, us: u32) -> Option<Duration> {
    let is_for_us = variable("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(us));
    let micros = variable("WATCHDOG_USEC")?
        .parse()
        .ok()
        .filter(|micros| *micros > 0)?;
    is_for_us.then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_is_for_whoever_is_waited_for() {
        let patience = |pid: Option<&str>, micros: Option<&str>| {
            watchdog(
                |name| if name == "WATCHDOG_PID" { pid } else { micros }.map(str::to_owned),
                7,
            )
        };
        assert_eq!(
            patience(Some("7"), Some("2000000")),
            Some(Duration::from_secs(2))
        );
        assert_eq!(
            patience(None, Some("2000000")),
            Some(Duration::from_secs(2))
        );
        for (pid, micros) in [
            (Some("8"), Some("2000000")),
            (None, None),
            (None, Some("0")),
            (None, Some("soon")),
        ] {
            assert_eq!(patience(pid, micros), None, "{pid:?} {micros:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn names_are_paths_or_abstract() {
        use std::os::linux::net::SocketAddrExt;

        assert!(
            connect("/run/systemd/notify")
                .unwrap()
                .1
                .as_pathname()
                .is_some()
        );
        assert_eq!(
            connect("@/org/freedesktop/systemd1")
                .unwrap()
                .1
                .as_abstract_name(),
            Some(&b"/org/freedesktop/systemd1"[..])
        );
        assert!(connect(&"x".repeat(200)).is_none());
    }
}
