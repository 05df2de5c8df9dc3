//! Many connections that misbehave in the same way.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// All connections of a crowd must be closed by then: well past every timeout of the gateway.
pub const GONE_MAX: Duration = Duration::from_secs(30);
/// The time between two bytes of a trickle.
const TICK: Duration = Duration::from_millis(25);

/// The number of bytes that a flood writes at once.
const FLOOD_BYTES: usize = 64 << 10;

/// What is sent: `once` first, and then `again` repeatedly.
pub struct Script {
    pub once: Vec<u8>,
    pub again: Vec<u8>,
}

impl Script {
    pub fn new(once: impl Into<Vec<u8>>, again: impl Into<Vec<u8>>) -> Script {
        Script {
            once: once.into(),
            again: again.into(),
        }
    }

    fn from(&self, start: usize, bytes_max: usize) -> Vec<u8> {
        let (once, again) = (
            self.once.iter().copied(),
            self.again.iter().copied().cycle(),
        );
        match start.checked_sub(self.once.len()) {
            None => once.skip(start).chain(again).take(bytes_max).collect(),
            Some(_) if self.again.is_empty() => Vec::new(),
            Some(past) => again
                .skip(past % self.again.len())
                .take(bytes_max)
                .collect(),
        }
    }
}

pub struct Crowd {
    open: Vec<Member>,
    /// The first line of what each closed connection received.
    pub last_words: Vec<String>,
    deadline: Instant,
}

struct Member {
    socket: TcpStream,
    sent: usize,
    heard: Vec<u8>,
}

impl Crowd {
    /// Opens `count` connections, each of which sends `said` at once.
    pub fn connect(address: SocketAddr, count: usize, said: &[u8]) -> Crowd {
        let open = (0..count)
            .map(|_| {
                let mut socket = TcpStream::connect(address).unwrap();
                socket.write_all(said).unwrap();
                socket.set_nonblocking(true).unwrap();
                Member {
                    socket,
                    sent: said.len(),
                    heard: Vec::new(),
                }
            })
            .collect();
        Crowd {
            open,
            last_words: Vec::new(),
            deadline: Instant::now() + GONE_MAX,
        }
    }

    /// Each connection continues the script one byte at a time, until the gateway has closed all of
    /// them.
    pub fn trickle(mut self, script: &Script) -> Crowd {
        while !self.open.is_empty() {
            self.open
                .iter_mut()
                .for_each(|member| member.say(script, 1));
            self.listen();
            self.wait_a_tick();
        }
        self
    }

    /// Each connection continues the script as fast as it can, until the gateway has closed all of
    /// them.
    pub fn flood(mut self, script: &Script) -> Crowd {
        while !self.open.is_empty() {
            self.open
                .iter_mut()
                .for_each(|member| member.say(script, FLOOD_BYTES));
            self.listen();
        }
        self
    }

    /// Each connection sends the script to its end as fast as it can, and waits until the gateway
    /// has closed all of them.
    pub fn say_all(mut self, script: &Script) -> Crowd {
        while !self.open.is_empty() {
            self.open
                .iter_mut()
                .for_each(|member| member.say(script, FLOOD_BYTES));
            self.listen();
            self.wait_a_tick();
        }
        self
    }

    /// The connections send nothing more, until the gateway has closed all of them.
    pub fn wait(mut self) -> Crowd {
        while !self.open.is_empty() {
            self.listen();
            self.wait_a_tick();
        }
        self
    }

    /// Each connection reads one byte.
    pub fn sip(&mut self) {
        self.open
            .iter_mut()
            .for_each(|member| drop(member.socket.read(&mut [0])));
        self.wait_a_tick();
    }

    fn listen(&mut self) {
        for index in (0..self.open.len()).rev() {
            if self.open[index].is_gone() {
                let member = self.open.swap_remove(index);
                let said = String::from_utf8_lossy(&member.heard).into_owned();
                self.last_words
                    .push(said.lines().next().unwrap_or_default().to_owned());
            }
        }
        assert!(
            Instant::now() < self.deadline,
            "{} connections are still open after {GONE_MAX:?}",
            self.open.len()
        );
    }

    /// Waits briefly for one of them to be closed.
    fn wait_a_tick(&self) {
        let Some(Member { socket, .. }) = self.open.first() else {
            return;
        };
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(TICK)).unwrap();
        let _ = socket.peek(&mut [0]);
        socket.set_nonblocking(true).unwrap();
    }
}

impl Member {
    fn say(&mut self, script: &Script, bytes_max: usize) {
        // A failed write is ignored here: the next read notices the close.
        if let Ok(count) = self.socket.write(&script.from(self.sent, bytes_max)) {
            self.sent += count;
        }
    }

    fn is_gone(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return true,
                Ok(count) => self.heard.extend(&bytes[..count]),
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }
}
