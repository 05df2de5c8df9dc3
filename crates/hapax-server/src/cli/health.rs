//! `hapax health`: whether a gateway should get requests, for whoever can only run a program: the
//! health check of a container, a probe that is a command, a script.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use http::Uri;

use super::{Exit, text};
use crate::config::text::duration;

/// An answer is a line; whoever sends more is no gateway of ours.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Ask a gateway whether it is ready for requests.
///
/// Exit code 0: it is. 1: it runs, but is not ready, and standard error says why. 3: nobody
/// answers. For container health checks and for probes that run a command.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The gateway's admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4001")]
    admin: String,
    /// Ask only whether the process runs, ready or not
    #[arg(long)]
    live: bool,
    /// How long it may take, up to a minute: 500ms, 2s
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = timeout)]
    timeout: Duration,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let authority = authority(&args.admin)?;
    let path = if args.live { "/healthz" } else { "/readyz" };
    let answer = ask(&authority, path, args.timeout).map_err(|why| {
        Exit::unreachable(format!("nobody answers at {authority}: {why}. Is the gateway running, and is this its admin listener?"))
    })?;
    let (status, said) = read(&answer).ok_or_else(|| {
        Exit::unreachable(format!("what answers at {authority} does not speak HTTP: --admin is the address of the admin listener"))
    })?;
    match status {
        200 => {
            text::emit(&format!("{said}\n"));
            Ok(())
        }
        503 => Err(Exit::failed(said)),
        _ => Err(Exit::failed(format!(
            "{path} was answered with {status}: is {authority} the admin listener of a gateway?"
        ))),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        timeout if timeout.is_zero() || timeout > Duration::from_secs(60) => {
            Err("write 1ms to 60s".to_owned())
        }
        timeout => Ok(timeout),
    }
}

fn authority(url: &str) -> Result<String, Exit> {
    let wrong = || {
        let url = text::line(url);
        Exit::usage(format!(
            "`{url}` is not the address of an admin listener: write http://HOST:PORT, as in http://127.0.0.1:4001"
        ))
    };
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let is_origin =
        uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/") && uri.query().is_none();
    let authority = uri
        .authority()
        .filter(|authority| is_origin && !authority.as_str().contains('@'))
        .ok_or_else(wrong)?;
    Ok(format!(
        "{}:{}",
        authority.host(),
        authority.port_u16().unwrap_or(80)
    ))
}

/// One request on a connection of its own, in whole no longer than this. Without a runtime: a probe
/// runs every few seconds for years.
fn ask(authority: &str, path: &str, patience: Duration) -> Result<Vec<u8>, String> {
    let end = Instant::now() + patience;
    let left = || {
        Some(end.saturating_duration_since(Instant::now()))
            .filter(|left| !left.is_zero())
            .ok_or("no answer in time")
    };
    let words = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            "no answer in time".to_owned()
        }
        _ => error.to_string(),
    };
    let address = authority
        .to_socket_addrs()
        .map_err(words)?
        .next()
        .ok_or("the name has no address")?;
    let mut stream = TcpStream::connect_timeout(&address, left()?).map_err(words)?;
    stream.set_write_timeout(Some(left()?)).map_err(words)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"
    )
    .map_err(words)?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left()?)).map_err(words)?;
        match stream.read(&mut part).map_err(words)? {
            0 => return Ok(answer),
            read => answer.extend_from_slice(&part[..read]),
        }
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err("it does not stop answering".to_owned());
        }
    }
}

/// The status, and the text in one line.
fn read(answer: &[u8]) -> Option<(u16, String)> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, text::line(body.trim()).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_and_a_line() {
        assert_eq!(
            read(b"HTTP/1.1 200 OK\r\na: b\r\n\r\nready\n"),
            Some((200, "ready".to_owned()))
        );
        assert_eq!(
            read(b"HTTP/1.1 503 x\r\n\r\n\x1b[2J"),
            Some((503, "\\u{1b}[2J".to_owned()))
        );
        for bad in [
            &b"SSH-2.0-OpenSSH_9.2\r\n\r\n"[..],
            b"",
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 \r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_an_origin_is_asked() {
        assert_eq!(authority("http://[::1]:4001/").unwrap(), "[::1]:4001");
        for url in [
            "127.0.0.1:4001",
            "https://h",
            "http://h/readyz",
            "http://u@h",
            "http://h?x",
            "",
        ] {
            assert!(authority(url).is_err(), "{url}");
        }
    }
}
