//! What happens to Redis during the storm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hapax::store::tiered::Tiered;
use hapax_testkit::random::Random;
use hapax_testkit::servers;

use super::Books;
use crate::campaign::STUCK;

/// Answers between two events, at most.
const BETWEEN_MAX: usize = 60;
/// One event in so many is an outage. After it the copies are not read for a while.
const OUTAGE_IN: usize = 12;

/// What happens to copies.
const TO_COPIES: [&str; 6] = [
    "copied",
    "garbled",
    "cut short",
    "swapped",
    "set back",
    "flushed",
];
/// What happens to Redis as a whole. A slow one is slow for up to a tenth of a second, since Redis
/// looks only so often whether the time is over.
const TO_REDIS: [&str; 3] = ["slowed", "paused", "killed"];

/// Changes copies by a script. `keys` are those of the copies.
fn change_copies(redis: &servers::Redis, random: &mut Random, change: &str) {
    let script = format!(
        "math.randomseed(tonumber(ARGV[1])) local keys = redis.call('KEYS', 'hapax:*:c:*') {change}"
    );
    let seed = random.below(1 << 30).to_string();
    redis.cli(&["EVAL", &script, "0", &seed]);
}

fn disturb(redis: &mut servers::Redis, random: &mut Random, what: &str) {
    const COPY: &str = "for _, key in ipairs(keys) do redis.call('SET', 'old:' .. key, redis.call('GET', key)) end";
    const SET_BACK: &str = "
        for _, key in ipairs(redis.call('KEYS', 'old:hapax:*')) do
          redis.call('SET', key:sub(5), redis.call('GET', key))
        end";
    const GARBLE: &str = "
        for _, key in ipairs(keys) do
          if math.random(2) == 1 then
            local bytes = {}
            for number = 1, math.random(0, 200) do bytes[number] = string.char(math.random(0, 255)) end
            redis.call('SET', key, table.concat(bytes))
          end
        end";
    const CUT_SHORT: &str = "
        for _, key in ipairs(keys) do
          if math.random(2) == 1 then
            local value = redis.call('GET', key)
            redis.call('SET', key, value:sub(1, math.random(0, math.max(0, #value - 1))))
          end
        end";
    const SWAP: &str = "
        for number = 2, #keys, 2 do
          local one, other = redis.call('GET', keys[number - 1]), redis.call('GET', keys[number])
          redis.call('SET', keys[number - 1], other)
          redis.call('SET', keys[number], one)
        end";
    match what {
        "flushed" => drop(redis.cli(&["FLUSHALL"])),
        "paused" => {
            redis.pause();
            std::thread::sleep(Duration::from_millis(100 + random.below(200) as u64));
            redis.resume();
        }
        "killed" => {
            redis.kill();
            redis.restart();
        }
        "slowed" => drop(redis.cli(&["CLIENT", "PAUSE", "20", "ALL"])),
        "copied" => change_copies(redis, random, COPY),
        "set back" => change_copies(redis, random, SET_BACK),
        "garbled" => change_copies(redis, random, GARBLE),
        "cut short" => change_copies(redis, random, CUT_SHORT),
        "swapped" => change_copies(redis, random, SWAP),
        _ => unreachable!("{what} is none of them"),
    }
}

/// Disturbs Redis until the storm is over. Returns how often each event happened.
pub(super) fn disturb_until_over(
    redis: &mut servers::Redis,
    tiers: &[Arc<Tiered>],
    books: &Books,
    lasts: Duration,
) -> BTreeMap<&'static str, usize> {
    let mut random = Random::from_env(5);
    let mut counts = BTreeMap::new();
    let begun = Instant::now();
    let runtime = tokio::runtime::Handle::current();
    let mut disturb = |what: &'static str, random: &mut Random| {
        runtime.block_on(books.more(1 + random.below(BETWEEN_MAX)));
        if TO_COPIES.contains(&what) {
            // Copies matter only while somebody reads them.
            wait_until("Redis is used again", || {
                tiers.iter().all(|tier| !tier.stats().is_left_alone)
            });
        }
        disturb(redis, random, what);
        *counts.entry(what).or_default() += 1;
    };
    while begun.elapsed() < lasts {
        let is_second_half = begun.elapsed() > lasts / 2;
        let what = if is_second_half && random.below(OUTAGE_IN) == 0 {
            TO_REDIS[random.below(TO_REDIS.len())]
        } else {
            TO_COPIES[random.below(TO_COPIES.len())]
        };
        disturb(what, &mut random);
    }
    // Each at least once, whatever the machine is like.
    for what in TO_COPIES.into_iter().chain(TO_REDIS) {
        disturb(what, &mut random);
    }
    runtime.block_on(books.more(BETWEEN_MAX));
    books.is_over.store(true, Ordering::SeqCst);
    counts
}

pub(super) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < STUCK, "not within {STUCK:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
