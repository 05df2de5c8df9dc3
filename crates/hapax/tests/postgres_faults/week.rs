//! A week of keys that come and go: expired records make room for new ones.

use std::sync::Arc;
use std::time::Duration;

use hapax::{Postgres, Store};
use hapax_core::store::{Lifetime, Written};
use tokio_postgres::Client;

use super::subject::{LONG, Subject, answer};
use super::world::{Server, name, open, prepared, session};

const HOURS: usize = 7 * 24;
const KEYS_PER_HOUR: usize = 150;
const ANSWER_BYTES: usize = 512;
const HOUR_US: i64 = 3_600_000_000;
/// A key is remembered for two days, so from the third day on all days are alike.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const LIFETIME: Lifetime = Lifetime {
    retention: DAY,
    tombstone: DAY,
};
const ALIKE_FROM_DAY: usize = 3;
/// How much larger a relation may become compared with the first days that are alike.
const GROWTH_MAX: f64 = 1.3;

/// A clock that the test sets.
const CLOCK: &str = "
    CREATE TABLE public.clock (at int8 NOT NULL);
    INSERT INTO public.clock VALUES (1800000000000000);
    CREATE OR REPLACE FUNCTION hapax.clock() RETURNS int8 LANGUAGE sql VOLATILE AS $$ SELECT at FROM public.clock $$;
";

const SIZES: &str = "
    SELECT pg_relation_size('hapax.heads'), pg_indexes_size('hapax.heads'), (SELECT count(*) FROM hapax.heads),
           (SELECT sum(pg_total_relation_size(oid))::int8 FROM pg_class WHERE relnamespace = 'hapax'::regnamespace AND relname ~ '^answers_[0-9]+$'),
           (SELECT pg_total_relation_size('hapax.pace') + pg_total_relation_size('hapax.slots') + pg_total_relation_size('hapax.meta'))
";

#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: i64,
    indexes: i64,
    count: i64,
    answers: i64,
    rest: i64,
}

impl Sizes {
    async fn measure(session: &Client) -> Sizes {
        let row = session.query_one(SIZES, &[]).await.unwrap();
        Sizes {
            heads: row.get(0),
            indexes: row.get(1),
            count: row.get(2),
            answers: row.get(3),
            rest: row.get(4),
        }
    }

    fn relations(self) -> [(&'static str, i64); 4] {
        [
            ("heads", self.heads),
            ("their indexes", self.indexes),
            ("answers", self.answers),
            ("the rest", self.rest),
        ]
    }
}

/// Charges all keys of this hour.
async fn charge(store: &Arc<Postgres>, hour: usize) {
    let charges = Subject::many(&format!("hour-{hour}"), KEYS_PER_HOUR)
        .into_iter()
        .map(|subject| {
            let store = store.clone();
            tokio::spawn(async move {
                let Ok(Written::Won(won)) = store.put_if(subject.claim(LONG)).await else {
                    panic!("{}", subject.key)
                };
                let end =
                    subject.complete(won.head.fence, &answer(&"x".repeat(ANSWER_BYTES)), LIFETIME);
                assert!(matches!(store.put_if(end).await, Ok(Written::Won(_))));
            })
        });
    for charge in charges.collect::<Vec<_>>() {
        charge.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_week_of_keys_that_come_and_go_leaves_no_bloat() {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let user = session(&url).await;
    user.batch_execute(CLOCK).await.unwrap();
    let store = Arc::new(open(&url).await);
    let mut days = Vec::new();
    for hour in 1..=HOURS {
        charge(&store, hour).await;
        user.batch_execute(&format!("UPDATE public.clock SET at = at + {HOUR_US}"))
            .await
            .unwrap();
        // Until a sweep finds nothing, and once more, because a sweep proceeds in steps.
        while store.sweep(256).await.unwrap().total() > 0 {}
        store.sweep(256).await.unwrap();
        // As the server's autovacuum would do from time to time.
        user.batch_execute("VACUUM hapax.heads, hapax.pace, hapax.slots, public.clock")
            .await
            .unwrap();
        if hour % 24 == 0 {
            days.push(Sizes::measure(&user).await);
            hapax_testkit::report!("day {}: {:?}", hour / 24, days.last().unwrap());
        }
    }

    for (name, earlier, later) in grown(&days) {
        assert!(
            later as f64 <= earlier as f64 * GROWTH_MAX,
            "{name} grew from {earlier} to {later} bytes: {days:#?}"
        );
    }
    let live = (2 * 24 * KEYS_PER_HOUR) as i64;
    let last = days.last().unwrap();
    assert!(
        last.count >= live - KEYS_PER_HOUR as i64 && last.count <= live + 2 * KEYS_PER_HOUR as i64,
        "{} keys are left",
        last.count
    );
    let turns = store.stats().turns;
    hapax_testkit::report!(
        "the answers' tables were emptied {turns} times; database {}",
        name(&url)
    );
    assert!(turns > 60, "void: the ring turned {turns} times");
}

/// For each relation, its size on the first days that are alike, and its largest size after them.
fn grown(days: &[Sizes]) -> Vec<(&'static str, i64, i64)> {
    let largest = |days: &[Sizes], relation: usize| {
        days.iter()
            .map(|sizes| sizes.relations()[relation].1)
            .max()
            .unwrap()
    };
    let (earlier, later) = days.split_at(ALIKE_FROM_DAY);
    let earlier = &earlier[ALIKE_FROM_DAY - 2..];
    (0..4)
        .map(|relation| {
            (
                days[0].relations()[relation].0,
                largest(earlier, relation),
                largest(later, relation),
            )
        })
        .collect()
}
