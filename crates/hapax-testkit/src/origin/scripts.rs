//! The common part of both origins: the scripts, the ledger, and the signal to continue.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::Ledger;

/// A service that follows scripts of these steps. Stops when dropped.
#[derive(Debug)]
pub struct Scripted<S> {
    address: SocketAddr,
    scripts: Arc<Scripts<S>>,
    accepting: JoinHandle<()>,
}

impl<S: Send + 'static> Scripted<S> {
    /// Listens on a free port of the loopback interface, and calls `speak` for each connection.
    pub(super) async fn listen<R>(
        speak: impl Fn(TcpStream, Arc<Scripts<S>>) -> R + Send + 'static,
    ) -> Scripted<S>
    where
        R: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a socket");
        let scripts = Arc::new(Scripts::new());
        let shared = scripts.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let ledger = shared.ledger.clone();
                ledger.connected();
                let speaking = speak(socket, shared.clone());
                tokio::spawn(async move {
                    // The result is ignored: the connection ended as scripted, or the other side
                    // ended it.
                    let _ = speaking.await;
                    ledger.ended();
                });
            }
        });
        Scripted {
            address,
            scripts,
            accepting,
        }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The script for the next request that has none yet.
    pub fn script(&self, steps: impl IntoIterator<Item = S>) {
        self.scripts.add(steps);
    }

    /// Closes a connection that was idle for this long, after a GOAWAY where the protocol has one.
    pub fn close_idle_after(&self, idle_max: Duration) {
        self.scripts.set_idle_max(idle_max);
    }

    /// Lets one waiting script continue, or the next one that waits.
    pub fn go(&self) {
        self.scripts.go();
    }

    /// The requests that reached it.
    pub fn ledger(&self) -> &Ledger {
        &self.scripts.ledger
    }
}

impl<S> Drop for Scripted<S> {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The scripts of an origin, one for each request to come.
#[derive(Debug)]
pub(super) struct Scripts<S> {
    scripts: Mutex<VecDeque<Vec<S>>>,
    idle_max: Mutex<Option<Duration>>,
    go: Semaphore,
    pub(super) ledger: Ledger,
}

impl<S> Scripts<S> {
    pub(super) fn new() -> Self {
        Scripts {
            scripts: Mutex::default(),
            idle_max: Mutex::default(),
            go: Semaphore::new(0),
            ledger: Ledger::default(),
        }
    }

    pub(super) fn add(&self, script: impl IntoIterator<Item = S>) {
        self.scripts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(script.into_iter().collect());
    }

    pub(super) fn next(&self) -> Option<Vec<S>> {
        self.scripts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }

    pub(super) fn set_idle_max(&self, idle_max: Duration) {
        *self.idle_max.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle_max);
    }

    pub(super) fn idle_max(&self) -> Option<Duration> {
        *self.idle_max.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn go(&self) {
        self.go.add_permits(1);
    }

    pub(super) async fn wait(&self) {
        if let Ok(permit) = self.go.acquire().await {
            permit.forget();
        }
    }
}
