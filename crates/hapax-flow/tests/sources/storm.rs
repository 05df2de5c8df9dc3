//! A storm over a broker: each message is published one to ten times, out of order; three consumers
//! are killed at every step and stopped in the middle; the broker is killed. In the end each message
//! has had one effect, in a table of the test's own that would take more.
//!
//! A plain run is a sample. `HAPAX_CAMPAIGN=full` publishes 20,000 messages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hapax::BoxError;
use hapax::store::postgres::{ConnectOptions, schema};
use hapax_flow::consume::{
    Consumer, Delivery, PostgresDatabase, PostgresTransaction, Received, Retention, Source, Window,
};
use hapax_flow::publish::{Envelope, Outage};
use hapax_testkit::crash::{Child, announce, hear, role};
use hapax_testkit::random::Random;
use hapax_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

use super::broker::Mortal;
use super::messages::message;

const MEMBERS: usize = 3;
const KEYS: usize = 50;
/// How long what nobody keeps stays with a member that is stopped or dead.
pub(crate) const ACK_TIME: Duration = Duration::from_secs(1);
/// A storm fails when nothing changes for so long.
const STUCK: Duration = Duration::from_secs(60);

/// A broker that another process can reach.
pub(crate) trait Remote: Mortal {
    /// Tells another process where it is.
    fn envs(&self) -> Vec<(&'static str, String)>;

    /// A member in another process, which was told. Its ack time is [`ACK_TIME`].
    fn connect() -> Self::Source;
}

/// Makes the storm a test.
macro_rules! storm {
    ($broker:ty, $start:path, $path:literal) => {
        #[test]
        fn a_storm_of_kills_and_repeats_has_each_effect_once() {
            crate::storm::run::<$broker, _>($path, $start);
        }
    };
}
pub(crate) use storm;

/// Where a member ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Received,
    ReceiptWritten,
    EffectWritten,
    Committed,
    Acknowledged,
}

const STEPS: [Step; 5] = [
    Step::Received,
    Step::ReceiptWritten,
    Step::EffectWritten,
    Step::Committed,
    Step::Acknowledged,
];

/// When a member ends by itself: at a step, after so many passes of it.
struct Fate {
    step: Option<Step>,
    left: AtomicUsize,
}

impl Fate {
    fn from_env() -> Fate {
        let read = |name| std::env::var(name).ok()?.parse::<usize>().ok();
        Fate {
            step: read("STORM_STEP").and_then(|place| STEPS.get(place).copied()),
            left: AtomicUsize::new(read("STORM_AFTER").unwrap_or_default()),
        }
    }

    /// Ends this process, without another word to anybody, if it is time.
    fn pass(&self, step: Step) {
        if self.step == Some(step) && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            std::process::abort();
        }
    }
}

/// Ends this process at a step, if it is time.
pub(crate) fn pass(step: Step) {
    FATE.pass(step);
}

static FATE: std::sync::LazyLock<Fate> = std::sync::LazyLock::new(Fate::from_env);

/// A source whose member may end at any step.
struct Fated<S>(S);

impl<S: Source> Source for Fated<S> {
    type Tag = S::Tag;

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery<S::Tag>>, Outage> {
        let received = self.0.receive(max).await;
        if received.is_ok() {
            FATE.pass(Step::Received);
        }
        received
    }

    async fn acknowledge(&mut self, tags: &[S::Tag]) -> Result<(), Outage> {
        FATE.pass(Step::Committed);
        let acknowledged = self.0.acknowledge(tags).await;
        FATE.pass(Step::Acknowledged);
        acknowledged
    }

    async fn give_back(&mut self, tags: &[S::Tag]) -> Result<(), Outage> {
        self.0.give_back(tags).await
    }

    async fn keep(&mut self, tags: &[S::Tag]) -> Result<(), Outage> {
        self.0.keep(tags).await
    }

    fn keep_every(&self) -> Option<Duration> {
        self.0.keep_every()
    }

    async fn retention(&mut self) -> Result<Retention, Outage> {
        self.0.retention().await
    }

    async fn lag(&mut self) -> Result<Option<u64>, Outage> {
        self.0.lag().await
    }
}

pub(crate) fn run<B, F>(test: &str, start: impl FnOnce() -> F)
where
    B: Remote,
    F: Future<Output = Option<B>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    if role().is_some() {
        return runtime.block_on(member(B::connect()));
    }
    let Some(postgres) = Postgres::in_memory(&[]) else {
        return;
    };
    runtime.block_on(async {
        if let Some(broker) = start().await {
            storm_over(test, &postgres, broker).await;
        }
    });
}

/// The child: a consumer, until its parent tells it to stop or ends.
async fn member(source: impl Source) {
    let url = std::env::var("STORM_DATABASE").expect("the parent says where");
    let consumer = Consumer::new("storm")
        .window(Window::Forever)
        .batch_max(20)
        .source(Fated(source))
        .database(PostgresDatabase::new(
            ConnectOptions::parse(&url).expect("a URL"),
        ))
        .handle(write_effects);
    let progress = consumer.progress();
    consumer.run(told_to_stop()).await.expect("it starts");
    announce(format!("duplicates {}", progress.counts().duplicates));
}

/// Is cancelled when the parent says so. When the parent ends, so does this process.
pub(crate) fn told_to_stop() -> CancellationToken {
    let stop = CancellationToken::new();
    std::thread::spawn({
        let stop = stop.clone();
        move || match hear() {
            Some(_) => stop.cancel(),
            None => std::process::exit(0),
        }
    });
    stop
}

async fn write_effects(batch: &[Received], tx: &mut PostgresTransaction) -> Result<(), BoxError> {
    FATE.pass(Step::ReceiptWritten);
    for message in batch {
        let sql = "INSERT INTO effects (message) VALUES ($1)";
        tx.execute(sql, &[&message.id()]).await?;
    }
    FATE.pass(Step::EffectWritten);
    Ok(())
}

/// What truly happened.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    pub(crate) broker_kills: usize,
    ends: BTreeMap<Step, usize>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults {
            kills,
            stops,
            broker_kills,
            ends,
        } = self;
        write!(
            f,
            "{kills} kills, {stops} zombies, {broker_kills} kills of the broker, ends by step: {ends:?}"
        )
    }
}

/// When something last changed.
struct Progress {
    seen: u64,
    since: Instant,
}

impl Progress {
    fn begin() -> Progress {
        Progress {
            seen: 0,
            since: Instant::now(),
        }
    }

    /// Whether the number has been the same for [`STUCK`].
    fn is_stuck_at(&mut self, seen: u64) -> bool {
        if self.seen != seen {
            self.seen = seen;
            self.since = Instant::now();
        }
        self.since.elapsed() > STUCK
    }
}

/// The consumers, which are begun again whenever they end.
pub(crate) struct Members<'a> {
    test: &'a str,
    /// A member ends before it has passed its step so often.
    passes_max: usize,
    envs: Vec<(&'static str, String)>,
    children: Vec<(Child, Option<Step>)>,
    random: Random,
    strikes: usize,
    pub(crate) faults: Faults,
}

impl<'a> Members<'a> {
    /// So many members, each of which will end at some step.
    pub(crate) fn begin(
        test: &'a str,
        envs: Vec<(&'static str, String)>,
        passes_max: usize,
        random: Random,
    ) -> Members<'a> {
        let mut members = Members {
            test,
            passes_max,
            envs,
            children: Vec::new(),
            random,
            strikes: 0,
            faults: Faults::default(),
        };
        for _ in 0..MEMBERS {
            members.spawn(false);
        }
        members
    }

    /// A member that will end at some step, or, if `is_last`, at none.
    fn spawn(&mut self, is_last: bool) {
        let step = self.random.below(STEPS.len());
        let after = self.random.below(self.passes_max).to_string();
        let place = step.to_string();
        let mut envs: Vec<(&str, &str)> = self
            .envs
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        if !is_last {
            envs.extend([("STORM_STEP", place.as_str()), ("STORM_AFTER", &after)]);
        }
        let child = Child::spawn(self.test, "member", &envs);
        let step = STEPS[step];
        self.children.push((child, (!is_last).then_some(step)));
    }

    /// Begins members again that have ended.
    pub(crate) fn replace_ended(&mut self) {
        for place in (0..self.children.len()).rev() {
            let (child, step) = &mut self.children[place];
            if child.has_ended() {
                if let Some(step) = step {
                    *self.faults.ends.entry(*step).or_default() += 1;
                }
                self.children.remove(place);
                self.spawn(false);
            }
        }
    }

    pub(crate) fn strike(&mut self, broker: &mut impl Mortal) {
        let victim = self.random.below(self.children.len());
        // Each kind at least once, and then as it comes.
        self.strikes += 1;
        let kind = match self.strikes {
            1 => 0,
            2 => 7,
            3 => 3,
            _ => self.random.below(8),
        };
        match kind {
            0..=2 => {
                self.children[victim].0.kill();
                self.children.remove(victim);
                self.spawn(false);
                self.faults.kills += 1;
            }
            3..=6 => {
                // It wakes when others may have taken its messages over.
                let (child, _) = &mut self.children[victim];
                child.stop();
                std::thread::sleep(ACK_TIME + ACK_TIME / 4);
                // It may have ended by itself just before.
                if !child.has_ended() {
                    child.cont();
                    self.faults.stops += 1;
                }
            }
            _ => {
                broker.kill();
                broker.restart();
                self.faults.broker_kills += 1;
            }
        }
    }
}

async fn storm_over<B: Remote>(test: &str, postgres: &Postgres, mut broker: B) {
    let is_full = std::env::var("HAPAX_CAMPAIGN").is_ok_and(|size| size == "full");
    let count = if is_full { 20_000 } else { 1_000 };
    let url = tokio::task::block_in_place(|| postgres.database());
    let session = prepare(&url).await;
    let mut random = Random::from_env(22);
    let published = deliveries(broker.topic(), count, &mut random);
    hapax_testkit::report!(
        "storm: {count} messages, published {} times",
        published.len()
    );
    let began = Instant::now();
    let mut envs = broker.envs();
    envs.push(("STORM_DATABASE", url));
    let passes_max = if is_full { 100 } else { 10 };
    let mut members = Members::begin(test, envs, passes_max, random);
    let chunks = if is_full { 120 } else { 12 };
    for chunk in published.chunks(published.len().div_ceil(chunks)) {
        broker.publish(chunk).await;
        tokio::task::block_in_place(|| {
            members.replace_ended();
            members.strike(&mut broker);
        });
    }
    let mut progress = Progress::begin();
    loop {
        let applied = effects(&session).await.len() as u64;
        if applied >= count {
            break;
        }
        assert!(
            !progress.is_stuck_at(applied),
            "{applied} of {count} messages had an effect; {}",
            members.faults
        );
        tokio::task::block_in_place(|| members.replace_ended());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let duplicates = finish(&mut members, &broker).await;
    let effects = effects(&session).await;
    let (deliveries, faults) = (published.len(), &members.faults);
    hapax_testkit::report!(
        "storm: {faults}; the last member absorbed {duplicates} duplicates; {:?}",
        began.elapsed()
    );
    assert!(
        faults.kills > 0 && faults.stops > 0 && faults.broker_kills > 0,
        "void: {faults}"
    );
    assert!(
        faults.ends.len() >= if is_full { 5 } else { 3 },
        "void: {faults}"
    );
    assert_eq!(effects.len(), count as usize, "of {deliveries} deliveries");
    let twice: Vec<_> = effects.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "applied more than once: {twice:?}");
}

/// Ends the others, and has a member of its own take all that is left.
pub(crate) async fn finish<B: Remote>(members: &mut Members<'_>, broker: &B) -> u64 {
    members.children.clear();
    members.spawn(true);
    let mut source = broker.source(ACK_TIME);
    let mut progress = Progress::begin();
    let mut quiet = 0;
    // What the dead had open comes again after its ack time, and does not count as lag before.
    while quiet < 2 {
        let lag = source.lag().await;
        match lag {
            Ok(None | Some(0)) => quiet += 1,
            Ok(Some(_)) | Err(_) => quiet = 0,
        }
        let left = lag.ok().flatten().unwrap_or_default();
        assert!(
            !progress.is_stuck_at(left),
            "the broker still has {left} messages"
        );
        tokio::time::sleep(ACK_TIME).await;
    }
    let (child, _) = &mut members.children[0];
    child.say("stop");
    let duplicates = child.wait_for("duplicates ");
    duplicates.parse().expect("a number")
}

/// Each message one to ten times, mixed with those around it.
pub(crate) fn deliveries(topic: &str, count: u64, random: &mut Random) -> Vec<Envelope> {
    let mut all: Vec<Envelope> = (0..count)
        .flat_map(|number| {
            let key = format!("k-{}", number as usize % KEYS);
            let one = message(topic, number, Some(key));
            vec![one; 1 + random.below(10)]
        })
        .collect();
    let near = all.len() / 10;
    for place in (1..all.len()).rev() {
        let other = place - random.below(place.min(near) + 1);
        all.swap(place, other);
    }
    all
}

async fn prepare(url: &str) -> Client {
    let options = ConnectOptions::parse(url).expect("a URL");
    let migrated = schema::migrate(&options, &schema::migrations(), |_| {}).await;
    migrated.unwrap_or_else(|error| panic!("{error}"));
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a session");
    tokio::spawn(connection);
    let sql = "CREATE TABLE effects (message text NOT NULL)";
    client.batch_execute(sql).await.expect("a table");
    client
}

/// How often each message had its effect.
async fn effects(session: &Client) -> BTreeMap<String, i64> {
    let sql = "SELECT message, count(*) FROM effects GROUP BY message";
    let rows = session.query(sql, &[]).await.expect("effects");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}
