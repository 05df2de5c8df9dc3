//! Tests the NATS server that other tests use.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;

use hapax_testkit::servers::Nats;

/// A client as simple as can be.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(nats: &Nats) -> Client {
        let stream = TcpStream::connect(nats.address()).unwrap();
        let mut client = Client(BufReader::new(stream));
        assert!(client.line().starts_with("INFO "));
        client.say("CONNECT {\"verbose\":false}\r\nSUB answers 1\r\n");
        client
    }

    fn say(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// Asks JetStream for something, with JSON.
    fn ask(&mut self, subject: &str, question: &str) -> String {
        let length = question.len();
        self.say(&format!("PUB {subject} answers {length}\r\n{question}\r\n"));
        loop {
            let line = self.line();
            if line.starts_with('{') {
                return line;
            }
        }
    }
}

#[test]
fn a_killed_nats_has_its_streams_again() {
    let Some(mut nats) = Nats::start("") else {
        return;
    };
    assert_eq!(nats.url(), format!("nats://127.0.0.1:{}", nats.port()));
    let mut client = Client::connect(&nats);
    let made = client.ask(
        "$JS.API.STREAM.CREATE.S",
        r#"{"name":"S","subjects":["s"]}"#,
    );
    assert!(!made.contains("error"), "{made}");
    for _ in 0..100 {
        let stored = client.ask("s", "message");
        assert!(stored.contains("\"seq\""), "{stored}");
    }
    let (port, pid) = (nats.port(), nats.pid());
    nats.kill();
    assert!(!nats.is_up());
    nats.restart();
    let information = Client::connect(&nats).ask("$JS.API.STREAM.INFO.S", "");
    assert!(information.contains("\"messages\":100,"), "{information}");
    assert_eq!(nats.port(), port);
    assert_ne!(nats.pid(), pid);
}

#[test]
fn a_paused_nats_answers_when_it_is_resumed() {
    let Some(mut nats) = Nats::start("") else {
        return;
    };
    let mut client = Client::connect(&nats);
    nats.pause();
    assert!(!nats.is_up());
    nats.resume();
    assert!(client.ask("$JS.API.INFO", "").contains("\"streams\":0"));
    nats.pause();
    nats.kill();
    nats.restart();
    assert!(nats.is_up());
}

#[test]
fn nats_has_the_settings_of_a_test() {
    let Some(nats) = Nats::start("max_payload: 2MB") else {
        return;
    };
    let mut stream = BufReader::new(TcpStream::connect(nats.address()).unwrap());
    let mut greeting = String::new();
    stream.read_line(&mut greeting).unwrap();
    assert!(greeting.contains("\"max_payload\":2097152"), "{greeting}");
}

#[test]
fn a_dropped_nats_leaves_nothing_behind() {
    let Some(nats) = Nats::start("") else {
        return;
    };
    let (directory, pid) = (nats.directory().to_owned(), nats.pid());
    assert!(directory.is_dir());
    drop(nats);
    assert!(!directory.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}
