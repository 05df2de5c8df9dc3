//! Upgrades (WebSocket): a connection of their own, then bytes both ways until either side ends.

use std::sync::Arc;

use hapax::{Body, NeverDispatched};
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use hyper::client::conn::http1;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::Answer;
use super::dial::Speaks;
use super::link::ANSWER_FIELDS_MAX;
use super::pool::{Place, Slot, Turn};
use super::progress::Progress;
use super::{BoxError, Inside, for_http1};

/// The connections that have become something else than HTTP.
#[derive(Clone, Default)]
pub(crate) struct Tunnels {
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Tunnels {
    /// Closes them all: nobody can know when one of them would be done.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn dig(&self, client: OnUpgrade, upstream: Upgraded, slot: Arc<Slot>) {
        let closing = self.closing.clone();
        self.tasks.spawn(async move {
            let _slot = slot;
            let Ok(client) = client.await else { return };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            tokio::select! {
                // Either side's end is the ordinary end of it.
                _ = copy_bidirectional(&mut client, &mut upstream) => {}
                () = closing.cancelled() => {}
            }
        });
    }
}

/// The client's side of an upgrade, if a request asks for one that we pass on. `forward` has taken every other wish out.
pub(super) fn asked_for(request: &mut Request<Body>) -> Option<OnUpgrade> {
    let client = request.extensions_mut().remove::<OnUpgrade>()?;
    (request.method() == Method::GET && request.headers().contains_key(UPGRADE)).then_some(client)
}

pub(super) async fn send(inside: &Inside, mut request: Request<Body>, client: OnUpgrade) -> Result<Response<Answer>, BoxError> {
    let never = |error: BoxError| NeverDispatched(error);
    let dialing = async {
        let slot = slot(inside).await?;
        match inside.dialer.dial().await? {
            Speaks::Http1(stream) => {
                let connection = http1::Builder::new().max_headers(ANSWER_FIELDS_MAX).handshake(TokioIo::new(stream)).await?;
                Ok::<_, BoxError>((connection, slot))
            }
            Speaks::Http2(_) => Err("the upstream speaks HTTP/2, over which nothing is upgraded".into()),
        }
    };
    let dialed = timeout(inside.connect_timeout, dialing).await.map_err(|error| never(error.into()))?;
    let ((mut sender, connection), slot) = dialed.map_err(never)?;
    // Held by the connection while it speaks HTTP, and by what it becomes.
    let slot = Arc::new(slot);
    let held = slot.clone();
    tokio::spawn(async move {
        drop(connection.with_upgrades().await);
        drop(held);
    });

    for_http1(&mut request, &inside.authority);
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    let mut response = Progress::default().in_time(inside.answer_timeout, sender.send_request(request)).await??;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(|body| Answer::alone(body, inside.answer_timeout)));
    }
    let upstream = hyper::upgrade::on(&mut response).await?;
    inside.tunnels.dig(client, upstream, slot);
    Ok(response.map(|_| Answer::empty()))
}

/// The right to one more connection. A used one will not do: it would not come back.
async fn slot(inside: &Inside) -> Result<Slot, BoxError> {
    loop {
        let turn = match Arc::clone(&inside.pool).take(std::time::Duration::ZERO) {
            Place::Now(turn) => turn,
            Place::Line(place) => place.await?,
        };
        match turn {
            Turn::Dial(slot) => return Ok(slot),
            Turn::Used(link) => drop(link),
        }
    }
}
