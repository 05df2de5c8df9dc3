//! The service behind the gateway. It does what a request's body tells it.

use std::io;
use std::sync::{Arc, Mutex};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::harness::{
    Asked, Gate, Part, Reply, Serving, Upstream, broken_off, in_parts, whole, with,
};

/// Larger than the initial files of a store, and smaller than the limit of kept answers.
pub const MUCH_BYTES: usize = 512 << 10;

/// A running service that records which requests reached it.
pub struct Obedient {
    pub upstream: Upstream,
    pub gate: Arc<Gate>,
    seen: Arc<Mutex<Vec<Asked>>>,
}

impl Obedient {
    /// Speaks HTTP/1.1 over plain connections; over TLS, the protocol that the client prefers.
    pub fn start(serving: Serving) -> Obedient {
        let (gate, seen) = (Arc::<Gate>::default(), Arc::<Mutex<Vec<Asked>>>::default());
        let (at, kept) = (gate.clone(), seen.clone());
        let upstream = Upstream::start(serving, move |arrived| {
            let (gate, kept) = (at.clone(), kept.clone());
            async move {
                let asked = arrived.read().await?;
                let number = {
                    let mut kept = kept.lock().unwrap();
                    kept.push(asked.clone());
                    kept.len()
                };
                obey(&asked, number, &gate).await
            }
        });
        Obedient {
            upstream,
            gate,
            seen,
        }
    }

    /// The number of requests that had an effect, with a key or without.
    pub fn effects(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The number of requests with this key that had an effect.
    pub fn effects_of(&self, key: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|asked| asked.key() == key).count()
    }

    pub fn last_seen(&self) -> Asked {
        let seen = self.seen.lock().unwrap();
        seen.last().expect("nothing has arrived").clone()
    }
}

/// Does what the body says: answers with a status, waits at the gate, closes the connection.
async fn obey(asked: &Asked, number: usize, gate: &Gate) -> io::Result<Reply> {
    let told = std::str::from_utf8(&asked.body).unwrap();
    if told.starts_with("wait") {
        gate.pass().await;
    }
    Ok(match told {
        "wait, then much" | "much" => whole(200, vec![b'x'; MUCH_BYTES]),
        "wait, then 503" => status(503),
        "hang" => std::future::pending().await,
        "break off" => return Err(broken_off()),
        "truncate" => in_parts(200, [Part::Data("{\"charge\":".into()), Part::BreaksOff]),
        "500, none" => with(status(500), "hapax-outcome", "none"),
        "500, done" => with(status(500), "hapax-outcome", "done"),
        "500, retry" => with(status(500), "retry-after", "7"),
        "forget it" => with(charged(number), "hapax-keep", "no"),
        "redirect" => with(status(307), "location", "/elsewhere"),
        "trailers" => with_trailers(charged(number)),
        told => told.parse().map_or_else(|_| charged(number), status),
    })
}

/// An answer with each kind of field that a replay treats specially, and with copies of fields that
/// only Hapax may set.
fn charged(number: usize) -> Reply {
    [
        ("content-type", "application/json"),
        ("link", "<a>"),
        ("x-other", "1"),
        ("link", "<b>"),
        ("set-cookie", "session=first-caller"),
        ("cache-control", "private"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("idempotent-replayed", "true"),
        ("idempotency-expires", "Mon, 01 Jan 2029 00:00:00 GMT"),
        ("hapax-fence", "1"),
        ("hapax-operation", "made-up"),
        ("hapax-trace", "made-up"),
    ]
    .into_iter()
    .fold(
        whole(201, format!("{{\"charge\":{number}}}\n")),
        |reply, (name, value)| with(reply, name, value),
    )
}

fn status(status: u16) -> Reply {
    let reply = whole(status, format!("the upstream says {status}\n"));
    with(reply, "content-type", "text/plain")
}

fn with_trailers(reply: Reply) -> Reply {
    let trailers = HeaderMap::from_iter([(
        HeaderName::from_static("x-checksum"),
        HeaderValue::from_static("17"),
    )]);
    let parts = [
        Part::Data("{\"charge\":".into()),
        Part::Data("1}\n".into()),
        Part::Trailers(trailers),
    ];
    with(reply, "trailer", "x-checksum").map(|_| in_parts(200, parts).into_body())
}
