//! TLS, for the gateway and for those who speak it well or badly.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use hapax_testkit::harness::Authority;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// Whom a client believes.
#[derive(Clone)]
pub struct Trusted(Arc<ClientConfig>);

/// Makes a certificate for the gateway. What to write in its configuration, and what its clients
/// believe.
pub fn certificate(directory: &Path) -> (String, Trusted) {
    let authority = Authority::default();
    let (certificate, key) = authority.issue().write(directory, "gateway");
    let settings = format!(
        "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n",
        certificate.display(),
        key.display()
    );
    (settings, Trusted(authority.client(b"http/1.1")))
}

impl Trusted {
    fn begin(&self) -> ClientConnection {
        ClientConnection::new(self.0.clone(), ServerName::try_from("localhost").unwrap()).unwrap()
    }

    pub fn connect(&self, socket: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
        StreamOwned::new(self.begin(), socket)
    }

    /// The first bytes of a handshake.
    pub fn hello(&self) -> Vec<u8> {
        let mut hello = Vec::new();
        self.begin().write_tls(&mut hello).unwrap();
        hello
    }
}
