//! Restate, the peer with the most similar promises: its server and its SDK for Node, both from
//! npm.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::Error;
use crate::client::Request;
use crate::directory::Directory;
use crate::load::ANSWER_BYTES;

use super::install::peers;
use super::process::{Process, command, free_address, port};
use super::server::{SERVES_WITHIN, Server, exchange};

const PACKAGES: [&str; 2] = [
    "@restatedev/restate-server@1.7.12",
    "@restatedev/restate-sdk@1.17.2",
];
const ORDERS: &str = "/charges/charge";

/// The configuration of Restate.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Setting {
    /// The defaults except for ports and telemetry, with a service written with its SDK.
    Installed,
    /// Tuned for a single node, with a service that costs almost nothing.
    Tuned,
}

impl Setting {
    fn template(self) -> &'static str {
        match self {
            Setting::Installed => include_str!("restate.toml"),
            Setting::Tuned => include_str!("restate_tuned.toml"),
        }
    }
}

/// The installed programs.
pub(super) struct Installed {
    server: PathBuf,
    service: PathBuf,
}

impl Installed {
    /// Installs them once from npm, into a directory beside this program.
    pub(super) fn get() -> Result<Installed, Error> {
        let directory = peers("restate", &PACKAGES.join("\n"), install)?;
        // The service must be beside the SDK, so that Node finds the SDK.
        let service = directory.join("service.mjs");
        std::fs::write(&service, include_str!("restate.mjs"))?;
        let server = directory
            .join("node_modules/@restatedev")
            .join(platform())
            .join("bin/restate-server");
        if !server.is_file() {
            return Err(format!(
                "npm has no server for this platform: {} is missing",
                server.display()
            )
            .into());
        }
        Ok(Installed { server, service })
    }

    /// Starts it on an empty store. With [`Setting::Installed`] its service is the one written with
    /// its SDK; with [`Setting::Tuned`] it is the upstream that the other peers use.
    pub(super) async fn serve(&self, setting: Setting, upstream: &str) -> Result<Server, Error> {
        let directory = Directory::temporary()?;
        let (service, behind) = match setting {
            Setting::Installed => self.service(&directory).await?,
            Setting::Tuned => (None, upstream.to_owned()),
        };
        let (node, ingress, admin) = (free_address()?, free_address()?, free_address()?);
        let path = directory
            .path()
            .to_str()
            .ok_or("the path for temporary files is not text")?;
        let values = [
            ("{directory}", path),
            ("{node}", port(&node)),
            ("{ingress}", port(&ingress)),
            ("{admin}", port(&admin)),
        ];
        let configuration = values
            .iter()
            .fold(setting.template().to_owned(), |text, (name, value)| {
                text.replace(name, value)
            });
        std::fs::write(directory.file("restate.toml"), configuration)?;
        let mut restate = command(&self.server)?;
        restate
            .arg("--no-logo")
            .arg("--config-file")
            .arg(directory.file("restate.toml"))
            .current_dir(directory.path());
        let mut process = Process::start("restate", restate, directory.path())?;
        process.ready(&admin).await?;
        process.ready(&ingress).await?;
        let order = Request::order(ORDERS, 200);
        register(&admin, &behind, setting).await?;
        let without_key = Request::order_without_key(ORDERS, 200);
        let server = Server {
            process,
            service,
            address: ingress,
            order,
            without_key,
            _directory: Some(directory),
        };
        server.replays("Restate").await?;
        Ok(server)
    }

    /// Starts the service written with its SDK. Returns the process and its address.
    async fn service(&self, directory: &Directory) -> Result<(Option<Process>, String), Error> {
        let address = free_address()?;
        let mut node = command("node")?;
        node.arg(&self.service)
            .args([port(&address), &ANSWER_BYTES.to_string()]);
        let mut service = Process::start("service", node, directory.path())?;
        service.ready(&address).await?;
        Ok((Some(service), address))
    }
}

fn install(directory: &Path) -> Result<(), Error> {
    std::fs::write(
        directory.join("package.json"),
        "{\"private\": true, \"type\": \"module\"}\n",
    )?;
    let mut npm = command("npm")?;
    // Scripts of the packages send telemetry, and nothing here needs them.
    npm.args([
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--loglevel",
        "error",
    ])
    .args(PACKAGES);
    let installed = npm
        .current_dir(directory)
        .stdout(std::process::Stdio::null())
        .status()?;
    if installed.success() {
        Ok(())
    } else {
        Err("npm could not install it".into())
    }
}

fn platform() -> String {
    let system = if std::env::consts::OS == "macos" {
        "darwin"
    } else {
        std::env::consts::OS
    };
    let processor = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("restate-server-{system}-{processor}")
}

/// Tells the server where the service is.
async fn register(admin: &str, service: &str, setting: Setting) -> Result<(), Error> {
    // The SDK speaks HTTP/2; the upstream does not.
    let use_http_11 = setting == Setting::Tuned;
    let service = format!("{{\"uri\":\"http://{service}\",\"use_http_11\":{use_http_11}}}");
    let request = Request::post("/deployments", &service, 201);
    let deadline = Instant::now() + SERVES_WITHIN;
    loop {
        match exchange(admin, &request, Uuid::nil(), "Restate").await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(format!("Restate does not take the service: {error}").into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
