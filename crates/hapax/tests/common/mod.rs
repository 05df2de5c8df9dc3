//! Shared by the tests of the layer: small services that keep their own ledger, and requests.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test binary uses a part of this"
)]

pub mod lines;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hapax::{Body, Hapax, Idempotency, Policy, Principal, Store};
use hapax_core::{Memory, Secret};
use hapax_testkit::{Faulty, ManualClock};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};

/// The error of a handler. It wraps its cause, as the errors of most services do.
#[derive(Debug)]
pub struct Broken(pub Box<dyn std::error::Error + Send + Sync>);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the handler broke")
    }
}

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// A guarded handler.
pub type Guarded = Idempotency<BoxCloneSyncService<Request<Body>, Response<Body>, Broken>>;

/// The effects, counted by the service itself and never by Hapax.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<String>>>);

impl Ledger {
    pub fn add(&self, line: impl Into<String>) -> usize {
        let mut lines = self.0.lock().unwrap();
        lines.push(line.into());
        lines.len()
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A store in memory with a manual clock and scripted faults.
pub fn faulty() -> (Arc<Faulty>, ManualClock) {
    let clock = ManualClock::new();
    let memory = Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
    (Arc::new(Faulty::new(Arc::new(memory))), clock)
}

/// A Hapax without a background sweep.
pub fn quiet(store: Arc<dyn Store>) -> Hapax {
    Hapax::builder_shared(store).sweep(None).build()
}

/// Opens a store file that this process has just dropped. Retries while a task of the old store
/// still holds the file.
#[cfg(feature = "sqlite")]
pub async fn open_when_free(path: &std::path::Path) -> hapax::Sqlite {
    loop {
        match hapax::Sqlite::open(path).await {
            Err(hapax::store::sqlite::OpenError::Owned { .. }) => tokio::task::yield_now().await,
            opened => return opened.unwrap(),
        }
    }
}

/// A response with its whole body.
#[derive(Clone, Debug, PartialEq)]
pub struct Got {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl Got {
    pub async fn read<B>(response: Response<B>) -> Got
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        let collected = body.collect().await.unwrap();
        let trailers = collected.trailers().cloned();
        Got {
            status: parts.status,
            headers: parts.headers,
            body: collected.to_bytes(),
            trailers,
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The slug of a problem; panics if the response is not a problem.
    #[track_caller]
    pub fn problem(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let text = std::str::from_utf8(&self.body).unwrap();
        let code = text
            .split("\"code\":\"")
            .nth(1)
            .unwrap_or_else(|| panic!("no code in {text}"));
        code.split('"').next().unwrap().to_owned()
    }
}

pub fn post(path: &str, key: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("idempotency-key", key)
        .body(Full::new(body.into()))
        .unwrap()
}

/// Sends a request through a service, without a port.
pub async fn send<S, B, RB>(service: &S, request: Request<B>) -> Got
where
    S: Service<Request<B>, Response = Response<RB>> + Clone,
    S::Error: std::fmt::Debug,
    RB: http_body::Body<Data = Bytes>,
    RB::Error: std::fmt::Debug,
{
    Got::read(service.clone().oneshot(request).await.unwrap()).await
}

/// Sends a request in its own task.
pub fn spawn(service: &Guarded, request: Request<Full<Bytes>>) -> JoinHandle<Got> {
    let call = service.clone().oneshot(request);
    tokio::spawn(async move { Got::read(call.await.unwrap()).await })
}

/// The same request, with `Prefer: wait`.
pub fn ready_to_wait(mut request: Request<Full<Bytes>>, seconds: u64) -> Request<Full<Bytes>> {
    request.headers_mut().insert(
        "prefer",
        HeaderValue::try_from(format!("wait={seconds}")).unwrap(),
    );
    request
}

/// The same request, sent by `user`.
pub fn by(mut request: Request<Full<Bytes>>, user: &str) -> Request<Full<Bytes>> {
    request
        .headers_mut()
        .insert("x-user", HeaderValue::try_from(user).unwrap());
    request
}

/// The same policy, with retry advice in every dialect, so that tests see all of it.
pub fn with_dialects(policy: Policy) -> Policy {
    Policy {
        retry_dialects: true,
        ..policy
    }
}

/// Puts the layer around a handler. The field `x-user` names the principal, as if a trusted proxy
/// had set it.
pub fn guard<F, Fut>(hapax: &Hapax, policy: Policy, handler: F) -> Guarded
where
    F: Fn(Request<Body>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Response<Body>, Broken>> + Send + 'static,
{
    let policy = with_dialects(policy);
    let layer = hapax
        .guard()
        .policy(policy)
        .principal(|parts| {
            let user = parts
                .headers
                .get("x-user")
                .map(|user| user.to_str().unwrap());
            Some(user.map_or(Principal::Anonymous, Principal::named))
        })
        .build()
        .unwrap();
    layer.layer(BoxCloneSyncService::new(service_fn(handler)))
}

/// A service that charges: each run adds a line to its ledger and answers with that line's number.
pub fn charges(hapax: &Hapax, policy: Policy) -> (Guarded, Ledger) {
    let ledger = Ledger::default();
    let service = guard(hapax, policy, {
        let ledger = ledger.clone();
        move |request: Request<Body>| {
            let ledger = ledger.clone();
            async move {
                let body = request
                    .into_body()
                    .collect()
                    .await
                    .map_err(Broken)?
                    .to_bytes();
                Ok(charged(ledger.add(String::from_utf8_lossy(&body))))
            }
        }
    });
    (service, ledger)
}

/// An answer that contains each kind of field that a replay treats specially.
pub fn charged(number: usize) -> Response<Body> {
    Response::builder()
        .status(201)
        .header("content-type", "application/json")
        .header("link", "<a>")
        .header("x-other", "1")
        .header("link", "<b>")
        .header("set-cookie", "session=first-caller")
        .header("date", "Mon, 01 Jan 2029 00:00:00 GMT")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("idempotent-replayed", "true")
        .body(Body::from(format!("{{\"charge\":{number}}}")))
        .unwrap()
}

/// A place where a handler reports its arrival and waits for permission to go on.
#[derive(Clone)]
pub struct Gate {
    arrived: Arc<watch::Sender<usize>>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub fn new() -> Self {
        Gate {
            arrived: Arc::new(watch::Sender::new(0)),
            open: Arc::new(Semaphore::new(0)),
        }
    }

    pub async fn pass(&self) {
        self.arrived.send_modify(|count| *count += 1);
        self.open.acquire().await.unwrap().forget();
    }

    pub async fn wait_for(&self, count: usize) {
        self.arrived
            .subscribe()
            .wait_for(|arrived| *arrived >= count)
            .await
            .unwrap();
    }

    pub fn open(&self, count: usize) {
        self.open.add_permits(count);
    }
}

/// A service that waits at the gate between its effect and its answer.
pub fn gated(hapax: &Hapax, policy: Policy, status: u16) -> (Guarded, Ledger, Gate) {
    let (ledger, gate) = (Ledger::default(), Gate::new());
    let service = guard(hapax, policy, {
        let (ledger, gate) = (ledger.clone(), gate.clone());
        move |_| {
            let (ledger, gate) = (ledger.clone(), gate.clone());
            async move {
                let number = ledger.add("effect");
                gate.pass().await;
                let mut response = charged(number);
                *response.status_mut() = status.try_into().unwrap();
                Ok(response)
            }
        }
    });
    (service, ledger, gate)
}
