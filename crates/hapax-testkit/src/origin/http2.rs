//! An HTTP/2 service written by hand: it handles frames (RFC 9113) and does not decode the fields
//! of requests.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, mpsc};

use super::Seen;
use super::scripts::{Scripted, Scripts};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The size of a request body that may be sent without a window update.
const WINDOW: u32 = 1 << 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Error codes (RFC 9113 section 7).
pub mod code {
    /// No error.
    pub const NO_ERROR: u32 = 0;
    /// An internal error of the service.
    pub const INTERNAL_ERROR: u32 = 2;
    /// The stream was not processed.
    pub const REFUSED_STREAM: u32 = 7;
    /// The stream is no longer needed.
    pub const CANCEL: u32 = 8;
    /// The peer causes excessive load.
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

/// What the service does with a request on its stream, step by step.
#[derive(Clone, Debug)]
pub enum Step2 {
    /// Reads the whole request and adds it to the ledger, with its body as the key.
    Read,
    /// Reads until the body so far contains this text.
    ReadUntil(&'static str),
    /// Sends a head with this status: the first on the stream, or the final one after interim ones.
    Head(u16),
    /// Sends a head with this status that ends the stream.
    HeadOnly(u16),
    /// Sends a head with this status and one field.
    HeadWith(u16, &'static str, String),
    /// Sends a part of a body.
    Data(&'static str),
    /// Sends a part of a body and ends the stream.
    End(&'static str),
    /// Ends the stream with one trailer.
    Trailers(&'static str, &'static str),
    /// Resets the stream with this code.
    Reset(u32),
    /// Sends GOAWAY with this last stream, relative to the stream of the script: 0 is that one, -2
    /// the one before.
    GoAway(i32, u32),
    /// Sends bytes that are not a frame.
    Garbage,
    /// Waits for [`Scripted::go`].
    Wait,
    /// Reports to the ledger that the script has reached this step.
    Mark,
    /// Closes the connection without GOAWAY.
    Drop,
    /// Resets the connection.
    DropHard,
}

/// A scripted HTTP/2 service, without TLS, by prior knowledge. Stops when dropped.
pub type Origin2 = Scripted<Step2>;

impl Origin2 {
    /// Listens on a free port of the loopback interface.
    pub async fn start() -> Origin2 {
        Scripted::listen(converse).await
    }
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

async fn read_frame(reader: &mut OwnedReadHalf) -> io::Result<Frame> {
    let mut head = [0; 9];
    reader.read_exact(&mut head).await?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    reader.read_exact(&mut payload).await?;
    Ok(Frame {
        kind,
        flags,
        stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        payload,
    })
}

/// The writing side, shared by the scripts of one connection.
#[derive(Clone)]
struct Writer {
    /// `None` once the connection has ended.
    half: Arc<Mutex<Option<OwnedWriteHalf>>>,
    /// Ends the connection.
    ending: mpsc::Sender<Ending>,
}

#[derive(Clone, Copy)]
enum Ending {
    Close,
    Reset,
}

impl Writer {
    async fn write(&self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len())
            .expect("a scripted frame is short")
            .to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.write_raw(&frame).await
    }

    async fn write_raw(&self, bytes: &[u8]) -> io::Result<()> {
        match &mut *self.half.lock().await {
            Some(half) => half.write_all(bytes).await,
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Sends a head in as many frames as necessary.
    async fn write_head(&self, flags: u8, stream: u32, block: &[u8]) -> io::Result<()> {
        let mut pieces = block.chunks(16 << 10).peekable();
        let mut kind = HEADERS;
        while let Some(piece) = pieces.next() {
            let last = if pieces.peek().is_none() {
                END_HEADERS
            } else {
                0
            };
            let flags = if kind == HEADERS { flags | last } else { last };
            self.write(kind, flags, stream, piece).await?;
            kind = CONTINUATION;
        }
        Ok(())
    }
}

async fn converse(socket: TcpStream, scripts: Arc<Scripts<Step2>>) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (mut reader, half) = socket.into_split();
    let (ending, mut ended) = mpsc::channel(1);
    let writer = Writer {
        half: Arc::new(Mutex::new(Some(half))),
        ending,
    };
    let reading = async {
        let mut preface = [0; PREFACE.len()];
        reader.read_exact(&mut preface).await?;
        let initial_window = [&[0, 4][..], &WINDOW.to_be_bytes()].concat();
        writer.write(SETTINGS, 0, 0, &initial_window).await?;
        writer
            .write(WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes())
            .await?;
        attend(&mut reader, &writer, &scripts).await
    };
    let ended = tokio::select! {
        read = reading => return read,
        ended = ended.recv() => ended,
    };
    let Some(half) = writer.half.lock().await.take() else {
        return Ok(());
    };
    if let Some(Ending::Reset) = ended {
        reader.as_ref().set_zero_linger()?;
        // Dropping it would close the connection in order first.
        half.forget();
    }
    Ok(())
}

/// Reads frames and starts a script for each request.
async fn attend(
    reader: &mut OwnedReadHalf,
    writer: &Writer,
    scripts: &Arc<Scripts<Step2>>,
) -> io::Result<()> {
    let mut bodies: HashMap<u32, mpsc::UnboundedSender<Part>> = HashMap::new();
    let mut last = 0;
    loop {
        let reading = read_frame(reader);
        let frame = match scripts.idle_max() {
            None => reading.await?,
            Some(idle_max) => match tokio::time::timeout(idle_max, reading).await {
                Ok(frame) => frame?,
                Err(_) => return goodbye(writer, last).await,
            },
        };
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => writer.write(SETTINGS, ACK, 0, &[]).await?,
            PING if frame.flags & ACK == 0 => writer.write(PING, ACK, 0, &frame.payload).await?,
            HEADERS => {
                last = frame.stream;
                let (sender, body) = mpsc::unbounded_channel();
                if frame.flags & END_STREAM == 0 {
                    bodies.insert(frame.stream, sender);
                } else {
                    let _ = sender.send(Part::End);
                }
                let script = scripts
                    .next()
                    .unwrap_or_else(|| vec![Step2::Read, Step2::Head(200), Step2::End("done")]);
                let stream = Stream {
                    id: frame.stream,
                    body,
                    read: Vec::new(),
                    writer: writer.clone(),
                    scripts: scripts.clone(),
                };
                tokio::spawn(stream.run(script));
            }
            DATA => {
                if let Some(body) = bodies.get(&frame.stream) {
                    let _ = body.send(Part::Data(unpadded(&frame)));
                    if frame.flags & END_STREAM != 0 {
                        let _ = body.send(Part::End);
                    }
                }
            }
            RST_STREAM => drop(bodies.remove(&frame.stream)),
            _ => {}
        }
    }
}

async fn goodbye(writer: &Writer, last: u32) -> io::Result<()> {
    let payload = [last.to_be_bytes(), code::NO_ERROR.to_be_bytes()].concat();
    writer.write(GOAWAY, 0, 0, &payload).await
}

fn unpadded(frame: &Frame) -> Vec<u8> {
    if frame.flags & PADDED == 0 {
        return frame.payload.clone();
    }
    let padding = usize::from(frame.payload[0]);
    frame.payload[1..frame.payload.len() - padding].to_vec()
}

/// A part of a request's body. A reset stream has no end.
enum Part {
    Data(Vec<u8>),
    End,
}

/// One request on its stream.
struct Stream {
    id: u32,
    body: mpsc::UnboundedReceiver<Part>,
    /// Data that was read but is not in the ledger yet.
    read: Vec<u8>,
    writer: Writer,
    scripts: Arc<Scripts<Step2>>,
}

impl Stream {
    async fn run(mut self, script: Vec<Step2>) -> io::Result<()> {
        for step in script {
            self.take(step).await?;
        }
        Ok(())
    }

    async fn take(&mut self, step: Step2) -> io::Result<()> {
        match step {
            Step2::Read => self.read().await?,
            Step2::ReadUntil(wanted) => {
                while !String::from_utf8_lossy(&self.read).contains(wanted) {
                    let Some(Part::Data(data)) = self.body.recv().await else {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    };
                    self.read.extend(data);
                }
            }
            Step2::Head(status) => self.writer.write_head(0, self.id, &head(status)).await?,
            Step2::HeadOnly(status) => {
                self.writer
                    .write_head(END_STREAM, self.id, &head(status))
                    .await?;
            }
            Step2::HeadWith(status, name, value) => {
                let block = [head(status), literal(name, &value)].concat();
                self.writer.write_head(0, self.id, &block).await?;
            }
            Step2::Data(data) => self.writer.write(DATA, 0, self.id, data.as_bytes()).await?,
            Step2::End(data) => {
                self.writer
                    .write(DATA, END_STREAM, self.id, data.as_bytes())
                    .await?;
            }
            Step2::Trailers(name, value) => {
                self.writer
                    .write_head(END_STREAM, self.id, &literal(name, value))
                    .await?;
            }
            Step2::Reset(code) => {
                self.writer
                    .write(RST_STREAM, 0, self.id, &code.to_be_bytes())
                    .await?;
            }
            Step2::GoAway(offset, code) => {
                let last = self.id.saturating_add_signed(offset);
                self.writer
                    .write(
                        GOAWAY,
                        0,
                        0,
                        &[last.to_be_bytes(), code.to_be_bytes()].concat(),
                    )
                    .await?;
            }
            Step2::Garbage => self.writer.write_raw(&[0xff; 64]).await?,
            Step2::Wait => self.scripts.wait().await,
            Step2::Mark => self.scripts.ledger.mark(),
            Step2::Drop => self.end(Ending::Close).await,
            Step2::DropHard => self.end(Ending::Reset).await,
        }
        Ok(())
    }

    async fn read(&mut self) -> io::Result<()> {
        let mut body = std::mem::take(&mut self.read);
        loop {
            match self.body.recv().await {
                Some(Part::Data(data)) => body.extend(data),
                Some(Part::End) => break,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let key = String::from_utf8_lossy(&body).into_owned();
        self.scripts.ledger.enter(Seen {
            key,
            head: String::new(),
            body,
        });
        Ok(())
    }

    async fn end(&self, how: Ending) {
        // If this fails, another script has already ended the connection.
        let _ = self.writer.ending.send(how).await;
    }
}

/// A literal `:status` field: RFC 7541 section 6.2.2, with the name from the static table.
fn head(status: u16) -> Vec<u8> {
    [&[0x08, 3][..], status.to_string().as_bytes()].concat()
}

/// A literal field with name and value.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0];
    for text in [name, value] {
        length(&mut field, text.len());
        field.extend(text.as_bytes());
    }
    field
}

/// An integer with a prefix of seven bits: RFC 7541 section 5.1.
fn length(into: &mut Vec<u8>, length: usize) {
    if length < 127 {
        into.push(length as u8);
        return;
    }
    into.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        into.push((rest % 128) as u8 | 0x80);
        rest /= 128;
    }
    into.push(rest as u8);
}
