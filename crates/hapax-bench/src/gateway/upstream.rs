//! The upstream: answers every order with the same bytes, as cheaply as sockets allow, and counts
//! the orders.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use crate::Error;
use crate::child::{self, Child};
use crate::client::{Connection, Request, length};
use crate::flags::{Command, Flags};
use crate::load::ANSWER_BYTES;

use super::protocol;

/// The command of the child that answers until it is killed.
pub(crate) const UPSTREAM: Command = Command {
    name: "upstream",
    help: "",
    flags: &[],
    run,
};

/// The path that returns the number of orders so far, requested without a proxy.
const COUNT: &str = "/count";
/// Larger than any request of a proxy.
const REQUEST_BYTES_MAX: usize = 16 << 10;

static ORDERS: AtomicU64 = AtomicU64::new(0);

/// A handle to the upstream in its child process.
pub(super) struct Upstream {
    child: Child,
    pub(super) address: String,
}

impl Upstream {
    pub(super) fn start() -> Result<Upstream, Error> {
        let mut child = Child::spawn(&[UPSTREAM.name])?;
        let address = child.line()?;
        Ok(Upstream { child, address })
    }

    /// The processor time used so far, in microseconds.
    pub(super) fn cpu_micros(&self) -> Result<u64, Error> {
        child::cpu_micros(self.child.pid())
    }

    /// How many orders it has received.
    pub(super) async fn orders(&self) -> Result<u64, Error> {
        let mut connection = Connection::open(&self.address, Request::get(COUNT, 200)).await?;
        Ok(str::from_utf8(connection.exchange(Uuid::nil()).await?)?.parse()?)
    }
}

fn run(_: &Flags) -> Result<(), Error> {
    child::end_with_parent();
    // One thread: the upstream should use the smallest part of the processor time.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve())
}

async fn serve() -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A failed connection is an error of the proxy and shows there.
        tokio::spawn(async move { drop(answer_all(stream).await) });
    }
}

async fn answer_all(mut stream: TcpStream) -> Result<(), Error> {
    let (mut buffer, mut filled) = (vec![0; REQUEST_BYTES_MAX], 0);
    let answer = response("201 Created", "application/json", charge().as_bytes());
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        while let Some(end) = end(&buffer[..filled]) {
            match &buffer[..end] {
                order if order.starts_with(b"POST /v1/") => {
                    ORDERS.fetch_add(1, Ordering::Relaxed);
                    stream.write_all(&answer).await?;
                }
                invocation if invocation.starts_with(b"POST /invoke/") => {
                    let run = ORDERS.fetch_add(1, Ordering::Relaxed);
                    stream
                        .write_all(&response(
                            "200 OK",
                            protocol::INVOCATION,
                            &protocol::answer(&charge(), run),
                        ))
                        .await?;
                }
                asked if asked.starts_with(b"GET /discover ") => {
                    stream
                        .write_all(&response(
                            "200 OK",
                            protocol::MANIFEST,
                            protocol::manifest().as_bytes(),
                        ))
                        .await?;
                }
                _ => {
                    let orders = ORDERS.load(Ordering::Relaxed).to_string();
                    stream
                        .write_all(&response("200 OK", "text/plain", orders.as_bytes()))
                        .await?;
                }
            }
            buffer.copy_within(end..filled, 0);
            filled -= end;
        }
    }
}

/// Where the first request ends, if the buffer contains all of it.
fn end(buffer: &[u8]) -> Option<usize> {
    const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
    let head = buffer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let mut lines = buffer[..head].split(|&byte| byte == b'\n');
    if lines
        .clone()
        .any(|line| line.to_ascii_lowercase().starts_with(b"transfer-encoding:"))
    {
        return Some(
            head + buffer[head..]
                .windows(LAST_CHUNK.len())
                .position(|window| window == LAST_CHUNK)?
                + LAST_CHUNK.len(),
        );
    }
    let end = head + 4 + lines.find_map(length).unwrap_or(0);
    (end <= buffer.len()).then_some(end)
}

fn response(status: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn charge() -> String {
    let charge = r#"{"id":"ch_3MmlLrLkdIwHu7ix0snN0B15","status":"succeeded","receipt":""#;
    format!(
        "{charge}{}\"}}",
        "7".repeat(ANSWER_BYTES - charge.len() - 2)
    )
}
