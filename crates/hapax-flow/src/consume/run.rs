//! The life of a consumer whose effects are in a database.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hapax::inbox::{self, ReceiveError};
use hapax::join::{Database, Transaction};
use hapax_core::flow::{Next, Outage, Verdict};
use hapax_core::planted::{self, Bug};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::attempt::{
    Done, Failure, Handler, apply, apply_parked, count_failure, in_a_line, late, sweep,
};
use super::backlog::{Backlog, Item, tags};
use super::consumer::StartError;
use super::progress::{Progress, add};
use super::received::Received;
use super::rules::{Guarantee, Rules, WindowError};
use super::{Delivery, Source};

/// The most messages that wait for another try. Then no more are taken.
pub(super) const WAITING_MAX: usize = 1000;
/// The pause before a broker or a database that failed is asked again: from this much, doubled with
/// each failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often parked messages that an operator wants to be tried again are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often the window is compared with what the broker keeps.
const CHECK_EVERY: Duration = Duration::from_hours(24);
/// How often receipts are removed that no window needs any more.
const SWEEP_EVERY: Duration = Duration::from_mins(10);
/// More than the tables of a Postgres, and less than the rows that a sweep of a file removes at most.
const MANY_SWEPT: u64 = 1000;
/// How long the broker may take to be told of the end.
pub(super) const STOP_MAX: Duration = Duration::from_secs(2);
/// A message that the broker has delivered more often than this may have ended its consumers.
const SUSPECT_AFTER: u32 = 3;

pub(super) struct Run<S: Source, D, H> {
    rules: Rules,
    source: Kept<S>,
    database: D,
    handler: H,
    backlog: Backlog<S::Tag>,
    /// Done with, but the broker could not be told yet.
    unacknowledged: Vec<S::Tag>,
    /// Left undone because the consumer stops.
    left: Vec<S::Tag>,
    progress: Arc<Progress>,
    next_look: Instant,
    next_check: Instant,
    next_sweep: Instant,
}

impl<S: Source, D: Database, H: Handler<D>> Run<S, D, H> {
    pub(super) fn new(
        rules: Rules,
        source: S,
        database: D,
        handler: H,
        progress: Arc<Progress>,
    ) -> Run<S, D, H> {
        Run {
            rules,
            source: Kept::new(source),
            database,
            handler,
            backlog: Backlog::new(),
            unacknowledged: Vec::new(),
            left: Vec::new(),
            progress,
            next_look: Instant::now(),
            next_check: Instant::now() + CHECK_EVERY,
            next_sweep: Instant::now(),
        }
    }

    pub(super) async fn run(mut self, stop: &CancellationToken) -> Result<(), StartError> {
        self.start(stop).await?;
        let mut pause = Pause::new();
        while !stop.is_cancelled() {
            match self.turn(stop).await {
                Ok(()) => pause.reset(),
                Err(outage) => {
                    self.tell_outage(&outage.reason);
                    pause.wait(stop).await;
                }
            }
        }
        self.stop().await;
        Ok(())
    }

    /// Lets other members have at once what is left.
    async fn stop(&mut self) {
        self.left.extend(self.backlog.tags());
        let ending = async {
            self.acknowledge(Vec::new()).await?;
            match self.left.is_empty() {
                true => Ok(()),
                false => self.source.broker.give_back(&self.left).await,
            }
        };
        match timeout(STOP_MAX, ending).await {
            Ok(Ok(())) => {}
            // It delivers them again by itself.
            Ok(Err(_)) | Err(_) => {
                tracing::debug!(
                    consumer = &*self.rules.name,
                    "the broker was not told of the end"
                );
            }
        }
    }

    /// Registers the window, and checks it. Waits for a database and a broker that are not there.
    async fn start(&mut self, stop: &CancellationToken) -> Result<(), StartError> {
        let mut pause = Pause::new();
        while self.rules.guarantee == Guarantee::Once && !stop.is_cancelled() {
            match self.register().await {
                Ok(()) => break,
                Err(Registering::Impossible(error)) => return Err(error),
                Err(Registering::Unavailable(reason)) => {
                    self.tell_outage(&reason);
                    pause.wait(stop).await;
                }
            }
        }
        while !stop.is_cancelled() {
            match self.source.broker.retention().await {
                Ok(retention) => {
                    return match self.rules.check_window(retention) {
                        Ok(()) => Ok(()),
                        Err(WindowError::Unknown) => {
                            tracing::warn!(
                                consumer = &*self.rules.name,
                                "{}",
                                WindowError::Unknown
                            );
                            Ok(())
                        }
                        Err(error) => Err(StartError::Window(error)),
                    };
                }
                Err(outage) => {
                    self.tell_outage(&outage.reason);
                    pause.wait(stop).await;
                }
            }
        }
        Ok(())
    }

    async fn register(&mut self) -> Result<(), Registering> {
        let mut transaction = self.database.begin().await.map_err(unavailable)?;
        let window = self.rules.window;
        match inbox::set_window(&mut transaction, &self.rules.name, window).await {
            Ok(()) => transaction.commit().await.map_err(unavailable),
            Err(error) => {
                drop(D::roll_back(transaction).await);
                Err(match error {
                    ReceiveError::Invalid(_)
                    | ReceiveError::NoInbox(_)
                    | ReceiveError::NotAllowed(_) => {
                        Registering::Impossible(StartError::NoInbox(in_a_line(&error)))
                    }
                    error => unavailable(error),
                })
            }
        }
    }

    /// Does what is to be done next, and waits for it.
    async fn turn(&mut self, stop: &CancellationToken) -> Result<(), Outage> {
        self.acknowledge(Vec::new()).await?;
        if self.source.is_due() {
            self.source.keep(&self.backlog.tags()).await?;
        }
        let now = Instant::now();
        if now >= self.next_check {
            self.next_check = now + CHECK_EVERY;
            self.check_window().await?;
        }
        if now >= self.next_sweep && self.rules.guarantee == Guarantee::Once {
            self.next_sweep = now + SWEEP_EVERY;
            match sweep(&mut self.database).await {
                // A file is swept in steps, and has more to remove.
                Ok(swept) if swept >= MANY_SWEPT => self.next_sweep = now + LOOK_EVERY,
                Ok(_) => {}
                Err(failure) => {
                    tracing::debug!(consumer = &*self.rules.name, ?failure, "receipts stay");
                }
            }
        }
        if now >= self.next_look {
            self.next_look = now + LOOK_EVERY;
            self.look(stop).await?;
        }
        if let Some(items) = self.backlog.take_due(now) {
            self.try_again(items, stop).await;
            self.backlog.rest(now.elapsed());
            return Ok(());
        }
        let next = self.backlog.next_due().unwrap_or(self.next_look);
        let next = next.min(self.next_look);
        if self.backlog.len() >= WAITING_MAX {
            wait_until(self.source.due_before(next), stop).await;
            return Ok(());
        }
        let received = self.receive(next, stop).await?;
        self.take(received, stop).await
    }

    /// Waits for messages, at most until something else is to be done.
    async fn receive(
        &mut self,
        next: Instant,
        stop: &CancellationToken,
    ) -> Result<Vec<Delivery<S::Tag>>, Outage> {
        let wake = match self.backlog.len() {
            0 => next,
            _ => self.source.due_before(next),
        };
        tokio::select! {
            received = self.source.broker.receive(self.rules.batch_max) => received,
            () = wait_until(wake, stop) => Ok(Vec::new()),
        }
    }

    /// Handles what was delivered, except what waits behind earlier messages of its lane.
    async fn take(
        &mut self,
        received: Vec<Delivery<S::Tag>>,
        stop: &CancellationToken,
    ) -> Result<(), Outage> {
        let items = received.into_iter().map(|mut delivery| {
            if planted::is(Bug::FlowPlaceIsTheId) {
                delivery.message.id = Some(format!("{:?}", delivery.tag));
            }
            Item {
                received: self.rules.receive(delivery.message),
                tags: vec![delivery.tag],
                failures: 0,
            }
        });
        let items: Vec<_> = items.collect();
        let is_first = planted::is(Bug::FlowAcknowledgesFirst);
        if self.rules.guarantee == Guarantee::AtMostOnce || is_first {
            self.source.broker.acknowledge(&tags(&items)).await?;
        }
        self.work(items, stop).await;
        Ok(())
    }

    /// Applies the messages in their order: all together first; what fails together, in halves.
    async fn work(&mut self, items: Vec<Item<S::Tag>>, stop: &CancellationToken) {
        let mut groups = VecDeque::from(self.split_suspects(items));
        while let Some(group) = groups.pop_front() {
            let mut group: Vec<_> = group
                .into_iter()
                .filter_map(|item| self.backlog.put_behind(item))
                .collect();
            if group.is_empty() {
                continue;
            }
            // An earlier one of its key may have been left: then this must not be applied either.
            if stop.is_cancelled() && self.may_repeat() {
                self.leave(group);
                continue;
            }
            let later = tags(groups.iter().flatten());
            if group.len() == 1 && is_suspect(&group[0]) && self.may_repeat() {
                let item = group.remove(0);
                self.try_alone(item, later, stop).await;
                continue;
            }
            match self.apply_at_last(&group, later, stop).await {
                None => self.leave(group),
                Some(Ok(done)) => self.end(&group, done).await,
                Some(Err(failure)) if self.rules.guarantee == Guarantee::AtMostOnce => {
                    self.lose(&group, &failure);
                }
                Some(Err(_)) if group.len() > 1 => {
                    let later = group.split_off(group.len() / 2);
                    groups.push_front(later);
                    groups.push_front(group);
                }
                Some(Err(failure)) => self.failed(group.remove(0), failure).await,
            }
        }
        self.count_waiting();
    }

    /// Groups of messages in their order; one that may have ended its consumers is a group by
    /// itself.
    fn split_suspects(&self, items: Vec<Item<S::Tag>>) -> Vec<Vec<Item<S::Tag>>> {
        let mut groups = vec![Vec::new()];
        for item in items {
            if is_suspect(&item) {
                groups.push(vec![item]);
                groups.push(Vec::new());
            } else if let Some(group) = groups.last_mut() {
                group.push(item);
            }
        }
        groups
    }

    /// Tries the first message of a lane alone, and the others after it.
    async fn try_again(&mut self, mut items: VecDeque<Item<S::Tag>>, stop: &CancellationToken) {
        let Some(first) = items.pop_front() else {
            return;
        };
        self.try_one(first, tags(&items), stop).await;
        self.work(items.into(), stop).await;
    }

    async fn try_one(&mut self, item: Item<S::Tag>, later: Vec<S::Tag>, stop: &CancellationToken) {
        let group = [item];
        let applied = self.apply_at_last(&group, later, stop).await;
        match applied {
            None => self.leave(group),
            Some(Ok(done)) => self.end(&group, done).await,
            Some(Err(failure)) => {
                let [item] = group;
                self.failed(item, failure).await;
            }
        }
    }

    /// Counts the try of a message before it is made, in case this process does not live to count
    /// it afterwards.
    async fn try_alone(
        &mut self,
        mut item: Item<S::Tag>,
        later: Vec<S::Tag>,
        stop: &CancellationToken,
    ) {
        let times = item.received.deliveries.unwrap_or_default();
        let reason = format!("the broker has delivered it {times} times: it may end its consumers");
        match self.count(&item, &reason).await {
            None => self.let_go(item).await,
            Some(failures) => {
                item.failures = failures;
                self.try_one(item, later, stop).await;
            }
        }
    }

    /// Applies the messages. A database that cannot be used is waited for: `None` if the consumer
    /// stops before that. `later`: deliveries that are worked on after these.
    async fn apply_at_last(
        &mut self,
        group: &[Item<S::Tag>],
        later: Vec<S::Tag>,
        stop: &CancellationToken,
    ) -> Option<Result<Done, Failure>> {
        let batch: Vec<Received> = group.iter().map(|item| item.received.clone()).collect();
        let have_failed = group.iter().any(|item| item.failures > 0);
        let mut open = self.backlog.tags();
        open.extend(tags(group));
        open.extend(later);
        let limit = self.rules.batch_time_max;
        let mut pause = Pause::new();
        loop {
            let (database, handler) = (&mut self.database, &self.handler);
            let applied = apply(database, handler, &self.rules, &batch, have_failed);
            let applied = self
                .source
                .keep_during(&open, timeout(limit, applied))
                .await;
            let reason = match applied.unwrap_or_else(|_| Err(late(&self.rules))) {
                Err(Failure::Database(reason)) => reason,
                // The receipts tell whether it has committed.
                Err(Failure::Unclear(reason)) if self.may_repeat() => reason,
                decided => return Some(decided),
            };
            self.tell_outage(&reason);
            if stop.is_cancelled() {
                return None;
            }
            self.source.keep_during(&open, pause.wait(stop)).await;
        }
    }

    fn may_repeat(&self) -> bool {
        self.rules.guarantee != Guarantee::AtMostOnce
    }

    /// Acknowledges what has committed, last of all.
    async fn end(&mut self, group: &[Item<S::Tag>], done: Done) {
        let progress = &self.progress;
        add(&progress.applied, done.applied);
        add(&progress.duplicates, done.duplicates);
        add(&progress.stale, done.stale);
        add(&progress.parked, done.parked);
        add(&progress.batches, 1);
        if done.parked > 0 {
            let (consumer, parked) = (&*self.rules.name, done.parked);
            tracing::error!(consumer, parked, "ALARM: messages are parked");
        }
        if self.may_repeat() {
            self.acknowledge_later(tags(group)).await;
        }
    }

    /// One message failed by itself: it is tried again later, or parked.
    async fn failed(&mut self, mut item: Item<S::Tag>, failure: Failure) {
        let (consumer, id) = (&*self.rules.name, item.received.id());
        let reason = match failure {
            Failure::Busy(reason) | Failure::Database(reason) | Failure::Unclear(reason) => {
                tracing::debug!(
                    consumer,
                    id,
                    reason,
                    "a message waits for another transaction"
                );
                self.backlog.put_first(item, Instant::now() + PAUSE_MIN);
                return;
            }
            Failure::Handler(reason) => reason,
        };
        add(&self.progress.failed, 1);
        tracing::warn!(consumer, id, reason, "a message failed");
        let Some(failures) = self.count(&item, &reason).await else {
            self.let_go(item).await;
            return;
        };
        item.failures = failures;
        let verdict = Verdict::Failed(String::new());
        let pause = match self.rules.retry.next(&verdict, failures, random()) {
            Next::RetryAfter(pause) => pause,
            Next::GiveUp(_) => PAUSE_MIN,
        };
        self.backlog.put_first(item, Instant::now() + pause);
    }

    /// Under `at-most-once` what failed is not tried again.
    fn lose(&self, group: &[Item<S::Tag>], failure: &Failure) {
        add(&self.progress.lost, group.len());
        let (consumer, messages) = (&*self.rules.name, group.len());
        tracing::warn!(consumer, messages, ?failure, "messages are lost");
    }

    /// Counts a failure in the database. `None`: the message is parked now.
    async fn count(&mut self, item: &Item<S::Tag>, reason: &str) -> Option<u32> {
        let message = &item.received;
        let consumer = &*self.rules.name;
        let counted = count_failure(&mut self.database, &self.rules, message, reason).await;
        match counted {
            Ok(None) => {
                add(&self.progress.parked, 1);
                tracing::error!(
                    consumer,
                    id = message.id(),
                    reason,
                    "ALARM: a message is parked"
                );
                None
            }
            Ok(failures) => failures,
            // Not counted, so it is tried once more.
            Err(failure) => {
                tracing::warn!(consumer, ?failure, "a failure of a message is not counted");
                Some(item.failures.max(1))
            }
        }
    }

    async fn let_go(&mut self, item: Item<S::Tag>) {
        self.acknowledge_later(item.tags).await;
    }

    /// The broker delivers these to another member.
    fn leave(&mut self, group: impl IntoIterator<Item = Item<S::Tag>>) {
        self.left
            .extend(group.into_iter().flat_map(|item| item.tags));
    }

    /// Acknowledges, now or when the broker can be told.
    async fn acknowledge_later(&mut self, tags: Vec<S::Tag>) {
        if let Err(outage) = self.acknowledge(tags).await {
            self.tell_outage(&outage.reason);
        }
    }

    /// Acknowledges these, and what could not be acknowledged before.
    async fn acknowledge(&mut self, tags: Vec<S::Tag>) -> Result<(), Outage> {
        self.unacknowledged.extend(tags);
        if !self.unacknowledged.is_empty() {
            self.source.broker.acknowledge(&self.unacknowledged).await?;
            self.unacknowledged.clear();
        }
        Ok(())
    }

    /// Tries parked messages again that an operator asked for, and asks the broker how far it is.
    async fn look(&mut self, stop: &CancellationToken) -> Result<(), Outage> {
        while self.may_repeat() && !stop.is_cancelled() {
            let applied = apply_parked(&mut self.database, &self.handler, &self.rules);
            let tags = self.backlog.tags();
            match self.source.keep_during(&tags, applied).await {
                Ok(None) => break,
                Ok(Some(done)) => add(&self.progress.retried, done.applied),
                Err(failure) => {
                    let consumer = &*self.rules.name;
                    tracing::warn!(consumer, ?failure, "a parked message was not applied");
                    break;
                }
            }
        }
        let lag = self.source.broker.lag().await?;
        self.progress.set_lag(lag);
        Ok(())
    }

    async fn check_window(&mut self) -> Result<(), Outage> {
        let retention = self.source.broker.retention().await?;
        if let Err(error) = self.rules.check_window(retention) {
            let consumer = &*self.rules.name;
            tracing::error!(consumer, "ALARM: {error}");
        }
        Ok(())
    }

    fn tell_outage(&self, reason: &str) {
        add(&self.progress.outages, 1);
        tracing::warn!(consumer = &*self.rules.name, reason, "a consumer waits");
    }

    fn count_waiting(&self) {
        let waiting = self.backlog.len() as u64;
        self.progress.waiting.store(waiting, Ordering::Relaxed);
    }
}

enum Registering {
    Impossible(StartError),
    Unavailable(String),
}

fn unavailable(error: impl std::fmt::Display) -> Registering {
    Registering::Unavailable(error.to_string())
}

fn is_suspect<T>(item: &Item<T>) -> bool {
    let deliveries = item.received.deliveries.unwrap_or_default();
    deliveries > SUSPECT_AFTER
}

/// A source, some of whose deliveries are worked on, or wait.
pub(super) struct Kept<S> {
    pub(super) broker: S,
    /// When they are to be kept again.
    next: Instant,
}

impl<S: Source> Kept<S> {
    pub(super) fn new(broker: S) -> Kept<S> {
        Kept {
            broker,
            next: Instant::now(),
        }
    }

    /// The earlier of this moment and the one at which deliveries are to be kept again.
    pub(super) fn due_before(&self, moment: Instant) -> Instant {
        match self.broker.keep_every() {
            Some(_) => moment.min(self.next),
            None => moment,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.broker.keep_every().is_some() && self.next <= Instant::now()
    }

    /// Waits for the work, and meanwhile keeps the broker from delivering these again. A broker that
    /// cannot be told is no reason to leave the work: the receipts stop a second delivery.
    pub(super) async fn keep_during<T>(
        &mut self,
        tags: &[S::Tag],
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        if self.broker.keep_every().is_none() {
            return work.await;
        }
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep_until(self.next) => {}
            }
            // The work goes on while the broker is asked.
            let keeping = self.keep(tags);
            tokio::select! {
                done = &mut work => return done,
                kept = keeping => if let Err(outage) = kept {
                    tracing::warn!(%outage, "the broker may deliver messages again that are worked on");
                },
            }
        }
    }

    /// Keeps these: all that are open.
    pub(super) async fn keep(&mut self, tags: &[S::Tag]) -> Result<(), Outage> {
        self.next = Instant::now() + self.broker.keep_every().unwrap_or_default();
        match tags.is_empty() {
            true => Ok(()),
            false => self.broker.keep(tags).await,
        }
    }
}

/// A pause that doubles.
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Pause {
        Pause(PAUSE_MIN)
    }

    pub(super) fn reset(&mut self) {
        self.0 = PAUSE_MIN;
    }

    pub(super) async fn wait(&mut self, stop: &CancellationToken) {
        wait_until(Instant::now() + self.0, stop).await;
        self.0 = (2 * self.0).min(PAUSE_MAX);
    }
}

pub(super) async fn wait_until(until: Instant, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        () = stop.cancelled() => {}
    }
}

/// A number from 0 to 1.
pub(super) fn random() -> f64 {
    let (number, _) = uuid::Uuid::new_v4().as_u64_pair();
    number as f64 / u64::MAX as f64
}
