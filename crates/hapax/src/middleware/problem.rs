//! Rejections as responses: problem details (RFC 9457), and retry advice in every dialect that clients obey.

use hapax_core::rejection::{Rejection, Retry};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use super::body::Body;
use super::headers::{RETRY_AFTER_MS, STRIPE_SHOULD_RETRY, X_SHOULD_RETRY};

/// What problem types begin with; the slug of the table follows.
const TYPE: &str = "urn:hapax:problem:";

pub(super) fn response(rejection: &Rejection) -> Response<Body> {
    let row = rejection.row();
    let mut response = Response::new(Body::from(document(rejection)));
    *response.status_mut() = StatusCode::from_u16(row.status).expect("the table holds valid statuses");
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let again = matches!(row.retry, Retry::After(_));
    // Some SDKs retry a 409 unless told not to: saying no is as important as saying yes.
    for name in [X_SHOULD_RETRY, STRIPE_SHOULD_RETRY] {
        headers.insert(name, HeaderValue::from_static(if again { "true" } else { "false" }));
    }
    if let Retry::After(delay) = row.retry {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        headers.insert(RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000)));
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
    }
    response.extensions_mut().insert(rejection.clone());
    response
}

fn document(rejection: &Rejection) -> String {
    let row = rejection.row();
    let mut members = vec![
        ("type", quoted(&format!("{TYPE}{}", row.slug))),
        ("title", quoted(row.title)),
        ("status", row.status.to_string()),
        ("detail", quoted(&rejection.detail())),
        ("code", quoted(row.slug)),
    ];
    match rejection {
        Rejection::AnswerNotKept { status, at } => {
            if let Some(status) = status {
                members.push(("original_status", status.to_string()));
            }
            members.push(("finished_at", quoted(&httpdate::fmt_http_date(at.to_system_time()))));
        }
        Rejection::KeyExpired { last: Some(last) } => members.push(("last_state", quoted(last.word()))),
        _ => {}
    }
    let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}\n", members.join(","))
}

/// A JSON string. What goes in is our own text: printable, with a quote here and there.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
