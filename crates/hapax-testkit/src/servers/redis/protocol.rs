//! A client of RESP 2, the protocol of Redis, so that tests need no other client installed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A connection to a server.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Every later read or write fails if it takes longer than `patience`.
    pub(super) fn open(address: SocketAddr, patience: Duration) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Connection {
            stream: BufReader::new(stream),
        })
    }

    /// Runs a command.
    ///
    /// # Errors
    ///
    /// The server's error message, or why it could not be asked.
    pub(super) fn call(&mut self, command: &[impl AsRef<[u8]>]) -> Result<Reply, String> {
        let reply = self.send(command).and_then(|()| self.read());
        match reply.map_err(|error| error.to_string())? {
            Reply::Error(message) => Err(message),
            reply => Ok(reply),
        }
    }

    fn send(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for argument in command.iter().map(AsRef::as_ref) {
            write!(bytes, "${}\r\n", argument.len())?;
            bytes.extend([argument, b"\r\n"].concat());
        }
        self.stream.get_mut().write_all(&bytes)
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line
            .strip_suffix("\r\n")
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        // A negative length is that of a null.
        let length = || rest.parse::<i64>().map_err(io::Error::other);
        match kind {
            "+" | ":" => Ok(Reply::Text(rest.as_bytes().to_vec())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            "$" => match usize::try_from(length()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + "\r\n".len()];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Ok(Reply::Text(bytes))
                }
                Err(_) => Ok(Reply::Null),
            },
            "*" => match usize::try_from(length()?) {
                Ok(length) => (0..length)
                    .map(|_| self.read())
                    .collect::<io::Result<_>>()
                    .map(Reply::List),
                Err(_) => Ok(Reply::Null),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A reply. Integers are text.
pub(super) enum Reply {
    Null,
    Text(Vec<u8>),
    List(Vec<Reply>),
    /// Only in a list: otherwise it is the error of [`Connection::call`].
    Error(String),
}

impl Reply {
    /// A line per value, as redis-cli prints it into a pipe. A null is an empty line.
    pub(super) fn text(&self) -> String {
        match self {
            Reply::Null => String::new(),
            Reply::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Reply::List(replies) => replies
                .iter()
                .map(Reply::text)
                .collect::<Vec<_>>()
                .join("\n"),
            Reply::Error(message) => message.clone(),
        }
    }

    /// The values of a list; none if it is not a list.
    pub(super) fn list(&self) -> &[Reply] {
        match self {
            Reply::List(replies) => replies,
            _ => &[],
        }
    }

    /// The bytes of a text; none if it is not a text.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Reply::Text(bytes) => bytes,
            _ => &[],
        }
    }

    /// The value behind a name, in a list of names and values in turn.
    pub(super) fn field(&self, name: &str) -> Option<String> {
        self.list()
            .chunks_exact(2)
            .find(|pair| pair[0].bytes() == name.as_bytes())
            .map(|pair| pair[1].text())
    }
}
