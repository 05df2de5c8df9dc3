//! TLS by the rules of libpq's `sslmode`, with rustls.
//!
//! The cryptography provider is passed explicitly and not installed as the process default: that is
//! for the program to decide.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connect::{ConnectError, ConnectKind};
use super::options::{Identity, Mode, Roots, TlsOptions};

/// Reads the files that the options name. They are read for each connection, so that a new
/// certificate needs no restart.
pub(super) fn connector(options: &TlsOptions) -> Result<MakeRustlsConnect, ConnectError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = verifier(options, &provider)?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| of_files("TLS cannot be used with these versions", error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &options.identity {
        Some(identity) => {
            let (certificates, key) = (certificates(&identity.certificate)?, key(&identity.key)?);
            config
                .with_client_auth_cert(certificates, key)
                .map_err(|error| unfit(identity, error))?
        }
        None => config.with_no_client_auth(),
    };
    if options.direct {
        // A server refuses direct TLS without this protocol name.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(MakeRustlsConnect::new(config))
}

fn verifier(
    options: &TlsOptions,
    provider: &Arc<CryptoProvider>,
) -> Result<Verifier, ConnectError> {
    let algorithms = provider.signature_verification_algorithms;
    let trusted = match &options.roots {
        Roots::Anybody => {
            return Ok(Verifier {
                chain: None,
                named: false,
                algorithms,
            });
        }
        Roots::System => rustls_native_certs::load_native_certs().certs,
        Roots::File(path) => certificates(path)?,
    };
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(trusted.iter().cloned());
    if added == 0 {
        return Err(ConnectError::new(
            ConnectKind::Files,
            no_roots(&options.roots),
        ));
    }
    let webpki = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .map_err(|error| of_files("the authorities cannot be used", error))?;
    let chain = Some(Chain { webpki, trusted });
    Ok(Verifier {
        chain,
        named: options.mode == Mode::VerifyFull,
        algorithms,
    })
}

fn no_roots(roots: &Roots) -> String {
    match roots {
        Roots::File(path) => {
            format!("{} has no certificate that could be trusted: sslrootcert names a PEM file of authorities", path.display())
        }
        _ => "this system trusts nobody: install its package of authorities (ca-certificates), or say sslrootcert=FILE".to_owned(),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let unreadable = |error| {
        of_files(
            &format!("{} could not be read as PEM certificates", path.display()),
            error,
        )
    };
    let found = CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(unreadable)?;
    if found.is_empty() {
        return Err(ConnectError::new(
            ConnectKind::Files,
            format!("{} has no PEM certificate in it", path.display()),
        ));
    }
    Ok(found)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, ConnectError> {
    let shown = path.display();
    let metadata = fs::metadata(path)
        .map_err(|error| of_files(&format!("the key {shown} could not be read"), error))?;
    if is_open_to_others(&metadata) {
        return Err(ConnectError::new(
            ConnectKind::Files,
            format!("others may read the key {shown}: chmod 0600"),
        ));
    }
    let advice = format!(
        "the key {shown} could not be read: it takes a PEM file with a key that is not encrypted"
    );
    PrivateKeyDer::from_pem_file(path).map_err(|error| of_files(&advice, error))
}

/// As in libpq, a group may read a key that root owns, because root may keep certificates for
/// several services.
#[cfg(unix)]
fn is_open_to_others(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.mode() & if metadata.uid() == 0 { 0o037 } else { 0o077 } != 0
}

#[cfg(not(unix))]
fn is_open_to_others(_: &fs::Metadata) -> bool {
    false
}

fn unfit(identity: &Identity, error: Error) -> ConnectError {
    let text = format!(
        "{} is not the key of {}",
        identity.key.display(),
        identity.certificate.display()
    );
    of_files(&text, error)
}

fn of_files(text: &str, error: impl std::error::Error + Send + Sync + 'static) -> ConnectError {
    ConnectError::new(ConnectKind::Files, format!("{text}: {error}")).because(error)
}

/// Verifies the server's certificate.
#[derive(Debug)]
struct Verifier {
    /// `None` accepts any certificate.
    chain: Option<Chain>,
    /// Whether the host name must match too.
    named: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
struct Chain {
    webpki: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Chain {
    /// Whether the certificate itself is trusted. Many servers have a self-signed certificate that
    /// is also an authority, of which their users have a copy; libpq accepts that. webpki checks
    /// the validity period before it rejects an authority's certificate, so that check has passed.
    fn is_pinned(&self, error: &Error, certificate: &CertificateDer<'_>) -> bool {
        let Error::InvalidCertificate(CertificateError::Other(other)) = error else {
            return false;
        };
        other.to_string().contains("CaUsedAsEndEntity") && self.trusted.contains(certificate)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        match chain
            .webpki
            .verify_server_cert(certificate, intermediates, name, ocsp, now)
        {
            Err(error) if chain.is_pinned(&error, certificate) => {
                if self.named {
                    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            // webpki checks the name last: a certificate that fails there has passed all other
            // checks.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.named => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
