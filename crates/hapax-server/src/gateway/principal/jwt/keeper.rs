//! Keeps the keys of tokens up to date with where they come from.
//!
//! A key that is no longer there verifies nothing from the moment the new set is read, the last one
//! as well: a set without any is how an issuer withdraws it. A set that cannot be had anew stays
//! good for `stale_max`; after that nobody knows which keys were withdrawn meanwhile, and tokens
//! are refused for the time being.

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

/// The largest set that is read.
const BYTES_MAX: usize = 256 << 10;
/// How long a URL may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a file is read. Reading it tells more than its times do, which some systems that put
/// files in place set back.
const FILE_EVERY: Duration = Duration::from_secs(1);
/// After a token of an unknown key, keys are not asked for again any sooner: anybody can make up
/// names of keys.
const AGAIN_URL: Duration = Duration::from_secs(10);
const AGAIN_FILE: Duration = Duration::from_millis(100);
/// After a failure of a URL: first so soon, then twice as long each time.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The keys, and whoever reads them anew. Dropping it ends that.
pub(in crate::gateway::principal) struct Keeper {
    shared: Arc<Shared>,
    _keeping: AbortOnDropHandle<()>,
}

struct Shared {
    place: Place,
    /// What the place was made of: another keeper of the same may go on with what this one has.
    settings: config::Jwt,
    held: ArcSwap<Held>,
    /// Taken by whoever reads: an answer on its way must not overwrite a later one. Holds when
    /// somebody last asked again.
    reading: Mutex<Option<Instant>>,
    metrics: Metrics,
}

enum Place {
    File(PathBuf),
    Secret(PathBuf),
    Url(Fetcher),
}

/// What was last read.
#[derive(Clone, Default)]
struct Held {
    keys: Option<Arc<KeySet>>,
    bytes: Bytes,
    read_at: Option<Instant>,
    /// What went wrong since, so that it is logged once.
    trouble: Option<String>,
}

impl Keeper {
    /// Reads the keys once. A file that is no good is a mistake; a URL that does not answer may
    /// yet.
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

    /// The keys that are good now; or, in a word, why there are none.
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

    /// Reads the keys because a token is not of those we have, unless that was done a moment ago.
    /// Whether they may be others now.
    ///
    /// Who comes while somebody else is reading waits for that.
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

/// The same keys may be expected there.
fn is_same_place(one: &config::Jwt, other: &config::Jwt) -> bool {
    one.keys() == other.keys() && one.algorithms == other.algorithms
}

/// Reads the keys now and then, for as long as it is kept.
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

    /// How long to wait before reading, after so many failures in a row.
    fn pause(&self, failures: u32) -> Duration {
        match (&self.place, failures, self.held.load().keys.is_some()) {
            (Place::File(_) | Place::Secret(_), _, _) => FILE_EVERY,
            (Place::Url(_), 0, true) => self.settings.refresh,
            // The first reading, at the start, may have failed as well.
            (Place::Url(_), failures, _) => RETRY_MIN
                .saturating_mul(1 << failures.min(5))
                .min(RETRY_MAX)
                .min(self.settings.refresh),
        }
    }

    /// Reads the keys. `_reading` shows that nobody else does.
    async fn read(&self, _reading: &mut Option<Instant>) -> Result<(), String> {
        let (read, held) = (self.bytes().await, self.held.load_full());
        let parsed = read.and_then(|bytes| match &held.keys {
            // Most of the time nothing has changed.
            Some(keys) if held.bytes == bytes => Ok((keys.clone(), bytes)),
            _ => self.parse(&bytes).map(|keys| (Arc::new(keys), bytes)),
        });
        // Where there never was a key none was withdrawn: somebody has yet to put one there.
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
