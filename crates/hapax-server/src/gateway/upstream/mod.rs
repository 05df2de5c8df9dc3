//! The proxying service, which is the innermost of the stack. It sends a request once.
//!
//! The layer around it interprets its errors: [`NeverDispatched`] releases the key, every other
//! error makes the outcome unknown. So the code here must always know whether a byte of the request
//! may have reached the upstream.

mod admission;
mod answer;
mod dial;
mod exchange;
mod framing;
mod go_away;
mod http2;
mod link;
mod pool;
mod progress;
mod trust;
mod upgrade;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hapax::{Body, NeverDispatched, Operation, Peer};
use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service;

use self::admission::{Admission, Admitted, Permit, User};
use self::answer::Answer;
use self::exchange::Stopwatch;
use self::http2::Shared;
use self::link::{Link, Lost, News};
use self::pool::{Place, Pool, Turn};
use self::progress::Progress;
use super::{BoxError, forward};
use crate::config::Config;
use crate::telemetry::Metrics;

pub(crate) use self::admission::Busy;
pub(crate) use self::dial::{Dialed, Dialer};
pub(crate) use self::exchange::Exchange;
pub(crate) use self::framing::Framing;
pub(crate) use self::trust::QUIET;
pub(crate) use self::upgrade::Tunnels;

/// How often a request of which no byte was sent may be given another connection.
const UNSENT_MAX: usize = 3;

/// How often idle connections are checked.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// Sends requests to the upstream. Cheap to clone; the clones share connections.
#[derive(Clone)]
pub(crate) struct Proxy(Arc<Inside>);

struct Inside {
    dialer: Dialer,
    scheme: Scheme,
    authority: Authority,
    pool: Arc<Pool>,
    admission: Arc<Admission>,
    guarded_admission: Arc<Admission>,
    http2: Shared,
    tunnels: Tunnels,
    metrics: Metrics,
    connect_timeout: Duration,
    answer_timeout: Duration,
    tunnel_idle_max: Duration,
    idle_max: Duration,
    reuse_max: Duration,
    connections_max: usize,
}

/// Marks, in the extensions, a request that the gateway itself makes. It may use the connections
/// that are reserved for guarded requests.
#[derive(Clone, Copy)]
pub(crate) struct OwnRequest;

/// How a request reached the upstream; set in the extensions of the response, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispatched {
    /// As an attempt of an operation.
    Guarded,
    /// As an unguarded request.
    Unguarded,
}

impl Proxy {
    pub(crate) fn new(
        config: &Config,
        metrics: Metrics,
        tunnels: Tunnels,
    ) -> Result<Proxy, String> {
        let (upstream, timeouts) = (&config.upstream, &config.timeouts);
        Ok(Proxy(Arc::new(Inside {
            dialer: Dialer::new(upstream, "upstream")?,
            scheme: upstream.url.scheme().cloned().unwrap_or(Scheme::HTTP),
            authority: upstream
                .url
                .authority()
                .cloned()
                .ok_or("upstream.url names no host")?,
            pool: Pool::new(upstream.connections_max, upstream.idle_max, metrics.clone()),
            admission: Admission::new(upstream),
            guarded_admission: Admission::of_guarded(upstream),
            http2: Shared::new(upstream.unguarded_per_peer_max),
            tunnels,
            metrics,
            connect_timeout: timeouts.connect,
            answer_timeout: timeouts.answer,
            tunnel_idle_max: timeouts.tunnel_idle,
            idle_max: upstream.idle_max,
            reuse_max: upstream.reuse_max,
            connections_max: upstream.connections_max,
        })))
    }

    /// Whether both proxies share their connections.
    pub(crate) fn is_same(&self, other: &Proxy) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Closes idle connections from time to time, until all other clones of the proxy are gone.
    pub(crate) async fn sweep_idle(self) {
        let inside = Arc::downgrade(&self.0);
        drop(self);
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            let Some(inside) = inside.upgrade() else {
                return;
            };
            inside.pool.sweep();
        }
    }
}

impl Service<Request<Body>> for Proxy {
    type Response = Response<Admitted>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Admitted>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.clone().proxy(request))
    }
}

/// A connection to send on.
enum Way {
    Http1(Link),
    Http2(http2::Sender),
}

impl Inside {
    async fn proxy(
        self: Arc<Self>,
        mut request: Request<Body>,
    ) -> Result<Response<Admitted>, BoxError> {
        let is_guarded = request.extensions().get::<Operation>().is_some();
        let user = match is_guarded || request.extensions().get::<OwnRequest>().is_some() {
            true => User::Guarded,
            false => User::Unguarded(request.extensions().get::<Peer>().copied()),
        };
        let peer = request.extensions().get::<Peer>().copied();
        let traceparent = request.headers().get(forward::TRACEPARENT).cloned();
        let upgrading = upgrade::asked_for(&mut request).filter(|_| !is_guarded);
        let is_upgrading = upgrading.is_some();
        if !is_upgrading {
            // An `Upgrade` that is not also named in `Connection` (RFC 9110 section 7.8 requires
            // that), or one that the gateway does not pass on.
            request.headers_mut().remove(UPGRADE);
        }
        let stopwatch = request
            .extensions_mut()
            .remove::<Arc<Exchange>>()
            .map(Stopwatch::start);
        // The remaining extensions are internal to the gateway.
        request.extensions_mut().clear();

        let until = Instant::now() + self.connect_timeout;
        let mut permit = None;
        let sent = match upgrading {
            // Boxed, because upgrades are rare and their future is large.
            Some(client) => Box::pin(upgrade::send(&self, request, client, user, until)).await,
            None => {
                permit = self.admit(user, peer, until).await?;
                // A guarded request's body was buffered before, so its progress need not be
                // watched.
                let progress = Progress::default();
                let request = if is_guarded {
                    request
                } else {
                    progress.watch(request)
                };
                self.send(request, &progress, is_guarded, user, until).await
            }
        };
        let mut response = sent?;
        if let Some(stopwatch) = &stopwatch {
            stopwatch.answered(response.status());
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS && !is_upgrading {
            return Err(
                "the upstream changed to another protocol, which nobody had asked for".into(),
            );
        }
        forward::response(&mut response, traceparent);
        response.extensions_mut().insert(if is_guarded {
            Dispatched::Guarded
        } else {
            Dispatched::Unguarded
        });
        Ok(response.map(|answer| Admitted::new(answer, permit, stopwatch)))
    }

    /// Obtains the right to use a connection. The gateway's own requests need none.
    async fn admit(
        &self,
        user: User,
        peer: Option<Peer>,
        until: Instant,
    ) -> Result<Option<Permit>, NeverDispatched> {
        let (admission, peer) = match (user, peer) {
            (User::Unguarded(peer), _) => (&self.admission, peer),
            (User::Guarded, Some(_)) => (&self.guarded_admission, peer),
            (User::Guarded, None) => return Ok(None),
        };
        let admitted = timeout_at(until, admission.admit(peer)).await;
        admitted.map(Some).map_err(|_| match user {
            User::Unguarded(peer) => NeverDispatched(self.admission.why_busy(peer).into()),
            User::Guarded => NeverDispatched(Busy::GuardedPeer.into()),
        })
    }

    /// Sends a request once. It tries another connection only while no byte of the request has been
    /// sent. The request must have its first connection by `until`.
    async fn send(
        &self,
        mut request: Request<Body>,
        progress: &Progress,
        is_guarded: bool,
        user: User,
        mut until: Instant,
    ) -> Result<Response<Answer>, BoxError> {
        // A guarded request counts as unsafe whatever its method: guarding it says so.
        let is_safe = !is_guarded && is_safe(&request);
        let mut age_max = if is_safe {
            self.idle_max
        } else {
            self.reuse_max
        };
        for _ in 0..UNSENT_MAX {
            let lost = match self
                .way(age_max, user, until)
                .await
                .map_err(NeverDispatched)?
            {
                Way::Http1(link) => {
                    for_http1(&mut request, &self.authority);
                    let again = (is_safe && link.is_stale(self.reuse_max)).then(|| copy(&request));
                    match progress
                        .in_time(
                            self.answer_timeout,
                            link.exchange(request, self.pool.clone()),
                        )
                        .await?
                    {
                        Ok(response) => {
                            return Ok(
                                response.map(|body| Answer::http1(body, self.answer_timeout))
                            );
                        }
                        // RFC 9110 section 9.2.2 permits repeating a safe request.
                        Err(Lost {
                            error,
                            unsent: None,
                        }) => Lost {
                            error,
                            unsent: again,
                        },
                        Err(lost) => lost,
                    }
                }
                Way::Http2(sender) => {
                    let place = timeout(self.connect_timeout, sender.place(user)).await;
                    let place = place.map_err(|_| NeverDispatched(sender.why_no_place(user)))?;
                    let Some(place) = place else { continue };
                    for_http2(&mut request, &self.scheme, &self.authority);
                    match progress
                        .in_time(self.answer_timeout, sender.exchange(request, &place))
                        .await?
                    {
                        Ok(response) => {
                            return Ok(response
                                .map(|body| Answer::http2(body, place, self.answer_timeout)));
                        }
                        Err(lost) => lost,
                    }
                }
            };
            match lost {
                Lost {
                    unsent: Some(unsent),
                    ..
                } => request = unsent,
                Lost {
                    error,
                    unsent: None,
                } => return Err(error),
            }
            // This connection had been closed before anything was sent; others of its age may be
            // closed too.
            age_max = Duration::ZERO;
            until = Instant::now() + self.connect_timeout;
        }
        Err(
            NeverDispatched("the upstream closes connections before a request can be sent".into())
                .into(),
        )
    }

    /// Returns a connection that was used within `age_max`, or a new one.
    async fn way(&self, age_max: Duration, user: User, until: Instant) -> Result<Way, BoxError> {
        let connecting = async {
            loop {
                if let Some(sender) = self.http2.sender() {
                    return Ok(Way::Http2(sender));
                }
                let turn = match self.pool.take(age_max, user == User::Guarded) {
                    Place::Now(turn) => turn,
                    Place::Line(place) => {
                        let opened = self.http2.opened();
                        if let Some(sender) = self.http2.sender() {
                            return Ok(Way::Http2(sender));
                        }
                        tokio::select! {
                            turn = place => turn?,
                            // A shared connection keeps its slot in the pool, but has room for this
                            // request.
                            () = opened => continue,
                        }
                    }
                };
                match turn {
                    Turn::Used(link) => match link.news() {
                        News::None => return Ok(Way::Http1(link)),
                        News::Surplus => self.pool.distrust(),
                        News::Closed => {}
                    },
                    Turn::Dial(slot) => {
                        let way = self.dial(slot).await;
                        match &way {
                            Ok(_) => self.metrics.upstream_connected(),
                            Err(_) => self.metrics.upstream_connect_failed(),
                        }
                        return way;
                    }
                }
            }
        };
        match timeout_at(until, connecting).await {
            Ok(way) => way,
            Err(_) => Err(format!(
                "no connection to the upstream within {:?} (timeouts.connect), of at most {} (upstream.connections_max)",
                self.connect_timeout, self.connections_max
            )
            .into()),
        }
    }

    async fn dial(&self, slot: pool::Slot) -> Result<Way, BoxError> {
        // With HTTP/2, only one request dials and all share its connection.
        let _turn = self.http2.turn().await;
        if let Some(sender) = self.http2.sender() {
            return Ok(Way::Http2(sender));
        }
        match self.dialer.dial().await? {
            Dialed::Http1(stream) => Ok(Way::Http1(Link::open(stream, slot).await?)),
            Dialed::Http2(stream) => Ok(Way::Http2(self.http2.open(stream, slot).await?)),
        }
    }
}

/// Whether a connection that has been idle for long may be used: if it turns out to be closed, the
/// request is sent again.
fn is_safe(request: &Request<Body>) -> bool {
    matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    ) && request.body().is_end_stream()
}

fn copy(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// Reduces the URI to its path, and sets `Host`: the upstream's, if the client sent none, as
/// HTTP/1.0 allows.
fn for_http1(request: &mut Request<Body>, upstream: &Authority) {
    *request.version_mut() = Version::HTTP_11;
    // Servers may require a length even for an empty body (RFC 9110 section 8.6); hyper omits it.
    if request.body().is_end_stream()
        && matches!(
            *request.method(),
            Method::POST | Method::PUT | Method::PATCH
        )
    {
        request
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from(0));
    }
    // hyper assumes that a GET or HEAD of unknown length has no body, and would drop it.
    if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
        request
            .headers_mut()
            .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let host = |authority: &Authority| {
        HeaderValue::try_from(authority.as_str()).expect("an authority is a header value")
    };
    if let Some(authority) = request.uri().authority() {
        let host = host(authority);
        request.headers_mut().insert(HOST, host);
        *request.uri_mut() = with_authority(request.uri(), None);
    } else if !request.headers().contains_key(HOST) {
        request.headers_mut().insert(HOST, host(upstream));
    }
}

/// Sets scheme, authority and path; `Host` moves into the authority. Without an authority, h2 would
/// refuse the request; nothing would be sent.
fn for_http2(request: &mut Request<Body>, scheme: &Scheme, upstream: &Authority) {
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(CONTENT_LENGTH);
    request.headers_mut().remove(TRANSFER_ENCODING);
    let host = request.headers_mut().remove(HOST);
    if request.uri().authority().is_none() {
        let authority = host
            .and_then(|host| Authority::try_from(host.as_bytes()).ok())
            .unwrap_or_else(|| upstream.clone());
        *request.uri_mut() = with_authority(request.uri(), Some((scheme.clone(), authority)));
    }
}

fn with_authority(uri: &Uri, authority: Option<(Scheme, Authority)>) -> Uri {
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(
        uri.path_and_query()
            .cloned()
            .unwrap_or(PathAndQuery::from_static("/")),
    );
    if let Some((scheme, authority)) = authority {
        parts.scheme = Some(scheme);
        parts.authority = Some(authority);
    }
    Uri::from_parts(parts).unwrap_or_default()
}
