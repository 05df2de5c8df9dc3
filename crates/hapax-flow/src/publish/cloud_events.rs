//! Messages as CloudEvents 1.0, for consumers that know nothing of Hapax.
//!
//! | Attribute | Comes from |
//! |---|---|
//! | `id` | the message id |
//! | `source` | a setting, `/hapax` by default |
//! | `type` | the header `ce-type`, else the topic |
//! | `time` | when the message was emitted |
//! | `subject`, `partitionkey` | the key |
//! | `entityversion` | the version. It is a string: an integer of CloudEvents has 32 bits |
//! | `correlationid`, `causationid`, `traceparent`, `tracestate` | the headers of these meanings |
//! | any other | a header `ce-NAME` |
//!
//! The place of a message in the outbox is never sent: after a restore it may be another one.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hapax_core::flow::headers;
use hapax_core::time::Timestamp;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::Envelope;

/// The media type of a message in [`Mode::Structured`].
const STRUCTURED: &str = "application/cloudevents+json";
/// The header that names the type.
const TYPE: &str = "ce-type";
/// The longest name of an attribute. The specification only advises it, but the published readers
/// refuse longer names.
const NAME_BYTES_MAX: usize = 20;

/// The headers of a message that are attributes, and the names of the attributes.
const MEANINGS: [(&str, &str); 4] = [
    (headers::CORRELATION_ID, "correlationid"),
    (headers::CAUSATION_ID, "causationid"),
    (headers::TRACEPARENT, "traceparent"),
    (headers::TRACESTATE, "tracestate"),
];

/// Headers that belong to one connection or to the framing of a request. A message cannot set them.
const OF_THE_TRANSPORT: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What must be percent-encoded in the value of a header: section 3.1.3.2 of the HTTP binding.
/// Characters outside ASCII always are.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Where the attributes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In headers; the body is the payload.
    #[default]
    Binary,
    /// In the body, as JSON, around the payload.
    Structured,
}

/// The name and the value of a header.
pub type HeaderPair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Turns messages into CloudEvents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudEvents {
    source: String,
    mode: Mode,
}

/// The source cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no source of CloudEvents: write a URI or a path, such as /orders")]
pub struct SourceError(String);

impl Default for CloudEvents {
    fn default() -> CloudEvents {
        CloudEvents {
            source: "/hapax".to_owned(),
            mode: Mode::default(),
        }
    }
}

impl CloudEvents {
    /// With this source and mode.
    ///
    /// # Errors
    ///
    /// [`SourceError`] if the source is empty or has characters that a URI cannot have.
    pub fn new(source: impl Into<String>, mode: Mode) -> Result<CloudEvents, SourceError> {
        let source = source.into();
        let fits = |byte: u8| byte.is_ascii_graphic() && !br#""<>\^`{|}"#.contains(&byte);
        match !source.is_empty() && source.bytes().all(fits) {
            true => Ok(CloudEvents { source, mode }),
            false => Err(SourceError(source)),
        }
    }

    /// The attributes of a message, without those that say what its payload is.
    pub fn attributes<'a>(&'a self, message: &'a Envelope) -> Vec<(&'a str, Cow<'a, str>)> {
        let kind = message.header(TYPE).filter(|kind| !kind.is_empty());
        let mut attributes: Vec<(&str, Cow<'_, str>)> = vec![
            ("specversion", "1.0".into()),
            ("id", message.id.to_string().into()),
            ("source", self.source.as_str().into()),
            ("type", kind.unwrap_or(&message.topic).into()),
            ("time", rfc3339(message.at).into()),
        ];
        if let Some(key) = &message.key {
            attributes.push(("subject", key.into()));
            attributes.push(("partitionkey", key.into()));
        }
        if let Some(version) = message.version {
            attributes.push(("entityversion", version.to_string().into()));
        }
        for (header, name) in MEANINGS {
            if let Some(value) = message.header(header) {
                add(&mut attributes, name, value);
            }
        }
        for (header, value) in &message.headers {
            if let Some(name) = header.strip_prefix("ce-") {
                add(&mut attributes, name, value);
            }
        }
        attributes
    }

    /// The headers and the body of a request that carries the message.
    pub fn request(&self, message: &Envelope) -> (HeaderMap, Bytes) {
        let (described, body) = self.wrap(message);
        let mut headers = HeaderMap::new();
        for (name, value) in described {
            append(&mut headers, &name, &value);
        }
        (headers, body)
    }

    /// The headers and the body with which any transport carries the message.
    pub fn wrap<'a>(&'a self, message: &'a Envelope) -> (Vec<HeaderPair<'a>>, Bytes) {
        match self.mode {
            Mode::Binary => {
                let encode =
                    |value: Cow<'a, str>| utf8_percent_encode(&value, ENCODED).to_string().into();
                let headers = self.binary_headers(message, "ce-", encode);
                (headers, message.payload.clone())
            }
            Mode::Structured => self.structured(message),
        }
    }

    /// The same for a transport whose headers may have any characters, such as Kafka's (`ce_`) or
    /// AMQP's (`cloudEvents:`): names of attributes begin with `prefix`, and values are as they are.
    pub fn wrap_plainly<'a>(
        &'a self,
        message: &'a Envelope,
        prefix: &str,
    ) -> (Vec<HeaderPair<'a>>, Bytes) {
        match self.mode {
            Mode::Binary => {
                let headers = self.binary_headers(message, prefix, |value| value);
                (headers, message.payload.clone())
            }
            Mode::Structured => self.structured(message),
        }
    }

    fn structured<'a>(&'a self, message: &'a Envelope) -> (Vec<HeaderPair<'a>>, Bytes) {
        let media = (header::CONTENT_TYPE.as_str().into(), STRUCTURED.into());
        (vec![media], self.json(message))
    }

    /// The message as one JSON object, in the JSON format of CloudEvents.
    ///
    /// A JSON payload is copied byte for byte, so that no number loses digits.
    pub fn json(&self, message: &Envelope) -> Bytes {
        let mut attributes = self.attributes(message);
        for (name, value) in plain_headers(message) {
            add(&mut attributes, name, value);
        }
        let members = attributes
            .into_iter()
            .chain([("datacontenttype", message.content_type().into())])
            .map(|(name, value)| (name, Member::Text(value)))
            .chain(data(message));
        let mut json = Vec::with_capacity(message.payload.len() + 512);
        serde_json::Serializer::new(&mut json)
            .collect_map(members)
            .expect("text is written to memory");
        json.into()
    }

    /// The media type of the payload, the headers that mean nothing to CloudEvents, and the
    /// attributes.
    fn binary_headers<'a>(
        &'a self,
        message: &'a Envelope,
        prefix: &str,
        value_of: impl Fn(Cow<'a, str>) -> Cow<'a, str>,
    ) -> Vec<HeaderPair<'a>> {
        let content_type = (header::CONTENT_TYPE.as_str(), message.content_type());
        let plain = [content_type].into_iter().chain(plain_headers(message));
        let attributes = self
            .attributes(message)
            .into_iter()
            .map(|(name, value)| (format!("{prefix}{name}").into(), value_of(value)));
        plain
            .map(|(name, value)| (name.into(), value.into()))
            .chain(attributes)
            .collect()
    }
}

/// The headers of a message that mean nothing to CloudEvents or to the transport.
fn plain_headers(message: &Envelope) -> impl Iterator<Item = (&str, &str)> {
    let is_plain = |name: &str| {
        !OF_THE_TRANSPORT.contains(&name)
            && !MEANINGS.iter().any(|(header, _)| *header == name)
            && !["ce-", "webhook-"].iter().any(|of| name.starts_with(of))
            && name != headers::CONTENT_TYPE
    };
    message
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(move |(name, _)| is_plain(name))
}

/// Adds an attribute, unless there is one of this name, or it cannot be one.
fn add<'a>(attributes: &mut Vec<(&'a str, Cow<'a, str>)>, name: &'a str, value: &'a str) {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_taken = ["data", "datacontenttype"].contains(&name)
        || attributes.iter().any(|(given, _)| *given == name);
    if fits && !is_taken && !value.is_empty() {
        attributes.push((name, value.into()));
    }
}

/// Adds a header. A message whose headers were checked has none that fails.
fn append(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (
        HeaderName::from_bytes(name.as_bytes()),
        HeaderValue::from_bytes(value.as_bytes()),
    ) {
        headers.append(name, value);
    }
}

/// A member of the JSON object.
#[derive(Serialize)]
#[serde(untagged)]
enum Member<'a> {
    Text(Cow<'a, str>),
    Json(&'a RawValue),
}

/// The member that has the payload; none if the payload is empty.
fn data(message: &Envelope) -> Option<(&'static str, Member<'_>)> {
    if message.payload.is_empty() {
        return None;
    }
    let media = Media::of(message.content_type());
    if media == Media::Json
        && let Ok(json) = serde_json::from_slice::<&RawValue>(&message.payload)
    {
        return Some(("data", Member::Json(json)));
    }
    if media == Media::Text
        && let Ok(text) = std::str::from_utf8(&message.payload)
    {
        return Some(("data", Member::Text(text.into())));
    }
    // Also what is called JSON and is none: as a string it would be read as a JSON string.
    let encoded = STANDARD.encode(&message.payload);
    Some(("data_base64", Member::Text(encoded.into())))
}

/// What a media type says of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Media {
    Json,
    Text,
    Binary,
}

impl Media {
    fn of(content_type: &str) -> Media {
        let content_type = content_type.to_ascii_lowercase();
        let mut parts = content_type.split(';').map(str::trim);
        let Some((kind, subtype)) = parts.next().unwrap_or_default().split_once('/') else {
            return Media::Binary;
        };
        let charset = parts.find_map(|part| part.strip_prefix("charset="));
        if subtype == "json" || subtype.ends_with("+json") {
            return Media::Json;
        }
        let is_utf8 = charset
            .map(|charset| charset.trim_matches('"'))
            .is_none_or(|charset| ["utf-8", "us-ascii"].contains(&charset));
        let is_text = kind == "text"
            || ["xml", "yaml", "x-ndjson", "x-www-form-urlencoded"].contains(&subtype)
            || subtype.ends_with("+xml")
            || subtype.ends_with("+yaml");
        match is_text && is_utf8 {
            true => Media::Text,
            false => Media::Binary,
        }
    }
}

/// The time in UTC, with microseconds. Years end at 9999, as they do in RFC 3339.
fn rfc3339(at: Timestamp) -> String {
    const LAST_SECOND: u64 = 253_402_300_799;
    let (seconds, micros) = (at.as_micros() / 1_000_000, at.as_micros() % 1_000_000);
    let seconds = i64::try_from(seconds.min(LAST_SECOND)).expect("it is small");
    let time = time::OffsetDateTime::from_unix_timestamp(seconds).expect("it is in the calendar");
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{micros:06}Z",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::flow::MessageId;

    fn message(headers: &[(&str, &str)], payload: &'static [u8]) -> Envelope {
        Envelope {
            sequence: 77,
            id: MessageId::from_bytes([1; 16]),
            at: Timestamp::from_micros(1_794_950_675_000_042),
            topic: "orders".into(),
            key: Some("Euro € 😀".into()),
            ordered: true,
            version: Some(i64::MAX),
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            payload: Bytes::from_static(payload),
        }
    }

    fn structured(headers: &[(&str, &str)], payload: &'static [u8]) -> String {
        let events = CloudEvents::new("/shop", Mode::Structured).unwrap();
        let (_, body) = events.request(&message(headers, payload));
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn attributes_become_headers_and_values_are_encoded() {
        let message = message(
            &[
                ("ce-color", "100% \"red\""),
                ("content-type", "text/plain; charset=utf-8"),
                ("correlation-id", "c 1"),
                ("tenant", "Ærø"),
            ],
            b"hello",
        );
        let (headers, body) = CloudEvents::default().request(&message);
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert_eq!(text("ce-specversion"), "1.0");
        assert_eq!(text("ce-id"), "01010101-0101-0101-0101-010101010101");
        assert_eq!(text("ce-source"), "/hapax");
        assert_eq!(text("ce-type"), "orders");
        assert_eq!(text("ce-time"), "2026-11-17T21:24:35.000042Z");
        assert_eq!(text("ce-subject"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
        assert_eq!(text("ce-partitionkey"), text("ce-subject"));
        assert_eq!(text("ce-entityversion"), "9223372036854775807");
        assert_eq!(text("ce-correlationid"), "c%201");
        assert_eq!(text("ce-color"), "100%25%20%22red%22");
        assert_eq!(text("content-type"), "text/plain; charset=utf-8");
        assert_eq!(headers["tenant"].as_bytes(), "Ærø".as_bytes());
        assert_eq!(&body[..], b"hello");
        let has_place = headers.values().any(|value| value.as_bytes() == b"77");
        assert!(!has_place, "the place in the outbox is never sent");
    }

    #[test]
    fn a_message_sets_no_header_of_the_transport_and_no_attribute_twice() {
        let given = [
            ("ce-datacontenttype", "text/html"),
            ("ce-id", "another"),
            ("ce-not-a-name", "x"),
            ("ce-type", "order.placed"),
            ("connection", "close"),
            ("content-length", "1"),
            ("host", "elsewhere"),
            ("transfer-encoding", "chunked"),
            ("webhook-signature", "v1,forged"),
        ];
        let (headers, _) = CloudEvents::default().request(&message(&given, b""));
        assert_eq!(headers["ce-type"], "order.placed");
        assert_eq!(headers.get_all("ce-id").iter().count(), 1);
        assert_eq!(headers["ce-id"], "01010101-0101-0101-0101-010101010101");
        for (name, _) in given {
            let is_kept = ["ce-id", "ce-type"].contains(&name);
            assert_eq!(headers.contains_key(name), is_kept, "{name}");
        }
    }

    #[test]
    fn json_is_copied_without_loss() {
        let payload = br#"{"amount": 12345678901234567890.10, "amount": 1e400}"#;
        let json = structured(&[("content-type", "application/order+json; v=1")], payload);
        let data = std::str::from_utf8(payload).unwrap();
        assert!(json.ends_with(&format!(r#","data":{data}}}"#)), "{json}");
    }

    #[test]
    fn text_is_a_string_and_anything_else_base64() {
        let html = structured(&[("content-type", "text/html")], b"<b>\"\x01</b>");
        assert!(html.ends_with(r#","data":"<b>\"\u0001</b>"}"#), "{html}");
        for (media, payload) in [
            ("text/plain", &b"\xff"[..]),
            ("text/plain; charset=latin-1", b"a"),
            ("application/json", b"{oops"),
            ("application/octet-stream", b"a"),
            ("nonsense", b"a"),
        ] {
            let json = structured(&[("content-type", media)], payload);
            let data = format!(r#","data_base64":"{}"}}"#, STANDARD.encode(payload));
            assert!(json.ends_with(&data), "{json}");
        }
        let empty = structured(&[("content-type", "text/plain")], b"");
        let last = r#""datacontenttype":"text/plain"}"#;
        assert!(empty.ends_with(last), "{empty}");
    }

    #[test]
    fn headers_become_attributes_where_their_names_fit() {
        let json = structured(
            &[
                ("data", "x"),
                ("host", "x"),
                ("subject", "x"),
                ("tenant", "t1"),
                ("thisnameistoolongforit", "x"),
                ("x-tenant", "x"),
            ],
            b"",
        );
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["tenant"], "t1");
        assert_eq!(json["subject"], "Euro € 😀");
        for name in ["data", "host", "thisnameistoolongforit", "x-tenant"] {
            assert_eq!(json.get(name), None, "{name}");
        }
    }

    #[test]
    fn a_source_is_a_uri() {
        for source in ["", "a b", "<a>", "ä", "a\n"] {
            assert!(CloudEvents::new(source, Mode::Binary).is_err(), "{source}");
        }
        for source in ["/orders", "urn:uuid:1", "https://example.com/a?b#c"] {
            assert!(CloudEvents::new(source, Mode::Binary).is_ok(), "{source}");
        }
    }

    #[test]
    fn times_are_in_the_calendar_of_rfc_3339() {
        assert_eq!(rfc3339(Timestamp::ZERO), "1970-01-01T00:00:00.000000Z");
        let leap = Timestamp::from_micros(951_782_400_999_999);
        assert_eq!(rfc3339(leap), "2000-02-29T00:00:00.999999Z");
        let last = rfc3339(Timestamp::from_micros(u64::MAX));
        assert!(last.starts_with("9999-12-31T23:59:59"), "{last}");
    }
}
