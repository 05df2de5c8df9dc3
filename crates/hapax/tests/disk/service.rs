//! The child: charges on SQLite, with a ledger in another place. Requests and answers are lines, so
//! that a recording of its system calls shows when each answer left the process.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post;
use hapax::store::sqlite::OpenError;
use hapax::{Hapax, Limits, Operation, Policy, Sqlite};
use hapax_testkit::crash::{Ledger, announce, hear};
use http_body_util::BodyExt;
use tower::ServiceExt;

/// Only a broken store holds its file this long after it was dropped.
const REOPEN_MAX: Duration = Duration::from_secs(20);

/// One request.
#[derive(Clone, Debug)]
pub struct Order {
    pub key: String,
    /// The size of the answer to return.
    pub answer_bytes: usize,
    /// How long the request waits for another attempt of its key.
    pub wait_s: u64,
}

/// The parts of an answer that a caller sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub is_replay: bool,
    /// For a charge, the length and digest of its body; for a rejection, its code.
    pub content: String,
}

impl Answer {
    pub fn is_unknown(&self) -> bool {
        self.status == 409 && self.content == "outcome-unknown"
    }

    pub fn is_in_flight(&self) -> bool {
        self.status == 409 && self.content == "in-flight"
    }

    pub fn is_unavailable(&self) -> bool {
        self.status == 503 && self.content == "store-unavailable"
    }

    /// Reads what [`Answer::line`] wrote.
    pub fn parse(line: &str) -> Option<(String, Answer)> {
        let mut words = line.strip_prefix("answer ")?.split(' ');
        let (key, status, kind, content) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let answer = Answer {
            status: status.parse().ok()?,
            is_replay: kind == "replay",
            content: content.to_owned(),
        };
        Some((key.to_owned(), answer))
    }

    fn line(&self, key: &str) -> String {
        let kind = if self.is_replay { "replay" } else { "first" };
        format!("answer {key} {} {kind} {}", self.status, self.content)
    }
}

/// Stands for a body that is too long to print.
pub fn digest(body: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("{}:{:016x}", body.len(), hasher.finish())
}

/// The service itself.
pub struct Shop {
    hapax: Hapax,
    router: Router,
}

impl Shop {
    pub async fn open(
        store: &Path,
        ledger: Arc<Ledger>,
        store_timeout: Duration,
    ) -> Result<Shop, OpenError> {
        Ok(Shop::on(Sqlite::open(store).await?, ledger, store_timeout))
    }

    pub fn on(store: Sqlite, ledger: Arc<Ledger>, store_timeout: Duration) -> Shop {
        // No cache, so that every replay comes from the file; no sweep, so that only requests write
        // to the file.
        let limits = Limits {
            cache_bytes_max: 0,
            ..Limits::default()
        };
        let hapax = Hapax::builder(store).limits(limits).sweep(None).build();
        let policy = Policy {
            store_timeout,
            ..Policy::default()
        };
        let layer = hapax.guard().policy(policy).anonymous().build().unwrap();
        let router = Router::new()
            .route("/charges", post(charge).layer(layer))
            .with_state(ledger);
        Shop { hapax, router }
    }

    pub fn hapax(&self) -> &Hapax {
        &self.hapax
    }

    /// Sends a request within this process.
    pub async fn send(&self, order: &Order) -> Answer {
        send(self.router.clone(), order).await
    }

    /// Drains, and then drops the store so that its file is released.
    async fn close(self) {
        self.hapax.drain(REOPEN_MAX).await;
    }
}

async fn send(router: Router, order: &Order) -> Answer {
    let request = Request::post("/charges")
        .header("idempotency-key", &order.key)
        .header("x-answer-bytes", order.answer_bytes)
        .header("prefer", format!("wait={}", order.wait_s))
        .body(axum::body::Body::from("charge"))
        .unwrap();
    let response = router.oneshot(request).await.unwrap();
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let is_problem = response
        .headers()
        .get("content-type")
        .is_some_and(|kind| kind == "application/problem+json");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let content = if is_problem {
        code(&body)
    } else {
        digest(&body)
    };
    Answer {
        status,
        is_replay,
        content,
    }
}

fn code(problem: &[u8]) -> String {
    let problem = String::from_utf8_lossy(problem);
    let code = problem
        .split_once("\"code\":\"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(code, _)| code);
    code.unwrap_or_else(|| panic!("a problem without a code: {problem}"))
        .to_owned()
}

async fn charge(
    State(ledger): State<Arc<Ledger>>,
    operation: Operation,
    headers: HeaderMap,
) -> (StatusCode, String) {
    ledger.append(operation.key().as_str());
    let bytes: usize = headers["x-answer-bytes"].to_str().unwrap().parse().unwrap();
    // Differs in every page, so that no part of one answer can pass for a part of another.
    let line = format!(
        "{} charged by {};",
        operation.key().as_str(),
        operation.fence()
    );
    (
        StatusCode::CREATED,
        line.chars().cycle().take(bytes).collect(),
    )
}

/// The child process: serves until its parent kills it or exits.
pub fn serve() {
    let path = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let (store, ledger) = (
        path("HAPAX_TEST_STORE"),
        Arc::new(Ledger::open(path("HAPAX_TEST_LEDGER"))),
    );
    let store_timeout = Duration::from_millis(
        std::env::var("HAPAX_TEST_STORE_TIMEOUT_MS")
            .unwrap()
            .parse()
            .unwrap(),
    );
    // With one worker, a thread's name identifies its role on every machine.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut shop = None;
    announce("stands by");
    while let Some(order) = hear() {
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["open"] => {
                shop = runtime.block_on(reopen(shop.take(), &store, &ledger, store_timeout));
            }
            ["send", key, answer_bytes, wait_s] => {
                let (answer_bytes, wait_s) =
                    (answer_bytes.parse().unwrap(), wait_s.parse().unwrap());
                let order = Order {
                    key: key.to_owned(),
                    answer_bytes,
                    wait_s,
                };
                let router = shop.as_ref().expect("opened before").router.clone();
                runtime.spawn(async move { announce(send(router, &order).await.line(&order.key)) });
            }
            _ => panic!("no such order: {order:?}"),
        }
    }
}

/// Closes the store if it is open, opens it, and announces the result.
async fn reopen(
    shop: Option<Shop>,
    store: &Path,
    ledger: &Arc<Ledger>,
    store_timeout: Duration,
) -> Option<Shop> {
    if let Some(shop) = shop {
        shop.close().await;
    }
    let deadline = Instant::now() + REOPEN_MAX;
    loop {
        match Shop::open(store, ledger.clone(), store_timeout).await {
            // The closed store is still releasing its file.
            Err(OpenError::Owned { .. }) if Instant::now() < deadline => {
                tokio::task::yield_now().await;
            }
            Err(error) => {
                announce(format!("open failed: {error:?}"));
                return None;
            }
            Ok(shop) => {
                announce("open done");
                return Some(shop);
            }
        }
    }
}
