//! An HTTP/1.1 service written by hand.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Seen;
use super::scripts::{Scripted, Scripts};

/// What the service does with a request, step by step. It reads and writes only what the steps say.
/// After the last step the connection takes its next request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Reads the whole request and adds it to the ledger.
    Read,
    /// Reads only the head.
    ReadHead,
    /// Reads only the first byte.
    ReadByte,
    /// Reads until the raw body contains this text.
    ReadUntil(&'static str),
    /// Writes these bytes.
    Write(Vec<u8>),
    /// Waits for [`Scripted::go`].
    Wait,
    /// Does nothing for this long: for bytes that arrive late, whatever the timeouts of the other
    /// side.
    Pause(Duration),
    /// Reports to the ledger that the script has reached this step.
    Mark,
    /// Echoes everything until the other side ends.
    Echo,
    /// Closes the connection. The close is orderly if everything that arrived was read.
    Close,
    /// Resets the connection.
    Reset,
}

/// A scripted HTTP/1.1 service. Stops when dropped.
pub type Origin = Scripted<Step>;

impl Origin {
    /// Listens on a free port of the loopback interface.
    pub async fn start() -> Origin {
        Scripted::listen(|socket, scripts| {
            let connection = Connection {
                socket,
                buffer: Vec::new(),
                scripts,
            };
            connection.run()
        })
        .await
    }
}

/// An answer with this status, a body and its length.
pub fn answer(status: u16, fields: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-length: {}\r\n{fields}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

struct Connection {
    socket: TcpStream,
    /// Bytes that were read but not used yet.
    buffer: Vec<u8>,
    scripts: Arc<Scripts<Step>>,
}

enum Then {
    Next,
    End,
}

impl Connection {
    async fn run(mut self) -> io::Result<()> {
        self.socket.set_nodelay(true)?;
        while self.another().await? {
            let script = self
                .scripts
                .next()
                .unwrap_or_else(|| vec![Step::Read, Step::Write(answer(200, "", "done"))]);
            let mut head = None;
            for step in script {
                if let Then::End = self.take(step, &mut head).await? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Waits for the first byte of the next request without reading it, so that unread data stays
    /// with the system.
    async fn another(&self) -> io::Result<bool> {
        if !self.buffer.is_empty() {
            return Ok(true);
        }
        let mut first = [0];
        let Some(idle_max) = self.scripts.idle_max() else {
            return Ok(self.socket.peek(&mut first).await? > 0);
        };
        match tokio::time::timeout(idle_max, self.socket.peek(&mut first)).await {
            Ok(peeked) => Ok(peeked? > 0),
            Err(_) => Ok(false),
        }
    }

    async fn take(&mut self, step: Step, head: &mut Option<String>) -> io::Result<Then> {
        match step {
            Step::Read => {
                let head = match head.take() {
                    Some(head) => head,
                    None => self.read_head().await?,
                };
                let body = self.read_body(&head).await?;
                let key = field(&head, "idempotency-key").map_or_else(
                    || String::from_utf8_lossy(&body).into_owned(),
                    str::to_owned,
                );
                self.scripts.ledger.enter(Seen { key, head, body });
            }
            Step::ReadHead => *head = Some(self.read_head().await?),
            Step::ReadByte => {
                self.socket.read_u8().await?;
            }
            Step::ReadUntil(wanted) => {
                while !contains(&self.buffer, wanted.as_bytes()) {
                    self.read_more().await?;
                }
            }
            Step::Write(bytes) => self.socket.write_all(&bytes).await?,
            Step::Wait => self.scripts.wait().await,
            Step::Pause(time) => tokio::time::sleep(time).await,
            Step::Mark => self.scripts.ledger.mark(),
            Step::Echo => {
                self.echo().await?;
                return Ok(Then::End);
            }
            Step::Close => return Ok(Then::End),
            Step::Reset => {
                self.socket.set_zero_linger()?;
                return Ok(Then::End);
            }
        }
        Ok(Then::Next)
    }

    async fn echo(&mut self) -> io::Result<()> {
        loop {
            if self.buffer.is_empty() {
                self.read_more().await?;
            }
            let bytes = std::mem::take(&mut self.buffer);
            self.socket.write_all(&bytes).await?;
        }
    }

    async fn read_head(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                let head: Vec<u8> = self.buffer.drain(..at + 4).collect();
                return Ok(String::from_utf8_lossy(&head).into_owned());
            }
            self.read_more().await?;
        }
    }

    async fn read_body(&mut self, head: &str) -> io::Result<Vec<u8>> {
        if field(head, "transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
        {
            return self.read_chunks().await;
        }
        let length = field(head, "content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        self.read_exactly(length).await
    }

    async fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = self.read_line().await?;
            let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
                .map_err(io::Error::other)?;
            if size == 0 {
                // Skips trailers and the empty line after them.
                while !self.read_line().await?.is_empty() {}
                return Ok(body);
            }
            body.extend(self.read_exactly(size).await?);
            self.read_line().await?;
        }
    }

    async fn read_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).take(at).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            self.read_more().await?;
        }
    }

    async fn read_exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            self.read_more().await?;
        }
        Ok(self.buffer.drain(..length).collect())
    }

    async fn read_more(&mut self) -> io::Result<()> {
        match self.socket.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// The value of a field in a head.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields
        .filter(|(given, _)| given.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
        .next()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    find(bytes, wanted).is_some()
}
