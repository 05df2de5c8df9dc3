//! What a relay does while it has the reader.
//!
//! There is one loop. It publishes a page, then marks how far it has got; in between it renews the
//! lease, and takes what became of messages that were set aside and are sent beside it. `blocked`
//! has every topic and key of which a message is set aside: later messages of such a key are set
//! aside too, so that they are published behind it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::flow::{Envelope, Next, Outage, Plan, Verdict};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{Options, Progress, Relay};
use crate::outbox::{Aside, Due, End, Held, Outbox, OutboxError, Page, PageLimit};
use crate::publish::Publisher;

/// A position is written down this often at least while messages are published, or after this many.
const MARK_EVERY: Duration = Duration::from_millis(250);
const MARK_MESSAGES: u64 = 5000;
/// How often messages that were set aside are looked for.
const RETRY_POLL: Duration = Duration::from_millis(250);
/// Messages that are sent again at the same time.
const RETRIES: PageLimit = PageLimit {
    messages_max: 256,
    bytes_max: 4 << 20,
};
/// How long an attempt may take until the message is due again by itself: longer than any
/// destination takes for one.
const RETRY_PATIENCE: Duration = Duration::from_secs(120);
/// How often tables with nothing left to publish are emptied.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// The pause after a destination took nothing, doubled each time.
const OUTAGE_PAUSE_MIN: Duration = Duration::from_millis(50);
const OUTAGE_PAUSE_MAX: Duration = Duration::from_secs(5);

pub(super) struct Session<O: Outbox> {
    outbox: Arc<O>,
    publisher: Arc<dyn Publisher>,
    options: Options,
    progress: Arc<Progress>,
    held: Held,
    /// All before it is published or set aside.
    position: O::Position,
    /// Published since the last mark.
    unmarked: u64,
    /// When the last mark, which renewed the lease, was begun.
    marked_at: Instant,
    has_moved: bool,
    /// Topics and keys of which messages are set aside.
    blocked: HashSet<(String, String)>,
    /// Of these, keys of messages in the page under way, which will be set aside with its mark.
    entering: HashSet<(String, String)>,
    retries: Option<Retries>,
    look_for_due_at: Instant,
    sweep_at: Instant,
}

/// Messages that are sent again, beside the pages.
struct Retries {
    due: Arc<Vec<Due>>,
    sending: JoinHandle<Result<Vec<Verdict>, Outage>>,
}

impl<O: Outbox> Session<O> {
    pub(super) async fn begin(
        relay: &Relay<O>,
        held: Held,
        position: O::Position,
    ) -> Result<Session<O>, OutboxError> {
        let now = Instant::now();
        let mut session = Session {
            outbox: relay.outbox.clone(),
            publisher: relay.publisher.clone(),
            options: relay.options.clone(),
            progress: relay.progress.clone(),
            held,
            position,
            unmarked: 0,
            marked_at: now,
            has_moved: false,
            blocked: HashSet::new(),
            entering: HashSet::new(),
            retries: None,
            look_for_due_at: now,
            sweep_at: now,
        };
        let blocked = session.outbox.blocked(&session.held).await?;
        session.blocked = blocked.into_iter().collect();
        // From here the lease is known to be new, however long the way was.
        session.take_place().await?;
        Ok(session)
    }

    /// Publishes until it is told to stop.
    pub(super) async fn run(&mut self, stop: &CancellationToken) -> Result<(), OutboxError> {
        while !stop.is_cancelled() {
            let page = self.next_page().await?;
            if page.messages.is_empty() {
                self.move_to(page.next);
                if !page.look_again {
                    self.rest(stop).await?;
                }
            } else {
                self.publish_page(page, stop).await?;
            }
            self.keep_up().await?;
        }
        Ok(())
    }

    /// Publishes what there is, unless it is told to stop, and tries once what is set aside and due.
    pub(super) async fn drain(&mut self, stop: &CancellationToken) -> Result<(), OutboxError> {
        while !stop.is_cancelled() {
            let page = self.next_page().await?;
            let is_end = page.messages.is_empty() && !page.look_again;
            if page.messages.is_empty() {
                self.move_to(page.next);
            } else {
                self.publish_page(page, stop).await?;
            }
            if is_end {
                break;
            }
        }
        self.look_for_due_at = Instant::now();
        self.look_for_due().await?;
        self.end_retries().await?;
        Ok(())
    }

    /// Writes down the position and gives the reader up.
    pub(super) async fn end(mut self) -> Result<(), OutboxError> {
        self.end_retries().await?;
        self.mark(&[]).await?;
        self.outbox.release(&self.held).await
    }

    async fn next_page(&mut self) -> Result<Page<O::Position>, OutboxError> {
        let limit = self.limit(self.options.page);
        self.outbox.page(&self.position, limit).await
    }

    /// No more at once than the destination wants.
    fn limit(&self, limit: PageLimit) -> PageLimit {
        PageLimit {
            messages_max: limit.messages_max.min(self.publisher.batch_max()).max(1),
            ..limit
        }
    }

    fn move_to(&mut self, position: O::Position) {
        self.position = position;
        self.has_moved = true;
    }

    /// Publishes a page and moves behind it. Returns early, without moving, if it is told to stop
    /// during an outage.
    async fn publish_page(
        &mut self,
        page: Page<O::Position>,
        stop: &CancellationToken,
    ) -> Result<(), OutboxError> {
        // What follows a message that is set aside is not sent.
        let (follows, batch): (Vec<_>, Vec<_>) = page
            .messages
            .into_iter()
            .partition(|message| self.is_blocked(message));
        self.entering = follows.iter().filter_map(owned_key).collect();
        let Some(verdicts) = self.publish(&batch, stop).await? else {
            return Ok(());
        };
        let mut aside: Vec<Aside> = follows.iter().map(follower).collect();
        let Plan::GoOn { aside: failed } = Plan::after(&batch, &verdicts) else {
            return Err(OutboxError::Unavailable(
                "an outage was not repeated".into(),
            ));
        };
        let is_aside: HashSet<usize> = failed.iter().map(|(place, _)| *place).collect();
        for (place, (message, verdict)) in batch.iter().zip(&verdicts).enumerate() {
            if !is_aside.contains(&place) {
                self.progress.count_accepted(message, verdict);
                self.unmarked += 1;
            }
        }
        for (place, verdict) in &failed {
            let message = &batch[*place];
            aside.push(match verdict {
                Some(verdict) => Aside {
                    sequence: message.sequence,
                    end: Some(self.end_of(message, verdict, 1)),
                },
                None => follower(message),
            });
        }
        let keys = failed
            .iter()
            .map(|(place, _)| &batch[*place])
            .chain(&follows);
        self.entering = keys.filter_map(owned_key).collect();
        self.position = page.next;
        self.has_moved = true;
        if !aside.is_empty() {
            self.blocked.extend(self.entering.iter().cloned());
            self.progress.count_aside(aside.len());
            self.mark(&aside).await?;
        }
        self.entering.clear();
        Ok(())
    }

    fn is_blocked(&self, message: &Envelope) -> bool {
        !self.blocked.is_empty()
            && owned_key(message).is_some_and(|key| self.blocked.contains(&key))
    }

    /// Sends a batch until the destination takes some of it. `None`: told to stop before that.
    async fn publish(
        &mut self,
        batch: &[Envelope],
        stop: &CancellationToken,
    ) -> Result<Option<Vec<Verdict>>, OutboxError> {
        if batch.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let mut pause = OUTAGE_PAUSE_MIN;
        loop {
            let outage = match self.send(batch).await? {
                Ok(verdicts) => match Plan::after(batch, &verdicts) {
                    Plan::GoOn { .. } => return Ok(Some(verdicts)),
                    Plan::Repeat(outage) => outage,
                },
                Err(outage) => outage,
            };
            self.progress.count_outage();
            let (reader, reason) = (&self.options.reader, &outage.reason);
            if outage.permanent {
                self.outbox.stop(&self.held, reason).await?;
                return Err(OutboxError::Unavailable(format!(
                    "the reader was stopped: {reason}"
                )));
            }
            tracing::warn!(
                reader,
                reason,
                "the destination takes nothing; the batch is repeated"
            );
            if self.wait(pause, stop).await? {
                return Ok(None);
            }
            pause = (pause * 2).min(OUTAGE_PAUSE_MAX);
            self.take_place().await?;
        }
    }

    /// Keeps earlier relays out of the destination, and then makes sure that it still has the
    /// reader: a relay that was paused must not keep out the one that follows it.
    async fn take_place(&mut self) -> Result<(), OutboxError> {
        let (publisher, reader) = (self.publisher.clone(), self.options.reader.clone());
        let mut taking = publisher.take_place(&reader);
        loop {
            let renew_at = self.renew_at();
            tokio::select! {
                biased;
                taken = &mut taking => {
                    // If this fails, so does publishing.
                    if let Err(outage) = taken {
                        tracing::debug!(reader, %outage, "the destination cannot be taken now");
                    }
                    return self.mark(&[]).await;
                }
                () = sleep_until(renew_at) => self.mark(&[]).await?,
            }
        }
    }

    /// Sends a batch once. Renews the lease while that takes.
    async fn send(
        &mut self,
        batch: &[Envelope],
    ) -> Result<Result<Vec<Verdict>, Outage>, OutboxError> {
        // A relay that was paused for long must not send: another may have the reader.
        if self.marked_at.elapsed() >= self.held.lease * 2 / 3 {
            self.mark(&[]).await?;
        }
        let publisher = self.publisher.clone();
        let mut sending = publisher.publish(batch);
        loop {
            let renew_at = self.renew_at();
            tokio::select! {
                biased;
                verdicts = &mut sending => return Ok(verdicts),
                () = sleep_until(renew_at) => self.mark(&[]).await?,
                ended = retried(&mut self.retries) => self.take_verdicts(ended).await?,
            }
        }
    }

    /// What becomes of a message after an attempt.
    fn end_of(&self, message: &Envelope, verdict: &Verdict, attempts: u32) -> End {
        let reason = verdict.reason().unwrap_or("it was not sent").to_owned();
        let random = f64::from(u32::from_be_bytes(
            uuid::Uuid::new_v4().into_bytes()[..4]
                .try_into()
                .expect("four bytes"),
        )) / f64::from(u32::MAX);
        let end = match self.options.retry.next(verdict, attempts, random) {
            Next::RetryAfter(pause) => return End::Retry(pause, reason),
            Next::GiveUp(hapax_core::flow::GiveUp::Hold) => End::Hold(reason),
            Next::GiveUp(hapax_core::flow::GiveUp::Dead) => End::Dead(reason),
        };
        let (reader, id) = (&self.options.reader, message.id);
        let reason = verdict.reason().unwrap_or_default();
        tracing::error!(reader, %id, topic = message.topic, key = message.key, reason, attempts, "ALARM: a message was given up: see `hapax outbox list`");
        self.progress.count_given_up();
        end
    }

    // === Marks ===

    fn renew_at(&self) -> Instant {
        self.marked_at + self.held.lease / 3
    }

    async fn mark(&mut self, aside: &[Aside]) -> Result<(), OutboxError> {
        let begun = Instant::now();
        let published = self.unmarked;
        let marked = self
            .outbox
            .mark(&self.held, &self.position, published, aside);
        if let Err(error) = marked.await {
            if let OutboxError::TooManyAside(reason) = &error {
                self.outbox.stop(&self.held, reason).await?;
            }
            return Err(error);
        }
        self.unmarked = 0;
        self.has_moved = false;
        self.marked_at = begun;
        Ok(())
    }

    /// Marks if it is time to, looks for messages that are due, and empties tables.
    async fn keep_up(&mut self) -> Result<(), OutboxError> {
        let now = Instant::now();
        let is_due = self.unmarked > 0 && now >= self.marked_at + MARK_EVERY;
        if is_due || self.unmarked >= MARK_MESSAGES || now >= self.renew_at() {
            self.mark(&[]).await?;
        }
        self.look_for_due().await?;
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            // What could not be emptied now is emptied later.
            if let Err(error) = self.outbox.sweep().await {
                tracing::debug!(%error, "no table of the outbox was emptied");
            }
        }
        Ok(())
    }

    /// Waits for the next look at an empty outbox.
    async fn rest(&mut self, stop: &CancellationToken) -> Result<(), OutboxError> {
        self.wait(self.options.poll, stop).await.map(drop)
    }

    /// Waits this long, renewing the lease. Returns whether it was told to stop.
    async fn wait(
        &mut self,
        pause: Duration,
        stop: &CancellationToken,
    ) -> Result<bool, OutboxError> {
        let until = Instant::now() + pause;
        loop {
            let renew_at = self.renew_at();
            tokio::select! {
                () = stop.cancelled() => return Ok(true),
                () = sleep_until(until) => return Ok(false),
                () = sleep_until(renew_at) => self.mark(&[]).await?,
                ended = retried(&mut self.retries) => self.take_verdicts(ended).await?,
            }
        }
    }

    // === Messages that were set aside ===

    /// Sends what is due, beside the pages.
    async fn look_for_due(&mut self) -> Result<(), OutboxError> {
        let now = Instant::now();
        if self.retries.is_some() || now < self.look_for_due_at {
            return Ok(());
        }
        self.look_for_due_at = now + RETRY_POLL;
        let due = self
            .outbox
            .due(&self.held, self.limit(RETRIES), RETRY_PATIENCE)
            .await?;
        if due.is_empty() {
            return Ok(());
        }
        self.progress.count_retried(due.len());
        // Of a message that an operator has revived, the relay knows no key yet.
        let keys = due.iter().filter_map(|due| owned_key(&due.message));
        self.blocked.extend(keys);
        let due = Arc::new(due);
        let publisher = self.publisher.clone();
        let batch: Vec<Envelope> = due.iter().map(|due| due.message.clone()).collect();
        let sending = tokio::spawn(async move { publisher.publish(&batch).await });
        self.retries = Some(Retries { due, sending });
        Ok(())
    }

    /// Waits for what is sent again.
    async fn end_retries(&mut self) -> Result<(), OutboxError> {
        while self.retries.is_some() {
            let renew_at = self.renew_at();
            tokio::select! {
                ended = retried(&mut self.retries) => self.take_verdicts(ended).await?,
                () = sleep_until(renew_at) => self.mark(&[]).await?,
            }
        }
        Ok(())
    }

    /// Has messages wait for the end of an outage, without counting the attempt.
    async fn postpone(&mut self, due: &[Due], outage: &Outage) -> Result<(), OutboxError> {
        self.progress.count_outage();
        let reason = &outage.reason;
        if outage.permanent {
            self.outbox.stop(&self.held, reason).await?;
            let stopped = format!("the reader was stopped: {reason}");
            return Err(OutboxError::Unavailable(stopped));
        }
        let end = End::Postpone(OUTAGE_PAUSE_MAX, reason.clone());
        for one in due {
            self.outbox
                .end(&self.held, one.message.sequence, &end)
                .await?;
        }
        self.take_place().await
    }

    async fn take_verdicts(
        &mut self,
        (due, verdicts): (Arc<Vec<Due>>, Result<Vec<Verdict>, Outage>),
    ) -> Result<(), OutboxError> {
        self.retries = None;
        let verdicts = match verdicts {
            Ok(verdicts) => verdicts,
            Err(outage) => return self.postpone(&due, &outage).await,
        };
        for (one, verdict) in due.iter().zip(&verdicts) {
            let message = &one.message;
            let end = match verdict {
                Verdict::Accepted { .. } => {
                    self.progress.count_accepted(message, verdict);
                    End::Done
                }
                _ => self.end_of(message, verdict, one.attempts),
            };
            let is_free = self.outbox.end(&self.held, message.sequence, &end).await?;
            if let Some(key) = owned_key(message).filter(|_| is_free) {
                // Messages of the page under way that follow it are not written down yet.
                if !self.entering.contains(&key) {
                    self.blocked.remove(&key);
                }
            }
            // The next one of its key may go at once.
            self.look_for_due_at = Instant::now();
        }
        Ok(())
    }
}

/// Waits for the end of messages that are sent again; for ever if there are none.
async fn retried(retries: &mut Option<Retries>) -> (Arc<Vec<Due>>, Result<Vec<Verdict>, Outage>) {
    match retries {
        Some(retries) => {
            let ended = (&mut retries.sending).await;
            (retries.due.clone(), joined(ended))
        }
        None => std::future::pending().await,
    }
}

fn joined(
    ended: Result<Result<Vec<Verdict>, Outage>, tokio::task::JoinError>,
) -> Result<Vec<Verdict>, Outage> {
    match ended {
        Ok(verdicts) => verdicts,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Outage::new("the program is stopping")),
    }
}

fn follower(message: &Envelope) -> Aside {
    Aside {
        sequence: message.sequence,
        end: None,
    }
}

fn owned_key(message: &Envelope) -> Option<(String, String)> {
    let (topic, key) = message.ordered_key()?;
    Some((topic.to_owned(), key.to_owned()))
}
