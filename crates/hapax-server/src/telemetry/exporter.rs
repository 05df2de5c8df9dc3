//! Sends traces: one HTTP/1.1 connection for each batch, on behalf of the SDK's thread. An
//! unreachable collector causes only a log line now and then.
//!
//! The SDK provides spans, batches and OTLP; only this HTTP client, some 150 lines, is our own. The
//! client of `opentelemetry-otlp` (reqwest, with rustls) would add 31 crates to the program, among
//! them `url` with its Unicode tables, and a second way to find certificate authorities. Reporting
//! lost spans and wrong `OTEL_*` variables would still need our own code.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// Limit on a collector's answer; far more than is ever used.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The minimal interval between log lines about a failing collector.
const SILENCE: Duration = Duration::from_secs(60);

type Answer = Result<Response<Bytes>, HttpError>;

/// Sends batches to a collector.
pub(super) struct Client {
    /// The SDK blocks its own thread; the work is done on this runtime.
    runtime: Handle,
    tls: Option<TlsConnector>,
    timeout: Duration,
    trouble: Trouble,
}

/// Why the latest batch did not arrive. The SDK reports only that it did not.
#[derive(Clone, Debug, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    fn record(&self, why: String) {
        *self.0.lock() = Some(why);
    }

    fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

impl Client {
    /// Loads the system's certificate authorities if the collector is reached over TLS.
    pub(super) fn new(
        runtime: Handle,
        endpoint: &Uri,
        timeout: Duration,
        trouble: Trouble,
    ) -> Result<Client, String> {
        let tls = if endpoint.scheme_str() == Some("https") {
            Some(connector(authorities()?)?)
        } else {
            None
        };
        Ok(Client {
            runtime,
            tls,
            timeout,
            trouble,
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (timeout, tls) = (self.timeout, self.tls.clone());
        let exchange = self
            .runtime
            .spawn(async move { tokio::time::timeout(timeout, exchange(request, tls)).await });
        let exchange = AbortOnDropHandle::new(exchange);
        Box::pin(async move {
            let answer = match exchange.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(format!("it did not answer within {:?}", self.timeout).into()),
                Err(_) => Err("the program is ending".into()),
            };
            match &answer {
                Ok(answer) if !answer.status().is_success() => self
                    .trouble
                    .record(format!("it answered {}", answer.status())),
                Ok(_) => {}
                Err(error) => self.trouble.record(error.to_string()),
            }
            answer
        })
    }
}

async fn exchange(request: Request<Bytes>, tls: Option<TlsConnector>) -> Answer {
    let host = request
        .uri()
        .host()
        .ok_or("the endpoint has no host")?
        .trim_matches(['[', ']'])
        .to_owned();
    let port = request
        .uri()
        .port_u16()
        .unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    match tls {
        Some(tls) => {
            speak(
                tls.connect(ServerName::try_from(host)?, stream).await?,
                request,
            )
            .await
        }
        None => speak(stream, request).await,
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<Bytes>,
) -> Answer {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let host = request.uri().authority().map(|authority| {
        authority
            .as_str()
            .rsplit('@')
            .next()
            .unwrap_or_default()
            .to_owned()
    });
    request
        .headers_mut()
        .insert(HOST, HeaderValue::try_from(host.unwrap_or_default())?);
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str())
        .parse()?;
    *request.uri_mut() = target;
    let (parts, body) = sender
        .send_request(request.map(Full::new))
        .await?
        .into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX)
        .collect()
        .await?
        .to_bytes();
    Ok(Response::from_parts(parts, body))
}

/// The system's certificate authorities, or those in `SSL_CERT_FILE`.
fn authorities() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let (usable, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if usable == 0 {
        return Err("traces are to be sent over https, but there are no certificate authorities on this system: \
                    install them, or name a file of them in SSL_CERT_FILE"
            .to_owned());
    }
    Ok(roots)
}

fn connector(roots: RootCertStore) -> Result<TlsConnector, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(|error| format!("TLS cannot be set up for traces: {error}"))?;
    Ok(TlsConnector::from(Arc::new(
        config.with_root_certificates(roots).with_no_client_auth(),
    )))
}

/// An exporter that logs lost spans, at most once per interval.
#[derive(Debug)]
pub(super) struct Noted<E> {
    exporter: E,
    endpoint: Uri,
    trouble: Trouble,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    at: Option<Instant>,
    lost_since: usize,
}

impl<E> Noted<E> {
    pub(super) fn new(exporter: E, endpoint: Uri, trouble: Trouble) -> Self {
        Noted {
            exporter,
            endpoint,
            trouble,
            said: Mutex::default(),
        }
    }

    fn log_lost(&self, lost: usize) {
        let why = self
            .trouble
            .take()
            .unwrap_or_else(|| "the batch was refused".to_owned());
        if let Some(lost) = self.said.lock().due(lost, Instant::now()) {
            let collector = self.endpoint.host().unwrap_or_default();
            tracing::warn!(
                collector,
                why,
                lost,
                "traces do not reach their collector; requests are not affected"
            );
        }
    }
}

impl Said {
    /// The number of lost spans to log, if it is time to log again.
    fn due(&mut self, lost: usize, now: Instant) -> Option<usize> {
        self.lost_since += lost;
        if self.at.is_some_and(|at| now.duration_since(at) < SILENCE) {
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.lost_since))
    }
}

impl<E: SpanExporter> SpanExporter for Noted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.exporter.export(batch).await;
        if exported.is_err() {
            self.log_lost(spans);
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn lost_spans_are_told_of_once_a_minute_and_all_of_them() {
        let (mut said, start) = (Said::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(said.due(5, start), Some(5));
        assert_eq!(said.due(5, after(1)), None);
        assert_eq!(said.due(5, after(59)), None);
        assert_eq!(said.due(5, after(60)), Some(15));
        assert_eq!(said.due(5, after(61)), None);
    }

    /// A TLS collector for one connection; its task returns the request that it received.
    async fn tls_collector() -> (u16, RootCertStore, tokio::task::JoinHandle<String>) {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let mut roots = RootCertStore::empty();
        roots.add(issued.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], key.into())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = tokio::spawn(async move {
            let mut stream = BufReader::new(
                acceptor
                    .accept(listener.accept().await.unwrap().0)
                    .await
                    .unwrap(),
            );
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                stream.read_line(&mut head).await.unwrap();
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await
                .unwrap();
            stream.flush().await.unwrap();
            head
        });
        (port, roots, asked)
    }

    /// Sends a batch to this port with these authorities. Returns the answer, and the recorded
    /// trouble.
    async fn send(port: u16, roots: RootCertStore) -> (Answer, Option<String>) {
        let tls = Some(connector(roots).unwrap());
        let client = Client {
            runtime: Handle::current(),
            tls,
            timeout: Duration::from_secs(10),
            trouble: Trouble::default(),
        };
        let request = Request::post(format!("https://localhost:{port}/v1/traces?a=b"))
            .body(Bytes::from("batch"));
        (
            client.send_bytes(request.unwrap()).await,
            client.trouble.take(),
        )
    }

    #[tokio::test]
    async fn a_batch_goes_over_tls_to_whom_the_authorities_vouch_for() {
        let (port, roots, asked) = tls_collector().await;
        let (answer, trouble) = send(port, roots).await;
        assert_eq!(
            (answer.unwrap().into_body(), trouble),
            (Bytes::from("ok"), None)
        );
        let head = asked.await.unwrap();
        assert!(
            head.starts_with("POST /v1/traces?a=b HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains(&format!("host: localhost:{port}\r\n")),
            "{head}"
        );
    }

    #[tokio::test]
    async fn nothing_is_said_to_a_collector_that_nobody_vouches_for() {
        let (port, _, asked) = tls_collector().await;
        let (_, roots_of_another, _) = tls_collector().await;
        let (answer, trouble) = send(port, roots_of_another).await;
        assert!(answer.is_err() && trouble.unwrap().contains("certificate"));
        assert!(asked.await.is_err(), "it heard no request");
    }
}
