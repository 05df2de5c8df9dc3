//! A well-behaved client that runs beside an attack.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{GOOD_ADDRESS, tls};

/// No request of a good client may take longer than this during an attack, including the time to
/// connect.
pub const GOOD_MAX: Duration = Duration::from_secs(5);
/// The smallest number of requests it sends, however short an attack is.
const REQUESTS_MIN: u32 = 40;
/// Requests on one connection.
const REQUESTS: u32 = 4;

/// A running good client, until its result is asked for.
pub struct Good {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Went>>,
}

/// The result: all answers were correct.
#[derive(Default)]
pub struct Went {
    pub requests: u32,
    pub slowest: Duration,
}

trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

impl Good {
    pub fn start(address: SocketAddr, trusted: Option<tls::Trusted>) -> Good {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut went = Went::default();
            while !stopping.load(Ordering::Relaxed) || went.requests < REQUESTS_MIN {
                visit(address, trusted.as_ref(), &mut went)?;
            }
            Ok(went)
        });
        Good { stop, thread }
    }

    pub fn end(self) -> Went {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .unwrap()
            .expect("a good client is answered, whatever others do")
    }
}

/// One connection and its requests, alternately with a key and without.
fn visit(address: SocketAddr, trusted: Option<&tls::Trusted>, went: &mut Went) -> io::Result<()> {
    let mut started = Instant::now();
    let socket = TcpStream::connect_timeout(&address, 2 * GOOD_MAX)?;
    socket.set_read_timeout(Some(2 * GOOD_MAX))?;
    socket.set_nodelay(true)?;
    let mut connection: Box<dyn Connection> = match trusted {
        Some(trusted) => Box::new(trusted.connect(socket)),
        None => Box::new(socket),
    };
    for _ in 0..REQUESTS {
        let (number, method) = (
            went.requests,
            if went.requests.is_multiple_of(2) {
                "POST"
            } else {
                "GET"
            },
        );
        let key = format!("Idempotency-Key: good-{number}\r\n");
        let from = format!("X-Forwarded-For: {GOOD_ADDRESS}\r\n");
        let head = format!(
            "{method} /good-{number} HTTP/1.1\r\nHost: h\r\n{from}{key}Content-Length: 5\r\n\r\nhello"
        );
        connection.write_all(head.as_bytes())?;
        let answer = read_answer(&mut connection)?;
        let right = answer.starts_with("HTTP/1.1 200 ")
            && answer.ends_with(&format!("\r\n\r\nsaw {method} /good-{number}\n"));
        assert!(right, "a good client's request was answered with {answer}");
        went.slowest = went.slowest.max(started.elapsed());
        went.requests += 1;
        started = Instant::now();
    }
    Ok(())
}

/// Reads an answer of the service, which is one line.
fn read_answer(connection: &mut impl Read) -> io::Result<String> {
    let (mut answer, mut byte) = (Vec::new(), [0]);
    loop {
        connection.read_exact(&mut byte)?;
        answer.push(byte[0]);
        let is_whole = answer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .is_some_and(|at| at + 4 < answer.len());
        if is_whole && byte[0] == b'\n' {
            return Ok(String::from_utf8_lossy(&answer).into_owned());
        }
    }
}
