//! Work without HTTP whose request and value are JSON.

use bytes::Bytes;
use hapax_core::key::{Key, KeyError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::BoxError;
use super::operation::Operation;
use super::run::{Done, Once, Value};
use super::run_error::RunError;

/// Runs named work once per key, with JSON in place of bytes: see [`Once::json`].
#[derive(Clone, Debug)]
pub struct JsonOnce(Once);

/// A value that is kept as JSON.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize + DeserializeOwned + Send + 'static> Value for Json<T> {
    fn write(&self) -> Option<Bytes> {
        match serde_json::to_vec(&self.0) {
            Ok(json) => Some(json.into_boxed_slice().into()),
            Err(error) => {
                tracing::error!(
                    %error,
                    "the work is done, but its value cannot be written as JSON and is not kept: a repeat gets answer-not-kept"
                );
                None
            }
        }
    }

    fn read(kept: &Bytes) -> Result<Self, RunError> {
        serde_json::from_slice(kept)
            .map(Json)
            .map_err(RunError::Value)
    }
}

impl JsonOnce {
    pub(super) fn new(once: Once) -> Self {
        JsonOnce(once)
    }

    pub(crate) fn once(&self) -> &Once {
        &self.0
    }

    /// Runs `work` and keeps its value, as [`Once::run`] does, but with JSON.
    ///
    /// `request` is any value that serde can write, owned or borrowed. Two requests are compared as
    /// JSON: the order of members does not count, unless two names differ only in letter case. If the kept value cannot be read as `T`, the
    /// result is [`RunError::Value`]. Work that ends with [`Operation::finish`] must store the JSON
    /// of its value as the body of its answer.
    pub async fn run<K, Q, T, W, F, E>(
        &self,
        key: K,
        request: Q,
        work: W,
    ) -> Result<Done<T>, RunError>
    where
        K: TryInto<Key>,
        K::Error: Into<KeyError>,
        Q: Serialize,
        T: Serialize + DeserializeOwned + Send + 'static,
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let request = serde_json::to_vec(&request).map_err(RunError::Request)?;
        let work = move |operation| {
            let work = work(operation);
            async move { work.await.map(Json) }
        };
        let content_type = Some("application/json");
        let done = self.0.run_as(key, content_type, request.into(), work);
        let Done {
            value: Json(value),
            replayed,
        } = done.await?;
        Ok(Done { value, replayed })
    }
}
