//! A gateway in this process that reads its configuration from a file, as the program does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax_server::config::file;
use hapax_server::gateway::{Gateway, Options, Reread};
use http::Request;
use http_body_util::Full;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;

use crate::wire::{Connection, Got, get};

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    file: PathBuf,
    _directory: TempDir,
}

/// What stands before the rest of every configuration here.
pub(crate) const HEAD: &str =
    "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"sqlite:hapax.db\"\n";

impl World {
    /// Starts with this configuration, after [`HEAD`].
    pub(crate) async fn start(text: &str) -> World {
        World::start_in(tempfile::tempdir().unwrap(), text, false).await
    }

    pub(crate) async fn start_in(directory: TempDir, text: &str, reload_scopes: bool) -> World {
        let file = directory.path().join("hapax.toml");
        write(&file, text);
        let path = file.clone();
        let reread: Reread = Arc::new(move || file::read(&path));
        let options = Options {
            reread: Some(reread.clone()),
            reload_scopes,
            ..Options::default()
        };
        let gateway = Gateway::start_with(reread().unwrap(), options)
            .await
            .unwrap();
        World {
            gateway,
            file,
            _directory: directory,
        }
    }

    pub(crate) fn write(&self, text: &str) {
        write(&self.file, text);
    }

    /// The same without [`HEAD`].
    pub(crate) fn write_whole(&self, text: &str) {
        write_whole(&self.file, text);
    }

    /// Reads this configuration; what came of it, in words.
    pub(crate) async fn reload(&self, text: &str) -> Result<Vec<String>, String> {
        self.write(text);
        let reloaded = self.gateway.reloader().reload(false).await;
        reloaded
            .map(|changes| changes.iter().map(ToString::to_string).collect())
            .map_err(|error| error.to_string())
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(self.gateway.address(), None).await
    }

    pub(crate) async fn send(&self, request: Request<Full<bytes::Bytes>>) -> Got {
        self.connect().await.send(request).await.unwrap()
    }

    /// Asks as an operator.
    pub(crate) async fn ask(&self, request: Request<Full<bytes::Bytes>>) -> Got {
        Connection::open(self.gateway.admin().unwrap(), None)
            .await
            .send(request)
            .await
            .unwrap()
    }

    /// Everything that is counted.
    pub(crate) async fn metrics(&self) -> String {
        self.ask(get("/metrics")).await.body
    }

    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.metrics().await;
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }
}

fn write(file: &Path, text: &str) {
    write_whole(file, &format!("{HEAD}{text}"));
}

fn write_whole(file: &Path, text: &str) {
    // In one step, as an editor does: a reload must not find half of it.
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// Who vouches for certificates here.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a new certificate and its key, `NAME.pem` and `NAME.key`.
    pub(crate) fn issue(&self, directory: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned()])
            .unwrap()
            .signed_by(&key, &self.0)
            .unwrap();
        std::fs::write(directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}
