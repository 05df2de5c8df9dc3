//! Each corner of the triangle is needed: the same storm without the key, without the outbox and
//! without the receipts, and with all three. docs/inbox.md has a picture of the result.
//!
//! Clients lose answers and send again. Services die between the commit and what they do next.
//! Consumers die between the commit and the acknowledgement. Orders, and what was shipped for each,
//! are counted in tables of the test's own, without a constraint.

mod picture;
mod place;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hapax_flow::consume::{
    Consumer, Delivery, Guarantee, NatsSource, NatsSourceOptions, PostgresDatabase,
    PostgresTransaction, Received, Retention, Source, Window,
};
use hapax_flow::outbox::PostgresOutbox;
use hapax_flow::publish::{Envelope, Nats, NatsOptions, Outage, Publisher, Reply, Verdict};
use hapax_flow::relay::{Options, Relay};
use hapax_testkit::random::Random;
use hapax_testkit::servers;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use self::place::{Shop, options};

const ORDERS: usize = 200;
/// Of four, one meets a fault.
const FAULTS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Corners {
    key: bool,
    outbox: bool,
    receipts: bool,
}

/// What went wrong, of [`ORDERS`] orders that clients wanted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Harm {
    placed_twice: usize,
    never_shipped: usize,
    shipped_twice: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_corner_keeps_out_what_the_others_let_through() {
    let Some(postgres) = servers::Postgres::shared() else {
        return;
    };
    let Some(nats) = servers::Nats::start("") else {
        return;
    };
    let all = Corners {
        key: true,
        outbox: true,
        receipts: true,
    };
    let mut harms = Vec::new();
    for (name, corners) in [
        ("all three", all),
        ("without key", Corners { key: false, ..all }),
        (
            "without outbox",
            Corners {
                outbox: false,
                ..all
            },
        ),
        (
            "without receipts",
            Corners {
                receipts: false,
                ..all
            },
        ),
    ] {
        let harm = storm(postgres, &nats, name, corners).await;
        hapax_testkit::report!("ablation: {name}: {harm:?}");
        harms.push((name, harm));
    }
    picture::draw(&harms);
    let harms: Vec<Harm> = harms.into_iter().map(|(_, harm)| harm).collect();
    let [none, no_key, no_outbox, no_receipts] = harms.try_into().expect("four storms");
    assert_eq!(none, Harm::default());
    assert!(
        no_key.placed_twice > 0 && no_key.never_shipped == 0,
        "{no_key:?}"
    );
    assert!(
        no_outbox.never_shipped > 0 && no_outbox.placed_twice == 0,
        "{no_outbox:?}"
    );
    assert!(
        no_receipts.shipped_twice > 0 && no_receipts.placed_twice == 0,
        "{no_receipts:?}"
    );
}

async fn storm(
    postgres: &servers::Postgres,
    nats: &servers::Nats,
    name: &str,
    corners: Corners,
) -> Harm {
    let subject = name.replace(' ', "-");
    place::stream(nats, &subject).await;
    let url = tokio::task::block_in_place(|| postgres.database());
    let shop = Shop::open(&url, &subject, corners.key).await;
    let stop = CancellationToken::new();
    let relay = tokio::spawn(relay(url.clone(), nats.url(), stop.clone()));
    let consumer = tokio::spawn(consume(
        url.clone(),
        nats.url(),
        subject,
        corners,
        stop.clone(),
    ));
    let publisher = Nats::new(NatsOptions::new([nats.url()])).expect("a URL");
    let mut random = Random::from_env(5);
    for order in 0..ORDERS {
        // A client that gets no answer sends again.
        while {
            let placed = shop.place(order, corners.outbox).await;
            // Without an outbox the service publishes after its commit, if it lives so long.
            let lives = random.below(FAULTS) > 0;
            if let (true, Some(message)) = (lives, placed.filter(|_| !corners.outbox)) {
                place::publish(&publisher, message).await;
            }
            !lives
        } {}
    }
    let harm = settle(&shop).await;
    stop.cancel();
    relay.await.expect("a relay does not panic");
    consumer.await.expect("a consumer does not panic");
    harm
}

async fn relay(url: String, nats: String, stop: CancellationToken) {
    let publisher = Forgetful {
        nats: Nats::new(NatsOptions::new([nats])).expect("a URL"),
        random: Mutex::new(Random::new(6)),
    };
    let relay = Relay::new(
        PostgresOutbox::new(options(&url)),
        publisher,
        Options::new("nats"),
    );
    relay.run(stop).await;
}

async fn consume(
    url: String,
    nats: String,
    subject: String,
    corners: Corners,
    stop: CancellationToken,
) {
    let mut options = NatsSourceOptions::new([nats], subject.to_uppercase(), "shipping");
    options.ack_wait = Duration::from_secs(1);
    let source = Dying {
        source: NatsSource::new(options).expect("options"),
        random: Random::new(7),
    };
    let guarantee = match corners.receipts {
        true => Guarantee::Once,
        false => Guarantee::AtLeastOnce,
    };
    let consumer = Consumer::new("shipping")
        .window(Window::Forever)
        .guarantee(guarantee)
        .batch_max(10)
        .source(source)
        .database(PostgresDatabase::new(place::options(&url)))
        .handle(async |batch: &[Received], tx: &mut PostgresTransaction| {
            for message in batch {
                let order = message.key.as_deref();
                tx.execute("INSERT INTO shipped (id) VALUES ($1)", &[&order])
                    .await?;
            }
            Ok(())
        });
    consumer.run(stop).await.expect("it starts");
}

/// Waits until nothing more is shipped, and counts.
async fn settle(shop: &Shop) -> Harm {
    let (mut last, mut since) = (usize::MAX, Instant::now());
    loop {
        let placed = shop
            .counts("SELECT id, count(*) FROM orders GROUP BY id")
            .await;
        let shipped = shop
            .counts("SELECT id, count(*) FROM shipped GROUP BY id")
            .await;
        let total = shipped.values().sum();
        if total != last {
            (last, since) = (total, Instant::now());
        }
        // Longer than the broker waits for an acknowledgement.
        if since.elapsed() > Duration::from_secs(3) {
            return harm(&placed, &shipped);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn harm(placed: &BTreeMap<String, usize>, shipped: &BTreeMap<String, usize>) -> Harm {
    // What one client wanted is `order-N`, and what was placed for it is `order-N/M`.
    let mut wanted: BTreeMap<&str, usize> = BTreeMap::new();
    for id in placed.keys() {
        let (order, _) = id.split_once('/').expect("both parts");
        *wanted.entry(order).or_default() += 1;
    }
    assert_eq!(wanted.len(), ORDERS, "every client was served");
    Harm {
        placed_twice: wanted.values().filter(|times| **times > 1).count(),
        never_shipped: placed
            .keys()
            .filter(|id| !shipped.contains_key(*id))
            .count(),
        shipped_twice: shipped.values().filter(|times| **times > 1).count(),
    }
}

/// A destination whose answer is lost now and then.
struct Forgetful {
    nats: Nats,
    random: Mutex<Random>,
}

impl Publisher for Forgetful {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(async move {
            let verdicts = self.nats.publish(batch).await?;
            match self.random.lock().await.below(FAULTS) {
                0 => Err(Outage::new("the answer is lost")),
                _ => Ok(verdicts),
            }
        })
    }
}

/// A member that dies now and then before it acknowledges.
struct Dying<S> {
    source: S,
    random: Random,
}

impl<S: Source> Source for Dying<S> {
    type Tag = S::Tag;

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery<S::Tag>>, Outage> {
        self.source.receive(max).await
    }

    async fn acknowledge(&mut self, tags: &[S::Tag]) -> Result<(), Outage> {
        match self.random.below(FAULTS) {
            // As for the broker when the member is gone.
            0 => self.source.give_back(tags).await,
            _ => self.source.acknowledge(tags).await,
        }
    }

    async fn give_back(&mut self, tags: &[S::Tag]) -> Result<(), Outage> {
        self.source.give_back(tags).await
    }

    async fn keep(&mut self, tags: &[S::Tag]) -> Result<(), Outage> {
        self.source.keep(tags).await
    }

    fn keep_every(&self) -> Option<Duration> {
        self.source.keep_every()
    }

    async fn retention(&mut self) -> Result<Retention, Outage> {
        self.source.retention().await
    }
}
