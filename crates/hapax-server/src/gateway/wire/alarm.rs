//! One timer for all deadlines of a connection.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes the waiting task at a deadline at the latest, and possibly before it.
///
/// Deadlines move with every request, and nearly always later. A timer that is set too early is
/// left alone: when it fires, the task looks at the clock and sets it again. So a request costs a
/// comparison instead of a change of the timer.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    wakes: Option<Waker>,
}

impl Alarm {
    /// Makes sure that the task of `cx` is polled again at `deadline` at the latest.
    pub(super) fn set(&mut self, deadline: Instant, cx: &mut Context<'_>) {
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.is_elapsed() || sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
            self.wakes = None;
        }
        if self
            .wakes
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            return;
        }
        // Polled outside of tokio's cooperative budget: if the budget were exhausted, the poll
        // would not register the timer.
        if pin!(tokio::task::unconstrained(sleep.as_mut()))
            .poll(cx)
            .is_ready()
        {
            cx.waker().wake_by_ref();
        }
        self.wakes = Some(cx.waker().clone());
    }
}
