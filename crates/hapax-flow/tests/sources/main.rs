//! The suite that every source must pass, the storm over it, and what is peculiar to each broker.
//!
//! To add a source: implement [`broker::Broker`] for its broker, and [`broker::Mortal`] and
//! [`storm::Remote`], in a file of its own; then list the parts of the suite as `nats.rs` does.

/// Makes a test of each function of a part of the suite. `$start` is a path to an async function
/// that starts a broker for one test, or returns `None` where it cannot run.
macro_rules! suite {
    (of all: $start:path) => {
        suite!(@ $start:
            a_message_arrives_as_it_was_published
            everything_is_delivered_until_it_is_acknowledged
            what_is_not_acknowledged_is_delivered_again
            the_messages_of_a_key_come_in_their_order
            what_is_given_back_comes_again_soon
            what_is_kept_is_not_delivered_again
            two_members_share_the_messages
            a_dropped_call_loses_nothing
            the_lag_is_told
        );
    };
    (of mortal: $start:path) => {
        suite!(@ $start:
            a_broker_that_is_down_is_an_outage
            a_broker_may_be_down_at_the_start
        );
    };
    (@ $start:path: $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if let Some(broker) = $start().await {
                    crate::suite::$name(broker).await;
                }
            }
        )*
    };
}

mod broker;
mod kafka;
#[path = "../publishers/messages.rs"]
mod messages;
mod nats;
mod pipe;
mod rabbitmq;
mod redis;
mod storm;
mod suite;
