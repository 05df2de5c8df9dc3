//! Buffered request bodies have a budget: in memory and on disk, in total and for each peer.

mod common;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use common::{Gate, Got, Guarded, Ledger, faulty, spawn};
use hapax::core::store::ListQuery;
use hapax::{BodyUsage, Hapax, Limits, Peer, Policy};
use hapax_testkit::Faulty;
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};

const KIB: usize = 1 << 10;

/// A Hapax with small limits, a service that counts and waits at a gate, and the store they use.
struct World {
    hapax: Hapax,
    store: Arc<Faulty>,
    service: Guarded,
    ledger: Ledger,
    gate: Gate,
}

impl World {
    fn new(limits: Limits, spill_directory: Option<&Path>) -> World {
        let (store, _) = faulty();
        let mut builder = Hapax::builder_shared(store.clone())
            .sweep(None)
            .limits(limits);
        if let Some(directory) = spill_directory {
            builder = builder.spill_directory(directory);
        }
        let hapax = builder.build();
        let (ledger, gate) = (Ledger::default(), Gate::new());
        let (counting, waiting) = (ledger.clone(), gate.clone());
        let inner = service_fn(move |request: Request<hapax::Body>| {
            let (ledger, gate) = (counting.clone(), waiting.clone());
            async move {
                let path = request.uri().path().to_owned();
                let waits = path == "/wait";
                // The service drops the body only when it is done.
                let body = request
                    .into_body()
                    .collect()
                    .await
                    .map_err(common::Broken)?
                    .to_bytes();
                ledger.add(format!("{} bytes", body.len()));
                if waits {
                    gate.pass().await;
                }
                drop(body);
                let answer = match path.as_str() {
                    "/large" => vec![b'a'; 100 * KIB],
                    "/huge" => vec![b'a'; 300 * KIB],
                    _ => b"done".to_vec(),
                };
                let mut response = Response::new(hapax::Body::from(answer));
                *response.status_mut() = StatusCode::CREATED;
                Ok::<_, common::Broken>(response)
            }
        });
        let policy = Policy {
            body_memory_bytes_max: 64 * KIB,
            body_bytes_max: 1 << 20,
            ..Policy::default()
        };
        let layer = hapax
            .guard()
            .policy(common::with_dialects(policy))
            .anonymous()
            .build()
            .unwrap();
        let service = layer.layer(tower::util::BoxCloneSyncService::new(inner));
        World {
            hapax,
            store,
            service,
            ledger,
            gate,
        }
    }

    fn usage(&self) -> BodyUsage {
        self.hapax.body_budget().usage()
    }

    async fn records(&self) -> usize {
        self.hapax
            .list(ListQuery {
                state: None,
                after: None,
                limit: 100,
            })
            .await
            .unwrap()
            .len()
    }

    /// Waits until the body usage is as expected.
    async fn until_usage(&self, expected: BodyUsage) {
        let reached = async {
            while self.usage() != expected {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(20), reached).await;
        assert!(waited.is_ok(), "{:?} and not {expected:?}", self.usage());
    }
}

fn limits(memory: usize, disk: usize) -> Limits {
    Limits {
        buffered_memory_bytes_max: 4 * memory as u64,
        buffered_memory_bytes_per_peer_max: memory as u64,
        buffered_disk_bytes_max: 4 * disk as u64,
        buffered_disk_bytes_per_peer_max: disk as u64,
        ..Limits::default()
    }
}

fn peer(last: u8) -> Peer {
    Peer::new([10, 0, 0, last].into())
}

/// A request from the peer whose address ends in `last`.
fn from<B>(last: u8, path: &str, key: &str, body: B) -> Request<B> {
    Request::post(path)
        .header("idempotency-key", key)
        .extension(peer(last))
        .body(body)
        .unwrap()
}

fn whole(bytes: usize) -> Full<Bytes> {
    Full::from(vec![b'x'; bytes])
}

/// A body whose frames the test sends, and which counts how often it is polled for more.
struct Slow {
    frames: mpsc::UnboundedReceiver<Bytes>,
    declared: Option<u64>,
    asked: Arc<AtomicUsize>,
}

fn slow(declared: Option<usize>) -> (mpsc::UnboundedSender<Bytes>, Slow, Arc<AtomicUsize>) {
    let (sender, frames) = mpsc::unbounded_channel();
    let asked = Arc::new(AtomicUsize::new(0));
    (
        sender,
        Slow {
            frames,
            declared: declared.map(|bytes| bytes as u64),
            asked: asked.clone(),
        },
        asked,
    )
}

impl http_body::Body for Slow {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.frames
            .poll_recv(cx)
            .map(|data| data.map(|data| Ok(Frame::data(data))))
    }

    fn size_hint(&self) -> SizeHint {
        self.declared
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

async fn send<B>(world: &World, request: Request<B>) -> Got
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    Got::read(world.service.clone().oneshot(request).await.unwrap()).await
}

#[tokio::test]
async fn a_body_without_room_is_refused_before_it_is_read_and_leaves_no_record() {
    let world = World::new(limits(64 * KIB, 1 << 20), None);
    let (_sender, held, _) = slow(Some(60 * KIB));
    let first = tokio::spawn(world.service.clone().oneshot(from(1, "/do", "held", held)));
    world
        .until_usage(BodyUsage {
            memory_bytes: 60 * KIB as u64,
            disk_bytes: 0,
        })
        .await;

    let (_sender, refused, asked) = slow(Some(5 * KIB));
    let got = send(&world, from(1, "/do", "refused", refused)).await;
    assert_eq!(
        (got.status.as_u16(), got.problem().as_str()),
        (503, "buffer-full")
    );
    assert_eq!(
        (got.header("retry-after"), got.header("x-should-retry")),
        (Some("1"), Some("true"))
    );
    assert_eq!(
        asked.load(Ordering::SeqCst),
        0,
        "not a byte of it was asked for"
    );
    assert_eq!((world.records().await, world.ledger.len()), (0, 0));

    // A small body fits, and another peer's budget is unaffected.
    assert_eq!(
        send(&world, from(1, "/do", "small", whole(4 * KIB)))
            .await
            .status,
        201
    );
    assert_eq!(
        send(&world, from(2, "/do", "other", whole(60 * KIB)))
            .await
            .status,
        201
    );
    // The key of the refused request can still be used.
    first.abort();
    world.until_usage(BodyUsage::default()).await;
    assert_eq!(
        send(&world, from(1, "/do", "refused", whole(5 * KIB)))
            .await
            .status,
        201
    );
}

#[tokio::test]
async fn a_body_of_unknown_length_reserves_as_it_comes() {
    let world = World::new(limits(64 * KIB, 128 * KIB), None);
    let (sender, body, _) = slow(None);
    let sending = tokio::spawn(world.service.clone().oneshot(from(1, "/do", "k", body)));
    sender.send(vec![b'x'; KIB].into()).unwrap();
    world
        .until_usage(BodyUsage {
            memory_bytes: KIB as u64,
            disk_bytes: 0,
        })
        .await;
    sender.send(vec![b'x'; 63 * KIB].into()).unwrap();
    world
        .until_usage(BodyUsage {
            memory_bytes: 64 * KIB as u64,
            disk_bytes: 0,
        })
        .await;
    // A body above the memory limit spills to a file; one chunk stays in memory.
    sender.send(vec![b'x'; KIB].into()).unwrap();
    world
        .until_usage(BodyUsage {
            memory_bytes: 64 * KIB as u64,
            disk_bytes: 65 * KIB as u64,
        })
        .await;
    sender.send(vec![b'x'; 64 * KIB].into()).unwrap();
    let got = Got::read(sending.await.unwrap().unwrap()).await;
    assert_eq!(
        (got.status.as_u16(), got.problem().as_str()),
        (413, "body-too-large"),
        "it could never fit the peer's share"
    );
    world.until_usage(BodyUsage::default()).await;
    assert_eq!((world.records().await, world.ledger.len()), (0, 0));
}

#[tokio::test]
async fn one_peer_fills_its_share_of_the_disk_and_others_have_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new(limits(256 * KIB, 200 * KIB), Some(directory.path()));
    let (sender, body, _) = slow(Some(150 * KIB));
    let held = tokio::spawn(world.service.clone().oneshot(from(1, "/do", "held", body)));
    sender.send(vec![b'x'; 70 * KIB].into()).unwrap();
    world
        .until_usage(BodyUsage {
            memory_bytes: 64 * KIB as u64,
            disk_bytes: 150 * KIB as u64,
        })
        .await;
    let got = send(&world, from(1, "/do", "refused", whole(100 * KIB))).await;
    assert_eq!(
        (got.status.as_u16(), got.problem().as_str()),
        (503, "buffer-full")
    );
    assert_eq!(
        send(&world, from(2, "/do", "other", whole(100 * KIB)))
            .await
            .status,
        201
    );
    assert!(
        spilled_into(directory.path()),
        "the file is where it was told to be"
    );
    held.abort();
    world.until_usage(BodyUsage::default()).await;
    assert!(!spilled_into(directory.path()), "nothing is left");
}

/// Whether this process has a file open in a directory. The file is unlinked, so that listing the
/// directory would not show it.
fn spilled_into(directory: &Path) -> bool {
    let files = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    files.into_iter().any(|file| file.starts_with(directory))
}

#[tokio::test]
async fn a_body_keeps_its_room_until_its_attempt_ends_also_when_the_caller_has_gone() {
    for (bytes, memory, disk) in [(10 * KIB, 10 * KIB, 0), (100 * KIB, 64 * KIB, 100 * KIB)] {
        let world = World::new(limits(1 << 20, 1 << 20), None);
        let held = BodyUsage {
            memory_bytes: memory as u64,
            disk_bytes: disk as u64,
        };
        let caller = tokio::spawn(world.service.clone().oneshot(from(
            1,
            "/wait",
            "k",
            whole(bytes),
        )));
        world.gate.wait_for(1).await;
        caller.abort();
        let _ = caller.await;
        assert_eq!(
            world.usage(),
            held,
            "the attempt goes on, and the body with it"
        );
        world.gate.open(1);
        world.until_usage(BodyUsage::default()).await;
        assert_eq!(world.ledger.lines(), [format!("{bytes} bytes")]);
    }
}

#[tokio::test]
async fn a_spill_directory_that_takes_nothing_refuses_large_bodies_alone() {
    let directory = tempfile::tempdir().unwrap();
    let gone = directory.path().join("gone");
    let world = World::new(Limits::default(), Some(&gone));
    assert!(world.hapax.body_budget().check_directory().is_err());
    let got = send(&world, from(1, "/do", "large", whole(100 * KIB))).await;
    assert_eq!(
        (got.status.as_u16(), got.problem().as_str()),
        (503, "buffer-full")
    );
    assert_eq!(
        (world.records().await, world.ledger.len(), world.usage()),
        (0, 0, BodyUsage::default())
    );
    assert_eq!(
        send(&world, from(1, "/do", "small", whole(KIB)))
            .await
            .status,
        201
    );
    // Once the directory is back, the same request succeeds under the same key.
    std::fs::create_dir(&gone).unwrap();
    assert_eq!(
        send(&world, from(1, "/do", "large", whole(100 * KIB)))
            .await
            .status,
        201
    );
    assert_eq!(
        world.ledger.lines(),
        [format!("{KIB} bytes"), format!("{} bytes", 100 * KIB)]
    );
}

#[tokio::test]
async fn requests_without_a_peer_have_the_whole_budget() {
    let world = World::new(limits(64 * KIB, 1 << 20), None);
    let held: Vec<_> = (0..4)
        .map(|key| {
            spawn(
                &world.service,
                common::post("/wait", &key.to_string(), vec![0; 64 * KIB]),
            )
        })
        .collect();
    world.gate.wait_for(4).await;
    let refused = send(&world, common::post("/do", "refused", "x")).await;
    assert_eq!(refused.problem(), "buffer-full");
    world.gate.open(4);
    for caller in held {
        assert_eq!(caller.await.unwrap().status, 201);
    }
    world.until_usage(BodyUsage::default()).await;
    drop(world.store);
}

#[tokio::test]
async fn replays_that_nobody_takes_have_the_room_of_their_peer_and_no_more() {
    let world = World::new(limits(256 * KIB, 0), None);
    for path in ["/large", "/huge"] {
        assert_eq!(
            send(&world, from(1, path, path, whole(1))).await.status,
            StatusCode::CREATED
        );
    }
    let ask = |last, path: &'static str| {
        world
            .service
            .clone()
            .oneshot(from(last, path, path, whole(1)))
    };
    let (first, second) = (
        ask(1, "/large").await.unwrap(),
        ask(1, "/large").await.unwrap(),
    );
    assert_eq!(world.usage().memory_bytes, 200 * KIB as u64);
    let refused = send(&world, from(1, "/large", "/large", whole(1))).await;
    assert_eq!(
        (refused.status.as_u16(), refused.problem().as_str()),
        (503, "buffer-full")
    );
    assert_eq!(
        ask(2, "/large").await.unwrap().status(),
        StatusCode::CREATED,
        "another peer has its own"
    );

    drop(first);
    let again = send(&world, from(1, "/large", "/large", whole(1))).await;
    assert!(again.is_replay() && again.body.len() == 100 * KIB);
    drop((second, again));
    world.until_usage(BodyUsage::default()).await;
    // An answer larger than a peer's share can still be replayed.
    let huge = send(&world, from(1, "/huge", "/huge", whole(1))).await;
    assert!(huge.is_replay() && huge.body.len() == 300 * KIB);
    assert_eq!(world.ledger.len(), 2);
}
