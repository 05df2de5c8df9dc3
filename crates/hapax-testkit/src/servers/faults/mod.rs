//! A TCP proxy that injects faults on demand.

mod link;
mod plan;
mod wire;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};

use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use self::plan::{Cut, Mode, Plan};
use super::port::{PORTS_MAX, Port};

/// A proxy in front of a server. For PostgreSQL it knows when a statement is in flight. When
/// dropped, it ends with all its connections.
///
/// It runs on its own thread, so that a test may block. Each method has taken effect when it
/// returns: no byte passes after [`cut_now`](FaultProxy::cut_now), and no client can connect after
/// [`refuse`](FaultProxy::refuse).
pub struct FaultProxy {
    port: Port,
    shared: Arc<Shared>,
    orders: Option<UnboundedSender<Refuse>>,
    thread: Option<JoinHandle<()>>,
}

/// Whether to refuse connections, and where to report that it is done.
type Refuse = (bool, mpsc::Sender<()>);

impl FaultProxy {
    /// Starts a proxy without faults.
    pub async fn in_front_of(target: SocketAddr) -> FaultProxy {
        let (listener, port) = listener();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            plan: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let ((orders, received), links) = (unbounded_channel(), shared.clone());
        let thread = thread::spawn(move || serve(listener, received, &links));
        FaultProxy {
            port,
            shared,
            orders: Some(orders),
            thread: Some(thread),
        }
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Forwards new connections to another server.
    pub fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap() = target;
    }

    /// Cuts every connection, on both sides.
    pub fn cut_now(&self) {
        self.shared.change(Plan::cut_all);
    }

    /// Cuts a connection after `bytes` more bytes of replies, counted over all connections. With 0,
    /// when the next reply would begin.
    pub fn cut_after_reply_bytes(&self, bytes: u64) {
        self.shared
            .change(|plan| plan.arm(Cut::Replies { left: bytes }));
    }

    /// Cuts the connection of the next statement, after `bytes` bytes of its reply. With 0 the
    /// client gets nothing of the reply, though the server has executed the statement.
    pub fn cut_next_statement_after(&self, bytes: u64) {
        self.shared
            .change(|plan| plan.arm(Cut::Statement { left: bytes }));
    }

    /// Cuts the connection of the next statement, before the server has received all of it.
    pub fn lose_next_statement(&self) {
        self.shared.change(|plan| plan.arm(Cut::Request));
    }

    /// Whether a cut is still to come.
    pub fn is_armed(&self) -> bool {
        self.shared.plan().is_armed()
    }

    /// Drops everything, in both directions. New connections are accepted, and their data is
    /// dropped too. When it ends, connections that have lost data are cut.
    pub fn blackhole(&self, on: bool) {
        self.shared
            .change(|plan| plan.set_mode(if on { Mode::Blackhole } else { Mode::Flow }));
    }

    /// Holds everything back, in both directions, and forwards it when the stall ends: including
    /// data of clients that have hung up meanwhile.
    pub fn stall(&self, on: bool) {
        self.shared
            .change(|plan| plan.set_mode(if on { Mode::Stall } else { Mode::Flow }));
    }

    /// Refuses new connections. Open connections stay.
    pub fn refuse(&self, on: bool) {
        let (done, is_done) = mpsc::channel();
        self.orders
            .as_ref()
            .expect("open until dropped")
            .send((on, done))
            .expect("the proxy runs until dropped");
        is_done.recv().expect("the proxy does as told");
    }

    /// How many faults have hit a connection while a statement was in flight on it.
    pub fn faults(&self) -> u64 {
        self.shared.plan().faults()
    }

    /// On how many connections a statement is in flight.
    pub fn in_flight(&self) -> usize {
        self.shared.plan().in_flight()
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.shared.plan().connections()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.orders.take());
        // The thread ends when the channel for orders is closed.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// The state that the handle and the connections share.
struct Shared {
    target: Mutex<SocketAddr>,
    plan: Mutex<Plan>,
    /// Counts the changes of the plan.
    changed: watch::Sender<u64>,
}

impl Shared {
    fn target(&self) -> SocketAddr {
        *self.target.lock().unwrap()
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn change(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.plan());
        self.changed.send_modify(|changes| *changes += 1);
    }
}

fn listener() -> (TcpListener, Port) {
    let mut tries = (0..PORTS_MAX).map(|_| Port::free());
    tries
        .find_map(|port| {
            TcpListener::bind(port.address())
                .ok()
                .map(|listener| (listener, port))
        })
        .expect("a port is free")
}

/// Accepts connections until the channel for orders is closed.
fn serve(listener: TcpListener, orders: UnboundedReceiver<Refuse>, shared: &Arc<Shared>) {
    let runtime = Builder::new_current_thread()
        .enable_io()
        .build()
        .expect("a runtime of our own");
    runtime.block_on(accept(listener, orders, shared));
}

async fn accept(
    listener: TcpListener,
    mut orders: UnboundedReceiver<Refuse>,
    shared: &Arc<Shared>,
) {
    let address = listener.local_addr().expect("a listener has its address");
    let mut listener = Some(listening(listener));
    loop {
        tokio::select! {
            Some(client) = next(listener.as_ref()) => drop(tokio::spawn(link::run(client, shared.clone()))),
            order = orders.recv() => {
                let Some((refuse, done)) = order else { return };
                if refuse {
                    listener = None;
                } else if listener.is_none() {
                    listener = Some(listening(TcpListener::bind(address).expect("the port is kept for us")));
                }
                // The handle may be gone.
                let _ = done.send(());
            }
        }
    }
}

/// The next client. `None` if the system has no more sockets; the caller then waits for an order.
async fn next(listener: Option<&tokio::net::TcpListener>) -> Option<tokio::net::TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.ok().map(|(client, _)| client),
        None => std::future::pending().await,
    }
}

/// Must be called in a runtime.
fn listening(listener: TcpListener) -> tokio::net::TcpListener {
    listener
        .set_nonblocking(true)
        .expect("a socket can be told not to block");
    tokio::net::TcpListener::from_std(listener).expect("a listener can be registered")
}
