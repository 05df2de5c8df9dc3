//! Sends one GET to another service, limited in time and bytes. Redirects are not followed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{HOST, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::config::{Protocol, Upstream};
use crate::gateway::BoxError;
use crate::gateway::upstream::{Dialed, Dialer, Framing, QUIET};

/// Limit on the bytes of an answer's head. hyper may read twice as much before it fails.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Limit on the idle connections that are kept.
const IDLE_MAX: usize = 32;
/// How long an idle connection is kept: shorter than most services keep theirs.
const IDLE_AGE_MAX: Duration = Duration::from_secs(2);

/// A client for one service.
pub(super) struct Fetcher {
    dialer: Dialer,
    host: HeaderValue,
    target: PathAndQuery,
    /// Idle connections, the longest idle first.
    idle: Mutex<VecDeque<Idle>>,
}

struct Idle {
    sender: SendRequest<Empty<Bytes>>,
    since: Instant,
}

/// An answer, with its whole body.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no answer: a label for metrics and a sentence for the log.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) word: &'static str,
    pub(super) why: String,
}

impl Fetcher {
    /// `section` is the section of the configuration that sets the URL and the certificate
    /// authorities.
    pub(super) fn new(
        url: &Uri,
        ca_file: Option<&std::path::Path>,
        section: &str,
    ) -> Result<Fetcher, String> {
        let service = Upstream {
            protocol: Protocol::Http1,
            ca_file: ca_file.map(Into::into),
            ..Upstream::new(url.clone())
        };
        let authority = url
            .authority()
            .ok_or_else(|| format!("the URL of {section} names no host"))?;
        Ok(Fetcher {
            dialer: Dialer::new(&service, section)?,
            host: HeaderValue::try_from(authority.as_str()).map_err(|error| error.to_string())?,
            target: url
                .path_and_query()
                .cloned()
                .unwrap_or(PathAndQuery::from_static("/")),
            idle: Mutex::default(),
        })
    }

    /// Sends the request with these header fields, and reads at most `body_bytes_max` of the body.
    /// `within` limits the whole exchange.
    pub(super) async fn get(
        &self,
        headers: HeaderMap,
        body_bytes_max: usize,
        within: Duration,
    ) -> Result<Fetched, Failed> {
        match timeout(within, self.ask(headers, body_bytes_max)).await {
            Ok(fetched) => fetched,
            Err(_) => Err(Failed {
                word: "timeout",
                why: format!("no answer within {within:?}"),
            }),
        }
    }

    async fn ask(&self, headers: HeaderMap, body_bytes_max: usize) -> Result<Fetched, Failed> {
        let (sender, response) = self.exchange(headers).await?;
        let (parts, body) = response.into_parts();
        let framing = Framing::new(&Method::GET, &parts).map_err(|error| Failed {
            word: "broken",
            why: error.to_string(),
        })?;
        let body = whole(body, body_bytes_max).await?;
        // Bytes after an answer could be taken for the next answer, which may name another caller.
        if framing.is_certain {
            self.rest(sender);
        }
        Ok(Fetched {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }

    /// Sends on an idle connection and, if that fails, on a new one: asking twice has no effect.
    async fn exchange(
        &self,
        headers: HeaderMap,
    ) -> Result<(SendRequest<Empty<Bytes>>, Response<Incoming>), Failed> {
        if let Some(mut sender) = self.rested()
            && let Ok(response) = sender.send_request(self.request(headers.clone())).await
        {
            return Ok((sender, response));
        }
        let mut sender = self.dial().await.map_err(|error| Failed {
            word: "connect",
            why: error.to_string(),
        })?;
        let response = sender.send_request(self.request(headers)).await;
        response
            .map(|response| (sender, response))
            .map_err(|error| Failed {
                word: "broken",
                why: error.to_string(),
            })
    }

    fn request(&self, headers: HeaderMap) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = Uri::from(self.target.clone());
        *request.headers_mut() = headers;
        request.headers_mut().insert(HOST, self.host.clone());
        request
    }

    async fn dial(&self) -> Result<SendRequest<Empty<Bytes>>, BoxError> {
        let stream = match self.dialer.dial().await? {
            Dialed::Http1(stream) | Dialed::Http2(stream) => stream,
        };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        // The connection ends when its last sender is dropped.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn rested(&self) -> Option<SendRequest<Empty<Bytes>>> {
        let mut idle = self.idle.lock();
        idle.retain(|idle| idle.since.elapsed() < IDLE_AGE_MAX && idle.sender.is_ready());
        // A connection closes as soon as a surplus byte arrives; this leaves time for that.
        idle.pop_front_if(|idle| idle.since.elapsed() >= QUIET)
            .map(|idle| idle.sender)
    }

    fn rest(&self, sender: SendRequest<Empty<Bytes>>) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push_back(Idle {
                sender,
                since: Instant::now(),
            });
        }
    }
}

async fn whole(mut body: Incoming, bytes_max: usize) -> Result<Bytes, Failed> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failed {
            word: "broken",
            why: error.to_string(),
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if read.len() + data.len() > bytes_max {
            return Err(Failed {
                word: "too_large",
                why: format!("its answer has more than {bytes_max} bytes"),
            });
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}
