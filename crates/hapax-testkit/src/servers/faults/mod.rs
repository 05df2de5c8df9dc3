//! A TCP proxy through which things go wrong when told to.

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

/// A proxy in front of a server, PostgreSQL by preference: of that it knows when a statement is in
/// flight. Ends when dropped, with all its connections.
///
/// It runs on a thread of its own, so that a test may block. Each method has taken effect when it
/// returns: not a byte passes after [`cut_now`](FaultProxy::cut_now), and nobody gets through after
/// [`refuse`](FaultProxy::refuse).
pub struct FaultProxy {
    port: Port,
    shared: Arc<Shared>,
    orders: Option<UnboundedSender<Refuse>>,
    thread: Option<JoinHandle<()>>,
}

/// Whether to refuse, and whom to tell that it is so.
type Refuse = (bool, mpsc::Sender<()>);

impl FaultProxy {
    /// Starts one, through which everything passes.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Sends new connections somewhere else.
    pub fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap() = target;
    }

    /// Cuts every connection, on both sides.
    pub fn cut_now(&self) {
        self.shared.change(Plan::cut_all);
    }

    /// Cuts a connection after so many more bytes of replies, on whichever they come. With 0, when
    /// the next reply would begin.
    pub fn cut_after_reply_bytes(&self, bytes: u64) {
        self.shared
            .change(|plan| plan.arm(Cut::Replies { left: bytes }));
    }

    /// Cuts the connection on which the next statement is sent, after so many bytes of its reply.
    /// With 0 none of the reply comes through, though the server has done what it was told.
    pub fn cut_next_statement_after(&self, bytes: u64) {
        self.shared
            .change(|plan| plan.arm(Cut::Statement { left: bytes }));
    }

    /// Cuts the connection on which the next statement is sent, before the server has seen it
    /// whole.
    pub fn lose_next_statement(&self) {
        self.shared.change(|plan| plan.arm(Cut::Request));
    }

    /// Whether a cut is still to come.
    pub fn is_armed(&self) -> bool {
        self.shared.plan().is_armed()
    }

    /// Swallows everything, in both directions, also on new connections, which are taken all the
    /// same. When it is over, connections that have lost something are cut.
    pub fn blackhole(&self, on: bool) {
        self.shared
            .change(|plan| plan.set_mode(if on { Mode::Blackhole } else { Mode::Flow }));
    }

    /// Keeps everything, in both directions, and passes it on when it is over: also what was said
    /// by those who have hung up meanwhile.
    pub fn stall(&self, on: bool) {
        self.shared
            .change(|plan| plan.set_mode(if on { Mode::Stall } else { Mode::Flow }));
    }

    /// Refuses new connections. Those that are open stay.
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
        // It ends when nobody can give it orders any more.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// What the handle and the connections share.
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

/// Takes connections until nobody can give orders any more.
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
                // If it is gone, it does not want to know.
                let _ = done.send(());
            }
        }
    }
}

/// The next client. None for now if the system has no more sockets: then an order is waited for.
async fn next(listener: Option<&tokio::net::TcpListener>) -> Option<tokio::net::TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.ok().map(|(client, _)| client),
        None => std::future::pending().await,
    }
}

/// To be called in a runtime.
fn listening(listener: TcpListener) -> tokio::net::TcpListener {
    listener
        .set_nonblocking(true)
        .expect("a socket can be told not to block");
    tokio::net::TcpListener::from_std(listener).expect("a listener can be registered")
}
