//! The metrics of `hapax relay`, served at an address of their own.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use super::{Backlogs, Relays, Source};
use crate::admin;
use crate::telemetry::{Metrics, RelayStats, encode_relays};

/// The metrics of relays without a gateway.
pub(crate) struct RelayMetrics {
    stats: RelayStats,
    backlogs: Arc<Backlogs>,
}

impl RelayMetrics {
    pub(crate) fn new(source: &Source, relays: &Relays) -> RelayMetrics {
        let backlogs = Backlogs::new(source, relays.runtime.clone());
        let stats = stats(relays, &backlogs);
        RelayMetrics { stats, backlogs }
    }

    /// Serves them for ever.
    pub(crate) async fn serve(self, socket: TcpListener) {
        let shared = Arc::new(self);
        let scrape = move || {
            let metrics = shared.clone();
            async move {
                metrics.backlogs.refresh().await;
                let content_type = [(CONTENT_TYPE, admin::OPENMETRICS)];
                (content_type, encode_relays(&metrics.stats)).into_response()
            }
        };
        let router = Router::new().route("/metrics", get(scrape));
        // It counts connections, which nobody reads here.
        let counted = Metrics::new();
        admin::serve(socket, router, counted, admin::Limits::default()).await;
    }
}

/// What these relays report.
pub(crate) fn stats(relays: &Relays, backlogs: &Arc<Backlogs>) -> RelayStats {
    let backlogs = backlogs.clone();
    RelayStats::new(relays.progress.clone(), move || backlogs.known())
}
