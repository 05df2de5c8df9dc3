//! Rejections as responses: problem details (RFC 9457), and retry advice in every dialect that
//! clients obey.

use hapax_core::policy::KEY_FIELD;
use hapax_core::rejection::{Rejection, Retry};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::body::Body;
use super::fields::{RETRY_AFTER_MS, STRIPE_SHOULD_RETRY, X_SHOULD_RETRY};

/// The path of the pages about problems; the slug of the table follows. The `type` of a problem is
/// the path of its page.
pub const PAGES: &str = "/.well-known/idempotency/problems/";

/// All of [`problem_page`].
pub const PROBLEMS: &str = include_str!("../../problems.md");

/// What a person should know about problems of a kind, by its code: a section of
/// `docs/problems.md`. The gateway answers the path in the `type` of a problem with it, and a
/// service with this layer may do the same.
pub fn problem_page(code: &str) -> Option<&'static str> {
    let sections = PROBLEMS.split("\n## ").skip(1);
    sections
        .into_iter()
        .find(|section| section.lines().next() == Some(code))
}

/// A problem of another kind than Hapax's own rejections, told in the same form: for services
/// around the layer.
///
/// `code` is a word with hyphens, `title` says what kind of problem this is, `detail` what happened
/// this time.
pub fn problem(status: StatusCode, code: &str, title: &str, detail: &str) -> Response<Body> {
    of_document(status, document(status, code, title, detail, &[]))
}

fn of_document(status: StatusCode, document: String) -> Response<Body> {
    let mut response = Response::new(Body::from(document));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A rejection as the layer would answer it: for services around the layer that refuse a request in
/// its place.
pub fn rejected(rejection: &Rejection) -> Response<Body> {
    response(rejection, KEY_FIELD)
}

/// A rejection of a request whose key would be in `key_field`.
pub(super) fn response(rejection: &Rejection, key_field: &str) -> Response<Body> {
    let row = rejection.row();
    let status = StatusCode::from_u16(row.status).expect("the table holds valid statuses");
    let mut response = of_document(
        status,
        document(
            status,
            row.slug,
            row.title,
            &rejection.detail(key_field),
            &members(rejection),
        ),
    );
    advise(response.headers_mut(), row.retry);
    response.extensions_mut().insert(rejection.clone());
    response
}

/// Says whether to try again, in place of whatever was said before.
pub(super) fn advise(headers: &mut HeaderMap, retry: Retry) {
    let again = matches!(retry, Retry::After(_));
    // Some SDKs retry a 409 or a 500 unless told not to: saying no is as important as saying yes.
    for name in [X_SHOULD_RETRY, STRIPE_SHOULD_RETRY] {
        headers.insert(
            name,
            HeaderValue::from_static(if again { "true" } else { "false" }),
        );
    }
    headers.remove(RETRY_AFTER);
    headers.remove(RETRY_AFTER_MS);
    if let Retry::After(delay) = retry {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        headers.insert(RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000)));
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
    }
}

fn document(
    status: StatusCode,
    code: &str,
    title: &str,
    detail: &str,
    more: &[(&str, String)],
) -> String {
    let mut members = vec![
        ("type", quoted(&format!("{PAGES}{code}"))),
        ("title", quoted(title)),
        ("status", status.as_u16().to_string()),
        ("detail", quoted(detail)),
        ("code", quoted(code)),
        ("error", error(status, code, detail)),
    ];
    members.extend_from_slice(more);
    let members: Vec<_> = members
        .iter()
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!("{{{}}}\n", members.join(","))
}

/// The same for Stripe's SDKs, in the form that their API has. The one for Node looks at nothing
/// else: a body without it, whatever its status, it hands to its caller as a success.
fn error(status: StatusCode, code: &str, message: &str) -> String {
    let kind = if status.is_server_error() {
        "api_error"
    } else {
        "idempotency_error"
    };
    format!(
        "{{\"type\":{},\"code\":{},\"message\":{}}}",
        quoted(kind),
        quoted(code),
        quoted(message)
    )
}

/// What some rejections say besides.
fn members(rejection: &Rejection) -> Vec<(&'static str, String)> {
    match rejection {
        Rejection::AnswerNotKept { status, at } => {
            let finished = (
                "finished_at",
                quoted(&httpdate::fmt_http_date(at.to_system_time())),
            );
            status
                .map(|status| ("original_status", status.to_string()))
                .into_iter()
                .chain([finished])
                .collect()
        }
        Rejection::KeyExpired {
            last: Some(last), ..
        } => vec![("last_state", quoted(last.word()))],
        _ => Vec::new(),
    }
}

/// A JSON string. What goes in is text for people: control characters, which it should not hold,
/// become spaces.
fn quoted(text: &str) -> String {
    let text = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace(|character: char| character.is_control(), " ");
    format!("\"{text}\"")
}
