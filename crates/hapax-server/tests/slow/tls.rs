//! TLS, for the gateway and for those who speak it well or badly.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Whom a client believes.
#[derive(Clone)]
pub(crate) struct Trusted(Arc<ClientConfig>);

/// Makes a certificate for the gateway. What to write in its configuration, and what its clients
/// believe.
pub(crate) fn certificate(directory: &Path) -> (String, Trusted) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    fs::write(&certificate, certified.cert.pem()).unwrap();
    fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let settings = format!(
        "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n",
        certificate.display(),
        key.display()
    );
    (settings, Trusted::new(certified.cert.der().clone()))
}

impl Trusted {
    fn new(certificate: CertificateDer<'static>) -> Trusted {
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
        Trusted(Arc::new(config))
    }

    fn begin(&self) -> ClientConnection {
        ClientConnection::new(self.0.clone(), ServerName::try_from("localhost").unwrap()).unwrap()
    }

    pub(crate) fn connect(&self, socket: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
        StreamOwned::new(self.begin(), socket)
    }

    /// The first bytes of a handshake.
    pub(crate) fn hello(&self) -> Vec<u8> {
        let mut hello = Vec::new();
        self.begin().write_tls(&mut hello).unwrap();
        hello
    }
}
