//! Asks the upstream what became of a lost attempt: one request, sent once, limited in time and
//! size.
//!
//! Only the two answers that change something count. After any other answer, the key stays unknown
//! and the next repeat asks again. `docs/modes.md` describes the protocol.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::core::outcome::{Said, classify};
use hapax::middleware::request_id::{self, REQUEST_ID};
use hapax::middleware::{CloseDelimited, Probing, is_never_kept};
use hapax::{Answer, Body, Class, Operation, Policy, Probe, Probed};
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, VIA};
use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Limited};
use tower_service::Service;

use super::BoxError;
use super::upstream::{OwnRequest, Proxy};

/// The longest that a probe may take, from connecting to the last byte.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

const FENCE: HeaderName = HeaderName::from_static("hapax-fence");
const OPERATION: HeaderName = HeaderName::from_static("hapax-operation");
const PROBE: HeaderName = HeaderName::from_static("hapax-probe");
const STATUS: HeaderName = HeaderName::from_static("hapax-status");

/// Probes at one path of the upstream, for the operations of one route.
pub(super) struct Asking {
    proxy: Proxy,
    path: PathAndQuery,
    policy: Arc<Policy>,
}

impl Asking {
    pub(super) fn new(proxy: &Proxy, path: &PathAndQuery, policy: &Policy) -> Asking {
        Asking {
            proxy: proxy.clone(),
            path: path.clone(),
            policy: Arc::new(policy.clone()),
        }
    }

    /// Less than the lease of the attempt that asks: after a takeover, no earlier probe may still
    /// be running.
    fn patience(&self) -> Duration {
        PATIENCE_MAX.min(self.policy.lease * 3 / 4)
    }

    async fn ask(&self, operation: &Operation) -> Result<Probed, BoxError> {
        let mut proxy = self.proxy.clone();
        let response = proxy.call(question(operation, &self.path)?).await?;
        match status_word(&response) {
            Some("barred") => Ok(Probed::Barred),
            Some("done") => done(response, &self.policy).await,
            _ => Err("it does not say that it is done, nor that it is barred".into()),
        }
    }
}

impl Probe for Asking {
    fn probe<'a>(&'a self, operation: &'a Operation) -> Probing<'a> {
        Box::pin(async move {
            let found = match tokio::time::timeout(self.patience(), self.ask(operation)).await {
                Ok(found) => found,
                Err(_) => Err(format!("it did not answer within {:?}", self.patience()).into()),
            };
            found.unwrap_or_else(|error| {
                operation.note_cause(format!(
                    "the service was asked what became of the attempt before, and {error}"
                ));
                Probed::Unknown
            })
        })
    }
}

fn question(operation: &Operation, path: &PathAndQuery) -> Result<Request<Body>, BoxError> {
    let mut request = Request::post(Uri::from(path.clone())).body(Body::empty())?;
    let headers = request.headers_mut();
    headers.insert(OPERATION, HeaderValue::try_from(operation.id().as_str())?);
    headers.insert(FENCE, HeaderValue::from(operation.fence().as_u64()));
    headers.insert(PROBE, HeaderValue::from_static("ask"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(VIA, HeaderValue::from_static("1.1 hapax"));
    let id = operation
        .request_id()
        .cloned()
        .unwrap_or_else(request_id::new_request_id);
    headers.insert(REQUEST_ID, request_id::value(&id));
    request.extensions_mut().insert(OwnRequest);
    Ok(request)
}

/// The result that the upstream gives, if it gives exactly one in a successful response. An error
/// page counts as no result, whatever its fields say.
fn status_word<B>(response: &Response<B>) -> Option<&str> {
    response
        .status()
        .is_success()
        .then(|| only(response.headers(), &PROBE))
        .flatten()
}

/// The value of a field that occurs exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut lines = headers.get_all(name).iter();
    let (line, more) = (lines.next()?, lines.next());
    line.to_str().ok().filter(|_| more.is_none())
}

/// The complete answer of the lost attempt. It is refused if an attempt on this route could not
/// have ended with it.
async fn done<B>(response: Response<B>, policy: &Policy) -> Result<Probed, BoxError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    if parts.extensions.get::<CloseDelimited>().is_some() && !policy.keep_close_delimited {
        return Err(
            "it is done, it says, and its answer ends only with the connection, so that a part could pass for the whole".into()
        );
    }
    let said = only(&parts.headers, &STATUS).filter(|status| status.len() == 3);
    let status = said
        .and_then(|status| status.parse().ok())
        .filter(|status| (200..600).contains(status));
    let status = status.ok_or("it is done, it says, and not with which status")?;
    if Said::Done
        .class(status)
        .unwrap_or_else(|| classify(status, policy))
        != Class::Keep
    {
        return Err(format!(
            "it is done, it says, with the status {status}, which is not kept on this route"
        )
        .into());
    }
    let whole = Limited::new(body, policy.answer_bytes_max)
        .collect()
        .await?;
    let trailers = whole.trailers().map(fields).unwrap_or_default();
    let body = whole.to_bytes();
    Ok(Probed::Done(Answer {
        status,
        headers: fields(&parts.headers),
        body,
        trailers,
    }))
}

/// The end-to-end fields of the answer, without those of the probe itself. Which of them are kept
/// is decided as for every answer.
fn fields(headers: &HeaderMap) -> Vec<(String, Bytes)> {
    let is_of_answer = |name: &HeaderName| !is_never_kept(name) && *name != CONTENT_LENGTH;
    let kept = headers.iter().filter(|(name, _)| is_of_answer(name));
    kept.map(|(name, value)| {
        (
            name.as_str().to_owned(),
            Bytes::copy_from_slice(value.as_bytes()),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn response(status: u16, fields: &[(&'static str, &str)]) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from("order 7"));
        *response.status_mut() = status.try_into().unwrap();
        for (name, value) in fields {
            response.headers_mut().append(*name, value.parse().unwrap());
        }
        response
    }

    #[test]
    fn only_one_clear_word_counts() {
        for (status, fields, expected) in [
            (200, &[("hapax-probe", "barred")][..], Some("barred")),
            (204, &[("hapax-probe", "done")], Some("done")),
            (200, &[], None),
            (500, &[("hapax-probe", "barred")], None),
            (404, &[("hapax-probe", "barred")], None),
            (302, &[("hapax-probe", "barred")], None),
            (
                200,
                &[("hapax-probe", "done"), ("hapax-probe", "barred")],
                None,
            ),
        ] {
            assert_eq!(
                status_word(&response(status, fields)),
                expected,
                "{status} {fields:?}"
            );
        }
    }

    #[tokio::test]
    async fn an_answer_is_taken_over_whole_or_not_at_all() {
        let policy = Policy {
            answer_bytes_max: 7,
            ..Policy::default()
        };
        let fields = [
            ("hapax-status", "201"),
            ("content-type", "text/plain"),
            ("content-length", "7"),
            ("date", "today"),
            ("hapax-fence", "1"),
        ];
        let Ok(Probed::Done(answer)) = done(response(200, &fields), &policy).await else {
            panic!("it is done")
        };
        assert_eq!((answer.status, &answer.body[..]), (201, &b"order 7"[..]));
        assert_eq!(
            answer.headers,
            [("content-type".to_owned(), Bytes::from_static(b"text/plain"))]
        );
        let small = Policy {
            answer_bytes_max: 6,
            ..Policy::default()
        };
        assert!(
            done(response(200, &fields), &small).await.is_err(),
            "one that is too large is not kept in part"
        );
        for status in ["", "20", "2011", "abc", "+20", "199", "600", "429", "408"] {
            assert!(
                done(response(200, &[("hapax-status", status)]), &policy)
                    .await
                    .is_err(),
                "{status}"
            );
        }
        let failed = done(response(200, &[("hapax-status", "500")]), &policy).await;
        assert!(
            matches!(failed, Ok(Probed::Done(answer)) if answer.status == 500),
            "it says that it is done, whatever it answered"
        );
        assert!(done(response(200, &[]), &policy).await.is_err());
        assert!(
            done(
                response(200, &[("hapax-status", "201"), ("hapax-status", "400")]),
                &policy
            )
            .await
            .is_err()
        );
    }
}
