//! The terms of routes, each stored once: the database needs them when an upstream completes a
//! record in its own transaction. Their number is computed from their content, like that of a
//! [policy](super::policies).

use std::collections::HashMap;
use std::sync::Arc;

use hapax_core::store::{StoreError, Terms};
use parking_lot::RwLock;
use tokio_postgres::types::Type;

use super::pipeline::{Parameters, Pipeline};
use super::policies;
use super::row::micros;

const SQL: &str = "SELECT hapax.term($1, $2, $3, $4, $5, $6, $7)";

/// The terms that were sent to the database, with their numbers.
#[derive(Default)]
pub(super) struct KnownTerms {
    numbers: RwLock<HashMap<Arc<Terms>, i64>>,
}

impl KnownTerms {
    /// The number of the terms, after making sure that the database has them.
    pub(super) async fn number(
        &self,
        terms: &Arc<Terms>,
        pipeline: &Arc<Pipeline>,
    ) -> Result<i64, StoreError> {
        if let Some(number) = self.numbers.read().get(terms) {
            return Ok(*number);
        }
        let number = policies::number(&text(terms));
        let Terms {
            lifetime,
            keep,
            bytes_max,
            cookies,
            version,
        } = &**terms;
        let parameters: Parameters<'_> = &[
            (&number, Type::INT8),
            (&micros(lifetime.retention), Type::INT8),
            (&micros(lifetime.tombstone), Type::INT8),
            (keep, Type::BOOL),
            (&bytes(*bytes_max), Type::INT8),
            (cookies, Type::BOOL),
            (
                &version.as_ref().map(|version| version.as_bytes()),
                Type::BYTEA,
            ),
        ];
        pipeline
            .ask(SQL, parameters)
            .await
            .map_err(|failure| failure.error)?;
        self.numbers.write().insert(terms.clone(), number);
        Ok(number)
    }

    /// Forgets what was sent, because the database may be another one now.
    pub(super) fn forget_sent(&self) {
        self.numbers.write().clear();
    }
}

/// The full content, so that no two terms have the same text. The numbers in records are computed
/// from it: never change it.
fn text(terms: &Terms) -> String {
    let Terms {
        lifetime,
        keep,
        bytes_max,
        cookies,
        version,
    } = terms;
    let (retention, tombstone, bytes_max) = (
        micros(lifetime.retention),
        micros(lifetime.tombstone),
        bytes(*bytes_max),
    );
    // At the end, because it may contain any text. An empty version differs from none.
    let version = version
        .as_ref()
        .map_or(String::new(), |version| format!(" version={version}"));
    format!(
        "terms 1 retention={retention} tombstone={tombstone} keep={keep} bytes_max={bytes_max} cookies={cookies}{version}"
    )
}

fn bytes(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hapax_core::store::Lifetime;

    use super::*;

    #[test]
    fn terms_have_the_same_number_for_ever_and_others_another() {
        let lifetime = Lifetime {
            retention: Duration::from_secs(60),
            tombstone: Duration::from_secs(600),
        };
        let terms = Terms {
            lifetime,
            keep: true,
            bytes_max: 1024,
            cookies: false,
            version: None,
        };
        assert_eq!(
            text(&terms),
            "terms 1 retention=60000000 tombstone=600000000 keep=true bytes_max=1024 cookies=false"
        );
        let others = [
            Terms {
                lifetime: Lifetime {
                    retention: Duration::from_secs(61),
                    ..lifetime
                },
                ..terms.clone()
            },
            Terms {
                lifetime: Lifetime {
                    tombstone: Duration::ZERO,
                    ..lifetime
                },
                ..terms.clone()
            },
            Terms {
                keep: false,
                ..terms.clone()
            },
            Terms {
                bytes_max: usize::MAX,
                ..terms.clone()
            },
            Terms {
                cookies: true,
                ..terms.clone()
            },
            Terms {
                version: Some("".into()),
                ..terms.clone()
            },
            Terms {
                version: Some("2".into()),
                ..terms.clone()
            },
        ];
        let numbers: std::collections::HashSet<_> = others
            .iter()
            .chain([&terms])
            .map(|terms| policies::number(&text(terms)))
            .collect();
        assert_eq!(numbers.len(), others.len() + 1);
    }
}
