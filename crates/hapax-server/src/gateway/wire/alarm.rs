//! One alarm for all deadlines of a connection.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes whoever waits, no later than a deadline and perhaps before it.
///
/// Deadlines move with every request, and nearly always later. An alarm that is set too early is
/// left: when it rings, whoever waits looks at the clock and sets it anew. So a request costs a
/// comparison, and not a change of the timer.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    wakes: Option<Waker>,
}

impl Alarm {
    /// Has the task of `cx` polled again at `deadline` at the latest.
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
        // Outside the task's budget: a poll that the budget turned away would not have set the
        // timer.
        if pin!(tokio::task::unconstrained(sleep.as_mut()))
            .poll(cx)
            .is_ready()
        {
            cx.waker().wake_by_ref();
        }
        self.wakes = Some(cx.waker().clone());
    }
}
