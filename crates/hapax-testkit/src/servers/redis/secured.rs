//! A Redis that is reached over TLS, with a password.

use std::path::PathBuf;

use super::super::directory::Directory;
use super::super::port::Port;
use super::Redis;
use crate::harness::Authority;

const PASSWORD: &str = "s3cret";

/// A [`Redis`] with a second way in, by TLS, for the user `hapax`.
pub struct SecuredRedis {
    // In this order: the server ends before its certificates are removed.
    server: Redis,
    directory: Directory,
    port: Port,
}

impl SecuredRedis {
    /// Starts one with further settings, as in `redis.conf`. Prints `SKIPPED` and returns `None` if
    /// Redis is not installed.
    ///
    /// # Panics
    ///
    /// If it does not start; the message has its log.
    pub fn start(settings: &[(&str, &str)]) -> Option<SecuredRedis> {
        let (directory, port) = (Directory::new(), Port::free());
        let issuer = Authority::default();
        issuer.write(&directory.path().join("ca.pem"));
        let (certificate, key) = issuer.issue().write(directory.path(), "server");
        let text = |path: PathBuf| path.display().to_string();
        let tls = [
            ("tls-port", port.number().to_string()),
            ("tls-cert-file", text(certificate)),
            ("tls-key-file", text(key)),
            ("tls-ca-cert-file", text(directory.path().join("ca.pem"))),
            ("tls-auth-clients", "no".to_owned()),
            ("user", format!("hapax on >{PASSWORD} ~* &* +@all")),
        ];
        let tls = tls.iter().map(|(name, value)| (*name, value.as_str()));
        let all: Vec<(&str, &str)> = settings.iter().copied().chain(tls).collect();
        Some(SecuredRedis {
            server: Redis::start(&all)?,
            directory,
            port,
        })
    }

    /// The server itself, without TLS and password.
    pub fn server(&self) -> &Redis {
        &self.server
    }

    /// Its URL with TLS, and without the certificate authority to trust.
    pub fn url(&self) -> String {
        format!("rediss://hapax:{PASSWORD}@{}", self.port.address())
    }

    /// The file of the certificate authority to trust, in PEM.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// The file of another one.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn other_authority(&self) -> PathBuf {
        let path = self.directory.path().join("other.pem");
        Authority::default().write(&path);
        path
    }
}
