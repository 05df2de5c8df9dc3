//! A certificate authority for tests, and certificates signed by it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate for the loopback address, and its key, in PEM.
pub struct Certified {
    certificate: String,
    key: String,
}

impl Default for Authority {
    fn default() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }
}

impl Authority {
    pub fn issue(&self) -> Certified {
        let key = KeyPair::generate().unwrap();
        let params =
            CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Certified {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// Writes the authority's own certificate, for programs that should trust it.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).unwrap();
    }

    /// The TLS configuration of a client that trusts only this authority and speaks this protocol.
    pub fn client(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }
}

impl Certified {
    /// Writes certificate and key into a directory, as `NAME.pem` and `NAME.key`. Returns their
    /// paths.
    pub fn write(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let certificate = directory.join(format!("{name}.pem"));
        let key = directory.join(format!("{name}.key"));
        std::fs::write(&certificate, &self.certificate).unwrap();
        std::fs::write(&key, &self.key).unwrap();
        (certificate, key)
    }

    /// The TLS configuration of a server that speaks these protocols.
    pub fn server(&self, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
