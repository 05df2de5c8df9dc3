//! For the upstream's reconciliation job: it lists unknown outcomes and settles them.
//!
//! The job knows the operation id and the fence that came with the request, but neither principals
//! nor answers. It has its own token, which gives access to these two paths only.

use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query as QueryString, State};
use axum::{Extension, Json};
use bytes::Bytes;
use hapax::core::audit::LogQuery;
use hapax::core::record::{Head, Record, State as Stands};
use hapax::core::time::Timestamp;
use hapax::{RecordId, Settlement};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::caller::Caller;
use super::keys::operate::{OperateError, record_id};
use super::keys::time::Time;
use super::keys::wire::{Entry, Outcome, Query, Settle, Signed};
use super::keys::{now, read, settlement, unreadable_query};
use super::problem::{self, Problem};
use super::{Admin, operation};

pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(unknown))
        .routes(routes!(settle))
}

/// Which page of what is unknown.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Paging {
    /// `next` of the page before.
    #[param(pattern = "^[0-9a-f]{64}$")]
    after: Option<String>,
    /// At most so many, and never more than 1,000.
    limit: Option<usize>,
}

/// A page of what nobody knows the outcome of.
#[derive(Serialize, ToSchema)]
struct Unknowns {
    unknown: Vec<Unknown>,
    /// What to ask for with `after` to go on; there may be more even if this page is empty.
    next: Option<String>,
}

/// An operation whose outcome is unknown, as its upstream knows it.
#[derive(Serialize, ToSchema)]
struct Unknown {
    #[schema(pattern = "^[0-9a-f]{64}$")]
    record: String,
    /// `Hapax-Operation` of the request.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    operation_id: String,
    /// `Hapax-Fence` of the attempt that was lost.
    fence: u64,
    method: String,
    path: String,
    key: String,
    /// When the attempt that was lost began.
    since: Time,
}

/// What the upstream's job has found out.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Found {
    /// `Hapax-Operation`, as the upstream was given it. This or `record` must be said.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    operation_id: Option<String>,
    /// The record, as `/v1/unknown` names it.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    record: Option<String>,
    /// `Hapax-Fence` of the attempt that this is about.
    #[schema(format = "uint64")]
    fence: u64,
    outcome: Outcome,
    /// With `done`: what a repeat is answered with. The others take none of these.
    #[schema(minimum = 200, maximum = 599)]
    status: Option<u16>,
    #[serde(default)]
    headers: Vec<(String, String)>,
    body: Option<String>,
    /// The body of an answer that is no text.
    body_base64: Option<String>,
    /// How it was found out, in up to 2,000 bytes.
    #[schema(min_length = 1)]
    reason: String,
}

/// How the record stands after it was settled, now or before.
#[derive(Serialize, ToSchema)]
struct Settled {
    #[schema(pattern = "^[0-9a-f]{64}$")]
    record: String,
    #[schema(pattern = "^[0-9a-f]{64}$")]
    operation_id: String,
    #[schema(pattern = "^(completed|retryable)$")]
    state: String,
    /// It stood like this already, and nothing was changed.
    already: bool,
}

/// What is open: every operation whose outcome is unknown
#[utoipa::path(get, path = "/v1/unknown", tag = "settle", params(Paging), responses((status = 200, body = Unknowns, description = "In the order of record ids.")))]
async fn unknown(
    State(admin): State<Admin>,
    paging: Result<QueryString<Paging>, QueryRejection>,
) -> Result<Json<Unknowns>, Problem> {
    let QueryString(paging) = paging.map_err(unreadable_query)?;
    let query = Query {
        state: Some(Stands::Unknown.word().to_owned()),
        namespace: Some(admin.rules.load().namespace.to_string()),
        after: paging.after,
        limit: paging.limit,
        ..Query::default()
    };
    let page = admin.operate().list(&query).await?;
    Ok(Json(Unknowns {
        unknown: page.keys.into_iter().map(Unknown::from).collect(),
        next: page.next,
    }))
}

/// States what became of an unknown, as its upstream found out
///
/// Only of the attempt with this fence. Saying the same again is answered like the first time.
#[utoipa::path(
    post,
    path = "/v1/settle",
    tag = "settle",
    request_body = Found,
    responses(
        (status = 200, body = Settled, description = "Settled, now or before."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`operation-not-found`, `key-not-found`: there is no such record in this namespace, or none that can be found by its operation."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "`in-flight`: the attempt is still running, see `Retry-After`. `other-fence`: this cannot be the attempt that was lost, or that ended. `settled-otherwise`: its outcome is known, and is another. `changed-meanwhile`: ask again.",
            headers(("Retry-After" = Option<String>, description = "With `in-flight`: seconds until the lease is over."))),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn settle(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Settled>, Problem> {
    let found: Found = read(&headers, body)?;
    let (settlement, signed) = found.judged(caller).map_err(Problem::bad_request)?;
    let id = admin.record_of(&found).await?;
    let (record, state) = admin.hapax.look(id).await?;
    if *record.head.scope.namespace != *admin.rules.load().namespace {
        return Err(not_found());
    }
    let operate = admin.operate();
    let settlement = operate.versioned(settlement, &record.head);
    if !record.head.is_unresolved(state) {
        let already = admin.already(&record, state, &settlement)?;
        admin.may_have_ended(&record.head, found.fence).await?;
        return Ok(Json(already));
    }
    settlement::is_about(&record.head, found.fence).map_err(OperateError::OtherFence)?;
    let head = operate
        .settle_attempt(&record.head, record.head.fence, settlement, &signed)
        .await?;
    Ok(Json(admin.settled(&head, head.state, false)))
}

impl Found {
    /// Checks the request, and returns the settlement and who signs it.
    fn judged(&self, caller: Caller) -> Result<(Settlement, Signed), String> {
        let settle = Settle {
            outcome: self.outcome,
            fence: Some(self.fence),
            status: self.status,
            headers: self.headers.clone(),
            body: self.body.clone(),
            body_base64: self.body_base64.clone(),
            by: caller.name().to_owned(),
            reason: self.reason.clone(),
        };
        Ok((
            settlement::parse(&settle)?,
            Signed::of_caller(caller, settle.reason)?,
        ))
    }
}

impl From<Entry> for Unknown {
    fn from(entry: Entry) -> Unknown {
        Unknown {
            record: entry.id,
            operation_id: entry.operation_id,
            fence: entry.fence,
            method: entry.method,
            path: entry.path,
            key: entry.key,
            since: entry.claimed_at,
        }
    }
}

impl Admin {
    /// The record that the request names. If the request gives both ids, they must belong to one
    /// record.
    async fn record_of(&self, found: &Found) -> Result<RecordId, Problem> {
        let record = found.record.as_deref().map(record_id).transpose()?;
        let Some(operation) = &found.operation_id else {
            return record
                .ok_or_else(|| Problem::bad_request("say which: `operation_id`, or `record`"));
        };
        if !operation::is_spelled_well(operation) {
            return Err(Problem::bad_request(
                "`operation_id` is not 64 lower-case hexadecimal digits: send Hapax-Operation as it came",
            ));
        }
        let named = operation::find(&self.hapax, &self.operation_ids, operation)
            .await?
            .map(|head| head.id);
        match record {
            Some(record)
                if !record
                    .to_string()
                    .starts_with(operation::beginning(operation)) =>
            {
                Err(Problem::bad_request(
                    "`operation_id` and `record` are of two records: leave one of them out",
                ))
            }
            _ => named.ok_or_else(not_found),
        }
    }

    /// The answer for a record whose outcome is not unknown: success if it is in the stated outcome
    /// already, or else a conflict that says what it is in.
    fn already(
        &self,
        record: &Record,
        state: Stands,
        settlement: &Settlement,
    ) -> Result<Settled, Problem> {
        let head = &record.head;
        if state == Stands::Running {
            return Err(in_flight(head, now()));
        }
        let is_as_said = match settlement {
            Settlement::Done(answer) => {
                state == Stands::Completed && record.answer.as_deref() == Some(answer)
            }
            Settlement::DoneWithoutAnswer => state == Stands::Completed && !head.kept,
            Settlement::NotDone => state == Stands::Retryable,
        };
        if is_as_said {
            return Ok(self.settled(head, state, true));
        }
        let status = head
            .answered()
            .map(|status| format!(", answered with {status}"))
            .unwrap_or_default();
        Err(Problem::conflict(
            "settled-otherwise",
            format!(
                "the outcome is known, and is another: it is {}{status}",
                state.word()
            ),
        ))
    }

    /// Checks that the attempt with this fence may be the one that ended or was settled. An attempt
    /// that ended by itself has its record's fence. A settlement raises the record's fence, so only
    /// bounds are known after it: the attempt's fence is at least its claim time in microseconds,
    /// and below the record's fence.
    async fn may_have_ended(&self, head: &Head, fence: u64) -> Result<(), Problem> {
        let last = self.hapax.log(LogQuery::latest(1).of(head.id)).await?;
        let was_settled = last
            .iter()
            .filter_map(|entry| entry.touched.as_ref())
            .any(|touched| touched.version == head.version);
        let is_possible = match was_settled {
            true => (head.claimed_at.as_micros()..head.fence.as_u64()).contains(&fence),
            false => head.fence.as_u64() == fence,
        };
        if is_possible {
            return Ok(());
        }
        let detail = format!(
            "the outcome is known, but not of an attempt with the fence {fence}: look what became of that one"
        );
        Err(Problem::conflict("other-fence", detail))
    }

    fn settled(&self, head: &Head, state: Stands, already: bool) -> Settled {
        Settled {
            record: head.id.to_string(),
            operation_id: self
                .operation_ids
                .make(&head.id, head.created_at)
                .to_string(),
            state: state.word().to_owned(),
            already,
        }
    }
}

fn not_found() -> Problem {
    let detail = "no record is found by that operation: those that are open are, and of the others the first; give `record` for the rest";
    Problem::new(StatusCode::NOT_FOUND, "operation-not-found", detail)
}

fn in_flight(head: &Head, now: Timestamp) -> Problem {
    let seconds = head.lease_until.since(now).as_secs() + 1;
    Problem::conflict(
        "in-flight",
        format!("the attempt is still running: nothing is unknown yet. Ask again in {seconds} s"),
    )
    .with(RETRY_AFTER, HeaderValue::from(seconds))
}
