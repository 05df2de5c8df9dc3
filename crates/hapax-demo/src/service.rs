//! The payments service: charges cards, keeps a ledger, and fails in every way a service can.
//!
//! It is a separate process (`hapax demo-service`), so that its death is real. It ignores keys, as
//! most services do. It reports each fault that strikes on standard output, one per line. It exits
//! when its standard input ends, since its parent is then gone.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::Failed;
use crate::ledger::{Entry, Ledger};
use crate::plan::{self, Fault, Random};

/// The prefixes of the line with its address, and of the line about a fault that has struck.
pub(crate) const LISTENING: &str = "listening ";
pub(crate) const STRUCK: &str = "struck ";

/// The path for charges.
pub(crate) const PATH: &str = "/v1/charges";

/// Longer than any customer waits, including the balancer's retries.
pub(crate) const STALL: Duration = Duration::from_millis(2_200);

/// Long enough to send the first half of an answer before the connection breaks.
const HALF_WAY: Duration = Duration::from_millis(20);

/// After a death, remains of the old connections may still hold the port.
const BIND_TRIES: u32 = 50;
const BIND_PAUSE: Duration = Duration::from_millis(100);

const BODY_BYTES_MAX: usize = 64 << 10;

/// A payments service that fails its callers, for `hapax demo`.
#[derive(clap::Args)]
pub struct Args {
    /// The file of its ledger.
    #[arg(long)]
    ledger: PathBuf,
    /// Where to listen.
    #[arg(long)]
    address: SocketAddr,
    /// Deals the faults.
    #[arg(long)]
    seed: u64,
    /// To so many orders.
    #[arg(long)]
    orders: usize,
}

/// Serves until standard input ends.
pub fn run(args: &Args) -> Result<(), Failed> {
    std::thread::spawn(end_with_parent);
    let ledger = Ledger::open(&args.ledger).map_err(|error| {
        Failed::new(format!("cannot open the ledger {:?}: {error}", args.ledger))
    })?;
    let service = Arc::new(Service {
        ledger: Mutex::new(ledger),
        seed: args.seed,
        faults: plan::deal_faults(args.seed, args.orders),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failed::new)?;
    runtime.block_on(serve(service, args.address))
}

fn end_with_parent() {
    let mut ignored = [0];
    while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
    std::process::exit(0);
}

async fn serve(service: Arc<Service>, address: SocketAddr) -> Result<(), Failed> {
    let no_port = |error| {
        Failed::new(format!(
            "the payments service cannot listen on {address}: {error}"
        ))
    };
    let listener = bind(address).await.map_err(no_port)?;
    say(
        LISTENING,
        &listener.local_addr().map_err(no_port)?.to_string(),
    );
    loop {
        // Errors such as a shortage of descriptors or a caller that is already gone must not stop
        // the service.
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(service.clone(), stream));
        }
    }
}

async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    for _ in 0..BIND_TRIES {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && address.port() != 0 => {
                tokio::time::sleep(BIND_PAUSE).await;
            }
            bound => return bound,
        }
    }
    TcpListener::bind(address).await
}

async fn converse(service: Arc<Service>, stream: TcpStream) {
    let answer = service_fn(move |request| {
        // Runs on its own task: like a thread of an ordinary service, it continues when its caller
        // closes the connection.
        let work = tokio::spawn(service.clone().answer(request));
        async move { work.await.unwrap_or(Err(HangUp)) }
    });
    // Errors are expected, since the service closes connections on purpose.
    drop(
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), answer)
            .await,
    );
}

struct Service {
    ledger: Mutex<Ledger>,
    seed: u64,
    faults: Vec<Option<Fault>>,
}

/// Closes the connection without a complete answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed on purpose")]
struct HangUp;

type Body = UnsyncBoxBody<Bytes, HangUp>;

/// The charge that a request asks for.
#[derive(serde::Deserialize)]
struct Wanted {
    order: String,
    amount_cents: u32,
    #[serde(default)]
    card: String,
    #[serde(skip)]
    key: Option<String>,
}

impl Service {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, HangUp> {
        if request.method() != Method::POST || request.uri().path() != PATH {
            return Ok(say_json(
                StatusCode::NOT_FOUND,
                format!(r#"{{"error":"POST {PATH} is all there is"}}"#),
            ));
        }
        let key = request
            .headers()
            .get("idempotency-key")
            .and_then(|key| key.to_str().ok())
            .map(str::to_owned);
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX)
            .collect()
            .await
            .map_err(|_| HangUp)?
            .to_bytes();
        match serde_json::from_slice::<Wanted>(&body) {
            Ok(wanted) => self.charge(Wanted { key, ..wanted }).await,
            Err(error) => Ok(say_json(
                StatusCode::BAD_REQUEST,
                serde_json::json!({ "error": error.to_string() }).to_string(),
            )),
        }
    }

    async fn charge(self: Arc<Self>, wanted: Wanted) -> Result<Response<Body>, HangUp> {
        tokio::time::sleep(Random::new(self.seed, &wanted.order).millis(20, 180)).await;
        if wanted.card == "declined" {
            return Ok(say_json(
                StatusCode::PAYMENT_REQUIRED,
                r#"{"error":"the bank declined the card"}"#.to_owned(),
            ));
        }
        let fault = plan::number(&wanted.order)
            .and_then(|number| self.faults.get(number).copied().flatten());
        match fault {
            Some(fault @ (Fault::Busy | Fault::RequestLost))
                if self.strikes(&wanted.order, fault).await? =>
            {
                fail_before(fault)
            }
            _ => self.charge_and_fail(wanted, fault).await,
        }
    }

    async fn strikes(self: &Arc<Self>, order: &str, fault: Fault) -> Result<bool, HangUp> {
        let order = order.to_owned();
        self.in_ledger(move |ledger| ledger.strike(&order, fault))
            .await
    }

    async fn charge_and_fail(
        self: &Arc<Self>,
        wanted: Wanted,
        fault: Option<Fault>,
    ) -> Result<Response<Body>, HangUp> {
        let (order, amount_cents) = (wanted.order.clone(), u64::from(wanted.amount_cents));
        let (id, strikes) = self
            .in_ledger(move |ledger| {
                let entry = Entry {
                    order: &wanted.order,
                    amount_cents,
                    key: wanted.key.as_deref(),
                };
                ledger.charge(&entry, fault)
            })
            .await?;
        let receipt = receipt(id, &order, amount_cents);
        match fault.filter(|_| strikes) {
            None => Ok(say_json(StatusCode::CREATED, receipt)),
            Some(fault) => fail_after(fault, receipt).await,
        }
    }

    /// If the ledger cannot be written, the connection is closed: a caller must not be told about a
    /// charge that was not made.
    async fn in_ledger<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Ledger) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, HangUp> {
        let service = self.clone();
        let worked = tokio::task::spawn_blocking(move || {
            work(
                &mut service
                    .ledger
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            )
        })
        .await;
        worked.map_err(|_| HangUp)?.map_err(|error| {
            eprintln!("hapax: the payments service cannot use its ledger: {error}");
            HangUp
        })
    }
}

fn fail_before(fault: Fault) -> Result<Response<Body>, HangUp> {
    say(STRUCK, fault.word());
    match fault {
        Fault::Busy => Ok(say_json(
            StatusCode::SERVICE_UNAVAILABLE,
            r#"{"error":"busy; nothing was charged"}"#.to_owned(),
        )),
        _ => Err(HangUp),
    }
}

async fn fail_after(fault: Fault, receipt: String) -> Result<Response<Body>, HangUp> {
    say(STRUCK, fault.word());
    match fault {
        Fault::Stalled => {
            tokio::time::sleep(STALL).await;
            Ok(say_json(StatusCode::CREATED, receipt))
        }
        Fault::Crashed => Ok(say_json(
            StatusCode::INTERNAL_SERVER_ERROR,
            r#"{"error":"internal server error"}"#.to_owned(),
        )),
        Fault::Truncated => Ok(half_of(receipt)),
        Fault::Died => die(),
        _ => Err(HangUp),
    }
}

/// Dies as by `kill -9`: nothing is flushed or closed, and no core is dumped.
fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

/// The body of the answer to a charge.
pub(crate) fn receipt(id: i64, order: &str, amount_cents: u64) -> String {
    serde_json::json!({ "charge": format!("ch_{id}"), "order": order, "amount_cents": amount_cents }).to_string()
}

fn say_json(status: StatusCode, body: String) -> Response<Body> {
    let body = Full::from(body).map_err(|never| match never {});
    with_head(status, UnsyncBoxBody::new(body))
}

/// Announces the full length and sends half.
fn half_of(body: String) -> Response<Body> {
    let promised = body.len();
    let half = Bytes::from(body).slice(..promised / 2);
    let (sender, broken) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let _ = sender.send(Ok(Frame::data(half))).await;
        tokio::time::sleep(HALF_WAY).await;
        let _ = sender.send(Err(HangUp)).await;
    });
    let mut response = with_head(StatusCode::CREATED, UnsyncBoxBody::new(Half(broken)));
    response
        .headers_mut()
        .insert(http::header::CONTENT_LENGTH, promised.into());
    response
}

fn with_head(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    response
}

/// A body whose frames come from a task.
struct Half(tokio::sync::mpsc::Receiver<Result<Frame<Bytes>, HangUp>>);

impl http_body::Body for Half {
    type Data = Bytes;
    type Error = HangUp;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, HangUp>>> {
        self.0.poll_recv(context)
    }
}

fn say(what: &str, more: &str) {
    // Errors are ignored: the reader is gone, so standard input ends too.
    let _ = writeln!(std::io::stdout(), "{what}{more}");
}
