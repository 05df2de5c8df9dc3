//! Redis over Postgres: a repeat is answered from Redis, and everything else is decided by Postgres.

use std::sync::Arc;
use std::time::Duration;

use hapax::Postgres;
use hapax::store::postgres::{ConnectOptions, schema};
use hapax::store::tiered::{Options, Stats, Tiered};
use hapax_contract::Bench;
use hapax_core::audit::Signed;
use hapax_core::store::{Change, Finish, Lifetime, Won, Written};
use hapax_core::{Answer, Condition, Head, Put, RecordId, State, Store};
use hapax_testkit::servers;
use tokio::sync::OnceCell;

use crate::place::claim;

/// One test for each case of the contract.
macro_rules! tests {
    ([$make:path] $($module:ident { $($case:ident)* })*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                if let Some(bench) = $make().await {
                    hapax_contract::run(stringify!($case), bench).await;
                }
            }
        )*)*
    };
}

mod keeps_the_contract {
    hapax_contract::__store_contract_cases! { [tests] [super::shared] }
}

async fn shared() -> Option<Bench> {
    static URL: OnceCell<Option<String>> = OnceCell::const_new();
    let url = URL.get_or_init(database).await.as_ref()?;
    let store = node(url, &servers::Redis::shared()?.url()).await;
    Some(
        Bench::in_real_time(Arc::new(store))
            .shared()
            .dropping_in_bulk(),
    )
}

/// A new database that is prepared for the store.
async fn database() -> Option<String> {
    let url = servers::Postgres::shared()?.database();
    let options = ConnectOptions::parse(&url).expect("a URL");
    schema::migrate(&options, &schema::migrations(), |_| {})
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    Some(url)
}

/// A node that has just asked for the store info, as nodes do each second.
async fn node(postgres: &str, redis: &str) -> Tiered {
    let postgres = Postgres::open(postgres).await.expect("a database");
    let mut options = Options::new(redis);
    // A busy machine is no broken Redis.
    options.timeout = Duration::from_secs(1);
    let node = Tiered::new(postgres, &options).expect("an address");
    node.info().await.expect("info");
    node
}

/// Two nodes on a new database and a Redis of their own.
struct Pair {
    redis: servers::Redis,
    first: Tiered,
    second: Tiered,
}

impl Pair {
    async fn new() -> Option<Pair> {
        let url = database().await?;
        let redis = servers::Redis::start(&[])?;
        Some(Pair {
            first: node(&url, &redis.url()).await,
            second: node(&url, &redis.url()).await,
            redis,
        })
    }

    /// A record that the first node has completed, with its copy in Redis.
    async fn completed(&self, key: &str) -> Head {
        let before = self.first.stats().kept;
        let head = complete(&self.first, key).await;
        kept(&self.first, before + 1).await;
        head
    }

    /// Changes every copy in Redis by a script.
    fn change_copies(&self, script: &str) {
        let script =
            format!("for _, key in ipairs(redis.call('KEYS', 'hapax:*:c:*')) do {script} end");
        self.redis.cli(&["EVAL", &script, "0"]);
    }

    /// The second node claims the key, and must be shown the record with its answer.
    async fn repeat(&self, key: &str) -> Head {
        self.second.info().await.expect("info");
        let written = self.second.put_if(claim(key, 1)).await.expect("put_if");
        let Written::Lost(seen) = written else {
            panic!("a completed key was claimed again: {written:?}");
        };
        let record = seen.record.expect("there is a record");
        assert_eq!(
            record.answer.expect("there is an answer").body,
            format!("paid {key}"),
        );
        record.head
    }
}

async fn complete(node: &Tiered, key: &str) -> Head {
    let claimed = node.put_if(claim(key, 1)).await.expect("put_if");
    let Written::Won(Won { head, .. }) = claimed else {
        panic!("the key is new: {claimed:?}");
    };
    let fence = head.fence;
    let answer = Arc::new(Answer::new(201, format!("paid {key}")));
    let finish = Finish {
        state: State::Completed,
        status: Some(201),
        answer: Some(answer),
        lifetime: Lifetime::default(),
    };
    let ended = Put {
        id: head.id,
        condition: Condition::Held { fence },
        change: Change::Finish(finish),
    };
    match node.put_if(ended).await.expect("put_if") {
        Written::Won(won) => won.head,
        Written::Lost(seen) => panic!("the attempt owns its record: {seen:?}"),
    }
}

/// Waits until this node has written so many copies.
async fn kept(node: &Tiered, copies: u64) {
    let kept = async {
        while node.stats().kept < copies {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), kept)
        .await
        .expect("copies are written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_on_another_node_is_answered_from_redis_without_postgres() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let head = pair.completed("a").await;
    pair.second.info().await.expect("info");
    let statements = pair.second.postgres().stats().statements;
    let written = pair.second.put_if(claim("a", 1)).await.expect("put_if");
    assert!(matches!(written, Written::Lost(seen) if seen.head() == Some(&head)));
    let Stats { hits, misses, .. } = pair.second.stats();
    assert_eq!((hits, misses), (1, 0));
    assert_eq!(pair.second.postgres().stats().statements, statements);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_request_with_the_key_is_judged_by_postgres() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let head = pair.completed("a").await;
    pair.second.info().await.expect("info");
    let written = pair.second.put_if(claim("a", 2)).await.expect("put_if");
    assert!(matches!(written, Written::Lost(seen) if seen.head() == Some(&head)));
    let Stats {
        hits, set_aside, ..
    } = pair.second.stats();
    assert_eq!((hits, set_aside), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_lost_is_found_in_postgres_and_copied_back() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let head = pair.completed("a").await;
    pair.redis.cli(&["FLUSHALL"]);
    assert_eq!(pair.repeat("a").await, head);
    assert_eq!(pair.second.stats().misses, 1);
    kept(&pair.second, 1).await;
    assert_eq!(pair.repeat("a").await, head);
    assert_eq!(pair.second.stats().hits, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_truncated_or_swapped_copy_is_never_believed() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let heads = [pair.completed("a").await, pair.completed("b").await];
    let forgeries = [
        "redis.call('SET', key, 'forged')",
        "redis.call('SET', key, '')",
        "redis.call('SET', key, string.sub(redis.call('GET', key), 1, -2))",
        "redis.call('SET', key, redis.call('GET', redis.call('KEYS', 'hapax:*:c:*')[1]))",
        "redis.call('DEL', key) redis.call('LPUSH', key, 'a list')",
    ];
    for forgery in forgeries {
        pair.change_copies(forgery);
        for (key, head) in ["a", "b"].into_iter().zip(&heads) {
            let before = pair.second.stats();
            assert_eq!(pair.repeat(key).await, *head, "{forgery}");
            // Postgres was asked, and a good copy is written over the forged one. Of two swapped
            // copies one is in its own place.
            if pair.second.stats().hits == before.hits {
                kept(&pair.second, before.kept + 1).await;
            }
        }
    }
    let Stats {
        unreadable,
        failures,
        hits,
        ..
    } = pair.second.stats();
    assert_eq!((unreadable, failures, hits), (7, 2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_from_before_a_forget_is_not_served_after_it() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let head = pair.completed("a").await;
    pair.change_copies("redis.call('SET', 'old', redis.call('GET', key))");
    let signed = Signed::new("ada", "asked to").expect("signed");
    let forget = Put {
        id: head.id,
        condition: Condition::Version {
            version: head.version,
        },
        change: Change::Forget(Lifetime::default(), signed),
    };
    let forgotten = pair.first.put_if(forget).await.expect("put_if");
    assert!(matches!(forgotten, Written::Won(_)));
    let copies = pair
        .redis
        .cli(&["EVAL", "return #redis.call('KEYS', 'hapax:*:c:*')", "0"]);
    assert!(
        copies.contains('0'),
        "the copy went with the record: {copies}"
    );
    // Somebody restores a snapshot.
    let key = "local key = string.char(unpack(cjson.decode(ARGV[1])))";
    let restore = format!("{key} redis.call('SET', key, redis.call('GET', 'old'))");
    let bytes = format!("{:?}", copy_key(&head.id));
    pair.redis.cli(&["EVAL", &restore, "0", &bytes]);
    pair.second.info().await.expect("info");
    let written = pair.second.put_if(claim("a", 1)).await.expect("put_if");
    let Written::Lost(seen) = written else {
        panic!("a tombstone stands: {written:?}");
    };
    let record = seen.record.expect("a tombstone");
    assert!(matches!(record.head.state, State::Expired(_)) && record.answer.is_none());
    assert_eq!(pair.second.stats().set_aside, 1, "the copy was there");
}

/// The key under which the copy of a record is.
fn copy_key(id: &RecordId) -> Vec<u8> {
    let partition = id.as_bytes()[0] / 4;
    let mut key = format!("hapax:{{{partition:02}}}:c:").into_bytes();
    key.extend_from_slice(id.as_bytes());
    key
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_redis_costs_nothing_but_time_and_is_left_alone() {
    let Some(mut pair) = Pair::new().await else {
        return;
    };
    let head = pair.completed("a").await;
    pair.redis.kill();
    for _ in 0..5 {
        assert_eq!(pair.repeat("a").await, head);
        complete(&pair.first, &uuid::Uuid::new_v4().to_string()).await;
    }
    let stats = pair.second.stats();
    assert!(
        stats.failures >= 1 && stats.left_alone >= 1 && stats.is_left_alone && stats.hits == 0,
        "{stats:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_reading_of_the_epoch_is_not_used() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    pair.completed("a").await;
    // A node that has never read it.
    let Some(url) = database().await else { return };
    let postgres = Postgres::open(&url).await.expect("a database");
    let fresh = Tiered::new(postgres, &Options::new(pair.redis.url())).expect("an address");
    complete(&fresh, "b").await;
    let Stats {
        hits,
        misses,
        kept: copies,
        ..
    } = fresh.stats();
    assert_eq!((hits, misses, copies), (0, 0, 0), "Redis was not asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_told_that_an_attempt_of_another_has_ended() {
    let Some(pair) = Pair::new().await else {
        return;
    };
    let claimed = pair.first.put_if(claim("a", 1)).await.expect("put_if");
    let Written::Won(won) = claimed else {
        panic!("the key is new");
    };
    let wakes = pair.second.wakes().expect("it wakes");
    wakes.watch(won.head.id);
    assert_eq!(wakes.changed().await, won.head.id, "told at once");
    let released = Put {
        id: won.head.id,
        condition: Condition::Held {
            fence: won.head.fence,
        },
        change: Change::Finish(Finish {
            state: State::Retryable,
            status: None,
            answer: None,
            lifetime: Lifetime::default(),
        }),
    };
    pair.first.put_if(released).await.expect("put_if");
    let told = tokio::time::timeout(Duration::from_secs(60), wakes.changed()).await;
    assert_eq!(told.expect("told of the end"), won.head.id);
}
