//! Webhooks: each message is one signed request to a URL.
//!
//! ```no_run
//! use hapax_flow::publish::Webhook;
//! use hapax_flow::publish::webhook::{Endpoint, Options, Secret};
//!
//! let endpoint = Endpoint::new("https://example.com/hooks");
//! let mut options = Options::new(endpoint);
//! options.secrets = vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse::<Secret>()?];
//! let webhook = Webhook::new(options)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Messages are [`CloudEvents`], signed as Standard Webhooks says. `webhook-id` is the message id:
//! by it a receiver recognises a repeat. A relay that was paused and wakes up may repeat messages
//! that another relay has sent since, so messages of one key may interleave; the attribute
//! `entityversion` is for that.
//!
//! | Answer | Verdict |
//! |---|---|
//! | 2xx | accepted |
//! | 410 | an [`Outage`] for good: the receiver wants nothing more |
//! | 408, 425, 429, 5xx | failed; the reason has `Retry-After` |
//! | any other | refused. Redirects are not followed |
//! | none within the time limit, or the connection was lost | unclear |
//! | no connection: no address, none that may be reached, refused, no TLS | an [`Outage`] |

mod address;
mod harmless;
mod send;
mod sign;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use http::StatusCode;
use http::header::{self, HeaderName};
use tokio::sync::Semaphore;

pub use self::address::{Network, NetworkError};
use self::harmless::harmless;
use self::send::{Answer, Lost, Sender};
pub use self::send::{Endpoint, EndpointError};
pub use self::sign::{Secret, SecretError};
use super::chains::chains;
use super::cloud_events::CloudEvents;
use super::{Envelope, Outage, Publisher, Reply, Verdict};

/// What a [`Webhook`] sends, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where requests go.
    pub endpoint: Endpoint,
    /// Each signs every request. Two of them are a rotation: the receiver may have either. Without
    /// any, requests are not signed.
    pub secrets: Vec<Secret>,
    /// How messages look.
    pub events: CloudEvents,
    /// How many requests are under way at a time, over all keys.
    pub concurrency: NonZeroUsize,
}

impl Options {
    /// Sixteen requests at a time, in binary mode, without signatures.
    pub fn new(endpoint: Endpoint) -> Options {
        Options {
            endpoint,
            secrets: Vec::new(),
            events: CloudEvents::default(),
            concurrency: const { NonZeroUsize::new(16).unwrap() },
        }
    }
}

/// Posts each message to a URL.
pub struct Webhook {
    sender: Sender,
    secrets: Vec<Secret>,
    events: CloudEvents,
    /// Shared by all calls.
    permits: Semaphore,
    breadth: Breadth,
}

impl Webhook {
    /// A publisher to one endpoint. Reads the certificates that are trusted; sends nothing.
    ///
    /// # Errors
    ///
    /// [`EndpointError`] if nothing could ever be sent to the endpoint.
    pub fn new(options: Options) -> Result<Webhook, EndpointError> {
        let concurrency = options.concurrency.get().min(Semaphore::MAX_PERMITS);
        Ok(Webhook {
            sender: Sender::new(&options.endpoint)?,
            secrets: options.secrets,
            events: options.events,
            permits: Semaphore::new(concurrency),
            breadth: Breadth::new(concurrency),
        })
    }

    async fn publish_all(&self, batch: &[Envelope]) -> Result<Vec<Verdict>, Outage> {
        let call = Call {
            webhook: self,
            batch,
            breadth: Semaphore::new(self.breadth.get()),
            progress: Mutex::new(Progress {
                verdicts: vec![Verdict::NotSent; batch.len()],
                outage: None,
            }),
        };
        let chains = chains(batch);
        join_all(chains.iter().map(|chain| call.follow(chain))).await;
        let progress = call.into_progress();
        self.breadth.adjust(progress.outage.is_some());
        match progress.outage {
            Some(outage) => Err(outage),
            None => Ok(progress.verdicts),
        }
    }

    async fn publish_one(&self, message: &Envelope) -> Result<Verdict, Outage> {
        let (mut headers, body) = self.events.request(message);
        let id = message.id.to_string();
        sign::add_headers(&mut headers, &self.secrets, &id, now_seconds(), &body);
        match self.sender.post(headers, body).await {
            Ok(answer) => verdict(&answer),
            Err(Lost::Unclear(reason)) => Ok(Verdict::Unclear(reason)),
            Err(Lost::Unreachable(reason)) => Err(Outage::new(reason)),
        }
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("authority", &self.sender.authority())
            .field("secrets", &self.secrets)
            .finish_non_exhaustive()
    }
}

impl Publisher for Webhook {
    /// An outage found for one message stops the others of the call that have not begun. Those
    /// under way are waited for: a request that is dropped may still arrive, behind one that
    /// repeats it.
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(self.publish_all(batch))
    }

    /// Four messages for each request that may be under way: if none is answered, the call ends
    /// after four times the time limit.
    fn batch_max(&self) -> usize {
        self.breadth.max.saturating_mul(4)
    }
}

/// How many requests one call has under way: half as many after an outage, down to one, and twice
/// as many after a call without.
///
/// A server that takes few connections refuses the others. With a fixed number each call would end
/// as an outage, and the same batch would be sent for ever.
struct Breadth {
    now: AtomicUsize,
    max: usize,
}

impl Breadth {
    fn new(max: usize) -> Breadth {
        Breadth {
            now: AtomicUsize::new(max),
            max,
        }
    }

    fn get(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    fn adjust(&self, was_outage: bool) {
        let now = self.get();
        let next = match was_outage {
            true => (now / 2).max(1),
            false => now.saturating_mul(2).min(self.max),
        };
        // Calls at the same time may overwrite each other, which does no harm.
        self.now.store(next, Ordering::Relaxed);
    }
}

/// One call of [`Publisher::publish`].
struct Call<'a> {
    webhook: &'a Webhook,
    batch: &'a [Envelope],
    breadth: Semaphore,
    progress: Mutex<Progress>,
}

struct Progress {
    verdicts: Vec<Verdict>,
    outage: Option<Outage>,
}

impl Call<'_> {
    /// Sends the messages of a chain up to the first that is not accepted.
    async fn follow(&self, chain: &[usize]) {
        for &place in chain {
            let own = self.breadth.acquire().await.expect("it is never closed");
            let shared = self.webhook.permits.acquire().await;
            let _permits = (own, shared.expect("it is never closed"));
            if self.progress().outage.is_some() {
                return;
            }
            match self.webhook.publish_one(&self.batch[place]).await {
                Ok(verdict) => {
                    let is_accepted = verdict.is_accepted();
                    self.progress().verdicts[place] = verdict;
                    if !is_accepted {
                        return;
                    }
                }
                Err(outage) => return self.progress().stop(outage),
            }
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_progress(self) -> Progress {
        self.progress
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// Keeps the first outage, but one for good before any other.
    fn stop(&mut self, outage: Outage) {
        let is_first = self.outage.is_none();
        if is_first || outage.permanent {
            self.outage = Some(outage);
        }
    }
}

fn verdict(answer: &Answer) -> Result<Verdict, Outage> {
    let reason = || reason(answer);
    match answer.status {
        status if status.is_success() => Ok(Verdict::ACCEPTED),
        StatusCode::GONE => Err(Outage::for_good(reason())),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Ok(Verdict::Failed(reason()))
        }
        status if status.is_server_error() => Ok(Verdict::Failed(reason())),
        _ => Ok(Verdict::Refused(reason())),
    }
}

/// `503 Service Unavailable, Retry-After 30 s: the database is away`
fn reason(answer: &Answer) -> String {
    let mut reason = answer.status.to_string();
    if let Some(wait) = retry_after(answer) {
        reason += &format!(", Retry-After {} s", wait.as_secs());
    }
    if let Some(location) = field(answer, &header::LOCATION) {
        reason += &format!(", to {}, which is not followed", harmless(location));
    }
    if !answer.text.is_empty() {
        reason += &format!(": {}", answer.text);
    }
    reason
}

/// Seconds or a date.
fn retry_after(answer: &Answer) -> Option<Duration> {
    let text = std::str::from_utf8(field(answer, &header::RETRY_AFTER)?).ok()?;
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

fn field<'a>(answer: &'a Answer, name: &HeaderName) -> Option<&'a [u8]> {
    answer.headers.get(name).map(|value| value.as_bytes())
}

fn now_seconds() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_requests_are_under_way_after_each_outage_and_more_after_each_success() {
        let breadth = Breadth::new(6);
        let mut seen = Vec::new();
        for was_outage in [true, true, true, false, false, false, false] {
            breadth.adjust(was_outage);
            seen.push(breadth.get());
        }
        assert_eq!(seen, [3, 1, 1, 2, 4, 6, 6]);
    }

    #[test]
    fn an_outage_for_good_comes_before_any_other() {
        let mut progress = Progress {
            verdicts: Vec::new(),
            outage: None,
        };
        for outage in [
            Outage::new("first"),
            Outage::for_good("gone"),
            Outage::new("third"),
        ] {
            progress.stop(outage);
        }
        assert_eq!(progress.outage, Some(Outage::for_good("gone")));
    }
}
