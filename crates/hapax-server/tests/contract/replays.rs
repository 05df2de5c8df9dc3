//! A replay is exact whatever the protocols of the first request and the repeat.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use crate::client::{WAYS, post};
use crate::harness::{Answer, With};
use crate::world::World;

/// Fields that a replay omits or adds, or that belong to one connection.
const APART: [&str; 7] = [
    "connection",
    "date",
    "idempotency-expires",
    "idempotent-replayed",
    "set-cookie",
    "transfer-encoding",
    "x-request-id",
];

fn end_to_end(got: &Answer) -> HeaderMap {
    let mut headers = got.headers.clone();
    for name in APART {
        headers.remove(name);
    }
    headers
}

#[tokio::test]
async fn a_replay_is_the_first_answer_whichever_way_each_of_them_went() {
    for first_way in WAYS {
        for repeat_way in WAYS {
            let context = format!("first over {first_way}, then over {repeat_way}");
            let request = || post("k", "trailers").with("te", "trailers");
            let world = World::start(first_way, |_| ()).await;
            let first = world.send(request()).await;
            assert!(
                !first.is_replay() && first.headers.contains_key("set-cookie"),
                "{context}: {first:?}"
            );
            // The store has one owner, so the first gateway must stop before the next one starts.
            let world = world.restart(repeat_way, |_| ()).await;
            let replay = world.send(request()).await;
            assert!(replay.is_replay(), "{context}: {replay:?}");
            assert_eq!(
                (first.status, &first.body),
                (replay.status, &replay.body),
                "{context}"
            );
            assert_eq!(end_to_end(&first), end_to_end(&replay), "{context}");
            for (got, way) in [(&first, first_way), (&replay, repeat_way)] {
                let checksum = got
                    .trailers
                    .as_ref()
                    .map(|trailers| trailers["x-checksum"].to_str().unwrap());
                // Over HTTP/1.1 there are none: they would have to be named in `Trailer`, which
                // does not pass a proxy.
                assert_eq!(
                    checksum,
                    way.is_http2.then_some("17"),
                    "{context}: trailers over {way}"
                );
            }
            assert_eq!(world.upstream.effects_of("k"), 1, "{context}");
            world.end().await;
        }
    }
}

#[tokio::test]
async fn replay_ends_when_the_first_answer_said() {
    let world = World::start(WAYS[0], |_| ()).await;
    let before = SystemTime::now();
    let first = world.send(post("k", "charge")).await;
    let after = SystemTime::now();
    let replay = world.send(post("k", "charge")).await;
    let expires = |got: &Answer| {
        httpdate::parse_http_date(got.field("idempotency-expires").unwrap()).unwrap()
    };
    assert_eq!(expires(&first), expires(&replay));
    // An HTTP date has no fractions of a second.
    let (day, second) = (Duration::from_secs(24 * 60 * 60), Duration::from_secs(1));
    assert!(
        (before + day - second..=after + day + second).contains(&expires(&first)),
        "{first:?}"
    );
    world.end().await;
}
