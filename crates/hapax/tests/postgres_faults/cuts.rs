//! Connections that are cut after every possible number of reply bytes, or that swallow everything,
//! through a scripted proxy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::{Event, Rejection};
use hapax_testkit::servers::FaultProxy;

use super::shop::{Books, Load, Shop};
use super::watched::{Sight, Watched};
use super::world::{Server, open, open_through, prepared};

/// The number of concurrent tasks that go through the offsets, each with its own store and proxy.
const LANES: u64 = 4;
/// More bytes than the reply to a claim or to an end can have.
const REPLY_BYTES_MAX: u64 = 8 * 1024;
/// What the network does to all data: it is lost, or arrives late, after its senders have closed
/// their connections.
const FAULTS: [fn(&FaultProxy, bool); 4] = [
    FaultProxy::blackhole,
    FaultProxy::stall,
    FaultProxy::blackhole,
    FaultProxy::stall,
];
const CALLERS: usize = 8;
/// The store gives up after two seconds, and so does the request for the store info. The rest
/// allows for a slow machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);

/// The step of an attempt whose reply is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Claim,
    End,
}

/// A node behind a proxy that cuts the reply to a step on request.
struct Node {
    proxy: Arc<FaultProxy>,
    shop: Shop,
    sight: Arc<Sight>,
    cut: tokio::sync::watch::Sender<Option<(Step, u64)>>,
}

impl Node {
    async fn start(server: &Server, url: &str, books: &Arc<Books>) -> Node {
        let proxy = Arc::new(FaultProxy::in_front_of(server.address()).await);
        let (store, sight) = Watched::new(open_through(proxy.address(), url).await);
        let cut = tokio::sync::watch::Sender::new(None);
        let (armed, wanted) = (proxy.clone(), cut.subscribe());
        let observer = move |event: &Event<'_>| {
            let step = match event {
                Event::Claiming(_) => Step::Claim,
                Event::Finishing { .. } => Step::End,
                _ => return,
            };
            // The next statement is that of this step, because nothing else runs on this node.
            if let Some((wanted, bytes)) = *wanted.borrow()
                && wanted == step
            {
                armed.cut_next_statement_after(bytes);
            }
        };
        let shop = Shop::told(store, books, observer);
        // The first claim is preceded by a statement that stores its fingerprint's policy.
        shop.charge(&format!("first-{}", proxy.address().port()))
            .await;
        Node {
            proxy,
            shop,
            sight,
            cut,
        }
    }

    /// Charges a key, and cuts the reply to one of its steps after `bytes` bytes. Returns whether
    /// the reply was that long.
    async fn charge_and_cut(&self, step: Step, bytes: u64) -> bool {
        self.cut.send_replace(Some((step, bytes)));
        let faults = self.proxy.faults();
        self.shop.charge(&format!("{step:?}-{bytes}")).await;
        self.cut.send_replace(None);
        self.proxy.faults() > faults
    }
}

/// Tries every `LANES`th number of bytes from `first` on, until the reply is shorter. Returns how
/// many cuts there were.
async fn cut_all(node: Node, step: Step, first: u64) -> (u64, Arc<Sight>) {
    for (cuts, bytes) in (0..).zip((first..REPLY_BYTES_MAX).step_by(LANES as usize)) {
        if !node.charge_and_cut(step, bytes).await {
            return (cuts, node.sight);
        }
    }
    panic!("a reply to {step:?} has more than {REPLY_BYTES_MAX} bytes");
}

/// Cuts the reply to this step after every number of its bytes.
async fn every_byte(step: Step) {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let books = Arc::new(Books::default());
    let mut lanes = Vec::new();
    for first in 0..LANES {
        let node = Node::start(server, &url, &books).await;
        lanes.push(tokio::spawn(cut_all(node, step, first)));
    }
    let (mut cuts, mut sights) = (0, Vec::new());
    for lane in lanes {
        let (lane_cuts, sight) = lane.await.unwrap();
        cuts += lane_cuts;
        sights.push(sight);
    }
    let charges = books.judge();
    books.replay_all(Arc::new(open(&url).await)).await;
    let sum = |of: fn(&Sight) -> u64| sights.iter().map(|sight| of(sight)).sum::<u64>();
    let (adopted, before) = (sum(Sight::adopted), sum(Sight::written_before));
    hapax_testkit::report!(
        "replies to {step:?} cut after each of {cuts} numbers of bytes: {charges} charges, {adopted} claims adopted, {before} ends found written, \
         {} writes failed; the longest request took {:?}",
        sum(Sight::failed),
        books.longest(),
    );
    assert!(cuts > 100, "void: a reply has more than {cuts} bytes");
    assert!(
        sum(Sight::failed) >= cuts,
        "every cut is a write that failed"
    );
    // The server commits before it replies: each of these writes was done, and its caller had to
    // find out. A reply that arrived completely may still be lost with its connection.
    let (found, other) = if step == Step::Claim {
        (adopted, before)
    } else {
        (before, adopted)
    };
    assert!(
        (cuts..=cuts + LANES).contains(&found),
        "{found} were found to have been done, after {cuts} cuts"
    );
    assert_eq!(other, 0);
    assert!(
        books.longest() < ANSWERED_WITHIN,
        "a request took {:?}",
        books.longest()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_reply_is_cut_anywhere_is_adopted_by_its_token() {
    every_byte(Step::Claim).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_whose_reply_is_cut_anywhere_is_found_written() {
    every_byte(Step::End).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_or_delays_everything_is_an_answer_in_time_and_costs_no_second_effect()
 {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let proxy = FaultProxy::in_front_of(server.address()).await;
    let books = Arc::new(Books::default());
    let (store, sight) = Watched::new(open_through(proxy.address(), &url).await);
    let shop = Shop::on(store.clone(), &books);
    let load = Load::start("key", std::slice::from_ref(&shop), CALLERS);
    for (round, fault) in FAULTS.iter().enumerate() {
        books.more(CALLERS * 4).await;
        while sight.claims_in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        sight.fault();
        fault(&proxy, true);
        // A new caller gets an answer in time that the store is unavailable.
        let begun = Instant::now();
        let told = shop.send(&format!("swallowed-{round}")).await;
        assert_eq!(told, Err(Rejection::StoreUnavailable));
        assert!(
            begun.elapsed() < ANSWERED_WITHIN,
            "told after {:?}",
            begun.elapsed()
        );
        fault(&proxy, false);
    }
    books.more(CALLERS * 4).await;
    load.end().await;
    for round in 0..FAULTS.len() {
        shop.charge(&format!("swallowed-{round}")).await;
    }
    let charges = books.judge();
    books.replay_all(Arc::new(open(&url).await)).await;
    hapax_testkit::report!(
        "a silent network: {} times, with {} statements in flight; {} writes struck; {charges} charges, {} answers of 503 or 409, {} claims adopted; \
         the longest request took {:?}, the longest write {:?}",
        FAULTS.len(),
        proxy.faults(),
        sight.struck(),
        books.unavailable(),
        sight.adopted(),
        books.longest(),
        sight.slowest(),
    );
    assert!(
        proxy.faults() > 0 && sight.struck() > 0,
        "void: no statement was in flight"
    );
    assert!(
        books.longest() < ANSWERED_WITHIN,
        "a request took {:?}",
        books.longest()
    );
}
