//! Connects to a service: opens a socket, adds TLS if the URL asks for it, and finds the protocol
//! to speak.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::{Protocol, Upstream};
use crate::gateway::stream::Stream;

/// The address of a service, and how to connect to it.
pub(crate) struct Dialer {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    is_http2: bool,
}

/// A connection, by the protocol that the service speaks.
pub(crate) enum Dialed {
    Http1(Stream),
    Http2(Stream),
}

impl Dialer {
    /// `section` is the section of the configuration that sets `upstream`; errors name it.
    pub(crate) fn new(upstream: &Upstream, section: &str) -> Result<Dialer, String> {
        let url = &upstream.url;
        let host = url
            .host()
            .unwrap_or_default()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let is_https = url.scheme_str() == Some("https");
        let tls = if is_https {
            Some((connector(upstream, section)?, server_name(&host, section)?))
        } else {
            None
        };
        let port = url.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(Dialer {
            host,
            port,
            tls,
            is_http2: upstream.protocol == Protocol::Http2,
        })
    }

    pub(crate) async fn dial(&self) -> io::Result<Dialed> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        socket.set_nodelay(true)?;
        let Some((connector, name)) = &self.tls else {
            let stream = Stream::Plain(socket);
            return Ok(if self.is_http2 {
                Dialed::Http2(stream)
            } else {
                Dialed::Http1(stream)
            });
        };
        let stream = connector.connect(name.clone(), socket).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = Stream::Tls(Box::new(stream.into()));
        Ok(if is_http2 {
            Dialed::Http2(stream)
        } else {
            Dialed::Http1(stream)
        })
    }
}

fn server_name(host: &str, section: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        format!("`{host}` in the URL of {section} is no name that a certificate can have")
    })
}

fn connector(upstream: &Upstream, section: &str) -> Result<TlsConnector, String> {
    let mut roots = rustls::RootCertStore::empty();
    // System certificates that cannot be read are skipped. If no certificate can be trusted,
    // connecting fails.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = &upstream.ca_file {
        let failed = |error: &dyn std::fmt::Display| {
            format!("{section}.ca_file {}: {error}", path.display())
        };
        let certificates = rustls::pki_types::CertificateDer::pem_file_iter(path)
            .map_err(|error| failed(&error))?;
        let mut is_empty = true;
        for certificate in certificates {
            is_empty = false;
            let added = certificate
                .map_err(|error| failed(&error))
                .map(|certificate| roots.add(certificate))?;
            added.map_err(|error| failed(&error))?;
        }
        if is_empty {
            return Err(failed(
                &"there is no certificate in it: it should hold PEM blocks",
            ));
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::aws_lc_rs::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .map_err(|error| error.to_string())?
    .with_root_certificates(roots)
    .with_no_client_auth();
    config.alpn_protocols = match upstream.protocol {
        Protocol::Auto => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Protocol::Http1 => vec![b"http/1.1".to_vec()],
        Protocol::Http2 => vec![b"h2".to_vec()],
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
