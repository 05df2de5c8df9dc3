//! Reloads the configuration for an operator, on behalf of `hapax reload`.

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::{Extension, Json};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Admin;
use super::caller::Caller;
use super::keys::read;
use super::keys::wire::Signed;
use super::problem::{self, Problem};

/// Reads the configuration again and puts it in use. The argument says whether scopes may change.
pub(crate) type Reloader = Arc<
    dyn Fn(bool) -> Pin<Box<dyn Future<Output = Result<Vec<Changed>, NotReloaded>> + Send>>
        + Send
        + Sync,
>;

/// Why the configuration was not replaced.
pub(crate) struct NotReloaded {
    /// One of the codes that `/v1/reload` documents.
    pub(crate) code: &'static str,
    pub(crate) detail: String,
}

/// What is asked for, and by whom.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reload {
    /// Take it also if retries under way would not find their keys again.
    #[serde(default)]
    pub(crate) allow_scope_change: bool,
    /// Who asks.
    pub(crate) by: String,
    /// Why. Must be said where a promise may be broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Reloaded {
    pub(crate) changes: Vec<Changed>,
}

/// A setting that has another value now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Changed {
    /// With that of its section or route.
    pub(crate) setting: String,
    /// What it was; absent if there was none.
    pub(crate) from: Option<String>,
    /// What it is; absent if there is none.
    pub(crate) to: Option<String>,
}

/// The route of this module.
pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new().routes(routes!(reload))
}

/// Has the configuration read again, and taken if nothing speaks against it
///
/// A SIGHUP does the same, but cannot allow anything nor say what came of it. Requests under way
/// end under the configuration they began under, and connections stay.
#[utoipa::path(
    post,
    path = "/v1/reload",
    tag = "configuration",
    request_body = Reload,
    responses(
        (status = 200, body = Reloaded, description = "Taken. These settings changed."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "The configuration in use stays. `nothing-to-reload`: there is no file. `restart-needed`: a setting changed that only a start can change. `promises-broken`: retries under way would not find their keys again."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
        (status = 422, body = problem::Document, content_type = "application/problem+json", description = "`configuration-bad`: it has mistakes, told with their lines. The one in use stays."),
    )
)]
async fn reload(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Reloaded>, Problem> {
    let Reload {
        allow_scope_change,
        by,
        reason,
    } = read(&headers, body)?;
    let reason = match (reason, allow_scope_change) {
        (Some(reason), _) => reason,
        (None, false) => "to read the configuration again".to_owned(),
        (None, true) => {
            return Err(Problem::bad_request(
                "`reason` is missing: say why promises to callers may be broken",
            ));
        }
    };
    let signed = Signed { by, reason }
        .signed_by(caller)
        .map_err(Problem::bad_request)?;
    let reloader = admin
        .reloader
        .ok_or_else(|| Problem::conflict("nothing-to-reload", "there is nothing to reload"))?;
    if allow_scope_change {
        // Logged before it happens, so that no promise is broken without a name in the log.
        admin
            .hapax
            .note("reload-with-scope-change", signed.audit())
            .await?;
    }
    let reloaded = reloader(allow_scope_change).await;
    let action = if reloaded.is_ok() {
        "reload"
    } else {
        "reload-refused"
    };
    let is_noted = allow_scope_change && reloaded.is_ok();
    if !is_noted && let Err(error) = admin.hapax.note(action, signed.audit()).await {
        // A failing log does not prevent the reload: the new configuration may be what repairs the
        // store.
        tracing::warn!(%error, "a reload is missing in the audit log");
    }
    Ok(Json(Reloaded { changes: reloaded? }))
}

impl From<NotReloaded> for Problem {
    fn from(error: NotReloaded) -> Problem {
        let status = match error.code {
            "configuration-bad" => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::CONFLICT,
        };
        Problem::new(status, error.code, error.detail)
    }
}
