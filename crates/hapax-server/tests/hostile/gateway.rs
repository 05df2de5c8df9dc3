//! The program itself, as a child: what is attacked is what is shipped.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A gateway at work. Killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) address: SocketAddr,
    _directory: TempDir,
}

impl Gateway {
    /// In front of an upstream, with `settings` besides those that every test wants.
    #[allow(dead_code, reason = "shared by two suites, of which one says more")]
    pub(crate) fn start(upstream: SocketAddr, settings: &str) -> Gateway {
        Gateway::start_with(upstream, "", settings)
    }

    /// The same with settings that stand before the first section.
    pub(crate) fn start_with(upstream: SocketAddr, before: &str, settings: &str) -> Gateway {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hapax.toml");
        // The cases are about what a request is, and not about who sends it.
        let common = "listen = \"127.0.0.1:0\"\nadmin = \"off\"\nstore = \"sqlite:hapax.db\"\n\
                      anonymous_fields = [\"a\", \"x\", \"x-hop\", \"idempotent-replayed\", \"sec-websocket-key\", \"sec-websocket-version\"]\n";
        fs::write(
            &file,
            format!("{common}{before}[upstream]\nurl = \"http://{upstream}\"\n{settings}"),
        )
        .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_hapax"))
            .args(["serve", "--log", "text", "--config"])
            .arg(&file)
            .env("HAPAX_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let address = address(&mut said);
        // What nobody reads would one day be waited for.
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        Gateway {
            child,
            address,
            _directory: directory,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where clients connect, by what it says at its start.
fn address(said: &mut impl BufRead) -> SocketAddr {
    let mut line = String::new();
    loop {
        line.clear();
        assert_ne!(
            said.read_line(&mut line).unwrap(),
            0,
            "the gateway ended before it said where it listens"
        );
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["clients", url] = words[..] {
            return url.rsplit("//").next().unwrap().parse().unwrap();
        }
    }
}
