//! TLS as a client.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("the file of certificates {path}: {reason}")]
    CaFile { path: String, reason: String },
    #[error("TLS: {0}")]
    Setup(String),
}

/// Trusts the certificate authorities of the system, and those of a file.
pub(crate) fn client(ca_file: Option<&Path>) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    // Certificates of the system that cannot be read are skipped. If none can be trusted, no
    // connection can be made.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        add_file(&mut roots, path).map_err(|reason| TlsError::CaFile {
            path: path.display().to_string(),
            reason,
        })?;
    }
    // Given to this client alone: which one the process has is for its program to say.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Setup(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

fn add_file(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let before = roots.len();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    match roots.len() > before {
        true => Ok(()),
        false => Err("it has no certificate: it should hold PEM blocks".to_owned()),
    }
}
