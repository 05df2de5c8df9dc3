//! The suite that every destination must pass, and what is peculiar to each.
//!
//! To add a destination: implement [`destination::Destination`] for it, and as far as it applies
//! [`destination::Refusing`] and [`destination::Mortal`], in a file of its own; then list the parts
//! of the suite with `suite!` as `nats.rs` does.

/// Makes a test of each function of a part of the suite. `$start` is a path to an async function
/// that starts a destination for one test, or returns `None` where it cannot run.
macro_rules! suite {
    (of all: $start:path) => {
        suite!(@ $start:
            everything_arrives_once
            an_empty_batch_is_published
            order_is_kept_in_a_batch_and_across_batches
            calls_at_the_same_time_share_a_publisher
            a_repeated_batch_arrives_twice_or_is_known
            any_payload_arrives_as_it_is
            headers_arrive_as_they_are
            a_dropped_call_breaks_nothing_later
        );
    };
    (of refusing: $start:path) => {
        suite!(@ $start:
            a_refused_message_stops_only_its_key
            a_refused_message_without_a_place_in_an_order_stops_nothing
        );
    };
    (of mortal: $start:path) => {
        suite!(@ $start:
            a_destination_that_is_down_is_an_outage
            a_destination_may_be_down_at_the_start
            a_restart_between_calls_breaks_nothing
            a_paused_destination_ends_calls_in_time
            nothing_accepted_is_lost_by_kills_during_calls
        );
    };
    (@ $start:path: $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                if let Some(destination) = $start().await {
                    crate::suite::$name(destination).await;
                }
            }
        )*
    };
}

mod destination;
mod kafka;
mod messages;
mod nats;
mod rabbitmq;
mod redis;
mod stdout;
mod suite;
