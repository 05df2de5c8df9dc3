//! Every case of the join rule, with a service that makes each mistake on request.

use super::client::{Order, place};
use super::harness::{Answer, Client, post};
use super::install::{self, Language};
use super::world::World;

/// What the callers of a key get.
struct Case {
    mischief: &'static str,
    first: fn(&Answer) -> bool,
    /// At the other gateway.
    repeat: fn(&Answer) -> bool,
    orders: usize,
}

const JOINED: fn(&Answer) -> bool =
    |answer| answer.status == 201 && answer.text().contains("\"state\": \"placed\"");
const REPLAYED: fn(&Answer) -> bool = |answer| JOINED(answer) && answer.is_replay();
const NOT_JOINED: fn(&Answer) -> bool =
    |answer| answer.status == 502 && answer.is_problem("not-joined") && advice(answer) == "false";
const HELD: fn(&Answer) -> bool = |answer| {
    answer.status == 409 && answer.is_problem("outcome-unknown") && advice(answer) == "false"
};

/// The cases that need nothing from outside.
const CASES: &[Case] = &[
    Case {
        mischief: "joined-then-500",
        first: JOINED,
        repeat: REPLAYED,
        orders: 1,
    },
    Case {
        mischief: "joined-then-other-answer",
        first: JOINED,
        repeat: REPLAYED,
        orders: 1,
    },
    Case {
        mischief: "not-joined",
        first: NOT_JOINED,
        repeat: HELD,
        orders: 1,
    },
    Case {
        mischief: "error-swallowed",
        first: NOT_JOINED,
        repeat: HELD,
        orders: 0,
    },
    Case {
        mischief: "error-swallowed-in-savepoint",
        first: NOT_JOINED,
        repeat: HELD,
        orders: 1,
    },
    // Nothing can detect that the order was in another transaction: docs/transaction.md says so.
    Case {
        mischief: "joined-in-another-transaction",
        first: JOINED,
        repeat: REPLAYED,
        orders: 0,
    },
];

fn advice(answer: &Answer) -> &str {
    answer.field("x-should-retry").unwrap_or("none")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_counts_whatever_the_service_says() {
    let Some(installed) = install::installed(Language::Python) else {
        return;
    };
    let Some(mut world) = World::start(&installed, &[]) else {
        return;
    };
    for case in CASES {
        check(&world, case).await;
    }
    refusals_are_kept_without_a_join(&world).await;
    for node in 0..2 {
        a_service_that_dies_after_its_commit_has_answered(&mut world, node).await;
        one_that_dies_before_it_has_done_nothing(&mut world, node).await;
    }
    a_commit_after_the_answer_is_waited_for(&world).await;
    work_after_the_answer_is_not_vouched_for_until_it_is_done(&world).await;
    world.database.assert_each_order_has_its_message();
}

async fn check(world: &World, case: &Case) {
    let Case {
        mischief,
        first,
        repeat,
        orders,
    } = case;
    let order = Order::new(*mischief);
    let answer = place(world.gateway(0), &order.clone().with(mischief)).await;
    assert!(first(&answer), "{mischief} got {answer:?}");
    // The repeats do not ask for the mistake, so that another attempt would place an order.
    for node in [1, 0] {
        let answer = place(world.gateway(node), &order).await;
        assert!(repeat(&answer), "a repeat of {mischief} got {answer:?}");
    }
    assert_eq!(world.database.orders_of(mischief), *orders, "{mischief}");
    hapax_testkit::report!(
        "{mischief}: {} {}, {orders} orders",
        answer.status,
        if answer.status == 201 {
            "as stored"
        } else {
            "not-joined"
        }
    );
}

async fn refusals_are_kept_without_a_join(world: &World) {
    let order = Order::new("refused").of_none();
    let first = place(world.gateway(0), &order).await;
    assert!(first.status == 422 && !first.is_replay(), "{first:?}");
    place(world.gateway(1), &order).await.assert_replays(&first);
    assert_eq!(world.database.orders_of("refused"), 0);
}

async fn a_service_that_dies_after_its_commit_has_answered(world: &mut World, node: usize) {
    let order = Order::new(format!("joined-then-killed-{node}"));
    let first = place(
        world.gateway(node),
        &order.clone().with("joined-then-killed"),
    )
    .await;
    assert!(JOINED(&first), "{first:?}");
    tokio::task::block_in_place(|| world.services[node].wait_and_start_again());
    place(world.gateway(1 - node), &order)
        .await
        .assert_replays(&first);
    assert_eq!(world.database.orders_of(&order.key), 1);
}

async fn one_that_dies_before_it_has_done_nothing(world: &mut World, node: usize) {
    let order = Order::new(format!("killed-before-commit-{node}"));
    let first = place(
        world.gateway(node),
        &order.clone().with("killed-before-commit"),
    )
    .await;
    assert!(
        first.status == 502 && first.is_problem("outcome-unknown") && advice(&first) == "true",
        "{first:?}"
    );
    assert_eq!(world.database.orders_of(&order.key), 0);
    tokio::task::block_in_place(|| world.services[node].wait_and_start_again());
    let second = place(world.gateway(1 - node), &order).await;
    assert!(JOINED(&second) && !second.is_replay(), "{second:?}");
    place(world.gateway(node), &order)
        .await
        .assert_replays(&second);
    assert_eq!(world.database.orders_of(&order.key), 1);
}

async fn a_commit_after_the_answer_is_waited_for(world: &World) {
    let order = Order::new("committed-after-the-answer");
    let (gateway, late) = (
        world.gateway(0),
        order.clone().with("committed-after-the-answer"),
    );
    let first = tokio::spawn(async move { place(gateway, &late).await });
    // Waits until the order's transaction is open and has completed the record in it.
    let open = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'orders' AND state = 'idle in transaction' AND query LIKE '%complete%'";
    while tokio::task::block_in_place(|| world.database.psql(open)) == "0" {
        tokio::task::yield_now().await;
    }
    let repeat = place(world.gateway(1), &order).await;
    assert!(repeat.is_problem("in-flight"), "{repeat:?}");
    assert_eq!(world.database.orders_of(&order.key), 0);
    Client::new(world.services[0].address())
        .send(post("/mischief/end", ""))
        .await;
    // On a slow machine the caller may have been told to retry before that.
    let first = first.await.unwrap();
    assert!(JOINED(&first) || first.is_problem("in-flight"), "{first:?}");
    let repeat = until_joined(world, &order).await;
    assert!(
        repeat.is_replay() && (first.status != 201 || first.body == repeat.body),
        "{repeat:?}"
    );
    assert_eq!(world.database.orders_of(&order.key), 1);
}

async fn until_joined(world: &World, order: &Order) -> Answer {
    loop {
        let answer = place(world.gateway(1), order).await;
        if JOINED(&answer) {
            return answer;
        }
        assert!(answer.is_problem("in-flight"), "{answer:?}");
    }
}

async fn work_after_the_answer_is_not_vouched_for_until_it_is_done(world: &World) {
    let order = Order::new("answered-before-commit");
    let first = place(
        world.gateway(0),
        &order.clone().with("answered-before-commit"),
    )
    .await;
    assert!(NOT_JOINED(&first), "{first:?}");
    let repeat = place(world.gateway(1), &order).await;
    assert!(HELD(&repeat), "{repeat:?}");
    assert_eq!(world.database.orders_of(&order.key), 0);
    // A late commit still counts, because no other attempt has acted on the record.
    Client::new(world.services[0].address())
        .send(post("/mischief/end", ""))
        .await;
    assert_eq!(world.database.orders_of(&order.key), 1);
    let repeat = place(world.gateway(1), &order).await;
    assert!(
        repeat.status == 201 && repeat.is_replay() && repeat.text() == "late",
        "{repeat:?}"
    );
}
