//! The audit log: manual changes, who made them and why.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query as QueryString, State};
use hapax::core::audit::{LogQuery, Start};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Admin;
use super::keys::logged::LoggedPage;
use super::keys::operate::{OperateError, record_id};
use super::keys::unreadable_query;
use super::problem::Problem;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new().routes(routes!(log))
}

/// Which entries to read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only of this record.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(pattern = "^[0-9a-f]{64}$")]
    pub(crate) record: Option<String>,
    /// What came after the entry with this number, oldest first. Zero is the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(format = "uint64")]
    pub(crate) after: Option<u64>,
    /// What came before it, newest first. Without either: the latest, newest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(format = "uint64")]
    pub(crate) before: Option<u64>,
    /// At most so many, and never more than 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<usize>,
}

impl Which {
    /// The query to the store.
    pub(crate) fn query(&self) -> Result<LogQuery, OperateError> {
        let from = match (self.after, self.before) {
            (Some(_), Some(_)) => {
                return Err(OperateError::BadRequest(
                    "say `after` or `before`, not both".to_owned(),
                ));
            }
            (Some(after), None) => Start::After(after),
            (None, Some(before)) => Start::Before(before),
            (None, None) => Start::End,
        };
        let record = self.record.as_deref().map(record_id).transpose()?;
        Ok(LogQuery {
            record,
            from,
            limit: self.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX),
        })
    }
}

/// A page of the audit log: every change by hand, with who made it and why
#[utoipa::path(get, path = "/v1/log", tag = "log", params(Which), responses((status = 200, body = LoggedPage, description = "The entries.")))]
async fn log(
    State(admin): State<Admin>,
    which: Result<QueryString<Which>, QueryRejection>,
) -> Result<Json<LoggedPage>, Problem> {
    let QueryString(which) = which.map_err(unreadable_query)?;
    Ok(Json(admin.operate().log(&which).await?))
}
