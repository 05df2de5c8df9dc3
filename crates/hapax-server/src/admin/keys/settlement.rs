//! Parses an operator's settlement, and checks it before anything is changed.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use hapax::core::record::Head;
use hapax::middleware::is_never_kept;
use hapax::{Answer, Settlement};
use http::header::{CONTENT_LENGTH, HeaderName, SET_COOKIE};
use http::{HeaderValue, StatusCode};

use super::wire::{Outcome, Settle};

/// The limit that the gateway has for kept answers.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const FIELDS_MAX: usize = 100;

/// The settlement, or what is wrong with the request.
pub(crate) fn parse(settle: &Settle) -> Result<Settlement, String> {
    let has_answer = settle.status.is_some()
        || settle.body.is_some()
        || settle.body_base64.is_some()
        || !settle.headers.is_empty();
    match settle.outcome {
        Outcome::Done => Ok(Settlement::Done(answer(settle)?)),
        Outcome::DoneWithoutAnswer | Outcome::NotDone if has_answer => {
            Err("only the outcome `done` takes a status, headers and a body: they are what a repeat will be answered with"
                .to_owned())
        }
        Outcome::DoneWithoutAnswer => Ok(Settlement::DoneWithoutAnswer),
        Outcome::NotDone => Ok(Settlement::NotDone),
    }
}

/// Checks that a settlement with this fence is about the attempt that was lost.
pub(crate) fn is_about(head: &Head, fence: u64) -> Result<(), String> {
    let lost = head.fence.as_u64();
    if lost == fence {
        return Ok(());
    }
    Err(format!(
        "the attempt that was lost has the fence {lost}, and this is about {fence}: look what became of that one"
    ))
}

fn answer(settle: &Settle) -> Result<Answer, String> {
    let status = settle.status.ok_or(
        "say the status that a repeat will be answered with, or that there is no answer to replay",
    )?;
    if !(200..=599).contains(&status) || StatusCode::from_u16(status).is_err() {
        return Err(format!(
            "{status} is not the status of an answer: use 200 to 599"
        ));
    }
    if settle.headers.len() > FIELDS_MAX {
        return Err(format!("an answer takes up to {FIELDS_MAX} header fields"));
    }
    let headers = settle
        .headers
        .iter()
        .map(|(name, value)| field(name, value))
        .collect::<Result<_, String>>()?;
    let body = body(settle)?;
    let is_empty_by_status = matches!(status, 204 | 205 | 304);
    if is_empty_by_status && !body.is_empty() {
        return Err(format!("an answer with status {status} has no body"));
    }
    Ok(Answer {
        headers,
        ..Answer::new(status, body)
    })
}

fn body(settle: &Settle) -> Result<Vec<u8>, String> {
    let body = match (&settle.body, &settle.body_base64) {
        (Some(_), Some(_)) => {
            return Err("give the body as `body` or as `body_base64`, not both".to_owned());
        }
        (Some(text), None) => text.clone().into_bytes(),
        (None, Some(text)) => BASE64_STANDARD
            .decode(text)
            .map_err(|_| "`body_base64` is not base64 (RFC 4648 section 4, with padding)")?,
        (None, None) => Vec::new(),
    };
    if body.len() > ANSWER_BYTES_MAX {
        return Err(format!(
            "the body has {} bytes: answers are kept up to {ANSWER_BYTES_MAX}. Settle it without an answer",
            body.len()
        ));
    }
    Ok(body)
}

/// A field that a replay may carry. Fields that frame a message would break every replay, and
/// Hapax's own fields are not accepted.
fn field(name: &str, value: &str) -> Result<(String, Bytes), String> {
    let known = HeaderName::try_from(name)
        .map_err(|_| format!("{name:?} is not the name of a header field"))?;
    if is_never_kept(&known) || matches!(known, CONTENT_LENGTH | SET_COOKIE) {
        return Err(format!(
            "`{known}` is not kept with an answer: leave it out"
        ));
    }
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| format!("the value of `{known}` cannot stand in a header field"))?;
    Ok((
        known.as_str().to_owned(),
        Bytes::copy_from_slice(value.as_bytes()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(outcome: &str, rest: &str) -> Result<Settlement, String> {
        let text = format!(r#"{{"outcome":"{outcome}","by":"ada","reason":"found out"{rest}}}"#);
        parse(&serde_json::from_str(&text).map_err(|error| error.to_string())?)
    }

    #[test]
    fn an_answer_is_taken_as_it_is_said() {
        let answer = Answer {
            headers: vec![("content-type".to_owned(), Bytes::from_static(b"text/plain"))],
            ..Answer::new(201, &b"ok"[..])
        };
        let fields = r#","status":201,"headers":[["Content-Type"," text/plain"]],"#;
        assert_eq!(
            settle("done", &format!("{fields}\"body\":\"ok\"")),
            Ok(Settlement::Done(answer.clone()))
        );
        assert_eq!(
            settle("done", &format!("{fields}\"body_base64\":\"b2s=\"")),
            Ok(Settlement::Done(answer))
        );
        assert_eq!(
            settle("done-without-answer", ""),
            Ok(Settlement::DoneWithoutAnswer)
        );
        assert_eq!(settle("not-done", ""), Ok(Settlement::NotDone));
    }

    #[test]
    fn what_an_upstream_s_answer_would_lose_is_refused() {
        for name in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "http2-settings",
            "expect",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "date",
            "age",
            "set-cookie",
            "content-length",
            "idempotent-replayed",
            "idempotency-expires",
            "hapax-answer-version",
        ] {
            let rest = format!(r#","status":200,"headers":[["{name}","1"]]"#);
            assert!(settle("done", &rest).is_err(), "{name}");
        }
    }

    #[test]
    fn what_could_not_be_replayed_is_refused() {
        for (outcome, rest) in [
            ("done", ""),
            ("done", r#","status":100"#),
            ("done", r#","status":600"#),
            ("done", r#","status":204,"body":"x""#),
            ("done", r#","status":200,"body":"x","body_base64":"eA==""#),
            ("done", r#","status":200,"body_base64":"x""#),
            (
                "done",
                r#","status":200,"headers":[["content-length","9"]]"#,
            ),
            ("done", r#","status":200,"headers":[["Hapax-Fence","9"]]"#),
            ("done", r#","status":200,"headers":[["a b","9"]]"#),
            ("done", r#","status":200,"headers":[["a","b\nc"]]"#),
            ("not-done", r#","status":200"#),
            ("done-without-answer", r#","body":"""#),
            ("maybe", ""),
            ("not-done", r#","force":true"#),
        ] {
            assert!(settle(outcome, rest).is_err(), "{outcome} {rest}");
        }
    }
}
