//! Traces: a span for each request, sent to the collector that `OTEL_*` names.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hapax::core::flow::{Envelope, Verdict, headers};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceFlags, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Outcome;
use super::exporter::{Client, Noted, Trouble};
use super::otel::Settings;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Makes spans and sends them. Cheap to clone; clones share one queue.
///
/// Spans wait in a bounded queue and leave in batches; if the queue is full, a span is dropped. No
/// request ever waits for a collector.
#[derive(Clone)]
pub struct Traces(Arc<Inner>);

struct Inner {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The span of one request. If it is dropped before its [`end`](Span::end), it is sent without a
/// status: the client has disconnected.
pub struct Span(opentelemetry_sdk::trace::Span);

impl Traces {
    /// Reads the environment: `None` if it names no collector. An error says which variable is
    /// wrong. Must be called inside a runtime.
    pub fn from_env() -> Result<Option<Traces>, String> {
        let settings = Settings::read(|name| std::env::var(name).ok())?;
        settings.map(Traces::start).transpose()
    }

    fn start(settings: Settings) -> Result<Traces, String> {
        let Settings {
            endpoint,
            timeout,
            sampler,
            service_name,
        } = settings;
        let runtime = Handle::try_current()
            .map_err(|_| "traces need a runtime to be sent from".to_owned())?;
        let trouble = Trouble::default();
        let client = Client::new(runtime, &endpoint, timeout, trouble.clone())?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(endpoint.to_string())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(timeout)
            .build()
            .map_err(|error| format!("traces cannot be sent as OTEL_* ask: {error}"))?;
        let resource = service_name
            .into_iter()
            .fold(Resource::builder(), |resource, name| {
                resource.with_service_name(name)
            });
        let provider = SdkTracerProvider::builder()
            .with_span_processor(
                BatchSpanProcessor::builder(Noted::new(exporter, endpoint, trouble)).build(),
            )
            .with_sampler(sampler)
            .with_resource(resource.build())
            .build();
        let tracer = provider.tracer("hapax");
        Ok(Traces(Arc::new(Inner { provider, tracer })))
    }

    /// Begins the span of a request on the route of this name. It is a child of the client's span,
    /// if the request names one.
    pub fn begin(&self, parts: &Parts, route: &Arc<str>) -> Span {
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &Carrier::new(&parts.headers));
        let attributes = vec![
            KeyValue::new("http.request.method", method(&parts.method)),
            KeyValue::new("url.path", parts.uri.path().to_owned()),
            KeyValue::new("network.protocol.version", version(parts.version)),
            KeyValue::new("hapax.route", route.clone()),
        ];
        let builder = SpanBuilder::from_name(route.to_string())
            .with_kind(SpanKind::Server)
            .with_attributes(attributes);
        Span(self.0.tracer.build_with_context(builder, &parent))
    }

    /// Sends the span of a publication that began at this time and has just ended. It is a child of
    /// the span in which the message was emitted; a message that names none has no span.
    pub(crate) fn published(
        &self,
        reader: &str,
        message: &Envelope,
        verdict: &Verdict,
        began: SystemTime,
    ) {
        let parent = message.header(headers::TRACEPARENT).and_then(|parent| {
            parse(
                parent,
                message.header(headers::TRACESTATE).unwrap_or_default(),
            )
        });
        let Some(parent) = parent.filter(|_| *verdict != Verdict::NotSent) else {
            return;
        };
        let attributes = vec![
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", message.topic.clone()),
            KeyValue::new("messaging.message.id", message.id.to_string()),
            KeyValue::new("hapax.reader", reader.to_owned()),
        ];
        let status = match verdict.reason() {
            Some(_) => Status::error(""),
            None => Status::Unset,
        };
        let builder = SpanBuilder::from_name(format!("publish {}", message.topic))
            .with_kind(SpanKind::Producer)
            .with_start_time(began)
            .with_attributes(attributes);
        let parent = Context::new().with_remote_span_context(parent);
        let mut span = self.0.tracer.build_with_context(builder, &parent);
        span.set_status(status);
        span.end();
    }

    /// Sends the remaining spans, for at most `deadline`. Spans that end later are not sent.
    pub async fn shutdown(&self, deadline: Duration) {
        let (provider, (tell, told)) = (self.0.provider.clone(), oneshot::channel());
        // The SDK blocks while it waits. This uses a separate thread, because the program's end
        // would wait for a blocking thread of the runtime.
        std::thread::spawn(move || {
            let ended = provider.shutdown_with_timeout(deadline);
            let _ = tell.send(ended);
        });
        if !matches!(tokio::time::timeout(deadline, told).await, Ok(Ok(Ok(())))) {
            tracing::warn!(?deadline, "the last traces could not be sent in time");
        }
    }
}

/// Without this, dropping the SDK's last handle would shut it down and block the dropping thread.
impl Drop for Inner {
    fn drop(&mut self) {
        let provider = self.provider.clone();
        std::thread::spawn(move || drop(provider.shutdown()));
    }
}

impl Span {
    /// Writes this span as the parent of the next one, sampled or not. It replaces what the client
    /// sent.
    pub fn inject(&self, headers: &mut HeaderMap) {
        let context = self.0.span_context();
        headers.insert(TRACEPARENT, traceparent(context));
        match HeaderValue::try_from(context.trace_state().header()) {
            Ok(state) if !state.is_empty() => headers.insert(TRACESTATE, state),
            _ => headers.remove(TRACESTATE),
        };
    }

    /// Ends the span. `original` is the `traceparent` of the attempt whose answer was replayed; the
    /// span is linked to it.
    pub fn end(mut self, status: StatusCode, outcome: Outcome, original: Option<&str>) {
        self.0.set_attribute(KeyValue::new(
            "http.response.status_code",
            i64::from(status.as_u16()),
        ));
        self.0
            .set_attribute(KeyValue::new("hapax.outcome", outcome.label()));
        if let Some(original) = original.and_then(|original| parse(original, "")) {
            self.0
                .add_link(original, vec![KeyValue::new("hapax.link", "original")]);
        }
        if status.is_server_error() {
            self.0.set_status(Status::error(""));
        }
        self.0.end();
    }
}

fn traceparent(context: &SpanContext) -> HeaderValue {
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    let text = format!(
        "00-{}-{}-{flags:02x}",
        context.trace_id(),
        context.span_id()
    );
    HeaderValue::try_from(text).expect("hexadecimal is a header value")
}

fn parse(traceparent: &str, tracestate: &str) -> Option<SpanContext> {
    let carrier = Carrier {
        traceparent: Some(traceparent),
        tracestate: Cow::Borrowed(tracestate),
    };
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
    let span = context.span().span_context().clone();
    span.is_valid().then_some(span)
}

/// The trace fields of a request.
struct Carrier<'a> {
    traceparent: Option<&'a str>,
    tracestate: Cow<'a, str>,
}

impl<'a> Carrier<'a> {
    /// By the specification, two `traceparent` count as none, and several `tracestate` are one
    /// list.
    fn new(headers: &'a HeaderMap) -> Carrier<'a> {
        let lines = |name| {
            headers
                .get_all(name)
                .iter()
                .filter_map(|line| line.to_str().ok())
        };
        let mut parents = lines(TRACEPARENT);
        let traceparent = parents.next().filter(|_| parents.next().is_none());
        let mut states = lines(TRACESTATE);
        let first = states.next().map_or(Cow::default(), Cow::Borrowed);
        let tracestate = states.fold(first, |list, line| Cow::Owned(format!("{list},{line}")));
        Carrier {
            traceparent,
            tracestate,
        }
    }
}

impl Extractor for Carrier<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        match name {
            "traceparent" => self.traceparent,
            "tracestate" => Some(&*self.tracestate).filter(|state| !state.is_empty()),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// The method, if it is a standard one; callers can send anything, and the conventions name the
/// rest `_OTHER`.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE",
    ];
    KNOWN
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or("_OTHER")
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::post;
    use bytes::Bytes;
    use http::Request;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::trace::v1::Span as Sent;
    use prost::Message;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const ORIGINAL: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// Starts a collector. Returns the bodies that it receives, and traces that are sent to it.
    async fn collector() -> (mpsc::UnboundedReceiver<Bytes>, Traces) {
        let (tell, told) = mpsc::unbounded_channel();
        let take = async move |body: Bytes| drop(tell.send(body));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(
            axum::serve(listener, Router::new().route("/v1/traces", post(take))).into_future(),
        );
        (told, traces(&format!("http://{address}"), &[]))
    }

    fn traces(endpoint: &str, vars: &[(&str, &str)]) -> Traces {
        let settings = Settings::read(|name| match name {
            "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(endpoint.to_owned()),
            _ => vars
                .iter()
                .find(|(given, _)| *given == name)
                .map(|(_, value)| (*value).to_owned()),
        });
        Traces::start(settings.unwrap().unwrap()).unwrap()
    }

    fn begin(traces: &Traces, fields: &[(&str, &str)]) -> Span {
        let request = fields.iter().fold(
            Request::post("/charges?secret=1"),
            |request, (name, value)| request.header(*name, *value),
        );
        let (parts, ()) = request
            .header("idempotency-key", "sk_secret")
            .body(())
            .unwrap()
            .into_parts();
        traces.begin(&parts, &"POST /charges".into())
    }

    fn attribute<'a>(span: &'a Sent, name: &str) -> Option<&'a Value> {
        span.attributes
            .iter()
            .find(|pair| pair.key == name)?
            .value
            .as_ref()?
            .value
            .as_ref()
    }

    #[tokio::test]
    async fn a_span_arrives_with_its_parent_its_link_and_its_attributes() {
        let (mut collected, traces) = collector().await;
        let span = begin(
            &traces,
            &[
                ("traceparent", CLIENT),
                ("tracestate", "a=1"),
                ("tracestate", "b=2"),
            ],
        );
        let mut headers = HeaderMap::new();
        span.inject(&mut headers);
        span.end(StatusCode::BAD_GATEWAY, Outcome::Replayed, Some(ORIGINAL));
        traces.shutdown(Duration::from_secs(10)).await;

        let body = collected.recv().await.unwrap();
        assert!(
            !body.windows(6).any(|part| part == b"secret"),
            "neither a key nor a query is told"
        );
        let sent = ExportTraceServiceRequest::decode(body).unwrap();
        let resource = sent.resource_spans[0].resource.as_ref().unwrap();
        let name = resource
            .attributes
            .iter()
            .find(|pair| pair.key == "service.name")
            .unwrap();
        assert_eq!(
            name.value.as_ref().unwrap().value,
            Some(Value::StringValue("hapax".to_owned()))
        );
        let span = &sent.resource_spans[0].scope_spans[0].spans[0];
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        assert_eq!(
            (hex(&span.trace_id), hex(&span.parent_span_id)),
            (CLIENT[3..35].to_owned(), CLIENT[36..52].to_owned())
        );
        assert_eq!(
            (span.name.as_str(), span.trace_state.as_str()),
            ("POST /charges", "a=1,b=2")
        );
        assert_eq!(
            (hex(&span.links[0].trace_id), hex(&span.links[0].span_id)),
            (ORIGINAL[3..35].to_owned(), ORIGINAL[36..52].to_owned())
        );
        let text = |text: &str| Some(Value::StringValue(text.to_owned()));
        for (name, value) in [
            ("http.request.method", text("POST")),
            ("url.path", text("/charges")),
            ("hapax.route", text("POST /charges")),
            ("hapax.outcome", text("replayed")),
            ("http.response.status_code", Some(Value::IntValue(502))),
        ] {
            assert_eq!(attribute(span, name), value.as_ref(), "{name}");
        }
        // The request to the upstream names this span as its parent, in the client's trace.
        assert_eq!(
            headers[TRACEPARENT],
            format!("00-{}-{}-01", &CLIENT[3..35], hex(&span.span_id))
        );
        assert_eq!(headers[TRACESTATE], "a=1,b=2");
    }

    #[tokio::test]
    async fn a_publication_is_a_child_of_the_span_that_emitted_the_message() {
        let (mut collected, traces) = collector().await;
        let message = |headers: &[(&str, &str)]| Envelope {
            sequence: 1,
            id: "0192f7a0-0000-7000-8000-000000000001".parse().unwrap(),
            at: hapax::core::Timestamp::ZERO,
            topic: "orders".to_owned(),
            key: Some("sk_secret".to_owned()),
            ordered: true,
            version: None,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            payload: Bytes::from_static(b"secret"),
        };
        let traced = message(&[("traceparent", CLIENT), ("tracestate", "a=1")]);
        let accepted = Verdict::ACCEPTED;
        let began = SystemTime::now();
        // Nothing was attempted, or there is no trace to join.
        traces.published("to-nats", &traced, &Verdict::NotSent, began);
        traces.published("to-nats", &message(&[]), &accepted, began);
        traces.published(
            "to-nats",
            &message(&[("traceparent", "00-0-0-01")]),
            &accepted,
            began,
        );
        traces.published("to-nats", &traced, &accepted, began);
        traces.published(
            "to-nats",
            &traced,
            &Verdict::Refused("secret".to_owned()),
            began,
        );
        traces.shutdown(Duration::from_secs(10)).await;
        let body = collected.recv().await.unwrap();
        assert!(!body.windows(6).any(|part| part == b"secret"));
        let sent = ExportTraceServiceRequest::decode(body).unwrap();
        let spans = &sent.resource_spans[0].scope_spans[0].spans;
        assert_eq!(spans.len(), 2);
        for span in spans {
            let hex = |bytes: &[u8]| -> String {
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            };
            assert_eq!(
                (hex(&span.trace_id), hex(&span.parent_span_id)),
                (CLIENT[3..35].to_owned(), CLIENT[36..52].to_owned())
            );
            assert_eq!(span.name, "publish orders");
            assert_eq!(span.trace_state, "a=1");
            let id = Value::StringValue("0192f7a0-0000-7000-8000-000000000001".to_owned());
            assert_eq!(attribute(span, "messaging.message.id"), Some(&id));
        }
        // 2 is an error.
        let codes = spans
            .iter()
            .map(|span| span.status.as_ref().map_or(0, |status| status.code));
        assert_eq!(codes.collect::<Vec<_>>(), [0, 2]);
    }

    #[tokio::test]
    async fn what_is_not_sampled_is_not_sent_but_still_passed_on() {
        let (mut collected, traces) = collector().await;
        let span = begin(&traces, &[("traceparent", &CLIENT.replace("-01", "-00"))]);
        let mut headers = HeaderMap::new();
        span.inject(&mut headers);
        span.end(StatusCode::OK, Outcome::First, None);
        traces.shutdown(Duration::from_secs(10)).await;
        assert!(collected.try_recv().is_err());
        let parent = headers[TRACEPARENT].to_str().unwrap();
        assert!(
            parent.starts_with(&CLIENT[..36])
                && parent.ends_with("-00")
                && parent[36..52] != CLIENT[36..52],
            "{parent}"
        );
    }

    #[tokio::test]
    async fn a_traceparent_that_cannot_be_read_begins_a_new_trace_without_its_state() {
        let (_collected, traces) = collector().await;
        for parents in [
            &[("traceparent", "00-0-0-01")][..],
            &[("traceparent", CLIENT), ("traceparent", ORIGINAL)],
            &[],
        ] {
            let mut headers = HeaderMap::from_iter([(TRACESTATE, HeaderValue::from_static("a=1"))]);
            let fields: Vec<_> = parents
                .iter()
                .copied()
                .chain([("tracestate", "a=1")])
                .collect();
            begin(&traces, &fields).inject(&mut headers);
            let parent = headers[TRACEPARENT].to_str().unwrap();
            assert!(
                !parent.contains(&CLIENT[3..35])
                    && !parent.contains(&ORIGINAL[3..35])
                    && parent.ends_with("-01"),
                "{parent}"
            );
            assert!(!headers.contains_key(TRACESTATE));
        }
        traces.shutdown(Duration::from_secs(10)).await;
    }

    #[tokio::test]
    async fn a_collector_that_is_gone_holds_up_nothing_but_the_last_moment() {
        // A port that was free a moment ago, with no listener.
        let address = TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let traces = traces(
            &format!("http://{address}"),
            &[("OTEL_EXPORTER_OTLP_TIMEOUT", "200")],
        );
        for _ in 0..10_000 {
            begin(&traces, &[]).end(StatusCode::OK, Outcome::First, None);
        }
        traces.shutdown(Duration::from_secs(10)).await;
        // Afterwards nothing is sent, and nothing fails.
        begin(&traces, &[]).end(StatusCode::OK, Outcome::First, None);
    }
}
