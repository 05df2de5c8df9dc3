//! Keeps the keys that verify tokens up to date with their source.
//!
//! A removed key verifies nothing from the moment the new set is read. This includes the last key:
//! an issuer withdraws it with an empty set. If a set cannot be read again, the old one stays valid
//! for `stale_max`. After that, it is unknown which keys were withdrawn, and tokens are refused for
//! the time being.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::StatusCode;
use http::header::{ACCEPT, HeaderMap, HeaderValue, USER_AGENT};
use jsonwebtoken::Algorithm;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::keys::KeySet;
use crate::config::{self, KeysFrom};
use crate::gateway::principal::fetch::Fetcher;
use crate::telemetry::Metrics;

/// The largest key set that is read.
const BYTES_MAX: usize = 256 << 10;
/// The timeout of fetching a URL.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a file is read. Its modification time is not used, because some deployment tools set
/// it back.
const FILE_EVERY: Duration = Duration::from_secs(1);
/// The minimal interval between readings that tokens with an unknown key cause: anyone can make up
/// names of keys.
const AGAIN_URL: Duration = Duration::from_secs(10);
const AGAIN_FILE: Duration = Duration::from_millis(100);
/// The delays after a failure of a URL: they begin at `RETRY_MIN` and double up to `RETRY_MAX`.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The keys, and the task that refreshes them. Dropping it ends the task.
pub(in crate::gateway::principal) struct Keeper {
    shared: Arc<Shared>,
    _keeping: AbortOnDropHandle<()>,
}

struct Shared {
    place: Place,
    /// The settings of the source: a new keeper with the same settings takes over these keys.
    settings: config::Jwt,
    held: ArcSwap<Held>,
    /// Locked while reading, so that a late answer does not overwrite a newer one. Holds the time
    /// of the last reading caused by an unknown key.
    reading: Mutex<Option<Instant>>,
    metrics: Metrics,
}

enum Place {
    File(PathBuf),
    Secret(PathBuf),
    Url(Fetcher),
}

/// The result of the last reading.
#[derive(Clone, Default)]
struct Held {
    keys: Option<Arc<KeySet>>,
    bytes: Bytes,
    read_at: Option<Instant>,
    /// The error since then, so that each is logged once.
    trouble: Option<String>,
}

impl Keeper {
    /// Reads the keys once. A bad file is an error; a URL that does not answer is not, because it
    /// may later.
    pub(in crate::gateway::principal) async fn start(
        settings: &config::Jwt,
        metrics: Metrics,
        before: Option<&Keeper>,
    ) -> Result<Keeper, String> {
        let place = match settings.keys().ok_or("[jwt] lacks its keys")? {
            KeysFrom::File(path) => Place::File(path),
            KeysFrom::Secret(path) => Place::Secret(path),
            KeysFrom::Url(url) => Place::Url(Fetcher::new(
                url.expose(),
                settings.ca_file.as_deref(),
                "jwt",
            )?),
        };
        let held = before
            .filter(|before| is_same_place(&before.shared.settings, settings))
            .map(|before| before.shared.held.load_full());
        let shared = Arc::new(Shared {
            place,
            settings: settings.clone(),
            held: ArcSwap::new(held.unwrap_or_default()),
            reading: Mutex::default(),
            metrics,
        });
        let read = shared.read(&mut *shared.reading.lock().await).await;
        if let (Err(error), Place::File(path) | Place::Secret(path)) = (read, &shared.place) {
            let setting = if matches!(shared.place, Place::File(_)) {
                "keys_file"
            } else {
                "secret_file"
            };
            return Err(format!("jwt.{setting} {}: {error}", path.display()));
        }
        let keeping = tokio::spawn(keep(shared.clone()));
        Ok(Keeper {
            shared,
            _keeping: AbortOnDropHandle::new(keeping),
        })
    }

    /// The keys that are valid now, or a label that says why there are none.
    pub(super) fn current(&self) -> Result<Arc<KeySet>, &'static str> {
        let held = self.shared.held.load();
        match (&held.keys, held.read_at) {
            (Some(keys), Some(read_at)) if read_at.elapsed() <= self.shared.settings.stale_max => {
                Ok(keys.clone())
            }
            (Some(_), _) => Err("keys_stale"),
            (None, _) => Err("keys_absent"),
        }
    }

    /// Reads the keys again because a token has an unknown key, unless that was done a moment ago.
    /// Returns whether the keys may have changed.
    ///
    /// If another task is reading, this waits for it.
    pub(super) async fn ask_again(&self) -> bool {
        let before = self.shared.held.load().bytes.clone();
        let mut last = self.shared.reading.lock().await;
        if last.is_none_or(|last| last.elapsed() >= self.shared.again_every()) {
            *last = Some(Instant::now());
            let _ = self.shared.read(&mut last).await;
        }
        self.shared.held.load().bytes != before
    }
}

/// Whether both settings name the same source of keys.
fn is_same_place(one: &config::Jwt, other: &config::Jwt) -> bool {
    one.keys() == other.keys() && one.algorithms == other.algorithms
}

/// Reads the keys at intervals until it is aborted.
async fn keep(shared: Arc<Shared>) {
    let mut failures = 0;
    loop {
        tokio::time::sleep(shared.pause(failures)).await;
        let mut reading = shared.reading.lock().await;
        failures = match shared.read(&mut reading).await {
            Ok(()) => 0,
            Err(_) => failures + 1,
        };
    }
}

impl Shared {
    fn again_every(&self) -> Duration {
        if matches!(self.place, Place::Url(_)) {
            AGAIN_URL
        } else {
            AGAIN_FILE
        }
    }

    /// The delay before the next reading, after `failures` failures in a row.
    fn pause(&self, failures: u32) -> Duration {
        match (&self.place, failures, self.held.load().keys.is_some()) {
            (Place::File(_) | Place::Secret(_), _, _) => FILE_EVERY,
            (Place::Url(_), 0, true) => self.settings.refresh,
            // The first reading, at the start, may have failed too.
            (Place::Url(_), failures, _) => RETRY_MIN
                .saturating_mul(1 << failures.min(5))
                .min(RETRY_MAX)
                .min(self.settings.refresh),
        }
    }

    /// Reads the keys. `_reading` proves that the caller holds the lock.
    async fn read(&self, _reading: &mut Option<Instant>) -> Result<(), String> {
        let (read, held) = (self.bytes().await, self.held.load_full());
        let parsed = read.and_then(|bytes| match &held.keys {
            // Usually nothing has changed.
            Some(keys) if held.bytes == bytes => Ok((keys.clone(), bytes)),
            _ => self.parse(&bytes).map(|keys| (Arc::new(keys), bytes)),
        });
        // If there never was a key, an empty set is not a withdrawal: the key has yet to be
        // provided.
        let parsed = parsed.and_then(|(keys, bytes)| match keys.lack() {
            Some(lack) if held.keys.is_none() => Err(lack.to_owned()),
            _ => Ok((keys, bytes)),
        });
        match parsed {
            Ok((keys, bytes)) => {
                self.metrics.jwt_keys_read(true);
                if held.bytes != bytes || held.trouble.is_some() {
                    tell(&keys);
                }
                self.held.store(Arc::new(Held {
                    keys: Some(keys),
                    bytes,
                    read_at: Some(Instant::now()),
                    trouble: None,
                }));
                Ok(())
            }
            Err(error) => {
                self.metrics.jwt_keys_read(false);
                self.complain(&held, &error);
                self.held.store(Arc::new(Held {
                    trouble: Some(error.clone()),
                    ..(*held).clone()
                }));
                Err(error)
            }
        }
    }

    fn complain(&self, held: &Held, error: &str) {
        if held.trouble.as_deref() == Some(error) {
            return;
        }
        let stale_max = self.settings.stale_max;
        match held.keys {
            Some(_) => tracing::warn!(
                error,
                ?stale_max,
                "the keys of tokens could not be read; those from before are used until they are too old"
            ),
            None => tracing::warn!(
                error,
                "the keys of tokens could not be read; guarded requests are refused until they can be"
            ),
        }
    }

    async fn bytes(&self) -> Result<Bytes, String> {
        match &self.place {
            Place::File(path) | Place::Secret(path) => {
                let bytes = tokio::fs::read(path)
                    .await
                    .map_err(|error| error.to_string())?;
                if bytes.len() > BYTES_MAX {
                    Err(format!("it has more than {BYTES_MAX} bytes"))
                } else {
                    Ok(bytes.into())
                }
            }
            Place::Url(fetcher) => {
                let fetched = fetcher
                    .get(question(), BYTES_MAX, FETCH_TIMEOUT)
                    .await
                    .map_err(|failed| failed.why)?;
                match fetched.status {
                    StatusCode::OK => Ok(fetched.body),
                    status => Err(format!("it answered with {status}")),
                }
            }
        }
    }

    fn parse(&self, bytes: &[u8]) -> Result<KeySet, String> {
        let algorithms: &[Algorithm] = &self.settings.algorithms;
        match self.place {
            Place::Secret(_) => KeySet::secret(bytes, algorithms),
            Place::File(_) | Place::Url(_) => KeySet::public(bytes, algorithms),
        }
    }
}

fn tell(keys: &KeySet) {
    match keys.lack() {
        Some(lack) => {
            tracing::warn!(
                lack,
                "the keys of tokens were all withdrawn: every token is refused until there is one again"
            );
        }
        None => tracing::info!(keys = keys.len(), "the keys of tokens were read"),
    }
}

fn question() -> HeaderMap {
    HeaderMap::from_iter([
        (
            ACCEPT,
            HeaderValue::from_static("application/jwk-set+json, application/json"),
        ),
        (USER_AGENT, HeaderValue::from_static("hapax")),
    ])
}
