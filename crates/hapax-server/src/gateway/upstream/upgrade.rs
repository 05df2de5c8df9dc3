//! Upgrades (WebSocket): each gets its own connection, then bytes flow both ways until either side
//! ends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hapax::{Body, NeverDispatched};
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use hyper::client::conn::http1;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::admission::{Permit, TunnelPermit, User};
use super::answer::Answer;
use super::dial::Dialed;
use super::link::ANSWER_FIELDS_MAX;
use super::pool::{Place, Slot, Turn};
use super::progress::Progress;
use super::{BoxError, Inside, for_http1};

/// The connections that were upgraded from HTTP to another protocol.
#[derive(Clone, Default)]
pub(crate) struct Tunnels {
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Tunnels {
    /// Closes all tunnels, because it is unknown when they would end by themselves.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn spawn_tunnel(
        &self,
        client: OnUpgrade,
        upstream: Upgraded,
        held: Arc<Held>,
        idle_max: Duration,
    ) {
        let closing = self.closing.clone();
        let relaying = async move {
            let _held = held;
            let Ok(client) = client.await else { return };
            tokio::select! {
                () = relay(TokioIo::new(client), TokioIo::new(upstream), idle_max) => {}
                () = closing.cancelled() => {}
            }
        };
        self.tasks.spawn(relaying.in_current_span());
    }
}

/// What a tunnel holds: its connection, and its permits as an unguarded request and as a tunnel.
struct Held {
    _slot: Slot,
    _permit: Option<Permit>,
    _tunnel: Option<TunnelPermit>,
}

/// Copies bytes both ways until either side ends, or until neither has sent any for `idle_max`.
/// Both sides are closed then.
async fn relay<A, B>(client: A, upstream: B, idle_max: Duration)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let heard = Arc::new(Mutex::new(Instant::now()));
    let mut client = Heard {
        stream: client,
        at: heard.clone(),
    };
    let mut upstream = Heard {
        stream: upstream,
        at: heard.clone(),
    };
    let idle = async {
        loop {
            let until = *heard.lock() + idle_max;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    };
    tokio::select! {
        // It is normal for either side to end the tunnel, even with an error.
        _ = copy_bidirectional(&mut client, &mut upstream) => {}
        () = idle => tracing::info!(?idle_max, "a tunnel without traffic was closed (timeouts.tunnel_idle)"),
    }
}

/// A stream that records when bytes last came from it.
struct Heard<S> {
    stream: S,
    at: Arc<Mutex<Instant>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            *self.at.lock() = Instant::now();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The client's side of an upgrade, if the request asks for one that the gateway passes on.
/// `forward` has removed every other upgrade request.
pub(super) fn asked_for(request: &mut Request<Body>) -> Option<OnUpgrade> {
    let client = request.extensions_mut().remove::<OnUpgrade>()?;
    (request.method() == Method::GET && request.headers().contains_key(UPGRADE)).then_some(client)
}

pub(super) async fn send(
    inside: &Inside,
    mut request: Request<Body>,
    client: OnUpgrade,
    user: User,
    until: Instant,
) -> Result<Response<Answer>, BoxError> {
    let never = |error: BoxError| NeverDispatched(error);
    let tunnel = match user {
        User::Guarded => None,
        User::Unguarded(peer) => Some(
            inside
                .admission
                .admit_tunnel(peer)
                .map_err(|busy| never(busy.into()))?,
        ),
    };
    let permit = inside.admit(user, None, until).await?;
    let dialing = async {
        let slot = slot(inside).await?;
        match inside.dialer.dial().await? {
            Dialed::Http1(stream) => {
                let connection = http1::Builder::new()
                    .max_headers(ANSWER_FIELDS_MAX)
                    .handshake(TokioIo::new(stream))
                    .await?;
                Ok::<_, BoxError>((connection, slot))
            }
            Dialed::Http2(_) => {
                Err("the upstream speaks HTTP/2, over which nothing is upgraded".into())
            }
        }
    };
    let dialed = timeout_at(until, dialing)
        .await
        .map_err(|error| never(error.into()))?;
    let ((mut sender, connection), slot) = dialed.map_err(never)?;
    // Held by the connection while it speaks HTTP, and by the tunnel after that.
    let held = Arc::new(Held {
        _slot: slot,
        _permit: permit,
        _tunnel: tunnel,
    });
    let also_held = held.clone();
    tokio::spawn(async move {
        drop(connection.with_upgrades().await);
        drop(also_held);
    });

    for_http1(&mut request, &inside.authority);
    request
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("upgrade"));
    let mut response = Progress::default()
        .in_time(inside.answer_timeout, sender.send_request(request))
        .await??;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(|body| Answer::alone(body, inside.answer_timeout)));
    }
    let upstream = hyper::upgrade::on(&mut response).await?;
    inside
        .tunnels
        .spawn_tunnel(client, upstream, held, inside.tunnel_idle_max);
    Ok(response.map(|_| Answer::empty()))
}

/// The right to open one more connection. A used connection is not taken, because a tunnel never
/// returns it.
async fn slot(inside: &Inside) -> Result<Slot, BoxError> {
    loop {
        let turn = match inside.pool.take(Duration::ZERO, false) {
            Place::Now(turn) => turn,
            Place::Line(place) => place.await?,
        };
        match turn {
            Turn::Dial(slot) => return Ok(slot),
            Turn::Used(link) => drop(link),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const IDLE: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_when_neither_side_says_anything_for_long() {
        let (mut client, theirs) = duplex(64);
        let (mut upstream, behind) = duplex(64);
        let relay = tokio::spawn(relay(theirs, behind, IDLE));
        // A byte now and then, from either side, keeps the tunnel open.
        for turn in 0..6 {
            tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
            let (from, to) = if turn % 2 == 0 {
                (&mut client, &mut upstream)
            } else {
                (&mut upstream, &mut client)
            };
            from.write_all(b"x").await.unwrap();
            assert_eq!(to.read_u8().await.unwrap(), b'x');
        }
        let last_heard = Instant::now();
        relay.await.unwrap();
        assert_eq!(last_heard.elapsed().as_secs(), IDLE.as_secs());
        for side in [&mut client, &mut upstream] {
            assert_eq!(side.read(&mut [0]).await.unwrap(), 0, "both are closed");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_whose_client_takes_nothing_ends_too() {
        let (_client, theirs) = duplex(64);
        let (mut upstream, behind) = duplex(64);
        let relay = tokio::spawn(relay(theirs, behind, IDLE));
        let flood =
            tokio::spawn(async move { while upstream.write_all(&[0; 1024]).await.is_ok() {} });
        relay.await.unwrap();
        flood.await.unwrap();
    }
}
