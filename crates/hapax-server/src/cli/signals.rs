//! The signals that stop a program.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Exit;

/// SIGTERM and SIGINT, from a user or a supervisor.
pub(super) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Begins to listen. From here on the signals no longer end the process by themselves.
    pub(super) fn new() -> Result<Stop, Exit> {
        Ok(Stop {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next of them.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Begins to listen for one kind of signal.
pub(super) fn listen(kind: SignalKind) -> Result<Signal, Exit> {
    signal(kind).map_err(|error| Exit::failed(format!("could not listen for signals: {error}")))
}
