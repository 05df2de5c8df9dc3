//! Rejections as responses: problem details (RFC 9457), and retry advice in the fields that the
//! common clients obey.

use hapax_core::outcome::Class;
use hapax_core::policy::{KEY_FIELD, Policy};
use hapax_core::rejection::{Rejection, Retry};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::body::Body;
use super::fields::{OUTCOME, RETRY_AFTER_MS, STRIPE_SHOULD_RETRY, X_SHOULD_RETRY};

/// The path of the pages about problems, without the problem's code at its end. The `type` of a
/// problem is the path of its page.
pub const PAGES: &str = "/.well-known/idempotency/problems/";

/// The document that [`problem_page`] takes its sections from.
pub const PROBLEMS: &str = include_str!("../../problems.md");

/// The explanation of a kind of problem for a person, by its code: a section of `docs/problems.md`.
/// The gateway serves it at the path in the `type` of a problem, and a service with this layer may
/// do the same.
pub fn problem_page(code: &str) -> Option<&'static str> {
    let sections = PROBLEMS.split("\n## ").skip(1);
    sections
        .into_iter()
        .find(|section| section.lines().next() == Some(code))
}

/// A problem response that is not one of Hapax's rejections, in the same format: for services
/// around the layer.
///
/// `code` is a hyphenated identifier, `title` names the kind of problem, and `detail` explains this
/// occurrence.
/// `dialects` is [`Policy::retry_dialects`].
pub fn problem(
    status: StatusCode,
    code: &str,
    title: &str,
    detail: &str,
    dialects: bool,
) -> Response<Body> {
    let more = stripe_error(status, code, detail, dialects);
    document_response(status, document(status, code, title, detail, &more))
}

fn document_response(status: StatusCode, document: String) -> Response<Body> {
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

/// A rejection as the layer would answer it, for services around the layer that refuse a request
/// themselves. `dialects` is [`Policy::retry_dialects`].
pub fn rejected(rejection: &Rejection, dialects: bool) -> Response<Body> {
    respond(rejection, KEY_FIELD, dialects)
}

/// The response to a request that is refused under this policy.
pub(super) fn response(rejection: &Rejection, policy: &Policy) -> Response<Body> {
    respond(rejection, &policy.key_field, policy.retry_dialects)
}

fn respond(rejection: &Rejection, key_field: &str, dialects: bool) -> Response<Body> {
    let row = rejection.row();
    let status = StatusCode::from_u16(row.status).expect("the table holds valid statuses");
    let detail = rejection.detail(key_field);
    let mut more = stripe_error(status, row.slug, &detail, dialects);
    more.extend(members(rejection));
    let document = document(status, row.slug, row.title, &detail, &more);
    let mut response = document_response(status, document);
    advise(response.headers_mut(), row.retry, dialects);
    tell_nothing_was_begun(&mut response, rejection);
    response.extensions_mut().insert(rejection.clone());
    response
}

/// What a service's own response to a refused request must say besides.
pub(super) fn mend(
    mut response: Response<Body>,
    rejection: &Rejection,
    policy: &Policy,
) -> Response<Body> {
    let row = rejection.row();
    // A caller, or a layer outside that keeps answers, would take the refusal for a success.
    if response.status().as_u16() < 400 {
        *response.status_mut() =
            StatusCode::from_u16(row.status).expect("the table holds valid statuses");
    }
    let headers = response.headers_mut();
    advise(headers, row.retry, policy.retry_dialects);
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    tell_nothing_was_begun(&mut response, rejection);
    response.extensions_mut().insert(rejection.clone());
    response
}

/// Says to a gateway or a layer outside that a 500 of ours is no unknown outcome.
fn tell_nothing_was_begun(response: &mut Response<Body>, rejection: &Rejection) {
    if *rejection == Rejection::PrincipalNotSet {
        response
            .headers_mut()
            .insert(OUTCOME, HeaderValue::from_static("none"));
        response.extensions_mut().insert(Class::Release);
    }
}

/// Sets the retry advice, replacing any that is there.
pub(super) fn advise(headers: &mut HeaderMap, retry: Retry, dialects: bool) {
    let again = matches!(retry, Retry::After(_));
    headers.remove(RETRY_AFTER);
    // Without them, what the service says in a dialect is its own affair.
    if dialects {
        headers.remove(RETRY_AFTER_MS);
        // Some SDKs retry a 409 or a 500 unless told not to: saying no is as important as saying
        // yes.
        for name in [X_SHOULD_RETRY, STRIPE_SHOULD_RETRY] {
            headers.insert(
                name,
                HeaderValue::from_static(if again { "true" } else { "false" }),
            );
        }
    }
    if let Retry::After(delay) = retry {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        headers.insert(RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000)));
        if dialects {
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
        }
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
    ];
    members.extend_from_slice(more);
    let members: Vec<_> = members
        .iter()
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!("{{{}}}\n", members.join(","))
}

/// The error in the format of Stripe's API, for its SDKs. The Node SDK looks at nothing else: it
/// returns a body without this member as a success, whatever the status.
fn stripe_error(
    status: StatusCode,
    code: &str,
    message: &str,
    dialects: bool,
) -> Vec<(&'static str, String)> {
    if !dialects {
        return Vec::new();
    }
    let kind = if status.is_server_error() {
        "api_error"
    } else {
        "idempotency_error"
    };
    let error = format!(
        "{{\"type\":{},\"code\":{},\"message\":{}}}",
        quoted(kind),
        quoted(code),
        quoted(message)
    );
    vec![("error", error)]
}

/// The additional members of some rejections.
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

/// A JSON string. The input is text for people; control characters, which it should not contain,
/// become spaces.
fn quoted(text: &str) -> String {
    let text = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace(|character: char| character.is_control(), " ");
    format!("\"{text}\"")
}
