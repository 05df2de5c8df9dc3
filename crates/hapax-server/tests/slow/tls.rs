//! TLS for the gateway, and for clients that speak it correctly or not.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use hapax_testkit::harness::Authority;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// The certificates that a client trusts.
#[derive(Clone)]
pub struct Trusted(Arc<ClientConfig>);

/// Makes a certificate for the gateway. Returns its lines of configuration, and what its clients
/// trust.
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
