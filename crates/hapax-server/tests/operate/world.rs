//! A gateway in this process that reads its configuration from a file, as the program does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax_server::config::file;
use hapax_server::gateway::{Gateway, Options, Reread};
use tempfile::TempDir;

use crate::harness::{self, Answer, Client, ClientRequest, Connection, With, get, replace};

pub struct World {
    pub gateway: Gateway,
    file: PathBuf,
    _directory: TempDir,
}

/// The beginning of every configuration here.
pub const HEAD: &str =
    "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nstore = \"sqlite:hapax.db\"\n";

impl World {
    /// Starts with this configuration, after [`HEAD`].
    pub async fn start(text: &str) -> World {
        World::start_in(tempfile::tempdir().unwrap(), text, false).await
    }

    pub async fn start_in(directory: TempDir, text: &str, reload_scopes: bool) -> World {
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

    pub fn write(&self, text: &str) {
        write(&self.file, text);
    }

    /// The same without [`HEAD`].
    pub fn write_whole(&self, text: &str) {
        replace(&self.file, text);
    }

    /// Writes this configuration and reloads. Returns the changes or the error as text.
    pub async fn reload(&self, text: &str) -> Result<Vec<String>, String> {
        self.write(text);
        let reloaded = self.gateway.reloader().reload(false).await;
        reloaded
            .map(|changes| changes.iter().map(ToString::to_string).collect())
            .map_err(|error| error.to_string())
    }

    pub async fn connect(&self) -> Connection {
        Client::new(self.gateway.address()).connect().await.unwrap()
    }

    pub async fn send(&self, request: ClientRequest) -> Answer {
        Client::new(self.gateway.address()).send(request).await
    }

    /// Asks as an operator.
    pub async fn ask(&self, request: ClientRequest) -> Answer {
        Client::new(self.gateway.admin().unwrap())
            .send(request)
            .await
    }

    /// All metrics as text.
    pub async fn metrics(&self) -> String {
        self.ask(get("/metrics")).await.text().to_owned()
    }

    pub async fn metric(&self, name: &str) -> f64 {
        harness::metric(&self.metrics().await, name)
    }
}

fn write(file: &Path, text: &str) {
    replace(file, &format!("{HEAD}{text}"));
}

/// A POST with a key.
pub fn post(path: &str, key: &str) -> ClientRequest {
    harness::post(path, "{\"amount\":5}")
        .with("authorization", "Bearer ada")
        .key(key)
}
